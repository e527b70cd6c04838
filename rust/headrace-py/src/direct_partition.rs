//! A partition whose records are sent directly: see `direct.rs`.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use headrace_kernel::{BatchBuilder, Compressor, ProduceFrames, ProduceTopic, Stamp};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::direct::{DirectConnection, InFlight};
use crate::direct_sender::DirectSender;
use crate::encode::raised;
use crate::producer_batch::{BorrowedFields, ProducerBatch};

/// The largest batch: a socket's buffer takes it at once, and compressing it does not need to release the GIL.
const LARGEST: usize = 16 * 1024;

/// Its records are sent one at a time, while it is active.
#[pyclass(module = "headrace._native", frozen)]
pub struct DirectPartition {
    sender: Py<DirectSender>,
    connection: Py<DirectConnection>,
    topic: Py<PyString>,
    number: i32,
    pub version: i16,
    pub frames: ProduceFrames,
    producer_id: i64,
    epoch: i16,
    next_sequence: AtomicI32,
    is_active: AtomicBool,
    /// Whether the broker has acknowledged a batch.
    pub has_delivered: AtomicBool,
    /// Bytes of records that chose this partition because it was the sticky one.
    sticky_bytes: AtomicUsize,
}

impl DirectPartition {
    pub fn is_active(&self) -> bool {
        self.is_active.load(Relaxed)
    }

    pub fn take_sticky_bytes(&self) -> usize {
        self.sticky_bytes.swap(0, Relaxed)
    }

    /// Whether a record of this size can be sent now.
    pub fn is_ready(&self, py: Python<'_>, size: usize, is_sticky: bool) -> bool {
        let is_over = is_sticky && self.sticky_bytes.load(Relaxed) >= self.sender.get().batch_size.max(1);
        self.is_active() && !is_over && size <= LARGEST && self.connection.borrow_mut(py).is_ready(py)
    }

    /// A batch with one record, which is not sent yet, and its bytes.
    pub fn batch_of(
        &self,
        py: Python<'_>,
        fields: &BorrowedFields<'_>,
        timestamp: i64,
    ) -> PyResult<(ProducerBatch, Vec<u8>)> {
        let sender = self.sender.get();
        let mut builder = BatchBuilder::new(fields.size() + 128);
        builder.push(&fields.fields(timestamp)).map_err(raised)?;
        let size = builder.size();
        let data =
            builder.finish(&mut Compressor::new(sender.compression), &Stamp::default()).map_err(raised)?;
        let (topic, waiting) = (self.topic.clone_ref(py), sender.waiting.clone_ref(py));
        Ok((ProducerBatch::of_one(topic, self.number, size, waiting), data))
    }

    /// Sends it. Returns false if that is not possible any more, and then nothing was done.
    pub fn send(
        slf: &Bound<'_, Self>,
        batch: &Bound<'_, ProducerBatch>,
        mut data: Vec<u8>,
        is_sticky: bool,
    ) -> PyResult<bool> {
        let (py, partition) = (slf.py(), slf.get());
        let sender = partition.sender.get();
        let mut connection = partition.connection.bind(py).borrow_mut();
        if !partition.is_active() || !connection.is_ready(py) {
            return Ok(false);
        }
        let sequence = partition.next_sequence.load(Relaxed);
        if partition.producer_id >= 0 {
            let (producer_id, epoch) = (partition.producer_id, partition.epoch);
            let stamp = Stamp { producer_id, epoch, sequence, is_transactional: false };
            headrace_kernel::stamp(&mut data, &stamp).map_err(raised)?;
        }
        let correlation_id = connection.next_id.wrapping_add(1) & i32::MAX;
        let frame = partition.frames.request(correlation_id, &data);
        let sent = data.len();
        let in_flight = InFlight {
            batch: batch.clone().unbind(),
            partition: slf.clone().unbind(),
            data,
            unsent: Vec::new(),
            correlation_id,
            sequence,
            since: Instant::now(),
        };
        if !connection.write(&frame, in_flight) {
            return Ok(false);
        }
        drop(connection);
        let size = batch.borrow_mut().sent_directly(partition.connection.clone_ref(py));
        partition.next_sequence.store(sequence.wrapping_add(1) & i32::MAX, Relaxed);
        if is_sticky {
            partition.sticky_bytes.fetch_add(size, Relaxed);
        }
        sender.used.fetch_add(size, Relaxed);
        sender.requests.fetch_add(1, Relaxed);
        sender.bytes_sent.fetch_add(sent, Relaxed);
        Ok(true)
    }
}

#[pymethods]
impl DirectPartition {
    /// `topic_id` is 16 bytes, for versions of Produce with ids of topics; earlier ones have names.
    #[new]
    #[pyo3(signature = (sender, connection, topic, number, *, version, topic_id, producer_id, epoch, next_sequence))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        sender: Py<DirectSender>,
        connection: Py<DirectConnection>,
        topic: Bound<'_, PyString>,
        number: i32,
        version: i16,
        topic_id: Option<[u8; 16]>,
        producer_id: i64,
        epoch: i16,
        next_sequence: i32,
    ) -> PyResult<Self> {
        let place = match topic_id {
            Some(id) => ProduceTopic::Id(id),
            None => ProduceTopic::Name(topic.to_str()?.to_owned()),
        };
        let frames =
            ProduceFrames::new(version, &sender.get().settings, &place, number).ok_or_else(|| {
                PyValueError::new_err("the version needs another form of the topic, or a name is too long")
            })?;
        Ok(Self {
            sender,
            connection,
            topic: topic.unbind(),
            number,
            version,
            frames,
            producer_id,
            epoch,
            next_sequence: AtomicI32::new(next_sequence),
            is_active: AtomicBool::new(true),
            has_delivered: AtomicBool::new(false),
            sticky_bytes: AtomicUsize::new(0),
        })
    }

    /// No record is sent directly to it any more.
    pub fn end(&self) {
        self.is_active.store(false, Relaxed);
    }

    #[getter]
    fn next_sequence(&self) -> i32 {
        self.next_sequence.load(Relaxed)
    }

    #[getter]
    fn has_delivered(&self) -> bool {
        self.has_delivered.load(Relaxed)
    }

    /// Whether a batch of this partition is on its way.
    #[getter]
    fn is_in_flight(slf: &Bound<'_, Self>) -> bool {
        let connection = slf.get().connection.borrow(slf.py());
        connection.in_flight.as_ref().is_some_and(|each| each.partition.is(slf))
    }
}

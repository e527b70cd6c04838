//! The batches of one topic that still accept records: the hot path of `send()`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use headrace_kernel::{crc32, murmur2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer_memory::BufferMemory;
use crate::direct_partition::DirectPartition;
use crate::producer_batch::{Appended, BorrowedFields, Delivery, Header, ProducerBatch};

/// The maximum number of bytes that a record needs in addition to its fields, and those of the header of a batch.
const RECORD_OVERHEAD: usize = 21;
const BATCH_OVERHEAD: usize = 61;

#[derive(Clone, Copy)]
enum KeyHash {
    Murmur2,
    Crc32,
    /// Keys do not determine partitions.
    None,
}

#[pyclass(module = "headrace._native")]
pub struct OpenBatches {
    /// One for each partition.
    open: Vec<Option<Py<ProducerBatch>>>,
    /// The partitions whose records are sent directly while they have no open batch.
    direct: Vec<Option<Py<DirectPartition>>>,
    hash: KeyHash,
    /// The partition for records without a key. None: it must be drawn.
    #[pyo3(get, set)]
    sticky: Option<usize>,
    used: Arc<AtomicUsize>,
    limit: usize,
    largest: usize,
}

impl OpenBatches {
    fn partition_of(&self, key: Option<&[u8]>) -> Option<usize> {
        let hash = match (self.hash, key) {
            (KeyHash::None, _) | (_, None) | (KeyHash::Crc32, Some(b"")) => return None,
            (KeyHash::Murmur2, Some(key)) => murmur2(key) as u32 & 0x7fff_ffff,
            (KeyHash::Crc32, Some(key)) => crc32(key),
        };
        Some(hash as usize % self.open.len())
    }

    fn direct(&self, py: Python<'_>, partition: usize) -> Option<Py<DirectPartition>> {
        self.direct.get(partition)?.as_ref().map(|direct| direct.clone_ref(py))
    }

    /// Sends a record directly, if its partition is lent and has no open batch.
    fn send_directly(
        slf: &Bound<'_, Self>,
        fields: &BorrowedFields<'_>,
        timestamp: Option<i64>,
        partition: usize,
        is_sticky: bool,
    ) -> PyResult<Option<Delivery>> {
        let py = slf.py();
        let size = fields.size() + RECORD_OVERHEAD + BATCH_OVERHEAD;
        let direct = {
            let batches = slf.borrow();
            let has_room =
                size <= batches.largest && batches.used.load(Ordering::Relaxed) + size <= batches.limit;
            batches.direct(py, partition).filter(|_| has_room)
        };
        let Some(direct) = direct else { return Ok(None) };
        if !direct.get().is_ready(py, size, is_sticky) {
            return Ok(None);
        }
        let timestamp = timestamp.unwrap_or_else(now);
        let (batch, data) = direct.get().batch_of(py, fields, timestamp)?;
        // This may run Python code, and with it other threads: what was found before has to be found again.
        let batch = Bound::new(py, batch)?;
        if slf.borrow().open.get(partition).is_none_or(Option::is_some) {
            return Ok(None);
        }
        let is_sent = DirectPartition::send(direct.bind(py), &batch, data, is_sticky)?;
        Ok(is_sent.then(|| Delivery::new(batch.unbind(), 0, timestamp)))
    }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

#[pymethods]
impl OpenBatches {
    #[new]
    fn new(partition_count: usize, hash: &str, memory: &BufferMemory, largest: usize) -> PyResult<Self> {
        let hash = match hash {
            "murmur2" => KeyHash::Murmur2,
            "crc32" => KeyHash::Crc32,
            "none" => KeyHash::None,
            _ => return Err(PyValueError::new_err(format!("{hash} is not a hash of keys"))),
        };
        if partition_count == 0 {
            return Err(PyValueError::new_err("a topic has at least one partition"));
        }
        Ok(Self {
            open: (0..partition_count).map(|_| None).collect(),
            direct: (0..partition_count).map(|_| None).collect(),
            hash,
            sticky: None,
            used: memory.counter(),
            limit: memory.limit,
            largest,
        })
    }

    /// Nothing is borrowed while Python objects are created or read: that may run Python code (the garbage collector's
    /// callbacks and finalizers), and with it other threads.
    #[pyo3(signature = (value, key=None, headers=None, timestamp=None, partition=None))]
    fn append<'py>(
        slf: &Bound<'py, Self>,
        value: Option<Bound<'py, PyAny>>,
        key: Option<Bound<'py, PyAny>>,
        headers: Option<Vec<Header<'py>>>,
        timestamp: Option<i64>,
        partition: Option<i64>,
    ) -> PyResult<Option<Delivery>> {
        let py = slf.py();
        let fields = BorrowedFields::new(key.as_ref(), value.as_ref(), headers)?;
        let batches = slf.borrow();
        let chosen = match partition {
            Some(partition) => usize::try_from(partition).ok(),
            None => batches.partition_of(fields.key()),
        };
        let is_sticky = partition.is_none() && chosen.is_none();
        let Some(partition) = (if is_sticky { batches.sticky } else { chosen }) else { return Ok(None) };
        let Some(Some(batch)) = batches.open.get(partition) else {
            drop(batches);
            return Self::send_directly(slf, &fields, timestamp, partition, is_sticky);
        };
        let size = fields.size() + RECORD_OVERHEAD;
        if size + BATCH_OVERHEAD > batches.largest {
            return Ok(None);
        }
        let mut batch_now = batch.borrow_mut(py);
        let growth = if batch_now.is_empty() { size + BATCH_OVERHEAD } else { size };
        if batches.used.load(Ordering::Relaxed) + growth > batches.limit {
            return Ok(None);
        }
        let timestamp = timestamp.unwrap_or_else(now);
        let appended = batch_now.push(&fields, timestamp)?;
        drop(batch_now);
        Ok(match appended {
            Appended::No => None,
            Appended::Yes { index, growth } => {
                batches.used.fetch_add(growth, Ordering::Relaxed);
                Some(Delivery::new(batch.clone_ref(py), index, timestamp))
            }
        })
    }

    /// The largest size that the record can have as a batch of its own, before compression.
    #[staticmethod]
    #[pyo3(signature = (value, key=None, headers=None))]
    fn largest_size<'py>(
        value: Option<Bound<'py, PyAny>>,
        key: Option<Bound<'py, PyAny>>,
        headers: Option<Vec<Header<'py>>>,
    ) -> PyResult<usize> {
        let fields = BorrowedFields::new(key.as_ref(), value.as_ref(), headers)?;
        Ok(fields.size() + RECORD_OVERHEAD + BATCH_OVERHEAD)
    }

    /// The partition of the key. None: the record goes to the sticky partition.
    fn partition(slf: &Bound<'_, Self>, key: Option<Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
        let fields = BorrowedFields::new(key.as_ref(), None, None)?;
        Ok(slf.borrow().partition_of(fields.key()))
    }

    fn __len__(&self) -> usize {
        self.open.len()
    }

    /// The batch that accepts the partition's records.
    fn get(&self, py: Python<'_>, partition: usize) -> Option<Py<ProducerBatch>> {
        self.open.get(partition)?.as_ref().map(|batch| batch.clone_ref(py))
    }

    /// Records of the partition are not sent directly any more: they would overtake those of the batch.
    fn put(&mut self, partition: usize, batch: Py<ProducerBatch>) -> PyResult<()> {
        self.end_direct(partition);
        match self.open.get_mut(partition) {
            Some(place) => *place = Some(batch),
            None => return Err(PyValueError::new_err("there is no such partition")),
        }
        Ok(())
    }

    /// The batch accepts no more records.
    fn take(&mut self, partition: usize) -> Option<Py<ProducerBatch>> {
        self.open.get_mut(partition)?.take()
    }

    /// The topic has more partitions now.
    fn grow(&mut self, partition_count: usize) {
        while self.open.len() < partition_count {
            self.open.push(None);
            self.direct.push(None);
        }
    }

    // -- sent directly: see direct.rs --------------------------------------------------------------------------

    /// Records of the partition are sent directly, until `end_direct` or `put`.
    fn lend(&mut self, partition: usize, direct: Py<DirectPartition>) -> PyResult<()> {
        match self.direct.get_mut(partition) {
            Some(place) => *place = Some(direct),
            None => return Err(PyValueError::new_err("there is no such partition")),
        }
        Ok(())
    }

    fn is_direct(&self, partition: usize) -> bool {
        self.direct.get(partition).and_then(Option::as_ref).is_some_and(|direct| direct.get().is_active())
    }

    fn end_direct(&mut self, partition: usize) {
        if let Some(direct) = self.direct.get_mut(partition).and_then(Option::take) {
            direct.get().end();
        }
    }

    /// The bytes of records without a key that were sent directly to the partition since the last call.
    fn take_direct_bytes(&self, partition: usize) -> usize {
        let direct = self.direct.get(partition).and_then(Option::as_ref);
        direct.map_or(0, |direct| direct.get().take_sticky_bytes())
    }
}

//! A batch of a producer, from its first record to the broker's response, and the delivery of each of its records.

use std::time::{Duration, Instant};

use headrace_kernel::{Compressor, EncodeError, Fields, Stamp};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::buffer::Bytes;
use crate::direct::{DirectAnswer, DirectConnection, Look, wait_readable};
use crate::encode::{EncodedBatch, compression, raised};
use crate::python_call::call_blocking;

/// Below this many bytes, releasing the GIL costs more than compressing.
const WORTH_DETACHING: usize = 4096;

/// The fields of a record, borrowed from Python objects.
pub struct BorrowedFields<'py> {
    key: Option<Bytes<'py>>,
    value: Option<Bytes<'py>>,
    headers: Vec<(Bytes<'py>, Option<Bytes<'py>>)>,
}

pub type Header<'py> = (Bound<'py, PyString>, Option<Bound<'py, PyAny>>);

impl<'py> BorrowedFields<'py> {
    pub fn new(
        key: Option<&Bound<'py, PyAny>>,
        value: Option<&Bound<'py, PyAny>>,
        headers: Option<Vec<Header<'py>>>,
    ) -> PyResult<Self> {
        let headers = match headers {
            None => Vec::new(),
            Some(headers) => headers
                .iter()
                .map(|(name, value)| {
                    let value =
                        value.as_ref().map(|value| Bytes::of("a header's value", value)).transpose()?;
                    Ok((Bytes::of("a header's name", name.as_any())?, value))
                })
                .collect::<PyResult<_>>()?,
        };
        Ok(Self {
            key: key.map(|key| Bytes::of("key", key)).transpose()?,
            value: value.map(|value| Bytes::of("value", value)).transpose()?,
            headers,
        })
    }

    /// The bytes of all fields, plus the maximum that the lengths of headers take. Other lengths are not counted.
    pub fn size(&self) -> usize {
        let length = |bytes: &Option<Bytes<'_>>| bytes.as_ref().map_or(0, |bytes| bytes.as_slice().len());
        let headers = self.headers.iter().map(|(name, value)| name.as_slice().len() + length(value) + 10);
        length(&self.key) + length(&self.value) + headers.sum::<usize>()
    }

    pub fn key(&self) -> Option<&[u8]> {
        self.key.as_ref().map(Bytes::as_slice)
    }

    pub fn fields(&self, timestamp: i64) -> Fields<'_, impl Iterator<Item = (&[u8], Option<&[u8]>)> + Clone> {
        Fields {
            timestamp,
            key: self.key(),
            value: self.value.as_ref().map(Bytes::as_slice),
            headers: self
                .headers
                .iter()
                .map(|(name, value)| (name.as_slice(), value.as_ref().map(Bytes::as_slice))),
        }
    }
}

enum Outcome {
    Pending,
    Appended {
        base_offset: i64,
        log_append_time: i64,
    },
    Failed(Py<PyAny>),
    /// It was too large: its records are in these batches, in order.
    Split(Vec<Py<ProducerBatch>>),
}

/// Every method is short and runs with the GIL, which guards the fields. Only `finish` releases it, after it has taken
/// the records out. Nothing is borrowed while Python objects (such as a list) are created: that may run the garbage
/// collector, which may run Python code, and then other threads.
#[pyclass(module = "headrace._native")]
pub struct ProducerBatch {
    #[pyo3(get)]
    topic: Py<PyString>,
    #[pyo3(get)]
    partition: i32,
    #[pyo3(get)]
    created: f64,
    #[pyo3(get)]
    encoded: Option<Py<EncodedBatch>>,
    /// None after `finish`.
    builder: Option<headrace_kernel::BatchBuilder>,
    limit: usize,
    size: usize,
    count: usize,
    outcome: Outcome,
    waiting: Py<PyAny>,
    waiters: Vec<Py<PyAny>>,
    /// While it is on its way on a socket that is lent to threads.
    direct: Option<Py<DirectConnection>>,
}

pub enum Appended {
    Yes {
        index: usize,
        growth: usize,
    },
    /// The batch is full or finished.
    No,
}

impl ProducerBatch {
    pub fn push(&mut self, fields: &BorrowedFields<'_>, timestamp: i64) -> PyResult<Appended> {
        let Some(builder) = self.builder.as_mut() else { return Ok(Appended::No) };
        let fields = fields.fields(timestamp);
        if self.count > 0 && builder.size_with(&fields) > self.limit {
            return Ok(Appended::No);
        }
        builder.push(&fields).map_err(raised)?;
        let (index, growth) = (self.count, builder.size() - self.size);
        self.count += 1;
        self.size += growth;
        Ok(Appended::Yes { index, growth })
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn end(&mut self, outcome: Outcome) -> Vec<Py<PyAny>> {
        self.outcome = outcome;
        std::mem::take(&mut self.waiters)
    }

    // -- sent directly: see direct.rs --------------------------------------------------------------------------

    /// A batch of one record, whose bytes are elsewhere until `set_encoded`.
    pub fn of_one(topic: Py<PyString>, partition: i32, size: usize, waiting: Py<PyAny>) -> Self {
        Self { builder: None, size, count: 1, ..Self::new(topic, partition, 0, 0.0, waiting) }
    }

    /// Returns its size.
    pub fn sent_directly(&mut self, connection: Py<DirectConnection>) -> usize {
        self.direct = Some(connection);
        self.size
    }

    /// Returns its size, and the flags of the waiting callers.
    pub fn appended_directly(&mut self, appended: headrace_kernel::Appended) -> (usize, Vec<Py<PyAny>>) {
        self.direct = None;
        let headrace_kernel::Appended { base_offset, log_append_time } = appended;
        (self.size, self.end(Outcome::Appended { base_offset, log_append_time }))
    }

    pub fn taken_over(&mut self) {
        self.direct = None;
    }

    pub fn set_encoded(slf: &Bound<'_, Self>, data: Vec<u8>, created: f64) -> PyResult<()> {
        let encoded = Py::new(slf.py(), EncodedBatch::new(data))?;
        let mut batch = slf.borrow_mut();
        batch.encoded = Some(encoded);
        batch.created = created;
        Ok(())
    }
}

#[pymethods]
impl ProducerBatch {
    #[new]
    fn new(topic: Py<PyString>, partition: i32, limit: usize, created: f64, waiting: Py<PyAny>) -> Self {
        Self {
            topic,
            partition,
            created,
            encoded: None,
            builder: Some(headrace_kernel::BatchBuilder::new(limit.min(1 << 14))),
            limit,
            size: 0,
            count: 0,
            outcome: Outcome::Pending,
            waiting,
            waiters: Vec::new(),
            direct: None,
        }
    }

    #[staticmethod]
    fn of_encoded(
        topic: Py<PyString>,
        partition: i32,
        created: f64,
        waiting: Py<PyAny>,
        encoded: Py<EncodedBatch>,
        count: usize,
        size: usize,
    ) -> Self {
        Self {
            encoded: Some(encoded),
            builder: None,
            size,
            count,
            ..Self::new(topic, partition, 0, created, waiting)
        }
    }

    #[pyo3(signature = (value, key=None, headers=None, timestamp=0))]
    fn append<'py>(
        slf: &Bound<'py, Self>,
        value: Option<Bound<'py, PyAny>>,
        key: Option<Bound<'py, PyAny>>,
        headers: Option<Vec<Header<'py>>>,
        timestamp: i64,
    ) -> PyResult<Option<Delivery>> {
        let fields = BorrowedFields::new(key.as_ref(), value.as_ref(), headers)?;
        let appended = slf.borrow_mut().push(&fields, timestamp)?;
        Ok(match appended {
            Appended::No => None,
            Appended::Yes { index, .. } => Some(Delivery::new(slf.clone().unbind(), index, timestamp)),
        })
    }

    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    fn __len__(&self) -> usize {
        self.count
    }

    #[pyo3(signature = (codec="none", level=None))]
    fn finish(slf: &Bound<'_, Self>, codec: &str, level: Option<i32>) -> PyResult<Py<EncodedBatch>> {
        let py = slf.py();
        let compression = compression(codec, level)?;
        let builder = {
            let mut batch = slf.borrow_mut();
            if let Some(encoded) = &batch.encoded {
                return Ok(encoded.clone_ref(py));
            }
            if batch.count == 0 {
                return Err(raised(EncodeError::Empty));
            }
            batch.builder.take().ok_or_else(|| PyValueError::new_err("this batch is being finished"))?
        };
        let is_small = builder.size() < WORTH_DETACHING || compression == headrace_kernel::Compression::None;
        let run = || builder.finish(&mut Compressor::new(compression), &Stamp::default());
        let data = if is_small { run() } else { py.detach(run) };
        let encoded = Py::new(py, EncodedBatch::new(data.map_err(raised)?))?;
        slf.borrow_mut().encoded = Some(encoded.clone_ref(py));
        Ok(encoded)
    }

    // -- the response --------------------------------------------------------------------------------------------

    #[getter]
    fn is_done(&self) -> bool {
        matches!(self.outcome, Outcome::Appended { .. } | Outcome::Failed(_))
    }

    #[getter]
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match &self.outcome {
            Outcome::Failed(error) => Some(error.clone_ref(py)),
            _ => None,
        }
    }

    #[getter]
    fn parts(slf: &Bound<'_, Self>) -> Vec<Py<ProducerBatch>> {
        let py = slf.py();
        match &slf.borrow().outcome {
            Outcome::Split(parts) => parts.iter().map(|part| part.clone_ref(py)).collect(),
            _ => Vec::new(),
        }
    }

    #[pyo3(signature = (base_offset, log_append_time=-1))]
    fn complete(slf: &Bound<'_, Self>, base_offset: i64, log_append_time: i64) -> Vec<Py<PyAny>> {
        let mut batch = slf.borrow_mut();
        batch.encoded = None;
        batch.end(Outcome::Appended { base_offset, log_append_time })
    }

    fn fail(slf: &Bound<'_, Self>, error: Py<PyAny>) -> Vec<Py<PyAny>> {
        let mut batch = slf.borrow_mut();
        batch.builder = None;
        batch.encoded = None;
        batch.end(Outcome::Failed(error))
    }

    fn split(slf: &Bound<'_, Self>, parts: Vec<Py<ProducerBatch>>) -> Vec<Py<PyAny>> {
        let mut batch = slf.borrow_mut();
        batch.encoded = None;
        batch.end(Outcome::Split(parts))
    }

    fn add_waiter(&mut self, waiter: Py<PyAny>) {
        self.waiters.push(waiter);
    }

    fn answer(slf: &Bound<'_, Self>) -> Option<DirectAnswer> {
        let py = slf.py();
        let connection = slf.borrow().direct.as_ref().map(|each| each.clone_ref(py));
        connection?.borrow(py).answer()
    }

    /// If this thread can read the response to the batch, it waits for it, for some milliseconds at most.
    fn receive(slf: &Bound<'_, Self>, seconds: f64) -> PyResult<()> {
        let py = slf.py();
        let deadline = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 1.0));
        loop {
            let connection = slf.borrow().direct.as_ref().map(|each| each.clone_ref(py));
            let Some(connection) = connection else { return Ok(()) };
            let look = connection.borrow_mut(py).look(py);
            let Look::Wait(stream, time) = look else { return Ok(()) };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            py.detach(|| wait_readable(&stream, time.min(left)));
            py.check_signals()?;
        }
    }
}

/// The delivery of one record: its batch, and its index in the batch.
#[pyclass(module = "headrace._native", frozen, weakref)]
pub struct Delivery {
    batch: Py<ProducerBatch>,
    index: usize,
    record_timestamp: i64,
}

impl Delivery {
    pub fn new(batch: Py<ProducerBatch>, index: usize, record_timestamp: i64) -> Self {
        Self { batch, index, record_timestamp }
    }

    /// The batch that has the record now, and its index there.
    fn place(&self, py: Python<'_>) -> (Py<ProducerBatch>, usize) {
        let (mut batch, mut index) = (self.batch.clone_ref(py), self.index);
        loop {
            let mut part = None;
            if let Outcome::Split(parts) = &batch.borrow(py).outcome {
                for each in parts {
                    let count = each.borrow(py).count;
                    if index < count {
                        part = Some(each.clone_ref(py));
                        break;
                    }
                    index -= count;
                }
            }
            match part {
                Some(part) => batch = part,
                None => return (batch, index),
            }
        }
    }
}

#[pymethods]
impl Delivery {
    #[getter]
    fn topic(&self, py: Python<'_>) -> Py<PyString> {
        self.batch.borrow(py).topic.clone_ref(py)
    }

    #[getter]
    fn partition(&self, py: Python<'_>) -> i32 {
        self.batch.borrow(py).partition
    }

    #[getter]
    fn is_done(&self, py: Python<'_>) -> bool {
        self.place(py).0.borrow(py).is_done()
    }

    #[getter]
    fn offset(&self, py: Python<'_>) -> Option<i64> {
        let (batch, index) = self.place(py);
        match batch.borrow(py).outcome {
            Outcome::Appended { base_offset, .. } if base_offset >= 0 => Some(base_offset + index as i64),
            _ => None,
        }
    }

    #[getter]
    fn timestamp(&self, py: Python<'_>) -> i64 {
        match self.place(py).0.borrow(py).outcome {
            Outcome::Appended { log_append_time, .. } if log_append_time >= 0 => log_append_time,
            _ => self.record_timestamp,
        }
    }

    #[getter]
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.place(py).0.borrow(py).error(py)
    }

    #[getter]
    fn _batch(&self, py: Python<'_>) -> Py<ProducerBatch> {
        self.place(py).0
    }

    #[pyo3(signature = (timeout=None))]
    fn result(slf: &Bound<'_, Self>, timeout: Option<Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let waiting = slf.get().batch.borrow(py).waiting.clone_ref(py);
        call_blocking(waiting.bind(py), intern!(py, "result"), (slf, timeout)).map(Bound::unbind)
    }

    fn __await__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let waiting = slf.get().batch.borrow(py).waiting.clone_ref(py);
        waiting.call_method1(py, "wait", (slf,))?.call_method0(py, "__await__")
    }
}

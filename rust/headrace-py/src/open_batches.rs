//! The batches of one topic that still accept records: the hot path of `send()`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use headrace_kernel::{crc32, murmur2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::producer_batch::{Appended, BorrowedFields, Delivery, Header, ProducerBatch};

/// The maximum number of bytes that a record needs in addition to its fields, and those of the header of a batch.
const RECORD_OVERHEAD: usize = 21;
const BATCH_OVERHEAD: usize = 61;

/// The bytes of records that are not delivered yet. All batches of a producer share this counter.
#[pyclass(module = "headrace._native", frozen)]
pub struct BufferMemory {
    #[pyo3(get)]
    limit: usize,
    used: Arc<AtomicUsize>,
}

#[pymethods]
impl BufferMemory {
    #[new]
    fn new(limit: usize) -> Self {
        Self { limit, used: Arc::default() }
    }

    #[getter]
    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, size: usize) {
        self.used.fetch_add(size, Ordering::Relaxed);
    }

    fn release(&self, size: usize) {
        self.used.fetch_sub(size, Ordering::Relaxed);
    }
}

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
            hash,
            sticky: None,
            used: memory.used.clone(),
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
        let partition = match partition {
            Some(partition) => usize::try_from(partition).ok(),
            None => batches.partition_of(fields.key()).or(batches.sticky),
        };
        let Some(Some(batch)) = partition.and_then(|partition| batches.open.get(partition)) else {
            return Ok(None);
        };
        let size = fields.size() + RECORD_OVERHEAD;
        if size + BATCH_OVERHEAD > batches.largest
            || batches.used.load(Ordering::Relaxed) + size > batches.limit
        {
            return Ok(None);
        }
        let timestamp = timestamp.unwrap_or_else(now);
        let appended = batch.borrow_mut(py).push(&fields, timestamp)?;
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

    fn put(&mut self, partition: usize, batch: Py<ProducerBatch>) -> PyResult<()> {
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
        }
    }
}

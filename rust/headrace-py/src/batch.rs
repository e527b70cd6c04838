//! `Batch`: a slice of the columns of one partition.

use std::sync::Arc;

use arrow_array::Array;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::columns::Columns;
use crate::record::Record;

/// The data that the slices of a batch share. It contains no Python objects, because an Arrow consumer may drop it on
/// any thread.
pub struct Store {
    pub topic: Box<str>,
    pub partition: i32,
    pub lane: Option<Box<str>>,
    pub columns: Columns,
    /// The leader epoch of the last fetched batch, with or without records.
    last_leader_epoch: i32,
    bytes: usize,
}

// `bisect` and `reversed` need the C sequence protocol.
#[pyclass(frozen, sequence, module = "headrace.records")]
pub struct Batch {
    pub topic: Py<PyString>,
    pub lane: Option<Py<PyString>>,
    pub store: Arc<Store>,
    pub start: usize,
    pub len: usize,
    #[pyo3(get)]
    next_offset: i64,
    /// The delivery count of these records in a share group; None outside of a share group.
    #[pyo3(get)]
    pub delivery_count: Option<i32>,
    /// What decodes keys and values: a Python object that knows the rows of the whole batch. None for bytes.
    pub deserializer: Option<Py<PyAny>>,
}

impl Batch {
    pub fn new(
        topic: &Bound<'_, PyString>,
        partition: i32,
        lane: Option<&Bound<'_, PyString>>,
        columns: Columns,
        next_offset: i64,
        last_leader_epoch: i32,
    ) -> PyResult<Self> {
        let len = columns.offsets.len();
        let headers = columns.headers.as_ref().map_or(0, |headers| headers.lists.get_buffer_memory_size());
        let bytes = len * 16
            + columns.keys.get_buffer_memory_size()
            + columns.values.get_buffer_memory_size()
            + headers
            + size_of::<Store>();
        let store = Store {
            topic: topic.to_str()?.into(),
            partition,
            lane: lane.map(|lane| lane.to_str().map(Box::from)).transpose()?,
            columns,
            last_leader_epoch,
            bytes,
        };
        Ok(Self {
            topic: topic.clone().unbind(),
            lane: lane.map(|lane| lane.clone().unbind()),
            store: Arc::new(store),
            start: 0,
            len,
            next_offset,
            delivery_count: None,
            deserializer: None,
        })
    }

    pub fn delivered(self, count: Option<i32>) -> Self {
        Self { delivery_count: count, ..self }
    }

    fn offsets(&self) -> &[i64] {
        &self.store.columns.offsets[self.start..self.start + self.len]
    }

    fn offset(&self, row: usize) -> i64 {
        self.store.columns.offsets[self.start + row]
    }
}

#[pymethods]
impl Batch {
    #[getter]
    fn topic(&self, py: Python<'_>) -> Py<PyString> {
        self.topic.clone_ref(py)
    }

    #[getter]
    fn partition(&self) -> i32 {
        self.store.partition
    }

    #[getter]
    fn lane(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.lane.as_ref().map(|lane| lane.clone_ref(py))
    }

    #[getter]
    fn leader_epoch(&self) -> i32 {
        let last_row = self.len.checked_sub(1).map(|last| self.start + last);
        last_row
            .and_then(|row| self.store.columns.run(row))
            .map_or(self.store.last_leader_epoch, |run| run.leader_epoch)
    }

    #[getter]
    fn first_offset(&self) -> Option<i64> {
        (self.len > 0).then(|| self.offset(0))
    }

    #[getter]
    fn last_offset(&self) -> Option<i64> {
        self.len.checked_sub(1).map(|last| self.offset(last))
    }

    #[getter]
    fn nbytes(&self) -> usize {
        match self.store.columns.offsets.len() {
            0 => self.store.bytes,
            rows => (self.store.bytes as u128 * self.len as u128 / rows as u128) as usize,
        }
    }

    fn slice(&self, py: Python<'_>, start: isize, length: isize) -> PyResult<Self> {
        let (Ok(start), Ok(length)) = (usize::try_from(start), usize::try_from(length)) else {
            return Err(PyValueError::new_err("start and length must not be negative"));
        };
        let start = start.min(self.len);
        let len = length.min(self.len - start);
        let end = start + len;
        let next_offset = if end == self.len {
            self.next_offset
        } else if len == 0 {
            self.offset(start)
        } else {
            self.offset(end - 1) + 1
        };
        Ok(Self {
            topic: self.topic(py),
            lane: self.lane(py),
            store: Arc::clone(&self.store),
            start: self.start + start,
            len,
            next_offset,
            delivery_count: self.delivery_count,
            deserializer: self.deserializer.as_ref().map(|each| each.clone_ref(py)),
        })
    }

    fn deserialized(&self, py: Python<'_>, deserializer: Py<PyAny>) -> PyResult<Self> {
        if self.start != 0 {
            return Err(PyValueError::new_err("only a whole batch can be deserialized"));
        }
        let batch = self.slice(py, 0, self.len as isize)?;
        Ok(Self { deserializer: Some(deserializer), ..batch })
    }

    fn between(&self, py: Python<'_>, first: i64, last: i64, delivery_count: i32) -> PyResult<Self> {
        let offsets = self.offsets();
        let start = offsets.partition_point(|&offset| offset < first);
        let len = offsets[start..].partition_point(|&offset| offset <= last);
        Ok(self.slice(py, start as isize, len as isize)?.delivered(Some(delivery_count)))
    }

    fn runs(&self) -> Vec<(i64, i64)> {
        let offsets = self.offsets();
        let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
            return Vec::new();
        };
        if last - first + 1 == offsets.len() as i64 {
            return vec![(first, last)];
        }
        offsets
            .chunk_by(|before, after| before + 1 == *after)
            .map(|run| (run[0], run[run.len() - 1]))
            .collect()
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __getitem__(slf: Bound<'_, Self>, index: isize) -> PyResult<Record> {
        let batch = slf.get();
        let row = if index < 0 { batch.len.checked_add_signed(index) } else { Some(index.unsigned_abs()) };
        match row {
            Some(row) if row < batch.len => Ok(Record::at(slf.clone().unbind(), batch.start + row)),
            _ => Err(PyIndexError::new_err("record index out of range")),
        }
    }

    fn __iter__(slf: Bound<'_, Self>) -> RecordIterator {
        let batch = slf.get();
        RecordIterator {
            next: batch.start,
            end: batch.start + batch.len,
            batch: slf.clone().unbind(),
            spare: [None, None],
        }
    }

    fn __repr__(&self) -> String {
        let Store { topic, partition, .. } = &*self.store;
        match (self.first_offset(), self.last_offset()) {
            (Some(first), Some(last)) => {
                format!("<Batch {topic}-{partition}: {} records, offsets {first} to {last}>", self.len)
            }
            _ => format!("<Batch {topic}-{partition}: no records, next offset {}>", self.next_offset),
        }
    }
}

/// A loop that looks at one record after the other has the last one until it gets the next. So two objects take turns,
/// as long as the loop keeps none of them: that saves half of the time of the iteration.
#[pyclass]
struct RecordIterator {
    batch: Py<Batch>,
    next: usize,
    end: usize,
    /// The last records. The older one can be used again if nobody else has a reference to it.
    spare: [Option<Py<Record>>; 2],
}

#[pymethods]
impl RecordIterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Py<Record>>> {
        let row = self.next;
        if row >= self.end {
            return Ok(None);
        }
        let spare = &mut self.spare[row % 2];
        let record = match spare {
            // SAFETY: the object is alive, and the GIL is held.
            Some(record) if unsafe { ffi::Py_REFCNT(record.as_ptr()) } == 1 => {
                record.get().reuse(row);
                record.clone_ref(py)
            }
            _ => {
                let record = Py::new(py, Record::at(self.batch.clone_ref(py), row))?;
                *spare = Some(record.clone_ref(py));
                record
            }
        };
        self.next = row + 1;
        Ok(Some(record))
    }

    fn __length_hint__(&self) -> usize {
        self.end - self.next
    }
}

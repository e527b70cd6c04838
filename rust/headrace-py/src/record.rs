//! `Record`: one row of a batch. Its fields become Python objects when they are accessed.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use headrace_kernel::Row;
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::batch::{Batch, Store};
use crate::columns::{Columns, get};
use crate::python_call::call_blocking;
use crate::whole_number::whole_number;

#[pyclass(frozen, module = "headrace.records")]
pub struct Record {
    batch: Py<Batch>,
    /// The row in the columns, not in the slice of the batch. It changes only while no one but an iterator knows the
    /// record (`reuse`).
    row: AtomicUsize,
}

type Header<'a> = (&'a str, Option<&'a [u8]>);

impl Record {
    pub fn at(batch: Py<Batch>, row: usize) -> Self {
        Self { batch, row: AtomicUsize::new(row) }
    }

    /// Makes this the record of another row. Nobody else may have a reference to it.
    pub fn reuse(&self, row: usize) {
        self.row.store(row, Relaxed);
    }

    #[inline]
    fn row(&self) -> usize {
        self.row.load(Relaxed)
    }

    #[inline]
    fn store(&self) -> &Store {
        &self.batch.get().store
    }

    #[inline]
    fn columns(&self) -> &Columns {
        &self.store().columns
    }

    #[inline]
    fn bytes<'py>(py: Python<'py>, bytes: Option<&[u8]>) -> Option<Bound<'py, PyBytes>> {
        bytes.map(|bytes| PyBytes::new(py, bytes))
    }

    fn raw_headers(&self) -> impl ExactSizeIterator<Item = Header<'_>> {
        let (headers, entries) = match &self.columns().headers {
            Some(headers) => {
                let offsets = headers.lists.value_offsets();
                (Some(headers), offsets[self.row()] as usize..offsets[self.row() + 1] as usize)
            }
            None => (None, 0..0),
        };
        entries.map(move |entry| {
            headers.map_or(("", None), |headers| (headers.keys.value(entry), get(&headers.values, entry)))
        })
    }

    fn same(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.store(), other.store());
        self.offset() == other.offset()
            && ours.partition == theirs.partition
            && ours.topic == theirs.topic
            && ours.lane == theirs.lane
            && self.delivery_count() == other.delivery_count()
            && self.timestamp() == other.timestamp()
            && self.timestamp_type() == other.timestamp_type()
            && self.leader_epoch() == other.leader_epoch()
            && get(&ours.columns.keys, self.row()) == get(&theirs.columns.keys, other.row())
            && get(&ours.columns.values, self.row()) == get(&theirs.columns.values, other.row())
            && self.raw_headers().eq(other.raw_headers())
    }
}

#[pymethods]
impl Record {
    #[new]
    #[pyo3(signature = (topic, partition, offset, *, timestamp=-1, timestamp_type=0, key=None, value=None,
                        headers=Vec::new(), lane=None, leader_epoch=-1, delivery_count=None))]
    #[allow(clippy::too_many_arguments)] // They are keywords in Python.
    fn new(
        py: Python<'_>,
        topic: Bound<'_, PyString>,
        #[pyo3(from_py_with = whole_number)] partition: i32,
        #[pyo3(from_py_with = whole_number)] offset: i64,
        #[pyo3(from_py_with = whole_number)] timestamp: i64,
        #[pyo3(from_py_with = whole_number)] timestamp_type: i32,
        key: Option<Cow<'_, [u8]>>,
        value: Option<Cow<'_, [u8]>>,
        headers: Vec<(String, Option<Vec<u8>>)>,
        lane: Option<Bound<'_, PyString>>,
        #[pyo3(from_py_with = whole_number)] leader_epoch: i32,
        #[pyo3(from_py_with = whole_number)] delivery_count: Option<i32>,
    ) -> PyResult<Self> {
        if !(0..=1).contains(&timestamp_type) {
            return Err(PyValueError::new_err("timestamp_type must be 0 (CreateTime) or 1 (LogAppendTime)"));
        }
        let headers: Vec<_> = headers.iter().map(|(name, value)| (&name[..], value.as_deref())).collect();
        let columns = headrace_kernel::Columns::of_one(&Row {
            offset,
            timestamp,
            key: key.as_deref(),
            value: value.as_deref(),
            headers: &headers,
            leader_epoch,
            log_append_time: timestamp_type == 1,
        })
        .ok_or_else(|| PyOverflowError::new_err("a field of a record must be smaller than 2 GiB"))?;
        let columns = Columns::new(columns).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let next_offset = offset.saturating_add(1);
        let batch = Batch::new(&topic, partition, lane.as_ref(), columns, next_offset, leader_epoch)?;
        Ok(Self::at(Py::new(py, batch.delivered(delivery_count))?, 0))
    }

    #[getter]
    fn topic(&self, py: Python<'_>) -> Py<PyString> {
        self.batch.get().topic.clone_ref(py)
    }

    #[getter]
    fn partition(&self) -> i32 {
        self.store().partition
    }

    #[getter]
    fn offset(&self) -> i64 {
        self.columns().offsets[self.row()]
    }

    #[getter]
    fn timestamp(&self) -> i64 {
        self.columns().timestamps[self.row()]
    }

    #[getter]
    fn timestamp_type(&self) -> i32 {
        self.columns().run(self.row()).is_some_and(|run| run.log_append_time).into()
    }

    #[getter]
    fn leader_epoch(&self) -> i32 {
        self.columns().run(self.row()).map_or(-1, |run| run.leader_epoch)
    }

    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let raw = self.raw_key(py);
        match &self.batch.get().deserializer {
            None => Ok(raw.map(Bound::into_any)),
            Some(each) => call_blocking(each.bind(py), intern!(py, "key"), (self.row(), raw)).map(Some),
        }
    }

    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let raw = self.raw_value(py);
        match &self.batch.get().deserializer {
            None => Ok(raw.map(Bound::into_any)),
            Some(each) => call_blocking(each.bind(py), intern!(py, "value"), (self.row(), raw)).map(Some),
        }
    }

    #[getter]
    fn raw_key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        Self::bytes(py, get(&self.columns().keys, self.row()))
    }

    #[getter]
    fn raw_value<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        Self::bytes(py, get(&self.columns().values, self.row()))
    }

    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let headers: Vec<_> =
            self.raw_headers().map(|(name, value)| (name, Self::bytes(py, value))).collect();
        PyTuple::new(py, headers)
    }

    #[getter]
    fn lane(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.batch.get().lane.as_ref().map(|lane| lane.clone_ref(py))
    }

    #[getter]
    fn delivery_count(&self) -> Option<i32> {
        self.batch.get().delivery_count
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.same(other)
    }

    /// The hash of topic, partition and offset, which identify a record in a cluster.
    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        (self.topic(py), self.partition(), self.offset()).into_pyobject(py)?.hash()
    }

    fn __repr__(&self) -> String {
        let Store { topic, lane, partition, .. } = self.store();
        let mut text = format!(
            "Record(topic={topic:?}, partition={partition}, offset={}, timestamp={}, key={}, value={}",
            self.offset(),
            self.timestamp(),
            abbreviated(get(&self.columns().keys, self.row())),
            abbreviated(get(&self.columns().values, self.row())),
        );
        let headers = self.raw_headers();
        if headers.len() > 0 {
            let headers: Vec<_> =
                headers.map(|(name, value)| format!("({name:?}, {})", abbreviated(value))).collect();
            let _ = write!(text, ", headers=[{}]", headers.join(", "));
        }
        if let Some(lane) = lane {
            let _ = write!(text, ", lane={lane:?}");
        }
        if let Some(count) = self.delivery_count() {
            let _ = write!(text, ", delivery_count={count}");
        }
        text.push(')');
        text
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let restore = py.import("headrace.records")?.getattr("_restore_record")?;
        let fields = (
            self.topic(py),
            self.partition(),
            self.offset(),
            self.timestamp(),
            self.timestamp_type(),
            self.raw_key(py),
            self.raw_value(py),
            self.headers(py)?,
            self.lane(py),
            self.leader_epoch(),
            self.delivery_count(),
        );
        Ok((restore, fields.into_pyobject(py)?))
    }
}

/// The `repr` of bytes, truncated if they are long.
fn abbreviated(bytes: Option<&[u8]>) -> String {
    const SHOWN: usize = 64;
    match bytes {
        None => "None".to_owned(),
        Some(bytes) if bytes.len() > SHOWN => {
            format!("b\"{}\"... ({} bytes)", bytes[..SHOWN].escape_ascii(), bytes.len())
        }
        Some(bytes) => format!("b\"{}\"", bytes.escape_ascii()),
    }
}

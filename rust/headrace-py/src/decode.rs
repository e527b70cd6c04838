//! The Python functions that decode records.

use arrow_schema::ArrowError;
use headrace_kernel::{AbortedTransaction, DEFAULT_MAX_BATCH_BYTES, Decoded, Fetched};
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::batch::Batch;
use crate::buffer::Bytes;
use crate::columns::Columns;

pyo3::create_exception!(
    headrace.records,
    DecodeError,
    PyException,
    "The record bytes of a partition cannot be decoded.\n\n\
     `topic`, `partition` and `offset` say where: the offset is the base offset of the bad batch, or the fetch\n\
     position if even that is unknown."
);

/// Below this many bytes, releasing the GIL costs more than decoding.
const WORTH_DETACHING: usize = 4096;

#[pyfunction]
#[pyo3(signature = (data, *, topic, partition, position, aborted=Vec::new(), read_committed=false,
                    check_crcs=true, max_batch_bytes=DEFAULT_MAX_BATCH_BYTES, lane=None))]
#[allow(clippy::too_many_arguments)] // They are keywords in Python.
pub fn decode<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    topic: Bound<'py, PyString>,
    partition: i32,
    position: i64,
    aborted: Vec<(i64, i64)>,
    read_committed: bool,
    check_crcs: bool,
    max_batch_bytes: usize,
    lane: Option<Bound<'py, PyString>>,
) -> PyResult<Batch> {
    let part = Part { bytes: Bytes::borrow(data)?, topic, partition, lane };
    let aborted = transactions(aborted);
    let fetched =
        Fetched { aborted: &aborted, read_committed, check_crcs, max_batch_bytes, ..Fetched::at(position) };
    let bytes = part.bytes.as_slice();
    let run = || headrace_kernel::decode(bytes, &fetched).map(arrays);
    let decoded = if bytes.len() < WORTH_DETACHING { run() } else { py.detach(run) };
    part.batch(py, decoded)
}

/// A partition as passed by Python: bytes, topic, partition number, position, aborted transactions.
type Given<'py> = (Bound<'py, PyAny>, Bound<'py, PyString>, i32, i64, Vec<(i64, i64)>);

#[pyfunction]
#[pyo3(signature = (partitions, *, read_committed, check_crcs, max_batch_bytes, max_total_bytes, lane=None))]
#[allow(clippy::too_many_arguments)] // They are keywords in Python.
pub fn decode_all<'py>(
    py: Python<'py>,
    partitions: Vec<Given<'py>>,
    read_committed: bool,
    check_crcs: bool,
    max_batch_bytes: usize,
    max_total_bytes: usize,
    lane: Option<Bound<'py, PyString>>,
) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
    let mut parts = Vec::with_capacity(partitions.len());
    let mut starts = Vec::with_capacity(partitions.len());
    for (data, topic, partition, position, aborted) in partitions {
        parts.push(Part { bytes: Bytes::borrow(&data)?, topic, partition, lane: lane.clone() });
        starts.push((position, transactions(aborted)));
    }
    let work: Vec<_> = parts
        .iter()
        .zip(&starts)
        .map(|(part, (position, aborted))| {
            let limits = Fetched::at(*position);
            (
                part.bytes.as_slice(),
                Fetched { aborted, read_committed, check_crcs, max_batch_bytes, ..limits },
            )
        })
        .collect();
    let run = || -> Vec<_> {
        let mut left = max_total_bytes;
        let within = |(bytes, fetched): &(&[u8], Fetched<'_>)| {
            if left == 0 {
                return None;
            }
            let limits = Fetched { max_total_bytes: fetched.max_total_bytes.min(left), ..fetched.clone() };
            let decoded = headrace_kernel::decode(bytes, &limits);
            left = left.saturating_sub(decoded.as_ref().map_or(0, |decoded| decoded.columns.bytes()));
            Some(decoded.map(arrays))
        };
        work.iter().map(within).collect()
    };
    let total: usize = work.iter().map(|(bytes, _)| bytes.len()).sum();
    let decoded = if total < WORTH_DETACHING { run() } else { py.detach(run) };
    let outcomes = parts.iter().zip(decoded).map(|(part, decoded)| {
        let Some(decoded) = decoded else { return Ok(None) };
        match part.batch(py, decoded) {
            Ok(batch) => Ok(Some(Bound::new(py, batch)?.into_any())),
            Err(error) if error.is_instance_of::<DecodeError>(py) => {
                Ok(Some(error.into_value(py).into_bound(py).into_any()))
            }
            Err(error) => Err(error),
        }
    });
    outcomes.collect()
}

fn transactions(aborted: Vec<(i64, i64)>) -> Vec<AbortedTransaction> {
    let named = |(producer_id, first_offset)| AbortedTransaction { producer_id, first_offset };
    aborted.into_iter().map(named).collect()
}

/// The decoded partition, created without the GIL: the columns, the next offset and the leader epoch.
pub type Arrays = (Result<Columns, ArrowError>, i64, i32);
type Outcome = Result<Arrays, headrace_kernel::DecodeError>;

pub fn arrays(decoded: Decoded) -> Arrays {
    (Columns::new(decoded.columns), decoded.next_offset, decoded.leader_epoch)
}

/// The bytes of a partition, and the names for its batch.
struct Part<'py> {
    bytes: Bytes<'py>,
    topic: Bound<'py, PyString>,
    partition: i32,
    lane: Option<Bound<'py, PyString>>,
}

impl Part<'_> {
    fn batch(&self, py: Python<'_>, outcome: Outcome) -> PyResult<Batch> {
        let Self { topic, partition, .. } = self;
        match outcome {
            Ok((columns, next_offset, leader_epoch)) => {
                let columns = columns.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
                Batch::new(topic, *partition, self.lane.as_ref(), columns, next_offset, leader_epoch)
            }
            Err(error) => {
                let raised = DecodeError::new_err(format!("{topic}-{partition} at {error}"));
                let value = raised.value(py);
                value.setattr("topic", topic)?;
                value.setattr("partition", partition)?;
                value.setattr("offset", error.offset)?;
                Err(raised)
            }
        }
    }
}

#[pyfunction]
pub fn next_offset(data: &Bound<'_, PyAny>, position: i64) -> PyResult<i64> {
    Ok(headrace_kernel::next_offset(Bytes::borrow(data)?.as_slice(), position))
}

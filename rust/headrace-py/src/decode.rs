//! The two functions that read record bytes.

use headrace_kernel::{AbortedTransaction, DEFAULT_MAX_BATCH_BYTES, Fetched};
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
     position where even that cannot be told."
);

/// Releasing the GIL costs more than decoding so few bytes.
const WORTH_DETACHING: usize = 4096;

#[pyfunction]
#[pyo3(signature = (data, *, topic, partition, position, aborted=Vec::new(), read_committed=false,
                    check_crcs=true, max_batch_bytes=DEFAULT_MAX_BATCH_BYTES, lane=None))]
#[allow(clippy::too_many_arguments)] // They are keywords in Python.
pub fn decode(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    topic: Bound<'_, PyString>,
    partition: i32,
    position: i64,
    aborted: Vec<(i64, i64)>,
    read_committed: bool,
    check_crcs: bool,
    max_batch_bytes: usize,
    lane: Option<Bound<'_, PyString>>,
) -> PyResult<Batch> {
    let bytes = Bytes::borrow(data)?;
    let data = bytes.as_slice();
    let aborted: Vec<_> = aborted
        .into_iter()
        .map(|(producer_id, first_offset)| AbortedTransaction { producer_id, first_offset })
        .collect();
    let fetched =
        Fetched { aborted: &aborted, read_committed, check_crcs, max_batch_bytes, ..Fetched::at(position) };
    let run = || {
        headrace_kernel::decode(data, &fetched)
            .map(|decoded| (decoded.next_offset, decoded.leader_epoch, Columns::new(decoded.columns)))
    };
    let decoded = if data.len() < WORTH_DETACHING { run() } else { py.detach(run) };
    match decoded {
        Ok((next_offset, leader_epoch, columns)) => {
            let columns = columns.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
            Batch::new(&topic, partition, lane.as_ref(), columns, next_offset, leader_epoch)
        }
        Err(error) => {
            let text = format!("{topic}-{partition} at {error}");
            let raised = DecodeError::new_err(text);
            let value = raised.value(py);
            value.setattr("topic", topic)?;
            value.setattr("partition", partition)?;
            value.setattr("offset", error.offset)?;
            Err(raised)
        }
    }
}

#[pyfunction]
pub fn next_offset(data: &Bound<'_, PyAny>, position: i64) -> PyResult<i64> {
    Ok(headrace_kernel::next_offset(Bytes::borrow(data)?.as_slice(), position))
}

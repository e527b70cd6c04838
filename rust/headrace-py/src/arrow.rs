//! Exports batches as an Arrow stream, through the PyCapsule interface.
//!
//! The schema is that of Spark's Kafka source. Offsets, keys, values and headers are exported without a copy. The
//! columns with one value for a whole batch are created when the consumer requests the batch, without the GIL.

use std::sync::{Arc, LazyLock};

// With leading colons, because the Python function `arrow_schema` has the name of the crate.
use ::arrow_schema::ffi::FFI_ArrowSchema;
use ::arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    ArrayRef, Int32Array, Int64Array, RecordBatch, RecordBatchReader, TimestampMicrosecondArray,
    new_null_array,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::batch::{Batch, Store};
use crate::columns::{Columns, header_item};
use crate::repeated::repeated;
use crate::represent;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| Arc::new(Schema::new(fields(false))));
static SCHEMA_WITH_LANE: LazyLock<SchemaRef> = LazyLock::new(|| Arc::new(Schema::new(fields(true))));

fn fields(lane: bool) -> Vec<Field> {
    let mut fields = vec![
        Field::new("key", DataType::Binary, true),
        Field::new("value", DataType::Binary, true),
        Field::new("topic", DataType::Utf8, true),
        Field::new("partition", DataType::Int32, true),
        Field::new("offset", DataType::Int64, true),
        Field::new("timestamp", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        Field::new("timestampType", DataType::Int32, true),
        Field::new("headers", DataType::List(header_item()), true),
    ];
    if lane {
        fields.push(Field::new("lane", DataType::Utf8, true));
    }
    fields
}

fn schema(lane: bool) -> SchemaRef {
    Arc::clone(if lane { &SCHEMA_WITH_LANE } else { &SCHEMA })
}

#[pyfunction]
#[pyo3(signature = (*, lane))]
pub fn arrow_schema(py: Python<'_>, lane: bool) -> PyResult<Bound<'_, PyCapsule>> {
    let exported = FFI_ArrowSchema::try_from(&*schema(lane)).map_err(to_python)?;
    PyCapsule::new_with_value(py, exported, c"arrow_schema")
}

#[pyfunction]
#[pyo3(signature = (batches, *, lane, requested_schema))]
pub fn arrow_stream<'py>(
    py: Python<'py>,
    batches: Vec<Bound<'py, Batch>>,
    lane: bool,
    requested_schema: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = match requested_schema {
        None => schema(lane),
        Some(capsule) => {
            let requested = import_schema(&capsule)?;
            // A requested schema that ends with `lane` also requests this column.
            let lane = lane || requested.fields().last().is_some_and(|field| field.name() == "lane");
            Arc::new(represent::negotiate(&schema(lane), &requested).map_err(to_python)?)
        }
    };
    let windows: Vec<_> = batches.iter().flat_map(|batch| windows(batch.get())).collect();
    let stream = Stream { windows: windows.into_iter(), schema };
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(stream)), c"arrow_array_stream")
}

fn import_schema(capsule: &Bound<'_, PyAny>) -> PyResult<Schema> {
    let pointer = capsule.cast::<PyCapsule>()?.pointer_checked(Some(c"arrow_schema"))?;
    // SAFETY: the capsule's name guarantees the type of the pointer. The capsule keeps ownership and is borrowed.
    let schema = unsafe { pointer.cast::<FFI_ArrowSchema>().as_ref() };
    Schema::try_from(schema).map_err(to_python)
}

fn to_python(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// One window for a batch with records, or several if the repeated strings would overflow the offsets of a column.
fn windows(batch: &Batch) -> impl Iterator<Item = Window> {
    let Store { topic, lane, .. } = &*batch.store;
    let longest = topic.len().max(lane.as_deref().map_or(0, str::len)).max(1);
    let rows = i32::MAX as usize / longest;
    (0..batch.len).step_by(rows).map(move |at| Window {
        store: Arc::clone(&batch.store),
        start: batch.start + at,
        len: rows.min(batch.len - at),
    })
}

struct Window {
    store: Arc<Store>,
    start: usize,
    len: usize,
}

struct Stream {
    windows: std::vec::IntoIter<Window>,
    schema: SchemaRef,
}

impl RecordBatchReader for Stream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

impl Iterator for Stream {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let window = self.windows.next()?;
        let fields = self.schema.fields();
        let columns = window.columns(fields.len() > SCHEMA.fields().len()).into_iter().zip(fields);
        let columns = columns.map(|(column, field)| represent::convert(column, field.data_type())).collect();
        Some(RecordBatch::try_new(Arc::clone(&self.schema), columns))
    }
}

impl Window {
    fn columns(&self, lane: bool) -> Vec<ArrayRef> {
        let Self { store, start, len } = self;
        let columns = &store.columns;
        let headers = match &columns.headers {
            Some(headers) => Arc::new(headers.lists.slice(*start, *len)),
            None => new_null_array(&DataType::List(header_item()), *len),
        };
        let mut arrays: Vec<ArrayRef> = vec![
            Arc::new(columns.keys.slice(*start, *len)),
            Arc::new(columns.values.slice(*start, *len)),
            Arc::new(repeated(&store.topic, *len)),
            Arc::new(Int32Array::from_value(store.partition, *len)),
            Arc::new(Int64Array::new(columns.offsets.slice(*start, *len), None)),
            Arc::new(timestamps(&columns.timestamps[*start..start + len])),
            Arc::new(timestamp_types(columns, *start, *len)),
            headers,
        ];
        if lane {
            arrays.push(match &store.lane {
                Some(lane) => Arc::new(repeated(lane, *len)),
                None => new_null_array(&DataType::Utf8, *len),
            });
        }
        arrays
    }
}

/// Converts milliseconds to microseconds. Values out of range (some producers write nanoseconds) become the largest
/// or smallest timestamp. −1, Kafka's "no timestamp", is converted like any other value, as in Spark's Kafka source.
fn timestamps(milliseconds: &[i64]) -> TimestampMicrosecondArray {
    let microseconds: Vec<i64> = milliseconds.iter().map(|time| time.saturating_mul(1000)).collect();
    TimestampMicrosecondArray::new(microseconds.into(), None).with_timezone("UTC")
}

fn timestamp_types(columns: &Columns, start: usize, len: usize) -> Int32Array {
    let mut types: Vec<i32> = Vec::with_capacity(len);
    let first = columns.runs.partition_point(|run| run.end <= start);
    for run in &columns.runs[first..] {
        let rows = run.end.min(start + len) - start;
        types.resize(rows, run.log_append_time.into());
        if rows == len {
            break;
        }
    }
    Int32Array::from(types)
}

//! Exports batches as an Arrow stream, through the PyCapsule interface.
//!
//! The schema is that of Spark's Kafka source. `window` decides which records become one Arrow batch, and `join` creates
//! its columns: in a stream when the consumer requests the batch, without the GIL.

use std::sync::{Arc, LazyLock};

// With leading colons, because the Python function `arrow_schema` has the name of the crate.
use ::arrow_schema::ffi::FFI_ArrowSchema;
use ::arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow_array::ffi::FFI_ArrowArray;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{Array, RecordBatch, RecordBatchReader, StructArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::batch::Batch;
use crate::columns::header_item;
use crate::join::columns;
use crate::represent;
use crate::window::{Joining, Window, bytes_written, grouped};

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
    let groups = grouped(batches.iter().map(Bound::get), Joining::OfTopic).into_iter();
    let stream = Stream { groups, schema };
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(stream)), c"arrow_array_stream")
}

/// Below this many bytes, releasing the GIL costs more than copying.
const WORTH_DETACHING: usize = 1 << 20;

#[pyfunction]
#[pyo3(signature = (batches, *, lane, import_batch, schema))]
pub fn arrow_batches<'py>(
    py: Python<'py>,
    batches: Vec<Bound<'py, Batch>>,
    lane: bool,
    import_batch: Bound<'py, PyAny>,
    schema: Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let groups = grouped(batches.iter().map(Bound::get), Joining::OfAll);
    let fields = self::schema(lane).fields().clone();
    let export = |group: &Vec<Window>| {
        let batch = StructArray::try_new(fields.clone(), columns(group, lane), None)?;
        Ok(FFI_ArrowArray::new(&batch.to_data()))
    };
    let export_all = || groups.iter().map(export).collect::<Result<Vec<_>, _>>();
    let written: usize = groups.iter().map(|group| bytes_written(group)).sum();
    let exported = if written < WORTH_DETACHING { export_all() } else { py.detach(export_all) };
    // The importer takes the content of the structure. If it raises before that, the structure still has it, and
    // releases it.
    let import = |mut array: FFI_ArrowArray| import_batch.call1((&raw mut array as usize, &schema));
    exported.map_err(to_python)?.into_iter().map(import).collect()
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

struct Stream {
    groups: std::vec::IntoIter<Vec<Window>>,
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
        let group = self.groups.next()?;
        let fields = self.schema.fields();
        let columns = columns(&group, fields.len() > SCHEMA.fields().len()).into_iter().zip(fields);
        let columns = columns.map(|(column, field)| represent::convert(column, field.data_type())).collect();
        Some(RecordBatch::try_new(Arc::clone(&self.schema), columns))
    }
}

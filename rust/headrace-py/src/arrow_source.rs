//! Reads Arrow data from Python, one Arrow batch at a time.

use std::sync::Mutex;

use arrow_array::cast::AsArray;
use arrow_array::ffi::{FFI_ArrowArray, from_ffi};
use arrow_array::ffi_stream::{ArrayStreamReader, FFI_ArrowArrayStream};
use arrow_array::{Array, ArrayReader, ArrayRef, StructArray};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Fields};
use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::python_call::call_blocking;

/// A source of Arrow batches.
pub enum Source {
    /// A stream of the Arrow C interface. The lock is never contended: it only makes the stream `Sync`.
    Stream(Mutex<ArrayStreamReader>),
    /// A `pyarrow.RecordBatchReader`. It is not read as a stream, which would replace exceptions by their text.
    Reader(Py<PyAny>),
    /// One array of structs; None after it was read.
    Array(Option<StructArray>),
}

impl Source {
    /// The source of an object's Arrow batches, and their columns.
    pub fn open(data: &Bound<'_, PyAny>) -> PyResult<(Self, Fields)> {
        let py = data.py();
        if data.hasattr(intern!(py, "read_next_batch"))? && data.hasattr(intern!(py, "schema"))? {
            let schema =
                data.getattr(intern!(py, "schema"))?.call_method0(intern!(py, "__arrow_c_schema__"))?;
            let data_type = import_type(&schema)?;
            Ok((Self::Reader(data.clone().unbind()), columns(&data_type)?))
        } else if data.hasattr(intern!(py, "__arrow_c_stream__"))? {
            let capsule = call_blocking(data, intern!(py, "__arrow_c_stream__"), ())?;
            let pointer = capsule.cast::<PyCapsule>()?.pointer_checked(Some(c"arrow_array_stream"))?;
            // SAFETY: the capsule's name guarantees the type of the pointer. The stream is moved out of it, as the
            // PyCapsule interface requires: the capsule does not release it again.
            let stream = unsafe { FFI_ArrowArrayStream::from_raw(pointer.cast().as_ptr()) };
            let reader = py.detach(|| ArrayStreamReader::try_new(stream)).map_err(failed)?;
            let fields = columns(reader.field().data_type())?;
            Ok((Self::Stream(Mutex::new(reader)), fields))
        } else if data.hasattr(intern!(py, "__arrow_c_array__"))? {
            let array = import_array(data)?;
            let fields = columns(array.data_type())?;
            Ok((Self::Array(Some(rows(&array)?)), fields))
        } else {
            let name = data.get_type().name()?;
            Err(PyTypeError::new_err(format!(
                "expected Arrow data (an object with __arrow_c_stream__ or __arrow_c_array__), not {name}"
            )))
        }
    }

    /// The next batch, or None at the end. Other threads can run Python meanwhile.
    pub fn next(&mut self, py: Python<'_>) -> PyResult<Option<StructArray>> {
        match self {
            Self::Stream(reader) => {
                let reader = reader
                    .get_mut()
                    .map_err(|_| PyRuntimeError::new_err("the Arrow stream failed before"))?;
                match py.detach(|| reader.next()) {
                    None => Ok(None),
                    Some(array) => rows(&array.map_err(failed)?).map(Some),
                }
            }
            Self::Reader(reader) => {
                match call_blocking(reader.bind(py), intern!(py, "read_next_batch"), ()) {
                    Ok(batch) => rows(&import_array(&batch)?).map(Some),
                    Err(error) if error.is_instance_of::<PyStopIteration>(py) => Ok(None),
                    Err(error) => Err(error),
                }
            }
            Self::Array(array) => Ok(array.take()),
        }
    }
}

fn failed(error: ArrowError) -> PyErr {
    match error {
        ArrowError::CDataInterface(text) => {
            PyRuntimeError::new_err(format!("the Arrow stream failed: {text}"))
        }
        error => PyRuntimeError::new_err(format!("the Arrow data cannot be imported: {error}")),
    }
}

fn columns(data_type: &DataType) -> PyResult<Fields> {
    match data_type {
        DataType::Struct(fields) => Ok(fields.clone()),
        other => Err(PyTypeError::new_err(format!("expected a table, not an Arrow array of {other}"))),
    }
}

fn rows(array: &ArrayRef) -> PyResult<StructArray> {
    if array.null_count() > 0 {
        return Err(PyValueError::new_err("a row of the Arrow data is null: each row has to be a record"));
    }
    Ok(array.as_struct().clone())
}

pub fn import_type(capsule: &Bound<'_, PyAny>) -> PyResult<DataType> {
    import_field(capsule).map(|field| field.data_type().clone())
}

/// A type with the nullability and the metadata of its fields.
pub fn import_field(capsule: &Bound<'_, PyAny>) -> PyResult<Field> {
    let pointer = capsule.cast::<PyCapsule>()?.pointer_checked(Some(c"arrow_schema"))?;
    // SAFETY: the capsule's name guarantees the type of the pointer. The capsule keeps ownership and is borrowed.
    let schema = unsafe { pointer.cast::<FFI_ArrowSchema>().as_ref() };
    Field::try_from(schema).map_err(failed)
}

pub fn import_array(data: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    let (schema, array): (Bound<'_, PyAny>, Bound<'_, PyAny>) =
        data.call_method0(intern!(data.py(), "__arrow_c_array__"))?.extract()?;
    let schema = schema.cast::<PyCapsule>()?.pointer_checked(Some(c"arrow_schema"))?;
    let array = array.cast::<PyCapsule>()?.pointer_checked(Some(c"arrow_array"))?;
    // SAFETY: the names of the capsules guarantee the types of the pointers. The schema is borrowed; the array is moved
    // out of its capsule, which does not release it again. The producer guarantees that they agree with each other.
    let data = unsafe {
        let array = FFI_ArrowArray::from_raw(array.cast().as_ptr());
        from_ffi(array, schema.cast::<FFI_ArrowSchema>().as_ref())
    };
    Ok(arrow_array::make_array(data.map_err(failed)?))
}

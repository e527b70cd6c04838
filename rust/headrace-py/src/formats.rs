//! What the decoders and encoders of all formats have in common: Arrow arrays in and out.

use std::sync::Arc;

// With leading colons, because the Python function `arrow_schema` has the name of the crate.
use ::arrow_schema::ffi::FFI_ArrowSchema;
use ::arrow_schema::{ArrowError, DataType};
use arrow_array::cast::AsArray;
use arrow_array::ffi::FFI_ArrowArray;
use arrow_array::{Array, ArrayRef, BinaryArray};
use headrace_formats::{Decoded, EncodeError, Framing, framing};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arrow_source::import_array;

/// An Arrow array for Python.
#[pyclass(frozen, module = "headrace._native")]
pub struct ArrowArray(pub ArrayRef);

#[pymethods]
impl ArrowArray {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // The interface allows to ignore the request: the caller casts the array then.
        drop(requested_schema);
        let schema = FFI_ArrowSchema::try_from(self.0.data_type())
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let array = FFI_ArrowArray::new(&self.0.to_data());
        Ok((
            PyCapsule::new_with_value(py, schema, c"arrow_schema")?,
            PyCapsule::new_with_value(py, array, c"arrow_array")?,
        ))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// A decoded column for Python, and the reasons of bad rows.
pub type PyDecoded = (ArrowArray, Vec<(usize, String)>);

pub fn decoded(decoded: Decoded) -> PyDecoded {
    (ArrowArray(decoded.column), decoded.errors)
}

/// The keys or values of records. Python converts other layouts before.
pub fn import_cells(cells: &Bound<'_, PyAny>) -> PyResult<BinaryArray> {
    let array = import_array(cells)?;
    match array.data_type() {
        DataType::Binary => Ok(array.as_binary::<i32>().clone()),
        other => Err(PyTypeError::new_err(format!("expected an Arrow array of binary, not {other}"))),
    }
}

/// The text of an error about a type or schema, without the name of its kind.
pub fn text_of(error: ArrowError) -> String {
    match error {
        ArrowError::NotYetImplemented(text) | ArrowError::SchemaError(text) => text,
        other => other.to_string(),
    }
}

pub fn framing_of(id_size: usize) -> PyResult<Framing> {
    match id_size {
        0 => Ok(Framing::None),
        4 => Ok(Framing::Id4),
        8 => Ok(Framing::Id8),
        _ => Err(PyValueError::new_err("a schema id has 4 or 8 bytes, or 0 if there is none")),
    }
}

#[pyfunction]
#[pyo3(signature = (cells, *, id_size))]
pub fn schema_ids(py: Python<'_>, cells: &Bound<'_, PyAny>, id_size: usize) -> PyResult<Vec<i64>> {
    let framing = framing_of(id_size)?;
    let cells = import_cells(cells)?;
    Ok(py.detach(|| framing::schema_ids(&cells, framing)))
}

/// An encoded column for Python, or the reason for a row: exactly one of them is there.
pub type PyEncoded = (Option<ArrowArray>, Option<(usize, String)>);

pub fn encoded(result: Result<BinaryArray, EncodeError>) -> PyResult<PyEncoded> {
    match result {
        Ok(array) => Ok((Some(ArrowArray(Arc::new(array))), None)),
        Err(EncodeError::Row(row, reason)) => Ok((None, Some((row, reason)))),
        Err(EncodeError::Column(reason)) => Err(PyTypeError::new_err(reason)),
    }
}

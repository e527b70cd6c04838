//! Whole numbers that users pass: ints, and types such as numpy's integers, but no bools, which Python counts as ints.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBool;

/// For `from_py_with`.
pub fn whole_number<'a, 'py, T>(value: &'a Bound<'py, PyAny>) -> PyResult<T>
where
    T: FromPyObject<'a, 'py>,
{
    if value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!("a whole number was expected, not {value}")));
    }
    value.extract().map_err(Into::into)
}

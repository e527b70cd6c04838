//! Borrows the bytes of a Python object for the duration of a call.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// The bytes of a `bytes`, `bytearray`, `memoryview` or anything else with a contiguous buffer; or the UTF-8 form of a `str`.
pub enum Bytes<'py> {
    Immutable(Bound<'py, PyBytes>),
    /// Python keeps the UTF-8 form of a string with the string.
    Text(Bound<'py, PyString>),
    Exported(PyBuffer<u8>),
}

impl<'py> Bytes<'py> {
    pub fn borrow(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Immutable(bytes.clone()));
        }
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the record bytes must be contiguous"));
        }
        Ok(Self::Exported(buffer))
    }

    /// The bytes of a field of a record. Text is encoded as UTF-8.
    pub fn of(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Immutable(bytes.clone()));
        }
        if let Ok(text) = object.cast::<PyString>() {
            text.to_str()?; // a lone surrogate has no UTF-8 form
            return Ok(Self::Text(text.clone()));
        }
        Self::borrow(object).map_err(|error| {
            if !error.is_instance_of::<PyTypeError>(object.py()) {
                return error;
            }
            let given =
                object.get_type().name().map_or_else(|_| String::from("object"), |name| name.to_string());
            PyTypeError::new_err(format!("{name} must be bytes, str or None, not {given}"))
        })
    }

    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Immutable(bytes) => bytes.as_bytes(),
            Self::Text(text) => text.to_str().unwrap_or_default().as_bytes(),
            Self::Exported(buffer) if buffer.len_bytes() == 0 => &[],
            // SAFETY: the exported buffer keeps its address and size while `self` is alive. It is contiguous and not
            // empty, so the pointer is not null. The caller of `decode` must not write to it during the call. The
            // kernel has no unsafe code, so its memory safety does not depend on the values of the bytes.
            Self::Exported(buffer) => unsafe {
                std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes())
            },
        }
    }
}

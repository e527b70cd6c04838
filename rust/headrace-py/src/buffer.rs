//! Bytes of Python objects, borrowed for the length of a call.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The bytes of a `bytes`, `bytearray`, `memoryview` or anything else with a contiguous buffer.
pub enum Bytes<'py> {
    Immutable(Bound<'py, PyBytes>),
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

    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Immutable(bytes) => bytes.as_bytes(),
            Self::Exported(buffer) if buffer.len_bytes() == 0 => &[],
            // SAFETY: the export keeps the memory in place and at its size for as long as `self` lives, it is
            // contiguous, and it is not empty, so the pointer is not null. That nobody writes to it meanwhile
            // is what `decode` asks of its caller; the kernel copies out and never reads a byte's value
            // twice for a check and a use that memory safety rests on (it has no unsafe code).
            Self::Exported(buffer) => unsafe {
                std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes())
            },
        }
    }
}

//! Python classes that encode record batches for Produce requests.

use std::ffi::c_int;

use headrace_kernel::{Compression, EncodeError, Stamp};
use pyo3::exceptions::{PyBufferError, PyOverflowError, PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::buffer::Bytes;

pub fn raised(error: EncodeError) -> PyErr {
    match error {
        EncodeError::Empty => PyValueError::new_err(error.to_string()),
        EncodeError::TooLarge => PyOverflowError::new_err(error.to_string()),
        EncodeError::Compression { .. } => PyRuntimeError::new_err(error.to_string()),
    }
}

pub fn compression(codec: &str, level: Option<i32>) -> PyResult<Compression> {
    match (codec, level) {
        ("none", None) => Ok(Compression::None),
        ("gzip", None) => Ok(Compression::Gzip(6)),
        ("gzip", Some(level @ 1..=9)) => Ok(Compression::Gzip(level.unsigned_abs())),
        ("snappy", None) => Ok(Compression::Snappy),
        // As in Java, level 9 is the default, which is not the high compressor.
        ("lz4", None | Some(9)) => Ok(Compression::Lz4),
        ("lz4", Some(level @ 1..=17)) => Ok(Compression::Lz4High(level.unsigned_abs())),
        ("zstd", None) => Ok(Compression::Zstd(3)),
        ("zstd", Some(level @ -131_072..=22)) => Ok(Compression::Zstd(level)),
        ("none" | "gzip" | "snappy" | "lz4" | "zstd", Some(level)) => {
            Err(PyValueError::new_err(format!("{codec} has no level {level}")))
        }
        _ => {
            Err(PyValueError::new_err(format!("{codec} is not a codec: use none, gzip, snappy, lz4 or zstd")))
        }
    }
}

/// A finished batch. While a buffer of it is exported, it cannot be stamped.
#[pyclass(module = "headrace._native")]
pub struct EncodedBatch {
    data: Vec<u8>,
    exports: usize,
}

impl EncodedBatch {
    pub fn new(data: Vec<u8>) -> Self {
        Self { data, exports: 0 }
    }
}

#[pymethods]
impl EncodedBatch {
    #[pyo3(signature = (producer_id, epoch, sequence, *, is_transactional=false))]
    fn stamp(&mut self, producer_id: i64, epoch: i16, sequence: i32, is_transactional: bool) -> PyResult<()> {
        if self.exports > 0 {
            return Err(PyBufferError::new_err("the batch is being read"));
        }
        let stamp = Stamp { producer_id, epoch, sequence, is_transactional };
        headrace_kernel::stamp(&mut self.data, &stamp).map_err(raised)
    }

    fn __len__(&self) -> usize {
        self.data.len()
    }

    /// # Safety
    ///
    /// Called by Python with a valid `view`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (start, length) = {
            let mut batch = slf.borrow_mut();
            batch.exports += 1;
            (batch.data.as_ptr().cast_mut(), batch.data.len() as ffi::Py_ssize_t)
        };
        // SAFETY: `data` keeps its address and size: nothing changes it while there are exports, and the view holds a
        // reference to this object.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), length, 1, flags) };
        if filled == 0 {
            return Ok(());
        }
        slf.borrow_mut().exports -= 1;
        Err(PyErr::fetch(slf.py()))
    }

    /// # Safety
    ///
    /// Called by Python once for each exported buffer.
    unsafe fn __releasebuffer__(&mut self, _view: *mut ffi::Py_buffer) {
        self.exports -= 1;
    }
}

#[pyfunction]
pub fn murmur2(key: &Bound<'_, PyAny>) -> PyResult<i32> {
    Ok(headrace_kernel::murmur2(Bytes::borrow(key)?.as_slice()))
}

#[pyfunction]
pub fn crc32(key: &Bound<'_, PyAny>) -> PyResult<u32> {
    Ok(headrace_kernel::crc32(Bytes::borrow(key)?.as_slice()))
}

//! What the requests that are sent directly (`direct.rs`) have in common.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use headrace_kernel::{Compression, ProduceSettings};
use pyo3::prelude::*;

use crate::buffer_memory::BufferMemory;
use crate::encode::compression;

/// What the direct requests of a producer have in common, and how they wake its loop.
#[pyclass(module = "headrace._native", frozen)]
pub struct DirectSender {
    pub settings: ProduceSettings,
    pub compression: Compression,
    pub batch_size: usize,
    pub used: Arc<AtomicUsize>,
    pub waiting: Py<PyAny>,
    /// The loop reads the first; a byte in it means that it should look.
    signal: (UnixStream, UnixStream),
    pub process: u32,
    pub requests: AtomicUsize,
    pub bytes_sent: AtomicUsize,
    pub records_delivered: AtomicUsize,
}

impl DirectSender {
    pub fn wake(&self) {
        // A full buffer is as good as another byte.
        let _ = (&self.signal.1).write(&[1]);
    }
}

#[pymethods]
impl DirectSender {
    #[new]
    #[pyo3(signature = (client_id, acks, timeout_ms, codec, level, batch_size, memory, waiting))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        client_id: Option<String>,
        acks: i16,
        timeout_ms: i32,
        codec: &str,
        level: Option<i32>,
        batch_size: usize,
        memory: &BufferMemory,
        waiting: Py<PyAny>,
    ) -> PyResult<Self> {
        let signal = UnixStream::pair()?;
        signal.0.set_nonblocking(true)?;
        signal.1.set_nonblocking(true)?;
        Ok(Self {
            settings: ProduceSettings { client_id, acks, timeout_ms },
            compression: compression(codec, level)?,
            batch_size,
            used: memory.counter(),
            waiting,
            signal,
            process: std::process::id(),
            requests: AtomicUsize::new(0),
            bytes_sent: AtomicUsize::new(0),
            records_delivered: AtomicUsize::new(0),
        })
    }

    fn fileno(&self) -> RawFd {
        self.signal.0.as_raw_fd()
    }

    /// Removes the signal, before looking at what it is about.
    fn clear(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.signal.0).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }

    #[getter]
    fn requests(&self) -> usize {
        self.requests.load(Relaxed)
    }

    #[getter]
    fn bytes_sent(&self) -> usize {
        self.bytes_sent.load(Relaxed)
    }

    #[getter]
    fn records_delivered(&self) -> usize {
        self.records_delivered.load(Relaxed)
    }
}

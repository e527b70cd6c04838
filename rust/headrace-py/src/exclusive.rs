//! A lock for calls that one thread may make at a time, as a context manager.
//!
//! It is native because Python runs signal handlers between any two instructions of the main thread: one that raises
//! (Ctrl-C) inside of a Python `__enter__` or `__exit__` leaves the lock held for ever. Nothing can come between
//! entering this one and the block of its `with` statement.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use pyo3::prelude::*;

/// Reentrant for the thread that is inside. Another one does not wait: it raises `error(message)`.
#[pyclass(module = "headrace._native", frozen)]
pub struct Exclusive {
    error: Py<PyAny>,
    message: String,
    inside: Mutex<Option<(ThreadId, usize)>>,
}

impl Exclusive {
    fn inside(&self) -> MutexGuard<'_, Option<(ThreadId, usize)>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Exclusive {
    #[new]
    fn new(error: Py<PyAny>, message: String) -> Self {
        Self { error, message, inside: Mutex::new(None) }
    }

    /// How many calls of the thread that is inside are nested; 0 with nobody inside.
    #[getter]
    fn depth(&self) -> usize {
        self.inside().map_or(0, |(_, depth)| depth)
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        let me = thread::current().id();
        {
            let mut inside = self.inside();
            match *inside {
                None => *inside = Some((me, 1)),
                Some((owner, depth)) if owner == me => *inside = Some((me, depth + 1)),
                Some(_) => {
                    drop(inside);
                    return Err(PyErr::from_value(self.error.bind(py).call1((&self.message,))?));
                }
            }
        }
        Ok(())
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        let mut inside = self.inside();
        *inside = match *inside {
            Some((owner, depth)) if depth > 1 => Some((owner, depth - 1)),
            _ => None,
        };
    }
}

//! A context manager that allows calls from one thread at a time.
//!
//! It is native because Python runs signal handlers between any two instructions of the main thread: a handler that
//! raises (Ctrl-C) inside a Python `__enter__` or `__exit__` would leave the lock held forever. No handler can run
//! between entering this lock and the block of its `with` statement.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use pyo3::prelude::*;

/// Reentrant for the thread that holds it. In another thread, entering does not wait but raises `error(message)`.
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

    /// The number of nested calls of the thread that holds the lock; 0 if no thread holds it.
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

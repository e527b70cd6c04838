//! Calls of Python code that may block: a wait for a delivery, a user's deserializer, a user's stream of Arrow data.
//!
//! Before Python 3.14, a daemon thread that needs the GIL again while the interpreter exits is ended by pthread_exit(),
//! which unwinds its stack. Rust aborts the process when the unwinding reaches one of its frames. PyO3 prevents that
//! where Rust itself waits for the GIL. Here, Python code waits for it below a Rust frame. The thread is parked
//! instead: Python 3.14 does the same, and the process ends regardless.

use std::hint::black_box;
use std::mem;
use std::thread;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

type Call = unsafe extern "C-unwind" fn(
    *mut ffi::PyObject,
    *mut ffi::PyObject,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// Dropped only if something unwinds through the call below, which is never a Rust panic.
struct ParkThread;

impl Drop for ParkThread {
    fn drop(&mut self) {
        loop {
            thread::park();
        }
    }
}

/// Calls `object.name(*arguments)`. Use it for methods that may block, on threads that may be daemons.
pub fn call_blocking<'py, Arguments>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    arguments: Arguments,
) -> PyResult<Bound<'py, PyAny>>
where
    Arguments: IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>>,
{
    let py = object.py();
    let method = object.getattr(name)?;
    let arguments = arguments.into_pyobject(py).map_err(Into::into)?;
    // PyO3 declares that the function does not unwind. The compiler must not know which function this is: it would drop
    // the guard's code.
    let pointer = black_box(ffi::PyObject_Call as *const ());
    // SAFETY: the same function, with an ABI that differs only in what may unwind.
    let call = unsafe { mem::transmute::<*const (), Call>(pointer) };
    let guard = ParkThread;
    // SAFETY: the objects live until the end of this function, and the result is a new reference or an error.
    let result = unsafe {
        let result = call(method.as_ptr(), arguments.as_ptr(), std::ptr::null_mut());
        Bound::from_owned_ptr_or_err(py, result)
    };
    mem::forget(guard);
    result
}

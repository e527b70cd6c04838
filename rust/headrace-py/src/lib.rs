//! `headrace._native`: the record kernel for Python.
//!
//! The kernel decodes without the GIL into vectors; they become Arrow arrays without a copy and stay so.
//! `Batch` and `Record` are windows on those arrays, and the Arrow stream hands out the arrays themselves.

mod arrow;
mod batch;
mod buffer;
mod columns;
mod decode;
mod exclusive;
mod record;
mod repeated;
mod represent;

// Columns are allocated on one thread, dropped on another, and megabytes large. The C library gives such memory
// back to the operating system and takes a page fault for every 4 KiB when it comes again: with ten responses
// of 1 MB in flight, decoding on two threads ran at 36 to 42 M records/s with it (250,000 faults a second) and
// at 56 to 86 M with this one (2,000), for 10 MB more memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 3, which the crate does not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// Milliseconds after which memory that was freed goes back to the operating system, if it was not used again. A
/// consumer at full speed uses it again in a few; with mimalloc's own 1,000 it held 20 MB more.
const SOON: std::ffi::c_long = 100;

#[pyo3::pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        // SAFETY: options must not be set by two threads at once. Python loads a module once, and nothing else has
        // this allocator. (MIMALLOC_PURGE_DELAY in the environment wins.)
        unsafe { libmimalloc_sys::mi_option_set_default(crate::PURGE_DELAY, crate::SOON) };
        Ok(())
    }

    #[pymodule_export]
    use crate::arrow::{arrow_schema, arrow_stream};
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::decode::{DecodeError, decode, decode_all, next_offset};
    #[pymodule_export]
    use crate::exclusive::Exclusive;
    #[pymodule_export]
    use crate::record::Record;
}

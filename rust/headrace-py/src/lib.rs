//! `headrace._native`: the record kernel for Python.
//!
//! The kernel decodes without the GIL into vectors; they become Arrow arrays without a copy and stay so.
//! `Batch` and `Record` are windows on those arrays, and the Arrow stream hands out the arrays themselves.

mod arrow;
mod batch;
mod buffer;
mod columns;
mod decode;
mod record;
mod repeated;
mod represent;

// Columns are allocated on one thread, dropped on another, and megabytes large. The C library gives such memory
// back to the operating system and takes a page fault for every 4 KiB when it comes again: with ten responses
// of 1 MB in flight, decoding on two threads ran at 36 to 42 M records/s with it (250,000 faults a second) and
// at 56 to 86 M with this one (2,000), for 10 MB more memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::arrow::{arrow_schema, arrow_stream};
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::decode::{DecodeError, decode, decode_all, next_offset};
    #[pymodule_export]
    use crate::record::Record;
}

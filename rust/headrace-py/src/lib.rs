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


// Record columns are allocated and freed at gigabytes a second; see `examples/speed.rs` for what that costs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::arrow::{arrow_schema, arrow_stream};
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::decode::{DecodeError, decode, next_offset};
    #[pymodule_export]
    use crate::record::Record;
}

//! `headrace._native`: the Python bindings of the record kernel.
//!
//! The kernel decodes into vectors, without the GIL. The vectors become Arrow arrays without a copy. `Batch` and
//! `Record` are views of these arrays, and the Arrow stream exports the arrays themselves.

mod arrow;
mod arrow_source;
mod avro;
mod batch;
mod buffer;
mod cells;
mod columns;
mod decode;
mod direct;
mod direct_partition;
mod direct_sender;
mod encode;
mod encode_columns;
mod exclusive;
mod formats;
mod join;
mod json;
mod open_batches;
mod producer_batch;
mod protobuf;
mod python_call;
mod record;
mod repeated;
mod represent;
mod rows;
mod window;

// Columns have megabytes; one thread allocates them and another one drops them. The allocator of the C library returns
// such memory to the operating system, and the next allocation causes a page fault for every 4 KiB. With ten responses
// of 1 MB in flight, two threads decoded 36 to 42 M records/s with it (250,000 faults per second) and 56 to 86 M with
// mimalloc (2,000 faults per second), which uses 10 MB more memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 3. The crate has no constant for it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// Milliseconds after which freed memory is returned to the operating system if it was not reused. A consumer at full
/// speed reuses it within a few milliseconds. With mimalloc's default of 1,000, it used 20 MB more.
const SOON: std::ffi::c_long = 100;

// Steps of the producer are atomic because of the GIL (see `direct.rs`). By default, PyO3 declares that a module does
// not need it, and a free-threaded Python (3.14t) would run without it. With this, that Python switches the GIL on.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        // SAFETY: two threads must not set options at the same time. Python loads a module once, and no other code
        // uses this allocator. (MIMALLOC_PURGE_DELAY in the environment takes precedence.)
        unsafe { libmimalloc_sys::mi_option_set_default(crate::PURGE_DELAY, crate::SOON) };
        Ok(())
    }

    #[pymodule_export]
    use crate::arrow::{arrow_batches, arrow_schema, arrow_stream};
    #[pymodule_export]
    use crate::avro::{AvroDecoder, AvroPlan, AvroSchema, encode_avro};
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::decode::{DecodeError, decode, decode_all, next_offset};
    #[pymodule_export]
    use crate::direct::{DirectAnswer, DirectConnection};
    #[pymodule_export]
    use crate::direct_partition::DirectPartition;
    #[pymodule_export]
    use crate::direct_sender::DirectSender;
    #[pymodule_export]
    use crate::encode::{EncodedBatch, crc32, murmur2};
    #[pymodule_export]
    use crate::encode_columns::{ColumnEncoder, RowError};
    #[pymodule_export]
    use crate::exclusive::Exclusive;
    #[pymodule_export]
    use crate::formats::{ArrowArray, schema_ids};
    #[pymodule_export]
    use crate::json::{JsonDecoder, encode_json};
    #[pymodule_export]
    use crate::open_batches::{BufferMemory, OpenBatches};
    #[pymodule_export]
    use crate::producer_batch::{Delivery, ProducerBatch};
    #[pymodule_export]
    use crate::protobuf::{ProtobufMessage, ProtobufSchema};
    #[pymodule_export]
    use crate::record::Record;
}

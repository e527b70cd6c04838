//! `headrace._native`: the Python bindings of the record kernel.
//!
//! The kernel decodes into vectors, without the GIL. The vectors become Arrow arrays without a copy. `Batch` and
//! `Record` are views of these arrays, and the Arrow stream exports the arrays themselves.

mod allocator;
mod arrow;
mod arrow_source;
mod avro;
mod batch;
mod buffer;
mod buffer_memory;
mod cells;
mod columns;
mod decode;
mod direct;
mod direct_fetch;
mod direct_partition;
mod direct_sender;
mod encode;
mod encode_columns;
mod exclusive;
mod formats;
mod frame_receiver;
mod join;
mod json;
mod open_batches;
mod poll_wait;
mod producer_batch;
mod protobuf;
mod python_call;
mod record;
mod repeated;
mod represent;
mod rows;
mod turns;
mod whole_number;
mod window;
mod zones;

// Steps of the producer are atomic because of the GIL (see `direct.rs`). By default, PyO3 declares that a module does
// not need it, and a free-threaded Python (3.14t) would run without it. With this, that Python switches the GIL on.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::allocator::configure();
        // For the benchmarks: a module with debug assertions is not what users get (see the profiles in Cargo.toml).
        module.add("IS_RELEASE", !cfg!(debug_assertions))
    }

    #[pymodule_export]
    use crate::arrow::{arrow_batches, arrow_schema, arrow_stream};
    #[pymodule_export]
    use crate::avro::{AvroDecoder, AvroPlan, AvroSchema, encode_avro};
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::buffer_memory::{BufferMemory, MemoryReservation};
    #[pymodule_export]
    use crate::decode::{DecodeError, decode, decode_all, next_offset};
    #[pymodule_export]
    use crate::direct::{DirectAnswer, DirectConnection};
    #[pymodule_export]
    use crate::direct_fetch::{DirectFetch, DirectResponse};
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
    use crate::frame_receiver::FrameReceiver;
    #[pymodule_export]
    use crate::json::{JsonDecoder, encode_json};
    #[pymodule_export]
    use crate::open_batches::OpenBatches;
    #[pymodule_export]
    use crate::poll_wait::PollWait;
    #[pymodule_export]
    use crate::producer_batch::{Delivery, ProducerBatch};
    #[pymodule_export]
    use crate::protobuf::{ProtobufMessage, ProtobufSchema};
    #[pymodule_export]
    use crate::record::Record;
}

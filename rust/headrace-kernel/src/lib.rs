//! Decodes Kafka record batches (message format v2) into columns, and encodes records into batches.
//!
//! For any input, [`decode`] returns columns or an error: it does not panic, it terminates, and the limits in
//! [`Fetched`] bound its memory. This crate does not depend on Python or Arrow. The columns are plain vectors in
//! Arrow's memory layout, so that they become Arrow arrays without a copy.
//!
//! | module | subject |
//! |---|---|
//! | `header` | the header of a batch, and splitting the bytes of a partition into batches |
//! | `codec` | gzip, snappy, lz4, zstd |
//! | `varint` | zigzag integers |
//! | `record` | the records of one batch |
//! | `columns` | the decoded records |
//! | `transactions` | the batches of aborted transactions |
//! | `decode` | one partition of a Fetch response |
//! | `encode` | the batch of a Produce request |
//! | `compress` | its compression |
//! | `partition` | the partition of a key |
//! | `partitioned` | many records into batches of their partitions |
//! | `produce` | a Produce request with one batch, and the usual response |
//! | `fetch` | the requests of a fetch session, and the usual response |

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod codec;
mod columns;
mod compress;
mod decode;
mod encode;
mod error;
mod fetch;
mod header;
mod partition;
mod partitioned;
mod produce;
mod record;
mod transactions;
mod varint;

pub use columns::{BinaryColumn, Columns, HeaderColumns, Row, Run, StringColumn, Validity};
pub use compress::{Compression, Compressor};
pub use decode::{DEFAULT_MAX_BATCH_BYTES, Decoded, Fetched, decode, next_offset};
pub use encode::{BatchBuilder, Fields, Stamp, stamp};
pub use error::{Cause, DecodeError, EncodeError};
pub use fetch::{
    FetchRequest, FetchSettings, FetchedPartition, PartitionRequest, TopicIdPartition, UsualResponse,
    usual_response,
};
pub use partition::{crc32, murmur2};
pub use partitioned::{FinishedBatch, KeyHash, Limits, PartitionedBatches, Routing, RowError, largest_size};
pub use produce::{Appended, ProduceFrames, ProduceSettings, ProduceTopic};
pub use transactions::AbortedTransaction;

//! Kafka record batches (message format v2) to columns.
//!
//! Whatever bytes come in, [`decode`] gives columns or an error: it does not panic, it ends, and the
//! memory it takes is bounded by [`Fetched`]'s limits. Nothing here knows of Python or Arrow; the
//! columns are plain vectors, laid out as Arrow wants them so that they can be handed over as they are.
//!
//! | module | subject |
//! |---|---|
//! | `header` | a batch's header, and cutting a partition's bytes into batches |
//! | `codec` | gzip, snappy, lz4, zstd |
//! | `varint` | zigzag integers |
//! | `record` | the records of one batch |
//! | `columns` | where they go |
//! | `transactions` | which batches were aborted |
//! | `decode` | all of it over one partition of a Fetch response |

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod codec;
mod columns;
mod decode;
mod error;
mod header;
mod record;
mod transactions;
mod varint;

pub use columns::{BinaryColumn, Columns, HeaderColumns, Row, Run, StringColumn, Validity};
pub use decode::{DEFAULT_MAX_BATCH_BYTES, Decoded, Fetched, decode, next_offset};
pub use error::{Cause, DecodeError};
pub use transactions::AbortedTransaction;

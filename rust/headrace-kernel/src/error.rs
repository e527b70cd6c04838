//! Why bytes could not be decoded.

use thiserror::Error;

/// What is wrong with a batch.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Cause {
    /// The batch's length field cannot be right, so nothing after it can be found either.
    #[error("the batch length {0} cannot be right")]
    Length(i32),
    /// Message format v0 or v1.
    #[error(
        "message format v{0} is not supported: it was written by Kafka before 0.11, \
         and brokers since 4.0 no longer convert it"
    )]
    OldFormat(i8),
    /// A message format that does not exist yet.
    #[error("message format v{0} is unknown")]
    UnknownFormat(i8),
    /// The checksum in the header is not the one of the bytes.
    #[error("CRC-32C mismatch: the batch says {stored:#010x}, its bytes give {computed:#010x}")]
    Checksum {
        /// What the header says.
        stored: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// A compression codec that does not exist yet.
    #[error("compression codec {0} is unknown")]
    UnknownCodec(u8),
    /// The codec refused the compressed records.
    #[error("{codec} data cannot be decompressed: {reason}")]
    Compression {
        /// The codec's name.
        codec: &'static str,
        /// What it said.
        reason: String,
    },
    /// The batch holds more than the limit, compressed or not.
    #[error("the records of the batch take more than the limit of {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// A field of the header or of a record contradicts another or the bytes.
    #[error("{0}")]
    Malformed(&'static str),
}

/// A batch that could not be decoded, with no good batch before it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("offset {offset}: {cause}")]
pub struct DecodeError {
    /// The batch's base offset, or the fetch position where even that cannot be told.
    pub offset: i64,
    /// What is wrong.
    pub cause: Cause,
}

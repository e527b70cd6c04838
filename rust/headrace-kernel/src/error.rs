//! Errors of decoding and encoding.

use thiserror::Error;

/// The reason why a batch is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Cause {
    /// The length field of the batch is invalid, so the batches after it cannot be found either.
    #[error("the batch length {0} is invalid")]
    Length(i32),
    /// Message format v0 or v1.
    #[error(
        "message format v{0} is not supported: it was written by Kafka before 0.11, \
         and brokers since 4.0 no longer convert it"
    )]
    OldFormat(i8),
    /// An unknown message format.
    #[error("message format v{0} is unknown")]
    UnknownFormat(i8),
    /// The checksum in the header does not match the bytes.
    #[error("CRC-32C mismatch: the batch says {stored:#010x}, its bytes give {computed:#010x}")]
    Checksum {
        /// The checksum in the header.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// An unknown compression codec.
    #[error("compression codec {0} is unknown")]
    UnknownCodec(u8),
    /// The codec cannot decompress the records.
    #[error("{codec} data cannot be decompressed: {reason}")]
    Compression {
        /// The codec's name.
        codec: &'static str,
        /// The codec's error message.
        reason: String,
    },
    /// The records of the batch exceed the size limit, compressed or not.
    #[error("the records of the batch take more than the limit of {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// A field of the header or of a record contradicts another field or the data.
    #[error("{0}")]
    Malformed(&'static str),
}

/// An invalid batch, with no valid batch before it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("offset {offset}: {cause}")]
pub struct DecodeError {
    /// The base offset of the batch, or the fetch position if the base offset is unknown.
    pub offset: i64,
    /// Why the batch is invalid.
    pub cause: Cause,
}

/// Records that cannot be encoded as a batch.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// A batch must have at least one record.
    #[error("a batch needs at least one record")]
    Empty,
    /// The length of a batch is a signed integer of 32 bits.
    #[error("the batch would exceed 2 GiB")]
    TooLarge,
    /// The codec cannot compress the records.
    #[error("the records cannot be compressed with {codec}: {reason}")]
    Compression {
        /// The codec's name.
        codec: &'static str,
        /// The codec's error message.
        reason: String,
    },
}

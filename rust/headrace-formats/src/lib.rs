//! Keys and values of records to typed Arrow columns, and back: one module for each format.
//!
//! A column of bytes goes in. Out comes a column of the reader's type with the same number of rows, and a reason for
//! each record that cannot be decoded: a bad record is null and does not affect the others. That is why the formats
//! are decoded into [`column::Column`], which can drop the part of a record that was decoded before an error. The
//! decoders of arrow-json and arrow-avro cannot: after an error, their builders contain half a record.
//!
//! Bytes may be hostile. Nesting, lengths and counts are bounded, so is the memory that a record takes
//! ([`budget`]), and no input leads to a panic.

pub mod avro;
mod base64;
pub mod budget;
pub mod column;
pub mod fault;
pub mod framing;
pub mod json;
pub mod protobuf;
pub mod rows;
pub mod time;
pub mod zone;

pub use column::Column;
pub use fault::Fault;
pub use framing::Framing;
pub use rows::{Decoded, EncodeError, decode_rows, encode_rows};
pub use zone::{Zone, ZoneDatabase, ZoneSource};

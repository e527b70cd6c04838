//! The errors that are not about the bytes of one record: those are `Fault`.

use std::fmt;

/// A schema cannot be parsed, or cannot become columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaError(pub String);

impl fmt::Display for SchemaError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for SchemaError {}

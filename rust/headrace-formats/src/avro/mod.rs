//! Avro to Arrow columns of a reader's schema, and back.
//!
//! Every writer's schema is resolved to the reader's once, into a [`Plan`]. Records of different writers can follow
//! each other in one column. Recursive schemas are refused: no column can have such a type.

mod binary;
mod decode;
mod defaults;
mod encode;
mod fill;
mod resolve;
mod schema;
mod skip;
mod types;

pub use decode::{Decoder, Plan, Plans};
pub use encode::encode;
pub use fill::fill_defaults;
pub use schema::{Schema, SchemaError};
pub use types::arrow_type;

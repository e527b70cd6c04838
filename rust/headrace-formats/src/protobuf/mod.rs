//! Protobuf to Arrow, and back.
//!
//! Descriptors come from the crates `protox` (.proto text) and `prost-reflect`. The wire format is read and written here,
//! because no crate decodes a message into columns: a plan is compiled from the descriptor once, and each field of each
//! record goes straight from the bytes to its column.
//!
//! | module | subject |
//! |---|---|
//! | `schema`, `imports` | .proto text and descriptors to a pool of messages |
//! | `plan` | what happens with each field |
//! | `wire` | tags, varints, lengths |
//! | `frame` | what stands between the schema id and the message |
//! | `column`, `finish` | columns while they are filled, and as Arrow arrays |
//! | `decode`, `encode` | bytes to columns, and back |
//! | `json` | google.protobuf.Struct, Value and ListValue |

mod column;
mod decode;
mod encode;
mod error;
mod finish;
mod frame;
mod imports;
mod json;
mod plan;
mod schema;
mod wire;

pub use decode::decode;
pub use encode::encode;
pub use error::SchemaError;
pub use frame::{MessageName, Writers, write_name};
pub use plan::{MessagePlan, Options};
pub use schema::Schema;

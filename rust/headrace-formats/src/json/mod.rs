//! JSON to Arrow columns of a given type, and back.
//!
//! The decoder follows the type: there is no tree of values in between. It predicts that fields come in the order of
//! the type, as one writer's do, and otherwise finds them by name.
//!
//! | JSON | in a column of that type |
//! |---|---|
//! | a missing field, null | null |
//! | a field that the type does not have | is checked and skipped |
//! | a field twice | the last one wins, as in Spark; likewise the keys of a map |
//! | any value, for text | its JSON text, as in Spark |
//! | a number, for an integer | must be written without point and exponent, and fit |
//! | a number, for a decimal | exact, rounded half up to the scale as in Spark; also in quotes, as Java's BigDecimal |
//! | "NaN", "Infinity", "-Infinity", also without quotes, for a float | that number |
//! | a string, for binary | base64 |
//! | a string, for a date or time | ISO 8601; a timestamp without a zone has the zone of [`Zones`] |

mod decimal;
mod decode;
mod encode;
mod plan;
mod scan;

pub use decode::{Decoder, Zones};
pub use encode::{JSON_TEXT, OPTIONAL, encode};

//! Why a record cannot be decoded or encoded.

use std::fmt::{self, Display, Write};

/// The reason, and where in the record. The path is collected while the error returns through the nested values, so
/// that it costs nothing as long as there is no error.
#[derive(Debug)]
pub struct Fault(Box<Inner>);

#[derive(Debug)]
struct Inner {
    reason: String,
    /// From the innermost to the outermost.
    path: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Field(Box<str>),
    Item(usize),
}

pub type Result<T, E = Fault> = std::result::Result<T, E>;

impl Fault {
    #[cold]
    pub fn new(reason: impl Into<String>) -> Self {
        Self(Box::new(Inner { reason: reason.into(), path: Vec::new() }))
    }

    /// The fault is in the field `name` of the value that returns it.
    #[cold]
    pub fn in_field(mut self, name: &str) -> Self {
        self.0.path.push(Step::Field(name.into()));
        self
    }

    /// The fault is in an item of the list that returns it.
    #[cold]
    pub fn in_item(mut self, index: usize) -> Self {
        self.0.path.push(Step::Item(index));
        self
    }

    /// The reason without the path.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }
}

/// As `$.roads[3].name: expected a string, found a number`.
impl Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.path.is_empty() {
            formatter.write_char('$')?;
            for step in self.0.path.iter().rev() {
                match step {
                    Step::Field(name) if is_plain(name) => write!(formatter, ".{name}")?,
                    Step::Field(name) => write!(formatter, "[{name:?}]")?,
                    Step::Item(index) => write!(formatter, "[{index}]")?,
                }
            }
            formatter.write_str(": ")?;
        }
        formatter.write_str(&self.0.reason)
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|each| each.is_alphanumeric() || each == '_')
}

#[cfg(test)]
mod tests {
    use super::Fault;

    #[test]
    fn a_fault_shows_its_path_from_the_outside() {
        let fault = Fault::new("too bad").in_field("a b").in_item(3).in_field("roads");
        assert_eq!(fault.to_string(), "$.roads[3][\"a b\"]: too bad");
        assert_eq!(Fault::new("too bad").to_string(), "too bad");
    }
}

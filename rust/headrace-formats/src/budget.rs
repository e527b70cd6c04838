//! What decoding a record may take: a multiple of its size, and a constant. It is the same for all formats.
//!
//! A few bytes can ask for much more: a list of empty objects whose type has thousands of fields, a list of nulls, which
//! have no bytes at all, or of records whose fields all have defaults. So every item of a list and every entry of a map
//! is charged with its [`width`], which also bounds the time that it takes. What the reader's type takes is free, with one
//! item in each list and map: that is the choice of the reader, and not of the writer of the record. Text and bytes
//! are free as well, because they are not longer than the record.

use arrow_schema::DataType;

use crate::fault::{Fault, Result};

/// The bytes of columns for each byte of the record.
pub const EXPANSION: usize = 1024;
/// The bytes of columns that any record may take.
pub const ALLOWANCE: usize = 64 * 1024;

/// What is left for a record.
pub struct Budget {
    left: usize,
}

impl Budget {
    /// `free` is what the reader's type takes.
    pub fn of(record: &[u8], free: usize) -> Self {
        let multiple = record.len().saturating_mul(EXPANSION);
        Self { left: multiple.saturating_add(ALLOWANCE).saturating_add(free) }
    }

    pub fn of_bytes(left: usize) -> Self {
        Self { left }
    }

    pub fn left(&self) -> usize {
        self.left
    }

    #[inline(always)]
    pub fn charge(&mut self, bytes: usize) -> Result<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(exceeded()),
        }
    }
}

#[cold]
fn exceeded() -> Fault {
    Fault::new(format!("the columns of the record need more than {EXPANSION} times the memory of its bytes"))
}

/// The bytes that a value takes in its column, at least. Those of text, lists and maps are added when there are any.
pub fn width(data_type: &DataType) -> usize {
    match data_type {
        DataType::Struct(fields) => 1 + fields.iter().map(|field| width(field.data_type())).sum::<usize>(),
        DataType::FixedSizeBinary(size) => 1 + usize::try_from(*size).unwrap_or(0),
        DataType::LargeUtf8 | DataType::LargeBinary | DataType::LargeList(_) => 8,
        DataType::Null | DataType::Boolean => 1,
        other => other.primitive_width().unwrap_or(4),
    }
}

/// The width of a value with one item in each list and map.
pub fn free_width(data_type: &DataType) -> usize {
    match data_type {
        DataType::Struct(fields) => {
            1 + fields.iter().map(|field| free_width(field.data_type())).sum::<usize>()
        }
        DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => {
            width(data_type) + free_width(item.data_type())
        }
        other => width(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::Field;

    #[test]
    fn a_row_takes_at_least_a_byte_in_every_column() {
        let fields = vec![Field::new("a", DataType::Null, true), Field::new("b", DataType::Utf8, true)];
        assert_eq!(width(&DataType::Struct(fields.into())), 6);
        assert_eq!(width(&DataType::Struct(Vec::<Field>::new().into())), 1);
        let list = DataType::new_list(DataType::Int64, true);
        assert_eq!((width(&list), free_width(&list)), (4, 12));
        assert_eq!(width(&DataType::Decimal128(38, 2)), 16);
        assert_eq!(width(&DataType::FixedSizeBinary(0)), 1);
    }

    #[test]
    fn a_budget_ends() {
        let mut budget = Budget::of(b"ab", 3);
        assert!(budget.charge(3 + ALLOWANCE + 2 * EXPANSION).is_ok());
        assert!(budget.charge(1).is_err());
        assert!(budget.charge(0).is_ok());
        assert!(Budget::of(b"", 0).charge(usize::MAX).is_err());
    }
}

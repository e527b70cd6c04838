//! Decoding of a column, record by record.

use arrow_array::{Array, ArrayRef, BinaryArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType};

use crate::column::Column;
use crate::fault::Result;

/// A decoded column, and why some of its rows are null.
pub struct Decoded {
    pub column: ArrayRef,
    /// Row and reason, in order.
    pub errors: Vec<(usize, String)>,
}

/// Decodes every row with `read`, which appends one value to the column. Null stays null. After an error, whatever
/// `read` has appended is dropped, and the row becomes null.
///
/// The error of this function is a type that a column cannot have.
pub fn decode_rows(
    cells: &BinaryArray,
    data_type: &DataType,
    mut read: impl FnMut(&[u8], &mut Column) -> Result<()>,
) -> std::result::Result<Decoded, ArrowError> {
    let mut column = Column::new(data_type, cells.len())?;
    let mut errors = Vec::new();
    for row in 0..cells.len() {
        if cells.is_null(row) {
            column.push_null();
            continue;
        }
        if let Err(fault) = read(cells.value(row), &mut column) {
            column.truncate(row);
            column.push_null();
            errors.push((row, fault.to_string()));
        }
        debug_assert_eq!(column.len(), row + 1);
    }
    Ok(Decoded { column: column.finish()?, errors })
}

/// A row that cannot be encoded, and why.
#[derive(Debug)]
pub enum EncodeError {
    Row(usize, String),
    /// The column has another type than the encoder's, or all rows together are too large.
    Column(String),
}

/// Encodes every row of `values` with `write`, which appends bytes. Null stays null.
pub fn encode_rows(
    values: &dyn Array,
    mut write: impl FnMut(usize, &mut Vec<u8>) -> Result<()>,
) -> std::result::Result<BinaryArray, EncodeError> {
    let mut offsets = Vec::with_capacity(values.len() + 1);
    offsets.push(0_i32);
    let mut bytes = Vec::new();
    let nulls = values.logical_nulls();
    for row in 0..values.len() {
        if !nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            write(row, &mut bytes).map_err(|fault| EncodeError::Row(row, fault.to_string()))?;
        }
        let Ok(end) = i32::try_from(bytes.len()) else {
            return Err(EncodeError::Column("the encoded records have more than 2 GiB".into()));
        };
        offsets.push(end);
    }
    BinaryArray::try_new(OffsetBuffer::new(offsets.into()), bytes.into(), nulls)
        .map_err(|error| EncodeError::Column(error.to_string()))
}

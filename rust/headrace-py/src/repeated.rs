//! String columns with the same value in every row: the topic and the lane of a batch.
//!
//! A consumer reads few topics and needs such a column for each batch. Writing the string once per record takes a fifth
//! of the time of the whole export, so the columns of the last few strings are cached and sliced to the requested
//! length.

use std::sync::{LazyLock, Mutex, PoisonError};

use arrow_array::{Array, StringArray};
use arrow_buffer::{Buffer, OffsetBuffer};

/// The number of cached strings.
const TEXTS: usize = 8;
/// The maximum size of a cached column, in bytes. Larger columns are created for their batch and not cached.
const BYTES: usize = 1 << 20;

/// The longest column of each string so far, the most recently used one at the end.
static KEPT: LazyLock<Mutex<Vec<StringArray>>> = LazyLock::new(Mutex::default);

/// A column with `text` in each of `rows` rows.
pub fn repeated(text: &str, rows: usize) -> StringArray {
    let room = rows.next_power_of_two();
    if rows == 0 || (text.len() + size_of::<i32>()) * room > BYTES {
        return written(text, rows);
    }
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let found = kept.iter().position(|column| column.value(0) == text).map(|at| kept.remove(at));
    let column = match found {
        Some(column) if column.len() >= rows => column,
        _ => written(text, room),
    };
    let slice = column.slice(0, rows);
    if kept.len() == TEXTS {
        kept.remove(0);
    }
    kept.push(column);
    slice
}

fn written(text: &str, rows: usize) -> StringArray {
    let offsets = OffsetBuffer::from_repeated_length(text.len(), rows);
    StringArray::new(offsets, Buffer::from_vec(text.as_bytes().repeat(rows)), None)
}

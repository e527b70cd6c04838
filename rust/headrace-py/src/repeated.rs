//! Columns that say the same text in every row: a batch's topic and lane.
//!
//! A consumer reads few topics and makes such a column for every batch of them. Writing the text once for each record
//! takes a fifth of the time of the whole export, so the columns of the last few texts are kept, and handed out in
//! the length that is asked for.

use std::sync::{LazyLock, Mutex, PoisonError};

use arrow_array::{Array, StringArray};
use arrow_buffer::{Buffer, OffsetBuffer};

/// How many texts are kept.
const TEXTS: usize = 8;
/// How many bytes of each: what a larger batch needs is made for it.
const BYTES: usize = 1 << 20;

/// The longest column of each text so far, the one that was used last at the end.
static KEPT: LazyLock<Mutex<Vec<StringArray>>> = LazyLock::new(Mutex::default);

/// `text` in every one of `rows` rows.
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

//! Which records become one Arrow batch.
//!
//! A poll of 500 records takes some of every partition. Every Arrow batch costs its consumer about 10 µs, and as much
//! again for most of what is done with it, which is the time to copy 100 KB. So small windows are copied into one
//! Arrow batch, and large ones are exported without a copy.

use std::sync::Arc;

use arrow_array::{BinaryArray, OffsetSizeTrait};

use crate::batch::{Batch, Store};

/// The maximum size of a window that is copied, in bytes of keys, values and headers.
const SMALL: usize = 128 << 10;
/// The maximum size of an Arrow batch of several windows, in bytes and in rows.
const JOINED_BYTES: usize = 4 << 20;
const JOINED_ROWS: usize = 1 << 17;

/// Consecutive rows of a store.
pub struct Window {
    pub store: Arc<Store>,
    pub start: usize,
    pub len: usize,
}

impl Window {
    /// One window for a batch with records, or several if the repeated strings would overflow the offsets of a column.
    fn of(batch: &Batch) -> impl Iterator<Item = Self> {
        let rows = i32::MAX as usize / longest_text(&batch.store);
        (0..batch.len).step_by(rows).map(move |at| Self {
            store: Arc::clone(&batch.store),
            start: batch.start + at,
            len: rows.min(batch.len - at),
        })
    }

    /// The bytes to copy if the window is joined with others, without the numbers.
    fn bytes(&self) -> usize {
        let columns = &self.store.columns;
        let headers = columns.headers.as_ref().map_or(0, |headers| {
            let (first, entries) = span(headers.lists.value_offsets(), self.start, self.len);
            let (_, names) = span(headers.keys.value_offsets(), first, entries);
            names + self.bytes_of(&headers.values, first, entries)
        });
        headers
            + self.bytes_of(&columns.keys, self.start, self.len)
            + self.bytes_of(&columns.values, self.start, self.len)
    }

    fn bytes_of(&self, column: &BinaryArray, start: usize, len: usize) -> usize {
        span(column.value_offsets(), start, len).1
    }

    fn has_names_of(&self, other: &Self) -> bool {
        self.store.topic == other.store.topic && self.store.lane == other.store.lane
    }
}

fn longest_text(store: &Store) -> usize {
    store.topic.len().max(store.lane.as_deref().map_or(0, str::len)).max(1)
}

/// The first element of the rows from `start` on, and the number of elements.
fn span<O: OffsetSizeTrait>(offsets: &[O], start: usize, len: usize) -> (usize, usize) {
    let first = offsets[start].as_usize();
    (first, offsets[start + len].as_usize() - first)
}

/// Which windows may be in one Arrow batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Joining {
    /// Those with the same topic and lane.
    OfTopic,
    OfAll,
}

/// Divides the records into Arrow batches, in their order. None of them is empty.
pub fn grouped<'a>(batches: impl Iterator<Item = &'a Batch>, joining: Joining) -> Vec<Vec<Window>> {
    let mut groups: Vec<Vec<Window>> = Vec::new();
    let (mut bytes, mut rows) = (usize::MAX, 0);
    for window in batches.flat_map(Window::of) {
        let size = window.bytes();
        // A window that is too large for others makes `bytes` too large for the next one, too.
        let joined = if size > SMALL { usize::MAX } else { bytes.saturating_add(size) };
        match groups.last_mut() {
            Some(group)
                if joined <= JOINED_BYTES
                    && rows + window.len <= JOINED_ROWS
                    && (joining == Joining::OfAll || group[0].has_names_of(&window)) =>
            {
                (bytes, rows) = (joined, rows + window.len);
                group.push(window);
            }
            _ => {
                (bytes, rows) = (if size > SMALL { usize::MAX } else { size }, window.len);
                groups.push(vec![window]);
            }
        }
    }
    groups
}

/// About how many bytes the columns of a group take, without those that are not copied.
pub fn bytes_written(group: &[Window]) -> usize {
    const NUMBERS: usize = 24;
    let numbers = group.iter().map(|window| window.len * NUMBERS).sum();
    if group.len() == 1 { numbers } else { group.iter().map(Window::bytes).sum::<usize>() + numbers }
}

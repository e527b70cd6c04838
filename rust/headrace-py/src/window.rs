//! Which records become one Arrow batch.
//!
//! A poll of 500 records takes some of every partition. Importing an Arrow batch takes its consumer about 10 µs, and
//! using a table of many batches takes longer than using one of a few: copying 100 KB takes about as long. So small
//! windows are copied into one Arrow batch, and large ones are exported without a copy.

use std::sync::Arc;

use arrow_array::{BinaryArray, OffsetSizeTrait};

use crate::batch::{Batch, Store};

/// The maximum size of a window that is copied, in bytes.
const SMALL: usize = 128 << 10;
/// The maximum size of all windows that are copied: polls without a limit can have thousands of small ones, and must
/// not take twice their memory. It also keeps the offsets of a column far below 2 GiB.
const ALL_SMALL: usize = 8 << 20;
/// The bytes of a row besides its key, value and headers.
const NUMBERS: usize = 24;

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

    /// The bytes to copy if the window is joined with others.
    fn bytes(&self) -> usize {
        let columns = &self.store.columns;
        let headers = columns.headers.as_ref().map_or(0, |headers| {
            let (first, entries) = span(headers.lists.value_offsets(), self.start, self.len);
            let (_, names) = span(headers.keys.value_offsets(), first, entries);
            names + self.bytes_of(&headers.values, first, entries)
        });
        self.len * NUMBERS
            + headers
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
    let mut left = ALL_SMALL;
    let mut takes_more = false;
    for window in batches.flat_map(Window::of) {
        let size = window.bytes();
        let is_small = size <= SMALL.min(left);
        if is_small {
            left -= size;
        }
        match groups.last_mut() {
            Some(group)
                if takes_more
                    && is_small
                    && (joining == Joining::OfAll || group[0].has_names_of(&window)) =>
            {
                group.push(window);
            }
            _ => {
                groups.push(vec![window]);
                takes_more = is_small;
            }
        }
    }
    groups
}

/// About how many bytes the columns of a group take, without those that are not copied.
pub fn bytes_written(group: &[Window]) -> usize {
    match group {
        [only] => only.len * NUMBERS,
        several => several.iter().map(Window::bytes).sum(),
    }
}

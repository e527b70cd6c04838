//! Records as columns, in Arrow's memory layout.
//!
//! Lengths and row counts fit into an `i32`, because [`crate::decode`] limits the total size.

/// Columns of more than this many bytes round their capacity up in larger steps.
const LARGE: usize = 1 << 20;

/// A bitmap of the rows that are not null, least significant bit first. Bits after the last row are set.
///
/// Adding a valid row is free: the bitmap ends at the last null until [`Validity::into_bits`] extends it.
#[derive(Debug, Default, Clone)]
pub struct Validity {
    bits: Vec<u8>,
    nulls: usize,
}

impl Validity {
    /// The number of rows that are null.
    pub fn null_count(&self) -> usize {
        self.nulls
    }

    /// Whether `row` is not null.
    #[inline]
    pub fn is_valid(&self, row: usize) -> bool {
        self.bits.get(row / 8).is_none_or(|byte| byte & (1 << (row % 8)) != 0)
    }

    /// The bitmap of the first `rows` rows, or None if none of them is null.
    pub fn into_bits(mut self, rows: usize) -> Option<Vec<u8>> {
        if self.nulls == 0 {
            return None;
        }
        self.bits.resize(rows.div_ceil(8), 0xff);
        Some(self.bits)
    }

    /// Marks the rows `row..end` as null. The range must not be empty.
    pub(crate) fn push_nulls(&mut self, row: usize, end: usize) {
        self.bits.resize(row.div_ceil(8), 0xff);
        // First the upper bits of the last existing byte, then whole bytes, then the lower bits of the new last byte.
        if !row.is_multiple_of(8) {
            self.bits[row / 8] &= !(0xff << (row % 8));
        }
        self.bits.resize(end.div_ceil(8), 0);
        if !end.is_multiple_of(8) {
            self.bits[end / 8] |= 0xff << (end % 8);
        }
        self.nulls += end - row;
    }

    fn truncate(&mut self, rows: usize) {
        self.bits.truncate(rows.div_ceil(8));
        if !rows.is_multiple_of(8)
            && let Some(last) = self.bits.get_mut(rows / 8)
        {
            *last |= 0xff << (rows % 8);
        }
        self.nulls = self.bits.iter().map(|byte| byte.count_zeros() as usize).sum();
    }
}

/// Strings: row `i` is `data[offsets[i]..offsets[i + 1]]`, valid UTF-8.
#[derive(Debug, Clone)]
pub struct StringColumn {
    /// One more than there are rows.
    pub offsets: Vec<i32>,
    /// All rows, one after the other.
    pub data: Vec<u8>,
}

impl StringColumn {
    fn new() -> Self {
        Self { offsets: vec![0], data: Vec::new() }
    }

    fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Adds a row. Invalid UTF-8 is replaced by U+FFFD. Returns false if the column is full.
    fn push_lossy(&mut self, bytes: &[u8]) -> bool {
        self.data.extend_from_slice(String::from_utf8_lossy(bytes).as_bytes());
        // A replacement can be three times as long as the original bytes, so the limit on the input is not enough.
        let Ok(end) = i32::try_from(self.data.len()) else {
            return false;
        };
        self.offsets.push(end);
        true
    }

    fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        self.data.truncate(self.offsets[rows] as usize);
    }
}

/// Byte strings or nulls: row `i` is `data[offsets[i]..offsets[i + 1]]`.
#[derive(Debug, Clone)]
pub struct BinaryColumn {
    /// One more than there are rows.
    pub offsets: Vec<i32>,
    /// All rows, one after the other.
    pub data: Vec<u8>,
    /// Which rows are not null.
    pub validity: Validity,
}

impl BinaryColumn {
    fn new() -> Self {
        Self { offsets: vec![0], data: Vec::new(), validity: Validity::default() }
    }

    fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The bytes of `row`, or None if it is null.
    pub fn get(&self, row: usize) -> Option<&[u8]> {
        self.validity.is_valid(row).then(|| {
            let (start, end) = (self.offsets[row] as usize, self.offsets[row + 1] as usize);
            &self.data[start..end]
        })
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
        self.offsets.push(self.data.len() as i32);
    }

    /// Adds nulls until there are `rows` rows.
    #[inline(always)]
    pub(crate) fn push_nulls_to(&mut self, rows: usize) {
        if self.rows() < rows {
            self.validity.push_nulls(self.rows(), rows);
            self.offsets.resize(rows + 1, self.data.len() as i32);
        }
    }

    pub(crate) fn push_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.push(bytes),
            None => self.push_nulls_to(self.rows() + 1),
        }
    }

    fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        self.data.truncate(self.offsets[rows] as usize);
        self.validity.truncate(rows);
    }

    fn bytes(&self) -> usize {
        self.offsets.len() * 4 + self.data.len() + self.validity.bits.len()
    }
}

/// The headers of all records: those of row `i` are the entries `offsets[i]..offsets[i + 1]`.
#[derive(Debug, Clone)]
pub struct HeaderColumns {
    /// One more than there are rows.
    pub offsets: Vec<i32>,
    /// The names, one per entry.
    pub keys: StringColumn,
    /// The values, one per entry.
    pub values: BinaryColumn,
}

impl HeaderColumns {
    /// Creates the column for `rows` existing rows, which have no headers.
    pub(crate) fn new(rows: usize) -> Self {
        Self { offsets: vec![0; rows + 1], keys: StringColumn::new(), values: BinaryColumn::new() }
    }

    /// Adds an entry to the current row. Returns false if the column is full.
    pub(crate) fn push(&mut self, key: &[u8], value: Option<&[u8]>) -> bool {
        self.values.push_or_null(value);
        self.keys.push_lossy(key)
    }

    pub(crate) fn end_row(&mut self) {
        self.offsets.push(self.keys.rows() as i32);
    }

    fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        let entries = self.offsets[rows] as usize;
        self.keys.truncate(entries);
        self.values.truncate(entries);
    }

    fn bytes(&self) -> usize {
        (self.offsets.len() + self.keys.offsets.len()) * 4 + self.keys.data.len() + self.values.bytes()
    }
}

/// Consecutive rows from batches with the same properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The row after the last one.
    pub end: usize,
    /// The partition leader epoch of the batches, −1 if unknown.
    pub leader_epoch: i32,
    /// Whether the broker set the timestamps (LogAppendTime) instead of the producer (CreateTime).
    pub log_append_time: bool,
}

/// The records of one partition as columns.
#[derive(Debug, Clone)]
pub struct Columns {
    /// Strictly ascending.
    pub offsets: Vec<i64>,
    /// Milliseconds since 1970, −1 where there is none.
    pub timestamps: Vec<i64>,
    /// The keys.
    pub keys: BinaryColumn,
    /// The values.
    pub values: BinaryColumn,
    /// None while no record has a header.
    pub headers: Option<HeaderColumns>,
    /// Ascending by `end`. The last run ends with the last row.
    pub runs: Vec<Run>,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            offsets: Vec::new(),
            timestamps: Vec::new(),
            keys: BinaryColumn::new(),
            values: BinaryColumn::new(),
            headers: None,
            runs: Vec::new(),
        }
    }
}

/// A single record.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Its offset.
    pub offset: i64,
    /// Milliseconds since 1970, −1 where there is none.
    pub timestamp: i64,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value.
    pub value: Option<&'a [u8]>,
    /// Names and values, in order.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
    /// The leader epoch of its batch, −1 if unknown.
    pub leader_epoch: i32,
    /// Whether the broker set the timestamp (LogAppendTime).
    pub log_append_time: bool,
}

impl Columns {
    /// Creates columns with one record.
    ///
    /// Returns None if a field exceeds the maximum size of a column.
    pub fn of_one(row: &Row<'_>) -> Option<Self> {
        let fits = |bytes: Option<&[u8]>| bytes.is_none_or(|bytes| i32::try_from(bytes.len()).is_ok());
        let header_bytes: usize = row.headers.iter().filter_map(|(_, value)| value.map(<[u8]>::len)).sum();
        if !fits(row.key) || !fits(row.value) || i32::try_from(header_bytes).is_err() {
            return None;
        }
        let mut columns = Self::default();
        if !row.headers.is_empty() {
            let headers = columns.headers.insert(HeaderColumns::new(0));
            for (key, value) in row.headers {
                if !headers.push(key.as_bytes(), *value) {
                    return None;
                }
            }
            headers.end_row();
        }
        columns.offsets.push(row.offset);
        columns.timestamps.push(row.timestamp);
        columns.keys.push_or_null(row.key);
        columns.values.push_or_null(row.value);
        columns.end_run(row.leader_epoch, row.log_append_time);
        Some(columns)
    }

    /// The number of records.
    pub fn rows(&self) -> usize {
        self.offsets.len()
    }

    /// The size of the records in memory, without unused capacity.
    pub fn bytes(&self) -> usize {
        self.rows() * 16
            + self.keys.bytes()
            + self.values.bytes()
            + self.headers.as_ref().map_or(0, HeaderColumns::bytes)
            + self.runs.len() * size_of::<Run>()
    }

    /// Resizes the offsets, the timestamps and the end offsets of the values to `rows` rows.
    pub(crate) fn resize_numbers(&mut self, rows: usize) {
        self.offsets.resize(rows, 0);
        self.timestamps.resize(rows, 0);
        self.values.offsets.resize(rows + 1, 0);
    }

    /// Reserves capacity for a batch of `rows` records with at most `bytes` bytes.
    pub(crate) fn reserve(&mut self, rows: usize, bytes: usize) {
        self.offsets.reserve(rows);
        self.timestamps.reserve(rows);
        self.keys.offsets.reserve(rows);
        self.values.offsets.reserve(rows);
        self.values.data.reserve(bytes);
    }

    /// Reserves capacity for `times` as much data as there is, up to `limit` bytes per column: the next batches are
    /// probably like the previous ones. A wrong estimate costs address space, not memory.
    ///
    /// Capacities are rounded to a few sizes, so that new columns fit into the memory of dropped ones. Without this,
    /// fragmentation costs a consumer of compressed topics 20 to 30 MB.
    pub(crate) fn reserve_more(&mut self, times: f64, limit: usize) {
        fn extend<T>(column: &mut Vec<T>, times: f64, limit: usize) {
            let wanted = (column.len() as f64 * (1.0 + times * 1.05)) as usize * size_of::<T>();
            let step = if wanted > LARGE { LARGE / 2 } else { LARGE / 16 };
            let room = wanted.min(limit).next_multiple_of(step) / size_of::<T>();
            column.reserve_exact(room.saturating_sub(column.len()));
        }
        extend(&mut self.offsets, times, limit);
        extend(&mut self.timestamps, times, limit);
        for column in [&mut self.keys, &mut self.values] {
            extend(&mut column.offsets, times, limit);
            extend(&mut column.data, times, limit);
        }
        if let Some(headers) = &mut self.headers {
            extend(&mut headers.offsets, times, limit);
            extend(&mut headers.keys.offsets, times, limit);
            extend(&mut headers.keys.data, times, limit);
            extend(&mut headers.values.offsets, times, limit);
            extend(&mut headers.values.data, times, limit);
        }
    }

    /// Releases unused capacity if it is much larger than the data.
    pub(crate) fn shrink(&mut self) {
        fn trim<T>(column: &mut Vec<T>) {
            if column.capacity() > 2 * column.len() + 4096 {
                column.shrink_to_fit();
            }
        }
        trim(&mut self.offsets);
        trim(&mut self.timestamps);
        for column in [&mut self.keys, &mut self.values] {
            trim(&mut column.offsets);
            trim(&mut column.data);
        }
        if let Some(headers) = &mut self.headers {
            trim(&mut headers.offsets);
            trim(&mut headers.keys.offsets);
            trim(&mut headers.keys.data);
            trim(&mut headers.values.offsets);
            trim(&mut headers.values.data);
        }
    }

    /// Ends a run: sets the properties of the rows since the last run.
    pub(crate) fn end_run(&mut self, leader_epoch: i32, log_append_time: bool) {
        let end = self.rows();
        match self.runs.last_mut() {
            Some(last) if last.end == end => {}
            Some(last) if last.leader_epoch == leader_epoch && last.log_append_time == log_append_time => {
                last.end = end;
            }
            None if end == 0 => {}
            _ => self.runs.push(Run { end, leader_epoch, log_append_time }),
        }
    }

    /// Truncates the columns to `rows` rows. This removes the rows of an invalid batch, before its run has ended.
    pub(crate) fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows);
        self.timestamps.truncate(rows);
        self.keys.truncate(rows);
        self.values.truncate(rows);
        if let Some(headers) = &mut self.headers {
            headers.truncate(rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_exists_only_with_nulls() {
        let mut column = BinaryColumn::new();
        (0..20).for_each(|_| column.push(b"x"));
        assert_eq!(column.validity.into_bits(20), None);
    }

    #[test]
    fn a_bitmap_has_the_nulls_wherever_they_are() {
        for null in 0..20 {
            let mut column = BinaryColumn::new();
            (0..20).for_each(|row| column.push_or_null((row != null).then_some(&b"x"[..])));
            assert_eq!(column.validity.null_count(), 1);
            for row in 0..20 {
                assert_eq!(column.get(row).is_some(), row != null);
            }
            let bits = column.validity.into_bits(20).unwrap();
            assert_eq!(bits.len(), 3);
            assert_eq!(bits[null / 8], !(1 << (null % 8)));
        }
    }

    #[test]
    fn nulls_in_a_row_are_those_one_by_one() {
        for first in 0..20 {
            for end in first + 1..40 {
                let mut together = BinaryColumn::new();
                let mut one_by_one = BinaryColumn::new();
                (0..first).for_each(|_| together.push(b"x"));
                together.push_nulls_to(end);
                (end..45).for_each(|_| together.push(b"y"));
                (0..45).for_each(|row| {
                    one_by_one.push_or_null(match row {
                        row if row < first => Some(b"x"),
                        row if row < end => None,
                        _ => Some(b"y"),
                    });
                });
                assert_eq!(together.offsets, one_by_one.offsets);
                assert_eq!(together.validity.null_count(), end - first);
                assert_eq!(together.validity.into_bits(45), one_by_one.validity.into_bits(45));
            }
        }
    }

    #[test]
    fn rows_cut_off_leave_nothing_behind() {
        for rows in 0..20 {
            let mut column = BinaryColumn::new();
            (0..20).for_each(|row| column.push_or_null((row % 3 == 0).then_some(&b"abc"[..])));
            column.truncate(rows);
            assert_eq!(column.validity.null_count(), (0..rows).filter(|row| row % 3 != 0).count());
            (rows..20).for_each(|_| column.push(b"new"));
            for row in 0..20 {
                let expected =
                    if row >= rows { Some(&b"new"[..]) } else { (row % 3 == 0).then_some(&b"abc"[..]) };
                assert_eq!(column.get(row), expected);
            }
        }
    }
}

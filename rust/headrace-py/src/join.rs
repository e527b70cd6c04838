//! The columns of an Arrow batch.
//!
//! Of a single window, offsets, keys, values and headers are exported without a copy. Those of several windows are
//! copied. The columns with one value for a whole window are created in both cases.

use std::sync::{Arc, LazyLock};

use arrow_array::builder::StringBuilder;
use arrow_array::types::ByteArrayType;
use arrow_array::{
    Array, ArrayRef, BinaryArray, GenericByteArray, Int32Array, Int64Array, ListArray, StructArray,
    TimestampMicrosecondArray, new_null_array,
};
use arrow_buffer::{Buffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;

use crate::batch::Store;
use crate::columns::{Columns, Headers, header_fields, header_item};
use crate::repeated::repeated;
use crate::window::Window;

/// The columns of the windows, of which there is at least one, in the order of the schema.
pub fn columns(windows: &[Window], lane: bool) -> Vec<ArrayRef> {
    let rows = windows.iter().map(|window| window.len).sum();
    let mut arrays: Vec<ArrayRef> = vec![
        Arc::new(bytes(windows, rows, |columns| &columns.keys)),
        Arc::new(bytes(windows, rows, |columns| &columns.values)),
        texts(windows, rows, |store| Some(&store.topic)),
        Arc::new(partitions(windows, rows)),
        Arc::new(Int64Array::new(offsets(windows, rows), None)),
        Arc::new(timestamps(windows, rows)),
        Arc::new(timestamp_types(windows, rows)),
        headers(windows, rows),
    ];
    if lane {
        arrays.push(texts(windows, rows, |store| store.lane.as_deref()));
    }
    arrays
}

fn bytes(windows: &[Window], rows: usize, column: impl Fn(&Columns) -> &BinaryArray) -> BinaryArray {
    let parts: Vec<_> =
        windows.iter().map(|window| (column(&window.store.columns), window.start, window.len)).collect();
    joined(&parts, rows)
}

/// The rows of an array: the first one, and how many.
type Part<'a, T> = (&'a GenericByteArray<T>, usize, usize);

/// The parts one after the other. A single one is not copied.
fn joined<T: ByteArrayType<Offset = i32>>(parts: &[Part<'_, T>], rows: usize) -> GenericByteArray<T> {
    if let &[(only, start, len)] = parts {
        return only.slice(start, len);
    }
    let span = |(array, start, len): &Part<'_, T>| {
        let offsets = array.value_offsets();
        offsets[*start] as usize..offsets[start + len] as usize
    };
    let mut offsets = Vec::with_capacity(rows + 1);
    let mut data = Vec::with_capacity(parts.iter().map(|part| span(part).len()).sum());
    let mut nulls = NullBufferBuilder::new(rows);
    offsets.push(0);
    for part in parts {
        let (array, start, len) = *part;
        let span = span(part);
        // The windows are far smaller than 2 GiB together.
        let moved = data.len() as i32 - span.start as i32;
        offsets.extend(array.value_offsets()[start + 1..=start + len].iter().map(|end| end + moved));
        data.extend_from_slice(&array.value_data()[span]);
        match array.nulls() {
            Some(all) => nulls.append_buffer(&all.slice(start, len)),
            None => nulls.append_n_non_nulls(len),
        }
    }
    GenericByteArray::new(OffsetBuffer::new(offsets.into()), Buffer::from_vec(data), nulls.finish())
}

/// A string of each store.
fn texts<'a>(windows: &'a [Window], rows: usize, text: impl Fn(&'a Store) -> Option<&'a str>) -> ArrayRef {
    let first = text(&windows[0].store);
    if windows.iter().all(|window| text(&window.store) == first) {
        return match first {
            Some(text) => Arc::new(repeated(text, rows)),
            None => new_null_array(&DataType::Utf8, rows),
        };
    }
    let mut builder = StringBuilder::with_capacity(rows, 0);
    for window in windows {
        match text(&window.store) {
            Some(text) => (0..window.len).for_each(|_| builder.append_value(text)),
            None => builder.append_nulls(window.len),
        }
    }
    Arc::new(builder.finish())
}

fn partitions(windows: &[Window], rows: usize) -> Int32Array {
    let mut numbers = Vec::with_capacity(rows);
    for window in windows {
        numbers.resize(numbers.len() + window.len, window.store.partition);
    }
    numbers.into()
}

fn offsets(windows: &[Window], rows: usize) -> ScalarBuffer<i64> {
    if let [only] = windows {
        return only.store.columns.offsets.slice(only.start, only.len);
    }
    let mut offsets = Vec::with_capacity(rows);
    for Window { store, start, len } in windows {
        offsets.extend_from_slice(&store.columns.offsets[*start..start + len]);
    }
    offsets.into()
}

/// Converts milliseconds to microseconds. Values out of range (some producers write nanoseconds) become the largest
/// or smallest timestamp. −1, Kafka's "no timestamp", is converted like any other value, as in Spark's Kafka source.
fn timestamps(windows: &[Window], rows: usize) -> TimestampMicrosecondArray {
    let mut microseconds: Vec<i64> = Vec::with_capacity(rows);
    for Window { store, start, len } in windows {
        let milliseconds = &store.columns.timestamps[*start..start + len];
        microseconds.extend(milliseconds.iter().map(|time| time.saturating_mul(1000)));
    }
    TimestampMicrosecondArray::new(microseconds.into(), None).with_timezone("UTC")
}

fn timestamp_types(windows: &[Window], rows: usize) -> Int32Array {
    let mut types: Vec<i32> = Vec::with_capacity(rows);
    for Window { store, start, len } in windows {
        let runs = &store.columns.runs;
        let before = types.len();
        for run in &runs[runs.partition_point(|run| run.end <= *start)..] {
            let rows = run.end.min(start + len) - start;
            types.resize(before + rows, run.log_append_time.into());
            if rows == *len {
                break;
            }
        }
    }
    types.into()
}

fn headers(windows: &[Window], rows: usize) -> ArrayRef {
    let parts = windows.iter().map(|window| window.store.columns.headers.as_ref());
    if parts.clone().all(|part| part.is_none()) {
        return Arc::new(no_headers(rows));
    }
    let lists = windows.iter().zip(parts).map(|(window, headers)| (window.start, window.len, headers));
    match lists.clone().next() {
        Some((start, len, Some(only))) if windows.len() == 1 => Arc::new(only.lists.slice(start, len)),
        _ => Arc::new(joined_headers(lists, rows)),
    }
}

/// The column of records without headers. Creating it took 6 % of `to_arrow()` of a small poll, so small ones are
/// slices of one column.
fn no_headers(rows: usize) -> ListArray {
    static CACHED: LazyLock<ListArray> = LazyLock::new(|| ListArray::new_null(header_item(), 1024));
    if rows <= CACHED.len() { CACHED.slice(0, rows) } else { ListArray::new_null(header_item(), rows) }
}

fn joined_headers<'a>(
    parts: impl Iterator<Item = (usize, usize, Option<&'a Headers>)>,
    rows: usize,
) -> ListArray {
    let mut offsets: Vec<i32> = Vec::with_capacity(rows + 1);
    let mut nulls = NullBufferBuilder::new(rows);
    let mut keys = Vec::new();
    let mut values = Vec::new();
    let mut entries = 0;
    offsets.push(0);
    for (start, len, headers) in parts {
        let Some(headers) = headers else {
            offsets.resize(offsets.len() + len, entries);
            nulls.append_n_nulls(len);
            continue;
        };
        let lists = headers.lists.slice(start, len);
        let (first, end) = (lists.value_offsets()[0], lists.value_offsets()[len]);
        offsets.extend(lists.value_offsets()[1..].iter().map(|end| end - first + entries));
        entries += end - first;
        keys.push((&headers.keys, first as usize, (end - first) as usize));
        values.push((&headers.values, first as usize, (end - first) as usize));
        match lists.nulls() {
            Some(lists) => nulls.append_buffer(lists),
            None => nulls.append_n_non_nulls(len),
        }
    }
    let keys: ArrayRef = Arc::new(joined(&keys, entries as usize));
    let values: ArrayRef = Arc::new(joined(&values, entries as usize));
    let entries = StructArray::new(header_fields(), vec![keys, values], None);
    ListArray::new(header_item(), OffsetBuffer::new(offsets.into()), Arc::new(entries), nulls.finish())
}

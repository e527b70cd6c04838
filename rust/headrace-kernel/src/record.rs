//! Decodes the decompressed records of a batch.
//!
//! The fields of a record are: length, attributes (unused), timestamp delta, offset delta, key, value, headers. Each
//! length and count is checked against the remaining bytes before memory is allocated for it.

use std::iter;

use crate::columns::{Columns, HeaderColumns};
use crate::header::BatchView;
use crate::varint::{take_i32, take_i64};

/// One byte each for length, attributes, both deltas, both lengths and the number of headers.
const SMALLEST_RECORD: usize = 7;
/// A header with an empty name and no value.
const SMALLEST_HEADER: usize = 2;

/// The message of [`crate::Cause::Malformed`]. A static string needs no drop code in the loop.
pub type Flaw = &'static str;

const CUT_OFF: Flaw = "a record ends before its fields do";

/// Appends the records of `batch` whose offset is at least `from` to `columns`.
///
/// After an error, `columns` may contain some of them: the caller truncates it.
#[inline(never)] // As a separate function, it keeps its variables in registers.
pub fn append(columns: &mut Columns, batch: &BatchView<'_>, mut body: &[u8], from: i64) -> Result<(), Flaw> {
    if batch.count > body.len() / SMALLEST_RECORD {
        return Err("there are fewer bytes than the records need");
    }
    let first_row = columns.rows();
    columns.reserve(batch.count, body.len() - batch.count * SMALLEST_RECORD);
    // Resize the numeric columns once for the announced record count: this is cheaper than pushing each row.
    columns.resize_numbers(first_row + batch.count);
    let Columns { offsets, timestamps, keys, values, headers, .. } = columns;
    let mut numbers = iter::zip(
        iter::zip(&mut offsets[first_row..], &mut timestamps[first_row..]),
        &mut values.offsets[first_row + 1..],
    );
    let mut row = first_row;
    let lowest_delta = from.saturating_sub(batch.base_offset);
    let log_append_time = batch.is_log_append_time();
    let mut previous_delta = -1;
    for _ in 0..batch.count {
        let length = take_i32(&mut body).ok_or(CUT_OFF)?;
        let split = usize::try_from(length).ok().and_then(|length| body.split_at_checked(length));
        let Some((mut record, rest)) = split else {
            return Err("a record is longer than its batch");
        };
        body = rest;

        let (_attributes, fields) = record.split_first().ok_or(CUT_OFF)?;
        record = fields;
        let timestamp_delta = take_i64(&mut record).ok_or(CUT_OFF)?;
        let offset_delta = take_i32(&mut record).ok_or(CUT_OFF)?;
        // Offsets that do not ascend, or exceed the last offset of the batch, would repeat or skip records.
        if offset_delta <= previous_delta || offset_delta > batch.last_offset_delta {
            return Err("the offsets of the records do not ascend within the batch");
        }
        previous_delta = offset_delta;
        if i64::from(offset_delta) < lowest_delta {
            continue;
        }
        let key = take_bytes(&mut record)?;
        let value = take_bytes(&mut record)?;
        take_headers(headers, row, &mut record)?;
        if !record.is_empty() {
            return Err("a record has bytes after its last field");
        }
        let Some(((offset, timestamp), end)) = numbers.next() else { break };
        *offset = batch.base_offset + i64::from(offset_delta);
        *timestamp = if log_append_time {
            batch.max_timestamp
        } else {
            batch.base_timestamp.wrapping_add(timestamp_delta)
        };
        // Usually all keys are null or only a few: add nulls in bulk, before the next key and at the end.
        if let Some(key) = key {
            keys.push_nulls_to(row);
            keys.push(key);
        }
        match value {
            Some(value) => values.data.extend_from_slice(value),
            None => values.validity.push_nulls(row, row + 1),
        }
        *end = values.data.len() as i32;
        row += 1;
    }
    if !body.is_empty() {
        return Err("the batch has bytes after its last record");
    }
    keys.push_nulls_to(row);
    columns.resize_numbers(row);
    columns.end_run(batch.leader_epoch, log_append_time);
    Ok(())
}

/// Reads the headers of the record that becomes the next row.
#[inline(always)]
fn take_headers(headers: &mut Option<HeaderColumns>, row: usize, record: &mut &[u8]) -> Result<(), Flaw> {
    let count = take_i32(record).ok_or(CUT_OFF)?;
    if count == 0 {
        if let Some(headers) = headers {
            headers.end_row();
        }
        return Ok(());
    }
    // The first record with headers creates the column, with a row for each record before it.
    append_headers(headers.get_or_insert_with(|| HeaderColumns::new(row)), record, count)
}

fn append_headers(headers: &mut HeaderColumns, record: &mut &[u8], count: i32) -> Result<(), Flaw> {
    match usize::try_from(count) {
        Ok(count) if count <= record.len() / SMALLEST_HEADER => {}
        _ => return Err("there are fewer bytes than the headers need"),
    }
    for _ in 0..count {
        let Some(key) = take_bytes(record)? else {
            return Err("a header has no name");
        };
        let value = take_bytes(record)?;
        if !headers.push(key, value) {
            return Err("the names of the headers take more than 2 GiB");
        }
    }
    headers.end_row();
    Ok(())
}

/// Reads a length and that many bytes. Returns None if the length is −1.
#[inline(always)]
fn take_bytes<'a>(record: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Flaw> {
    let length = take_i32(record).ok_or(CUT_OFF)?;
    if length < 0 {
        return if length == -1 { Ok(None) } else { Err("a length is negative") };
    }
    let Some((bytes, rest)) = record.split_at_checked(length.unsigned_abs() as usize) else {
        return Err("a key, value or header is longer than its record");
    };
    *record = rest;
    Ok(Some(bytes))
}

/// Whether the first record of a control batch is an ABORT marker.
pub fn is_abort_marker(mut body: &[u8]) -> Result<bool, Flaw> {
    const ABORT: [u8; 2] = [0, 0];
    const BAD: Flaw = "a control record has no type";
    let _length = take_i32(&mut body).ok_or(BAD)?;
    let (_attributes, mut body) = body.split_first().ok_or(BAD)?;
    let _timestamp_delta = take_i64(&mut body).ok_or(BAD)?;
    let _offset_delta = take_i32(&mut body).ok_or(BAD)?;
    let key = take_bytes(&mut body)?.ok_or(BAD)?;
    // A version, then the type. Consumers ignore unknown types.
    key.get(2..4).map(|kind| kind == ABORT).ok_or(BAD)
}

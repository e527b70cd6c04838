//! The records inside a batch, decompressed.
//!
//! A record is: length, attributes (unused), timestamp delta, offset delta, key, value, headers. Every length and
//! count is checked against the bytes that are there before anything is allocated for it.

use crate::columns::Columns;
use crate::error::Cause;
use crate::header::BatchView;
use crate::varint::{take_i32, take_i64};

/// One byte each for length, attributes, both deltas, both lengths and the number of headers.
const SMALLEST_RECORD: usize = 7;
/// A header with an empty name and no value.
const SMALLEST_HEADER: usize = 2;

const CUT_OFF: Cause = Cause::Malformed("a record ends before its fields do");

/// Appends the records of `batch` whose offset is at least `from` to `columns`.
///
/// After an error `columns` may have some of them: the caller cuts them off.
pub fn append(columns: &mut Columns, batch: &BatchView<'_>, mut body: &[u8], from: i64) -> Result<(), Cause> {
    if batch.count > body.len() / SMALLEST_RECORD {
        return Err(Cause::Malformed("there are fewer bytes than the records need"));
    }
    columns.reserve(batch.count, body.len() - batch.count * SMALLEST_RECORD);
    let lowest_delta = from.saturating_sub(batch.base_offset);
    let log_append_time = batch.is_log_append_time();
    let mut previous_delta = -1;
    for _ in 0..batch.count {
        let length = take_i32(&mut body).ok_or(CUT_OFF)?;
        let split = usize::try_from(length).ok().and_then(|length| body.split_at_checked(length));
        let Some((mut record, rest)) = split else {
            return Err(Cause::Malformed("a record is longer than its batch"));
        };
        body = rest;

        let (_attributes, fields) = record.split_first().ok_or(CUT_OFF)?;
        record = fields;
        let timestamp_delta = take_i64(&mut record).ok_or(CUT_OFF)?;
        let offset_delta = take_i32(&mut record).ok_or(CUT_OFF)?;
        // Offsets that go back or past the end of the batch would repeat or skip records.
        if offset_delta <= previous_delta || offset_delta > batch.last_offset_delta {
            return Err(Cause::Malformed("the offsets of the records do not ascend within the batch"));
        }
        previous_delta = offset_delta;
        if i64::from(offset_delta) < lowest_delta {
            continue;
        }
        let key = take_bytes(&mut record)?;
        let value = take_bytes(&mut record)?;
        take_headers(columns, &mut record)?;
        if !record.is_empty() {
            return Err(Cause::Malformed("a record has bytes after its last field"));
        }
        columns.offsets.push(batch.base_offset + i64::from(offset_delta));
        columns.timestamps.push(if log_append_time {
            batch.max_timestamp
        } else {
            batch.base_timestamp.wrapping_add(timestamp_delta)
        });
        columns.keys.push(key);
        columns.values.push(value);
    }
    if !body.is_empty() {
        return Err(Cause::Malformed("the batch has bytes after its last record"));
    }
    columns.end_run(batch.leader_epoch, log_append_time);
    Ok(())
}

/// Takes the headers of the record that becomes the next row.
#[inline(always)]
fn take_headers(columns: &mut Columns, record: &mut &[u8]) -> Result<(), Cause> {
    let count = take_i32(record).ok_or(CUT_OFF)?;
    if count == 0 {
        if let Some(headers) = &mut columns.headers {
            headers.end_row();
        }
        return Ok(());
    }
    append_headers(columns, record, count)
}

fn append_headers(columns: &mut Columns, record: &mut &[u8], count: i32) -> Result<(), Cause> {
    match usize::try_from(count) {
        Ok(count) if count <= record.len() / SMALLEST_HEADER => {}
        _ => return Err(Cause::Malformed("there are fewer bytes than the headers need")),
    }
    let rows = columns.rows();
    let headers = columns.headers_mut(rows);
    for _ in 0..count {
        let Some(key) = take_bytes(record)? else {
            return Err(Cause::Malformed("a header has no name"));
        };
        let value = take_bytes(record)?;
        if !headers.push(key, value) {
            return Err(Cause::Malformed("the names of the headers take more than 2 GiB"));
        }
    }
    headers.end_row();
    Ok(())
}

/// Takes a length and that many bytes; None where the length is −1.
#[inline(always)]
fn take_bytes<'a>(record: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Cause> {
    let length = take_i32(record).ok_or(CUT_OFF)?;
    if length < 0 {
        return if length == -1 { Ok(None) } else { Err(Cause::Malformed("a length is negative")) };
    }
    let Some((bytes, rest)) = record.split_at_checked(length.unsigned_abs() as usize) else {
        return Err(Cause::Malformed("a key, value or header is longer than its record"));
    };
    *record = rest;
    Ok(Some(bytes))
}

/// Whether the first record of a control batch ends its producer's transaction as aborted.
pub fn is_abort_marker(mut body: &[u8]) -> Result<bool, Cause> {
    const ABORT: [u8; 2] = [0, 0];
    const BAD: Cause = Cause::Malformed("a control record has no type");
    let _length = take_i32(&mut body).ok_or(BAD)?;
    let (_attributes, mut body) = body.split_first().ok_or(BAD)?;
    let _timestamp_delta = take_i64(&mut body).ok_or(BAD)?;
    let _offset_delta = take_i32(&mut body).ok_or(BAD)?;
    let key = take_bytes(&mut body)?.ok_or(BAD)?;
    // A version, then the type. Newer types are none of a consumer's business.
    key.get(2..4).map(|kind| kind == ABORT).ok_or(BAD)
}

//! The header of a batch (61 bytes), and splitting the bytes of a partition into batches.
//!
//! A batch is complete, or truncated at the end of the data. This module makes all checks that do not need the
//! records, so that [`crate::next_offset`] and [`crate::decode`] agree on where a batch ends.

use crate::codec::Codec;
use crate::error::Cause;

pub const HEADER: usize = 61;
/// The base offset and the length field itself, which the length does not include.
pub const LOG_OVERHEAD: usize = 12;
pub const CHECKSUMMED_FROM: usize = 21;
/// The position of the magic byte, the same in all formats.
const MAGIC_AT: usize = 16;
/// The smallest message of format v0: checksum, magic, attributes, two lengths.
const SMALLEST_LENGTH: i32 = 14;

const TIMESTAMP_TYPE: u16 = 1 << 3;
pub const TRANSACTIONAL: u16 = 1 << 4;
const CONTROL: u16 = 1 << 5;

/// A complete batch: its parsed and checked header, and its records as bytes.
#[derive(Debug, Clone, Copy)]
pub struct BatchView<'a> {
    pub base_offset: i64,
    pub leader_epoch: i32,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub count: usize,
    /// The records, compressed with [`BatchView::codec`].
    pub body: &'a [u8],
    attributes: u16,
    checksum: u32,
    checksummed: &'a [u8],
}

impl<'a> BatchView<'a> {
    pub fn last_offset(&self) -> i64 {
        self.base_offset + i64::from(self.last_offset_delta)
    }

    /// The offset after the batch. It may be larger than the offset of the last record + 1, because compaction may
    /// have removed later records.
    pub fn next_offset(&self) -> i64 {
        self.last_offset() + 1
    }

    pub fn codec(&self) -> Result<Codec, Cause> {
        Codec::from_attributes(self.attributes)
    }

    pub fn is_log_append_time(&self) -> bool {
        self.attributes & TIMESTAMP_TYPE != 0
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// Verifies the checksum in the header.
    pub fn verify(&self) -> Result<(), Cause> {
        let computed = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, self.checksummed) as u32;
        if computed == self.checksum {
            Ok(())
        } else {
            Err(Cause::Checksum { stored: self.checksum, computed })
        }
    }
}

/// The first batch of `data`.
pub enum Front<'a> {
    /// A complete batch, and the bytes after it.
    Whole(BatchView<'a>, &'a [u8]),
    /// No data, or a truncated batch, as at the end of most Fetch responses.
    CutOff,
}

/// Parses the first batch of `data`. An error contains the base offset of the batch, if it is known.
pub fn front(data: &[u8]) -> Result<Front<'_>, (Option<i64>, Cause)> {
    let Some((overhead, _)) = data.split_first_chunk::<LOG_OVERHEAD>() else {
        return Ok(Front::CutOff);
    };
    let length = i32::from_be_bytes(field(overhead, 8));
    if length < SMALLEST_LENGTH {
        return Err((None, Cause::Length(length)));
    }
    let base_offset = i64::from_be_bytes(field(overhead, 0));
    let told = (base_offset >= 0).then_some(base_offset);
    match data.get(MAGIC_AT).map(|&magic| magic.cast_signed()) {
        None => return Ok(Front::CutOff),
        Some(2) => {}
        Some(old @ 0..=1) => return Err((told, Cause::OldFormat(old))),
        Some(unknown) => return Err((told, Cause::UnknownFormat(unknown))),
    }
    let size = LOG_OVERHEAD + length.unsigned_abs() as usize;
    if size < HEADER {
        return Err((told, Cause::Length(length)));
    }
    let Some((batch, rest)) = data.split_at_checked(size) else {
        return Ok(Front::CutOff);
    };
    match read(batch) {
        Ok(view) => Ok(Front::Whole(view, rest)),
        Err(cause) => Err((told, cause)),
    }
}

/// Parses the header of `batch`, which must be complete.
fn read(batch: &[u8]) -> Result<BatchView<'_>, Cause> {
    let Some((header, body)) = batch.split_first_chunk::<HEADER>() else {
        return Err(Cause::Malformed("the batch is shorter than its header"));
    };
    let base_offset = i64::from_be_bytes(field(header, 0));
    let last_offset_delta = i32::from_be_bytes(field(header, 23));
    let count = i32::from_be_bytes(field(header, 57));
    // The offset after the batch must not exceed i64::MAX.
    if base_offset < 0 || base_offset > i64::MAX - i64::from(i32::MAX) - 1 {
        return Err(Cause::Malformed("the base offset is out of range"));
    }
    // A batch that does not advance the position would be fetched forever.
    if last_offset_delta < 0 {
        return Err(Cause::Malformed("the last offset is below the base offset"));
    }
    let Ok(count) = usize::try_from(count) else {
        return Err(Cause::Malformed("the record count is negative"));
    };
    if count > last_offset_delta.unsigned_abs() as usize + 1 {
        return Err(Cause::Malformed("there are more records than offsets"));
    }
    Ok(BatchView {
        base_offset,
        leader_epoch: i32::from_be_bytes(field(header, 12)),
        last_offset_delta,
        base_timestamp: i64::from_be_bytes(field(header, 27)),
        max_timestamp: i64::from_be_bytes(field(header, 35)),
        producer_id: i64::from_be_bytes(field(header, 43)),
        count,
        body,
        attributes: u16::from_be_bytes(field(header, 21)),
        checksum: u32::from_be_bytes(field(header, 17)),
        checksummed: &batch[CHECKSUMMED_FROM..],
    })
}

/// The `N` bytes at `at`. Both are constants, so this compiles to a single load.
#[inline(always)]
fn field<const SIZE: usize, const N: usize>(header: &[u8; SIZE], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}

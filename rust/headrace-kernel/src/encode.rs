//! Encodes records into a batch (message format v2).
//!
//! The header is written last, by [`BatchBuilder::finish`]. A producer assigns its id, epoch and sequence number when
//! it sends the batch, and after a new epoch it may have to assign others: [`stamp`] writes them into a finished batch.

use crate::compress::Compressor;
use crate::error::EncodeError;
use crate::header::{CHECKSUMMED_FROM, HEADER, LOG_OVERHEAD, TRANSACTIONAL};
use crate::varint::{put_i32, put_i64, size_i32, size_i64};

/// The largest batch in bytes: its length field is an `int`.
const LARGEST: usize = i32::MAX as usize;
const MAGIC: u8 = 2;
/// For fields that the broker fills in, and for batches without a producer id.
const NONE: i64 = -1;

/// The fields of a record. Headers are names (UTF-8) and values.
#[derive(Debug, Clone)]
pub struct Fields<'a, H> {
    /// Milliseconds since 1970.
    pub timestamp: i64,
    /// The key, or None.
    pub key: Option<&'a [u8]>,
    /// The value, or None.
    pub value: Option<&'a [u8]>,
    /// The headers, in order. The iterator is cloned, because the size of a record precedes its bytes.
    pub headers: H,
}

impl<'a, H> Fields<'a, H>
where
    H: Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
{
    /// The size of the key, the value and the headers, with their lengths. It does not depend on the batch.
    #[inline]
    pub(crate) fn content_size(&self) -> usize {
        let mut headers = 0;
        let mut size = 0;
        for (name, value) in self.headers.clone() {
            headers += 1;
            size += size_bytes(Some(name)) + size_bytes(value);
        }
        size_bytes(self.key) + size_bytes(self.value) + size_i64(headers) + size
    }
}

/// Collects the records of one batch.
#[derive(Debug)]
pub struct BatchBuilder {
    /// Room for the header, then the records.
    buffer: Vec<u8>,
    count: i32,
    base_timestamp: i64,
    max_timestamp: i64,
}

/// The producer's fields in the header of a batch. Without idempotence, all are −1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The id that InitProducerId returned.
    pub producer_id: i64,
    /// Its epoch.
    pub epoch: i16,
    /// The sequence number of the first record.
    pub sequence: i32,
    /// Whether the batch belongs to a transaction.
    pub is_transactional: bool,
}

impl Default for Stamp {
    fn default() -> Self {
        Self { producer_id: NONE, epoch: NONE as i16, sequence: NONE as i32, is_transactional: false }
    }
}

impl BatchBuilder {
    /// Creates a builder with room for a batch of `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        let mut buffer = Vec::with_capacity(capacity.max(HEADER));
        buffer.resize(HEADER, 0);
        Self { buffer, count: 0, base_timestamp: 0, max_timestamp: 0 }
    }

    /// The number of records.
    pub fn count(&self) -> usize {
        self.count.unsigned_abs() as usize
    }

    /// The size of the batch in bytes, before compression.
    pub fn size(&self) -> usize {
        self.buffer.len()
    }

    /// The size of the batch in bytes, before compression, if these fields were added.
    pub fn size_with<'a, H>(&self, fields: &Fields<'a, H>) -> usize
    where
        H: Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    {
        self.size_with_body(self.body_size(fields.timestamp, fields.content_size()))
    }

    #[inline]
    fn size_with_body(&self, body: usize) -> usize {
        self.size() + body + size_i64(body as i64)
    }

    #[inline]
    fn timestamp_delta(&self, timestamp: i64) -> i64 {
        // Wrapping, as in Java: the reader adds the base timestamp, which wraps back.
        if self.count == 0 { 0 } else { timestamp.wrapping_sub(self.base_timestamp) }
    }

    /// The size of a record without its length field. `content` is its [`Fields::content_size`].
    #[inline]
    fn body_size(&self, timestamp: i64, content: usize) -> usize {
        1 + size_i64(self.timestamp_delta(timestamp)) + size_i32(self.count) + content
    }

    /// Adds a record. After an error the builder is unchanged.
    pub fn push<'a, H>(&mut self, fields: &Fields<'a, H>) -> Result<(), EncodeError>
    where
        H: Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    {
        self.push_within(usize::MAX, fields, fields.content_size()).map(|_| ())
    }

    /// Adds a record, unless the builder has records and the batch would exceed `limit` bytes. Returns whether it was
    /// added.
    ///
    /// `content` is the record's [`Fields::content_size`]. After an error the builder is unchanged.
    #[inline]
    pub(crate) fn push_within<'a, H>(
        &mut self,
        limit: usize,
        fields: &Fields<'a, H>,
        content: usize,
    ) -> Result<bool, EncodeError>
    where
        H: Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    {
        let body = self.body_size(fields.timestamp, content);
        if self.count > 0 && self.size_with_body(body) > limit {
            return Ok(false);
        }
        let size = self.buffer.len().checked_add(body).filter(|&size| size <= LARGEST - 10);
        if size.is_none() || self.count == i32::MAX {
            return Err(EncodeError::TooLarge);
        }
        let out = &mut self.buffer;
        let delta = if self.count == 0 {
            self.base_timestamp = fields.timestamp;
            self.max_timestamp = fields.timestamp;
            0
        } else {
            self.max_timestamp = self.max_timestamp.max(fields.timestamp);
            fields.timestamp.wrapping_sub(self.base_timestamp)
        };
        out.reserve(body + 10);
        put_i32(out, body as i32);
        out.push(0);
        put_i64(out, delta);
        put_i32(out, self.count);
        put_bytes(out, fields.key);
        put_bytes(out, fields.value);
        put_i32(out, fields.headers.clone().count() as i32);
        for (name, value) in fields.headers.clone() {
            put_bytes(out, Some(name));
            put_bytes(out, value);
        }
        self.count += 1;
        Ok(true)
    }

    /// Compresses the records and writes the header.
    pub fn finish(self, compressor: &mut Compressor, stamp: &Stamp) -> Result<Vec<u8>, EncodeError> {
        if self.count == 0 {
            return Err(EncodeError::Empty);
        }
        let mut batch = compressor.compress(self.buffer, HEADER)?;
        let length = i32::try_from(batch.len() - LOG_OVERHEAD).map_err(|_| EncodeError::TooLarge)?;
        let header = &mut batch[..HEADER];
        header.fill(0);
        header[8..12].copy_from_slice(&length.to_be_bytes());
        header[12..16].copy_from_slice(&(NONE as i32).to_be_bytes()); // the leader epoch: the broker fills it in
        header[16] = MAGIC;
        header[21..23].copy_from_slice(&compressor.attributes().to_be_bytes());
        header[23..27].copy_from_slice(&(self.count - 1).to_be_bytes());
        header[27..35].copy_from_slice(&self.base_timestamp.to_be_bytes());
        header[35..43].copy_from_slice(&self.max_timestamp.to_be_bytes());
        header[57..61].copy_from_slice(&self.count.to_be_bytes());
        write_stamp(&mut batch, stamp);
        Ok(batch)
    }
}

/// Writes a producer's id, epoch and sequence number into a finished batch, and its new checksum.
///
/// Returns an error if `batch` is shorter than a header.
pub fn stamp(batch: &mut [u8], stamp: &Stamp) -> Result<(), EncodeError> {
    if batch.len() < HEADER {
        return Err(EncodeError::Empty);
    }
    write_stamp(batch, stamp);
    Ok(())
}

fn write_stamp(batch: &mut [u8], stamp: &Stamp) {
    let mut attributes = u16::from_be_bytes([batch[21], batch[22]]) & !TRANSACTIONAL;
    if stamp.is_transactional {
        attributes |= TRANSACTIONAL;
    }
    batch[21..23].copy_from_slice(&attributes.to_be_bytes());
    batch[43..51].copy_from_slice(&stamp.producer_id.to_be_bytes());
    batch[51..53].copy_from_slice(&stamp.epoch.to_be_bytes());
    batch[53..57].copy_from_slice(&stamp.sequence.to_be_bytes());
    let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &batch[CHECKSUMMED_FROM..]) as u32;
    batch[17..21].copy_from_slice(&checksum.to_be_bytes());
}

fn size_bytes(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(1, |bytes| size_i64(bytes.len() as i64) + bytes.len())
}

#[inline(always)]
fn put_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => out.push(1), // −1 in zigzag
        Some(bytes) => {
            put_i32(out, bytes.len() as i32); // it fits: the whole record does
            out.extend_from_slice(bytes);
        }
    }
}

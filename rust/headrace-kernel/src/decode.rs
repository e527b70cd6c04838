//! Decodes one partition of a Fetch response into columns.
//!
//! - Batches are decoded in order until the data ends, usually in the middle of a batch.
//! - Records below the position are dropped: the first batch is the one that *contains* the position.
//! - Control batches, and with `read_committed` the batches of aborted transactions, are skipped: they yield no
//!   records, but advance the position.
//! - Decoding stops at an invalid batch and returns the records before it, so that the next fetch starts with the
//!   invalid batch. If the first batch is invalid, decoding returns an error.

use crate::codec::Decompressor;
use crate::columns::Columns;
use crate::error::{Cause, DecodeError};
use crate::header::{BatchView, Front, front};
use crate::record;
use crate::transactions::{AbortedTransaction, Aborting};

/// Allows a batch of Kafka's default size (1 MB) a compression ratio of 256. A larger batch is considered a
/// decompression bomb.
pub const DEFAULT_MAX_BATCH_BYTES: usize = 256 << 20;

/// A column cannot exceed 2 GiB, so decoding stops well below that.
const MAX_TOTAL_BYTES: usize = 1 << 30;

/// The maximum capacity that is reserved for the next batches, in bytes per column.
const MAX_GUESS: usize = 64 << 20;

/// Parameters of decoding: the partition's values in the Fetch request and its response, and limits.
#[derive(Debug, Clone)]
pub struct Fetched<'a> {
    /// The offset in the Fetch request.
    pub position: i64,
    /// The aborted transactions, in any order. Only used with `read_committed`.
    pub aborted: &'a [AbortedTransaction],
    /// Whether to drop the records of aborted transactions.
    pub read_committed: bool,
    /// Whether to verify the checksum of each batch.
    pub check_crcs: bool,
    /// The maximum decompressed size of a batch, in bytes.
    pub max_batch_bytes: usize,
    /// The maximum total size in bytes. Decoding stops before the batch that would exceed it; the next fetch returns
    /// that batch.
    pub max_total_bytes: usize,
}

impl Fetched<'_> {
    /// All records from `position`, with the default limits.
    pub fn at(position: i64) -> Self {
        Self {
            position,
            aborted: &[],
            read_committed: false,
            check_crcs: true,
            max_batch_bytes: DEFAULT_MAX_BATCH_BYTES,
            max_total_bytes: MAX_TOTAL_BYTES,
        }
    }
}

/// Decoded records, and the offset at which to resume.
#[derive(Debug, Default)]
pub struct Decoded {
    /// The records.
    pub columns: Columns,
    /// The offset after the last decoded batch, or the requested position if no batch was decoded.
    pub next_offset: i64,
    /// The partition leader epoch of that batch, −1 if unknown.
    pub leader_epoch: i32,
}

/// Decodes the record bytes of one partition.
///
/// # Errors
///
/// If the first batch that would advance the position is invalid.
pub fn decode(data: &[u8], fetched: &Fetched<'_>) -> Result<Decoded, DecodeError> {
    let mut decoder = Decoder {
        fetched,
        aborting: Aborting::new(if fetched.read_committed { fetched.aborted } else { &[] }),
        decompressor: Decompressor::new(fetched.max_batch_bytes.min(MAX_TOTAL_BYTES)),
        decoded: Decoded { next_offset: fetched.position, leader_epoch: -1, columns: Columns::default() },
    };
    let mut rest = data;
    loop {
        let taken = match front(rest) {
            Ok(Front::CutOff) => break,
            Ok(Front::Whole(batch, following)) => {
                let first = decoder.decoded.columns.rows() == 0;
                let taken = decoder.take(&batch).map_err(|cause| (Some(batch.base_offset), cause));
                if first && !following.is_empty() {
                    let times = following.len() as f64 / (rest.len() - following.len()) as f64;
                    decoder.decoded.columns.reserve_more(times, MAX_GUESS);
                }
                rest = following;
                taken
            }
            Err(bad) => Err(bad),
        };
        match taken {
            Ok(Taken::Yes) => {}
            Ok(Taken::Full) => break,
            Err(_) if decoder.decoded.next_offset > fetched.position => break,
            Err((offset, cause)) => {
                return Err(DecodeError { offset: offset.unwrap_or(fetched.position), cause });
            }
        }
    }
    let mut decoded = decoder.decoded;
    decoded.columns.shrink();
    Ok(decoded)
}

/// The offset after the batches in `data`, from their headers only.
///
/// It is equal to [`Decoded::next_offset`] of the same data, unless the records of a batch are invalid or the data
/// exceeds the maximum total size.
pub fn next_offset(data: &[u8], position: i64) -> i64 {
    let mut rest = data;
    let mut next = position;
    while let Ok(Front::Whole(batch, following)) = front(rest) {
        next = next.max(batch.next_offset());
        rest = following;
    }
    next
}

enum Taken {
    Yes,
    /// The batch exceeds the total size and is left for the next fetch.
    Full,
}

struct Decoder<'a> {
    fetched: &'a Fetched<'a>,
    aborting: Aborting,
    decompressor: Decompressor,
    decoded: Decoded,
}

impl Decoder<'_> {
    /// Adds the records of `batch` and advances the position. An error changes nothing.
    fn take(&mut self, batch: &BatchView<'_>) -> Result<Taken, Cause> {
        if self.fetched.check_crcs {
            batch.verify()?;
        }
        let codec = batch.codec()?;
        let aborted = self.aborting.passes(batch, || self.decompressor.decompress(codec, batch.body))?;
        let wanted = !aborted && !batch.is_control() && batch.next_offset() > self.decoded.next_offset;
        if wanted && matches!(self.append(batch)?, Taken::Full) {
            return Ok(Taken::Full);
        }
        self.decoded.next_offset = self.decoded.next_offset.max(batch.next_offset());
        self.decoded.leader_epoch = batch.leader_epoch;
        Ok(Taken::Yes)
    }

    fn append(&mut self, batch: &BatchView<'_>) -> Result<Taken, Cause> {
        let body = self.decompressor.decompress(batch.codec()?, batch.body)?;
        let columns = &mut self.decoded.columns;
        let rows = columns.rows();
        if columns.bytes() + body.len() > self.fetched.max_total_bytes {
            if rows > 0 {
                return Ok(Taken::Full);
            }
            if body.len() > MAX_TOTAL_BYTES {
                return Err(Cause::TooLarge { limit: MAX_TOTAL_BYTES });
            }
        }
        if let Err(flaw) = record::append(columns, batch, body, self.decoded.next_offset) {
            columns.truncate(rows);
            return Err(Cause::Malformed(flaw));
        }
        Ok(Taken::Yes)
    }
}

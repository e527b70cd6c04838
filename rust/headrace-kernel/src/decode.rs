//! One partition of a Fetch response to columns.
//!
//! - Batches are taken in order until the data ends, usually in the middle of a batch.
//! - Records below the position are cut off: the first batch is the one that *contains* the position.
//! - Control batches, and with `read_committed` the batches of aborted transactions, give no records and move
//!   the position all the same.
//! - A bad batch ends the work. What came before it is returned, so that the next fetch begins with the bad
//!   one; when it comes first, it is the error.

use crate::codec::Decompressor;
use crate::columns::Columns;
use crate::error::{Cause, DecodeError};
use crate::header::{BatchView, Front, front};
use crate::record;
use crate::transactions::{AbortedTransaction, Aborting};

/// A batch of Kafka's default size (1 MB) may be compressed 256 times before it is taken for a bomb.
pub const DEFAULT_MAX_BATCH_BYTES: usize = 256 << 20;

/// No column may pass 2 GiB, so collecting ends well before.
const MAX_TOTAL_BYTES: usize = 1 << 30;

/// How much address space a guess about the batches to come may take, a column.
const MAX_GUESS: usize = 64 << 20;

/// What a Fetch response and its request say of a partition, and the limits.
#[derive(Debug, Clone)]
pub struct Fetched<'a> {
    /// The offset that was asked for.
    pub position: i64,
    /// The aborted transactions, in any order; of use only with `read_committed`.
    pub aborted: &'a [AbortedTransaction],
    /// Whether the records of aborted transactions are left out.
    pub read_committed: bool,
    /// Whether a batch's checksum is compared with its bytes.
    pub check_crcs: bool,
    /// How many bytes one compressed batch may decompress to.
    pub max_batch_bytes: usize,
    /// After how many bytes collecting ends: the batch that would pass it is left for the next fetch.
    pub max_total_bytes: usize,
}

impl Fetched<'_> {
    /// Everything from `position` on, with the default limits.
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

/// Records, and where the log goes on after them.
#[derive(Debug, Default)]
pub struct Decoded {
    /// The records.
    pub columns: Columns,
    /// The position after the last batch that was taken, or the position asked for when there is none.
    pub next_offset: i64,
    /// The partition leader epoch of that batch, −1 where unknown.
    pub leader_epoch: i32,
}

/// Decodes the record bytes of one partition.
///
/// # Errors
///
/// When the first batch that would move the position is bad.
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

/// The position after the batches in `data`, from their headers alone.
///
/// This is [`Decoded::next_offset`] of the same data, unless a batch turns out to be bad inside or
/// there is more than can be collected at once.
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
    /// The batch stays where it is, for the next fetch.
    Full,
}

struct Decoder<'a> {
    fetched: &'a Fetched<'a>,
    aborting: Aborting,
    decompressor: Decompressor,
    decoded: Decoded,
}

impl Decoder<'_> {
    /// Takes the records of `batch` and moves the position; after an error nothing has changed.
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

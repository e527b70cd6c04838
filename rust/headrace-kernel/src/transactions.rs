//! Which batches of a `read_committed` fetch belong to aborted transactions.
//!
//! The broker lists the aborted transactions that overlap the response, as (producer, first offset). A producer
//! is aborting from that offset to its next ABORT marker; a COMMIT marker changes nothing, since the
//! list has no entry for a committed transaction. The list is of one response and is never carried over.

use std::collections::HashSet;

use crate::error::Cause;
use crate::header::BatchView;
use crate::record;

/// One entry of a Fetch response's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Who wrote it.
    pub producer_id: i64,
    /// Where it begins.
    pub first_offset: i64,
}

/// The producers that are aborting, at one point of the log.
#[derive(Debug, Default)]
pub struct Aborting {
    /// By first offset, descending: the next one is the last.
    ahead: Vec<AbortedTransaction>,
    producers: HashSet<i64>,
}

impl Aborting {
    pub fn new(listed: &[AbortedTransaction]) -> Self {
        let mut ahead = listed.to_vec();
        ahead.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.first_offset));
        Self { ahead, producers: HashSet::new() }
    }

    /// Moves over `batch` and says whether its records were aborted.
    ///
    /// `body` gives the batch's records decompressed; it is only called for control batches.
    pub fn passes<'a>(
        &mut self,
        batch: &BatchView<'_>,
        body: impl FnOnce() -> Result<&'a [u8], Cause>,
    ) -> Result<bool, Cause> {
        if batch.producer_id < 0 {
            return Ok(false);
        }
        while let Some(entry) = self.ahead.pop_if(|entry| entry.first_offset <= batch.last_offset()) {
            self.producers.insert(entry.producer_id);
        }
        if self.producers.is_empty() {
            return Ok(false);
        }
        if batch.is_control() {
            if batch.count > 0 && record::is_abort_marker(body()?).map_err(Cause::Malformed)? {
                self.producers.remove(&batch.producer_id);
            }
            return Ok(false);
        }
        Ok(batch.is_transactional() && self.producers.contains(&batch.producer_id))
    }
}

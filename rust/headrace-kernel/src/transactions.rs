//! Finds the batches of aborted transactions, for a `read_committed` fetch.
//!
//! The broker lists the aborted transactions that overlap the response, as (producer, first offset). The batches of
//! that producer are aborted from that offset to its next ABORT marker. COMMIT markers can be ignored, because the
//! list has no entries for committed transactions. The list is only valid for its response.

use std::collections::HashSet;

use crate::error::Cause;
use crate::header::BatchView;
use crate::record;

/// An entry in the list of aborted transactions of a Fetch response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// The id of its producer.
    pub producer_id: i64,
    /// The offset of its first record.
    pub first_offset: i64,
}

/// The producers whose current transaction is aborted, at the current position in the log.
#[derive(Debug, Default)]
pub struct Aborting {
    /// The transactions that have not started yet, by first offset, descending: the next one is at the end.
    ahead: Vec<AbortedTransaction>,
    producers: HashSet<i64>,
}

impl Aborting {
    pub fn new(listed: &[AbortedTransaction]) -> Self {
        let mut ahead = listed.to_vec();
        ahead.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.first_offset));
        Self { ahead, producers: HashSet::new() }
    }

    /// Advances past `batch` and returns whether its records are aborted.
    ///
    /// `body` returns the decompressed records of the batch. It is only called for control batches.
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

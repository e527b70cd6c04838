//! Distributes many records over the partitions of a topic, and encodes the batches of each partition.
//!
//! Each partition has at most one open batch. A batch is finished when the next record of its partition does not fit.
//! So the records of a partition keep their order, within a batch and from batch to batch.

use thiserror::Error;

use crate::compress::{Compression, Compressor};
use crate::encode::{BatchBuilder, Fields, Stamp};
use crate::error::EncodeError;
use crate::header::HEADER;
use crate::partition::{crc32, murmur2};

/// The largest size of a record's own fields (its length, attributes, timestamp and offset), as in Java.
const MAX_RECORD_OVERHEAD: usize = 21;
/// The largest memory that a batch reserves before it has records.
const MAX_RESERVED: usize = 64 * 1024;

/// The upper bound of the bytes that a record takes in a batch of its own, before compression.
pub fn largest_size<'a, H>(fields: &Fields<'a, H>) -> usize
where
    H: Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
{
    HEADER + MAX_RECORD_OVERHEAD + fields.content_size()
}

/// How a key determines the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyHash {
    /// Java's default.
    Murmur2,
    /// librdkafka's default.
    Crc32,
    /// Not at all: records with a key are distributed like those without.
    Ignored,
}

/// How records are assigned to partitions.
#[derive(Debug, Clone, Copy)]
pub struct Routing<'a> {
    /// The number of partitions of the topic.
    pub partition_count: u32,
    /// For records with a key.
    pub key_hash: KeyHash,
    /// Whether an empty key counts as no key.
    pub ignores_empty_key: bool,
    /// For records without a key: the partitions of consecutive batches, repeated from the first one.
    /// Not empty, and each number is below `partition_count`.
    pub sticky: &'a [u32],
}

impl Routing<'_> {
    /// The partition of a key, or None if the record counts as one without a key.
    #[inline]
    fn of_key(&self, key: Option<&[u8]>) -> Option<u32> {
        let key = key?;
        if key.is_empty() && self.ignores_empty_key {
            return None;
        }
        let hash = match self.key_hash {
            KeyHash::Murmur2 => murmur2(key).cast_unsigned() & 0x7fff_ffff,
            KeyHash::Crc32 => crc32(key),
            KeyHash::Ignored => return None,
        };
        Some(hash % self.partition_count)
    }
}

/// Sizes in bytes, before compression.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// A batch with several records does not exceed it.
    pub batch_size: usize,
    /// A record that might need more than this, in a batch of its own, is rejected.
    pub max_record_size: usize,
}

/// Why a record cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RowError {
    /// The record names a partition that does not exist.
    #[error("partition {partition} does not exist: the topic has {count} partitions")]
    Partition {
        /// The partition.
        partition: i64,
        /// The number of partitions.
        count: u32,
    },
    /// The record is too large.
    #[error("the record takes up to {size} bytes, more than {limit}")]
    TooLarge {
        /// The upper bound of its size, in a batch of its own.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// The batch cannot be encoded.
    #[error(transparent)]
    Batch(#[from] EncodeError),
}

/// A complete batch of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedBatch {
    /// The partition.
    pub partition: u32,
    /// The batch, without a producer id.
    pub data: Vec<u8>,
    /// The number of records.
    pub count: usize,
    /// The size in bytes before compression.
    pub size: usize,
    /// The row of the first record.
    pub first_row: u64,
}

struct OpenBatch {
    builder: BatchBuilder,
    first_row: u64,
}

/// The open batches of a topic's partitions, and the finished ones that have not been taken.
pub struct PartitionedBatches {
    open: Vec<Option<OpenBatch>>,
    open_bytes: usize,
    finished: Vec<FinishedBatch>,
    /// The partition that gets the records without a key, until its batch is full.
    sticky: Option<u32>,
    sticky_batches: usize,
    compression: Compression,
    compressor: Compressor,
}

impl Default for PartitionedBatches {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            open_bytes: 0,
            finished: Vec::new(),
            sticky: None,
            sticky_batches: 0,
            compression: Compression::None,
            compressor: Compressor::new(Compression::None),
        }
    }
}

impl PartitionedBatches {
    /// Sets the codec of the batches that are finished from now on.
    pub fn set_compression(&mut self, compression: Compression) {
        if compression != self.compression {
            self.compression = compression;
            self.compressor = Compressor::new(compression);
        }
    }

    /// The number of batches that records without a key have begun, which determines the next sticky partition.
    pub fn sticky_batches(&self) -> usize {
        self.sticky_batches
    }

    /// Continues with the next topic, whose records without a key have begun `sticky_batches` batches before.
    ///
    /// All batches must be finished and taken.
    pub fn begin_topic(&mut self, sticky_batches: usize) {
        debug_assert!(self.is_empty());
        self.sticky = None;
        self.sticky_batches = sticky_batches;
    }

    /// The bytes in open batches, before compression.
    pub fn open_bytes(&self) -> usize {
        self.open_bytes
    }

    /// Whether there is neither an open batch nor a finished one that has not been taken.
    pub fn is_empty(&self) -> bool {
        self.open_bytes == 0 && self.finished.is_empty()
    }

    /// Whether there are finished batches.
    pub fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// The finished batches, in the order in which they were finished.
    pub fn take_finished(&mut self) -> Vec<FinishedBatch> {
        std::mem::take(&mut self.finished)
    }

    /// Adds a record to the open batch of its partition: `partition`, or that of its key, or the sticky one.
    ///
    /// Returns the bytes that it takes, before compression. If the record is invalid, nothing changes.
    pub fn push<'a, H>(
        &mut self,
        row: u64,
        partition: Option<i64>,
        fields: &Fields<'a, H>,
        routing: &Routing<'_>,
        limits: &Limits,
    ) -> Result<usize, RowError>
    where
        H: Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    {
        self.push_within(usize::MAX, row, partition, fields, routing, limits).map(Option::unwrap_or_default)
    }

    /// The same, unless the record might need more than `room` bytes: then nothing changes, and it returns None.
    #[inline]
    pub fn push_within<'a, H>(
        &mut self,
        room: usize,
        row: u64,
        partition: Option<i64>,
        fields: &Fields<'a, H>,
        routing: &Routing<'_>,
        limits: &Limits,
    ) -> Result<Option<usize>, RowError>
    where
        H: Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    {
        let content = fields.content_size();
        let size = HEADER + MAX_RECORD_OVERHEAD + content;
        if size > limits.max_record_size {
            return Err(RowError::TooLarge { size, limit: limits.max_record_size });
        }
        let chosen = match partition {
            Some(partition) => match u32::try_from(partition) {
                Ok(number) if number < routing.partition_count => Some(number),
                _ => return Err(RowError::Partition { partition, count: routing.partition_count }),
            },
            None => routing.of_key(fields.key),
        };
        if size > room {
            return Ok(None);
        }
        let mut partition = chosen.unwrap_or_else(|| self.sticky_partition(routing));
        let mut may_move = chosen.is_none();
        loop {
            let index = partition as usize;
            if index >= self.open.len() {
                self.open.resize_with(index + 1, || None);
            }
            let batch = self.open[index].get_or_insert_with(|| OpenBatch {
                builder: BatchBuilder::new(limits.batch_size.min(MAX_RESERVED)),
                first_row: row,
            });
            let before = batch.builder.size();
            let is_new = batch.builder.count() == 0;
            match batch.builder.push_within(limits.batch_size, fields, content) {
                Ok(true) => {
                    let bytes = batch.builder.size() - if is_new { 0 } else { before };
                    self.open_bytes += bytes;
                    return Ok(Some(bytes));
                }
                Ok(false) => {}
                Err(error) => {
                    if is_new {
                        self.open[index] = None;
                    }
                    return Err(error.into());
                }
            }
            self.finish(index)?;
            if may_move {
                self.end_sticky();
                partition = self.sticky_partition(routing);
                may_move = false;
            }
        }
    }

    /// Finishes all open batches.
    pub fn finish_all(&mut self) -> Result<(), RowError> {
        for index in 0..self.open.len() {
            self.finish(index)?;
        }
        self.end_sticky();
        Ok(())
    }

    fn finish(&mut self, index: usize) -> Result<(), RowError> {
        let Some(batch) = self.open[index].take() else { return Ok(()) };
        let (count, size) = (batch.builder.count(), batch.builder.size());
        self.open_bytes -= size;
        let mut data = batch.builder.finish(&mut self.compressor, &Stamp::default())?;
        // Compressors reserve memory for the worst case, and finished batches may wait for a long time.
        if data.capacity() / 2 > data.len() {
            data.shrink_to_fit();
        }
        let partition = index as u32;
        self.finished.push(FinishedBatch { partition, data, count, size, first_row: batch.first_row });
        Ok(())
    }

    #[inline]
    fn sticky_partition(&mut self, routing: &Routing<'_>) -> u32 {
        match self.sticky {
            Some(partition) if partition < routing.partition_count => partition,
            _ => {
                let partition = routing.sticky[self.sticky_batches % routing.sticky.len()];
                self.sticky = Some(partition);
                partition
            }
        }
    }

    fn end_sticky(&mut self) {
        if self.sticky.take().is_some() {
            self.sticky_batches += 1;
        }
    }
}

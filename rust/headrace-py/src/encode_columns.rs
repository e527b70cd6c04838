//! The Python class that encodes Arrow data into record batches.

use std::collections::{HashMap, VecDeque};

use headrace_kernel::{
    EncodeError, Fields, FinishedBatch, KeyHash, Limits, PartitionedBatches, Routing, RowError as Invalid,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::arrow_source::Source;
use crate::cells::BeforeEpoch;
use crate::encode::{EncodedBatch, compression};
use crate::rows::{Layout, Rows, TopicRows};

pyo3::create_exception!(
    headrace._record_batch,
    RowError,
    PyValueError,
    "A row of the Arrow data cannot be encoded as a record.\n\n\
     `row` is its number, from 0 on, over all Arrow batches. `size` is the upper bound of the record's size if it is\n\
     larger than allowed, and `partition` its partition if the topic does not have it; otherwise they are None."
);

/// Why a row cannot be encoded.
enum Fault {
    Record(Invalid),
    Timestamp(BeforeEpoch),
    Header,
}

impl From<Invalid> for Fault {
    fn from(error: Invalid) -> Self {
        Self::Record(error)
    }
}

impl Fault {
    fn raised(&self, py: Python<'_>, row: u64) -> PyErr {
        match self {
            Self::Record(Invalid::Batch(error @ EncodeError::Compression { .. })) => {
                PyRuntimeError::new_err(error.to_string())
            }
            Self::Record(error @ Invalid::TooLarge { size, .. }) => {
                row_error(py, row, &error.to_string(), Some(*size), None)
            }
            Self::Record(error @ Invalid::Partition { partition, .. }) => {
                row_error(py, row, &error.to_string(), None, Some(*partition))
            }
            Self::Record(error) => row_error(py, row, &error.to_string(), None, None),
            Self::Timestamp(BeforeEpoch { value, unit }) => {
                let text = format!(
                    "the timestamp is before 1970 ({value} {unit}): Kafka's timestamps begin there, and null is the \
                     time of the call"
                );
                row_error(py, row, &text, None, None)
            }
            Self::Header => row_error(py, row, "a header is null or has no name", None, None),
        }
    }
}

fn row_error(py: Python<'_>, row: u64, text: &str, size: Option<usize>, partition: Option<i64>) -> PyErr {
    let error = RowError::new_err(format!("row {row}: {text}"));
    let value = error.value(py);
    let set = || {
        value.setattr("row", row)?;
        value.setattr("size", size)?;
        value.setattr("partition", partition)
    };
    match set() {
        Ok(()) => error,
        Err(failed) => failed,
    }
}

/// One Arrow batch.
struct Loaded {
    rows: Rows,
    /// The number of rows in the previous Arrow batches.
    first_row: u64,
    topics: VecDeque<TopicRows>,
}

#[pyclass(module = "headrace._native")]
pub struct ColumnEncoder {
    source: Source,
    layout: Layout,
    /// For rows without a timestamp.
    #[pyo3(get, set)]
    default_timestamp: i64,
    loaded: Option<Loaded>,
    current: Option<TopicRows>,
    /// The number of rows in all Arrow batches so far.
    row_count: u64,
    batches: PartitionedBatches,
    /// The number of sticky batches of each topic, so that every Arrow batch continues with the next partition.
    sticky_batches: HashMap<String, usize>,
}

type Encoded = (u32, EncodedBatch, usize, usize, u64);

#[pymethods]
impl ColumnEncoder {
    #[new]
    #[pyo3(signature = (data, *, default_timestamp, ignored=Vec::new(), ignores_other_columns=false,
                        is_of_kafka=false))]
    fn new(
        data: &Bound<'_, PyAny>,
        default_timestamp: i64,
        ignored: Vec<String>,
        ignores_other_columns: bool,
        is_of_kafka: bool,
    ) -> PyResult<Self> {
        let (source, fields) = Source::open(data)?;
        Ok(Self {
            source,
            layout: Layout::new(&fields, &ignored, ignores_other_columns, is_of_kafka)?,
            default_timestamp,
            loaded: None,
            current: None,
            row_count: 0,
            batches: PartitionedBatches::default(),
            sticky_batches: HashMap::new(),
        })
    }

    fn next_topic(&mut self, py: Python<'_>) -> PyResult<Option<String>> {
        let is_unfinished = |rows: &&TopicRows| rows.next().is_some() || !self.batches.is_empty();
        if let Some(TopicRows { topic, .. }) = self.current.as_ref().filter(is_unfinished) {
            let text = format!("not all rows of the topic '{topic}' are encoded");
            return Err(PyRuntimeError::new_err(text));
        }
        if let Some(current) = self.current.take() {
            self.sticky_batches.insert(current.topic, self.batches.sticky_batches());
        }
        while self.loaded.as_ref().is_none_or(|loaded| loaded.topics.is_empty()) {
            // The memory of the previous batch is released first.
            self.loaded = None;
            if !self.load(py)? {
                return Ok(None);
            }
        }
        let next = self.loaded.as_mut().and_then(|loaded| loaded.topics.pop_front());
        let topic = next.as_ref().map(|rows| rows.topic.clone());
        self.batches
            .begin_topic(topic.as_ref().and_then(|name| self.sticky_batches.get(name).copied()).unwrap_or(0));
        self.current = next;
        Ok(topic)
    }

    /// The upper bound of the bytes that the topic's next row takes in a batch of its own; None after the last row.
    #[getter]
    fn next_size(&self) -> Option<usize> {
        let (rows, row) = (&self.loaded.as_ref()?.rows, self.current.as_ref()?.next()?);
        let (key, value) = (rows.keys.get(row), rows.values.get(row));
        Some(match &rows.headers {
            None => headrace_kernel::largest_size(&Fields {
                timestamp: 0,
                key,
                value,
                headers: std::iter::empty(),
            }),
            // A header that is null makes the row invalid.
            Some(headers) => headers.get(row).map_or(0, |headers| {
                headrace_kernel::largest_size(&Fields { timestamp: 0, key, value, headers })
            }),
        })
    }

    /// The bytes in batches that are not full.
    #[getter]
    fn open_bytes(&self) -> usize {
        self.batches.open_bytes()
    }

    /// Finishes the batches that are not full.
    fn finish(&mut self, py: Python<'_>) -> PyResult<Vec<Encoded>> {
        let batches = &mut self.batches;
        match py.detach(|| batches.finish_all()) {
            Ok(()) => Ok(self.batches.take_finished().into_iter().map(encoded).collect()),
            Err(error) => Err(PyRuntimeError::new_err(error.to_string())),
        }
    }

    #[pyo3(signature = (*, partition_count, partitioner, sticky, batch_size, max_record_size,
                        ignores_empty_key=false, codec="none", level=None, max_bytes=4 << 20, room=None))]
    #[allow(clippy::too_many_arguments)] // They are keywords in Python.
    fn encode(
        &mut self,
        py: Python<'_>,
        partition_count: u32,
        partitioner: &str,
        sticky: Vec<u32>,
        batch_size: usize,
        max_record_size: usize,
        ignores_empty_key: bool,
        codec: &str,
        level: Option<i32>,
        max_bytes: usize,
        room: Option<usize>,
    ) -> PyResult<Vec<Encoded>> {
        self.batches.set_compression(compression(codec, level)?);
        let key_hash = match partitioner {
            "murmur2" => KeyHash::Murmur2,
            "crc32" => KeyHash::Crc32,
            "none" => KeyHash::Ignored,
            other => {
                let text = format!("{other} is not a partitioner: use murmur2, crc32 or none");
                return Err(PyValueError::new_err(text));
            }
        };
        if sticky.is_empty() || sticky.iter().any(|&partition| partition >= partition_count) {
            let text = format!("sticky must be partitions below {partition_count}, at least one");
            return Err(PyValueError::new_err(text));
        }
        let (Some(loaded), Some(current)) = (&self.loaded, &mut self.current) else {
            return Err(PyRuntimeError::new_err("there is no topic: call next_topic() before encode()"));
        };
        let limits = Limits { batch_size: batch_size.min(max_record_size), max_record_size };
        let routing = Routing { partition_count, key_hash, ignores_empty_key, sticky: &sticky };
        let mut job = Job {
            loaded,
            current,
            batches: &mut self.batches,
            routing,
            limits,
            default_timestamp: self.default_timestamp,
            room: room.unwrap_or(usize::MAX),
        };
        // The arrays own their memory, and `self` is borrowed exclusively: no other thread can access it.
        let (finished, fault) = py.detach(|| job.run(max_bytes));
        match fault {
            // The batches of the rows before it are returned. The next call reads the row again and raises the error.
            Some((row, fault)) if finished.is_empty() => Err(fault.raised(py, row)),
            _ => Ok(finished.into_iter().map(encoded).collect()),
        }
    }
}

impl ColumnEncoder {
    /// Loads the next Arrow batch. Returns whether there is one.
    fn load(&mut self, py: Python<'_>) -> PyResult<bool> {
        let Some(batch) = self.source.next(py)? else { return Ok(false) };
        let rows = Rows::new(&batch, &self.layout)?;
        let first_row = self.row_count;
        self.row_count += rows.len as u64;
        let topics = if rows.len == 0 { Ok(Vec::new()) } else { py.detach(|| rows.topics()) };
        let topics = topics.map_err(|(row, text)| row_error(py, first_row + row as u64, text, None, None))?;
        self.loaded = Some(Loaded { rows, first_row, topics: topics.into() });
        Ok(true)
    }
}

fn encoded(batch: FinishedBatch) -> Encoded {
    (batch.partition, EncodedBatch::new(batch.data), batch.count, batch.size, batch.first_row)
}

/// The part of `encode` that runs without the GIL.
struct Job<'a> {
    loaded: &'a Loaded,
    current: &'a mut TopicRows,
    batches: &'a mut PartitionedBatches,
    routing: Routing<'a>,
    limits: Limits,
    default_timestamp: i64,
    /// The bytes that all batches may take, open and finished ones.
    room: usize,
}

impl Job<'_> {
    /// Encodes about `max_bytes`, within `room`. Returns the finished batches, and a row that cannot be encoded.
    fn run(&mut self, max_bytes: usize) -> (Vec<FinishedBatch>, Option<(u64, Fault)>) {
        let rows = &self.loaded.rows;
        let outcome = match &rows.headers {
            None => self.push_rows(max_bytes, |_| Some(std::iter::empty())),
            Some(headers) => self.push_rows(max_bytes, |row| headers.get(row)),
        };
        let is_end = outcome.is_err() || self.current.next().is_none();
        // Partial batches wait for more rows, as long as they do not take much memory.
        let mut finished = Ok(());
        if is_end || !self.batches.has_finished() || self.batches.open_bytes() > max_bytes {
            finished = self.batches.finish_all();
        }
        let fault = outcome.err().or_else(|| {
            let row = self.loaded.first_row + rows.len as u64 - 1;
            finished.err().map(|error| (row, error.into()))
        });
        (self.batches.take_finished(), fault)
    }

    fn push_rows<'a, H>(
        &mut self,
        max_bytes: usize,
        headers: impl Fn(usize) -> Option<H>,
    ) -> Result<(), (u64, Fault)>
    where
        H: Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
        Self: 'a,
    {
        let mut bytes = 0;
        let before = self.batches.open_bytes();
        while let Some(row) = self.current.next() {
            let number = self.loaded.first_row + row as u64;
            let room = self.room.saturating_sub(before + bytes);
            match self.push_row(row, number, &headers, room).map_err(|fault| (number, fault))? {
                Some(pushed) => bytes += pushed,
                None => break,
            }
            self.current.encoded += 1;
            if bytes >= max_bytes {
                break;
            }
        }
        Ok(())
    }

    /// Returns the bytes that the row takes, or None if it might need more than `room`.    #[inline(always)]
    fn push_row<'a, H>(
        &mut self,
        row: usize,
        number: u64,
        headers: &impl Fn(usize) -> Option<H>,
        room: usize,
    ) -> Result<Option<usize>, Fault>
    where
        H: Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
        Self: 'a,
    {
        let rows = &self.loaded.rows;
        let timestamp = match rows.timestamps.as_ref().map(|times| times.get(row)) {
            None | Some(Ok(None)) => self.default_timestamp,
            Some(Ok(Some(time))) => time,
            Some(Err(error)) => return Err(Fault::Timestamp(error)),
        };
        let fields = Fields {
            timestamp,
            key: rows.keys.get(row),
            value: rows.values.get(row),
            headers: headers(row).ok_or(Fault::Header)?,
        };
        let partition = rows.partitions.as_ref().and_then(|partitions| partitions.get(row));
        Ok(self.batches.push_within(room, number, partition, &fields, &self.routing, &self.limits)?)
    }
}

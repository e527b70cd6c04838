//! Fetches that the receiving thread repeats by itself: it decodes a usual response and sends the next request of the
//! session, without the GIL, before Python knows of the response.
//!
//! - Python decides once, when it plans a request, that its usual response may be followed by the same request with the
//!   offsets behind the records (`DirectFetch.prepare`, `FrameReceiver.arm`). It learns of each response
//!   (`DirectResponse`) before the next one is received, and can end the repetition (`FrameReceiver.disarm`).
//! - Whatever is unusual ends the repetition, and goes to Python as a frame. Nothing was sent then.
//! - A connection has one writer at a time. `disarm` waits for a request that is being written; who wants to write
//!   calls it before, and learns the last correlation id.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headrace_kernel::{
    FetchRequest, FetchSettings, Fetched, PartitionRequest, TopicIdPartition, usual_response,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::batch::Batch;
use crate::decode::{Arrays, arrays};

/// A request with more changed partitions is left to Python: a socket may not take it at once.
const FEW: usize = 100;
/// The capacity for a request with a few partitions.
const USUAL_REQUEST: usize = 1024;
/// After this epoch of a session comes 1.
const LAST_EPOCH: i32 = i32::MAX;

/// A partition in the requests: as Python and as the broker know it.
struct Want {
    tip: Py<PyAny>,
    topic: Py<PyString>,
    request: PartitionRequest,
}

/// The requests of one stream.
pub struct Session {
    settings: FetchSettings,
    check_crcs: bool,
    max_batch_bytes: usize,
    lane: Option<Py<PyString>>,
    request: FetchRequest,
    /// The bytes that decoding may take.
    room: usize,
    wants: HashMap<TopicIdPartition, Want>,
    /// The request that follows a response.
    frame: Vec<u8>,
}

/// A partition of a response.
struct Arrival {
    partition: TopicIdPartition,
    high_watermark: i64,
    last_stable_offset: i64,
    next_offset: i64,
    size: usize,
    records: Option<Arrays>,
}

/// What a response brought.
pub struct Step {
    arrivals: Vec<Arrival>,
}

impl Step {
    pub fn has_records(&self) -> bool {
        self.arrivals.iter().any(|arrival| arrival.records.is_some())
    }
}

impl Session {
    /// The request of the last step.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// Encodes the request that follows a response, if that is the usual one.
    pub fn step(&mut self, frame: &[u8], correlation_id: i32, next_id: i32) -> Option<Step> {
        let response = usual_response(frame, correlation_id)?;
        if response.session_id != self.request.session_id || response.partitions.len() > FEW {
            return None;
        }
        let mut left = self.room;
        let mut arrivals = Vec::with_capacity(response.partitions.len());
        let mut changed = Vec::with_capacity(response.partitions.len());
        for fetched in response.partitions {
            let want = self.wants.get(&fetched.partition)?.request;
            if arrivals.iter().any(|other: &Arrival| other.partition == fetched.partition) {
                return None; // it would be delivered twice
            }
            let mut arrival = Arrival {
                partition: fetched.partition,
                high_watermark: fetched.high_watermark,
                last_stable_offset: fetched.last_stable_offset,
                next_offset: want.offset,
                size: fetched.records.len(),
                records: None,
            };
            if !fetched.records.is_empty() {
                let limits = Fetched {
                    read_committed: self.settings.is_read_committed,
                    check_crcs: self.check_crcs,
                    max_batch_bytes: self.max_batch_bytes.min(left),
                    max_total_bytes: left,
                    ..Fetched::at(want.offset)
                };
                let decoded = headrace_kernel::decode(fetched.records, &limits).ok()?;
                left = left.checked_sub(decoded.columns.bytes())?;
                arrival.next_offset = headrace_kernel::next_offset(fetched.records, want.offset);
                if decoded.next_offset != arrival.next_offset || decoded.next_offset <= want.offset {
                    return None;
                }
                arrival.records = Some(arrays(decoded));
                changed.push((arrival.partition, PartitionRequest { offset: arrival.next_offset, ..want }));
            }
            // If the log has more, the broker responds at once: then larger fetches are better.
            let end = if self.settings.is_read_committed {
                arrival.last_stable_offset
            } else {
                arrival.high_watermark
            };
            if arrival.next_offset < end {
                return None;
            }
            arrivals.push(arrival);
        }
        let request = FetchRequest { session_epoch: self.next_epoch(), ..self.request.clone() };
        request.encode(next_id, &self.settings, &changed, &mut self.frame)?;
        Some(Step { arrivals })
    }

    fn next_epoch(&self) -> i32 {
        if self.request.session_epoch == LAST_EPOCH { 1 } else { self.request.session_epoch + 1 }
    }

    /// The request of the step was sent.
    pub fn sent(&mut self, step: &Step) {
        self.request.session_epoch = self.next_epoch();
        for arrival in &step.arrivals {
            if let Entry::Occupied(mut want) = self.wants.entry(arrival.partition) {
                want.get_mut().request.offset = arrival.next_offset;
            }
        }
    }
}

/// The requests of a stream of fetches.
#[pyclass(module = "headrace._native", frozen)]
pub struct DirectFetch {
    session: Arc<Mutex<Session>>,
}

impl DirectFetch {
    fn session(&self) -> MutexGuard<'_, Session> {
        lock(&self.session)
    }

    pub fn shared(&self) -> Arc<Mutex<Session>> {
        self.session.clone()
    }
}

/// A panic while the lock was held has changed no request: `step` does not, and `sent` does not panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A changed partition: what identifies it in Python, the bytes of its topic's id, its number, and its topic, offset,
/// leader epoch and limit; or None if it is not requested any more.
type Change = (Py<PyAny>, [u8; 16], i32, Option<(Py<PyString>, i64, i32, i32)>);

#[pymethods]
impl DirectFetch {
    #[new]
    #[pyo3(signature = (*, client_id, min_bytes, read_committed, rack, check_crcs, max_batch_bytes, lane))]
    fn new(
        client_id: Option<String>,
        min_bytes: i32,
        read_committed: bool,
        rack: String,
        check_crcs: bool,
        max_batch_bytes: usize,
        lane: Option<Py<PyString>>,
    ) -> Self {
        let settings = FetchSettings { client_id, min_bytes, is_read_committed: read_committed, rack };
        let request =
            FetchRequest { version: 0, max_wait_ms: 0, max_bytes: 0, session_id: 0, session_epoch: 0 };
        let (wants, frame) = (HashMap::new(), Vec::with_capacity(USUAL_REQUEST));
        let session = Session { settings, check_crcs, max_batch_bytes, lane, request, room: 0, wants, frame };
        Self { session: Arc::new(Mutex::new(session)) }
    }

    /// The request that is about to be sent. `changes` has the partitions that differ from the last call.
    #[pyo3(signature = (changes, *, version, max_wait_ms, max_bytes, session_id, session_epoch, room))]
    #[allow(clippy::too_many_arguments)] // They are keywords in Python.
    fn prepare(
        &self,
        changes: Vec<Change>,
        version: i16,
        max_wait_ms: i32,
        max_bytes: i32,
        session_id: i32,
        session_epoch: i32,
        room: usize,
    ) {
        let mut session = self.session();
        session.request = FetchRequest { version, max_wait_ms, max_bytes, session_id, session_epoch };
        session.room = room;
        for (tip, topic_id, partition, want) in changes {
            match want {
                None => {
                    session.wants.remove(&(topic_id, partition));
                }
                Some((topic, offset, leader_epoch, max_bytes)) => {
                    let request = PartitionRequest { offset, leader_epoch, max_bytes };
                    session.wants.insert((topic_id, partition), Want { tip, topic, request });
                }
            }
        }
    }
}

/// A usual response, after which the next request was sent.
#[pyclass(module = "headrace._native", frozen)]
pub struct DirectResponse {
    /// Of the request that was sent.
    #[pyo3(get)]
    correlation_id: i32,
    /// Tuples of what identifies the partition, its high watermark and last stable offset, the next offset, the number
    /// of bytes received, and the records (None if there are none).
    #[pyo3(get)]
    partitions: Py<PyList>,
}

impl DirectResponse {
    pub fn new(py: Python<'_>, session: &Mutex<Session>, correlation_id: i32, step: Step) -> PyResult<Self> {
        let partitions = PyList::empty(py);
        // Names and columns first: creating Python objects may run other code, which must not find the lock held.
        let named: Vec<_> = {
            let session = lock(session);
            let lane = session.lane.as_ref().map(|lane| lane.clone_ref(py));
            let name = |arrival: Arrival| {
                let want = session.wants.get(&arrival.partition)?;
                let lane = lane.as_ref().map(|lane| lane.clone_ref(py));
                Some((want.tip.clone_ref(py), want.topic.clone_ref(py), lane, arrival))
            };
            step.arrivals.into_iter().filter_map(name).collect()
        };
        for (tip, topic, lane, arrival) in named {
            let batch = match arrival.records {
                None => None,
                Some((columns, next_offset, leader_epoch)) => {
                    let columns = columns.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
                    let lane = lane.as_ref().map(|lane| lane.bind(py));
                    let (topic, number) = (topic.bind(py), arrival.partition.1);
                    Some(Batch::new(topic, number, lane, columns, next_offset, leader_epoch)?)
                }
            };
            let Arrival { high_watermark, last_stable_offset, next_offset, size, .. } = arrival;
            partitions.append((tip, high_watermark, last_stable_offset, next_offset, size, batch))?;
        }
        Ok(Self { correlation_id, partitions: partitions.unbind() })
    }
}

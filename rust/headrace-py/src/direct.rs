//! Requests that the thread which sends a record writes to the broker's socket itself, and whose response the thread
//! that waits for it reads. They save two changes of threads, which take longer than the broker does.
//!
//! - The producer's loop owns the socket. It lends it (`lend`) when nothing is on its way, and takes it back
//!   (`take_back`) for a request of its own. A thread uses a socket only while it is lent.
//! - One request at a time, with one record of one partition. The loop has lent the partition, too (`DirectPartition`):
//!   the next sequence number is here, and the loop has no batch of it.
//! - Whatever is unusual is left to the loop: it takes the socket back, with the request on its way and the bytes of the
//!   response that were read. So there is one place for errors, retries and timeouts, which is not here.
//! - Every method runs with the GIL from its beginning to its end and calls no Python code: it is one step for other
//!   threads, and Ctrl-C cannot interrupt it. Sockets do not block. Only `wait_readable` releases the GIL; a thread that
//!   returns from it owns nothing, and looks again.
//! - Nobody has to wait for a record: the loop watches the sockets it has lent (`check`), and takes back those whose
//!   response is late. The first request after a pause wakes it up.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::direct_partition::DirectPartition;
use crate::direct_sender::DirectSender;
use crate::producer_batch::ProducerBatch;

/// Seconds. A response that takes longer is left to the loop, for which that makes no difference.
const PATIENCE: f64 = 0.005;
/// The usual response has less than 400 bytes.
const LARGEST_RESPONSE: usize = 1024;

/// A request on its way.
pub struct InFlight {
    pub batch: Py<ProducerBatch>,
    pub partition: Py<DirectPartition>,
    /// The batch as it was sent.
    pub data: Vec<u8>,
    /// The end of the request that the socket did not take.
    pub unsent: Vec<u8>,
    pub correlation_id: i32,
    pub sequence: i32,
    pub since: Instant,
}

/// What a look for the response has found.
pub enum Look {
    /// There is nothing to wait for here: the batch is done, or the loop has it.
    Over,
    /// The response has not arrived. Wait for the socket, but not for longer than this.
    Wait(Arc<TcpStream>, Duration),
}

/// The socket of one connection.
#[pyclass(module = "headrace._native")]
pub struct DirectConnection {
    sender: Py<DirectSender>,
    /// A duplicate of the connection's. None after `close`.
    stream: Option<Arc<TcpStream>>,
    patience: Duration,
    is_lent: bool,
    /// The loop should take the socket back.
    needs_loop: bool,
    is_broken: bool,
    pub next_id: i32,
    pub in_flight: Option<InFlight>,
    received: Vec<u8>,
    /// Whether there was a request since the last `check`, and whether there will be another `check`.
    is_used: bool,
    is_watched: bool,
    /// Those who waited for batches that are done now. The loop sets their flags: Python code on a user's thread could
    /// be interrupted (Ctrl-C).
    waiters: Vec<Py<PyAny>>,
}

impl DirectConnection {
    fn leave_to_loop(&mut self) {
        self.needs_loop = true;
        self.sender.get().wake();
    }

    fn leave_broken(&mut self) {
        self.is_broken = true;
        self.leave_to_loop();
    }

    /// Whether a request can be written now.
    pub fn is_ready(&mut self, py: Python<'_>) -> bool {
        if !self.is_lent || self.needs_loop || std::process::id() != self.sender.get().process {
            return false;
        }
        if self.in_flight.is_some() {
            self.receive(py);
            return self.in_flight.is_none() && !self.needs_loop;
        }
        if !self.is_watched {
            // Nobody has looked for a while: the broker may have closed the connection.
            let peeked = self.stream.as_ref().map(|stream| stream.peek(&mut [0]));
            if !matches!(peeked, Some(Err(error)) if error.kind() == ErrorKind::WouldBlock) {
                self.leave_broken();
                return false;
            }
        }
        true
    }

    /// Writes a request. Returns false if nothing of it was sent.
    pub fn write(&mut self, frame: &[u8], in_flight: InFlight) -> bool {
        let Some(stream) = self.stream.clone() else { return false };
        let sent = loop {
            match (&*stream).write(frame) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => {
                    self.leave_broken();
                    return false;
                }
                Ok(0) => return false,
                Ok(sent) => break sent,
            }
        };
        self.next_id = in_flight.correlation_id;
        let in_flight = InFlight { unsent: frame[sent..].to_vec(), ..in_flight };
        self.is_used = true;
        if !in_flight.unsent.is_empty() {
            self.leave_to_loop();
        } else if !self.is_watched {
            self.is_watched = true;
            self.sender.get().wake();
        }
        self.in_flight = Some(in_flight);
        true
    }

    /// Reads what has arrived, and completes the batch if that is the usual response.
    fn receive(&mut self, py: Python<'_>) {
        let (Some(stream), false) = (self.stream.clone(), self.needs_loop) else { return };
        let mut bytes = [0; LARGEST_RESPONSE];
        loop {
            match (&*stream).read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) | Ok(0) => return self.leave_broken(),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
            }
            let Some((length, frame)) = self.received.split_first_chunk::<4>() else { continue };
            let length = i32::from_be_bytes(*length) as usize;
            if length > LARGEST_RESPONSE || frame.len() > length {
                return self.leave_to_loop();
            }
            if frame.len() == length {
                return self.complete(py);
            }
        }
    }

    fn complete(&mut self, py: Python<'_>) {
        let Some(in_flight) = self.in_flight.take() else { return self.leave_to_loop() };
        let partition = in_flight.partition.get();
        let Some(appended) = partition.frames.appended(in_flight.correlation_id, &self.received[4..]) else {
            self.in_flight = Some(in_flight);
            return self.leave_to_loop();
        };
        partition.has_delivered.store(true, Relaxed);
        self.received.clear();
        let (size, waiters) = in_flight.batch.borrow_mut(py).appended_directly(appended);
        let sender = self.sender.get();
        sender.used.fetch_sub(size, Relaxed);
        sender.records_delivered.fetch_add(1, Relaxed);
        if !waiters.is_empty() {
            self.waiters.extend(waiters);
            sender.wake();
        }
    }

    /// Where the response to the request in flight will arrive.
    pub fn answer(&self) -> Option<DirectAnswer> {
        let stream = self.stream.clone()?;
        (self.is_lent && !self.needs_loop && self.in_flight.is_some()).then_some(DirectAnswer { stream })
    }

    /// Looks for the response to the request in flight.
    pub fn look(&mut self, py: Python<'_>) -> Look {
        if !self.is_lent || std::process::id() != self.sender.get().process {
            return Look::Over;
        }
        self.receive(py);
        let (Some(in_flight), false, Some(stream)) = (&self.in_flight, self.needs_loop, &self.stream) else {
            return Look::Over;
        };
        match self.patience.checked_sub(in_flight.since.elapsed()) {
            Some(left) if !left.is_zero() => Look::Wait(stream.clone(), left),
            _ => {
                self.leave_to_loop();
                Look::Over
            }
        }
    }
}

/// For an event loop that waits for a response. The socket stays open for as long as this exists.
#[pyclass(module = "headrace._native", frozen)]
pub struct DirectAnswer {
    stream: Arc<TcpStream>,
}

#[pymethods]
impl DirectAnswer {
    fn fileno(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

/// Waits until the socket has something to read, a signal arrives, or the time is over. Without the GIL.
pub fn wait_readable(stream: &TcpStream, time: Duration) {
    let mut socket = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let milliseconds = time.as_micros().div_ceil(1000) as libc::c_int;
    // SAFETY: one valid `pollfd`, and the stream keeps its descriptor open. Errors (EINTR) count as a timeout: the
    // caller looks again.
    unsafe { libc::poll(&raw mut socket, 1, milliseconds) };
}

/// Of a request that the loop takes over: batch, correlation id, version, sequence number, seconds since it was sent,
/// bytes that the socket has not taken.
type TakenOver = (Py<ProducerBatch>, i32, i16, i32, f64, Py<PyBytes>);

#[pymethods]
impl DirectConnection {
    /// `descriptor` is that of a connected socket that does not block.
    #[new]
    #[pyo3(signature = (sender, descriptor, patience = PATIENCE))]
    fn new(sender: Py<DirectSender>, descriptor: RawFd, patience: f64) -> PyResult<Self> {
        let patience = Duration::try_from_secs_f64(patience)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        if descriptor < 0 {
            return Err(PyValueError::new_err("the socket is closed"));
        }
        // SAFETY: the caller has the socket open during this call.
        let own = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()?;
        Ok(Self {
            sender,
            stream: Some(Arc::new(TcpStream::from(own))),
            patience,
            is_lent: false,
            needs_loop: false,
            is_broken: false,
            next_id: 0,
            in_flight: None,
            received: Vec::new(),
            is_used: false,
            is_watched: false,
            waiters: Vec::new(),
        })
    }

    /// From here on, threads write to the socket. `last_id` is the correlation id of the last request.
    fn lend(&mut self, last_id: i32) {
        self.next_id = last_id;
        self.is_lent = self.stream.is_some();
        self.is_used = true;
        self.is_watched = true;
    }

    #[getter]
    fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// The batch on its way.
    #[getter]
    fn batch(&self, py: Python<'_>) -> Option<Py<ProducerBatch>> {
        self.in_flight.as_ref().map(|each| each.batch.clone_ref(py))
    }

    /// For the loop that watches. Returns "take back", "watch" (look again soon) or "idle" (wait for a signal).
    fn check(&mut self) -> &'static str {
        let is_used = std::mem::take(&mut self.is_used);
        match &self.in_flight {
            _ if !self.is_lent => "idle",
            _ if self.needs_loop => "take back",
            Some(each) if each.since.elapsed() >= self.patience => "take back",
            None if !is_used => {
                self.is_watched = false;
                "idle"
            }
            _ => "watch",
        }
    }

    fn take_waiters(slf: &Bound<'_, Self>) -> Vec<Py<PyAny>> {
        std::mem::take(&mut slf.borrow_mut().waiters)
    }

    /// No thread uses the socket from here on.
    fn stop(&mut self) {
        self.is_lent = false;
    }

    /// After `stop`. Returns the correlation id of the last request, the request on its way, the bytes of its response
    /// that were read, and whether the socket is closed by the broker or broken.
    fn take_back(slf: &Bound<'_, Self>, now: f64) -> PyResult<(i32, Option<TakenOver>, Py<PyBytes>, bool)> {
        let py = slf.py();
        let (last_id, in_flight, received, is_broken) = {
            let mut connection = slf.borrow_mut();
            connection.is_watched = false;
            connection.needs_loop = false;
            let received = std::mem::take(&mut connection.received);
            let in_flight = connection.in_flight.take();
            if let Some(each) = &in_flight {
                each.partition.get().end();
                each.batch.borrow_mut(py).taken_over();
            }
            (connection.next_id, in_flight, received, connection.is_broken)
        };
        let in_flight = match in_flight {
            None => None,
            Some(each) => {
                let age = each.since.elapsed().as_secs_f64();
                ProducerBatch::set_encoded(each.batch.bind(py), each.data, now - age)?;
                let unsent = PyBytes::new(py, &each.unsent).unbind();
                let version = each.partition.get().version;
                Some((each.batch, each.correlation_id, version, each.sequence, age, unsent))
            }
        };
        Ok((last_id, in_flight, PyBytes::new(py, &received).unbind(), is_broken))
    }

    /// The connection is closed. To be called after `take_back`.
    fn close(&mut self) {
        self.stream = None;
    }
}

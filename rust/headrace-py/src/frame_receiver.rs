//! Receives the frames of a connection that carries records: the native part of `_net/receiver.py`.

use std::io::{Error, ErrorKind};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::direct_fetch::{DirectFetch, DirectResponse, Session, Step, lock};
use crate::turns::Turns;

const STAGING: usize = 16 * 1024;
const LENGTH: usize = 4;
const LARGEST_ID: i32 = i32::MAX;

/// Bytes that were received, and not taken yet.
struct Staging {
    bytes: Box<[u8; STAGING]>,
    start: usize,
    end: usize,
}

impl Staging {
    fn received(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The size of the next frame.
    fn size(&self) -> Option<i32> {
        self.received().first_chunk::<LENGTH>().map(|length| i32::from_be_bytes(*length))
    }

    /// The next frame, if all of it was received.
    fn frame(&self) -> Option<&[u8]> {
        let size = usize::try_from(self.size()?).ok()?;
        self.received().get(LENGTH..LENGTH + size)
    }

    fn take(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room for more.
    fn rest(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }
}

/// The repetition of the request in flight.
struct Armed {
    session: Arc<Mutex<Session>>,
    correlation_id: i32,
}

/// Belongs to the receiving thread, except for `arm`, `disarm` and `close`, and for what a poll does on its turns.
#[pyclass(module = "headrace._native", frozen)]
pub struct FrameReceiver {
    pub descriptor: RawFd,
    staging: Mutex<Staging>,
    armed: Mutex<Option<Armed>>,
    pub turns: Turns,
    process: u32,
}

/// A usual response, after which the next request was sent: with the session of both, and the id of the request.
pub struct Repeated(Arc<Mutex<Session>>, i32, Step);

impl Repeated {
    pub fn into_response(self, py: Python<'_>) -> PyResult<DirectResponse> {
        let Self(session, next_id, step) = self;
        DirectResponse::new(py, &session, next_id, step)
    }
}

enum Found {
    End,
    /// A frame of this size begins, and so many of its bytes were received.
    Frame(i32, usize),
    Direct(Repeated),
}

/// What a poll finds that does not wait.
pub enum Ready {
    /// Not all of a frame.
    Nothing,
    Direct(Repeated),
    /// Something for the receiving thread.
    Unusual,
}

impl FrameReceiver {
    fn receive_blocking(&self) -> Result<Found, Error> {
        self.turns.await_turn(|| lock(&self.armed).is_some());
        let mut staging = lock(&self.staging);
        loop {
            if let Some(repeated) = self.repeat_staged(&mut staging) {
                if repeated.2.has_records() {
                    self.turns.delivered();
                }
                return Ok(Found::Direct(repeated));
            }
            if let Some(size) = staging.size() {
                let wanted = usize::try_from(size).unwrap_or(0);
                // A frame that fits is waited for: it may be the usual response.
                let fits = wanted <= STAGING - LENGTH;
                if !fits || staging.frame().is_some() || size < 0 {
                    // Its request is not the one in flight any more, whoever reads the frame.
                    *lock(&self.armed) = None;
                    let received = staging.received().len() - LENGTH;
                    return Ok(Found::Frame(size, received.min(wanted)));
                }
            }
            match receive(self.descriptor, staging.rest(), 0)? {
                0 => return Ok(Found::End),
                count => staging.end += count,
            }
        }
    }

    /// Whether all of the next frame was received already. On a poll's thread, whose turn it is.
    pub fn has_frame(&self) -> bool {
        lock(&self.staging).frame().is_some()
    }

    /// On a poll's thread, whose turn it is: receives what there is, without waiting.
    pub fn receive_ready(&self) -> Ready {
        let mut staging = lock(&self.staging);
        match receive(self.descriptor, staging.rest(), libc::MSG_DONTWAIT) {
            Ok(0) => return Ready::Unusual,
            Ok(count) => staging.end += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ready::Nothing,
            Err(_) => return Ready::Unusual,
        }
        if let Some(repeated) = self.repeat_staged(&mut staging) {
            return Ready::Direct(repeated);
        }
        // A frame that fits is waited for, as above. `armed` is not looked at: the thread finds that out.
        let is_small = |size| usize::try_from(size).is_ok_and(|size| size <= STAGING - LENGTH);
        let is_begun = staging.frame().is_none() && staging.size().is_none_or(is_small);
        if is_begun { Ready::Nothing } else { Ready::Unusual }
    }

    /// Repeats the request, if the next frame is here, and is the usual response.
    fn repeat_staged(&self, staging: &mut Staging) -> Option<Repeated> {
        let frame = staging.frame()?;
        let size = frame.len();
        let repeated = self.repeat(frame)?;
        staging.take(LENGTH + size);
        Some(repeated)
    }

    /// Sends the request that follows this response, if it is the usual one.
    fn repeat(&self, frame: &[u8]) -> Option<Repeated> {
        // Held until the request is written.
        let mut armed = lock(&self.armed);
        let Armed { session: shared, correlation_id } = armed.take()?;
        let next_id = if correlation_id == LARGEST_ID { 0 } else { correlation_id + 1 };
        let mut session = lock(&shared);
        let step = session.step(frame, correlation_id, next_id)?;
        if !send(self.descriptor, session.frame()) {
            return None; // the connection is broken, which the next `receive` reports
        }
        session.sent(&step);
        drop(session);
        *armed = Some(Armed { session: shared.clone(), correlation_id: next_id });
        Some(Repeated(shared, next_id, step))
    }
}

fn receive(descriptor: RawFd, into: &mut [u8], flags: libc::c_int) -> Result<usize, Error> {
    loop {
        // SAFETY: the slice is valid for its length, and the caller has the socket open during the call.
        let count = unsafe { libc::recv(descriptor, into.as_mut_ptr().cast(), into.len(), flags) };
        if let Ok(count) = usize::try_from(count) {
            return Ok(count);
        }
        let error = Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Sends a short frame, which the socket takes at once: no other request is in flight. False if the connection is broken.
fn send(descriptor: RawFd, frame: &[u8]) -> bool {
    let mut rest = frame;
    while !rest.is_empty() {
        // SAFETY: as above.
        let count = unsafe { libc::send(descriptor, rest.as_ptr().cast(), rest.len(), NO_SIGNAL) };
        match usize::try_from(count) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(_) if Error::last_os_error().kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    true
}

/// Python ignores SIGPIPE, unless a program has changed that.
#[cfg(target_os = "linux")]
const NO_SIGNAL: libc::c_int = libc::MSG_NOSIGNAL;
#[cfg(not(target_os = "linux"))]
const NO_SIGNAL: libc::c_int = 0;

#[pymethods]
impl FrameReceiver {
    /// `descriptor` is that of a connected socket that blocks. It must stay open while `receive` runs. After a poll has
    /// left, the receiving thread waits for the next one for `moment` seconds, unless the last one took longer.
    #[new]
    fn new(descriptor: RawFd, moment: f64) -> Self {
        let staging = Staging { bytes: Box::new([0; STAGING]), start: 0, end: 0 };
        Self {
            descriptor,
            staging: Mutex::new(staging),
            armed: Mutex::new(None),
            turns: Turns::new(Duration::try_from_secs_f64(moment).unwrap_or_default()),
            process: std::process::id(),
        }
    }

    /// Waits for a response. Returns a `DirectResponse`; or the size of a frame and its first bytes, which are all of it
    /// if it is small; or None at the end of the connection. Raises OSError.
    fn receive(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match py.detach(|| self.receive_blocking())? {
            Found::End => Ok(None),
            Found::Frame(size, received) => {
                let mut staging = lock(&self.staging);
                let first = PyBytes::new(py, &staging.received()[LENGTH..LENGTH + received]);
                staging.take(LENGTH + received);
                drop(staging);
                Ok(Some((size, first).into_pyobject(py)?.into_any().unbind()))
            }
            Found::Direct(repeated) => Ok(Some(Py::new(py, repeated.into_response(py)?)?.into_any())),
        }
    }

    /// The request with this correlation id is about to be sent. A usual response to it is followed by the next one.
    fn arm(&self, fetch: &DirectFetch, correlation_id: i32) {
        *lock(&self.armed) = Some(Armed { session: fetch.shared(), correlation_id });
    }

    /// Nothing is sent here any more. Returns the correlation id of the last request, if requests were repeated.
    fn disarm(&self, py: Python<'_>) -> Option<i32> {
        // The lock of another process may be held for ever, by a thread that does not exist here.
        if std::process::id() != self.process {
            return None;
        }
        let taken = self.armed.try_lock().ok().map(|mut armed| armed.take());
        // A response is being decoded, which takes milliseconds in the worst case.
        let taken = taken.unwrap_or_else(|| py.detach(|| lock(&self.armed).take()));
        if taken.is_some() {
            self.turns.look_again();
        }
        taken.map(|armed| armed.correlation_id)
    }

    /// A poll has noted what it received here. Only then is the next response received.
    fn noted(&self) {
        self.turns.noted();
    }

    /// Whether a poll has received something here that it has not noted.
    #[getter]
    fn is_noting(&self) -> bool {
        self.turns.is_noting()
    }

    /// The poll does not receive here any more.
    fn leave(&self) {
        self.turns.leave();
    }

    /// The receiving thread is to receive now, whatever the poll has done.
    fn hand_over(&self) {
        self.turns.hand_over();
    }

    /// The socket was shut down: the receiving thread is to find that.
    fn close(&self) {
        self.turns.close();
    }
}

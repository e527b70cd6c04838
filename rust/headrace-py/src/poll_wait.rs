//! How a poll waits: for a signal of other threads, and for responses that it can receive by itself (`turns.rs`).

use std::io::{Error, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::direct_fetch::DirectResponse;
use crate::frame_receiver::{FrameReceiver, Ready, Repeated};

/// Belongs to the thread that polls, except for `notify`.
#[pyclass(module = "headrace._native", frozen)]
pub struct PollWait {
    /// The poll waits for a byte in the first.
    signal: (UnixStream, UnixStream),
}

enum Outcome {
    /// The time is up, or a signal has come.
    Ended,
    /// By a signal of the operating system.
    Interrupted,
    /// Received on the connection of this number.
    Direct(usize, Repeated),
}

/// A connection on which the poll may receive just now.
struct Turn<'a> {
    number: usize,
    receiver: &'a FrameReceiver,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.receiver.turns.pause();
    }
}

impl PollWait {
    fn wait(&self, turns: &mut Vec<Turn<'_>>, until: Instant) -> Outcome {
        loop {
            let mut watched = vec![watch(self.signal.0.as_raw_fd())];
            watched.extend(turns.iter().map(|turn| watch(turn.receiver.descriptor)));
            let left = until.saturating_duration_since(Instant::now());
            // SAFETY: the array is valid for its length.
            let found = unsafe {
                libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, milliseconds(left))
            };
            if found < 0 {
                let is_interrupted = Error::last_os_error().kind() == ErrorKind::Interrupted;
                return if is_interrupted { Outcome::Interrupted } else { Outcome::Ended };
            }
            if found == 0 || watched[0].revents != 0 {
                return Outcome::Ended;
            }
            let mut ready = watched[1..].iter().map(|each| each.revents != 0);
            let mut direct = None;
            turns.retain(|turn| {
                if !ready.next().unwrap_or(false) || direct.is_some() {
                    return true;
                }
                match turn.receiver.receive_ready() {
                    Ready::Nothing => true,
                    Ready::Direct(repeated) => {
                        turn.receiver.turns.received();
                        direct = Some((turn.number, repeated));
                        true
                    }
                    Ready::Unusual => {
                        turn.receiver.turns.hand_over();
                        false
                    }
                }
            });
            if let Some((number, repeated)) = direct {
                return Outcome::Direct(number, repeated);
            }
        }
    }

    fn clear(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.signal.0).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }
}

fn watch(descriptor: RawFd) -> libc::pollfd {
    libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 }
}

/// Rounded up: a poll must not look before its time is up, and wait again for nothing.
fn milliseconds(left: Duration) -> libc::c_int {
    libc::c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(libc::c_int::MAX)
}

#[pymethods]
impl PollWait {
    #[new]
    fn new() -> PyResult<Self> {
        let signal = UnixStream::pair()?;
        signal.0.set_nonblocking(true)?;
        signal.1.set_nonblocking(true)?;
        Ok(Self { signal })
    }

    /// Ends the wait, or the next one. On any thread.
    fn notify(&self) {
        // A full buffer is as good as another byte.
        let _ = (&self.signal.1).write(&[1]);
    }

    /// Waits until `notify`, with the GIL released, and receives on those connections whose threads sleep. Returns the
    /// number of the connection, and its response, which is to be noted there (`FrameReceiver.noted`). Signal handlers
    /// are run, and may raise.
    fn receive(
        &self,
        py: Python<'_>,
        receivers: Vec<Py<FrameReceiver>>,
        seconds: f64,
    ) -> PyResult<Option<(usize, DirectResponse)>> {
        let until = Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let mut turns: Vec<_> = receivers
            .iter()
            .enumerate()
            .map(|(number, receiver)| (number, receiver.get()))
            .filter(|(_, receiver)| receiver.turns.enter())
            .map(|(number, receiver)| Turn { number, receiver })
            .filter(|turn| {
                // A response that nobody requested came with the last one: the socket may never be readable again.
                let is_complete = turn.receiver.has_frame();
                if is_complete {
                    turn.receiver.turns.hand_over();
                }
                !is_complete
            })
            .collect();
        loop {
            match py.detach(|| self.wait(&mut turns, until)) {
                Outcome::Interrupted => py.check_signals()?,
                Outcome::Ended => {
                    self.clear();
                    return Ok(None);
                }
                Outcome::Direct(number, repeated) => return Ok(Some((number, repeated.into_response(py)?))),
            }
        }
    }
}

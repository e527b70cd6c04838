//! Who receives on a connection: its own thread, or a poll that waits for records.
//!
//! A response that the thread receives reaches a waiting poll by a change of threads, which takes longer than
//! everything else on the way. So a poll that waits receives by itself, while the thread sleeps:
//!
//! | the poll                     | the thread                                                                       |
//! |------------------------------|----------------------------------------------------------------------------------|
//! | is away                      | receives                                                                         |
//! | waits, for the thread        | receives. After it has brought records to this wait, it sleeps for a moment (1)  |
//! | has left a moment ago        | sleeps until that moment is over, because the next poll may come (1)             |
//! | receives                     | sleeps                                                                           |
//! | notes what it has received   | sleeps, also if the poll was interrupted: the next response must wait            |
//! | has handed over              | receives next, even if another poll begins before the thread is awake            |
//!
//! (1) Not if the poll was away for longer than a moment the last time. A response that comes while a program handles
//! records would be late, and the fetch that follows it, too: the next poll would return only what had been written
//! before the last one.
//!
//! A poll can begin to receive only while the thread sleeps. It passes on to the thread whatever it cannot handle: large
//! and unusual responses, and the end of the connection.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::direct_fetch::lock;

/// How long a thread sleeps that will be woken.
const LONG: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Poll {
    Away,
    Waits,
    Left(Instant),
    Receives,
    Notes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Thread {
    /// It receives, or does something else.
    Awake,
    /// It looks again after a moment.
    Dozes,
    /// It sleeps until it is woken.
    Sleeps,
}

struct State {
    poll: Poll,
    /// How often a poll has begun to wait, and which of these waits the thread has ended with records.
    waits: u64,
    ended: u64,
    /// When a poll left, until the next one comes.
    left_at: Option<Instant>,
    /// The last poll began within a moment after the one before.
    is_prompt: bool,
    thread: Thread,
    /// The thread has something to receive that no poll would see: it may be in the staging area already, all of it.
    is_due: bool,
    /// The poll is using the socket just now.
    is_inside: bool,
    is_closed: bool,
}

pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
    /// How soon a poll that has left is expected back.
    moment: Duration,
}

impl Turns {
    pub fn new(moment: Duration) -> Self {
        let state = State {
            poll: Poll::Away,
            waits: 0,
            ended: 0,
            left_at: None,
            is_prompt: true,
            thread: Thread::Awake,
            is_due: false,
            is_inside: false,
            is_closed: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), moment }
    }

    /// On the connection's thread: returns when it is to receive. `may_sleep` says whether a poll could handle the next
    /// response.
    pub fn await_turn(&self, may_sleep: impl Fn() -> bool) {
        let mut state = lock(&self.state);
        let began = Instant::now();
        loop {
            let until = match state.poll {
                Poll::Receives | Poll::Notes => None,
                _ if state.is_due || !may_sleep() => break,
                Poll::Left(at) if state.is_prompt => Some(at + self.moment),
                Poll::Waits if state.is_prompt && state.ended == state.waits => Some(began + self.moment),
                Poll::Left(_) | Poll::Waits | Poll::Away => break,
            };
            let left = until.map_or(LONG, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() || (state.is_closed && !state.is_inside) {
                break;
            }
            state.thread = if until.is_some() { Thread::Dozes } else { Thread::Sleeps };
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        state.thread = Thread::Awake;
        state.is_due = false;
        state.ended = 0;
        if matches!(state.poll, Poll::Left(_)) {
            state.poll = Poll::Away;
        }
    }

    /// On the connection's thread, which has received records.
    pub fn delivered(&self) {
        let mut state = lock(&self.state);
        state.ended = state.waits;
    }

    /// On the poll's thread. Whether it may use the socket, until `pause`.
    pub fn enter(&self) -> bool {
        let mut state = lock(&self.state);
        state.waits += 1;
        if let Some(at) = state.left_at.take() {
            state.is_prompt = at.elapsed() <= self.moment;
        }
        if state.poll != Poll::Notes {
            let may_receive = state.thread != Thread::Awake && !state.is_due && !state.is_closed;
            state.poll = if may_receive { Poll::Receives } else { Poll::Waits };
        }
        state.is_inside = state.poll == Poll::Receives;
        state.is_inside
    }

    /// The poll does not use the socket any more. It may use it again before the thread receives.
    pub fn pause(&self) {
        let mut state = lock(&self.state);
        state.is_inside = false;
        if state.is_closed {
            self.changed.notify_all();
        }
    }

    /// The poll has received a response. Until `noted`, nobody receives.
    pub fn received(&self) {
        lock(&self.state).poll = Poll::Notes;
    }

    pub fn is_noting(&self) -> bool {
        lock(&self.state).poll == Poll::Notes
    }

    /// The poll continues to receive.
    pub fn noted(&self) {
        let mut state = lock(&self.state);
        if state.poll == Poll::Notes {
            state.poll = Poll::Receives;
        }
    }

    /// The poll ends, or does something else.
    pub fn leave(&self) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        state.left_at = Some(now);
        if matches!(state.poll, Poll::Receives | Poll::Waits) {
            state.poll = Poll::Left(now);
            self.wake(&state);
        }
    }

    fn wake(&self, state: &State) {
        if state.thread == Thread::Sleeps {
            self.changed.notify_all();
        }
    }

    /// The thread is to receive now, even if another poll begins before it is awake.
    pub fn hand_over(&self) {
        let mut state = lock(&self.state);
        state.poll = Poll::Away;
        state.is_due = true;
        self.changed.notify_all();
    }

    /// No poll can handle the next response: a thread that waits for the next poll need not.
    pub fn look_again(&self) {
        self.changed.notify_all();
    }

    pub fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }
}

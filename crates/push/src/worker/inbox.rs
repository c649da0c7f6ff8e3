//! The worker's queues. Putting in never waits; each queue has a bound and an answer to being full.

use super::Worker;
use crate::{PushReports, Register, prepared_push::PreparedPush, stopped};
use parking_lot::{Condvar, Mutex};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tidings_domain::{push_store::DeviceNo, refusals::leader_unavailable};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::PushAccepted,
    limits::PUSH_TARGETS_MAX,
};
use tokio::sync::oneshot;

/// Sessions waiting to be registered. Full: the bind is refused with `queue_full`.
const REGISTERS_MAX: usize = 65_536;
/// Devices in reports of written and acknowledged pushes. Full: the report is dropped, and the pushes that it would have
/// acknowledged are pushed again.
const REPORTS_MAX: usize = 1_000_000;
/// Pushes waiting to be accepted, and the users and devices that they name. Full: refused with `queue_full`.
const ACCEPTS_MAX: usize = 4_096;
const ACCEPT_TARGETS_MAX: usize = 20 * PUSH_TARGETS_MAX;
/// Bytes of other nodes' messages. Full: a message is dropped, and its sender retransmits it.
const PEER_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Other operations waiting. Full: refused with `queue_full`.
const ASKS_MAX: usize = 1_024;

pub(crate) type AcceptResult = Result<PushAccepted, Refusal>;

/// A push that waits for the worker to accept it.
pub(crate) struct Accept {
    pub(crate) push: PreparedPush,
    pub(crate) reply: oneshot::Sender<AcceptResult>,
}

pub(crate) type Ask = Box<dyn FnOnce(&mut Worker) + Send>;

/// All queues, under one lock.
#[derive(Default)]
pub(crate) struct Queues {
    pub(crate) peer_messages: Vec<Vec<u8>>,
    peer_bytes: usize,
    pub(crate) registers: Vec<Register>,
    /// Shard, session, and the session's device if it is known; bounded by the sessions, for each ends once.
    pub(crate) ended_sessions: Vec<(usize, u64, Option<DeviceNo>)>,
    pub(crate) reports: PushReports,
    pub(crate) reports_dropped: u64,
    pub(crate) accepts: Vec<Accept>,
    accept_targets: usize,
    pub(crate) asks: Vec<Ask>,
    pub(crate) stopping: bool,
    /// Another node leads push: this one takes no pushes and operations.
    following: bool,
}

impl Queues {
    fn check_open(&self) -> Result<(), Refusal> {
        match self {
            Queues { stopping: true, .. } => Err(stopped()),
            Queues { following: true, .. } => Err(leader_unavailable()),
            _ => Ok(()),
        }
    }

    fn is_empty(&self, with_new: bool, with_reports: bool) -> bool {
        let new = self.registers.is_empty() && self.accepts.is_empty();
        let others =
            self.ended_sessions.is_empty() && self.peer_messages.is_empty() && self.asks.is_empty() && !self.stopping;
        others && (new || !with_new) && (self.reports.is_empty() || !with_reports)
    }
}

pub(crate) struct Inbox {
    queues: Mutex<Queues>,
    filled: Condvar,
    /// The node is one of a cluster.
    has_peers: bool,
    /// No device falls back before this time. Read by those who look for devices that do, so that they need not ask.
    next_fallback: AtomicU64,
}

fn full(what: &str, limit: usize) -> Refusal {
    Refusal::new(ErrorCode::QueueFull, format!("{what} waiting are limited to {limit}")).retry_after(1_000)
}

impl Inbox {
    pub(crate) fn new(has_peers: bool) -> Self {
        let queues = Mutex::new(Queues { following: has_peers, ..Queues::default() });
        Inbox { queues, filled: Condvar::new(), has_peers, next_fallback: AtomicU64::new(0) }
    }

    /// Why an operation that was queued has no answer: the worker has ended, or lost the lead.
    pub(crate) fn closed_refusal(&self) -> Refusal {
        self.queues.lock().check_open().err().unwrap_or_else(leader_unavailable)
    }

    /// The lead came to this node, or went to another one: operations that wait are refused by dropping their reply
    /// channels. Reports and registrations stay: they hold under any leader.
    pub(crate) fn set_following(&self, following: bool) {
        let mut queues = self.queues.lock();
        queues.following = following;
        queues.accepts.clear();
        queues.accept_targets = 0;
        queues.asks.clear();
    }

    pub(crate) fn has_peers(&self) -> bool {
        self.has_peers
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.queues.lock().stopping
    }

    /// The time before which no device falls back, in milliseconds since 1970 UTC.
    pub(crate) fn next_fallback(&self) -> u64 {
        self.next_fallback.load(Ordering::Acquire)
    }

    pub(super) fn set_next_fallback(&self, at: u64) {
        self.next_fallback.store(at, Ordering::Release);
    }

    /// Devices fall back at this time, too.
    pub(super) fn note_fallback(&self, at: u64) {
        self.next_fallback.fetch_min(at, Ordering::AcqRel);
    }

    fn put<T>(&self, put: impl FnOnce(&mut Queues) -> T) -> T {
        let done = put(&mut self.queues.lock());
        // Costs next to nothing while the worker is not waiting.
        self.filled.notify_one();
        done
    }

    pub(crate) fn register(&self, register: Register) -> Result<(), Refusal> {
        self.put(|queues| {
            if queues.stopping {
                return Err(stopped());
            }
            if queues.registers.len() == REGISTERS_MAX {
                return Err(full("devices", REGISTERS_MAX));
            }
            queues.registers.push(register);
            Ok(())
        })
    }

    pub(crate) fn session_ended(&self, shard: usize, session: u64, device: Option<DeviceNo>) {
        self.put(|queues| queues.ended_sessions.push((shard, session, device)));
    }

    /// Puts a message of another node.
    pub(crate) fn peer_message(&self, message: Vec<u8>) {
        self.put(|queues| {
            if queues.peer_bytes + message.len() <= PEER_BYTES_MAX && !queues.stopping {
                queues.peer_bytes += message.len();
                queues.peer_messages.push(message);
            }
        });
    }

    pub(crate) fn report(&self, reports: PushReports) {
        self.put(|queues| match queues.reports.len() + reports.len() {
            ..=REPORTS_MAX => queues.reports.append(reports),
            _ => queues.reports_dropped += reports.len() as u64,
        });
    }

    pub(crate) fn accept(&self, accept: Accept) -> Result<(), Refusal> {
        self.put(|queues| {
            let targets = queues.accept_targets + accept.push.named_targets();
            queues.check_open()?;
            if queues.accepts.len() == ACCEPTS_MAX {
                return Err(full("pushes", ACCEPTS_MAX));
            }
            if targets > ACCEPT_TARGETS_MAX {
                return Err(full("users and devices of pushes", ACCEPT_TARGETS_MAX));
            }
            queues.accept_targets = targets;
            queues.accepts.push(accept);
            Ok(())
        })
    }

    pub(crate) fn ask(&self, ask: Ask) -> Result<(), Refusal> {
        self.put(|queues| {
            queues.check_open()?;
            if queues.asks.len() == ASKS_MAX {
                return Err(full("push operations", ASKS_MAX));
            }
            queues.asks.push(ask);
            Ok(())
        })
    }

    pub(crate) fn stop(&self) {
        self.put(|queues| queues.stopping = true);
        self.filled.notify_one();
    }

    /// Waits for the stop for a while; answers whether the worker is to stop.
    pub(crate) fn is_stopping_within(&self, timeout: Duration) -> bool {
        let mut queues = self.queues.lock();
        if !queues.stopping {
            self.filled.wait_for(&mut queues, timeout);
        }
        queues.stopping
    }

    /// Takes nothing from here on; operations that wait for an answer get a refusal.
    pub(crate) fn close(&self) {
        *self.queues.lock() = Queues { stopping: true, ..Queues::default() };
    }

    /// Takes everything that is queued, after waiting for it for a while. Without `with_new`, registrations and accepts
    /// stay: the shards have enough to do.
    pub(crate) fn take(&self, timeout: Duration, with_new: bool) -> Queues {
        let mut queues = self.queues.lock();
        if queues.is_empty(with_new, true) && !timeout.is_zero() {
            self.filled.wait_for(&mut queues, timeout);
        }
        let (stopping, following) = (queues.stopping, queues.following);
        let mut taken = std::mem::take(&mut *queues);
        if !with_new && !stopping {
            queues.registers = std::mem::take(&mut taken.registers);
            queues.accepts = std::mem::take(&mut taken.accepts);
            queues.accept_targets = taken.accept_targets;
        }
        (queues.stopping, queues.following) = (stopping, following);
        taken
    }

    /// The same for a node that follows. Without `with_reports`, reports stay.
    pub(crate) fn take_following(&self, timeout: Duration, with_reports: bool) -> Queues {
        let mut queues = self.queues.lock();
        if queues.is_empty(true, with_reports) {
            self.filled.wait_for(&mut queues, timeout);
        }
        let (stopping, following) = (queues.stopping, queues.following);
        let mut taken = std::mem::take(&mut *queues);
        if !with_reports {
            queues.reports = std::mem::take(&mut taken.reports);
        }
        (queues.stopping, queues.following) = (stopping, following);
        taken.stopping = stopping;
        taken
    }

    pub(crate) fn depths(&self) -> [(&'static str, usize, usize); 3] {
        let queues = self.queues.lock();
        [
            ("push_registers", queues.registers.len(), REGISTERS_MAX),
            ("push_accepts", queues.accepts.len(), ACCEPTS_MAX),
            ("push_notes", queues.reports.len(), REPORTS_MAX),
        ]
    }
}

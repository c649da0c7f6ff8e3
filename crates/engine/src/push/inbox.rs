//! What waits for the worker. Putting in never waits; each list has a bound and an answer to being full.

use super::{DeviceNo, Register, accept::Accept, stopped, worker::Worker};
use crate::cluster::leadership::leader_unavailable;
use parking_lot::{Condvar, Mutex};
use std::time::Duration;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::PUSH_TARGETS_MAX,
};

/// Sessions waiting to be registered. Full: the bind is refused with `queue_full`.
const REGISTERS_MAX: usize = 65_536;
/// Devices in reports of what was written or acknowledged. Full: the report is dropped, and what it
/// would have acknowledged is pushed again.
const NOTES_MAX: usize = 1_000_000;
/// Pushes waiting to be accepted, and the users and devices that they name. Full: refused with `queue_full`.
const ACCEPTS_MAX: usize = 4_096;
const ACCEPT_NAMES_MAX: usize = 20 * PUSH_TARGETS_MAX;
/// Bytes that other nodes have said. Full: what they say is lost, and they say it again.
const HEARD_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Other operations waiting. Full: refused with `queue_full`.
const ASKS_MAX: usize = 1_024;

pub(super) type Ask = Box<dyn FnOnce(&mut Worker) + Send>;

/// All that waits.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) heard: Vec<Vec<u8>>,
    heard_bytes: usize,
    pub(super) registers: Vec<Register>,
    /// Shard, session, and its device if it knew; bounded by the sessions: each leaves once.
    pub(super) left: Vec<(usize, u64, Option<DeviceNo>)>,
    pub(super) written: Vec<(u64, Vec<DeviceNo>)>,
    pub(super) acknowledged: Vec<(DeviceNo, Vec<u64>)>,
    notes: usize,
    pub(super) notes_dropped: u64,
    pub(super) accepts: Vec<Accept>,
    accept_names: usize,
    pub(super) asks: Vec<Ask>,
    pub(super) stopping: bool,
    /// Another node does this: nothing is taken.
    away: bool,
}

impl Waiting {
    fn why_not(&self) -> Result<(), Refusal> {
        match self {
            Waiting { stopping: true, .. } => Err(stopped()),
            Waiting { away: true, .. } => Err(leader_unavailable()),
            _ => Ok(()),
        }
    }

    fn is_empty(&self, with_new: bool, with_notes: bool) -> bool {
        let notes = self.written.is_empty() && self.acknowledged.is_empty();
        let new = self.registers.is_empty() && self.accepts.is_empty();
        let old = self.left.is_empty() && self.heard.is_empty() && self.asks.is_empty() && !self.stopping;
        old && (new || !with_new) && (notes || !with_notes)
    }
}

pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    filled: Condvar,
    /// There are other nodes.
    is_shared: bool,
}

fn full(what: &str, limit: usize) -> Refusal {
    Refusal::new(ErrorCode::QueueFull, format!("{what} waiting are limited to {limit}")).retry_after(1_000)
}

impl Inbox {
    pub(super) fn new(is_shared: bool) -> Self {
        let waiting = Mutex::new(Waiting { away: is_shared, ..Waiting::default() });
        Inbox { waiting, filled: Condvar::new(), is_shared }
    }

    /// Why what was asked has no answer: the worker has gone.
    pub(super) fn why_not(&self) -> Refusal {
        self.waiting.lock().why_not().err().unwrap_or_else(leader_unavailable)
    }

    /// From here on this node does push, or another one: then who asks is told so. What is said of sessions that
    /// stay is as true for whoever does it.
    pub(super) fn set_away(&self, away: bool) {
        let mut waiting = self.waiting.lock();
        waiting.away = away;
        waiting.accepts.clear();
        waiting.accept_names = 0;
        waiting.asks.clear();
        if away {
            waiting.registers.retain(|register| register.stays);
        }
    }

    pub(super) fn is_away(&self) -> bool {
        self.waiting.lock().away
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.waiting.lock().stopping
    }

    fn put<T>(&self, put: impl FnOnce(&mut Waiting) -> T) -> T {
        let done = put(&mut self.waiting.lock());
        // Costs next to nothing while nobody waits.
        self.filled.notify_one();
        done
    }

    pub(super) fn register(&self, register: Register) -> Result<(), Refusal> {
        self.put(|waiting| {
            if !(register.stays && self.is_shared && !waiting.stopping) {
                waiting.why_not()?;
            }
            if waiting.registers.len() == REGISTERS_MAX {
                return Err(full("devices", REGISTERS_MAX));
            }
            waiting.registers.push(register);
            Ok(())
        })
    }

    pub(super) fn left(&self, shard: usize, session: u64, device: Option<DeviceNo>) {
        self.put(|waiting| waiting.left.push((shard, session, device)));
    }

    /// What another node has said.
    pub(super) fn hear(&self, said: Vec<u8>) {
        self.put(|waiting| {
            if waiting.heard_bytes + said.len() <= HEARD_BYTES_MAX && !waiting.stopping {
                waiting.heard_bytes += said.len();
                waiting.heard.push(said);
            }
        });
    }

    pub(super) fn written(&self, push: u64, devices: Vec<DeviceNo>) {
        self.note(devices.len(), |waiting| waiting.written.push((push, devices)));
    }

    pub(super) fn acknowledged(&self, device: DeviceNo, pushes: Vec<u64>) {
        self.note(pushes.len(), |waiting| waiting.acknowledged.push((device, pushes)));
    }

    fn note(&self, count: usize, put: impl FnOnce(&mut Waiting)) {
        self.put(|waiting| match waiting.notes + count {
            notes if notes <= NOTES_MAX => {
                waiting.notes = notes;
                put(waiting);
            }
            _ => waiting.notes_dropped += count as u64,
        });
    }

    pub(super) fn accept(&self, accept: Accept) -> Result<(), Refusal> {
        self.put(|waiting| {
            let names = waiting.accept_names + accept.push.names();
            waiting.why_not()?;
            if waiting.accepts.len() == ACCEPTS_MAX {
                return Err(full("pushes", ACCEPTS_MAX));
            }
            if names > ACCEPT_NAMES_MAX {
                return Err(full("users and devices of pushes", ACCEPT_NAMES_MAX));
            }
            waiting.accept_names = names;
            waiting.accepts.push(accept);
            Ok(())
        })
    }

    pub(super) fn ask(&self, ask: Ask) -> Result<(), Refusal> {
        self.put(|waiting| {
            waiting.why_not()?;
            if waiting.asks.len() == ASKS_MAX {
                return Err(full("push operations", ASKS_MAX));
            }
            waiting.asks.push(ask);
            Ok(())
        })
    }

    pub(super) fn stop(&self) {
        self.put(|waiting| waiting.stopping = true);
        self.filled.notify_one();
    }

    /// Waits; answers whether the worker is to stop.
    pub(super) fn is_stopping_within(&self, patience: Duration) -> bool {
        let mut waiting = self.waiting.lock();
        if !waiting.stopping {
            self.filled.wait_for(&mut waiting, patience);
        }
        waiting.stopping
    }

    /// Nothing is taken from here on; who waits for an answer is told so.
    pub(super) fn close(&self) {
        *self.waiting.lock() = Waiting { stopping: true, ..Waiting::default() };
    }

    /// Everything that waits, after waiting for it for a while. Without `with_new`, devices and pushes
    /// that are not taken yet stay: the shards have enough to do.
    pub(super) fn take(&self, patience: Duration, with_new: bool) -> Waiting {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty(with_new, true) && !patience.is_zero() {
            self.filled.wait_for(&mut waiting, patience);
        }
        let (stopping, away) = (waiting.stopping, waiting.away);
        let mut taken = std::mem::take(&mut *waiting);
        if !with_new && !stopping {
            waiting.registers = std::mem::take(&mut taken.registers);
            waiting.accepts = std::mem::take(&mut taken.accepts);
            waiting.accept_names = taken.accept_names;
        }
        (waiting.stopping, waiting.away) = (stopping, away);
        taken
    }

    /// What waits for an outpost, likewise. Without `with_notes`, reports stay.
    pub(super) fn take_at_outpost(&self, patience: Duration, with_notes: bool) -> Waiting {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty(true, with_notes) {
            self.filled.wait_for(&mut waiting, patience);
        }
        let (stopping, away) = (waiting.stopping, waiting.away);
        let mut taken = std::mem::take(&mut *waiting);
        if !with_notes {
            (waiting.written, waiting.acknowledged) =
                (std::mem::take(&mut taken.written), std::mem::take(&mut taken.acknowledged));
            waiting.notes = taken.notes;
        }
        (waiting.stopping, waiting.away) = (stopping, away);
        taken.stopping = stopping;
        taken
    }

    pub(super) fn depths(&self) -> [(&'static str, usize, usize); 3] {
        let waiting = self.waiting.lock();
        [
            ("push_registers", waiting.registers.len(), REGISTERS_MAX),
            ("push_accepts", waiting.accepts.len(), ACCEPTS_MAX),
            ("push_notes", waiting.notes, NOTES_MAX),
        ]
    }
}

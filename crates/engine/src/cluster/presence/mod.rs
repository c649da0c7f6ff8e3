//! Who is online, over all nodes: each tells the others of its own sessions, and knows all.
//!
//! ```text
//! shards ─ arrived, left ─▶ registry ─▶ news ── changes 1, 2, 3 … ──▶ bus ──▶ others' registries
//!                              │               beats: number, sum         │
//!                              └───────── stretches, when asked ◀── ask ──┘ a hole, a sum that differs
//! ```
//! Changes are numbered. A node that misses one asks for everything, which comes as stretches of the registry, each
//! whole by itself; a beat a second tells the number of the last change and the sum of all sessions, so that a
//! lost last change, or whatever else went wrong, is noticed too. Nothing of this says who is alive: that a node
//! is one of the cluster, its lease in the store says, so that nobody goes because the bus does.
//!
//! In reading order: this file, what is said; `exchange`, what is done about it; `worker`, the thread that does it.

mod exchange;
#[cfg(test)]
mod simulation;
mod worker;

use crate::presence::{
    news::{Arrived, Delta, Tally},
    stretches::Place,
};
use serde::{Deserialize, Serialize};
pub(crate) use worker::{PresenceInbox, PresenceThread};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Said {
    pub from: String,
    pub boot_id: u64,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum What {
    /// Sessions came and went. Numbered from 1, without a hole.
    Changes { number: u64, deltas: Vec<Delta> },
    /// The number of the last changes, and the sum of all sessions with them.
    Beat {
        number: u64,
        tally: Tally,
        /// From the one that leads: the age of the oldest change that it has not told the webhook or stored.
        behind_ms: Option<u64>,
    },
    /// A beat is wanted now.
    Look,
    /// Everything is wanted.
    Ask,
    /// The sessions from one place of the registry to another. Parts are numbered from 0; changes up to `number` were
    /// said before the first.
    Stretch { number: u64, part: u32, from: Place, to: Place, sessions: Vec<Arrived> },
}

impl Said {
    fn encode(&self) -> Vec<u8> {
        // Writing to memory cannot fail.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    fn decode(bytes: &[u8]) -> Option<Said> {
        postcard::from_bytes(bytes).ok()
    }
}

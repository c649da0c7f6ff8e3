//! Who is online, over all nodes: each node tells its peers of its own sessions, and knows the sessions of all.
//!
//! ```text
//! shards ─ arrived, left ─▶ registry ─▶ deltas ─ changes 1, 2, 3 … ───────▶ bus ──▶ peers' registries
//!                              │             heartbeats: number, digest          │
//!                              └──── snapshot chunks ◀── snapshot request ───────┘ a gap, a digest that differs
//! ```
//! Changes are numbered. A node that misses one asks for a snapshot, which comes in chunks of the registry; each chunk is
//! true by itself. A heartbeat a second carries the number of the last change and a digest of all sessions, so that a lost
//! last change, and any other error, is noticed too. None of these messages says who is alive: a node belongs to the cluster
//! while its lease in the store runs. So no user goes offline because the bus is down.
//!
//! In reading order: this file, the messages; `exchange`, what a node does about them; `worker`, the thread that does it.

mod exchange;
#[cfg(test)]
#[path = "../../../tests/simulations/presence.rs"]
mod simulation;
mod worker;

use crate::presence::{
    deltas::{Delta, Digest, SessionRecord},
    snapshot::SnapshotCursor,
};
use serde::{Deserialize, Serialize};
pub(crate) use worker::{PresenceInbox, PresenceThread};

/// What a node tells its peers about its sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PresenceMessage {
    pub from: String,
    pub boot_id: u64,
    pub body: PresenceBody,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum PresenceBody {
    /// Sessions that came and went. Numbered from 1, without a gap.
    Changes { number: u64, deltas: Vec<Delta> },
    /// The number of the last changes, and the digest of all sessions after them.
    Heartbeat {
        number: u64,
        digest: Digest,
        /// From the leader: the age of the oldest change that it has not yet stored, or reported to the webhook.
        behind_ms: Option<u64>,
    },
    /// Asks for a heartbeat now.
    HeartbeatRequest,
    /// Asks for a snapshot.
    SnapshotRequest,
    /// The sessions from one place of the registry to another. Parts are numbered from 0. The changes up to `number` were
    /// sent before part 0.
    SnapshotChunk { number: u64, part: u32, from: SnapshotCursor, to: SnapshotCursor, sessions: Vec<SessionRecord> },
}

impl PresenceMessage {
    fn encode(&self) -> Vec<u8> {
        // Writing to memory cannot fail.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    fn decode(bytes: &[u8]) -> Option<PresenceMessage> {
        postcard::from_bytes(bytes).ok()
    }
}

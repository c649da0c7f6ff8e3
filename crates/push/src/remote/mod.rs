//! Pushes to sessions of nodes that do not lead push.
//!
//! ```text
//! shards ─ registrations, ended sessions, reports ─▶ client ══ up: packets 1, 2, 3 … ══▶ worker (leader)
//!        ◀── answers, pushes to sessions and sets ─         ◀═ down: packets 1, 2, 3 … ══  a destination like its shards
//! ```
//! To the worker another node is one more shard, reached over the bus. Packets are numbered in each direction,
//! acknowledged, and retransmitted until they are: an item that the bus loses arrives late, once and in order. A window
//! bounds the unacknowledged bytes; items beyond it wait at their sender, in queues with bounds.
//!
//! A stream lasts as long as both ends do. When the lead moves, or the leader has given up a node that was silent for
//! too long, the node's client opens another stream and registers its sessions anew: the pushes that they have not
//! acknowledged come again.
//!
//! In reading order: `wire`, the messages; `stream`, how they arrive in order; `local_sessions`, the sessions of a node;
//! `peers`, the worker's side. The node's side is the module `remote_client`.

mod local_sessions;
mod peers;
pub(super) mod stream;
pub(super) mod wire;

pub(super) use local_sessions::{AfterRegister, LocalSessions};
pub(super) use peers::{PACKET_BYTES, PeerEvent, Peers};

use std::{sync::Arc, time::Duration};
use wire::PushMessage;

/// Sends messages about pushes to other nodes, and tells what is known of them.
pub trait PeerTransport: Send + Sync + 'static {
    fn own_name(&self) -> &str;
    /// The boot id of this process.
    fn own_boot_id(&self) -> u64;
    /// Sends a message to one node. It may be lost; streams retransmit their packets.
    fn send(&self, to: &Arc<str>, message: Vec<u8>);
    /// Sends a message to all other nodes. It may be lost.
    fn send_to_all(&self, message: Vec<u8>);
    /// The leader, unless this node is.
    fn leader(&self) -> Option<PeerLeader>;
    /// For how long a silent node counts as live.
    fn lease(&self) -> Duration;
}

/// The process that leads, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerLeader {
    pub name: Arc<str>,
    pub boot_id: u64,
}

/// Tells the other nodes that this one leads push from now on: what they know of the leader may be a heartbeat old.
pub(super) fn announce_leader(transport: &dyn PeerTransport) {
    let started = PushMessage::LeaderStarted { from: transport.own_name().into(), boot_id: transport.own_boot_id() };
    transport.send_to_all(started.encode());
}

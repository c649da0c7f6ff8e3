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
//! `client`, the node's side; `peers`, the worker's side.

mod client;
mod local_sessions;
mod peers;
mod stream;
mod wire;

pub(super) use client::RemotePushClient;
pub(super) use local_sessions::{AfterRegister, LocalSessions};
pub(super) use peers::{PeerEvent, Peers};

use crate::cluster::{bus::Bus, nodes::ClusterNodes, wire::BusMessage};
use std::{sync::Arc, time::Duration};
use wire::PushMessage;

/// Sends messages about pushes to other nodes.
#[derive(Clone)]
pub(crate) struct PeerTransport {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) nodes: Arc<ClusterNodes>,
}

/// The process that leads, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Leader {
    name: Arc<str>,
    boot_id: u64,
}

impl PeerTransport {
    fn own_name(&self) -> &str {
        &self.nodes.me().name
    }

    fn send(&self, to: &Arc<str>, message: &PushMessage) {
        self.send_encoded(to, message.encode());
    }

    /// The bus may lose the message; streams retransmit their packets.
    fn send_encoded(&self, to: &Arc<str>, message: Vec<u8>) {
        self.bus.send(std::slice::from_ref(to), BusMessage::Push(message).encode());
    }

    /// Tells the other nodes that this one leads push from now on: what they know of the leader may be a heartbeat old.
    pub(super) fn announce_leader(&self) {
        let started = PushMessage::LeaderStarted { from: self.own_name().into(), boot_id: self.nodes.me().boot_id };
        self.bus.send(&self.nodes.peers(), BusMessage::Push(started.encode()).encode());
    }

    /// The leader, unless this node is.
    fn leader(&self) -> Option<Leader> {
        let leader = self.nodes.leader().filter(|leader| leader.boot_id != self.nodes.me().boot_id)?;
        Some(Leader { name: leader.name.as_str().into(), boot_id: leader.boot_id })
    }

    /// For how long a silent node counts as live.
    fn lease(&self) -> Duration {
        self.nodes.lease()
    }
}

//! Pushes to sessions of nodes that do not do push.
//!
//! ```text
//! shards ─ register, left, written, acknowledged ─▶ outpost ══ up: packets 1, 2, 3 … ══▶ worker (leader)
//!        ◀── answers, pushes to sessions, to sets ─         ◀═ down: packets 1, 2, 3 … ══  a place beside its shards
//! ```
//! To the worker an outpost is one shard more, that it reaches over the bus. Packets are numbered in both directions, confirmed,
//! and sent again until they are: what the bus loses comes late, and neither twice nor out of order. So much may be
//! unconfirmed and no more; what waits beyond that waits at its sender, where it has a bound.
//!
//! A stream lasts as long as both ends do. When the lead moves, or the leader has given an outpost up that was silent for too long,
//! the outpost opens another stream and registers its sessions anew: what they have not acknowledged comes again.
//!
//! In reading order: `wire`, what is said; `stream`, how it arrives; `held`, the sessions of a node; `outpost`, the side of those
//! sessions; `nodes`, the side of the worker.

mod held;
mod nodes;
mod outpost;
mod stream;
mod wire;

pub(super) use held::{Answer, Held};
pub(super) use nodes::{FromNode, Nodes};
pub(super) use outpost::Outpost;

use crate::cluster::{bus::Bus, nodes::ClusterNodes, wire::BusMessage};
use std::{sync::Arc, time::Duration};

/// The way to the other nodes.
#[derive(Clone)]
pub(crate) struct Road {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) nodes: Arc<ClusterNodes>,
}

/// A process that leads, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Leader {
    name: Arc<str>,
    boot_id: u64,
}

impl Road {
    fn name(&self) -> &str {
        &self.nodes.me().name
    }

    fn send(&self, to: &Arc<str>, said: &wire::Said) {
        self.send_encoded(to, said.encode());
    }

    /// Lost if the bus does not take it; what matters is sent again.
    fn send_encoded(&self, to: &Arc<str>, said: Vec<u8>) {
        self.bus.send(std::slice::from_ref(to), BusMessage::Push(said).encode());
    }

    /// Tells the others that push is done here from now on: their view of who leads may be a beat old.
    pub(super) fn say_leads(&self) {
        let leads = wire::Said::Leads { from: self.name().into(), boot_id: self.nodes.me().boot_id };
        self.bus.send(&self.nodes.peers(), BusMessage::Push(leads.encode()).encode());
    }

    /// Who leads, unless it is this node.
    fn leader(&self) -> Option<Leader> {
        let leader = self.nodes.leader().filter(|leader| leader.boot_id != self.nodes.me().boot_id)?;
        Some(Leader { name: leader.name.as_str().into(), boot_id: leader.boot_id })
    }

    /// How long a node counts that is not heard.
    fn lease(&self) -> Duration {
        self.nodes.lease()
    }
}

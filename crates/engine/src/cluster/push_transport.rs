//! Messages about pushes to other nodes: over the bus, beside all others.

use super::{nodes::ClusterNodes, wire::BusMessage};
use std::{sync::Arc, time::Duration};
use tidings_domain::{bus::Bus, function::Function};
use tidings_push::{PeerLeader, PeerTransport};

pub(super) struct PushTransport {
    pub(super) bus: Arc<dyn Bus>,
    pub(super) nodes: Arc<ClusterNodes>,
}

impl PeerTransport for PushTransport {
    fn own_name(&self) -> &str {
        &self.nodes.me().name
    }

    fn own_boot_id(&self) -> u64 {
        self.nodes.me().boot_id
    }

    fn send(&self, to: &Arc<str>, message: Vec<u8>) {
        self.bus.send(std::slice::from_ref(to), BusMessage::Push(message).encode());
    }

    fn send_to_all(&self, message: Vec<u8>) {
        self.bus.send(&self.nodes.peers(), BusMessage::Push(message).encode());
    }

    fn leader(&self) -> Option<PeerLeader> {
        let leader = self.nodes.leader(Function::Push).filter(|leader| leader.boot_id != self.nodes.me().boot_id)?;
        Some(PeerLeader { name: leader.name.as_str().into(), boot_id: leader.boot_id })
    }

    fn lease(&self) -> Duration {
        self.nodes.lease()
    }
}

//! When the gates of a cluster open: the leader opens those that all live nodes have known for a lease.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    commit_log::{ClusterView, NodeInfo},
    gates::{Gate, OpenGates},
};

/// This node's view of the gates.
pub(super) struct ClusterGates {
    open: Arc<OpenGates>,
    /// Gates that are closed and that all live nodes know, and since when that is so.
    ready: Vec<&'static str>,
    since: Instant,
}

/// A gate is open that this node does not know: what the others write now, it cannot read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnknownGate(pub String);

impl ClusterGates {
    pub(super) fn new(open: Arc<OpenGates>) -> ClusterGates {
        ClusterGates { open, ready: Vec::new(), since: Instant::now() }
    }

    /// Notes which gates are open.
    ///
    /// # Errors
    /// [`UnknownGate`]: this node must stop.
    pub(super) fn note(&mut self, me: &NodeInfo, view: &ClusterView) -> Result<(), UnknownGate> {
        if let Some(unknown) = view.open_gates.iter().find(|gate| !me.details.knows(gate)) {
            return Err(UnknownGate(unknown.clone()));
        }
        for gate in view.open_gates.iter().filter_map(|name| Gate::of_name(name)) {
            if self.open.note_open(gate) {
                tracing::info!(gate = gate.name(), "every node reads what is written behind this gate: it is open");
            }
        }
        Ok(())
    }

    /// The gates to open now: a node that was away for less than a lease may come back with the version that it had.
    pub(super) fn due(&mut self, view: &ClusterView, lease: Duration, now: Instant) -> Vec<&'static str> {
        let is_closed = |name: &&str| !view.open_gates.iter().any(|open| open == name);
        let is_known = |name: &&str| view.nodes.iter().all(|node| node.details.knows(name));
        let ready: Vec<_> =
            Gate::ALL.iter().map(|gate| gate.name()).filter(|name| is_closed(name) && is_known(name)).collect();
        if ready != self.ready {
            (self.ready, self.since) = (ready, now);
        }
        if now.saturating_duration_since(self.since) >= lease { self.ready.clone() } else { Vec::new() }
    }
}

#[cfg(test)]
#[path = "../../tests/units/cluster_gates.rs"]
mod tests;

//! The processes that hold connections, and their leases.
//!
//! A node that reports renews its lease. When a node is silent for longer than its lease, its sessions do
//! not count. The boot id tells a process from its successor of the same name.

use parking_lot::RwLock;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// The number of a running process that holds connections. 0 is this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeNo(pub u32);

/// The bit of numbers of other cores of the cluster, each with the gateways that are attached to it.
const PEER_BIT: u32 = 1 << 31;

impl NodeNo {
    /// Whether the number is that of another core. That core reports its sessions to this one, and manages them itself.
    pub fn is_peer(self) -> bool {
        self.0 >= PEER_BIT
    }

    /// The core that gives the node's sessions their numbers.
    pub(super) fn core(self) -> NodeNo {
        if self.is_peer() { self } else { NodeNo(0) }
    }
}

/// A node as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    pub no: NodeNo,
    pub name: String,
    pub boot_id: u64,
    pub address: String,
    pub attached_at: u64,
    /// When the lease ends unless it is renewed, in milliseconds since 1970 UTC; `u64::MAX` for this process.
    pub lease_until: u64,
    pub sessions: i64,
}

struct Node {
    record: NodeRecord,
    lease_until: AtomicU64,
    /// Whether the end of the lease was reported.
    expiry_reported: AtomicBool,
    sessions: AtomicI64,
}

/// The lease of a detached node.
const DETACHED: u64 = 0;
/// Above this many nodes, those whose lease is over and that have no sessions are removed.
const NODES_KEPT: usize = 1_024;

/// The nodes whose sessions are registered.
pub struct Nodes {
    /// By number; a removed node is `None`.
    nodes: RwLock<Vec<Option<Node>>>,
    /// Other cores, by number without [`PEER_BIT`]. The number of a detached core is used again.
    peers: RwLock<Vec<Option<Node>>>,
    /// The latest time that a caller passed, so that reads need no clock.
    now_ms: AtomicU64,
}

impl Default for Nodes {
    fn default() -> Self {
        Nodes::of("core", rand::random(), "")
    }
}

impl Node {
    fn new(record: NodeRecord) -> Self {
        let lease_until = AtomicU64::new(record.lease_until);
        Node { lease_until, expiry_reported: AtomicBool::new(false), sessions: AtomicI64::new(0), record }
    }

    fn record(&self) -> NodeRecord {
        let (lease_until, sessions) = (self.lease_until.load(Ordering::Relaxed), self.sessions.load(Ordering::Relaxed));
        NodeRecord { lease_until, sessions, ..self.record.clone() }
    }
}

impl Nodes {
    /// The nodes of a process with this name, boot id and address.
    pub(super) fn of(name: &str, boot_id: u64, address: &str) -> Self {
        let record = NodeRecord {
            no: NodeNo(0),
            name: name.into(),
            boot_id,
            address: address.into(),
            attached_at: 0,
            lease_until: u64::MAX,
            sessions: 0,
        };
        let nodes = RwLock::new(vec![Some(Node::new(record))]);
        Nodes { nodes, peers: RwLock::default(), now_ms: AtomicU64::new(0) }
    }

    /// Attaches another core of the cluster, which counts until it is detached: its lease and address are in the store.
    pub(crate) fn attach_peer(&self, name: &str, boot_id: u64, now_ms: u64) -> NodeNo {
        let mut peers = self.peers.write();
        let at = peers.iter().position(Option::is_none).unwrap_or(peers.len());
        let (no, name, address) = (NodeNo(PEER_BIT | at as u32), name.into(), String::new());
        let lease_until = u64::MAX;
        let record = NodeRecord { no, name, boot_id, address, attached_at: now_ms, lease_until, sessions: 0 };
        if at == peers.len() {
            peers.push(None);
        }
        peers[at] = Some(Node::new(record));
        no
    }

    /// Detaches another core. The caller has removed its sessions from the registry.
    pub(crate) fn detach_peer(&self, peer: NodeNo) {
        if let Some(place) = self.peers.write().get_mut((peer.0 & !PEER_BIT) as usize) {
            *place = None;
        }
    }

    /// The numbers of the other cores of this name: none while its sessions are not known, two while it takes over from itself.
    pub(super) fn peers_named(&self, name: &str) -> SmallVec<[NodeNo; 2]> {
        let peers = self.peers.read();
        peers.iter().flatten().filter(|peer| peer.record.name == name).map(|peer| peer.record.no).collect()
    }

    /// Calls `look` with a node of either kind.
    fn with<T>(&self, node: NodeNo, look: impl FnOnce(&Node) -> T) -> Option<T> {
        let (nodes, at) = if node.is_peer() { (&self.peers, node.0 & !PEER_BIT) } else { (&self.nodes, node.0) };
        nodes.read().get(at as usize)?.as_ref().map(look)
    }

    /// Attaches a process; its lease runs from now.
    pub fn attach(&self, name: &str, boot_id: u64, address: &str, now_ms: u64, lease_ms: u64) -> NodeNo {
        let mut nodes = self.nodes.write();
        let no = NodeNo(nodes.len() as u32);
        nodes.push(Some(Node::new(NodeRecord {
            no,
            name: name.into(),
            boot_id,
            address: address.into(),
            attached_at: now_ms,
            lease_until: now_ms + lease_ms,
            sessions: 0,
        })));
        if nodes.len() > NODES_KEPT {
            // A node whose lease is over and that has no sessions matters to nothing but the list of nodes.
            let over = |node: &Node| {
                node.lease_until.load(Ordering::Relaxed) < now_ms && node.sessions.load(Ordering::Relaxed) <= 0
            };
            nodes.iter_mut().filter(|node| node.as_ref().is_some_and(over)).for_each(|node| *node = None);
        }
        no
    }

    /// Renews the lease of a node. A node that was only late counts again; a detached one does not.
    pub fn renew(&self, node: NodeNo, now_ms: u64, lease_ms: u64) {
        self.set_now(now_ms);
        if let Some(Some(node)) = self.nodes.read().get(node.0 as usize) {
            let longer = |until: u64| (until != DETACHED).then_some(now_ms + lease_ms);
            let _ = node.lease_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer);
            node.expiry_reported.store(false, Ordering::Relaxed);
        }
    }

    /// Nodes whose lease has ended since the last call, without those that detached.
    pub fn expired(&self, now_ms: u64) -> Vec<NodeNo> {
        self.set_now(now_ms);
        let is_over = |node: &&Node| {
            let until = node.lease_until.load(Ordering::Relaxed);
            until != DETACHED && until < now_ms && !node.expiry_reported.swap(true, Ordering::Relaxed)
        };
        self.nodes.read().iter().flatten().filter(is_over).map(|node| node.record.no).collect()
    }

    /// Detaches a node that has said goodbye, or whose name a successor has.
    pub fn detach(&self, node: NodeNo) {
        if let Some(Some(node)) = self.nodes.read().get(node.0 as usize) {
            node.lease_until.store(DETACHED, Ordering::Relaxed);
        }
    }

    pub(super) fn count(&self, node: NodeNo, by: i64) {
        self.with(node, |node| node.sessions.fetch_add(by, Ordering::Relaxed));
    }

    pub(super) fn set_now(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    pub fn is_alive(&self, node: NodeNo) -> bool {
        if node == NodeNo(0) {
            return true;
        }
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        self.with(node, |node| node.lease_until.load(Ordering::Relaxed) >= now_ms).unwrap_or(false)
    }

    pub fn record(&self, node: NodeNo) -> Option<NodeRecord> {
        self.with(node, Node::record)
    }

    /// Nodes whose lease runs, and nodes that still have registered sessions.
    pub fn records(&self, now_ms: u64) -> Vec<NodeRecord> {
        let (nodes, peers) = (self.nodes.read(), self.peers.read());
        let records = nodes.iter().chain(peers.iter()).flatten().map(Node::record);
        records.filter(|record| record.lease_until >= now_ms || record.sessions > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_not_renewed_ends_and_is_reported_once() {
        let nodes = Nodes::default();
        let node = nodes.attach("a", 7, "10.0.0.1:8081", 1_000, 500);
        nodes.set_now(1_500);
        assert!(nodes.is_alive(node) && nodes.is_alive(NodeNo(0)));
        assert_eq!(nodes.expired(1_500), []);
        assert_eq!(nodes.expired(1_501), [node]);
        assert_eq!(nodes.expired(1_502), [], "reported once");
        assert!(!nodes.is_alive(node) && nodes.is_alive(NodeNo(0)));
        nodes.renew(node, 1_600, 500);
        assert!(nodes.is_alive(node), "it was only late");
        nodes.detach(node);
        assert!(!nodes.is_alive(node));
        assert_eq!(nodes.records(1_600).len(), 1, "this process");
        nodes.renew(node, 1_700, 500);
        assert!(!nodes.is_alive(node), "its successor has the name: what it still says does not count");
        assert_eq!(nodes.expired(9_000), []);
    }
}

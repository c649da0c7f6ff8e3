//! Processes that hold connections, and their leases.
//!
//! A node that is heard renews its lease; one that is silent for longer does not count any more, nor
//! do its sessions. Its boot id tells a process from its successor of the same name.

use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// A process that holds connections, for as long as it runs. 0 is the one that this runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeNo(pub u32);

/// Numbers from here on are other cores of the cluster, each with the gateways that are attached to it.
const PEERS: u32 = 1 << 31;

impl NodeNo {
    /// Whether it is another core: what it holds is its own business, told to us and not looked after by us.
    pub fn is_peer(self) -> bool {
        self.0 >= PEERS
    }

    /// The core that numbers the node's sessions.
    pub(super) fn core(self) -> NodeNo {
        if self.is_peer() { self } else { NodeNo(0) }
    }
}

/// A node as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCard {
    pub no: NodeNo,
    pub name: String,
    pub boot_id: u64,
    pub address: String,
    pub attached_at: u64,
    /// When its lease ends unless it is renewed, in milliseconds since 1970 UTC; `u64::MAX` for ourselves.
    pub lease_until: u64,
    pub sessions: i64,
}

struct Node {
    card: NodeCard,
    lease_until: AtomicU64,
    /// The end of its lease has been told.
    told_over: AtomicBool,
    sessions: AtomicI64,
}

/// The lease of a node that has gone for good.
const DETACHED: u64 = 0;
/// Nodes that are gone are forgotten in order once there are so many.
const GONE_KEPT: usize = 1_024;

pub struct Nodes {
    /// By number; those that are gone are `None`.
    nodes: RwLock<Vec<Option<Node>>>,
    /// Other cores, by number without [`PEERS`]. Places of those that have gone are used again.
    peers: RwLock<Vec<Option<Node>>>,
    /// The last time that anybody said: reads need no clock.
    now_ms: AtomicU64,
}

impl Default for Nodes {
    fn default() -> Self {
        Nodes::of("core", rand::random(), "")
    }
}

impl Node {
    fn new(card: NodeCard) -> Self {
        let lease_until = AtomicU64::new(card.lease_until);
        Node { lease_until, told_over: AtomicBool::new(false), sessions: AtomicI64::new(0), card }
    }

    fn card(&self) -> NodeCard {
        let (lease_until, sessions) = (self.lease_until.load(Ordering::Relaxed), self.sessions.load(Ordering::Relaxed));
        NodeCard { lease_until, sessions, ..self.card.clone() }
    }
}

impl Nodes {
    /// With what this process is called.
    pub(super) fn of(name: &str, boot_id: u64, address: &str) -> Self {
        let card = NodeCard {
            no: NodeNo(0),
            name: name.into(),
            boot_id,
            address: address.into(),
            attached_at: 0,
            lease_until: u64::MAX,
            sessions: 0,
        };
        let nodes = RwLock::new(vec![Some(Node::new(card))]);
        Nodes { nodes, peers: RwLock::default(), now_ms: AtomicU64::new(0) }
    }

    /// Another core of the cluster, which counts until it is detached: its lease is in the store, and with it where it is.
    pub(crate) fn attach_peer(&self, name: &str, boot_id: u64, now_ms: u64) -> NodeNo {
        let mut peers = self.peers.write();
        let at = peers.iter().position(Option::is_none).unwrap_or(peers.len());
        let (no, name, address) = (NodeNo(PEERS | at as u32), name.into(), String::new());
        let lease_until = u64::MAX;
        let card = NodeCard { no, name, boot_id, address, attached_at: now_ms, lease_until, sessions: 0 };
        if at == peers.len() {
            peers.push(None);
        }
        peers[at] = Some(Node::new(card));
        no
    }

    /// After its sessions were taken off the registry.
    pub(crate) fn detach_peer(&self, peer: NodeNo) {
        if let Some(place) = self.peers.write().get_mut((peer.0 & !PEERS) as usize) {
            *place = None;
        }
    }

    /// Looks at a node, of whichever kind.
    fn with<T>(&self, node: NodeNo, look: impl FnOnce(&Node) -> T) -> Option<T> {
        let (nodes, at) = if node.is_peer() { (&self.peers, node.0 & !PEERS) } else { (&self.nodes, node.0) };
        nodes.read().get(at as usize)?.as_ref().map(look)
    }

    /// A process has attached; its lease runs from now.
    pub fn attach(&self, name: &str, boot_id: u64, address: &str, now_ms: u64, lease_ms: u64) -> NodeNo {
        let mut nodes = self.nodes.write();
        let no = NodeNo(nodes.len() as u32);
        nodes.push(Some(Node::new(NodeCard {
            no,
            name: name.into(),
            boot_id,
            address: address.into(),
            attached_at: now_ms,
            lease_until: now_ms + lease_ms,
            sessions: 0,
        })));
        if nodes.len() > GONE_KEPT {
            // A node long over its lease and without sessions is no more than a line in a list.
            let over = |node: &Node| {
                node.lease_until.load(Ordering::Relaxed) < now_ms && node.sessions.load(Ordering::Relaxed) <= 0
            };
            nodes.iter_mut().filter(|node| node.as_ref().is_some_and(over)).for_each(|node| *node = None);
        }
        no
    }

    /// The node was heard. One that was only late counts again; one that is detached does not.
    pub fn renew(&self, node: NodeNo, now_ms: u64, lease_ms: u64) {
        self.tell_time(now_ms);
        if let Some(Some(node)) = self.nodes.read().get(node.0 as usize) {
            let longer = |until: u64| (until != DETACHED).then_some(now_ms + lease_ms);
            let _ = node.lease_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer);
            node.told_over.store(false, Ordering::Relaxed);
        }
    }

    /// Nodes whose lease is over since this was last asked, unless they said goodbye.
    pub fn expired(&self, now_ms: u64) -> Vec<NodeNo> {
        self.tell_time(now_ms);
        let is_over = |node: &&Node| {
            let until = node.lease_until.load(Ordering::Relaxed);
            until != DETACHED && until < now_ms && !node.told_over.swap(true, Ordering::Relaxed)
        };
        self.nodes.read().iter().flatten().filter(is_over).map(|node| node.card.no).collect()
    }

    /// The node has said goodbye, or a successor has its name.
    pub fn detach(&self, node: NodeNo) {
        if let Some(Some(node)) = self.nodes.read().get(node.0 as usize) {
            node.lease_until.store(DETACHED, Ordering::Relaxed);
        }
    }

    pub(super) fn count(&self, node: NodeNo, by: i64) {
        self.with(node, |node| node.sessions.fetch_add(by, Ordering::Relaxed));
    }

    pub(super) fn tell_time(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
    }

    pub fn is_alive(&self, node: NodeNo) -> bool {
        if node == NodeNo(0) {
            return true;
        }
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        self.with(node, |node| node.lease_until.load(Ordering::Relaxed) >= now_ms).unwrap_or(false)
    }

    pub fn card(&self, node: NodeNo) -> Option<NodeCard> {
        self.with(node, Node::card)
    }

    /// Nodes whose lease runs, and those that still have sessions registered.
    pub fn cards(&self, now_ms: u64) -> Vec<NodeCard> {
        let (nodes, peers) = (self.nodes.read(), self.peers.read());
        let cards = nodes.iter().chain(peers.iter()).flatten().map(Node::card);
        cards.filter(|card| card.lease_until >= now_ms || card.sessions > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_not_renewed_ends() {
        let nodes = Nodes::default();
        let node = nodes.attach("a", 7, "10.0.0.1:8081", 1_000, 500);
        nodes.tell_time(1_500);
        assert!(nodes.is_alive(node) && nodes.is_alive(NodeNo(0)));
        assert_eq!(nodes.expired(1_500), []);
        assert_eq!(nodes.expired(1_501), [node]);
        assert_eq!(nodes.expired(1_502), [], "told once");
        assert!(!nodes.is_alive(node) && nodes.is_alive(NodeNo(0)));
        nodes.renew(node, 1_600, 500);
        assert!(nodes.is_alive(node), "it was only late");
        nodes.detach(node);
        assert!(!nodes.is_alive(node));
        assert_eq!(nodes.cards(1_600).len(), 1, "ourselves");
        nodes.renew(node, 1_700, 500);
        assert!(!nodes.is_alive(node), "its successor has the name: what it still says does not count");
        assert_eq!(nodes.expired(9_000), []);
    }
}

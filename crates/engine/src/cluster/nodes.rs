//! The nodes of the cluster and its leader: leases in the store, by the store's clock.
//!
//! A node that cannot reach the store keeps its last view of its peers. It leads only until its lease ends by its own
//! clock.

use super::wire::BusMessage;
use parking_lot::{Condvar, Mutex, RwLock};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_domain::{
    bus::Bus,
    commit_log::{ClusterView, CommitLog, HeartbeatError, NodeInfo},
    leadership::LeaderElection,
    metrics::Metrics,
    store::{StoreError, Term},
};

/// A lease is renewed so many times before it would end.
const HEARTBEATS_PER_LEASE: u32 = 5;
/// The leader stops this part of its lease before the lease ends, because clocks do not run alike.
const LEASE_MARGIN: f64 = 0.3;
/// Peers that are remembered because of their hellos.
const HELLOS_MAX: usize = 1_024;

#[derive(Default)]
struct View {
    nodes: Vec<NodeInfo>,
    leader: Option<u64>,
    trouble: Option<String>,
    stopping: bool,
}

/// This node's lease as the leader. Read often, and therefore without a lock.
struct LeaderLease {
    started: Instant,
    /// By our own clock, in milliseconds since `started`.
    until_ms: AtomicU64,
    /// 0: this node does not lead.
    term: AtomicU64,
}

impl Default for LeaderLease {
    fn default() -> Self {
        LeaderLease { started: Instant::now(), until_ms: AtomicU64::new(0), term: AtomicU64::new(0) }
    }
}

impl LeaderLease {
    fn set(&self, term: Option<Term>, until: Instant) {
        // The term goes first: a reader that sees the new end sees the term that it belongs to.
        self.term.store(term.map_or(0, |term| term.0), Ordering::Release);
        let until_ms = until.saturating_duration_since(self.started).as_millis() as u64;
        self.until_ms.store(if term.is_some() { until_ms } else { 0 }, Ordering::Release);
    }

    fn is_valid(&self) -> bool {
        (self.started.elapsed().as_millis() as u64) < self.until_ms.load(Ordering::Acquire)
    }

    fn term(&self) -> Option<Term> {
        Some(Term(self.term.load(Ordering::Acquire))).filter(|term| *term != Term::ALONE)
    }
}

/// This node's view of the cluster, and its own lease in it.
pub struct ClusterNodes {
    me: NodeInfo,
    /// Where this node is reached for HTTP and for links, once its listeners are open.
    addresses: RwLock<Option<(String, String)>>,
    lease: Duration,
    may_lead: bool,
    view: RwLock<View>,
    leader_lease: LeaderLease,
    /// The peers' names, as the bus takes them.
    peers: RwLock<Arc<[Arc<str>]>>,
    /// When each peer said hello over the bus, if that is no longer ago than a lease.
    hellos: Mutex<HashMap<Arc<str>, Instant>>,
    sleep: (Mutex<bool>, Condvar),
    log: Arc<dyn CommitLog>,
    bus: Arc<dyn Bus>,
    metrics: Arc<Metrics>,
}

impl ClusterNodes {
    pub(crate) fn new(
        me: NodeInfo,
        lease: Duration,
        may_lead: bool,
        (log, bus): (Arc<dyn CommitLog>, Arc<dyn Bus>),
        metrics: Arc<Metrics>,
    ) -> ClusterNodes {
        ClusterNodes {
            me,
            addresses: RwLock::default(),
            lease,
            may_lead,
            view: RwLock::default(),
            leader_lease: LeaderLease::default(),
            peers: RwLock::new(Arc::new([])),
            hellos: Mutex::default(),
            sleep: (Mutex::new(false), Condvar::new()),
            log,
            bus,
            metrics,
        }
    }

    /// How long a silent node counts as alive.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    pub fn me(&self) -> &NodeInfo {
        &self.me
    }

    /// This node's listeners are open: its next heartbeat, which goes out now, carries their addresses.
    pub fn announce_addresses(&self, address: String, link: String) {
        *self.addresses.write() = Some((address, link));
        self.wake();
    }

    /// The names of all other nodes.
    pub(crate) fn peers(&self) -> Arc<[Arc<str>]> {
        self.peers.read().clone()
    }

    /// All nodes whose leases run, this one included.
    pub fn all(&self) -> Vec<NodeInfo> {
        self.view.read().nodes.clone()
    }

    /// Whether this node leads, and no other can: its lease runs by its own clock.
    pub fn is_leader(&self) -> bool {
        self.leader_lease.is_valid()
    }

    /// The node that leads, as far as is known.
    pub fn leader(&self) -> Option<NodeInfo> {
        let view = self.view.read();
        view.nodes.iter().find(|node| Some(node.boot_id) == view.leader).cloned()
    }

    /// Why this node's lease is not renewed, if it is not.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.view.read().trouble.clone()
    }

    /// A peer said hello over the bus: before its lease was seen in the store, or because it cannot reach the store.
    pub(crate) fn on_hello(&self, name: &str, boot_id: u64) {
        if name != self.me.name {
            let mut hellos = self.hellos.lock();
            hellos.retain(|_, at| at.elapsed() < self.lease);
            if hellos.len() < HELLOS_MAX {
                hellos.insert(name.into(), Instant::now());
            }
        }
        if self.view.read().nodes.iter().any(|node| node.name == name && node.boot_id != boot_id) {
            // A new process has the peer's name: look it up now instead of at the next heartbeat.
            self.wake();
        }
        if name != self.me.name && !self.peers.read().iter().any(|peer| &**peer == name) {
            let mut peers = self.peers.write();
            *peers = peers.iter().cloned().chain([name.into()]).collect();
            drop(peers);
            // The same for a new peer.
            self.wake();
        }
    }

    fn heartbeat(&self, takes_name: bool) -> Result<(), HeartbeatError> {
        let sent = Instant::now();
        let mut me = self.me.clone();
        if let Some((address, link)) = self.addresses.read().clone() {
            (me.address, me.link) = (address, link);
        }
        let view = self.log.heartbeat(&me, self.lease.as_millis() as u64, self.may_lead, takes_name)?;
        self.update_view(view, sent);
        Ok(())
    }

    fn update_view(&self, new: ClusterView, heartbeat_sent: Instant) {
        let names = new.nodes.iter().filter(|node| node.boot_id != self.me.boot_id);
        let mut names: BTreeSet<Arc<str>> = names.map(|node| node.name.as_str().into()).collect();
        // A peer that says hello and has no lease is cut off from the store alone: its sessions still get what others
        // commit.
        let hellos = self.hellos.lock();
        names.extend(hellos.iter().filter(|(_, at)| at.elapsed() < self.lease).map(|(name, _)| name.clone()));
        drop(hellos);
        let peers: Arc<[Arc<str>]> = names.into_iter().collect();
        let known: BTreeSet<Arc<str>> = self.peers.read().iter().cloned().collect();
        let new_peers: Vec<Arc<str>> = peers.iter().filter(|name| !known.contains(*name)).cloned().collect();
        *self.peers.write() = peers;
        let mut view = self.view.write();
        let led = view.leader == Some(self.me.boot_id);
        let leads = new.leader == Some(self.me.boot_id);
        self.leader_lease.set(leads.then_some(new.term), heartbeat_sent + self.lease.mul_f64(1.0 - LEASE_MARGIN));
        (view.nodes, view.leader, view.trouble) = (new.nodes, new.leader, None);
        self.metrics.cluster.nodes.set(view.nodes.len() as i64);
        self.metrics.cluster.leader.set(i64::from(leads));
        drop(view);
        if leads != led {
            tracing::info!(leads, "the lead of the cluster has changed");
        }
        self.say_hello(&new_peers);
    }

    fn say_hello(&self, to: &[Arc<str>]) {
        if !to.is_empty() {
            let hello = BusMessage::Hello { name: self.me.name.clone(), boot_id: self.me.boot_id };
            self.bus.send(to, hello.encode());
        }
    }

    fn wake(&self) {
        *self.sleep.0.lock() = true;
        self.sleep.1.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.view.write().stopping = true;
        self.wake();
    }

    /// Sends heartbeats, on a thread of its own, until this node is stopped or displaced.
    pub(crate) fn run(&self, displaced: impl Fn()) {
        // The first heartbeat takes the name, so that an earlier process with this name stops.
        let mut takes_name = true;
        loop {
            if self.view.read().stopping {
                let _ = self.log.release_lease(self.me.boot_id);
                return;
            }
            match self.heartbeat(takes_name) {
                Ok(()) => takes_name = false,
                Err(HeartbeatError::Displaced) => {
                    tracing::error!(name = self.me.name, "another process has taken this node's name: this one drains");
                    let mut view = self.view.write();
                    view.trouble = Some("another process has taken this node's name".into());
                    view.leader = None;
                    self.leader_lease.set(None, Instant::now());
                    drop(view);
                    displaced();
                    return;
                }
                Err(HeartbeatError::Store(error)) => {
                    self.note_failure(&error);
                    // The peers see this node's lease end; without a hello they would send it nothing more.
                    self.say_hello(&self.peers());
                }
            }
            let mut awake = self.sleep.0.lock();
            if !std::mem::take(&mut *awake) {
                self.sleep.1.wait_for(&mut awake, self.lease / HEARTBEATS_PER_LEASE);
                *awake = false;
            }
        }
    }

    fn note_failure(&self, error: &StoreError) {
        let mut view = self.view.write();
        if view.trouble.is_none() {
            tracing::warn!(%error, "the lease in the cluster could not be renewed");
        }
        view.trouble = Some(format!("the lease in the cluster could not be renewed: {error}"));
    }
}

impl LeaderElection for ClusterNodes {
    fn term(&self) -> Option<Term> {
        self.leader_lease.term()
    }

    fn holds(&self, term: Term) -> bool {
        self.leader_lease.is_valid() && self.leader_lease.term() == Some(term)
    }
}

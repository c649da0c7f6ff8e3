//! The nodes of the cluster and its leader: leases in the store, by the store's clock.
//!
//! A node that cannot reach the store keeps its last view of its peers. It leads only until its lease ends by its own
//! clock.

use super::{
    gates::{ClusterGates, UnknownGate},
    leader_lease::LeaderLease,
    wire::{BusMessage, WIRE_VERSION},
};
use parking_lot::{Condvar, Mutex, RwLock};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    bus::Bus,
    commit_log::{ClusterView, CommitLog, HeartbeatError, LeaderSign, NodeInfo},
    end_reason::EndReason,
    failure_log::FailureLog,
    gates::OpenGates,
    leadership::LeaderElection,
    metrics::Metrics,
    store::{StoreError, Term},
};

/// A lease is renewed so many times before it would end.
const HEARTBEATS_PER_LEASE: u32 = 5;
/// The leader stops this part of its lease before the lease ends, because clocks do not run alike.
const LEASE_MARGIN: f64 = 0.3;
/// The roles of nodes that may lead, as their records spell them.
const ROLES_THAT_LEAD: [&str; 2] = ["all", "worker"];
/// Peers that are remembered because of their hellos.
const HELLOS_MAX: usize = 1_024;

/// Why a heartbeat did not renew the lease.
enum LeaseError {
    Lost(HeartbeatError),
    Gate(UnknownGate),
}

impl From<HeartbeatError> for LeaseError {
    fn from(error: HeartbeatError) -> Self {
        LeaseError::Lost(error)
    }
}

impl From<UnknownGate> for LeaseError {
    fn from(gate: UnknownGate) -> Self {
        LeaseError::Gate(gate)
    }
}

#[derive(Default)]
struct View {
    nodes: Vec<NodeInfo>,
    leader: Option<u64>,
    trouble: Option<String>,
    /// Whether any node has led since this one started.
    has_seen_leader: bool,
    stopping: bool,
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
    gates: Mutex<ClusterGates>,
    /// The peers' names, as the bus takes them.
    peers: RwLock<Arc<[Arc<str>]>>,
    /// When each peer said hello over the bus, if that is no longer ago than a lease.
    hellos: Mutex<HashMap<Arc<str>, Instant>>,
    sleep: (Mutex<bool>, Condvar),
    log: Arc<dyn CommitLog>,
    bus: Arc<dyn Bus>,
    metrics: Arc<Metrics>,
    renewals: FailureLog,
}

/// What [`super::life_signs`] asks of the node, and tells it.
impl ClusterNodes {
    pub(super) fn may_lead(&self) -> bool {
        self.may_lead
    }

    /// This node's sign was set, by a look that was answered at this time.
    pub(super) fn sign_was_set(&self, answered: Instant) {
        self.leader_lease.sign_was_set(answered);
        self.renew_soon();
    }

    /// This node's sign is set, as a look showed that was sent at this time.
    pub(super) fn confirm_sign(&self, sent: Instant) {
        if self.leader_lease.sign_counts() {
            self.leader_lease.take_evidence(sent);
        } else {
            self.renew_soon();
        }
    }

    /// This node's sign is gone or does not count: if it leads, renewals show instead that it lives.
    pub(super) fn renew_soon(&self) {
        if self.leader_lease.term().is_some() {
            self.wake();
        }
    }

    /// Takes the lead from a leader that has ended.
    pub(super) fn succeed(&self, lost: LeaderSign) {
        match self.log.succeed(self.me.boot_id, self.lease.as_millis() as u64, lost) {
            Ok(true) => {
                tracing::info!("the leader has ended: this node succeeds it");
                self.wake();
            }
            // Another node was faster, or the leader lives.
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "the lead of a leader that has ended could not be taken"),
        }
    }
}

impl ClusterNodes {
    pub(crate) fn new(
        mut me: NodeInfo,
        lease: Duration,
        may_lead: bool,
        gates: Arc<OpenGates>,
        (log, bus): (Arc<dyn CommitLog>, Arc<dyn Bus>),
        metrics: Arc<Metrics>,
    ) -> ClusterNodes {
        me.details.wire_version = WIRE_VERSION;
        let leader_lease = LeaderLease::new(log.has_life_signs());
        ClusterNodes {
            me,
            addresses: RwLock::default(),
            lease,
            may_lead,
            view: RwLock::default(),
            leader_lease,
            gates: Mutex::new(ClusterGates::new(gates)),
            peers: RwLock::new(Arc::new([])),
            hellos: Mutex::default(),
            sleep: (Mutex::new(false), Condvar::new()),
            log,
            bus,
            metrics,
            renewals: FailureLog::new("the lease in the cluster could not be renewed"),
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

    /// Whether any node has led since this one started.
    pub(crate) fn has_seen_leader(&self) -> bool {
        self.view.read().has_seen_leader
    }

    /// Why what one node does for all is refused, if no node leads.
    pub(crate) fn leader_trouble(&self) -> Option<String> {
        let view = self.view.read();
        if view.leader.is_some() {
            return None;
        }
        let nodes = view.nodes.len();
        Some(if view.nodes.iter().any(|node| ROLES_THAT_LEAD.contains(&&*node.roles)) {
            "no node leads at the moment".into()
        } else {
            format!("no node may lead: none of the {nodes} nodes that run has the role all or worker")
        })
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

    fn heartbeat(&self, takes_name: bool) -> Result<(), LeaseError> {
        let sent = Instant::now();
        let mut me = self.me.clone();
        if let Some((address, link)) = self.addresses.read().clone() {
            (me.address, me.link) = (address, link);
        }
        let view = self.log.heartbeat(&me, self.lease.as_millis() as u64, self.may_lead, takes_name)?;
        let mut gates = self.gates.lock();
        gates.note(&self.me, &view)?;
        let due = if view.leader == Some(me.boot_id) { gates.due(&view, self.lease, sent) } else { Vec::new() };
        drop(gates);
        let known_by: Vec<u64> = view.nodes.iter().map(|node| node.boot_id).collect();
        self.update_view(view, sent);
        if !due.is_empty() {
            // The next heartbeat tells whether they are open.
            self.log.open_gates(&due, &known_by).map_err(HeartbeatError::from)?;
            self.wake();
        }
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
        if leads {
            self.leader_lease.on_renewal(heartbeat_sent);
        }
        self.leader_lease.set(leads.then_some(new.term), heartbeat_sent + self.lease.mul_f64(1.0 - LEASE_MARGIN));
        (view.nodes, view.leader, view.trouble) = (new.nodes, new.leader, None);
        view.has_seen_leader |= new.leader.is_some();
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

    pub(super) fn wake(&self) {
        *self.sleep.0.lock() = true;
        self.sleep.1.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.view.write().stopping = true;
        self.wake();
    }

    /// Sends heartbeats, on a thread of its own, until this node is stopped or displaced: then it calls `end`.
    pub(crate) fn run(&self, end: impl Fn(EndReason)) {
        // The first heartbeat takes the name, so that an earlier process with this name stops.
        let mut takes_name = true;
        loop {
            if self.view.read().stopping {
                let _ = self.log.release_lease(self.me.boot_id);
                return;
            }
            match self.heartbeat(takes_name) {
                Ok(()) => {
                    takes_name = false;
                    self.renewals.succeeded();
                }
                Err(LeaseError::Lost(HeartbeatError::Store(error))) => {
                    self.note_failure(&error);
                    // The peers see this node's lease end; without a hello they would send it nothing more.
                    self.say_hello(&self.peers());
                }
                Err(ended) => {
                    let reason = match ended {
                        LeaseError::Lost(_) => EndReason::Displaced { name: self.me.name.clone() },
                        LeaseError::Gate(UnknownGate(gate)) => {
                            // The others need not wait for the end of its lease to open further gates.
                            let _ = self.log.release_lease(self.me.boot_id);
                            EndReason::UnknownGate(gate)
                        }
                    };
                    let mut view = self.view.write();
                    view.trouble = Some(reason.to_string());
                    view.leader = None;
                    self.leader_lease.set(None, Instant::now());
                    drop(view);
                    end(reason);
                    return;
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
        self.renewals.failed(error);
        self.view.write().trouble = Some(format!("the lease in the cluster could not be renewed: {error}"));
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

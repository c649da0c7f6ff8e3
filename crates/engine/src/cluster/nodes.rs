//! The nodes of the cluster and the leaders of its functions: leases in the store, by the store's clock.
//!
//! A node that cannot reach the store keeps its last view of its peers. It leads only until its leases end by its own
//! clock. A function moves to a node with less to do in three steps: its leader stops deciding, the store gives it to the other
//! node in a new term, and that node reads what is stored before it serves.

use super::{
    gates::{ClusterGates, UnknownGate},
    leader_lease::LeaderLeases,
    spread::{Move, Spread},
    wire::{BusMessage, WIRE_VERSION},
};
use parking_lot::{Condvar, Mutex, RwLock};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_domain::{
    bus::Bus,
    commit_log::{ClusterView, CommitLog, HeartbeatError, Leader, LeaderSign, NodeInfo},
    end_reason::EndReason,
    failure_log::FailureLog,
    function::Function,
    gates::OpenGates,
    leadership::LeaderElection,
    metrics::{FunctionLabel, Metrics},
    store::{StoreError, Term},
};

/// A lease is renewed so many times before it would end.
const HEARTBEATS_PER_LEASE: u32 = 5;
/// The leader stops this part of its lease before the lease ends, because clocks do not run alike.
const LEASE_MARGIN: f64 = 0.3;
/// From when a function is decided no more until another node gets it: what was decided before is stored meanwhile.
const STORED_WITHIN: Duration = Duration::from_millis(200);
/// The roles of nodes that may lead, as their records spell them.
const ROLES_THAT_LEAD: [&str; 2] = ["all", "worker"];
/// The roles of nodes that take sessions.
const ROLES_WITH_SESSIONS: [&str; 2] = ["all", "api"];
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
    nodes: Vec<Arc<NodeInfo>>,
    leaders: Vec<Leader>,
    /// The functions that have leases of their own.
    leased: Vec<Function>,
    /// When a node has come or gone, or another one has begun to lead, last.
    changed_at: Option<Instant>,
    /// Since when nobody leads a function.
    unled_since: [Option<Instant>; Function::COUNT],
    trouble: Option<String>,
    /// Whether any node has led since this one started.
    has_seen_leader: bool,
    stopping: bool,
}

impl View {
    fn leader(&self, function: Function) -> Option<Leader> {
        self.leaders.iter().copied().find(|leader| leader.term.function == function)
    }

    /// `without`: a node that has ended, though its lease runs.
    fn spread(&self, without: Option<u64>) -> Spread {
        let may_lead = |node: &&Arc<NodeInfo>| ROLES_THAT_LEAD.contains(&&*node.roles) && !node.details.draining;
        let nodes = self.nodes.iter().filter(may_lead).map(|node| node.boot_id).filter(|node| Some(*node) != without);
        Spread::new(nodes, &self.leased, |function| self.leader(function).map(|leader| leader.boot_id))
    }

    /// Whether functions have leases of their own.
    fn is_split(&self) -> bool {
        self.leased.len() > 1
    }

    /// The functions that are led under the lease of this one: those without a lease move with the first of all.
    fn led_with(&self, function: Function) -> Vec<Function> {
        let is_led_with =
            |other: &Function| *other == function || function == Function::ALL[0] && !self.leased.contains(other);
        Function::ALL.into_iter().filter(is_led_with).collect()
    }

    fn is_alike(&self, new: &ClusterView) -> bool {
        self.nodes.iter().map(|node| node.boot_id).eq(new.nodes.iter().map(|node| node.boot_id))
            && self.leaders == new.leaders
            && self.leased == new.leased
    }
}

/// This node's view of the cluster, and its own lease in it.
pub struct ClusterNodes {
    me: NodeInfo,
    /// Where this node is reached for HTTP and for links, once its listeners are open.
    addresses: RwLock<Option<(String, String)>>,
    lease: Duration,
    may_lead: bool,
    /// For so long nothing must have changed before a function moves to a node with less to do.
    balance_after: Duration,
    draining: AtomicBool,
    view: RwLock<View>,
    leases: LeaderLeases,
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
    /// Whether this node takes a function whose leader has ended. `by_all`: the node that is to take it has not done so.
    pub(super) fn may_succeed(&self, lost: LeaderSign, by_all: bool) -> bool {
        let view = self.view.read();
        self.may_lead
            && !self.is_draining()
            && lost.boot_id != self.me.boot_id
            && (by_all
                || !view.is_split()
                || view.spread(Some(lost.boot_id)).successors().contains(&(lost.function, self.me.boot_id)))
    }

    /// This node's sign was set, by a look that was answered at this time.
    pub(super) fn sign_was_set(&self, answered: Instant) {
        self.leases.sign_was_set(answered);
        self.renew_soon();
    }

    /// This node's sign is set, as a look showed that was sent at this time.
    pub(super) fn confirm_sign(&self, sent: Instant) {
        if self.leases.sign_counts() {
            self.leases.take_evidence(sent);
        } else {
            self.renew_soon();
        }
    }

    /// This node's sign is gone or does not count: if it leads, renewals show instead that it lives.
    pub(super) fn renew_soon(&self) {
        if self.leases.leads_any() {
            self.wake();
        }
    }

    /// Takes the lead from a leader that has ended.
    pub(super) fn succeed(&self, lost: LeaderSign) {
        let function = lost.function.name();
        match self.log.succeed(self.me.boot_id, self.lease.as_millis() as u64, lost) {
            Ok(true) => {
                tracing::info!(function, "the leader has ended: this node succeeds it");
                self.wake();
            }
            // Another node was faster, or the leader lives.
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, function, "the lead of a leader that has ended could not be taken"),
        }
    }
}

impl ClusterNodes {
    pub(crate) fn new(
        mut me: NodeInfo,
        (lease, balance_after): (Duration, Duration),
        may_lead: bool,
        gates: Arc<OpenGates>,
        (log, bus): (Arc<dyn CommitLog>, Arc<dyn Bus>),
        metrics: Arc<Metrics>,
    ) -> ClusterNodes {
        me.details.wire_version = WIRE_VERSION;
        let leases = LeaderLeases::new(log.has_life_signs());
        ClusterNodes {
            me,
            addresses: RwLock::default(),
            lease,
            may_lead,
            balance_after,
            draining: AtomicBool::new(false),
            view: RwLock::default(),
            leases,
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
    pub fn all(&self) -> Vec<Arc<NodeInfo>> {
        self.view.read().nodes.clone()
    }

    /// Where gateways attach to this node, and to every node that takes sessions and is not about to stop. `None`: this node has
    /// no such listener, or its peers do not know it yet.
    pub fn session_links(&self) -> Option<(String, Vec<String>)> {
        let (_, own) = self.addresses.read().clone().filter(|(_, link)| !link.is_empty())?;
        let view = self.view.read();
        let takes_sessions = |node: &&Arc<NodeInfo>| {
            ROLES_WITH_SESSIONS.contains(&&*node.roles) && !node.details.draining && !node.link.is_empty()
        };
        let all: Vec<String> = view.nodes.iter().filter(takes_sessions).map(|node| node.link.clone()).collect();
        let is_listed = view.nodes.iter().any(|node| node.boot_id == self.me.boot_id && node.link == own);
        is_listed.then_some((own, all))
    }

    /// Whether this node leads the function, and no other can: its lease runs by its own clock.
    pub fn leads(&self, function: Function) -> bool {
        self.leases.is_valid(function)
    }

    /// The node that leads the function, as far as is known.
    pub fn leader(&self, function: Function) -> Option<Arc<NodeInfo>> {
        let view = self.view.read();
        let leader = view.leader(function)?.boot_id;
        view.nodes.iter().find(|node| node.boot_id == leader).cloned()
    }

    /// The functions that this node leads, as far as is known.
    pub fn functions_of(&self, boot_id: u64) -> Vec<Function> {
        let view = self.view.read();
        view.leaders.iter().filter(|leader| leader.boot_id == boot_id).map(|leader| leader.term.function).collect()
    }

    /// The terms in which functions are led, for tests.
    pub fn leaders(&self) -> Vec<Leader> {
        self.view.read().leaders.clone()
    }

    /// This node takes no further function. It goes on with those that it leads until it stops.
    pub(crate) fn begin_drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether any node has led since this one started.
    pub(crate) fn has_seen_leader(&self) -> bool {
        self.view.read().has_seen_leader
    }

    /// Why what one node does for all is refused, if a function is led by no node.
    pub(crate) fn leader_trouble(&self) -> Option<String> {
        let view = self.view.read();
        let unled = Function::ALL.into_iter().filter(|function| view.leader(*function).is_none());
        let unled: Vec<&str> = unled.map(Function::name).collect();
        if unled.is_empty() {
            return None;
        }
        let nodes = view.nodes.len();
        Some(if !view.nodes.iter().any(|node| ROLES_THAT_LEAD.contains(&&*node.roles)) {
            format!("no node may lead: none of the {nodes} nodes that run has the role all or worker")
        } else if unled.len() == Function::COUNT {
            "no node leads at the moment".into()
        } else {
            format!("no node leads at the moment: {}", unled.join(", "))
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
        me.details.draining = self.is_draining();
        let view = self.log.heartbeat(&me, self.lease.as_millis() as u64, &self.takes(), takes_name)?;
        let mut gates = self.gates.lock();
        gates.note(&self.me, &view)?;
        let opens = view.leader(Function::Housekeeping).is_some_and(|leader| leader.boot_id == me.boot_id);
        let due = if opens { gates.due(&view, self.lease, sent) } else { Vec::new() };
        drop(gates);
        let known_by: Vec<u64> = view.nodes.iter().map(|node| node.boot_id).collect();
        self.update_view(view, sent);
        if !due.is_empty() {
            // The next heartbeat tells whether they are open.
            self.log.open_gates(&due, &known_by).map_err(HeartbeatError::from)?;
            self.wake();
        }
        self.balance();
        Ok(())
    }

    /// The functions that this node takes now if nobody leads them.
    fn takes(&self) -> Vec<Function> {
        if !self.may_lead || self.is_draining() {
            return Vec::new();
        }
        let view = self.view.read();
        if !view.is_split() {
            // At its start a node does not know whether there are others.
            return Function::ALL.to_vec();
        }
        let successors = view.spread(None).successors();
        let waits_long = |function: Function| {
            let since = view.unled_since[function as usize];
            since.is_some_and(|since| since.elapsed() >= 2 * self.lease / HEARTBEATS_PER_LEASE)
        };
        let is_own = |function: &Function| successors.contains(&(*function, self.me.boot_id)) || waits_long(*function);
        Function::ALL.into_iter().filter(is_own).collect()
    }

    /// Hands a function over to a node with less to do, if this node has more.
    fn balance(&self) {
        let view = self.view.read();
        let is_calm = view.changed_at.is_some_and(|changed| changed.elapsed() >= self.balance_after);
        let next = (view.is_split() && is_calm).then(|| view.spread(None).next_move()).flatten();
        let Some(Move { function, to, .. }) = next.filter(|next| next.from == self.me.boot_id) else { return };
        let moved = view.led_with(function);
        drop(view);
        moved.iter().for_each(|function| self.leases.suspend(*function));
        std::thread::sleep(STORED_WITHIN);
        match self.log.hand_over(function, self.me.boot_id, to, self.lease.as_millis() as u64) {
            Ok(true) => {
                moved.iter().for_each(|function| self.leases.end(*function));
                self.metrics.cluster.moves.inc();
                tracing::info!(function = function.name(), "a node with less to do leads this function from here on");
            }
            // This node has lost it, or leads it further.
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, function = function.name(), "a function could not be handed over"),
        }
        self.view.write().changed_at = Some(Instant::now());
        self.wake();
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
        if !view.is_alike(&new) {
            view.changed_at = Some(Instant::now());
        }
        let (led, mut is_unled_now) = (self.functions_led(), false);
        for function in Function::ALL {
            let leader = new.leader(function);
            let is_own = leader.is_some_and(|leader| leader.boot_id == self.me.boot_id);
            match leader.filter(|_| is_own) {
                Some(leader) => self.leases.set(leader.term, heartbeat_sent + self.lease.mul_f64(1.0 - LEASE_MARGIN)),
                None => self.leases.end(function),
            }
            let label = FunctionLabel { function: function.name() };
            self.metrics.cluster.leads.get_or_create(&label).set(i64::from(is_own));
            let since = &mut view.unled_since[function as usize];
            is_unled_now |= leader.is_none() && since.is_none();
            *since = leader.is_none().then(|| since.unwrap_or_else(Instant::now));
        }
        let leads = self.functions_led();
        if !leads.is_empty() {
            self.leases.on_renewal(heartbeat_sent);
        }
        view.has_seen_leader |= !new.leaders.is_empty();
        view.nodes = new.nodes.into_iter().map(Arc::new).collect();
        (view.leaders, view.leased, view.trouble) = (new.leaders, new.leased, None);
        self.metrics.cluster.nodes.set(view.nodes.len() as i64);
        self.metrics.cluster.leader.set(i64::from(leads.contains(&Function::Push)));
        drop(view);
        if leads != led {
            let names: Vec<&str> = leads.iter().map(|function| function.name()).collect();
            tracing::info!(leads = names.join(" "), "this node leads other functions of the cluster than before");
        }
        if is_unled_now {
            // The next heartbeat takes what is this node's.
            self.wake();
        }
        self.say_hello(&new_peers);
    }

    fn functions_led(&self) -> Vec<Function> {
        Function::ALL.into_iter().filter(|function| self.leases.term(*function).is_some()).collect()
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
                    view.leaders.clear();
                    Function::ALL.into_iter().for_each(|function| self.leases.end(function));
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
    fn term(&self, function: Function) -> Option<Term> {
        self.leases.term(function)
    }

    fn holds(&self, term: Term) -> bool {
        self.leases.is_valid(term.function) && self.leases.term(term.function) == Some(term)
    }
}

//! Several nodes on one store.
//!
//! The store's commit order is the one thing that all nodes agree on. Each node follows that order from where it started:
//! it has its own commits already, those of its peers reach it over the [`Bus`], and it reads from the store what the bus
//! lost. So nothing rests on the bus, and a session's cursor means the same on every node.
//!
//! In reading order: [`CommitLog`], the store's side; [`Bus`], which carries messages between nodes; [`wire`], those messages;
//! `follower`, which applies commits in order; `recent_entries`, which answers short resumes from memory; `hub`, which
//! sends and receives; `audiences`, what need not be sent to a peer; [`nodes`], the peers and who leads which function; `spread`, how functions are shared; `leader_lease` and
//! `life_signs`, by which a leader that has ended is succeeded before its leases end; `gates`, what all of them understand; `agreement`, whether the nodes' settings and clocks agree;
//! `store_time`, the time that a node gives; `log_pruner`, which keeps the log short; `presence`, who is
//! online on any node; `push_transport`, for messages about pushes; `stream_peers`,
//! for chunks of messages that grow; [`leader_client`], for requests to the leader.

mod agreement;
mod audiences;
mod follower;
mod gates;
mod hub;
pub mod leader_client;
mod leader_lease;
mod life_signs;
mod log_pruner;
pub mod nodes;
pub(crate) mod presence;
mod push_transport;
pub(crate) mod recent_entries;
mod spread;
pub(crate) mod store_time;
mod stream_peers;
pub mod wire;

use crate::{
    hub::Applier,
    presence::{Presence, SessionLimits},
    shards::Shards,
    streams::StreamPeers,
};
use agreement::Agreement;
use audiences::{AudienceTeller, PeerAudiences};
use crossbeam_channel::{Sender, bounded};
use follower::{Follower, MissingBatches};
use hub::{ClusterHub, PeerMessageHandler};
use log_pruner::LogPruner;
use nodes::ClusterNodes;
use parking_lot::Mutex;
use presence::PresenceThread;
use push_transport::PushTransport;
use std::{collections::BTreeMap, convert::Infallible, sync::Arc, thread::JoinHandle, time::Duration};
use store_time::StoreTime;
use stream_peers::PeerChunks;
use tidings_domain::{
    bus::Bus,
    clock::Clock,
    commit_log::{CommitLog, NodeInfo},
    end_reason::{EndReason, required},
    failure_log::FailureLog,
    gates::OpenGates,
    metrics::Metrics,
    model::*,
    refusals::store_refusal,
    store::*,
};
use tidings_protocol::error::{ErrorCode, Refusal};
use tidings_push::{PeerInbox, PeerTransport};
use wire::BusMessage;

/// How long a session waits until this node has applied all that the session's client has seen on another node.
const CATCH_UP_MAX: Duration = Duration::from_secs(10);

/// What a node needs to be one of several.
pub struct ClusterParts {
    pub log: Arc<dyn CommitLog>,
    pub bus: Arc<dyn Bus>,
    pub node: NodeInfo,
    /// How long a silent node counts as alive.
    pub lease: Duration,
    /// Whether this node may lead functions.
    pub may_lead: bool,
    /// For so long nothing must have changed before a function moves to a node with less to do.
    pub balance_after: Duration,
    /// Bytes of entries kept in memory for clients that come back soon. Older entries are read from the store.
    pub recent_bytes_max: usize,
    /// Fingerprints of what all nodes must have alike, by [`tidings_domain::node_settings::SharedSetting::name`].
    pub fingerprints: BTreeMap<String, String>,
}

/// The parts of the engine that the cluster's threads use.
pub(crate) struct ClusterContext {
    pub presence: Arc<Presence>,
    pub shards: Arc<Shards>,
    pub clock: Arc<dyn Clock>,
    pub session_limits: SessionLimits,
    /// How long the feed of events has the changes in the log.
    pub events_keep: Duration,
}

const PRESENCE_UNKNOWN: &str = "this node has just started, and has not heard yet who is online on the others";

/// This node's part in the cluster.
pub struct Cluster {
    pub nodes: Arc<ClusterNodes>,
    pub(crate) follower: Arc<Follower>,
    log: Arc<dyn CommitLog>,
    bus: Arc<dyn Bus>,
    metrics: Arc<Metrics>,
    agreement: Arc<Agreement>,
    presence: PresenceThread,
    audiences: Arc<PeerAudiences>,
    gates: Arc<OpenGates>,
    /// The log pruner and the comparison of settings run until this is dropped.
    running: Mutex<Option<Sender<Infallible>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Cluster {
    pub(crate) fn new(
        parts: ClusterParts,
        from: Position,
        gates: &Arc<OpenGates>,
        (applier, push): (&Applier, &PeerInbox),
        metrics: &Arc<Metrics>,
        time: Arc<StoreTime>,
    ) -> Cluster {
        let ClusterParts { log, bus, node, lease, may_lead, balance_after, recent_bytes_max, fingerprints } = parts;
        let agreement = Agreement::new((node.boot_id, lease), fingerprints, time, bus.clone(), metrics.clone());
        let agreement = Arc::new(agreement);
        let follower =
            Follower::new(from, recent_bytes_max, applier.clone(), (log.clone(), bus.clone()), metrics.clone());
        let nodes = ClusterNodes::new(
            node,
            (lease, balance_after),
            may_lead,
            gates.clone(),
            (log.clone(), bus.clone()),
            metrics.clone(),
        );
        let (follower, nodes) = (Arc::new(follower), Arc::new(nodes));
        let presence = PresenceThread::default();
        let desks = applier.directory.desks.clone();
        let audiences = Arc::new(PeerAudiences::new(move |pair| desks.sides(pair).is_some()));
        let handler = PeerMessageHandler {
            applier: applier.clone(),
            follower: follower.clone(),
            nodes: nodes.clone(),
            presence: presence.inbox(),
            audiences: audiences.clone(),
            push: push.clone(),
            bus: bus.clone(),
            metrics: metrics.clone(),
        };
        let (request_bus, request_nodes, name) = (bus.clone(), nodes.clone(), nodes.me().name.clone());
        follower.request_batches_with(move |MissingBatches { after, attempt, sender }| {
            let peers = request_nodes.peers();
            let next = || peers.get(attempt.checked_rem(peers.len()).unwrap_or(0)).cloned();
            if let Some(peer) = sender.or_else(next) {
                let request = BusMessage::RequestBatches { name: name.clone(), after };
                request_bus.send(&[peer], request.encode());
            }
        });
        bus.listen(&nodes.me().name, Arc::new(handler));
        let (metrics, gates) = (metrics.clone(), gates.clone());
        let (running, threads) = Default::default();
        Cluster { nodes, follower, log, bus, metrics, agreement, presence, audiences, gates, running, threads }
    }

    /// How pushes travel between the leader and the nodes whose sessions it pushes to.
    pub(crate) fn push_transport(&self) -> Arc<dyn PeerTransport> {
        Arc::new(PushTransport { bus: self.bus.clone(), nodes: self.nodes.clone() })
    }

    /// How chunks of this node's messages that grow travel to other nodes.
    pub(crate) fn stream_peers(&self, boot_id: u64) -> Arc<dyn StreamPeers> {
        Arc::new(PeerChunks { bus: self.bus.clone(), nodes: self.nodes.clone(), boot_id })
    }

    pub(crate) fn hub(&self, applier: Applier, presence: Arc<Presence>) -> ClusterHub {
        let (follower, nodes, bus) = (self.follower.clone(), self.nodes.clone(), self.bus.clone());
        let (audiences, metrics) = (self.audiences.clone(), self.metrics.clone());
        ClusterHub { applier, follower, nodes, presence, audiences, bus, metrics }
    }

    /// Begins to follow the commit order and to send heartbeats. `end` is called when this node must end, with the reason.
    pub(crate) fn start(&self, context: ClusterContext, end: impl Fn(EndReason) + Clone + Send + 'static) {
        let events_keep = context.events_keep;
        self.presence.start(context, self.nodes.clone(), self.bus.clone(), self.metrics.clone());
        let (follower, nodes) = (self.follower.clone(), self.nodes.clone());
        let also_end = end.clone();
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        let (running, stopped) = bounded(0);
        *self.running.lock() = Some(running);
        let failures = FailureLog::new("old changes could not be removed from the commit log");
        let (log, stops) = (self.log.clone(), stopped.clone());
        let pruner = LogPruner { log, nodes: nodes.clone(), events_keep, stopped: stops, failures };
        let (agreement, log) = (self.agreement.clone(), self.log.clone());
        agreement.exchange_or_log(&*log);
        let (watching, signs) = (nodes.clone(), self.log.clone());
        let (gates, bus, told) = (self.gates.clone(), self.bus.clone(), stopped.clone());
        let teller = follower.live_audience().map(|audience| {
            let teller = AudienceTeller { audience, nodes: nodes.clone(), gates, bus };
            named("audience").spawn(move || teller.run(&told))
        });
        let (has_life_signs, watched) = (signs.has_life_signs(), stopped.clone());
        let threads = [
            named("follower").spawn(move || follower.run(end)),
            named("nodes").spawn(move || nodes.run(also_end)),
            named("log").spawn(move || pruner.run()),
            named("agreement").spawn(move || agreement.run(&*log, &stopped)),
        ];
        let watcher =
            has_life_signs.then(|| named("signs").spawn(move || life_signs::run(&watching, &*signs, &watched)));
        let threads = threads.into_iter().chain(watcher).chain(teller);
        self.threads.lock().extend(threads.map(|thread| required("cluster", thread)));
    }

    /// Leaves the cluster. The committer must have ended before.
    pub(crate) fn stop(&self) {
        self.presence.stop();
        self.nodes.stop();
        self.follower.stop();
        drop(self.running.lock().take());
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        self.bus.stop();
    }

    pub(crate) fn readiness(&self) -> Result<(), String> {
        match self.follower.trouble().or_else(|| self.nodes.trouble()) {
            Some(trouble) => Err(trouble),
            None if !self.presence.is_synced() => Err(PRESENCE_UNKNOWN.into()),
            // Only until the first leader: later, all nodes would leave a balancer at once whenever the leader dies.
            None if !self.nodes.has_seen_leader() => Err(self.nodes.leader_trouble().unwrap_or_default()),
            None => self.agreement.readiness(),
        }
    }

    /// In what other nodes differ from this one, and how far its clock is off: a sentence each, for operators. The node may be
    /// ready all the same.
    pub fn warnings(&self) -> Vec<String> {
        self.agreement.warnings()
    }

    /// The names of the settings in which that node differs from this one.
    pub(crate) fn differences_of(&self, boot_id: u64) -> Vec<String> {
        self.agreement.differences_of(boot_id)
    }

    /// Refuses while this node cannot tell who is online: after its start it must first hear of its peers' sessions.
    pub(crate) fn check_presence(&self) -> Result<(), Refusal> {
        if self.presence.is_synced() {
            Ok(())
        } else {
            Err(Refusal::new(ErrorCode::NodeUnavailable, PRESENCE_UNKNOWN).retry_after(1_000))
        }
    }

    /// What is wrong with the bus. The node is ready all the same.
    pub fn bus_trouble(&self) -> Option<String> {
        self.bus.trouble()
    }

    /// Why what one node does for all is refused now, if a function is led by no node. A node that has been ready stays ready.
    pub fn leader_trouble(&self) -> Option<String> {
        self.nodes.leader_trouble()
    }

    /// The entries that a session missed, if all of them are in memory.
    pub(crate) fn missed(&self, tails: &[Tail], query: MissedQuery) -> Option<MissedEntries> {
        let entries = self.follower.recent_entries.missed(tails, query)?;
        self.metrics.cluster.recent_resumes.inc();
        Some(MissedEntries { entries, remaining: vec![] })
    }

    /// Sends a popup to a session of another node. Returns whether the bus took it.
    pub(crate) fn send_popup(&self, node: &str, user: UserNo, session: u64, frame: Vec<u8>) -> bool {
        self.bus.send(&[node.into()], BusMessage::Popup { user, session, frame }.encode())
    }

    /// Waits until this node's shards have come as far as a cursor from another node. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`: they did not come so far in time, or the store could not be asked whether there is as much.
    pub(crate) fn catch_up(&self, cursor: &Cursor) -> Result<(), Refusal> {
        let target = cursor.positions.into_iter().max().unwrap_or_default();
        let is_applied = self.follower.wait_until_applied(target, Duration::ZERO);
        if !is_applied && target > self.log.newest_position().map_err(store_refusal)? {
            // The cursor is of a history that an older one has replaced: the resume tells the client so.
            return Ok(());
        }
        if !self.follower.wait_until_applied(target, CATCH_UP_MAX) {
            return Err(late());
        }
        self.pass_barrier(&Lane::ALL, None)
    }

    /// Waits until this shard, or every one, has come as far in these lanes as this node has applied commits. Blocks.
    fn pass_barrier(&self, lanes: &[Lane], shard: Option<usize>) -> Result<(), Refusal> {
        self.follower.barrier(lanes, shard).wait(CATCH_UP_MAX).then_some(()).ok_or_else(late)
    }

    /// For users who have bound at a shard that had come as far as `since`: waits until the shard has come as far as the
    /// commits that had been taken to concern no session of this node before. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`: it did not come so far in time.
    pub(crate) fn pass_skipped(&self, shard: usize, since: [Position; LANES]) -> Result<(), Refusal> {
        let skipped = self.follower.live_audience().map_or([0; LANES], |audience| audience.skipped());
        let is_behind = |lane: &Lane| skipped[*lane as usize] > since[*lane as usize];
        let behind: Vec<Lane> = Lane::ALL.into_iter().filter(is_behind).collect();
        if behind.is_empty() { Ok(()) } else { self.pass_barrier(&behind, Some(shard)) }
    }
}

fn late() -> Refusal {
    let detail = "this node has not come as far as another did; try again";
    Refusal::new(ErrorCode::StoreUnavailable, detail).retry_after(1_000)
}

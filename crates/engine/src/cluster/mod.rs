//! Several nodes on one store.
//!
//! The store's commit order is the one thing that all nodes agree on. Each node follows it from where it started:
//! its own commits it knows, those of others reach it over the [`bus`], and what did not come it reads from the
//! store. So nothing rests on the bus, and a session's cursor means the same on every node.
//!
//! In reading order: [`log`], the store's side; [`bus`], the road between nodes; `wire`, what is said on it; `follower`, which
//! keeps the order; `recent`, what it has seen lately; `hub`, which sends and hears; [`nodes`], who is there and who leads; `keeper`, which shortens
//! the log; `presence`, who is
//! online on any of them; `lead`, for those who do what one node does for all; [`asking`], for those
//! who ask it.

pub mod asking;
pub mod bus;
mod follower;
mod hub;
mod keeper;
pub(crate) mod lead;
pub mod log;
pub mod nodes;
pub(crate) mod presence;
pub(crate) mod recent;
pub mod wire;

use crate::{
    commit::store_refusal,
    engine::Engine,
    hub::Applier,
    metrics::Metrics,
    model::*,
    push::{PushEar, Road},
    store::*,
};
use bus::Bus;
use crossbeam_channel::{Sender, bounded};
use follower::Follower;
use hub::{ClusterHub, NodeEar};
use keeper::Keeper;
use log::{CommitLog, NodeInfo};
use nodes::ClusterNodes;
use parking_lot::Mutex;
use presence::PresenceThread;
use std::{convert::Infallible, sync::Arc, thread::JoinHandle, time::Duration};
use tidings_protocol::error::{ErrorCode, Refusal};
use wire::Message;

/// How long a session waits for this node to come as far as its client has come elsewhere.
const CATCH_UP_MAX: Duration = Duration::from_secs(10);

/// What a node needs to be one of several.
pub struct ClusterParts {
    pub log: Arc<dyn CommitLog>,
    pub bus: Arc<dyn Bus>,
    pub node: NodeInfo,
    /// How long a node counts that is not heard.
    pub lease: Duration,
    /// Whether it may do what one node does for all.
    pub may_lead: bool,
    /// Bytes of entries kept in memory for clients that come back soon. What is older is read from the store.
    pub recent_bytes_max: usize,
}

const NOBODY_KNOWN: &str = "this node has just started, and has not heard yet who is online on the others";

/// This node among others.
pub struct Cluster {
    pub nodes: Arc<ClusterNodes>,
    pub(crate) follower: Arc<Follower>,
    log: Arc<dyn CommitLog>,
    bus: Arc<dyn Bus>,
    metrics: Arc<Metrics>,
    presence: PresenceThread,
    /// Held until the log need not be kept any more.
    keeping: Mutex<Option<Sender<Infallible>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Cluster {
    pub(crate) fn new(
        parts: ClusterParts,
        from: Position,
        (applier, push): (&Applier, &PushEar),
        metrics: &Arc<Metrics>,
    ) -> Cluster {
        let ClusterParts { log, bus, node, lease, may_lead, recent_bytes_max } = parts;
        let follower =
            Follower::new(from, recent_bytes_max, applier.clone(), (log.clone(), bus.clone()), metrics.clone());
        let nodes = ClusterNodes::new(node, lease, may_lead, (log.clone(), bus.clone()), metrics.clone());
        let (follower, nodes) = (Arc::new(follower), Arc::new(nodes));
        let presence = PresenceThread::default();
        let ear = NodeEar {
            applier: applier.clone(),
            follower: follower.clone(),
            nodes: nodes.clone(),
            presence: presence.inbox(),
            push: push.clone(),
            bus: bus.clone(),
            metrics: metrics.clone(),
        };
        let (asks, asked_of, name) = (bus.clone(), nodes.clone(), nodes.me().name.clone());
        follower.ask_by(move |after, turn| {
            let peers = asked_of.peers();
            if let Some(peer) = peers.get(turn.checked_rem(peers.len()).unwrap_or(0)) {
                asks.send(std::slice::from_ref(peer), Message::Ask { name: name.clone(), after }.encode());
            }
        });
        bus.listen(&nodes.me().name, Arc::new(ear));
        let metrics = metrics.clone();
        Cluster { nodes, follower, log, bus, metrics, presence, keeping: Mutex::default(), threads: Mutex::default() }
    }

    /// The way to the node that does push, or to those whose sessions it pushes to.
    pub(crate) fn push_road(&self) -> Road {
        Road { bus: self.bus.clone(), nodes: self.nodes.clone() }
    }

    pub(crate) fn hub(&self, applier: Applier) -> ClusterHub {
        let (follower, nodes, bus) = (self.follower.clone(), self.nodes.clone(), self.bus.clone());
        ClusterHub { applier, follower, nodes, bus }
    }

    /// Begins to follow and to beat.
    pub(crate) fn start(engine: &Arc<Engine>) {
        let Some(cluster) = &engine.cluster else { return };
        cluster.presence.start(engine);
        let (follower, nodes, engine) = (cluster.follower.clone(), cluster.nodes.clone(), Arc::downgrade(engine));
        let drain = move || {
            if let Some(engine) = engine.upgrade() {
                engine.begin_drain();
            }
        };
        let also_drain = drain.clone();
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        let (keeping, stopped) = bounded(0);
        *cluster.keeping.lock() = Some(keeping);
        let keeper = Keeper { log: cluster.log.clone(), nodes: nodes.clone(), stopped };
        let threads = [
            named("follower").spawn(move || follower.run(drain)),
            named("nodes").spawn(move || nodes.run(also_drain)),
            named("log").spawn(move || keeper.run()),
        ];
        for thread in threads {
            match thread {
                Ok(thread) => cluster.threads.lock().push(thread),
                Err(error) => tracing::error!(%error, "no thread for the cluster"),
            }
        }
    }

    /// After the committer has ended: says goodbye.
    pub(crate) fn stop(&self) {
        self.presence.stop();
        self.nodes.stop();
        self.follower.stop();
        drop(self.keeping.lock().take());
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        self.bus.stop();
    }

    pub(crate) fn readiness(&self) -> Result<(), String> {
        match self.follower.trouble().or_else(|| self.nodes.trouble()) {
            Some(trouble) => Err(trouble),
            None if !self.presence.knows() => Err(NOBODY_KNOWN.into()),
            None => Ok(()),
        }
    }

    /// Whether this node can tell who is online: one that has just started must hear of the others first.
    pub(crate) fn check_presence(&self) -> Result<(), Refusal> {
        match self.presence.knows() {
            true => Ok(()),
            false => Err(Refusal::new(ErrorCode::NodeUnavailable, NOBODY_KNOWN).retry_after(1_000)),
        }
    }

    /// What is worth knowing but keeps no node from its work.
    pub fn bus_trouble(&self) -> Option<String> {
        self.bus.trouble()
    }

    /// What was missed, if it is all in memory.
    pub(crate) fn missed(&self, tails: &[Tail], wanted: Wanted) -> Option<MissedEntries> {
        let entries = self.follower.recent.missed(tails, wanted)?;
        self.metrics.cluster.recent_resumes.inc();
        Some(MissedEntries { entries, left: vec![] })
    }

    /// Whether the bus took it.
    pub(crate) fn send_popup(&self, node: &str, user: UserNo, session: u64, frame: Vec<u8>) -> bool {
        self.bus.send(&[node.into()], Message::Popup { user, session, frame }.encode())
    }

    fn newest_position(&self) -> StoreResult<Position> {
        self.log.newest_position()
    }
}

impl Engine {
    /// Whether a session that has come so far elsewhere must wait until this node has come as far.
    pub fn is_behind(&self, cursor: &Cursor, positions: [Position; LANES]) -> bool {
        self.cluster.is_some()
            && cursor.epoch == self.store.epoch()
            && cursor.positions.iter().zip(positions).any(|(cursor, position)| *cursor > position)
    }

    /// Waits until this node's shards have come as far as a cursor from another node. Blocks.
    pub fn catch_up(&self, cursor: &Cursor) -> Result<(), Refusal> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let target = cursor.positions.into_iter().max().unwrap_or_default();
        let known = cluster.follower.reach(target, Duration::ZERO);
        if !known && target > cluster.newest_position().map_err(store_refusal)? {
            // Of a history that has been replaced by an older one: resuming tells.
            return Ok(());
        }
        let late = || {
            let detail = "this node has not come as far as another did; try again";
            Refusal::new(ErrorCode::StoreUnavailable, detail).retry_after(1_000)
        };
        if !cluster.follower.reach(target, CATCH_UP_MAX) {
            return Err(late());
        }
        cluster.follower.mark().wait(CATCH_UP_MAX).then_some(()).ok_or_else(late)
    }
}

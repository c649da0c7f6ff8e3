//! How the engine starts, drains and stops: its parts in the order in which each is made of those before it.

use crate::{
    Core, Engine,
    cluster::{Cluster, ClusterContext, ClusterParts, store_time::StoreTime},
    commit::{Committer, CommitterParts},
    config::EngineConfig,
    desks,
    directory::Directory,
    engine::{
        leader_requests::LeaderRequests,
        limits::ConversationLimiters,
        personal_export::PERSONAL_EXPORTS_MAX,
        popup_pushes::PopupPushes,
        popup_users::PopupUsers,
        signals::{SIGNALS_BURST, SIGNALS_PER_SECOND},
    },
    hub::{Applier, Hub, LocalHub},
    lanes::Lanes,
    lists::{self, changes::ListChanges},
    live_audience::LiveAudience,
    presence::{
        Presence,
        worker::{Announcer, PresenceWorker},
    },
    reactions::worker::ReactionTeller,
    receipts::{self, Receipts},
    recent_acknowledgements::RecentAcknowledgements,
    send_limiter::SendLimiter,
    shards::{ShardReceivers, Shards, Wake},
    streams::{
        Streams,
        worker::{StreamWorker, StreamWorkerParts},
    },
    worker_thread::WorkerThread,
};
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};
use tidings_domain::{
    clock::Clock,
    end_reason::EndReason,
    feed_notes::FeedNotes,
    function::Function,
    gates::OpenGates,
    leadership::{LeaderElection, Leads},
    metrics::Metrics,
    model::*,
    rate::Gcra,
    store::{Orders, Store},
    user_limiter::UserLimiter,
};
use tidings_popups::{PopupParts, PopupService};
use tidings_protocol::http::EventType;
use tidings_push::{PeerInbox, PushHandle, PushParts};
use tokio::sync::{Semaphore, watch};

/// What [`Engine::start`] needs from outside.
pub struct EngineParts {
    pub config: EngineConfig,
    pub clock: Arc<dyn Clock>,
    pub store: Arc<dyn Store>,
    /// For each shard, how its thread is woken.
    pub wakes: Vec<Arc<dyn Wake>>,
    /// Absent: this node has the store to itself.
    pub cluster: Option<ClusterParts>,
}

impl Engine {
    /// Starts the engine and its threads. Answers the queues for the shard threads, in the order of `wakes`.
    pub fn start(parts: EngineParts) -> (Arc<Engine>, Vec<ShardReceivers>) {
        let EngineParts { config, clock, store, wakes, cluster } = parts;
        let time = Arc::new(StoreTime::new(clock.clone()));
        let clock = if cluster.is_some() { time.clone() as Arc<dyn Clock> } else { clock };
        let boot = cluster.as_ref().map_or_else(rand::random, |cluster| cluster.node.boot_id);
        let metrics = Arc::new(Metrics::new());
        let directory = Arc::new(Directory::new(store.clone(), config.cache_entries, cluster.is_some()));
        let (shards, receivers) = Shards::new(config.shard_queue, wakes, directory.desks.clone());
        let streams = Streams::new(config.streams, boot, clock.clone());
        let lanes = Lanes::start(config.lane_queue, shards.clone(), &directory, &streams, metrics.clone());
        let receipts = Arc::new(Receipts::default());
        let presence = Arc::new(match &cluster {
            Some(cluster) => Presence::of_node(config.presence.clone(), &cluster.node),
            None => Presence::new(config.presence.clone()),
        });
        let list_changes = Arc::new(list_changes(&presence, &directory));
        let applier = Applier {
            lanes: lanes.clone(),
            shards: shards.clone(),
            directory: directory.clone(),
            receipts: receipts.clone(),
            streams: streams.clone(),
            list_changes: list_changes.clone(),
            watches: presence.clone(),
            live_audience: cluster.as_ref().map(|_| LiveAudience::new(directory.desks.clone(), metrics.clone())),
        };
        // Read before the follower starts: entries up to here are never handed to the lanes, all later ones are.
        let start_positions = [store.last_position(); LANES];
        directory.desks.read_changed();
        let peer_inbox = PeerInbox::new(cluster.is_some());
        // A cluster's are known from the first heartbeat on.
        let gates = Arc::new(if cluster.is_some() { OpenGates::default() } else { OpenGates::all() });
        let new_cluster =
            |parts| Cluster::new(parts, start_positions[0], &gates, (&applier, &peer_inbox), &metrics, time);
        let cluster = cluster.map(new_cluster);
        let hub = start_hub(applier, cluster.as_ref(), &presence, boot);
        let committer = Arc::new(Committer::start(CommitterParts {
            queue_limit: config.commit_queue,
            batch_max: config.commit_batch,
            // Without a cluster the hub takes commits as they come.
            orders: if cluster.is_some() { store.orders() } else { Orders::ONE },
            commit_time_max: config.commit_time_max,
            hook: config.hook.clone(),
            gates: gates.clone(),
            rate: SendLimiter::new(config.sends_per_second, config.sends_burst, clock.clone()),
            store: store.clone(),
            clock: clock.clone(),
            directory: directory.clone(),
            hub: hub.clone(),
            lanes: lanes.clone(),
            shards: shards.clone(),
            streams: streams.clone(),
            metrics: metrics.clone(),
        }));
        let leads = Leads::new(cluster.as_ref().map(|cluster| cluster.nodes.clone() as Arc<dyn LeaderElection>));
        let also = if config.events_keep.is_zero() { Vec::new() } else { config.events_also.clone() };
        let always = Some(EventType::ScheduledFailed).filter(|_| !config.events_keep.is_zero());
        let also = also.into_iter().chain(always).collect();
        let feed_notes = Arc::new(FeedNotes::new(also, gates.clone(), clock.clone(), boot));
        let core = Core { store, clock, metrics, directory, committer, hub, shards, leads, gates, feed_notes };
        let push = core.start_push(&config, cluster.as_ref(), peer_inbox);
        let leader_requests = LeaderRequests::default();
        let popups = core.start_popups(&config, boot, &push, &leader_requests);
        let presence_worker = core.start_presence(&presence, cluster.as_ref());
        let reaction_teller = ReactionTeller::start(core.clone());
        let receipts_worker = receipts::worker::start(core.clone(), receipts.clone());
        let stream_worker = core.start_streams(&streams, cluster.as_ref());
        let desk_worker = desks::worker::start(core.clone());
        let appends_per_second = config.streams.appends_per_second;
        let limits = ConversationLimiters::new(&config.limits, &core.clock);
        let Core { store, clock, metrics, directory, committer, hub, shards, leads, gates, feed_notes } = core;
        let engine = Arc::new(Engine {
            append_rate: SendLimiter::new(appends_per_second, appends_per_second, clock.clone()),
            signal_rate: UserLimiter::new(
                Some(Gcra::new(SIGNALS_PER_SECOND, SIGNALS_BURST)),
                format!("a user may signal {SIGNALS_PER_SECOND} times a second"),
                clock.clone(),
            ),
            bulk_sends: parking_lot::Mutex::default(),
            schedule: parking_lot::Mutex::default(),
            expiring: parking_lot::Mutex::default(),
            draining: AtomicBool::new(false),
            importing: Arc::new(Semaphore::new(1)),
            exporting: Arc::new(Semaphore::new(PERSONAL_EXPORTS_MAX)),
            end_reason: watch::Sender::new(None),
            feed_notes,
            list_worker: OnceLock::new(),
            recent_acknowledgements: RecentAcknowledgements::default(),
            cluster,
            clock,
            committer,
            config,
            desk_worker,
            directory,
            gates,
            hub,
            lanes,
            leads,
            leader_requests,
            limits,
            list_changes,
            metrics,
            popups,
            presence,
            presence_worker,
            push,
            reaction_teller,
            receipts,
            receipts_worker,
            shards,
            start_positions,
            store,
            stream_worker,
            streams,
        });
        let _ = engine.list_worker.set(lists::worker::start(Arc::downgrade(&engine)));
        engine.join_cluster();
        (engine, receivers)
    }

    fn join_cluster(self: &Arc<Self>) {
        let Some(cluster) = &self.cluster else { return };
        let context = ClusterContext {
            presence: self.presence.clone(),
            shards: self.shards.clone(),
            clock: self.clock.clone(),
            session_limits: self.config.session_limits(),
            events_keep: self.config.events_keep,
        };
        let engine = Arc::downgrade(self);
        cluster.start(context, move |reason| {
            if let Some(engine) = engine.upgrade() {
                engine.end(reason);
            }
        });
    }

    /// Refuses sends with `draining` from here on. Accepted ones are still committed.
    pub fn begin_drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.directory.wake_waiting();
        self.push.begin_drain();
        self.cluster.iter().for_each(|cluster| cluster.nodes.begin_drain());
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// This process must end: it drains from here on, and its owner stops it. The first reason counts.
    fn end(&self, reason: EndReason) {
        self.begin_drain();
        self.end_reason.send_if_modified(|first| {
            if first.is_none() {
                tracing::error!(reason = reason.code(), "{reason}: this process drains and ends");
                *first = Some(reason);
            }
            first.is_some()
        });
    }

    /// Why this process must end, if it must.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.end_reason.borrow().clone()
    }

    /// Waits until this process must end.
    pub async fn must_end(&self) -> EndReason {
        let mut reasons = self.end_reason.subscribe();
        match reasons.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(reason)) => reason.clone(),
            // The sender is a part of the engine.
            _ => std::future::pending().await,
        }
    }

    /// Waits until every proposal accepted so far is committed and answered.
    pub async fn flush(&self) {
        self.committer.flush().await;
    }

    /// Stops the workers; then the committer, once every accepted proposal is committed; then the lanes.
    pub fn stop(&self) {
        self.begin_drain();
        self.push.stop();
        self.popups.stop();
        self.presence_worker.stop();
        self.reaction_teller.stop();
        self.receipts_worker.stop();
        self.stream_worker.stop();
        self.desk_worker.stop();
        self.list_worker.get().into_iter().for_each(WorkerThread::stop);
        self.committer.stop();
        if let Some(cluster) = &self.cluster {
            cluster.stop();
        }
        self.lanes.stop();
    }
}

/// The lines that have changed of lists whose owner, or whose account's agent, has a session on this node.
fn list_changes(presence: &Arc<Presence>, directory: &Directory) -> ListChanges {
    let (presence, desks) = (presence.clone(), directory.desks.clone());
    let changes = ListChanges::default();
    changes.set_presence(Box::new(move |user| {
        desks.people_of(user).into_iter().any(|user| !presence.local_sessions(user).is_empty())
    }));
    changes
}

fn start_hub(applier: Applier, cluster: Option<&Cluster>, presence: &Arc<Presence>, boot: u64) -> Arc<dyn Hub> {
    match cluster {
        Some(cluster) => {
            applier.streams.set_peers(cluster.stream_peers(boot));
            Arc::new(cluster.hub(applier, presence.clone()))
        }
        None => Arc::new(LocalHub::new(applier)),
    }
}

impl Core {
    fn popup_users(&self) -> Arc<PopupUsers> {
        Arc::new(PopupUsers {
            directory: self.directory.clone(),
            store: self.store.clone(),
            metrics: self.metrics.clone(),
        })
    }

    fn start_push(&self, config: &EngineConfig, cluster: Option<&Cluster>, inbox: PeerInbox) -> Arc<PushHandle> {
        let parts = PushParts {
            config: config.push.clone(),
            lead: self.leads.of(Function::Push),
            transport: cluster.map(Cluster::push_transport),
            store: self.store.clone(),
            clock: self.clock.clone(),
            shards: self.shards.clone(),
            users: self.directory.clone(),
            gates: self.gates.clone(),
            feed_notes: self.feed_notes.clone(),
            metrics: self.metrics.clone(),
        };
        Arc::new(PushHandle::start(parts, inbox))
    }

    fn start_popups(
        &self,
        config: &EngineConfig,
        boot: u64,
        push: &Arc<PushHandle>,
        leader_requests: &LeaderRequests,
    ) -> Arc<PopupService> {
        let lead = self.leads.of(Function::Push);
        let pushes = PopupPushes { push: push.clone(), lead, leader_requests: leader_requests.clone() };
        PopupService::start(PopupParts {
            config: config.popups.clone(),
            boot,
            lead: self.leads.of(Function::Popups),
            store: self.store.clone(),
            clock: self.clock.clone(),
            users: self.popup_users(),
            gates: self.gates.clone(),
            feed_notes: self.feed_notes.clone(),
            pushes: Arc::new(pushes),
            metrics: self.metrics.clone(),
        })
    }

    fn start_presence(&self, presence: &Arc<Presence>, cluster: Option<&Cluster>) -> PresenceWorker {
        let nodes = cluster.map(|cluster| cluster.nodes.clone());
        PresenceWorker::start(Announcer {
            core: self.clone(),
            presence: presence.clone(),
            is_only_node: Box::new(move || nodes.as_ref().is_none_or(|nodes| nodes.all().len() <= 1)),
        })
    }

    fn start_streams(&self, streams: &Arc<Streams>, cluster: Option<&Cluster>) -> StreamWorker {
        let nodes = cluster.map(|cluster| cluster.nodes.clone());
        StreamWorker::start(StreamWorkerParts {
            core: self.clone(),
            streams: streams.clone(),
            is_alive: Box::new(move |boot| {
                nodes.as_ref().is_some_and(|nodes| nodes.all().iter().any(|node| node.boot_id == boot))
            }),
        })
    }
}

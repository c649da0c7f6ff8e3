//! The handle that the doors hold. Every operation of Tidings is a method of [`Engine`], in the module of its kind. In
//! reading order:
//! - [`send`]: accept: who may send what where, before anything is stored; `limits`: how often users send and open conversations;
//! - `message_changes`, `reactions`, `replies`, `mentions`: edits and recalls, reactions and pins, answers, who
//!   was mentioned;
//! - `streams`: messages that grow;
//! - `reads`, `lists`, `history`, [`resume`]: unread counts, lists, timelines, inboxes;
//! - `preferences`: what users set for conversations of their lists;
//! - `receipts`: who has a message, and who has read it;
//! - `users`, `conversations`: cards, members, mutes;
//! - `presence`, `watching`: who is online;
//! - `offline_push`: dead letters, and messages that a session did not acknowledge; `push_tokens`: where vendors reach devices;
//! - `reach`: why a user was, or was not, told of a message; `reach_explain`: what would become of one that was not sent;
//! - `bulk_sends`: one message to some of an account's followers;
//! - `retention`, `purge`: old messages are removed, and recalled bodies leave the store's files;
//! - [`popup_questions`]: which popup suits a user, and what users did with popups, for every door;
//! - `popup_trigger`, `popup_users`, `popup_pushes`: popups that the app server sends, users as popups see them, and what
//!   their journeys push;
//! - `leader_requests`: what only the leader can answer.

mod acting;
mod bulk_sends;
mod conversations;
pub mod desks;
mod history;
mod leader_requests;
mod limits;
mod list_line;
mod lists;
mod mentions;
mod message_changes;
pub mod offline_push;
mod popup_pushes;
pub mod popup_questions;
mod popup_trigger;
mod popup_users;
mod preferences;
mod presence;
mod purge;
mod push_tokens;
mod reach;
mod reach_explain;
mod reach_sentences;
mod reach_stats;
mod reactions;
mod reads;
mod receipts;
mod replies;
pub mod resume;
mod retention;
pub mod send;
mod streams;
mod users;
mod watching;

use crate::{
    cluster::{Cluster, ClusterContext, ClusterParts, leader_client::LeaderClient},
    commit::{Committer, CommitterParts},
    config::EngineConfig,
    desk_worker::{DeskWorker, DeskWorkerParts},
    directory::Directory,
    hub::{Applier, Hub, LocalHub},
    internal_roads::InternalRoads,
    lanes::Lanes,
    list_changes::ListChanges,
    list_worker::ListWorker,
    offline_recipients::OfflinePushContext,
    outbox::{Outbox, OutboxConfig},
    presence::{
        Presence,
        worker::{PresenceWorker, PresenceWorkerParts},
    },
    reach_policy::{CompiledPolicy, PolicyParts, ReachPolicies},
    reach_stage::{ReachStage, Roads, StageProgress, WebhookRoad},
    reach_stats::{ReachStatsParts, ReachStatsWorker},
    reach_trace::ReachTrace,
    reaction_teller::{ReactionTeller, ReactionTellerParts},
    receipts::Receipts,
    receipts_worker::{ReceiptsWorker, ReceiptsWorkerParts},
    recent_acknowledgements::RecentAcknowledgements,
    road_jobs::JobSignals,
    shards::{ShardReceivers, Shards, Wake},
    stream_worker::{StreamWorker, StreamWorkerParts},
    streams::Streams,
    vendor_push::{VendorPush, VendorPushParts},
    webhook::Webhook,
};
use limits::{ConversationLimiters, SendLimiter};
use popup_pushes::PopupPushes;
use popup_users::PopupUsers;
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};
use tidings_domain::{
    clock::Clock,
    leadership::{LeaderElection, Leadership, Term},
    metrics::Metrics,
    model::*,
    store::Store,
};
use tidings_popups::{PopupParts, PopupService};
use tidings_protocol::error::Refusal;
use tidings_push::{PeerInbox, PushHandle, PushParts};

/// The server without its doors: one for each process, shared by all of them.
pub struct Engine {
    pub config: EngineConfig,
    pub clock: Arc<dyn Clock>,
    pub store: Arc<dyn Store>,
    pub directory: Arc<Directory>,
    pub presence: Arc<Presence>,
    pub push: Arc<PushHandle>,
    pub popups: Arc<PopupService>,
    pub metrics: Arc<Metrics>,
    committer: Arc<Committer>,
    lanes: Arc<Lanes>,
    shards: Arc<Shards>,
    hub: Arc<dyn Hub>,
    /// Absent if no road is set up.
    reach_stage: Option<ReachStage>,
    /// Absent without a webhook.
    outbox: Option<Outbox>,
    /// Absent without a vendor.
    vendor_push: Option<VendorPush>,
    internal_roads: InternalRoads,
    trace: Arc<ReachTrace>,
    /// By which roads people are told of messages.
    pub reach_policies: Arc<ReachPolicies>,
    reach_stats_worker: ReachStatsWorker,
    recent_acknowledgements: RecentAcknowledgements,
    reach_context: Arc<OfflinePushContext>,
    presence_worker: PresenceWorker,
    reaction_teller: ReactionTeller,
    receipts: Arc<Receipts>,
    receipts_worker: ReceiptsWorker,
    streams: Arc<Streams>,
    stream_worker: StreamWorker,
    desk_worker: DeskWorker,
    list_changes: Arc<ListChanges>,
    list_worker: OnceLock<ListWorker>,
    rate: SendLimiter,
    /// Of pieces that are appended to messages.
    append_rate: SendLimiter,
    limits: ConversationLimiters,
    pub cluster: Option<Cluster>,
    /// Locked while the progress of bulk sends changes. The term in which none is running, once that is known.
    bulk_sends: parking_lot::Mutex<Option<Term>>,
    lead: Leadership,
    leader_client: OnceLock<Arc<dyn LeaderClient>>,
    draining: AtomicBool,
    start_positions: [Position; LANES],
}

/// What [`Engine::start`] needs from outside.
pub struct EngineParts {
    pub config: EngineConfig,
    pub clock: Arc<dyn Clock>,
    pub store: Arc<dyn Store>,
    /// Absent: no webhook is told of messages to offline users.
    pub webhook: Option<(Arc<dyn Webhook>, OutboxConfig)>,
    /// Absent: no vendor is told of messages to offline users.
    pub vendors: Option<VendorPushParts>,
    /// For each shard, how its thread is woken.
    pub wakes: Vec<Arc<dyn Wake>>,
    /// Absent: this node has the store to itself.
    pub cluster: Option<ClusterParts>,
}

impl Engine {
    /// Starts the engine and its threads. Answers the queues for the shard threads, in the order of `wakes`.
    pub fn start(parts: EngineParts) -> (Arc<Engine>, Vec<ShardReceivers>) {
        let EngineParts { config, clock, store, webhook, vendors, wakes, cluster } = parts;
        let metrics = Arc::new(Metrics::new());
        let directory = Arc::new(Directory::new(store.clone(), config.cache_entries, cluster.is_some()));
        let (shards, receivers) = Shards::new(config.shard_queue, wakes, directory.desks.clone());
        let boot = cluster.as_ref().map_or_else(rand::random, |cluster| cluster.node.boot_id);
        let streams = Streams::new(config.streams, boot, clock.clone());
        let lanes = Lanes::start(config.lane_queue, shards.clone(), &streams, metrics.clone());
        let receipts = Arc::new(Receipts::default());
        let list_changes = Arc::new(ListChanges::default());
        let applier = Applier {
            lanes: lanes.clone(),
            shards: shards.clone(),
            directory: directory.clone(),
            receipts: receipts.clone(),
            streams: streams.clone(),
            list_changes: list_changes.clone(),
        };
        // Read before the follower starts: entries up to here are never handed to the lanes, all later ones are.
        let start_positions = [store.last_position(); LANES];
        directory.desks.read_changed();
        let peer_inbox = PeerInbox::new(cluster.is_some());
        let cluster = cluster.map(|parts| Cluster::new(parts, start_positions[0], (&applier, &peer_inbox), &metrics));
        if let Some(cluster) = &cluster {
            streams.set_peers(cluster.stream_peers(boot));
        }
        let hub: Arc<dyn Hub> = match &cluster {
            Some(cluster) => Arc::new(cluster.hub(applier)),
            None => Arc::new(LocalHub::new(applier)),
        };
        let committer = Arc::new(Committer::start(CommitterParts {
            queue_limit: config.commit_queue,
            batch_max: config.commit_batch,
            commit_time_max: config.commit_time_max,
            store: store.clone(),
            clock: clock.clone(),
            directory: directory.clone(),
            hub: hub.clone(),
            lanes: lanes.clone(),
            shards: shards.clone(),
            streams: streams.clone(),
            metrics: metrics.clone(),
        }));
        let lead = Leadership::of(cluster.as_ref().map(|cluster| cluster.nodes.clone() as Arc<dyn LeaderElection>));
        let push_parts = PushParts {
            config: config.push.clone(),
            lead: lead.clone(),
            transport: cluster.as_ref().map(Cluster::push_transport),
            store: store.clone(),
            clock: clock.clone(),
            shards: shards.clone(),
            users: directory.clone(),
            metrics: metrics.clone(),
        };
        let push = Arc::new(PushHandle::start(push_parts, peer_inbox));
        let popups = PopupService::start(PopupParts {
            config: config.popups.clone(),
            boot,
            lead: lead.clone(),
            store: store.clone(),
            clock: clock.clone(),
            users: Arc::new(PopupUsers {
                directory: directory.clone(),
                store: store.clone(),
                metrics: metrics.clone(),
            }),
            pushes: Arc::new(PopupPushes(push.clone())),
            metrics: metrics.clone(),
        });
        let presence = Arc::new(match &cluster {
            Some(cluster) => Presence::of_node(config.presence.clone(), cluster.nodes.me()),
            None => Presence::new(config.presence.clone()),
        });
        list_changes.set_presence({
            let presence = presence.clone();
            let desks = directory.desks.clone();
            Box::new(move |user| {
                desks.people_of(user).into_iter().any(|user| !presence.local_sessions(user).is_empty())
            })
        });
        let nodes = cluster.as_ref().map(|cluster| cluster.nodes.clone());
        let presence_webhook = webhook.as_ref().filter(|_| config.presence.webhook);
        let presence_worker = PresenceWorker::start(PresenceWorkerParts {
            presence: presence.clone(),
            directory: directory.clone(),
            committer: committer.clone(),
            shards: shards.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            lead: lead.clone(),
            is_only_node: Box::new(move || nodes.as_ref().is_none_or(|nodes| nodes.all().len() <= 1)),
            webhook: presence_webhook.map(|(webhook, config)| (webhook.clone(), config.secret.clone())),
        });
        let reaction_teller = ReactionTeller::start(ReactionTellerParts {
            store: store.clone(),
            clock: clock.clone(),
            directory: directory.clone(),
            committer: committer.clone(),
            lead: lead.clone(),
        });
        let receipts_worker = ReceiptsWorker::start(ReceiptsWorkerParts {
            receipts: receipts.clone(),
            store: store.clone(),
            directory: directory.clone(),
            committer: committer.clone(),
            hub: hub.clone(),
            shards: shards.clone(),
            clock: clock.clone(),
        });
        let alive_nodes = cluster.as_ref().map(|cluster| cluster.nodes.clone());
        let stream_worker = StreamWorker::start(StreamWorkerParts {
            streams: streams.clone(),
            committer: committer.clone(),
            directory: directory.clone(),
            store: store.clone(),
            clock: clock.clone(),
            lead: lead.clone(),
            is_alive: Box::new(move |boot| {
                alive_nodes.as_ref().is_some_and(|nodes| nodes.all().iter().any(|node| node.boot_id == boot))
            }),
        });
        let desk_worker = DeskWorker::start(DeskWorkerParts {
            store: store.clone(),
            directory: directory.clone(),
            committer: committer.clone(),
            lead: lead.clone(),
        });
        let trace = Arc::new(ReachTrace::new(config.reach_trace_days));
        let reach_stats_worker = ReachStatsWorker::start(ReachStatsParts {
            store: store.clone(),
            clock: clock.clone(),
            committer: committer.clone(),
            metrics: metrics.clone(),
            lead: lead.clone(),
            boot,
            days: config.reach_trace_days,
        });
        let webhook = webhook.filter(|(_, config)| config.messages);
        let reach_policies = ReachPolicies::start(PolicyParts {
            store: store.clone(),
            clock: clock.clone(),
            lead: lead.clone(),
            popups: popups.clone(),
            default: CompiledPolicy::default_document(&config.road_plan, vendors.is_some(), webhook.is_some()),
        });
        let context = Arc::new(OfflinePushContext {
            store: store.clone(),
            clock: clock.clone(),
            directory: directory.clone(),
            presence: presence.clone(),
            committer: committer.clone(),
            lead: lead.clone(),
            metrics: metrics.clone(),
            trace: trace.clone(),
            policies: reach_policies.clone(),
            users: Arc::new(PopupUsers {
                directory: directory.clone(),
                store: store.clone(),
                metrics: metrics.clone(),
            }),
        });
        let time_to_live =
            vendors.as_ref().map_or(config.internal_roads.time_to_live, |parts| parts.config.time_to_live);
        let roads = Roads {
            time_to_live_ms: u64::try_from(time_to_live.as_millis()).unwrap_or(u64::MAX),
            vendors: vendors.iter().flat_map(|parts| &parts.vendors).map(|vendor| vendor.vendor()).collect(),
            webhook: webhook
                .as_ref()
                .map(|(_, config)| WebhookRoad { recipients_per_event: config.recipients_per_event }),
            internal: config.internal_roads.clone(),
        };
        let has_roads = webhook.is_some() || vendors.is_some() || config.internal_roads.is_any();
        let (signals, progress) = (Arc::<JobSignals>::default(), Arc::<StageProgress>::default());
        let outbox = webhook.map(|(webhook, config)| {
            Outbox::start(context.clone(), webhook, config, (signals.clone(), progress.clone()))
        });
        let vendor_push = vendors.map(|vendors| VendorPush::start(context.clone(), vendors, &signals));
        let internal_roads = InternalRoads::start(
            context.clone(),
            config.internal_roads.clone(),
            (push.clone(), popups.clone()),
            &signals,
        );
        let reach_stage = has_roads.then(|| ReachStage::start(context.clone(), roads, signals, progress));
        let engine = Arc::new(Engine {
            reach_policies,
            reach_context: context,
            directory,
            presence,
            presence_worker,
            reaction_teller,
            receipts,
            receipts_worker,
            list_changes,
            list_worker: OnceLock::new(),
            push,
            popups,
            reach_stage,
            outbox,
            vendor_push,
            internal_roads,
            trace,
            reach_stats_worker,
            recent_acknowledgements: RecentAcknowledgements::default(),
            streams,
            stream_worker,
            desk_worker,
            append_rate: SendLimiter::new(
                config.streams.appends_per_second,
                config.streams.appends_per_second,
                clock.clone(),
            ),
            rate: SendLimiter::new(config.sends_per_second, config.sends_burst, clock.clone()),
            limits: ConversationLimiters::new(&config.limits, &clock),
            bulk_sends: parking_lot::Mutex::default(),
            committer,
            lanes,
            shards,
            hub,
            metrics,
            store,
            clock,
            config,
            cluster,
            lead,
            leader_client: OnceLock::new(),
            draining: AtomicBool::new(false),
            start_positions,
        });
        let _ = engine.list_worker.set(ListWorker::start({
            let engine = Arc::downgrade(&engine);
            move |most| engine.upgrade().map_or(0, |engine| engine.send_list_changes(most))
        }));
        if let Some(cluster) = &engine.cluster {
            cluster.start(engine.cluster_context(), {
                let engine = Arc::downgrade(&engine);
                move || {
                    if let Some(engine) = engine.upgrade() {
                        engine.begin_drain();
                    }
                }
            });
        }
        (engine, receivers)
    }

    fn cluster_context(&self) -> ClusterContext {
        ClusterContext {
            presence: self.presence.clone(),
            shards: self.shards.clone(),
            clock: self.clock.clone(),
            sessions_per_kind: self.config.sessions_per_kind.max(1),
        }
    }

    /// Refuses sends with `draining` from here on. Accepted ones are still committed.
    pub fn begin_drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.push.begin_drain();
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Waits until every proposal accepted so far is committed and answered.
    pub async fn flush(&self) {
        self.committer.flush().await;
    }

    /// Stops the workers; then the committer, once every accepted proposal is committed; then the lanes.
    pub fn stop(&self) {
        self.begin_drain();
        if let Some(reach_stage) = &self.reach_stage {
            reach_stage.stop();
        }
        if let Some(outbox) = &self.outbox {
            outbox.stop();
        }
        if let Some(vendor_push) = &self.vendor_push {
            vendor_push.stop();
        }
        self.internal_roads.stop();
        self.push.stop();
        self.popups.stop();
        self.presence_worker.stop();
        self.reaction_teller.stop();
        self.receipts_worker.stop();
        self.reach_stats_worker.stop();
        self.stream_worker.stop();
        self.desk_worker.stop();
        self.list_worker.get().into_iter().for_each(ListWorker::stop);
        self.reach_policies.stop();
        self.committer.stop();
        if let Some(cluster) = &self.cluster {
            cluster.stop();
        }
        self.lanes.stop();
    }

    /// Sets the gauges whose values are looked up. Called before metrics are read.
    pub fn refresh_gauges(&self) {
        self.metrics.ready.set(i64::from(self.readiness().is_ok()));
        self.committer.set_queue_gauges(&self.metrics);
        let (slots, slot_limit) = self.lanes.depths();
        let (fanouts, shard_limit) = self.shards.depths();
        for lane in Lane::ALL {
            self.metrics.set_queue(format!("lane_{}", lane.name()), slots[lane as usize], slot_limit);
            self.metrics.set_queue(format!("shard_{}", lane.name()), fanouts[lane as usize], shard_limit);
        }
        for (queue, depth, limit) in self.push.depths() {
            self.metrics.set_queue(queue, depth, limit);
        }
        self.popups.refresh_gauges();
        for (queue, depth, limit) in self.receipts.depths().into_iter().chain([self.list_changes.depth()]) {
            self.metrics.set_queue(queue, depth, limit);
        }
        let (open, open_max) = self.streams.depth();
        self.metrics.set_queue("streams", open, open_max);
        let (depth, limit) = self.shards.push_depth();
        self.metrics.set_queue("shard_push", depth, limit);
        self.metrics.presence_users.set(self.presence.user_count() as i64);
        self.metrics.set_queue("presence_watches", self.presence.watches(), self.config.presence.watches_max);
        self.metrics.set_store_stats(self.store.stats());
    }

    /// Whether the node can do its work now.
    ///
    /// # Errors
    /// Why it cannot, for operators.
    pub fn readiness(&self) -> Result<(), String> {
        if self.is_draining() {
            return Err("draining".into());
        }
        if let Some(damage) = self.store.damage() {
            return Err(format!("the store is damaged: {damage}"));
        }
        self.committer.readiness()?;
        self.cluster.as_ref().map_or(Ok(()), Cluster::readiness)
    }

    /// The positions at the start. Entries up to them are read from the store and never handed to shards.
    pub fn start_positions(&self) -> [Position; LANES] {
        self.start_positions
    }

    /// Refuses while this node does not know the sessions of other nodes.
    fn check_presence(&self) -> Result<(), Refusal> {
        self.cluster.as_ref().map_or(Ok(()), Cluster::check_presence)
    }

    /// Whether push and popups run here: this node leads, as far as it has heard. The store refuses their writes if the term
    /// has ended.
    pub fn has_leader_term(&self) -> bool {
        self.lead.term().is_some()
    }

    /// Whether this node leads, and no other can.
    pub fn is_leader(&self) -> bool {
        self.lead.leads()
    }
}

//! The metrics, in Prometheus' terms. Handles are plain atomics: counting costs no look-up.

use crate::{model::Lane, store::StoreStats};
use prometheus_client::{
    collector::Collector,
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// The label of metrics that exist once for each queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct QueueLabel {
    /// The queue's name, such as `lane_group` or `commit`.
    pub queue: String,
}

/// The label of metrics that exist once for each lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LaneLabel {
    /// The lane's name, as [`Lane::name`] spells it.
    pub lane: &'static str,
}

/// The label of refusals.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CodeLabel {
    /// The error code of the wire formats, such as `queue_full`.
    pub code: &'static str,
}

/// The outcome of a decision about popups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PopupOutcome {
    /// A popup was handed out.
    Shown = 0,
    /// No popup can be shown now.
    Nothing = 1,
    /// The user is in the holdout of the global policy, which is shown no popup at all.
    HeldOut = 2,
}

/// The label of decisions about popups.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    /// `shown`, `nothing` or `held_out`.
    pub outcome: &'static str,
}

/// The metrics of one lane.
#[derive(Debug, Clone)]
pub struct LaneMetrics {
    /// Entries handed to stage 1.
    pub entries: Counter,
    /// From commit to the turn of the last shard, in seconds.
    pub fanout_seconds: Histogram,
    /// Entries put into sessions' buffers.
    pub deliveries: Counter,
}

/// The metrics of a node of a cluster; all zero on a node by itself.
#[derive(Default)]
pub struct ClusterMetrics {
    /// Nodes whose leases run, this one included.
    pub nodes: Gauge,
    /// 1 on the node that does what one node does for all, else 0.
    pub leader: Gauge,
    /// Commit positions that this node was behind when it last looked into the log.
    pub position_lag: Gauge,
    /// Looks into the log for commits that did not come over the bus in time.
    pub gaps: Counter,
    /// Commit positions that were read from the log, since the bus did not bring them.
    pub read_back: Counter,
    /// Commits of other nodes that found no room to wait for their turn; they are read back later.
    pub dropped: Counter,
    /// Times that the bus reported that messages may be lost.
    pub missed: Counter,
    /// Messages of a form that this version of the program does not know.
    pub unknown: Counter,
    /// Resumes that were answered from the entries remembered in memory, without a read of timelines.
    pub recent_resumes: Counter,
    /// Gaps that another node was asked for, since the store did not answer.
    pub asked: Counter,
    /// Times that this node registered all its sessions for pushes with another node, which had taken the lead.
    pub push_streams: Counter,
    /// Messages about pushes that were retransmitted, since no confirmation came in time.
    pub push_sent_again: Counter,
    /// Times that this node told all its sessions to a node that had missed changes.
    pub presence_snapshots: Counter,
    /// Sessions of other nodes that were registered wrongly here and were mended.
    pub presence_repaired: Counter,
    /// Requests that were passed on to the node that can answer them.
    pub forwarded: Counter,
}

impl ClusterMetrics {
    fn register(&self, registry: &mut Registry) {
        for (name, help, gauge) in [
            ("cluster_nodes", "Nodes whose leases run, this one included", &self.nodes),
            ("cluster_leader", "1 on the node that does what one does for all", &self.leader),
            ("cluster_position_lag", "Commit positions found behind at the last look into the log", &self.position_lag),
        ] {
            registry.register(name, help, gauge.clone());
        }
        for (name, help, counter) in [
            ("cluster_gaps", "Looks into the log for commits that did not come over the bus in time", &self.gaps),
            ("cluster_read_back", "Commit positions read from the log instead of the bus", &self.read_back),
            ("cluster_dropped", "Commits of others that found no room to wait; read back later", &self.dropped),
            ("cluster_missed", "Times that the bus said that something may be lost", &self.missed),
            ("cluster_asked", "Gaps that another node was asked for: the store did not tell", &self.asked),
            (
                "cluster_recent_resumes",
                "Resumes answered from memory, without a look into timelines",
                &self.recent_resumes,
            ),
            ("cluster_forwarded", "Requests that another node was asked to answer", &self.forwarded),
            (
                "cluster_push_streams",
                "Times that all own sessions were registered for pushes with another node",
                &self.push_streams,
            ),
            (
                "cluster_push_sent_again",
                "Messages about pushes that another node did not confirm in time",
                &self.push_sent_again,
            ),
            ("cluster_unknown_messages", "Messages of a form that this program does not know", &self.unknown),
            (
                "cluster_presence_snapshots",
                "Times that all own sessions were told to nodes that asked",
                &self.presence_snapshots,
            ),
            (
                "cluster_presence_repaired",
                "Sessions of other nodes that were wrong here and were mended",
                &self.presence_repaired,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
    }
}

/// All metrics of a process, with the registry that exports them under the prefix `tidings_`. Counters count from the
/// start of the process.
pub struct Metrics {
    registry: parking_lot::RwLock<Registry>,
    /// By lane, in the order of [`Lane::ALL`]; see [`Metrics::lane`].
    pub lanes: [LaneMetrics; 3],
    /// Batches that the store has committed durably.
    pub commits: Counter,
    /// Timeline entries in these batches.
    pub committed_entries: Counter,
    /// Sends that were retries and were answered with the first result.
    pub duplicates: Counter,
    /// The time of one batch in the store: write and fsync, or the transaction.
    pub commit_seconds: Histogram,
    /// Batches that the store failed to commit.
    pub commit_failures: Counter,
    /// Bound sessions now.
    pub sessions: Gauge,
    /// Open connections of the WebSocket and MIOP doors now, bound or not.
    pub connections: Gauge,
    /// Connections that these doors took.
    pub connections_opened: Counter,
    /// Connections that were bound.
    pub sessions_opened: Counter,
    /// Sessions that were closed because their outbound queue was full.
    pub slow_readers_closed: Counter,
    /// Sessions that were closed because nothing came from them for too long.
    pub heartbeat_timeouts: Counter,
    /// Connections that were closed because they did not bind in time.
    pub bind_timeouts: Counter,
    /// Times that a listener waited for admission before it accepted more connections.
    pub accept_pauses: Counter,
    /// Connections that were refused because the process had no file descriptors left.
    pub descriptor_refusals: Counter,
    /// Writes to sessions' sockets.
    pub flushes: Counter,
    /// Bytes in these writes.
    pub flushed_bytes: Counter,
    /// Refusals of every door, by error code; see [`Metrics::count_refusal`].
    pub refused: Family<CodeLabel, Counter>,
    /// Items that wait in a queue; set when metrics are read, by [`Metrics::set_queue`].
    pub queue_depth: Family<QueueLabel, Gauge>,
    /// Items that a queue has room for, beside its depth.
    pub queue_limit: Family<QueueLabel, Gauge>,
    /// Notifications that the webhook took.
    pub outbox_delivered: Counter,
    /// Attempts at the webhook that failed.
    pub outbox_retries: Counter,
    /// Notifications that were given up and stored as dead letters.
    pub outbox_dead: Counter,
    /// Commit positions between the newest commit and the one up to which the webhook has been told.
    pub outbox_lag: Gauge,
    /// Notifications that wait for another attempt, and those of their conversations that wait behind them.
    pub outbox_parked: Gauge,
    /// 1 while the webhook takes nothing, else 0.
    pub outbox_failing: Gauge,
    /// Notifications of messages that a session was handed and did not answer for.
    pub outbox_unheard: Counter,
    /// 1 while `/readyz` says that the node can do its work, else 0.
    pub ready: Gauge,
    /// What nodes measure of each other.
    pub cluster: ClusterMetrics,
    /// Pushes that were accepted, or started by their schedule.
    pub pushes_accepted: Counter,
    /// Targets to whose connection a push was written for the first time.
    pub push_delivered: Counter,
    /// Targets whose device has acknowledged the push.
    pub push_acknowledged: Counter,
    /// Targets whose device did not acknowledge the push before its time was over.
    pub push_expired: Counter,
    /// Targets on which a newer push with the same collapse key took the place of this one.
    pub push_collapsed: Counter,
    /// Targets whose push was cancelled before the device had acknowledged it.
    pub push_cancelled: Counter,
    /// Sessions whose device became known to the push worker.
    pub push_registrations: Counter,
    /// Reports of sessions that found no room at the worker: what they acknowledged is pushed again.
    pub push_notes_dropped: Counter,
    /// Users who were announced as online or offline.
    pub presence_changes: Counter,
    /// Users who came back within the grace, so that nothing was announced.
    pub presence_coalesced: Counter,
    /// Changes of presence that the webhook was not told of.
    pub presence_dropped: Counter,
    /// Changes of presence that the webhook took.
    pub presence_hook_taken: Counter,
    /// Nodes that were silent for longer than their lease.
    pub presence_leases_expired: Counter,
    /// Users with a registered session now.
    pub presence_users: Gauge,
    /// Differences between the registry and the sessions that exist, found by comparisons.
    pub presence_differences: Counter,
    /// Differences that comparisons have mended.
    pub presence_repaired: Counter,
    popup_decisions: [Counter; 3],
    /// Events of popups that were taken; a repeated one counts once.
    pub popup_events: Counter,
    /// Reads of the store for decisions about popups, of users who were not in memory.
    pub popup_store_reads: Counter,
    /// Time that the popups' worker spent writing exposures and events.
    pub popup_store_busy_seconds: Counter<f64>,
    /// Users whose frequency counters are in memory now.
    pub popup_users: Gauge,
    /// Bytes on disk: of the data folder, or of the database.
    pub store_disk_bytes: Gauge,
    /// Statements sent to the database, without begin and commit; 0 for the embedded store.
    pub store_statements: Counter,
    /// Times that an answer of the database was waited for; 0 for the embedded store.
    pub store_round_trips: Counter,
    /// Entries that retention has removed.
    pub retention_removed: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics at zero, registered for export.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("tidings");
        // 50 µs to about 1.6 s: below a fast disk's fsync, above the worst stall seen.
        let seconds = || Histogram::new(exponential_buckets(0.000_05, 2.0, 16));
        let entries = Family::<LaneLabel, Counter>::default();
        let deliveries = Family::<LaneLabel, Counter>::default();
        let fanout = Family::<LaneLabel, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.000_05, 2.0, 16))
        });
        let lanes = Lane::ALL.map(|lane| {
            let label = LaneLabel { lane: lane.name() };
            LaneMetrics {
                entries: entries.get_or_create(&label).clone(),
                fanout_seconds: fanout.get_or_create(&label).clone(),
                deliveries: deliveries.get_or_create(&label).clone(),
            }
        });
        registry.register("lane_entries", "Entries handed to a lane", entries);
        registry.register("lane_deliveries", "Entries put into sessions' buffers", deliveries);
        registry.register("lane_fanout_seconds", "From commit to the last shard's turn", fanout);
        let decisions = Family::<OutcomeLabel, Counter>::default();
        let popup_decisions =
            ["shown", "nothing", "held_out"].map(|outcome| decisions.get_or_create(&OutcomeLabel { outcome }).clone());
        registry.register("popup_decisions", "Decisions about popups, by what they came to", decisions);
        let metrics = Metrics {
            registry: Default::default(),
            lanes,
            commits: Counter::default(),
            committed_entries: Counter::default(),
            duplicates: Counter::default(),
            commit_seconds: seconds(),
            commit_failures: Counter::default(),
            sessions: Gauge::default(),
            connections: Gauge::default(),
            connections_opened: Counter::default(),
            sessions_opened: Counter::default(),
            slow_readers_closed: Counter::default(),
            heartbeat_timeouts: Counter::default(),
            bind_timeouts: Counter::default(),
            accept_pauses: Counter::default(),
            descriptor_refusals: Counter::default(),
            flushes: Counter::default(),
            flushed_bytes: Counter::default(),
            refused: Family::default(),
            queue_depth: Family::default(),
            queue_limit: Family::default(),
            outbox_delivered: Counter::default(),
            outbox_retries: Counter::default(),
            outbox_dead: Counter::default(),
            outbox_lag: Gauge::default(),
            outbox_parked: Gauge::default(),
            outbox_failing: Gauge::default(),
            outbox_unheard: Counter::default(),
            ready: Gauge::default(),
            cluster: ClusterMetrics::default(),
            pushes_accepted: Counter::default(),
            push_delivered: Counter::default(),
            push_acknowledged: Counter::default(),
            push_expired: Counter::default(),
            push_collapsed: Counter::default(),
            push_cancelled: Counter::default(),
            push_registrations: Counter::default(),
            push_notes_dropped: Counter::default(),
            presence_changes: Counter::default(),
            presence_coalesced: Counter::default(),
            presence_dropped: Counter::default(),
            presence_hook_taken: Counter::default(),
            presence_leases_expired: Counter::default(),
            presence_users: Gauge::default(),
            presence_differences: Counter::default(),
            presence_repaired: Counter::default(),
            popup_decisions,
            popup_events: Counter::default(),
            popup_store_reads: Counter::default(),
            popup_store_busy_seconds: Counter::default(),
            popup_users: Gauge::default(),
            store_disk_bytes: Gauge::default(),
            store_statements: Counter::default(),
            store_round_trips: Counter::default(),
            retention_removed: Counter::default(),
        };
        let m = &metrics;
        registry.register("commits", "Batches committed and fsynced", m.commits.clone());
        registry.register("committed_entries", "Timeline entries committed", m.committed_entries.clone());
        registry.register("duplicate_sends", "Retries answered with the first result", m.duplicates.clone());
        registry.register("commit_seconds", "One batch: write and fsync", m.commit_seconds.clone());
        registry.register("commit_failures", "Batches that the store refused", m.commit_failures.clone());
        registry.register("sessions", "Bound sessions", m.sessions.clone());
        registry.register("connections", "Open connections of the session doors", m.connections.clone());
        registry.register(
            "connections_opened",
            "Connections that the session doors took since the start",
            m.connections_opened.clone(),
        );
        registry.register("sessions_opened", "Sessions bound since the start", m.sessions_opened.clone());
        registry.register("slow_readers_closed", "Sessions closed for a full buffer", m.slow_readers_closed.clone());
        registry.register("heartbeat_timeouts", "Sessions closed for silence", m.heartbeat_timeouts.clone());
        registry.register("bind_timeouts", "Connections closed unbound", m.bind_timeouts.clone());
        registry.register("accept_pauses", "Times that accept waited for admission", m.accept_pauses.clone());
        registry.register(
            "descriptor_refusals",
            "Connections refused for want of file descriptors",
            m.descriptor_refusals.clone(),
        );
        registry.register("flushes", "Writes to session sockets", m.flushes.clone());
        registry.register("flushed_bytes", "Bytes written to session sockets", m.flushed_bytes.clone());
        registry.register("refused", "Refusals by code", m.refused.clone());
        registry.register("queue_depth", "What waits in a queue", m.queue_depth.clone());
        registry.register("queue_limit", "What a queue holds at most", m.queue_limit.clone());
        registry.register("outbox_delivered", "Notifications that the webhook took", m.outbox_delivered.clone());
        registry.register("outbox_retries", "Webhook attempts that failed", m.outbox_retries.clone());
        registry.register("outbox_dead", "Notifications given up", m.outbox_dead.clone());
        registry.register(
            "outbox_parked",
            "Notifications that wait for another attempt, with those behind them",
            m.outbox_parked.clone(),
        );
        registry.register("outbox_failing", "1 while the webhook takes nothing", m.outbox_failing.clone());
        registry.register(
            "outbox_unheard",
            "Notifications of messages that a session was handed and did not answer for",
            m.outbox_unheard.clone(),
        );
        registry.register(
            "outbox_lag",
            "Commit positions between the head and the outbox's consumer",
            m.outbox_lag.clone(),
        );
        registry.register("ready", "1 while the node can do its work, as /readyz says", m.ready.clone());
        m.cluster.register(&mut registry);
        for (name, help, counter) in [
            ("pushes_accepted", "Pushes accepted or started by their schedule", &m.pushes_accepted),
            ("push_delivered", "Pushes written to a device's connection for the first time", &m.push_delivered),
            ("push_acknowledged", "Pushes that a device has acknowledged", &m.push_acknowledged),
            ("push_expired", "Pushes that a device did not get in time", &m.push_expired),
            ("push_collapsed", "Pushes that a newer one took the place of", &m.push_collapsed),
            ("push_cancelled", "Pushes cancelled before a device had them", &m.push_cancelled),
            ("push_registrations", "Devices bound for push", &m.push_registrations),
            (
                "push_notes_dropped",
                "Reports of sessions that found no room; what they acknowledged is pushed again",
                &m.push_notes_dropped,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register("presence_changes", "Users announced online or offline", m.presence_changes.clone());
        registry.register(
            "presence_coalesced",
            "Returns within the grace, not announced",
            m.presence_coalesced.clone(),
        );
        registry.register("presence_users", "Users with a registered session", m.presence_users.clone());
        registry.register(
            "presence_leases_expired",
            "Nodes that were silent for longer than their lease",
            m.presence_leases_expired.clone(),
        );
        registry.register("presence_hook_taken", "Changes that the webhook took", m.presence_hook_taken.clone());
        registry.register("presence_dropped", "Changes that the webhook was not told", m.presence_dropped.clone());
        registry.register("presence_differences", "Found by comparisons", m.presence_differences.clone());
        registry.register("presence_repaired", "Mended by comparisons", m.presence_repaired.clone());
        registry.register("popup_events", "Events of popups taken, each once", m.popup_events.clone());
        registry.register(
            "popup_store_reads",
            "Looks into the store for a decision about popups",
            m.popup_store_reads.clone(),
        );
        registry.register(
            "popup_store_busy_seconds",
            "Time spent writing showings and events",
            m.popup_store_busy_seconds.clone(),
        );
        registry.register("popup_users", "Users held in memory for popups", m.popup_users.clone());
        registry.register("store_disk_bytes", "Bytes of the data folder", m.store_disk_bytes.clone());
        registry.register(
            "store_statements",
            "Statements sent to the database, begin and commit not counted",
            m.store_statements.clone(),
        );
        registry.register(
            "store_round_trips",
            "Times that an answer of the database was waited for",
            m.store_round_trips.clone(),
        );
        registry.register("retention_removed", "Entries removed by retention", m.retention_removed.clone());
        *metrics.registry.write() = registry;
        metrics
    }

    /// Sets the metrics of the store to its own figures.
    pub fn set_store_stats(&self, stats: StoreStats) {
        self.store_disk_bytes.set(stats.disk_bytes as i64);
        self.store_statements.inner().store(stats.statements, std::sync::atomic::Ordering::Relaxed);
        self.store_round_trips.inner().store(stats.round_trips, std::sync::atomic::Ordering::Relaxed);
    }

    /// Counts one decision.
    pub fn count_popup(&self, outcome: PopupOutcome) {
        self.popup_decisions[outcome as usize].inc();
    }

    /// The metrics of this lane.
    pub fn lane(&self, lane: Lane) -> &LaneMetrics {
        &self.lanes[lane as usize]
    }

    /// Sets a queue's gauges: how many items wait in it, and how many it has room for.
    pub fn set_queue(&self, name: impl Into<String>, depth: usize, limit: usize) {
        let label = QueueLabel { queue: name.into() };
        self.queue_depth.get_or_create(&label).set(depth as i64);
        self.queue_limit.get_or_create(&label).set(limit as i64);
    }

    /// Counts one refusal that a caller was answered with.
    pub fn count_refusal(&self, code: tidings_protocol::error::ErrorCode) {
        self.refused.get_or_create(&CodeLabel { code: code.as_str() }).inc();
    }

    /// Registers metrics that are collected whenever the others are read.
    pub fn register_collector(&self, collector: Box<dyn Collector>) {
        self.registry.write().register_collector(collector);
    }

    /// All metrics in the text exposition format.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry.read());
        text
    }
}

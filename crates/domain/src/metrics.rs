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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct QueueLabel {
    pub queue: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LaneLabel {
    pub lane: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CodeLabel {
    pub code: &'static str,
}

/// The outcome of a decision about popups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PopupOutcome {
    Shown = 0,
    Nothing = 1,
    HeldOut = 2,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
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
    pub nodes: Gauge,
    pub leader: Gauge,
    pub position_lag: Gauge,
    pub gaps: Counter,
    pub read_back: Counter,
    pub dropped: Counter,
    pub missed: Counter,
    pub unknown: Counter,
    pub recent_resumes: Counter,
    pub asked: Counter,
    pub push_streams: Counter,
    pub push_sent_again: Counter,
    pub presence_snapshots: Counter,
    pub presence_repaired: Counter,
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

pub struct Metrics {
    registry: parking_lot::RwLock<Registry>,
    pub lanes: [LaneMetrics; 3],
    pub commits: Counter,
    pub committed_entries: Counter,
    pub duplicates: Counter,
    pub commit_seconds: Histogram,
    pub commit_failures: Counter,
    pub sessions: Gauge,
    pub connections: Gauge,
    pub connections_opened: Counter,
    pub sessions_opened: Counter,
    pub slow_readers_closed: Counter,
    pub heartbeat_timeouts: Counter,
    pub bind_timeouts: Counter,
    pub accept_pauses: Counter,
    pub descriptor_refusals: Counter,
    pub flushes: Counter,
    pub flushed_bytes: Counter,
    pub refused: Family<CodeLabel, Counter>,
    pub queue_depth: Family<QueueLabel, Gauge>,
    pub queue_limit: Family<QueueLabel, Gauge>,
    pub outbox_delivered: Counter,
    pub outbox_retries: Counter,
    pub outbox_dead: Counter,
    pub outbox_lag: Gauge,
    pub outbox_parked: Gauge,
    pub outbox_failing: Gauge,
    pub outbox_unheard: Counter,
    pub ready: Gauge,
    pub cluster: ClusterMetrics,
    pub pushes_accepted: Counter,
    pub push_delivered: Counter,
    pub push_acknowledged: Counter,
    pub push_expired: Counter,
    pub push_collapsed: Counter,
    pub push_cancelled: Counter,
    pub push_registrations: Counter,
    pub push_notes_dropped: Counter,
    pub presence_changes: Counter,
    pub presence_coalesced: Counter,
    pub presence_dropped: Counter,
    pub presence_hook_taken: Counter,
    pub presence_leases_expired: Counter,
    pub presence_users: Gauge,
    pub presence_differences: Counter,
    pub presence_repaired: Counter,
    popup_decisions: [Counter; 3],
    pub popup_events: Counter,
    pub popup_store_reads: Counter,
    pub popup_store_busy_seconds: Counter<f64>,
    pub popup_users: Gauge,
    pub store_disk_bytes: Gauge,
    pub store_statements: Counter,
    pub store_round_trips: Counter,
    pub retention_removed: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
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

    pub fn count_popup(&self, outcome: PopupOutcome) {
        self.popup_decisions[outcome as usize].inc();
    }

    pub fn lane(&self, lane: Lane) -> &LaneMetrics {
        &self.lanes[lane as usize]
    }

    pub fn set_queue(&self, name: impl Into<String>, depth: usize, limit: usize) {
        let label = QueueLabel { queue: name.into() };
        self.queue_depth.get_or_create(&label).set(depth as i64);
        self.queue_limit.get_or_create(&label).set(limit as i64);
    }

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

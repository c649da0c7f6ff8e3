//! The metrics, in Prometheus' terms. Handles are plain atomics: counting costs no look-up.

use crate::{
    model::Lane,
    notification_counts::NotificationCounts,
    store::{StandbyOutcome, StoreStats},
};
use parking_lot::RwLock;
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
use std::sync::atomic::AtomicU64;

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

/// The label of sessions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ProtocolLabel {
    /// `websocket`, `event_stream` or `miop`.
    pub protocol: &'static str,
}

/// The label of refusals.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CodeLabel {
    /// The error code of the wire formats, such as `queue_full`.
    pub code: &'static str,
}

/// The label of metrics that exist once for each provider.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ProviderLabel {
    /// `apns`, `fcm` or `web_push`.
    pub provider: &'static str,
}

/// The label of notifications by providers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ProviderOutcomeLabel {
    /// `apns`, `fcm` or `web_push`.
    pub provider: &'static str,
    /// `accepted`; `token_gone`; `retried`: tried again later; `dead_refused`, `dead_expired`: given up; `superseded`: a newer
    /// one of the conversation took its place; `obsolete`: read, muted, recalled, or the user is back.
    pub outcome: &'static str,
}

/// The label of the functions of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FunctionLabel {
    /// The function's name.
    pub function: &'static str,
}

/// The label of consumers of the feed of events.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ConsumerLabel {
    /// The consumer's name.
    pub consumer: String,
}

/// The label of outboxes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutboxLabel {
    /// The source's name.
    pub source: String,
}

/// The label of an outbox's rows by what became of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutboxOutcomeLabel {
    /// The source's name.
    pub source: String,
    /// `done`, `refused`, or `tried_again`: refused for now.
    pub outcome: &'static str,
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

/// The label of what is counted by what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    /// Of decisions about popups `shown`, `nothing` or `held_out`; of reads that a standby may serve a
    /// [`StandbyOutcome`]'s name.
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

/// Declares a struct of metrics with all that is known of each: its field, its type, the name under which it is exported (without
/// the prefix), and its help text, which is the field's documentation, too. `by_hand` are fields that are made and registered
/// elsewhere.
macro_rules! metrics {
    (
        $(#[$about:meta])*
        pub struct $struct:ident {
            $($(#[$more:meta])* $field:ident: $type:ty = $name:literal, $help:literal;)*
        }
        by_hand { $($(#[$doc:meta])* $visibility:vis $other:ident: $other_type:ty,)* }
    ) => {
        $(#[$about])*
        pub struct $struct {
            $(#[doc = concat!($help, ".")] $(#[doc = ""] #[$more])* pub $field: $type,)*
            $($(#[$doc])* $visibility $other: $other_type,)*
        }

        impl $struct {
            /// The metrics at zero, with those that were made by hand; registered for export but for those.
            fn registered(registry: &mut Registry, ($($other,)*): ($($other_type,)*)) -> Self {
                let metrics = $struct { $($field: <$type>::default(),)* $($other,)* };
                $(registry.register($name, $help, metrics.$field.clone());)*
                metrics
            }
        }
    };
}

metrics! {
    /// The metrics of a node of a cluster; all zero on a node by itself.
    #[derive(Default)]
    pub struct ClusterMetrics {
        nodes: Gauge = "cluster_nodes", "Nodes whose leases run, this one included";
        /// Else 0.
        leader: Gauge = "cluster_leader", "1 on the node that does pushes for all";
        /// Else 0.
        leads: Family<FunctionLabel, Gauge> = "cluster_leads", "1 on the node that does this for all, by function";
        moves: Counter = "cluster_moves", "Functions that this node handed over to a node with less to do";
        position_lag: Gauge = "cluster_position_lag", "Commit positions found behind at the last look into the log";
        gaps: Counter = "cluster_gaps", "Looks into the log for commits that did not come over the bus in time";
        read_back: Counter = "cluster_read_back", "Commit positions read from the log instead of the bus";
        dropped: Counter = "cluster_dropped", "Commits of others that found no room to wait; read back later";
        missed: Counter = "cluster_missed", "Times that the bus said that something may be lost";
        unknown: Counter = "cluster_unknown_messages", "Messages of a form that this program does not know";
        /// Such an entry is handed out as `opaque`; after such a change everything in memory is read anew.
        opaque: Counter = "cluster_opaque_records", "Entries and changes of kinds that this program does not know";
        skipped: Counter = "cluster_skipped", "Entries and changes of members that concerned no session of this node and were not fanned out";
        left_out: Counter = "cluster_left_out", "Messages of which another node was told without their content, since none of its sessions may see them";
        /// Its user had just come, or a report of this node's sessions was late. A batch may count more than once.
        content_missing: Counter = "cluster_content_missing", "Batches of others that came without what a session of this node may see; read from the log";
        recent_resumes: Counter = "cluster_recent_resumes", "Resumes answered from memory, without a look into timelines";
        asked: Counter = "cluster_asked", "Gaps that another node was asked for: the store did not tell";
        /// The other node had taken the lead.
        push_streams: Counter = "cluster_push_streams", "Times that all own sessions were registered for pushes with another node";
        push_sent_again: Counter = "cluster_push_sent_again", "Messages about pushes that another node did not confirm in time";
        /// The other node had missed changes.
        presence_snapshots: Counter = "cluster_presence_snapshots", "Times that all own sessions were told to nodes that asked";
        presence_repaired: Counter = "cluster_presence_repaired", "Sessions of other nodes that were wrong here and were mended";
        differences: Gauge = "cluster_differences", "Settings in which other nodes differ from this one, though all must have them alike";
        /// Negative: behind. 0 while they agree as far as can be measured.
        clock_ahead: Gauge<f64, AtomicU64> = "cluster_clock_ahead_seconds", "Seconds that this machine's clock is ahead of PostgreSQL's";
        forwarded: Counter = "cluster_forwarded", "Requests that another node was asked to answer";
    }
    by_hand {}
}

metrics! {
    /// All metrics of a process, with the registry that exports them under the prefix `tidings_`. Counters count from the
    /// start of the process.
    pub struct Metrics {
        commits: Counter = "commits", "Batches committed and fsynced";
        committed_entries: Counter = "committed_entries", "Timeline entries committed";
        duplicates: Counter = "duplicate_sends", "Retries answered with the first result";
        commit_failures: Counter = "commit_failures", "Batches that the store refused";
        sessions: Gauge = "sessions", "Bound sessions";
        /// Their sum is [`Metrics::sessions`].
        sessions_by_protocol: Family<ProtocolLabel, Gauge> = "sessions_by_protocol", "Bound sessions, by what their connections speak";
        /// WebSocket, event streams and MIOP, bound or not.
        connections: Gauge = "connections", "Open connections of the session listeners";
        connections_opened: Counter = "connections_opened", "Connections that the session listeners took since the start";
        sessions_opened: Counter = "sessions_opened", "Sessions bound since the start";
        unbound_evictions: Counter = "unbound_evictions", "Connections without a bind, or closing, that were closed for others";
        /// The outbound queue was full, or the memory for all of them.
        slow_readers_closed: Counter = "slow_readers_closed", "Sessions closed because their clients did not read";
        heartbeat_timeouts: Counter = "heartbeat_timeouts", "Sessions closed for silence";
        bind_timeouts: Counter = "bind_timeouts", "Connections closed unbound";
        accept_pauses: Counter = "accept_pauses", "Times that accept waited for admission";
        descriptor_refusals: Counter = "descriptor_refusals", "Connections refused for want of file descriptors";
        flushes: Counter = "flushes", "Writes to session sockets";
        flushed_bytes: Counter = "flushed_bytes", "Bytes written to session sockets";
        /// Of every listener; see [`Metrics::count_refusal`].
        refused: Family<CodeLabel, Counter> = "refused", "Refusals by code";
        /// Set when metrics are read, by [`Metrics::set_queue`].
        queue_depth: Family<QueueLabel, Gauge> = "queue_depth", "What waits in a queue";
        /// Set beside the depth.
        queue_limit: Family<QueueLabel, Gauge> = "queue_limit", "What a queue holds at most";
        webhook_delivered: Counter = "webhook_delivered", "Notifications that the webhook took";
        webhook_retries: Counter = "webhook_retries", "Webhook attempts that failed";
        /// They are stored as dead letters.
        webhook_dead: Counter = "webhook_dead", "Notifications given up";
        webhook_lag: Gauge = "webhook_lag", "Commit positions between the head and the outbox's consumer";
        /// Those behind them are of the same conversations.
        webhook_parked: Gauge = "webhook_parked", "Notifications that wait for another attempt, with those behind them";
        /// Else 0.
        webhook_failing: Gauge = "webhook_failing", "1 while the webhook takes nothing";
        webhook_unheard: Counter = "webhook_unheard", "Notifications of messages that a session was handed and did not answer for";
        /// A retry counts again.
        provider_notifications: Family<ProviderOutcomeLabel, Counter> = "provider_notifications", "Notifications for providers, by what became of them";
        provider_waiting: Family<ProviderLabel, Gauge> = "provider_waiting", "Messages of which a provider is still to be told, up to 10,000 for each of its services";
        /// Else 0.
        consumer_behind: Family<ConsumerLabel, Gauge> = "event_consumer_behind", "Commits that a consumer of events has not dealt with, nor put aside";
        consumer_aside: Family<ConsumerLabel, Gauge> = "event_consumer_aside", "Events that wait for another attempt";
        consumer_delivered: Family<ConsumerLabel, Counter> = "event_consumer_delivered", "Events that a consumer's webhook took";
        consumer_failed: Family<ConsumerLabel, Counter> = "event_consumer_failed_requests", "Requests that a consumer's webhook did not take";
        consumer_dead: Family<ConsumerLabel, Counter> = "event_consumer_dead_letters", "Events that were given up";
        outbox_rows: Family<OutboxOutcomeLabel, Counter> = "outbox_rows", "Rows of an outbox, by what became of them";
        /// Up to 100,000, as the next.
        outbox_waiting: Family<OutboxLabel, Gauge> = "outbox_waiting", "Rows of an outbox that wait";
        outbox_refused: Family<OutboxLabel, Gauge> = "outbox_refused", "Rows of an outbox that were refused, and wait for somebody's decision";
        outbox_lag_seconds: Family<OutboxLabel, Gauge<f64, AtomicU64>> = "outbox_lag_seconds", "Age of the oldest row that waits for nothing but this server";
        /// Else 0.
        outbox_failing: Family<OutboxLabel, Gauge> = "outbox_failing", "1 while the database of an outbox cannot be followed";
        provider_failing: Family<ProviderLabel, Gauge> = "provider_failing", "1 while a provider takes nothing";
        /// At most 10,000.
        provider_dead_letters: Gauge = "provider_dead_letters", "Notifications that providers did not take and that are kept to be looked at or replayed";
        provider_lag: Gauge = "provider_lag", "Commit positions between the head and the search for devices that providers reach";
        /// Else 0.
        ready: Gauge = "ready", "1 while the node can do its work, as /readyz says";
        pushes_accepted: Counter = "pushes_accepted", "Pushes accepted or started by their schedule";
        /// A push counts once for each of its targets, here and in the next four.
        push_delivered: Counter = "push_delivered", "Pushes written to a device's connection for the first time";
        push_acknowledged: Counter = "push_acknowledged", "Pushes that a device has acknowledged";
        push_expired: Counter = "push_expired", "Pushes that a device did not get in time";
        push_collapsed: Counter = "push_collapsed", "Pushes that a newer one took the place of";
        push_cancelled: Counter = "push_cancelled", "Pushes cancelled before a device had them";
        push_registrations: Counter = "push_registrations", "Devices bound for push";
        push_notes_dropped: Counter = "push_notes_dropped", "Reports of sessions that found no room; what they acknowledged is pushed again";
        presence_changes: Counter = "presence_changes", "Users announced online or offline";
        presence_coalesced: Counter = "presence_coalesced", "Returns within the grace, not announced";
        presence_dropped: Counter = "presence_dropped", "Changes that the webhook was not told";
        presence_hook_taken: Counter = "presence_hook_taken", "Changes that the webhook took";
        presence_leases_expired: Counter = "presence_leases_expired", "Nodes that were silent for longer than their lease";
        presence_users: Gauge = "presence_users", "Users with a registered session";
        /// Between the registry and the sessions that exist.
        presence_differences: Counter = "presence_differences", "Found by comparisons";
        presence_repaired: Counter = "presence_repaired", "Mended by comparisons";
        /// A question is one about one operation, however many are in a request.
        hook_asked: Counter = "hook_asked", "Questions sent to the hook";
        hook_allowed: Counter = "hook_allowed", "Operations that the hook has allowed as they were";
        hook_replaced: Counter = "hook_replaced", "Messages to which the hook has given another body";
        hook_refused: Counter = "hook_refused", "Operations that the hook has refused";
        hook_hidden: Counter = "hook_hidden", "Messages that the hook has hidden";
        /// No answer in time, one that makes no sense, or no room to wait for one.
        hook_failed: Counter = "hook_failed", "Questions to which the hook gave no good answer";
        popup_events: Counter = "popup_events", "Events of popups taken, each once";
        /// Of users who were not in memory.
        popup_store_reads: Counter = "popup_store_reads", "Looks into the store for a decision about popups";
        popup_store_busy_seconds: Counter<f64> = "popup_store_busy_seconds", "Time spent writing showings and events";
        /// Their frequency counters are in memory.
        popup_users: Gauge = "popup_users", "Users held in memory for popups";
        /// Or of the database.
        store_disk_bytes: Gauge = "store_disk_bytes", "Bytes of the data folder";
        /// 0 for the embedded store.
        store_statements: Counter = "store_statements", "Statements sent to the database, begin and commit not counted";
        /// 0 for the embedded store.
        store_round_trips: Counter = "store_round_trips", "Times that an answer of the database was waited for";
        retention_removed: Counter = "retention_removed", "Entries removed by retention";
    }
    by_hand {
        registry: RwLock<Registry>,
        /// By lane, in the order of [`Lane::ALL`]; see [`Metrics::lane`].
        pub lanes: [LaneMetrics; 3],
        /// The time of one batch in the store: write and fsync, or the transaction.
        pub commit_seconds: Histogram,
        /// The time of one request to the hook.
        pub hook_seconds: Histogram,
        /// What nodes measure of each other.
        pub cluster: ClusterMetrics,
        popup_decisions: [Counter; 3],
        /// In the order of [`StandbyOutcome::ALL`].
        standby_reads: [Counter; StandbyOutcome::ALL.len()],
        /// How often each channel was tried. Not exported, but stored: it answers for hours that are past.
        pub notifications: NotificationCounts,
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Exports nothing more of a consumer of events that is no more.
    pub fn forget_consumer(&self, consumer: &ConsumerLabel) {
        self.consumer_behind.remove(consumer);
        self.consumer_aside.remove(consumer);
        for counts in [&self.consumer_delivered, &self.consumer_failed, &self.consumer_dead] {
            counts.remove(consumer);
        }
    }

    /// Exports nothing more of how far an outbox is, which another node follows.
    pub fn forget_outbox(&self, source: &OutboxLabel) {
        for gauge in [&self.outbox_waiting, &self.outbox_refused, &self.outbox_failing] {
            gauge.remove(source);
        }
        self.outbox_lag_seconds.remove(source);
    }

    /// All metrics at zero, registered for export.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("tidings");
        // 50 µs to about 1.6 s: below a fast disk's fsync, above the worst stall seen.
        let seconds: fn() -> Histogram = || Histogram::new(exponential_buckets(0.000_05, 2.0, 16));
        let entries = Family::<LaneLabel, Counter>::default();
        let deliveries = Family::<LaneLabel, Counter>::default();
        let fanout = Family::<LaneLabel, Histogram>::new_with_constructor(seconds);
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
        let reads = Family::<OutcomeLabel, Counter>::default();
        let standby_reads =
            StandbyOutcome::ALL.map(|outcome| reads.get_or_create(&OutcomeLabel { outcome: outcome.name() }).clone());
        registry.register("store_standby_reads", "Reads that a standby may serve, by what became of them", reads);
        let commit_seconds = seconds();
        registry.register("commit_seconds", "One batch: write and fsync", commit_seconds.clone());
        // 0.1 ms to about 6.5 s.
        let hook_seconds = Histogram::new(exponential_buckets(0.000_1, 2.0, 17));
        registry.register("hook_seconds", "One request to the hook", hook_seconds.clone());
        let cluster = ClusterMetrics::registered(&mut registry, ());
        let (empty, notifications) = (RwLock::default(), NotificationCounts::default());
        let by_hand =
            (empty, lanes, commit_seconds, hook_seconds, cluster, popup_decisions, standby_reads, notifications);
        let metrics = Metrics::registered(&mut registry, by_hand);
        *metrics.registry.write() = registry;
        metrics
    }

    /// Sets the metrics of the store to its own figures.
    pub fn set_store_stats(&self, stats: StoreStats) {
        self.store_disk_bytes.set(stats.disk_bytes as i64);
        self.store_statements.inner().store(stats.statements, std::sync::atomic::Ordering::Relaxed);
        self.store_round_trips.inner().store(stats.round_trips, std::sync::atomic::Ordering::Relaxed);
        for (counter, count) in self.standby_reads.iter().zip(stats.standby_reads.0) {
            counter.inner().store(count, std::sync::atomic::Ordering::Relaxed);
        }
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

    /// Counts a session that has begun on a connection of this protocol.
    pub fn session_began(&self, protocol: &'static str) {
        self.sessions.inc();
        self.sessions_by_protocol.get_or_create(&ProtocolLabel { protocol }).inc();
    }

    /// Counts a session that has ended.
    pub fn session_ended(&self, protocol: &'static str) {
        self.sessions.dec();
        self.sessions_by_protocol.get_or_create(&ProtocolLabel { protocol }).dec();
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

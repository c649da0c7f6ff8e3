//! The engine's settings. The binary fills them from its configuration; tests from `Default`.

use crate::{
    hook::HookConfig,
    presence::{PresenceConfig, SessionLimits},
    streams::StreamsConfig,
};
use std::time::Duration;
use tidings_domain::{model::LANES, user_limiter::PerMinute};
use tidings_popups::PopupsConfig;
use tidings_protocol::http::EventType;
use tidings_push::PushConfig;

/// Sizes of queues and caches, rates and the settings of the parts. Each size is a bound; the comment says what happens
/// at it.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Threads that own sessions; each user belongs to one.
    pub shards: usize,
    /// Proposals of each lane that wait for the committer, and as many operations that belong to no lane. One sender
    /// holds at most as many as are still free. Full: refused with `queue_full`.
    pub commit_queue: usize,
    /// Most proposals in one commit.
    pub commit_batch: usize,
    /// While a commit takes longer than this, new proposals are refused with `store_unavailable` instead of waiting for
    /// it.
    pub commit_time_max: Duration,
    /// Messages of each lane between accept and the end of stage 1, shared by senders in the same way. Full: refused
    /// with `queue_full`.
    pub lane_queue: usize,
    /// Fan-outs of each lane that wait at a shard. Full: stage 1 waits, so that the lane fills.
    pub shard_queue: usize,
    /// Users, conversations and memberships kept in memory, each.
    pub cache_entries: usize,
    pub presence: PresenceConfig,
    /// Sessions of one user and device kind. Above: the oldest session is notified and closed.
    pub sessions_per_kind: usize,
    /// Sessions of one user. Above: the oldest is closed with `replaced`.
    pub sessions_per_user: usize,
    /// Messages that one user may send in a second by token; 0: no limit. App servers are not limited.
    pub sends_per_second: u32,
    /// Messages that one user may send at once after a pause.
    pub sends_burst: u32,
    /// Rates at which users may open conversations and add members by token.
    pub limits: LimitsConfig,
    pub messages: MessagesConfig,
    pub streams: StreamsConfig,
    /// Names of users' attributes that every user sees. Only the user and app servers see the others.
    pub public_attributes: Vec<String>,
    pub push: PushConfig,
    pub popups: PopupsConfig,
    /// How long events are kept for the feed; zero: not at all.
    pub events_keep: Duration,
    /// Which events from outside the commits of chat are in the feed, too.
    pub events_also: Vec<EventType>,
    /// The app server that is asked before operations are committed; absent: none.
    pub hook: Option<HookConfig>,
}

impl EngineConfig {
    pub fn session_limits(&self) -> SessionLimits {
        SessionLimits { per_kind: self.sessions_per_kind.max(1), per_user: self.sessions_per_user.max(1) }
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            shards: std::thread::available_parallelism().map_or(2, usize::from),
            commit_queue: 8_192,
            commit_batch: 512,
            commit_time_max: Duration::from_secs(3),
            lane_queue: 8_192,
            shard_queue: 64,
            cache_entries: 100_000,
            presence: Default::default(),
            sessions_per_kind: 5,
            sessions_per_user: 50,
            sends_per_second: 0,
            sends_burst: 20,
            limits: LimitsConfig::default(),
            messages: MessagesConfig::default(),
            streams: StreamsConfig::default(),
            public_attributes: Vec::new(),
            push: PushConfig::default(),
            popups: PopupsConfig::default(),
            events_keep: Duration::ZERO,
            events_also: Vec::new(),
            hook: None,
        }
    }
}

/// For how long senders may change their messages, by token. The owner, admins and app servers may at any time.
#[derive(Debug, Clone, Copy)]
pub struct MessagesConfig {
    /// Since the message was sent, by lane: direct, group, broadcast.
    pub edit_window: [Duration; LANES],
    /// As `edit_window`, for recalls.
    pub recall_window: [Duration; LANES],
    /// Whether the bodies that edits replace are kept, until the message is recalled.
    pub edit_history: bool,
}

impl Default for MessagesConfig {
    fn default() -> Self {
        MessagesConfig {
            edit_window: [Duration::from_secs(24 * 60 * 60); LANES],
            recall_window: [Duration::from_secs(2 * 60); LANES],
            edit_history: false,
        }
    }
}

/// How often users may open conversations and add others to them, by token.
#[derive(Debug, Clone, Copy)]
pub struct LimitsConfig {
    /// Conversations that one user opens.
    pub openings: PerMinute,
    /// Members that one user adds, first members of new groups included.
    pub additions: PerMinute,
    /// Times that strangers draw one user into a conversation.
    pub strangers: PerMinute,
    /// Groups and official accounts of one user, above which other users cannot add that user to more; 0: no limit.
    pub groups_per_user: usize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        LimitsConfig {
            openings: PerMinute { count: 30, burst: 100 },
            additions: PerMinute { count: 120, burst: 1_000 },
            strangers: PerMinute { count: 20, burst: 200 },
            groups_per_user: 5_000,
        }
    }
}

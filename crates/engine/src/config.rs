//! The engine's settings. The binary fills them from its configuration; tests from `Default`.

use crate::{limits::LimitsConfig, popups::PopupsConfig, push::PushConfig};
use std::time::Duration;

/// Sizes of queues and caches. Each is a bound: being full has a stated answer.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Threads that own sessions; each user belongs to one.
    pub shards: usize,
    /// Proposals of a lane waiting for the committer, and as many operations in no lane. One party has at most as many
    /// as are still free. Full: refused with `queue_full`.
    pub commit_queue: usize,
    /// Most proposals in one commit.
    pub commit_batch: usize,
    /// While a commit takes longer than this, what comes is refused with `store_unavailable` instead of waiting behind it.
    pub commit_time_max: Duration,
    /// Messages per lane between accept and the end of stage 1, shared by parties in the same way. Full: refused with
    /// `queue_full`.
    pub lane_queue: usize,
    /// Fan-out items per lane waiting at a shard. Full: stage 1 waits, so the lane fills.
    pub shard_queue: usize,
    /// Users, conversations and memberships kept in memory, each.
    pub cache_entries: usize,
    pub presence: crate::presence::PresenceConfig,
    /// Sessions of one user and device kind; the oldest is told and closed.
    pub sessions_per_kind: usize,
    /// Messages that one user may send in a second by token; 0: no limit. App servers are not limited.
    pub sends_per_second: u32,
    /// Messages that a user who was quiet may send at once.
    pub sends_burst: u32,
    /// What users may do by token in a time, in conversations.
    pub limits: LimitsConfig,
    /// Names of users' attributes that every user is shown; the others are the user's and app servers' alone.
    pub public_attributes: Vec<String>,
    pub push: PushConfig,
    pub popups: PopupsConfig,
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
            sends_per_second: 0,
            sends_burst: 20,
            limits: LimitsConfig::default(),
            public_attributes: Vec::new(),
            push: PushConfig::default(),
            popups: PopupsConfig::default(),
        }
    }
}

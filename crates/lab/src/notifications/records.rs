//! What happened, as the lab saw it: messages, deliveries to sessions, notices of the fakes, and who looked when. All times are
//! nanoseconds of the monotonic clock.

use crate::offline_push::notice::OfflineChannel;
use std::collections::{HashMap, HashSet};

/// A message that the server has acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct SentMessage {
    pub(crate) conversation: usize,
    pub(crate) seq: u64,
    pub(crate) sender: usize,
    pub(crate) silent: bool,
    pub(crate) skip_push: bool,
    /// When its first request began: the server cannot have it before.
    pub(crate) sent_at: u64,
    /// When it was answered: by then it is committed.
    pub(crate) answered_at: u64,
}

/// An entry that a session got.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivery {
    pub(crate) user: usize,
    pub(crate) conversation: usize,
    pub(crate) seq: u64,
    pub(crate) at: u64,
    /// The number of the user's connection, from 1 on.
    pub(crate) connection: u32,
}

/// A notice of a fake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) channel: OfflineChannel,
    pub(crate) user: usize,
    /// The place of the user's device; 0 for the webhook.
    pub(crate) device: usize,
    pub(crate) conversation: usize,
    pub(crate) seq: u64,
    pub(crate) id: Option<u64>,
    pub(crate) at: u64,
}

/// A time in which somebody may have looked at a user's session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    /// From the moment at which the server may have known of it, to that at which it must have known of its end.
    pub(crate) possible: (u64, u64),
    /// Within, the server must have known of it; empty if it never had to.
    pub(crate) certain: (u64, u64),
}

/// A read mark that the user set over HTTP.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    pub(crate) user: usize,
    pub(crate) conversation: usize,
    pub(crate) seq: u64,
    /// When its request began, and when it was answered; `None`: it was not, so that it may have been done or not.
    pub(crate) at: u64,
    pub(crate) answered_at: Option<u64>,
    /// All had been notified that were to be: it is no reason why anybody was not.
    pub(crate) in_peace: bool,
}

/// Everything that happened.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) messages: Vec<SentMessage>,
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) arrivals: Vec<Arrival>,
    /// Notices that remove others.
    pub(crate) removals: Vec<Arrival>,
    /// By user.
    pub(crate) looks: Vec<Vec<Look>>,
    pub(crate) reads: Vec<Read>,
    /// Users whose client took long to say what it had stored, by the lab's fault.
    pub(crate) slow_acks: HashSet<usize>,
    /// When which connection of which user was bound.
    pub(crate) bound: HashMap<(usize, u32), u64>,
    /// When each user's first session was bound.
    pub(crate) first_bound: HashMap<usize, u64>,
    /// When the server was killed, and when it was back: a request that was on its way then may be seen in between.
    pub(crate) kills: Vec<(u64, u64)>,
    /// When which provider took nothing.
    pub(crate) providers_away: Vec<(OfflineChannel, u64, u64)>,
    /// Faults that are no matter of counts.
    pub(crate) problems: Vec<String>,
}

impl Records {
    /// Whether the server was away at any time from then to then.
    pub(crate) fn was_killed(&self, from: u64, to: u64) -> bool {
        self.kills.iter().any(|(kill, back)| *kill <= to && from <= *back)
    }
}

//! How often users may open conversations and add others to them, by token. App servers are not limited: the
//! business decides for whom they open conversations.
//!
//! Three rate limits apply to each user, each with a burst: conversations that the user opens, members that the user
//! adds, and conversations into which strangers draw the user. A stranger is anyone without a direct conversation with
//! the user.

use crate::{commit::store_refusal, engine::Engine, model::*, rate::Gcra};
use quick_cache::sync::Cache;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    ids::direct_id,
};

/// Users whose rate each limiter remembers. A user who is evicted starts with a whole burst again.
const USERS: usize = 100_000;

/// A rate per minute, with a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerMinute {
    /// 0: no limit.
    pub count: u32,
    pub burst: u32,
}

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

/// A rate limit with a state for each user.
pub(crate) struct UserLimiter {
    config: PerMinute,
    rate: Gcra,
    /// Of each user, when the burst is whole again.
    whole_at_ns: Cache<UserNo, Arc<AtomicU64>>,
    started: Instant,
}

impl UserLimiter {
    pub(crate) fn new(config: PerMinute) -> Self {
        let users = if config.count == 0 { 1 } else { USERS };
        let rate = Gcra::per_minute(config.count, config.burst);
        UserLimiter { config, rate, whole_at_ns: Cache::new(users), started: Instant::now() }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Takes `count` from the user's rate; `what` says what there was too much of, for the refusal.
    ///
    /// # Errors
    /// `rate_limited`, with the time to wait; `limit_exceeded` when `count` is above the burst.
    pub(crate) fn take(&self, user: UserNo, count: usize, what: impl FnOnce() -> String) -> Result<(), Refusal> {
        self.take_at(user, count, self.now_ns(), what)
    }

    /// Checks that `count` could be taken, and takes nothing.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub(crate) fn check(&self, user: UserNo, count: usize, what: impl FnOnce() -> String) -> Result<(), Refusal> {
        if self.config.count == 0 {
            return Ok(());
        }
        let whole_at = self.whole_at_ns.get(&user).map_or(0, |whole_at| whole_at.load(Ordering::Relaxed));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.rate.take(whole_at, self.now_ns(), count).map(drop).map_err(|wait_ns| self.refusal(wait_ns, what()))
    }

    fn take_at(&self, user: UserNo, count: usize, now_ns: u64, what: impl FnOnce() -> String) -> Result<(), Refusal> {
        if self.config.count == 0 || count == 0 {
            return Ok(());
        }
        let whole_at = match self.whole_at_ns.get(&user) {
            Some(whole_at) => whole_at,
            None => {
                let fresh = Arc::new(AtomicU64::new(0));
                self.whole_at_ns.insert(user, fresh.clone());
                fresh
            }
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let mut wait_ns = None;
        let taken = whole_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
            self.rate.take(at, now_ns, count).map_err(|wait| wait_ns = wait).ok()
        });
        taken.map(drop).map_err(|_| self.refusal(wait_ns, what()))
    }

    /// `wait_ns`: the time after which the count can be taken; `None`: it never can.
    fn refusal(&self, wait_ns: Option<u64>, what: String) -> Refusal {
        let PerMinute { count: per_minute, burst } = self.config;
        let detail = format!("{what}: {per_minute} a minute, and {burst} at once, are the limit");
        match wait_ns {
            Some(wait_ns) => {
                Refusal::new(ErrorCode::RateLimited, detail).retry_after(wait_ns.div_ceil(1_000_000).max(1))
            }
            None => Refusal::new(ErrorCode::LimitExceeded, detail),
        }
    }
}

/// The limiter of conversations.
pub(crate) struct ConversationLimiters {
    openings: UserLimiter,
    additions: UserLimiter,
    strangers: UserLimiter,
}

impl ConversationLimiters {
    pub(crate) fn new(config: &LimitsConfig) -> Self {
        ConversationLimiters {
            openings: UserLimiter::new(config.openings),
            additions: UserLimiter::new(config.additions),
            strangers: UserLimiter::new(config.strangers),
        }
    }
}

impl Engine {
    /// Takes a new direct conversation from the rates of both users.
    pub(crate) fn check_opening_limits(&self, user: &User, with: &str) -> Result<(), Refusal> {
        let other = self.directory.require_user(with)?;
        self.limits.openings.take(user.no, 1, opened_too_many)?;
        if other.no == user.no {
            return Ok(());
        }
        self.limits.strangers.take(other.no, 1, || approached_too_often(with))
    }

    /// Takes a new group with these first members from the rates of the user and the members.
    pub(crate) fn check_group_limits(&self, user: &User, id: &str, members: &[String]) -> Result<(), Refusal> {
        // A group that exists stays as it is, with its members.
        if self.directory.conversation_by_id(id).map_err(store_refusal)?.is_some() {
            return Ok(());
        }
        let mut others = Vec::with_capacity(members.len());
        for id in members.iter().filter(|id| **id != user.id) {
            let no = self.directory.user_no(id).map_err(store_refusal)?;
            others.push((no.ok_or_else(|| Refusal::not_found("user", id))?, id.as_str()));
        }
        self.limits.openings.take(user.no, 1, opened_too_many)?;
        self.check_addition_limits(user, &others)
    }

    /// Takes new members from the rates of the user and the members.
    pub(crate) fn check_addition_limits(&self, user: &User, others: &[(UserNo, &str)]) -> Result<(), Refusal> {
        let others = others.iter().filter(|(no, _)| *no != user.no);
        self.limits.additions.take(user.no, others.clone().count(), || "members: you add too many".into())?;
        for (no, id) in others {
            self.check_groups_per_user(*no, id)?;
            let direct = direct_id(&user.id, id);
            if self.directory.conversation_by_id(&direct).map_err(store_refusal)?.is_none() {
                self.limits.strangers.take(*no, 1, || approached_too_often(id))?;
            }
        }
        Ok(())
    }

    fn check_groups_per_user(&self, user: UserNo, id: &str) -> Result<(), Refusal> {
        let most = self.config.limits.groups_per_user;
        if most == 0 {
            return Ok(());
        }
        let places = self.store.conversations_of(user, false, most).map_err(store_refusal)?;
        match places.len() < most {
            true => Ok(()),
            false => Err(Refusal::limit(
                &format!("groups of {id:?} that other users may add them to"),
                most as u64,
                most as u64 + 1,
            )),
        }
    }
}

fn opened_too_many() -> String {
    "conversations: you open too many".into()
}

fn approached_too_often(id: &str) -> String {
    format!("{id:?} is drawn into conversations by strangers too often")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_NS: u64 = 60_000_000_000;

    #[test]
    fn a_burst_passes_and_then_the_rate_per_minute_holds() {
        let limiter = UserLimiter::new(PerMinute { count: 60, burst: 5 });
        let take = |user, count, at| limiter.take_at(UserNo(user), count, at, String::new);
        assert!(take(1, 3, MINUTE_NS).is_ok() && take(1, 2, MINUTE_NS).is_ok());
        let refusal = take(1, 2, MINUTE_NS).unwrap_err();
        assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::RateLimited, Some(2_000)));
        assert!(take(1, 1, MINUTE_NS + 1_000_000_000).is_ok(), "one came back in a second");
        assert!(take(1, 1, MINUTE_NS + 1_000_000_000).is_err());
        assert!(take(2, 5, MINUTE_NS).is_ok(), "another user has a rate of their own");
        assert_eq!(take(3, 6, MINUTE_NS).unwrap_err().code, ErrorCode::LimitExceeded, "never so many at once");
        assert!(take(3, 5, MINUTE_NS).is_ok(), "what was refused took nothing");
    }

    #[test]
    fn a_rate_of_zero_limits_nothing() {
        let limiter = UserLimiter::new(PerMinute { count: 0, burst: 0 });
        assert!((0..1_000).all(|_| limiter.take_at(UserNo(1), 100, 0, String::new).is_ok()));
    }
}

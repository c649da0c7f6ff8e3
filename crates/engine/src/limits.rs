//! How often users may open conversations and draw others into them, by token. App servers are not limited: who they open
//! what for is the business's own decision.
//!
//! Three allowances, each of one user, each for a quiet time's burst and so many a minute after it: conversations opened,
//! members added, and how often strangers may draw this user into anything. A stranger is whoever has no direct
//! conversation with the user yet.

use crate::{commit::store_refusal, engine::Engine, model::*, rate::CellRate};
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

/// Users whose allowance is remembered, of each kind; one who falls out starts with a whole one.
const USERS: usize = 100_000;

/// So many in a minute, and so many at once after a quiet time.
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
    /// Groups and official accounts of a user above which other users add them to no more; 0: no limit.
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

/// One kind of allowance, of every user.
pub(crate) struct Allowances {
    config: PerMinute,
    rate: CellRate,
    whole_at_ns: Cache<UserNo, Arc<AtomicU64>>,
    started: Instant,
}

impl Allowances {
    pub(crate) fn new(config: PerMinute) -> Self {
        let users = if config.count == 0 { 1 } else { USERS };
        let rate = CellRate::per_minute(config.count, config.burst);
        Allowances { config, rate, whole_at_ns: Cache::new(users), started: Instant::now() }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Takes `count`; `what` says of whom, and what it is that there was too much of.
    pub(crate) fn take(&self, user: UserNo, count: usize, what: impl FnOnce() -> String) -> Result<(), Refusal> {
        self.take_at(user, count, self.now_ns(), what)
    }

    /// Whether so many could be taken.
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

    /// `wait_ns`: until they can be taken; `None`: they never can.
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

/// The allowances of conversations.
pub(crate) struct Limits {
    openings: Allowances,
    additions: Allowances,
    strangers: Allowances,
}

impl Limits {
    pub(crate) fn new(config: &LimitsConfig) -> Self {
        Limits {
            openings: Allowances::new(config.openings),
            additions: Allowances::new(config.additions),
            strangers: Allowances::new(config.strangers),
        }
    }
}

impl Engine {
    /// Whether a user may open a direct conversation that is not there yet.
    pub(crate) fn check_may_approach(&self, user: &User, with: &str) -> Result<(), Refusal> {
        let other = self.directory.require_user(with)?;
        self.limits.openings.take(user.no, 1, opened_too_many)?;
        if other.no == user.no {
            return Ok(());
        }
        self.limits.strangers.take(other.no, 1, || approached_too_often(with))
    }

    /// Whether a user may create a group with these first members.
    pub(crate) fn check_may_gather(&self, user: &User, id: &str, members: &[String]) -> Result<(), Refusal> {
        // One that is there already stays as it is, with its members.
        if self.directory.conversation_by_id(id).map_err(store_refusal)?.is_some() {
            return Ok(());
        }
        let mut others = Vec::with_capacity(members.len());
        for id in members.iter().filter(|id| **id != user.id) {
            let no = self.directory.user_no(id).map_err(store_refusal)?;
            others.push((no.ok_or_else(|| Refusal::not_found("user", id))?, id.as_str()));
        }
        self.limits.openings.take(user.no, 1, opened_too_many)?;
        self.check_may_add(user, &others)
    }

    /// Whether a user may add those who are no members yet.
    pub(crate) fn check_may_add(&self, user: &User, others: &[(UserNo, &str)]) -> Result<(), Refusal> {
        let others = others.iter().filter(|(no, _)| *no != user.no);
        self.limits.additions.take(user.no, others.clone().count(), || "members: you add too many".into())?;
        for (no, id) in others {
            self.check_may_be_added(*no, id)?;
            let direct = direct_id(&user.id, id);
            if self.directory.conversation_by_id(&direct).map_err(store_refusal)?.is_none() {
                self.limits.strangers.take(*no, 1, || approached_too_often(id))?;
            }
        }
        Ok(())
    }

    fn check_may_be_added(&self, user: UserNo, id: &str) -> Result<(), Refusal> {
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
    fn a_burst_passes_then_so_many_a_minute() {
        let allowances = Allowances::new(PerMinute { count: 60, burst: 5 });
        let take = |user, count, at| allowances.take_at(UserNo(user), count, at, String::new);
        assert!(take(1, 3, MINUTE_NS).is_ok() && take(1, 2, MINUTE_NS).is_ok());
        let refusal = take(1, 2, MINUTE_NS).unwrap_err();
        assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::RateLimited, Some(2_000)));
        assert!(take(1, 1, MINUTE_NS + 1_000_000_000).is_ok(), "one came back in a second");
        assert!(take(1, 1, MINUTE_NS + 1_000_000_000).is_err());
        assert!(take(2, 5, MINUTE_NS).is_ok(), "another user has an allowance of their own");
        assert_eq!(take(3, 6, MINUTE_NS).unwrap_err().code, ErrorCode::LimitExceeded, "never so many at once");
        assert!(take(3, 5, MINUTE_NS).is_ok(), "what was refused took nothing");
    }

    #[test]
    fn no_count_is_no_limit() {
        let allowances = Allowances::new(PerMinute { count: 0, burst: 0 });
        assert!((0..1_000).all(|_| allowances.take_at(UserNo(1), 100, 0, String::new).is_ok()));
    }
}

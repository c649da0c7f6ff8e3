//! The sessions that watch users.

use super::{Change, Presence};
use crate::{
    directory::Directory,
    shards::{Control, Shards, WatchUpdate, WatchedChange},
};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::sync::Arc;
use tidings_domain::model::UserNo;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::WATCHED_USERS_MAX,
};

/// A session that watches: its shard of this process, and its number.
pub type Watcher = (u16, u64);

/// Sessions in one control, so that a shard can do other work in between.
const SESSIONS_PER_CONTROL: usize = 256;
/// The time after which a watch that was refused for too many watches may be tried again.
const FULL_RETRY_AFTER_MS: u64 = 10_000;

#[derive(Default)]
pub(super) struct Watchers {
    of_user: FxHashMap<UserNo, SmallVec<[Watcher; 2]>>,
    of_session: FxHashMap<Watcher, FxHashSet<UserNo>>,
    watches: usize,
}

impl Watchers {
    pub(super) fn watches(&self) -> usize {
        self.watches
    }

    fn add(&mut self, watcher: Watcher, users: &[UserNo], watches_max: usize) -> Result<(), Refusal> {
        let watched = self.of_session.get(&watcher);
        let is_new = |user: &&UserNo| watched.is_none_or(|watched| !watched.contains(user));
        let new: FxHashSet<UserNo> = users.iter().filter(is_new).copied().collect();
        let would_be = watched.map_or(0, FxHashSet::len) + new.len();
        if would_be > WATCHED_USERS_MAX {
            return Err(Refusal::limit("users that a session watches", WATCHED_USERS_MAX as u64, would_be as u64));
        }
        if self.watches + new.len() > watches_max {
            let why = format!("all sessions together watch {} users, and may {watches_max}", self.watches);
            return Err(Refusal::new(ErrorCode::QueueFull, why).retry_after(FULL_RETRY_AFTER_MS));
        }
        if new.is_empty() {
            return Ok(());
        }
        self.watches += new.len();
        for user in &new {
            self.of_user.entry(*user).or_default().push(watcher);
        }
        self.of_session.entry(watcher).or_default().extend(new);
        Ok(())
    }

    fn remove(&mut self, watcher: Watcher, users: Option<&[UserNo]>) {
        let Some(watched) = self.of_session.get_mut(&watcher) else { return };
        let gone: Vec<UserNo> = match users {
            None => watched.drain().collect(),
            Some(users) => users.iter().filter(|user| watched.remove(user)).copied().collect(),
        };
        if watched.is_empty() {
            self.of_session.remove(&watcher);
        }
        self.watches -= gone.len();
        for user in gone {
            if let Some(watchers) = self.of_user.get_mut(&user) {
                watchers.retain(|other| *other != watcher);
                if watchers.is_empty() {
                    self.of_user.remove(&user);
                }
            }
        }
        if self.watches == 0 {
            *self = Watchers::default();
        }
    }
}

impl Presence {
    /// Has a session watch users.
    ///
    /// # Errors
    /// `limit_exceeded` and `queue_full` for too many watches.
    pub(crate) fn watch(&self, watcher: Watcher, users: &[UserNo]) -> Result<(), Refusal> {
        self.watchers.lock().add(watcher, users, self.config.watches_max)
    }

    /// Sends a session the present states of users that it watches, as the answer to its request. `last_seen` looks up
    /// when a user was last seen.
    pub(crate) fn send_states(
        &self,
        watcher: Watcher,
        reference: Option<u64>,
        users: impl Iterator<Item = (Arc<str>, UserNo)>,
        last_seen: impl Fn(UserNo) -> Option<u64>,
        shards: &Shards,
    ) {
        let _notifying = self.notifying.lock();
        let state = |(user, no)| {
            let online = self.counts_as_online(no);
            let last_seen = if online { None } else { last_seen(no) };
            WatchedChange { user, online, active: online && self.counts_as_active(no), last_seen }
        };
        let (shard, session) = watcher;
        let update = WatchUpdate { session, reply_to: Some(reference), changes: users.map(state).collect() };
        shards.send_control(usize::from(shard), Control::Presence(vec![update]));
    }

    /// Ends watches of a session.
    pub(crate) fn unwatch(&self, watcher: Watcher, users: &[UserNo]) {
        self.watchers.lock().remove(watcher, Some(users));
    }

    /// Ends all watches of a session.
    pub(crate) fn unwatch_all(&self, watcher: Watcher) {
        self.watchers.lock().remove(watcher, None);
    }

    /// Sends changes to the sessions that watch, one update to each. Waits while a shard's queue is full: nothing sends
    /// a change again.
    pub(super) fn notify_watchers(&self, changes: &[Change], directory: &Directory, shards: &Shards) {
        let watched: Vec<(&Change, SmallVec<[Watcher; 2]>)> = {
            let watchers = self.watchers.lock();
            changes.iter().filter_map(|change| Some((change, watchers.of_user.get(&change.user)?.clone()))).collect()
        };
        let mut by_shard: FxHashMap<u16, FxHashMap<u64, Vec<WatchedChange>>> = FxHashMap::default();
        for (change, watchers) in watched {
            let Ok(Some(user)) = directory.user(change.user) else { continue };
            let last_seen = (!change.online).then_some(change.at);
            let active = change.online && self.counts_as_active(change.user);
            let user = user.id.as_str().into();
            let watched_change = WatchedChange { user, online: change.online, active, last_seen };
            for (shard, session) in watchers {
                by_shard.entry(shard).or_default().entry(session).or_default().push(watched_change.clone());
            }
        }
        for (shard, sessions) in by_shard {
            let mut sessions = sessions
                .into_iter()
                .map(|(session, changes)| WatchUpdate { session, reply_to: None, changes })
                .peekable();
            while sessions.peek().is_some() {
                let updates = sessions.by_ref().take(SESSIONS_PER_CONTROL).collect();
                shards.send_control(usize::from(shard), Control::Presence(updates));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LAPTOP: Watcher = (0, 1);
    const PHONE: Watcher = (1, 2);

    fn users(numbers: std::ops::Range<u64>) -> Vec<UserNo> {
        numbers.map(UserNo).collect()
    }

    #[test]
    fn a_session_watches_each_user_once_up_to_its_limit() {
        let mut watchers = Watchers::default();
        let most = WATCHED_USERS_MAX as u64;
        watchers.add(LAPTOP, &[users(0..most), users(0..most)].concat(), 5_000).unwrap();
        watchers.add(LAPTOP, &users(0..10), 5_000).unwrap();
        assert_eq!((watchers.watches, watchers.of_user[&UserNo(0)].len()), (WATCHED_USERS_MAX, 1));
        let refusal = watchers.add(LAPTOP, &users(most..most + 1), 5_000).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::LimitExceeded);
        watchers.remove(LAPTOP, Some(&users(0..1)));
        watchers.add(LAPTOP, &users(most..most + 1), 5_000).unwrap();
    }

    #[test]
    fn all_sessions_together_have_a_limit_and_leave_nothing_behind() {
        let mut watchers = Watchers::default();
        watchers.add(LAPTOP, &users(0..3), 5).unwrap();
        let refusal = watchers.add(PHONE, &users(0..3), 5).unwrap_err();
        assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::QueueFull, Some(FULL_RETRY_AFTER_MS)));
        watchers.add(PHONE, &users(0..2), 5).unwrap();
        watchers.remove(LAPTOP, None);
        assert_eq!((watchers.watches, watchers.of_user.len(), watchers.of_session.len()), (2, 2, 1));
        watchers.remove(PHONE, Some(&users(0..9)));
        assert_eq!((watchers.watches, watchers.of_user.capacity(), watchers.of_session.capacity()), (0, 0, 0));
    }
}

//! The sessions that watch users. A user may watch users with whom they share a direct conversation, or
//! members of a group that they name and that is small enough for its members to know each other.

use super::Change;
use crate::{
    engine::Engine,
    shards::{Control, WatchUpdate, WatchedChange},
};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::sync::Arc;
use tidings_domain::{
    model::{User, UserNo},
    refusals::store_refusal,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    ids::direct_id,
    limits::{WATCHED_GROUP_MEMBERS_MAX, WATCHED_USERS_MAX},
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

impl Engine {
    /// Lets a session watch users: their states come by the shard's control queue, now and whenever they change. With
    /// a conversation, the users must be members of it; without, each must share a direct conversation
    /// with the user.
    ///
    /// # Errors
    /// `limit_exceeded` and `queue_full` for too many watches; `not_found`, `not_a_member` and `forbidden`;
    /// `node_unavailable` while this node does not know the sessions of other nodes; `store_unavailable`.
    pub fn watch_presence(
        &self,
        user: &Arc<User>,
        conversation: Option<&str>,
        users: &[String],
        watcher: Watcher,
        reference: Option<u64>,
    ) -> Result<(), Refusal> {
        if users.len() > WATCHED_USERS_MAX {
            return Err(Refusal::limit("users that a session watches", WATCHED_USERS_MAX as u64, users.len() as u64));
        }
        self.check_presence()?;
        let group = conversation.map(|id| self.watchable_group(user, id)).transpose()?;
        let mut numbers = Vec::with_capacity(users.len());
        for id in users {
            let other = self.directory.require_user(id)?;
            let knows = match &group {
                Some(group) => self.directory.membership(group.no, other.no).map_err(store_refusal)?.is_some(),
                None => {
                    let direct = direct_id(&user.id, id);
                    other.no == user.no || self.directory.conversation_by_id(&direct).map_err(store_refusal)?.is_some()
                }
            };
            if !knows {
                let why = format!("{id:?} shares no conversation with the user by which they may be watched");
                return Err(Refusal::new(ErrorCode::Forbidden, why));
            }
            numbers.push(other.no);
        }
        self.presence.watchers.lock().add(watcher, &numbers, self.presence.config.watches_max)?;
        let _notifying = self.presence.notifying.lock();
        let mut changes = Vec::with_capacity(users.len());
        for (id, no) in users.iter().zip(&numbers) {
            let online = self.presence.counts_as_online(*no);
            let last_seen = if online { None } else { self.last_seen(*no).ok().flatten() };
            changes.push(WatchedChange { user: id.as_str().into(), online, last_seen });
        }
        let (shard, session) = watcher;
        let update = WatchUpdate { session, reply_to: Some(reference), changes };
        self.lanes.shards().send_control(usize::from(shard), Control::Presence(vec![update]));
        Ok(())
    }

    fn watchable_group(&self, user: &User, id: &str) -> Result<Arc<tidings_domain::model::Conversation>, Refusal> {
        let group = self.directory.require_conversation_for(user, id)?;
        if self.directory.membership(group.no, user.no).map_err(store_refusal)?.is_none() {
            return Err(Refusal::new(ErrorCode::NotAMember, "the user is not a member of the conversation"));
        }
        if group.member_count > WATCHED_GROUP_MEMBERS_MAX {
            let most = WATCHED_GROUP_MEMBERS_MAX;
            return Err(Refusal::limit("members of a group whose presence is watched", most, group.member_count));
        }
        Ok(group)
    }

    /// Ends watches of a session.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn unwatch_presence(&self, users: &[String], watcher: Watcher) -> Result<(), Refusal> {
        let mut numbers = Vec::with_capacity(users.len());
        for id in users {
            numbers.extend(self.directory.user_no(id).map_err(store_refusal)?);
        }
        self.presence.watchers.lock().remove(watcher, Some(&numbers));
        Ok(())
    }

    /// Ends all watches of a session that has ended.
    pub fn unwatch_all(&self, watcher: Watcher) {
        self.presence.watchers.lock().remove(watcher, None);
    }

    /// Sends changes to the sessions that watch, one update to each. Waits while a shard's queue is full: nothing sends
    /// a change again.
    pub(super) fn notify_watchers(&self, changes: &[Change]) {
        let watched: Vec<(&Change, SmallVec<[Watcher; 2]>)> = {
            let watchers = self.presence.watchers.lock();
            changes.iter().filter_map(|change| Some((change, watchers.of_user.get(&change.user)?.clone()))).collect()
        };
        let mut by_shard: FxHashMap<u16, FxHashMap<u64, Vec<WatchedChange>>> = FxHashMap::default();
        for (change, watchers) in watched {
            let Ok(Some(user)) = self.directory.user(change.user) else { continue };
            let last_seen = (!change.online).then_some(change.at);
            let watched_change = WatchedChange { user: user.id.as_str().into(), online: change.online, last_seen };
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
                self.lanes.shards().send_control(usize::from(shard), Control::Presence(updates));
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

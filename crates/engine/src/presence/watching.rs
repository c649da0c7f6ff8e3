//! Who wants to know of whom. A user may watch those with whom they share a direct conversation, or a
//! group that they name and that is small enough for its members to know each other.

use super::Change;
use crate::{
    commit::store_refusal,
    engine::Engine,
    model::{User, UserNo},
    shards::{Control, WatchedChange},
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    ids::direct_id,
    limits::{WATCHED_GROUP_MEMBERS_MAX, WATCHED_USERS_MAX},
};

/// A session of a shard of this process.
pub type Watcher = (u16, u64);

#[derive(Default)]
pub(super) struct Watchers {
    of_user: FxHashMap<UserNo, SmallVec<[Watcher; 2]>>,
    of_session: FxHashMap<Watcher, Vec<UserNo>>,
}

impl Watchers {
    fn add(&mut self, watcher: Watcher, users: &[UserNo]) -> Result<(), Refusal> {
        let watched = self.of_session.entry(watcher).or_default();
        let new: Vec<UserNo> = users.iter().filter(|user| !watched.contains(user)).copied().collect();
        let would_be = watched.len() + new.len();
        if would_be > WATCHED_USERS_MAX {
            return Err(Refusal::limit("users that a session watches", WATCHED_USERS_MAX as u64, would_be as u64));
        }
        for user in new {
            watched.push(user);
            self.of_user.entry(user).or_default().push(watcher);
        }
        Ok(())
    }

    fn remove(&mut self, watcher: Watcher, users: Option<&[UserNo]>) {
        let Some(watched) = self.of_session.get_mut(&watcher) else { return };
        let gone: Vec<UserNo> = match users {
            None => std::mem::take(watched),
            Some(users) => {
                let gone = watched.iter().filter(|user| users.contains(user)).copied().collect();
                watched.retain(|user| !users.contains(user));
                gone
            }
        };
        if watched.is_empty() {
            self.of_session.remove(&watcher);
        }
        for user in gone {
            if let Some(watchers) = self.of_user.get_mut(&user) {
                watchers.retain(|other| *other != watcher);
                if watchers.is_empty() {
                    self.of_user.remove(&user);
                }
            }
        }
    }
}

impl Engine {
    /// Has a session told of these users' changes; answers how they are now. With a conversation, the
    /// users are members of it; without, each is one whom the watcher has a direct conversation with.
    pub fn watch_presence(
        &self,
        user: &Arc<User>,
        conversation: Option<&str>,
        users: &[String],
        watcher: Watcher,
    ) -> Result<Vec<WatchedChange>, Refusal> {
        if users.len() > WATCHED_USERS_MAX {
            return Err(Refusal::limit("users that a session watches", WATCHED_USERS_MAX as u64, users.len() as u64));
        }
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
        self.presence.watchers.lock().add(watcher, &numbers)?;
        let states = users.iter().zip(&numbers).map(|(id, no)| WatchedChange {
            user: id.as_str().into(),
            online: self.presence.is_online(*no),
            last_seen: self.last_seen(*no).ok().flatten(),
        });
        Ok(states.collect())
    }

    fn watchable_group(&self, user: &User, id: &str) -> Result<Arc<crate::model::Conversation>, Refusal> {
        let group = self.directory.require_conversation(id)?;
        if self.directory.membership(group.no, user.no).map_err(store_refusal)?.is_none() {
            return Err(Refusal::new(ErrorCode::NotAMember, "the user is not a member of the conversation"));
        }
        if group.member_count > WATCHED_GROUP_MEMBERS_MAX {
            let most = WATCHED_GROUP_MEMBERS_MAX;
            return Err(Refusal::limit("members of a group whose presence is watched", most, group.member_count));
        }
        Ok(group)
    }

    pub fn unwatch_presence(&self, users: &[String], watcher: Watcher) -> Result<(), Refusal> {
        let mut numbers = Vec::with_capacity(users.len());
        for id in users {
            numbers.extend(self.directory.user_no(id).map_err(store_refusal)?);
        }
        self.presence.watchers.lock().remove(watcher, Some(&numbers));
        Ok(())
    }

    /// The session has ended.
    pub fn unwatch_all(&self, watcher: Watcher) {
        self.presence.watchers.lock().remove(watcher, None);
    }

    /// Tells watchers, each session once.
    pub(super) fn tell_watchers(&self, changes: &[Change]) {
        let mut by_watcher: FxHashMap<Watcher, Vec<WatchedChange>> = FxHashMap::default();
        {
            let watchers = self.presence.watchers.lock();
            for change in changes {
                let Some(sessions) = watchers.of_user.get(&change.user) else { continue };
                let Ok(Some(user)) = self.directory.user(change.user) else { continue };
                let last_seen = (!change.online).then_some(change.at);
                let told = WatchedChange { user: user.id.as_str().into(), online: change.online, last_seen };
                for watcher in sessions {
                    by_watcher.entry(*watcher).or_default().push(told.clone());
                }
            }
        }
        for ((shard, session), changes) in by_watcher {
            self.lanes.shards().tell(usize::from(shard), Control::Presence { session, changes });
        }
    }
}

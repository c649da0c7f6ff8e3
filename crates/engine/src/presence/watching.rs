//! The sessions that watch users. A watch rests on what two users share: a conversation that they are members of, or a direct
//! one, which nobody leaves. It ends when either of them leaves the last conversation on which it rests.

use super::{Change, Presence};
use crate::{
    directory::Directory,
    hub::EndWatches,
    shards::{Control, Shards, WatchUpdate, WatchedChange},
};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use smallvec::SmallVec;
use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};
use tidings_domain::model::{ConversationNo, UserNo};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::ServerFrame,
    http::UserCard,
    limits::WATCHED_USERS_MAX,
};

/// A session that watches: its shard of this process, and its number.
pub type Watcher = (u16, u64);

/// Sessions in one control, so that a shard can do other work in between.
const SESSIONS_PER_CONTROL: usize = 256;
/// Users whose names may have changed that wait to be sent. Full: further ones are not sent; clients see them when they read
/// names again.
const CHANGED_USERS_MAX: usize = 50_000;
/// The time after which a watch that was refused for too many watches may be tried again.
const FULL_RETRY_AFTER_MS: u64 = 10_000;

/// What a watch rests on: conversations of which both are members; `None`: a direct one.
type Grounds = SmallVec<[Option<ConversationNo>; 1]>;

/// A session that watches.
struct WatchingSession {
    user: UserNo,
    watched: FxHashMap<UserNo, Grounds>,
}

/// A user who is watched.
#[derive(Default)]
struct Watched {
    by: SmallVec<[Watcher; 2]>,
    /// A digest of the name and the picture that the watching sessions know; `None`: they may know any.
    card: Option<u64>,
}

#[derive(Default)]
pub(super) struct Watchers {
    of_user: FxHashMap<UserNo, Watched>,
    /// Users, by id, whose names or pictures may have changed since they were sent.
    changed_users: FxHashSet<String>,
    of_session: FxHashMap<Watcher, WatchingSession>,
    /// The sessions of each user who watches.
    by_user: FxHashMap<UserNo, SmallVec<[Watcher; 2]>>,
    watches: usize,
}

impl Watchers {
    pub(super) fn watches(&self) -> usize {
        self.watches
    }

    fn add(
        &mut self,
        (watcher, watching): (Watcher, UserNo),
        users: &[UserNo],
        ground: Option<ConversationNo>,
        watches_max: usize,
    ) -> Result<(), Refusal> {
        let watched = self.of_session.get(&watcher).map(|session| &session.watched);
        let is_new = |user: &&UserNo| watched.is_none_or(|watched| !watched.contains_key(user));
        let new: FxHashSet<UserNo> = users.iter().filter(is_new).copied().collect();
        let would_be = watched.map_or(0, FxHashMap::len) + new.len();
        if would_be > WATCHED_USERS_MAX {
            return Err(Refusal::limit("users that a session watches", WATCHED_USERS_MAX as u64, would_be as u64));
        }
        if self.watches + new.len() > watches_max {
            let why = format!("all sessions together watch {} users, and may {watches_max}", self.watches);
            return Err(Refusal::new(ErrorCode::QueueFull, why).retry_after(FULL_RETRY_AFTER_MS));
        }
        if users.is_empty() {
            return Ok(());
        }
        self.watches += new.len();
        for user in &new {
            self.of_user.entry(*user).or_default().by.push(watcher);
        }
        let session = self.of_session.entry(watcher).or_insert_with(|| {
            self.by_user.entry(watching).or_default().push(watcher);
            WatchingSession { user: watching, watched: FxHashMap::default() }
        });
        for user in users {
            let grounds = session.watched.entry(*user).or_default();
            if !grounds.contains(&ground) {
                grounds.push(ground);
            }
        }
        Ok(())
    }

    fn remove(&mut self, watcher: Watcher, users: Option<&[UserNo]>) {
        let Some(WatchingSession { user: watching, watched }) = self.of_session.get_mut(&watcher) else { return };
        let gone: Vec<UserNo> = match users {
            None => watched.drain().map(|(user, _)| user).collect(),
            Some(users) => users.iter().filter(|user| watched.remove(user).is_some()).copied().collect(),
        };
        if watched.is_empty() {
            let watching = *watching;
            self.of_session.remove(&watcher);
            if let Some(sessions) = self.by_user.get_mut(&watching) {
                sessions.retain(|other| *other != watcher);
                if sessions.is_empty() {
                    self.by_user.remove(&watching);
                }
            }
        }
        self.watches -= gone.len();
        for user in gone {
            if let Some(watched) = self.of_user.get_mut(&user) {
                watched.by.retain(|other| *other != watcher);
                if watched.by.is_empty() {
                    self.of_user.remove(&user);
                }
            }
        }
        if self.watches == 0 {
            *self = Watchers::default();
        }
    }

    /// Ends the watches that rest on this conversation alone, by these users and of them.
    fn end(&mut self, conversation: ConversationNo, users: &[UserNo]) {
        for user in users {
            for watcher in self.by_user.get(user).cloned().unwrap_or_default() {
                let session = self.of_session.get(&watcher);
                let all: Vec<UserNo> = session.iter().flat_map(|session| session.watched.keys()).copied().collect();
                self.end_by(watcher, conversation, all);
            }
            for watcher in self.of_user.get(user).map(|watched| watched.by.clone()).unwrap_or_default() {
                self.end_by(watcher, conversation, vec![*user]);
            }
        }
    }

    fn end_by(&mut self, watcher: Watcher, conversation: ConversationNo, mut watched: Vec<UserNo>) {
        let Some(session) = self.of_session.get_mut(&watcher) else { return };
        watched.retain(|user| {
            session.watched.get_mut(user).is_some_and(|grounds| {
                grounds.retain(|ground| *ground != Some(conversation));
                grounds.is_empty()
            })
        });
        self.remove(watcher, Some(&watched));
    }
}

impl Presence {
    /// Has a session of `watching` watch users, who are members of the conversation that is the ground; `None`: with whom there are
    /// direct conversations.
    ///
    /// # Errors
    /// `limit_exceeded` and `queue_full` for too many watches.
    pub(crate) fn watch(
        &self,
        (watcher, watching): (Watcher, UserNo),
        users: &[UserNo],
        ground: Option<ConversationNo>,
    ) -> Result<(), Refusal> {
        self.watchers.lock().add((watcher, watching), users, ground, self.config.watches_max)
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
            changes.iter().filter_map(|change| Some((change, watchers.of_user.get(&change.user)?.by.clone()))).collect()
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

impl Presence {
    /// The watching sessions know this name and picture of a user, or read them now.
    pub(super) fn note_known_card(&self, user: UserNo, card: &UserCard) {
        if let Some(watched) = self.watchers.lock().of_user.get_mut(&user) {
            // Sessions that know another one are still to be sent this one.
            let digest = digest_of(card);
            watched.card = if watched.card.is_none_or(|known| known == digest) { Some(digest) } else { None };
        }
    }

    /// The names or pictures of these users may have changed.
    pub(crate) fn note_changed_users(&self, ids: &[String]) {
        let mut watchers = self.watchers.lock();
        if watchers.watches > 0 {
            let room = CHANGED_USERS_MAX.saturating_sub(watchers.changed_users.len());
            watchers.changed_users.extend(ids.iter().take(room).cloned());
        }
    }

    /// Takes at most so many of the users whose names or pictures may have changed.
    pub(crate) fn take_changed_users(&self, most: usize) -> Vec<String> {
        let mut watchers = self.watchers.lock();
        let taken: Vec<String> = watchers.changed_users.iter().take(most).cloned().collect();
        for id in &taken {
            watchers.changed_users.remove(id);
        }
        taken
    }

    /// Sends a user's name and picture to the sessions that watch the user, if they know others.
    pub(crate) fn tell_card(&self, user: UserNo, card: &UserCard, shards: &Shards) {
        let by = {
            let mut watchers = self.watchers.lock();
            let Some(watched) = watchers.of_user.get_mut(&user) else { return };
            let digest = digest_of(card);
            if watched.card.replace(digest) == Some(digest) {
                return;
            }
            watched.by.clone()
        };
        // Writing to memory cannot fail.
        let frame = serde_json::to_vec(&ServerFrame::User { user: card.clone() }).unwrap_or_default();
        let frame: Arc<[u8]> = frame.into();
        let mut by_shard: FxHashMap<u16, Vec<u64>> = FxHashMap::default();
        by.into_iter().for_each(|(shard, session)| by_shard.entry(shard).or_default().push(session));
        for (shard, sessions) in by_shard {
            for sessions in sessions.chunks(SESSIONS_PER_CONTROL) {
                let control = Control::Frame { sessions: sessions.to_vec(), frame: frame.clone() };
                shards.send_control(usize::from(shard), control);
            }
        }
    }
}

fn digest_of(UserCard { name, avatar, .. }: &UserCard) -> u64 {
    let mut hasher = FxHasher::default();
    (name, avatar).hash(&mut hasher);
    hasher.finish()
}

impl EndWatches for Presence {
    fn end_watches_of(&self, watched: UserNo, watching: UserNo) {
        let mut watchers = self.watchers.lock();
        for watcher in watchers.by_user.get(&watching).cloned().unwrap_or_default() {
            watchers.remove(watcher, Some(&[watched]));
        }
    }

    fn note_users(&self, ids: &[String]) {
        self.note_changed_users(ids);
    }

    fn end_watches(&self, conversation: ConversationNo, users: &[UserNo]) {
        let mut watchers = self.watchers.lock();
        if watchers.watches > 0 {
            watchers.end(conversation, users);
        }
    }
}

#[cfg(test)]
#[path = "../../tests/units/presence_watching.rs"]
mod tests;

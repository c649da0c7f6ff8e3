//! Watching users. A user may watch users with whom they share a direct conversation, or members of a group that they
//! name and that is small enough for its members to know each other. Followers of an official account do not know each other.

use super::watching::Watcher;
use crate::{Engine, hub::EndWatches, visibility::check_may_know_followers};
use std::sync::Arc;
use tidings_domain::{
    model::{Conversation, User},
    refusals::store_refusal,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    ids::direct_id,
    limits::{WATCHED_GROUP_MEMBERS_MAX, WATCHED_USERS_MAX},
};

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
        let mut may_block = false;
        let (mut numbers, mut cards) = (Vec::with_capacity(users.len()), Vec::with_capacity(users.len()));
        for id in users {
            let other = self.directory.require_user(id)?;
            let knows = match &group {
                Some(group) => self.directory.membership(group.no, other.no).map_err(store_refusal)?.is_some(),
                None => {
                    let direct = direct_id(&user.id, id);
                    other.no == user.no || self.directory.conversation_by_id(&direct).map_err(store_refusal)?.is_some()
                }
            };
            if !knows || self.is_blocked_by(user, &other)? {
                let why = format!("{id:?} shares no conversation with the user by which they may be watched");
                return Err(Refusal::new(ErrorCode::Forbidden, why));
            }
            numbers.push(other.no);
            cards.push(other.card());
            may_block |= other.blocks > 0;
        }
        self.presence.watch((watcher, user.no), &numbers, group.as_ref().map(|group| group.no))?;
        numbers.iter().zip(&cards).for_each(|(no, card)| self.presence.note_known_card(*no, card));
        if let Some(group) = &group {
            // Who left since the check was watched by nobody then.
            self.watchable_group(user, &group.id).inspect_err(|_| self.presence.end_watches(group.no, &[user.no]))?;
            for no in &numbers {
                if self.directory.membership(group.no, *no).map_err(store_refusal)?.is_none() {
                    self.presence.end_watches(group.no, &[*no]);
                }
            }
        }
        if may_block {
            // The same of a block since the check.
            for no in &numbers {
                let other = self.directory.user(*no).map_err(store_refusal)?;
                if other.is_some_and(|other| self.is_blocked_by(user, &other).unwrap_or(true)) {
                    self.presence.unwatch(watcher, &[*no]);
                }
            }
        }
        let watched = users.iter().map(|id| id.as_str().into()).zip(numbers);
        let last_seen = |user| self.last_seen(user).ok().flatten();
        self.presence.send_states(watcher, reference, watched, last_seen, &self.shards);
        Ok(())
    }

    fn watchable_group(&self, user: &User, id: &str) -> Result<Arc<Conversation>, Refusal> {
        let group = self.directory.require_conversation_for(user, id)?;
        let membership = self.directory.membership(group.no, user.no).map_err(store_refusal)?;
        let why = "the user is not a member of the conversation";
        let role = membership.ok_or_else(|| Refusal::new(ErrorCode::NotAMember, why))?.role;
        check_may_know_followers(&group, role)?;
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
        self.presence.unwatch(watcher, &numbers);
        Ok(())
    }

    /// Ends all watches of a session that has ended.
    pub fn unwatch_all(&self, watcher: Watcher) {
        self.presence.unwatch_all(watcher);
    }
}

//! What accept and stage 1 look up for every message, cached within a limit.
//!
//! A change is committed, then dropped from the cache, then answered, all by the committer: a caller
//! that goes away in between (a closed HTTP connection) cannot leave the old value behind. A look-up
//! that was under way meanwhile may hold the old value; dropping also ends its placeholder, so the
//! old value is used once and never kept.

mod cards;

use crate::cluster::log::Change;
use crate::engine::Actor;
use crate::model::*;
use crate::popups::UnreadCache;
use crate::store::{Outcome, Proposal, Store, StoreResult};
use quick_cache::sync::{Cache, GuardResult};
use std::{borrow::Borrow, hash::Hash, sync::Arc};
use tidings_protocol::error::Refusal;

pub struct Directory {
    store: Arc<dyn Store>,
    user_nos: Cache<String, UserNo>,
    users: Cache<UserNo, Arc<User>>,
    conversation_nos: Cache<String, ConversationNo>,
    conversations: Cache<ConversationNo, Arc<Conversation>>,
    memberships: Cache<(ConversationNo, UserNo), Option<Membership>>,
    pub(crate) unread: UnreadCache,
    /// Other nodes change the store too.
    shared: bool,
}

/// Looks up through a cache; what does not exist is not cached (it may come to exist).
fn through<K, Q, V>(
    cache: &Cache<K, V>,
    key: &Q,
    load: impl FnOnce() -> StoreResult<Option<V>>,
) -> StoreResult<Option<V>>
where
    K: Eq + Hash + Clone + Borrow<Q>,
    Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    V: Clone,
{
    match cache.get_value_or_guard(key, None) {
        GuardResult::Value(value) => Ok(Some(value)),
        GuardResult::Guard(guard) => {
            let value = load()?;
            if let Some(value) = &value {
                // Err: it was invalidated while loading; the value serves this caller only.
                let _ = guard.insert(value.clone());
            }
            Ok(value)
        }
        GuardResult::Timeout => load(),
    }
}

/// No id that was ever given has a zero byte, and a database cannot even be asked for one.
fn can_be_stored(id: &str) -> bool {
    !id.contains('\0')
}

impl Directory {
    pub fn new(store: Arc<dyn Store>, entries: usize, shared: bool) -> Self {
        Directory {
            store,
            user_nos: Cache::new(entries),
            users: Cache::new(entries),
            conversation_nos: Cache::new(entries),
            conversations: Cache::new(entries),
            memberships: Cache::new(entries * 2),
            unread: UnreadCache::default(),
            shared,
        }
    }

    pub fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>> {
        through(&self.user_nos, id, || if can_be_stored(id) { self.store.user_no(id) } else { Ok(None) })
    }

    pub fn user(&self, no: UserNo) -> StoreResult<Option<Arc<User>>> {
        through(&self.users, &no, || Ok(self.store.user(no)?.map(Arc::new)))
    }

    pub fn user_by_id(&self, id: &str) -> StoreResult<Option<Arc<User>>> {
        match self.user_no(id)? {
            Some(no) => self.user(no),
            None => Ok(None),
        }
    }

    /// The user, if the store need not be asked.
    pub(crate) fn user_at_hand(&self, id: &str) -> Option<Arc<User>> {
        self.users.get(&self.user_nos.get(id)?)
    }

    /// The user, or a `not_found` refusal.
    pub fn require_user(&self, id: &str) -> Result<Arc<User>, Refusal> {
        self.user_by_id(id).map_err(crate::commit::store_refusal)?.ok_or_else(|| Refusal::not_found("user", id))
    }

    pub fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Arc<Conversation>>> {
        through(&self.conversations, &no, || Ok(self.store.conversation(no)?.map(Arc::new)))
    }

    pub fn conversation_by_id(&self, id: &str) -> StoreResult<Option<Arc<Conversation>>> {
        match through(&self.conversation_nos, id, || {
            if can_be_stored(id) { self.store.conversation_no(id) } else { Ok(None) }
        })? {
            Some(no) => self.conversation(no),
            None => Ok(None),
        }
    }

    /// The conversation, or a `not_found` refusal.
    pub fn require_conversation(&self, id: &str) -> Result<Arc<Conversation>, Refusal> {
        self.conversation_by_id(id)
            .map_err(crate::commit::store_refusal)?
            .ok_or_else(|| Refusal::not_found("conversation", id))
    }

    /// The conversation as this user may know of it. That two others have a direct one is nobody else's business: it is
    /// not there, as one that nobody opened.
    pub fn require_conversation_for(&self, user: &User, id: &str) -> Result<Arc<Conversation>, Refusal> {
        let conversation = self.require_conversation(id)?;
        match conversation.pair {
            Some((a, b)) if user.no != a && user.no != b => Err(Refusal::not_found("conversation", id)),
            _ => Ok(conversation),
        }
    }

    /// The same for whoever asks.
    pub(crate) fn require_conversation_by(&self, actor: &Actor, id: &str) -> Result<Arc<Conversation>, Refusal> {
        match actor {
            Actor::App => self.require_conversation(id),
            Actor::User(user) => self.require_conversation_for(user, id),
        }
    }

    pub fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        let key = (conversation, user);
        if self.shared {
            // That somebody is no member is asked each time: who was added elsewhere may speak here at once.
            let load = || Ok(self.store.membership(conversation, user)?.map(Some));
            return Ok(through(&self.memberships, &key, load)?.flatten());
        }
        Ok(through(&self.memberships, &key, || Ok(Some(self.store.membership(conversation, user)?)))?.flatten())
    }

    /// Drops what a committed proposal changed.
    pub(crate) fn forget_changed(
        &self,
        proposal: &Proposal,
        outcome: &Outcome,
        conversation: Option<&Arc<Conversation>>,
    ) {
        match (proposal, outcome) {
            (_, Outcome::Rejected(_)) => {}
            // By far the most common one changes no card.
            (Proposal::Append { .. }, _) => {
                for user in conversation.and_then(|c| c.pair).into_iter().flat_map(|(a, b)| [a, b]) {
                    self.unread.invalidate(user);
                }
            }
            (Proposal::PutUsers(patches), _) => patches.iter().for_each(|patch| self.forget_user_by_id(&patch.id)),
            (Proposal::SetDoNotDisturb { user, .. } | Proposal::Revoke { user, .. }, _) => self.forget_user(*user),
            (Proposal::UpdateConversation { conversation, .. }, _) => self.forget_conversation(*conversation),
            (Proposal::ChangeMembers { conversation, .. }, Outcome::MembersChanged { added, removed, changed, .. }) => {
                self.forget_conversation(*conversation);
                for user in added.iter().chain(removed).chain(changed) {
                    self.forget_membership(*conversation, *user);
                }
            }
            (Proposal::MarkRead { conversation, user, .. }, _) => {
                self.forget_membership(*conversation, *user);
                self.unread.invalidate(*user);
            }
            (Proposal::SetMute { conversation, user, .. }, _) => {
                self.forget_membership(*conversation, *user);
            }
            _ => {}
        }
    }

    /// Drops what another node changed.
    pub(crate) fn forget_others(&self, change: Option<&Change>, conversation: Option<&Arc<Conversation>>) {
        for user in conversation.and_then(|c| c.pair).into_iter().flat_map(|(a, b)| [a, b]) {
            self.unread.invalidate(user);
        }
        match change {
            Some(Change::Members { conversation, joined, left, changed }) => {
                self.forget_conversation(*conversation);
                for user in joined.iter().chain(left).chain(changed) {
                    self.forget_membership(*conversation, *user);
                }
            }
            Some(Change::Conversation(conversation)) => self.forget_conversation(*conversation),
            Some(Change::Users(ids)) => self.forget_users(ids),
            Some(Change::DoNotDisturb(user)) => self.forget_user(*user),
            Some(Change::Mute { conversation, user }) => self.forget_membership(*conversation, *user),
            Some(Change::Read { conversation, user, .. }) => {
                self.forget_membership(*conversation, *user);
                self.unread.invalidate(*user);
            }
            // Perhaps the user's tokens were revoked.
            Some(Change::Kick { user, .. }) => self.forget_user(*user),
            None => {}
        }
    }

    /// Asks the store for nothing: a number that is not at hand is looked for among the cards.
    fn forget_users(&self, ids: &[String]) {
        let mut unknown = std::collections::HashSet::new();
        for id in ids {
            match self.user_nos.get(id) {
                Some(no) => self.forget_user(no),
                None => drop(unknown.insert(id.as_str())),
            }
        }
        if !unknown.is_empty() {
            self.users.retain(|_, user| !unknown.contains(user.id.as_str()));
        }
    }

    fn forget_user_by_id(&self, id: &str) {
        match self.user_no(id) {
            Ok(Some(no)) => self.forget_user(no),
            Ok(None) => {}
            // Whose number cannot be read now could be anyone's: an empty cache is slow, a wrong one is wrong.
            Err(_) => self.users.clear(),
        }
    }

    fn forget_user(&self, no: UserNo) {
        self.users.remove(&no);
    }

    fn forget_conversation(&self, no: ConversationNo) {
        self.conversations.remove(&no);
    }

    fn forget_membership(&self, conversation: ConversationNo, user: UserNo) {
        self.memberships.remove(&(conversation, user));
    }
}

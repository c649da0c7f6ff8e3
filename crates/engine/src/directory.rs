//! A bounded cache of the users, conversations and memberships that accept and stage 1 look up for every message.
//!
//! The committer commits a change, then invalidates the cache, then answers: a caller
//! that goes away in between (a closed HTTP connection) cannot leave the old value in the cache. A look-up
//! that runs meanwhile may read the old value; invalidating also ends its placeholder, so the
//! old value is used once and never cached.

mod cleared;
mod conversation_details;
mod member_lists;
mod push_devices;
mod read_moves;
mod shown;
mod unread;
mod users;

pub use member_lists::MemberList;

use crate::{desks::Desks, visibility::Floors};
use cleared::ClearedMarks;
use member_lists::MemberLists;
pub use push_devices::PushDevices;
use push_devices::PushDevicesCache;
use quick_cache::sync::{Cache, GuardResult};
use read_moves::ReadMoves;
pub use shown::ShownIndex;
use std::{borrow::Borrow, hash::Hash, sync::Arc};
use tidings_domain::{
    chat_rows::{Preferences, block_key, preferences_key},
    commit_log::Change,
    erasure::EraseStep,
    model::*,
    restrictions::{Restrictions, restrictions_key},
    store::{Outcome, PositionRange, Proposal, RowSpace, Store, StoreResult},
    stored_id::StoredId,
};
use tidings_protocol::{error::Refusal, ids::direct_id};
use tidings_push::UserLookup;
use tokio::sync::watch;
use unread::UnreadCache;
use users::UserCache;

/// Mutes that are kept in memory: those of members who write although they are muted, or were.
const RESTRICTIONS_CACHED: usize = 10_000;

pub struct Directory {
    store: Arc<dyn Store>,
    users: UserCache,
    conversation_nos: Cache<String, ConversationNo>,
    conversations: Cache<ConversationNo, Arc<Conversation>>,
    memberships: Cache<(ConversationNo, UserNo), Option<Membership>>,
    preferences: Cache<(ConversationNo, UserNo), Arc<Preferences>>,
    /// Only of members who have a row of them.
    restrictions: Cache<(ConversationNo, UserNo), Arc<Restrictions>>,
    pub(crate) unread: UnreadCache,
    pub desks: Arc<Desks>,
    member_lists: MemberLists,
    push_devices: PushDevicesCache,
    pub shown: ShownIndex,
    pub(crate) cleared: ClearedMarks,
    /// Where members have read on, of the conversations in which messages wait for that.
    pub(crate) read_moves: ReadMoves,
    /// The position through which nothing here is older than the store.
    current: watch::Sender<Position>,
    /// Whether other nodes change the store too.
    shared: bool,
}

/// Looks a value up in a cache, and loads it if it is not there. A value that does not exist is not cached: it may come
/// to exist.
fn get_or_load<K, Q, V>(
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
                // Err: the value was invalidated while it was loaded; it serves this caller only.
                let _ = guard.insert(value.clone());
            }
            Ok(value)
        }
        GuardResult::Timeout => load(),
    }
}

impl Directory {
    pub fn new(store: Arc<dyn Store>, entries: usize, shared: bool) -> Self {
        Directory {
            desks: Desks::new(store.clone()),
            member_lists: MemberLists::default(),
            push_devices: PushDevicesCache::default(),
            shown: ShownIndex::default(),
            cleared: ClearedMarks::default(),
            read_moves: ReadMoves::default(),
            current: watch::Sender::new(store.last_position()),
            store,
            users: UserCache::new(entries),
            conversation_nos: Cache::new(entries),
            conversations: Cache::new(entries),
            memberships: Cache::new(entries * 2),
            preferences: Cache::new(entries),
            restrictions: Cache::new(RESTRICTIONS_CACHED),
            unread: UnreadCache::default(),
            shared,
        }
    }

    /// The number of the user with this id. The user is in memory afterwards.
    ///
    /// # Errors
    /// Those of [`Store`] reads; the same holds for the other look-ups.
    pub fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>> {
        Ok(self.user_by_id(id)?.map(|user| user.no))
    }

    /// The user with this number.
    ///
    /// # Errors
    /// Those of the store's reads, for users who are not in memory.
    pub fn user(&self, no: UserNo) -> StoreResult<Option<Arc<User>>> {
        self.users.get_or_load(no, || self.store.user(no))
    }

    /// The user with this id.
    ///
    /// # Errors
    /// Those of the store's reads, for users who are not in memory.
    pub fn user_by_id(&self, id: &str) -> StoreResult<Option<Arc<User>>> {
        if let Some(user) = self.users.get_by_id(id) {
            return Ok(Some(user));
        }
        let Some(stored) = StoredId::parse(id) else { return Ok(None) };
        let load = || self.users.load_by_id(|| self.store.user_with_id(stored), |no| self.store.user(no));
        let has_it = |user: &Arc<User>| user.id == id;
        // The id may pass to another user while the one who had it is read.
        match load()? {
            Some(user) if !has_it(&user) => Ok(load()?.filter(has_it)),
            found => Ok(found),
        }
    }

    /// The user, if the cache has it: no read of the store.
    pub(crate) fn cached_user(&self, id: &str) -> Option<Arc<User>> {
        self.users.get_by_id(id)
    }

    /// The user with this id.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable` when the store cannot answer.
    pub fn require_user(&self, id: &str) -> Result<Arc<User>, Refusal> {
        self.user_by_id(id)
            .map_err(tidings_domain::refusals::store_refusal)?
            .ok_or_else(|| Refusal::not_found("user", id))
    }

    /// The conversation with this number.
    ///
    /// # Errors
    /// Those of the store's reads, for conversations that are not in memory.
    pub fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Arc<Conversation>>> {
        let load = || {
            let Some(mut found) = self.store.conversation(no)? else { return Ok(None) };
            if let Some(pair) = found.pair {
                found.blocks = self.pair_blocks(pair)?;
            }
            Ok(Some(Arc::new(found)))
        };
        get_or_load(&self.conversations, &no, load)
    }

    /// Whether the user blocks the other one. Reads the store only for users who block anybody.
    ///
    /// # Errors
    /// Those of the store's reads.
    pub fn has_blocked(&self, user: &User, other: UserNo) -> StoreResult<bool> {
        Ok(user.blocks > 0 && self.store.row(RowSpace::Chat, &block_key(user.no, other))?.is_some())
    }

    /// Who of two users blocks the other.
    ///
    /// # Errors
    /// Those of the store's reads.
    pub(crate) fn pair_blocks(&self, (a, b): (UserNo, UserNo)) -> StoreResult<PairBlocks> {
        let blocks = |user, other| match self.user(user)? {
            Some(user) => self.has_blocked(&user, other),
            None => Ok(false),
        };
        Ok(PairBlocks(blocks(a, b)?, blocks(b, a)?))
    }

    /// The conversation with this id.
    ///
    /// # Errors
    /// Those of the store's reads, for conversations that are not in memory.
    pub fn conversation_by_id(&self, id: &str) -> StoreResult<Option<Arc<Conversation>>> {
        let Some(stored) = StoredId::parse(id) else { return Ok(None) };
        match get_or_load(&self.conversation_nos, id, || self.store.find_conversation(stored))? {
            // The id of a direct conversation changes when one of the two is erased, and is another conversation's then.
            Some(no) => Ok(self.conversation(no)?.filter(|found| {
                let is_it = found.id == id;
                if !is_it {
                    self.conversation_nos.remove(id);
                }
                is_it
            })),
            None => Ok(None),
        }
    }

    /// The conversation with this id.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable` when the store cannot answer.
    pub fn require_conversation(&self, id: &str) -> Result<Arc<Conversation>, Refusal> {
        self.conversation_by_id(id)
            .map_err(tidings_domain::refusals::store_refusal)?
            .filter(|conversation| !conversation.is_deleted())
            .ok_or_else(|| Refusal::not_found("conversation", id))
    }

    /// The conversation with this id, as the user may know of it. A direct conversation of two others stays hidden: the
    /// refusal is that of a conversation that does not exist.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable` when the store cannot answer.
    pub fn require_conversation_for(&self, user: &User, id: &str) -> Result<Arc<Conversation>, Refusal> {
        let conversation = self.require_conversation(id)?;
        match conversation.pair {
            Some((a, b)) if user.no != a && user.no != b => Err(Refusal::not_found("conversation", id)),
            _ => Ok(conversation),
        }
    }

    /// The conversation with this id, as the actor may know of it.
    pub(crate) fn require_conversation_by(&self, actor: &Actor, id: &str) -> Result<Arc<Conversation>, Refusal> {
        match actor {
            Actor::App => self.require_conversation(id),
            Actor::User(user) => self.require_conversation_for(user, id),
        }
    }

    /// The user's membership of the conversation; `None`: no member.
    ///
    /// # Errors
    /// Those of the store's reads, for memberships that are not in memory.
    pub fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        let key = (conversation, user);
        if self.shared {
            // Absence is not cached: a user whom another node has added may send here at once.
            let load = || Ok(self.store.membership(conversation, user)?.map(Some));
            return Ok(get_or_load(&self.memberships, &key, load)?.flatten());
        }
        Ok(get_or_load(&self.memberships, &key, || Ok(Some(self.store.membership(conversation, user)?)))?.flatten())
    }

    /// What the user has set for the conversation.
    ///
    /// # Errors
    /// Those of the store's reads, for preferences that are not in memory.
    pub fn preferences(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Arc<Preferences>> {
        let load = || {
            let row = self.store.row(RowSpace::Chat, &preferences_key(user, conversation))?;
            Ok(Some(Arc::new(Preferences::decode(row.as_deref())?)))
        };
        Ok(get_or_load(&self.preferences, &(conversation, user), load)?.unwrap_or_default())
    }

    /// The mute and the ban of a user in the conversation.
    ///
    /// # Errors
    /// Those of the store's reads, for restrictions that are not in memory.
    pub(crate) fn restrictions(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Arc<Restrictions>> {
        let load = || {
            let row = self.store.row(RowSpace::Chat, &restrictions_key(conversation, user))?;
            Ok(Some(Arc::new(Restrictions::decode(row.as_deref())?)))
        };
        Ok(get_or_load(&self.restrictions, &(conversation, user), load)?.unwrap_or_default())
    }

    /// Where the parts of a conversation begin that its members with sessions on this node may see; `None`: all may see
    /// everything. Reads the store only for what is not in memory; of what cannot be read nothing may be seen.
    pub(crate) fn floors(&self, conversation: &Conversation) -> Option<Floors> {
        let cleared_seq = |user| Ok(self.preferences(conversation.no, user)?.cleared_seq);
        let mut cleared = self.cleared.of(conversation.no, cleared_seq);
        if let Some(sides) = self.desks.sides(conversation.pair) {
            // What one agent has cleared is cleared for the account.
            let seq = cleared_seq(sides.desk.desk.user.no).unwrap_or(u64::MAX);
            let insiders = sides.insiders();
            cleared.retain(|(user, _)| !insiders.contains(user));
            cleared.extend(insiders.into_iter().filter(|_| seq > 0).map(|user| (user, seq)));
        }
        // Another node reports a conversation without its settings.
        let history = match conversation.kind {
            ConversationKind::Direct => HistoryVisibility::All,
            ConversationKind::Group | ConversationKind::Official => match self.conversation(conversation.no) {
                Ok(details) => details.map_or(HistoryVisibility::All, |details| details.history()),
                Err(error) => {
                    tracing::warn!(%error, "a conversation cannot be read: members are shown less of it");
                    HistoryVisibility::Join
                }
            },
        };
        Some(Floors { history, cleared }).filter(|floors| !floors.is_trivial())
    }

    /// The members of the conversation, as of [`Directory::current`] or later; `None`: there are too many for memory. One
    /// thread asks.
    ///
    /// # Errors
    /// Those of the store's reads.
    pub fn members(&self, conversation: &Conversation) -> StoreResult<Option<MemberList>> {
        self.member_lists.members(&*self.store, conversation)
    }

    /// The devices of these users that providers reach, in the same order. `is_current`: as of [`Directory::current`] is enough.
    ///
    /// # Errors
    /// Those of the store's reads.
    pub fn push_devices(&self, users: &[UserNo], is_current: bool) -> StoreResult<Vec<PushDevices>> {
        // Other nodes do not report tokens.
        self.push_devices.of(&*self.store, users, is_current && !self.shared)
    }

    /// The position through which caches are invalidated: what is committed after it may be unknown here.
    pub fn current(&self) -> Position {
        *self.current.borrow()
    }

    /// Waits until a commit after this position is known here, or `is_over` when it is asked anew.
    pub(crate) async fn wait_beyond(&self, position: Position, is_over: impl Fn() -> bool) {
        // The sender is a part of the directory.
        let _ = self.current.subscribe().wait_for(|current| *current > position || is_over()).await;
    }

    /// Has those who wait for commits look whether they are to go on.
    pub(crate) fn wake_waiting(&self) {
        self.current.send_modify(|_| ());
    }

    /// All commits through this position are known here.
    pub(crate) fn note_current(&self, through: Position) {
        self.current.send_if_modified(|current| {
            let moves = through > *current;
            *current = through.max(*current);
            moves
        });
    }

    /// What this node has committed is known here, and so is everything through its end unless a commit of another node before it
    /// is not.
    pub(crate) fn note_committed(&self, span: PositionRange) {
        if span.after <= self.current() {
            self.note_current(span.through);
        }
    }

    /// Forgets lists that may lack changes of a commit whose outcome is unknown.
    pub(crate) fn note_unknown_commit(&self) {
        self.member_lists.clear();
    }

    /// Invalidates what a proposal of this node changed.
    pub(crate) fn invalidate_committed(
        &self,
        proposal: &Proposal,
        outcome: &Outcome,
        conversation: Option<&Arc<Conversation>>,
    ) {
        if matches!(outcome, Outcome::Rejected(_)) {
            return;
        }
        match proposal {
            // By far the most common proposal, and it changes no profile and no details.
            Proposal::Append { .. } | Proposal::OpenDirect { .. } | Proposal::ChangeMessage { .. } => {
                for user in conversation.and_then(|c| c.pair).into_iter().flat_map(|(a, b)| [a, b]) {
                    self.unread.invalidate(user);
                }
            }
            Proposal::PutUsers(patches) => self.users.invalidate_ids(patches.iter().map(|patch| patch.id.as_str())),
            Proposal::SetDoNotDisturb { user, .. }
            | Proposal::SetReceipts { user, .. }
            | Proposal::SetSuspension { user, .. }
            | Proposal::SetNotificationPreferences { user, .. }
            | Proposal::Revoke { user, .. } => self.invalidate_user(*user),
            Proposal::UpdateConversation { conversation, .. } => self.invalidate_conversation(*conversation),
            Proposal::SetDesk { account, .. } => self.desks.note_change(*account),
            Proposal::ChangeMembers { conversation, .. } => {
                self.invalidate_conversation(*conversation);
                if let Outcome::MembersChanged { added, removed, changed, .. } = outcome {
                    for user in added.iter().chain(removed).chain(changed) {
                        self.invalidate_membership(*conversation, *user);
                    }
                }
            }
            Proposal::MarkRead { conversation, user, .. } => {
                if let Outcome::Read { seq, .. } = outcome {
                    self.invalidate_read(*conversation, *user, *seq);
                }
            }
            Proposal::SetPushToken { user, owner, .. } => {
                let owner = owner.as_ref().map(|(owner, _)| *owner);
                owner.into_iter().chain([*user]).for_each(|user| self.push_devices.invalidate(user));
            }
            Proposal::SetBlock { user, other, .. } => self.invalidate_block(*user, *other),
            Proposal::SetPreferences { conversation, user, .. } => {
                self.invalidate_preferences(*conversation, *user);
            }
            Proposal::SetMute { conversation, user, .. } => self.invalidate_membership(*conversation, *user),
            Proposal::Erase(step) => match &**step {
                EraseStep::Begin { user, .. } => self.invalidate_user(*user),
                EraseStep::Rename { conversation, .. } => self.invalidate_conversation(*conversation),
                EraseStep::Profile { .. } | EraseStep::Details { .. } => self.invalidate_erased(),
                // What is left of these is in memory until the profile goes, or is read from the store each time.
                EraseStep::Entries { .. }
                | EraseStep::Rows { .. }
                | EraseStep::BeginConversation { .. }
                | EraseStep::Blank { .. }
                | EraseStep::RowsIn { .. } => {}
            },
            // Nothing in memory is of these.
            Proposal::CreateConversation(_)
            | Proposal::SetLegalHold { .. }
            | Proposal::React { .. }
            | Proposal::Report { .. }
            | Proposal::SetReport { .. }
            | Proposal::TellReactions { .. }
            | Proposal::CheckpointStream { .. }
            | Proposal::Assign { .. }
            | Proposal::SetStored(_)
            | Proposal::SetNotificationCounts(_)
            | Proposal::SetApiKeyUse(_)
            | Proposal::AddFeedNotes(_)
            | Proposal::SetLastSeen(_)
            | Proposal::Kick { .. }
            | Proposal::AdvanceOutbox { .. }
            | Proposal::DeleteStoredNotifications { .. } => {}
        }
    }

    /// Something was said in the conversation of these two.
    pub(crate) fn invalidate_unread(&self, pair: Option<(UserNo, UserNo)>) {
        for user in pair.into_iter().flat_map(|(a, b)| [a, b]) {
            self.unread.invalidate(user);
        }
    }

    /// Invalidates what another node changed.
    pub(crate) fn invalidate_remote(&self, change: Option<&Change>, conversation: Option<&Arc<Conversation>>) {
        self.invalidate_unread(conversation.and_then(|conversation| conversation.pair));
        match change {
            Some(Change::Members { conversation, joined, left, changed }) => {
                self.invalidate_conversation(*conversation);
                for user in joined.iter().chain(left).chain(changed) {
                    self.invalidate_membership(*conversation, *user);
                }
            }
            Some(Change::Conversation(conversation)) => {
                self.invalidate_conversation(*conversation);
                self.desks.note_change(*conversation);
            }
            Some(Change::Users(ids)) => self.users.invalidate_ids(ids.iter().map(String::as_str)),
            Some(Change::DoNotDisturb(user)) => self.invalidate_user(*user),
            Some(Change::Mute { conversation, user }) => {
                self.invalidate_membership(*conversation, *user);
                self.invalidate_preferences(*conversation, *user);
            }
            Some(Change::Read { conversation, user, seq }) => self.invalidate_read(*conversation, *user, *seq),
            // A revocation of the user's tokens comes as a kick.
            Some(Change::Kick { user, .. } | Change::Suspension { user, .. }) => self.invalidate_user(*user),
            Some(Change::Block { user, other, .. }) => self.invalidate_block(*user, *other),
            // The store is asked each time.
            Some(Change::Report { .. } | Change::Notes(_)) => {}
            Some(Change::Erased { .. }) => self.invalidate_erased(),
            Some(Change::Opaque) => self.invalidate_all(),
            None => {}
        }
    }

    /// An id is free, and anything may name another one.
    fn invalidate_erased(&self) {
        self.conversation_nos.clear();
        self.invalidate_all();
    }

    /// Anything may have changed: everything is read anew.
    fn invalidate_all(&self) {
        self.users.clear();
        self.conversations.clear();
        self.memberships.clear();
        self.preferences.clear();
        self.restrictions.clear();
        self.member_lists.clear();
        self.unread.invalidate_all();
        self.cleared.note_all_changed();
        self.read_moves.note_all();
        self.desks.note_all_changed();
    }

    fn invalidate_user(&self, no: UserNo) {
        self.users.invalidate(no);
    }

    /// The user's profile first: what their conversation loads from here on asks it.
    fn invalidate_block(&self, user: UserNo, other: UserNo) {
        let ids = [user, other].map(|no| self.users.get(no).map(|user| user.id.clone()));
        self.invalidate_user(user);
        if let [Some(a), Some(b)] = ids
            && let Some(no) = self.conversation_nos.get(&direct_id(&a, &b))
        {
            return self.invalidate_conversation(no);
        }
        self.conversations.retain(|_, found| found.pair != Some((user, other)) && found.pair != Some((other, user)));
    }

    fn invalidate_conversation(&self, no: ConversationNo) {
        self.conversations.remove(&no);
    }

    fn invalidate_preferences(&self, conversation: ConversationNo, user: UserNo) {
        self.preferences.remove(&(conversation, user));
        self.cleared.note_changed(user, conversation);
        // What is cleared counts as read.
        self.shown.note_read(user, conversation);
    }

    fn invalidate_membership(&self, conversation: ConversationNo, user: UserNo) {
        self.memberships.remove(&(conversation, user));
        self.preferences.remove(&(conversation, user));
        self.restrictions.remove(&(conversation, user));
        self.member_lists.note_changed(conversation, user);
        self.read_moves.note(conversation);
    }

    fn invalidate_read(&self, conversation: ConversationNo, user: UserNo, seq: u64) {
        self.memberships.remove(&(conversation, user));
        self.member_lists.note_read(conversation, user, seq);
        self.read_moves.note(conversation);
        self.shown.note_read(user, conversation);
        self.unread.invalidate(user);
    }
}

impl UserLookup for Directory {
    fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>> {
        Directory::user_no(self, id)
    }
}

#[cfg(test)]
mod tests;

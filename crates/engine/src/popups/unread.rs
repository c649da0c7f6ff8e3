//! Since when a user's oldest unread direct message is there: looked up for rules about it, and remembered until a
//! message comes or is read.

use crate::{commit::store_refusal, engine::Engine, model::*, store::End};
use quick_cache::sync::Cache;
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_protocol::{
    error::Refusal,
    http::ConversationKind,
    limits::{CONVERSATIONS_PER_USER_MAX, UNREAD_ENTRIES_MAX},
};

/// Users whose answer is remembered.
const USERS_CACHED: usize = 200_000;
/// Changes are counted in so many stripes: an answer that was looked up while its stripe changed is not kept.
const STRIPES: usize = 1_024;
/// Entries read at once while looking for one that counts.
const READ_AT_ONCE: usize = 50;

pub(crate) struct UnreadCache {
    known: Cache<UserNo, Option<u64>>,
    changes: Box<[AtomicU64]>,
}

impl Default for UnreadCache {
    fn default() -> Self {
        UnreadCache { known: Cache::new(USERS_CACHED), changes: (0..STRIPES).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl UnreadCache {
    fn stripe(&self, user: UserNo) -> &AtomicU64 {
        &self.changes[user.0 as usize % STRIPES]
    }

    /// A message has come to the user, or the user has read: what was looked up is stale.
    pub(crate) fn forget(&self, user: UserNo) {
        self.stripe(user).fetch_add(1, Ordering::SeqCst);
        self.known.remove(&user);
    }

    fn look_up(
        &self,
        user: UserNo,
        read: impl FnOnce() -> Result<Option<u64>, Refusal>,
    ) -> Result<Option<u64>, Refusal> {
        if let Some(known) = self.known.get(&user) {
            return Ok(known);
        }
        let before = self.stripe(user).load(Ordering::SeqCst);
        let found = read()?;
        if self.stripe(user).load(Ordering::SeqCst) == before {
            self.known.insert(user, found);
            // A change between the look and the insert has removed nothing yet.
            if self.stripe(user).load(Ordering::SeqCst) != before {
                self.known.remove(&user);
            }
        }
        Ok(found)
    }
}

impl Engine {
    /// When the user's oldest unread direct message was sent, in milliseconds since 1970 UTC.
    pub(super) fn unread_direct_since(&self, user: UserNo) -> Result<Option<u64>, Refusal> {
        self.directory.unread.look_up(user, || {
            self.metrics.popup_store_reads.inc();
            let places = self.store.conversations_of(user, true, CONVERSATIONS_PER_USER_MAX).map_err(store_refusal)?;
            let mut oldest: Option<u64> = None;
            for place in places.iter().filter(|place| place.kind == ConversationKind::Direct) {
                let since = self.unread_since(user, place.conversation)?;
                oldest = oldest.into_iter().chain(since).min();
            }
            Ok(oldest)
        })
    }

    /// The first message of another that is after the user's read mark.
    fn unread_since(&self, user: UserNo, no: ConversationNo) -> Result<Option<u64>, Refusal> {
        let head = self.store.head(no).map_err(store_refusal)?;
        let Some(membership) = self.directory.membership(no, user).map_err(store_refusal)? else { return Ok(None) };
        let mut next = (membership.read_seq.max(membership.joined_seq) + 1).max(head.first_seq);
        let last_looked_at = head.last_seq.min(next.saturating_add(UNREAD_ENTRIES_MAX as u64));
        while next <= last_looked_at {
            let page = self.store.entries(no, next, last_looked_at, READ_AT_ONCE, End::Oldest);
            let page = page.map_err(store_refusal)?;
            let Some(last) = page.last() else { break };
            next = last.seq + 1;
            let counts = |entry: &&StoredEntry| {
                let own = entry.content.sender.as_ref().is_some_and(|sender| sender.no == user);
                !own && !entry.content.silent && entry.content.kind == EntryKind::Message
            };
            if let Some(first) = page.iter().find(counts) {
                return Ok(Some(first.at));
            }
        }
        Ok(None)
    }
}

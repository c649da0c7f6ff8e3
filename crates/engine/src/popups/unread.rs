//! Since when a user's oldest unread direct message is there: looked up for rules about it, and remembered until a
//! message comes or is read.

use crate::{commit::store_refusal, engine::Engine, model::*, store::*};
use quick_cache::sync::Cache;
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_protocol::{
    error::Refusal,
    limits::{CONVERSATIONS_PER_USER_MAX, UNREAD_ENTRIES_MAX},
};

/// Users whose answer is remembered.
const USERS_CACHED: usize = 200_000;
/// Changes are counted in so many stripes: an answer that was looked up while its stripe changed is not kept.
const STRIPES: usize = 1_024;
/// Entries of a conversation read at once while looking for one that counts: first a few, for most often the first does.
const PAGE_FIRST: usize = 4;
const PAGE_MAX: usize = 64;
/// Bytes of what is read at once of all conversations.
const PAGES_BYTES_MAX: usize = 2 * 1024 * 1024;

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

    /// What is remembered, if it is.
    pub(super) fn at_hand(&self, user: UserNo) -> Option<Option<u64>> {
        self.known.get(&user)
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
            let places = self.store.standings(user, Places::Direct, CONVERSATIONS_PER_USER_MAX);
            self.oldest_unread(user, &places.map_err(store_refusal)?)
        })
    }

    /// The oldest message of others that is after the user's read mark in its conversation.
    fn oldest_unread(&self, user: UserNo, places: &[Standing]) -> Result<Option<u64>, Refusal> {
        let mut open: Vec<_> = places.iter().map(not_looked_at).filter(|ask| ask.from_seq <= ask.to_seq).collect();
        let mut oldest: Option<u64> = None;
        let mut limit = PAGE_FIRST;
        while !open.is_empty() {
            open.iter_mut().for_each(|ask| ask.limit = limit);
            limit = (limit * 2).min(PAGE_MAX);
            let pages = self.store.pages(&open, PAGES_BYTES_MAX).map_err(store_refusal)?;
            let counts = |entry: &&StoredEntry| {
                let own = entry.content.sender.as_ref().is_some_and(|sender| sender.no == user);
                !own && !entry.content.silent && entry.content.kind == EntryKind::Message
            };
            let mut rest = Vec::new();
            for (ask, page) in open.into_iter().zip(pages) {
                match (page.iter().find(counts), page.last()) {
                    (Some(first), _) => oldest = oldest.into_iter().chain([first.at]).min(),
                    (None, Some(last)) if last.seq < ask.to_seq => rest.push(PageAsk { from_seq: last.seq + 1, ..ask }),
                    _ => {}
                }
            }
            open = rest;
        }
        Ok(oldest)
    }
}

/// What the user has not read of a conversation, as far as it is looked at.
fn not_looked_at(standing: &Standing) -> PageAsk {
    let Standing { conversation, head, membership, .. } = standing;
    let from_seq = (membership.read_seq.max(membership.joined_seq) + 1).max(head.first_seq);
    let to_seq = head.last_seq.min(from_seq.saturating_add(UNREAD_ENTRIES_MAX as u64));
    PageAsk { conversation: *conversation, from_seq, to_seq, limit: PAGE_FIRST }
}

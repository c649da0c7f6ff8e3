//! The users as popups see them: their profiles, and the age of a user's oldest unread direct message.

use crate::{directory::Directory, unread_counts::counts};
use std::sync::Arc;
use tidings_domain::{metrics::Metrics, model::*, refusals::store_refusal, store::*};
use tidings_popups::UserContextSource;
use tidings_protocol::{
    error::Refusal,
    limits::{CONVERSATIONS_PER_USER_MAX, UNREAD_ENTRIES_MAX},
};

/// Entries of a conversation that are read at once in search of an unread message: few at first, for most often the
/// first entry is one.
const PAGE_FIRST: usize = 4;
const PAGE_MAX: usize = 64;
/// Bytes that are read at once of all conversations.
const PAGES_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Profiles come from the directory. So does the age of the oldest unread message; it is looked for in the timelines if the
/// directory does not have it.
pub(crate) struct PopupUsers {
    pub(crate) directory: Arc<Directory>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) metrics: Arc<Metrics>,
}

impl UserContextSource for PopupUsers {
    fn cached_profile(&self, user: &str) -> Option<Arc<User>> {
        self.directory.cached_user(user)
    }

    fn profile(&self, user: &str) -> Result<Option<Arc<User>>, Refusal> {
        self.directory.user_by_id(user).map_err(store_refusal)
    }

    fn cached_unread_since(&self, user: UserNo) -> Option<Option<u64>> {
        self.directory.unread.get(user)
    }

    fn unread_since(&self, user: UserNo) -> Result<Option<u64>, Refusal> {
        self.directory.unread.get_or_load(user, || {
            self.metrics.popup_store_reads.inc();
            let standings =
                self.store.conversation_states(user, ConversationFilter::Direct, CONVERSATIONS_PER_USER_MAX);
            self.oldest_unread(user, &standings.map_err(store_refusal)?)
        })
    }
}

impl PopupUsers {
    /// The time of the oldest message of another user that is after the user's read mark in its conversation.
    fn oldest_unread(&self, user: UserNo, standings: &[ConversationState]) -> Result<Option<u64>, Refusal> {
        let mut open: Vec<_> = standings.iter().map(unread_range).filter(|ask| ask.from_seq <= ask.to_seq).collect();
        let mut oldest: Option<u64> = None;
        let mut limit = PAGE_FIRST;
        while !open.is_empty() {
            open.iter_mut().for_each(|ask| ask.limit = limit);
            limit = (limit * 2).min(PAGE_MAX);
            let pages = self.store.pages(&open, PAGES_BYTES_MAX).map_err(store_refusal)?;
            let is_unread = |entry: &&StoredEntry| {
                let own = entry.content.sender.as_ref().is_some_and(|sender| sender.no == user);
                !own && counts(&entry.content)
            };
            let mut rest = Vec::new();
            for (ask, page) in open.into_iter().zip(pages) {
                match (page.iter().find(is_unread), page.last()) {
                    (Some(first), _) => oldest = oldest.into_iter().chain([first.at]).min(),
                    (None, Some(last)) if last.seq < ask.to_seq => {
                        rest.push(PageRequest { from_seq: last.seq + 1, ..ask })
                    }
                    _ => {}
                }
            }
            open = rest;
        }
        Ok(oldest)
    }
}

/// The entries of a conversation after the user's read mark, up to the number at which unread entries are counted.
fn unread_range(standing: &ConversationState) -> PageRequest {
    let ConversationState { conversation, head, membership, .. } = standing;
    let from_seq = (membership.read_seq.max(membership.joined_seq) + 1).max(head.first_seq);
    let to_seq = head.last_seq.min(from_seq.saturating_add(UNREAD_ENTRIES_MAX as u64));
    PageRequest { conversation: *conversation, from_seq, to_seq, limit: PAGE_FIRST }
}

//! Reading: who may read, an entry as clients see it, and a user's list of conversations with unread counts.

use crate::{
    engine::{
        Engine,
        send::{MENTION_ALL, not_a_member},
    },
    entry_view::entry_of,
};
use std::sync::Arc;
use tidings_domain::{
    model::*,
    refusals::store_refusal,
    store::{ConversationFilter, ConversationState, PageRequest},
};
use tidings_protocol::{
    error::Refusal,
    http::{ConversationPage, ConversationView},
    limits::*,
};

/// Conversations in a page of the list when the caller gives no limit.
const CONVERSATIONS_PAGE_DEFAULT: usize = 50;
/// Entries of one conversation in one read, for a page of history and for unread counts: bounds the memory of a
/// read.
pub(crate) const READ_AT_ONCE: usize = 100;

/// Entries of all conversations together in one read for unread counts.
const COUNT_ENTRIES_MAX: usize = 2_000;
/// Bytes of all pages together in one read.
const PAGES_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A count of unread messages, up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct UnreadCount {
    pub(crate) count: u64,
    pub(crate) mentions: u64,
    pub(crate) capped: bool,
}

impl Engine {
    /// Refuses a user who is not a member of the conversation; app servers read everything.
    pub(crate) fn check_may_read(&self, actor: &Actor, conversation: &Conversation) -> Result<(), Refusal> {
        let Actor::User(user) = actor else { return Ok(()) };
        let is_member = match conversation.pair {
            Some((a, b)) => user.no == a || user.no == b,
            None => self.directory.membership(conversation.no, user.no).map_err(store_refusal)?.is_some(),
        };
        if is_member { Ok(()) } else { Err(not_a_member(&user.id, &conversation.id)) }
    }

    /// For each conversation, the messages of others that the user has not read. They are counted from the timelines,
    /// so that a count cannot drift.
    pub(crate) fn unread(&self, user: &User, states: &[ConversationState]) -> Result<Vec<UnreadCount>, Refusal> {
        let mut counts: Vec<_> = states.iter().map(UnreadCounter::of).collect();
        loop {
            let open: Vec<usize> = (0..counts.len()).filter(|index| counts[*index].is_open()).collect();
            if open.is_empty() {
                return Ok(counts.into_iter().map(|count| count.unread).collect());
            }
            let limit = (COUNT_ENTRIES_MAX / open.len()).clamp(1, READ_AT_ONCE);
            let asked: Vec<_> = open.iter().map(|index| counts[*index].next_page(limit)).collect();
            let pages = self.store.pages(&asked, PAGES_BYTES_MAX).map_err(store_refusal)?;
            for (index, page) in open.into_iter().zip(pages) {
                counts[index].add(user, &page);
            }
        }
    }

    /// A user's conversations, the latest active first.
    ///
    /// # Errors
    /// `limit_exceeded` and `invalid_field` for the arguments; `store_unavailable`.
    pub fn conversations(
        &self,
        user: &Arc<User>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ConversationPage, Refusal> {
        let limit = if limit == 0 { CONVERSATIONS_PAGE_DEFAULT } else { limit };
        if limit > CONVERSATIONS_PAGE_MAX {
            return Err(Refusal::limit("limit (conversations)", CONVERSATIONS_PAGE_MAX as u64, limit as u64));
        }
        let after = after.map(parse_page_token).transpose()?;
        let mut all = self
            .store
            .conversation_states(user.no, ConversationFilter::All, CONVERSATIONS_PER_USER_MAX)
            .map_err(store_refusal)?;
        let key = |state: &ConversationState| (state.head.last_position, state.conversation.0);
        all.sort_unstable_by_key(|state| std::cmp::Reverse(key(state)));
        let last = all.last().map(key);
        let rest = all.into_iter().filter(|state| after.is_none_or(|after| key(state) < after));
        let page: Vec<ConversationState> = rest.take(limit).collect();
        let next = page.last().map(key).filter(|next| Some(*next) != last);
        let conversations = self.conversation_views(user, &page)?;
        Ok(ConversationPage { conversations, next: next.map(|(position, no)| format!("{position:x}-{no:x}")) })
    }

    fn conversation_views(&self, user: &User, page: &[ConversationState]) -> Result<Vec<ConversationView>, Refusal> {
        let nos: Vec<_> = page.iter().map(|state| state.conversation).collect();
        let cards = self.directory.conversations(&nos).map_err(store_refusal)?;
        let unread = self.unread(user, page)?;
        let newest = page.iter().map(|ConversationState { conversation, head, .. }| PageRequest {
            conversation: *conversation,
            from_seq: head.last_seq.max(1),
            to_seq: head.last_seq,
            limit: 1,
        });
        let mut newest = self.store.pages(&newest.collect::<Vec<_>>(), PAGES_BYTES_MAX).map_err(store_refusal)?;
        let of_pages = page.iter().zip(&mut newest);
        self.attach_previews(of_pages.filter_map(|(state, page)| Some((state.conversation, page.first_mut()?))))?;
        let mut views = Vec::with_capacity(page.len());
        for (((state, card), unread), mut newest) in page.iter().zip(cards).zip(unread).zip(newest) {
            let Some(card) = card else { continue };
            newest.iter_mut().for_each(|entry| self.streams.overlay(card.no, entry));
            let ConversationState { head, membership, .. } = state;
            let muted = membership.mute.is_muted(self.clock.now_ms());
            views.push(ConversationView {
                id: card.id.clone(),
                kind: card.kind,
                name: card.name.clone(),
                avatar: card.avatar.clone(),
                role: membership.role,
                last_seq: head.last_seq,
                last_at: head.last_at,
                read_seq: membership.read_seq,
                unread: unread.count,
                unread_capped: unread.capped,
                mentions: unread.mentions,
                muted,
                muted_until: match membership.mute {
                    MuteState::Until(end) if muted => Some(end),
                    _ => None,
                },
                last_entry: newest.first().map(|entry| entry_of(&card.id, entry)).transpose()?,
            });
        }
        Ok(views)
    }
}

/// Counts the unread messages of one conversation.
struct UnreadCounter {
    conversation: ConversationNo,
    /// The next `seq` to scan, upwards.
    next: u64,
    /// The last `seq` to scan.
    last_seq: u64,
    scanned: usize,
    unread: UnreadCount,
}

impl UnreadCounter {
    fn of(state: &ConversationState) -> UnreadCounter {
        let ConversationState { conversation, head, membership, .. } = state;
        UnreadCounter {
            conversation: *conversation,
            next: (membership.read_seq.max(membership.joined_seq) + 1).max(head.first_seq),
            last_seq: head.last_seq,
            scanned: 0,
            unread: UnreadCount::default(),
        }
    }

    fn is_open(&self) -> bool {
        self.next <= self.last_seq && !self.unread.capped
    }

    fn next_page(&self, limit: usize) -> PageRequest {
        let limit = limit.min(UNREAD_ENTRIES_MAX - self.scanned);
        PageRequest { conversation: self.conversation, from_seq: self.next, to_seq: self.last_seq, limit }
    }

    fn add(&mut self, user: &User, page: &[StoredEntry]) {
        // An empty page: retention removed the rest, and nothing more is unread.
        self.next = page.last().map_or(self.last_seq, |last| last.seq) + 1;
        self.scanned += page.len();
        for entry in page {
            let content = &entry.content;
            let own = content.sender.as_ref().is_some_and(|s| s.no == user.no);
            let recalled = content.details().recalled.is_some();
            if own || content.silent || recalled || content.kind != EntryKind::Message {
                continue;
            }
            if self.unread.count == UNREAD_COUNT_MAX {
                self.unread.capped = true;
                return;
            }
            self.unread.count += 1;
            self.unread.mentions += u64::from(content.mentions.iter().any(|m| m == MENTION_ALL || *m == user.id));
        }
        self.unread.capped = self.scanned >= UNREAD_ENTRIES_MAX && self.next <= self.last_seq;
    }
}

fn parse_page_token(token: &str) -> Result<(u64, u64), Refusal> {
    let parse = |text: &str| u64::from_str_radix(text, 16).ok();
    let parts = token.split_once('-').and_then(|(position, no)| Some((parse(position)?, parse(no)?)));
    parts.ok_or_else(|| Refusal::field("after", "not a page token of this list"))
}

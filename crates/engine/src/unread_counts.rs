//! How many messages a user has not read, counted from the timelines, so that a count cannot drift.

use tidings_domain::{
    model::*,
    store::{ConversationState, PageRequest, Store, StoreResult},
};
use tidings_protocol::limits::*;

/// Entries of one conversation in one read.
const READ_AT_ONCE: usize = 100;
/// Entries of all conversations together in one read.
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

/// The part of a timeline in which a user may have unread messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnreadRange {
    conversation: ConversationNo,
    from_seq: u64,
    last_seq: u64,
}

impl UnreadRange {
    /// What is behind the last entry that does not count.
    pub(crate) fn behind(state: &ConversationState, counted_after: u64) -> UnreadRange {
        let ConversationState { conversation, head, .. } = state;
        let from_seq = (counted_after + 1).max(head.first_seq);
        UnreadRange { conversation: *conversation, from_seq, last_seq: head.last_seq }
    }
}

/// For each range, the messages of others that the user has not read.
///
/// # Errors
/// Those of the store's reads.
pub(crate) fn count_unread(store: &dyn Store, user: &User, ranges: Vec<UnreadRange>) -> StoreResult<Vec<UnreadCount>> {
    let mut counts: Vec<_> = ranges.into_iter().map(UnreadCounter::of).collect();
    loop {
        let open: Vec<usize> = (0..counts.len()).filter(|index| counts[*index].is_open()).collect();
        if open.is_empty() {
            return Ok(counts.into_iter().map(|count| count.unread).collect());
        }
        let limit = (COUNT_ENTRIES_MAX / open.len()).clamp(1, READ_AT_ONCE);
        let asked: Vec<_> = open.iter().map(|index| counts[*index].next_page(limit)).collect();
        let pages = store.pages(&asked, PAGES_BYTES_MAX)?;
        for (index, page) in open.into_iter().zip(pages) {
            counts[index].add(user, &page);
        }
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
    fn of(range: UnreadRange) -> UnreadCounter {
        let UnreadRange { conversation, from_seq, last_seq } = range;
        UnreadCounter { conversation, next: from_seq, last_seq, scanned: 0, unread: UnreadCount::default() }
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

//! Reading: who may read, and unread counts.

use crate::engine::{Engine, list_line::ListLine, send::not_a_member};
use tidings_domain::{
    model::*,
    refusals::store_refusal,
    store::{ConversationState, PageRequest},
};
use tidings_protocol::{error::Refusal, limits::*};

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
    pub(crate) fn unread(&self, user: &User, lines: &[ListLine]) -> Result<Vec<UnreadCount>, Refusal> {
        let mut counts: Vec<_> = lines.iter().map(UnreadCounter::of).collect();
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
    fn of(line: &ListLine) -> UnreadCounter {
        let ConversationState { conversation, head, .. } = &line.state;
        UnreadCounter {
            conversation: *conversation,
            next: (line.counted_after() + 1).max(head.first_seq),
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

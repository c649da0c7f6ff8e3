//! How many messages a user has not read, counted from the timelines, so that a count cannot drift.

use rustc_hash::FxHashMap;
use tidings_domain::{
    chat_rows::block_key,
    model::*,
    store::{ConversationState, PageRequest, RowSpace, Store, StoreResult},
};
use tidings_protocol::limits::*;

/// Entries of one conversation in one read.
const READ_AT_ONCE: usize = 100;
/// Entries of all conversations together in one read.
const COUNT_ENTRIES_MAX: usize = 2_000;
/// Bytes of all pages together in one read.
const PAGES_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Pages of at most [`READ_AT_ONCE`] entries that many users share.
const SHARED_PAGES_MAX: usize = 1_000;

/// A count of unread messages, up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnreadCount {
    pub count: u64,
    pub mentions: u64,
    pub capped: bool,
    /// Messages from this `seq` on were not looked at, if the count is capped.
    pub uncounted_from: u64,
}

/// The part of a timeline in which a user may have unread messages.
#[derive(Debug, Clone, Copy)]
pub struct UnreadRange {
    conversation: ConversationNo,
    from_seq: u64,
    last_seq: u64,
}

impl UnreadRange {
    /// What is behind the last entry that does not count.
    pub fn behind(state: &ConversationState, counted_after: u64) -> UnreadRange {
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
    count(store, user, ranges, None)
}

fn count(
    store: &dyn Store,
    user: &User,
    ranges: Vec<UnreadRange>,
    mut known: Option<&mut SharedPages>,
) -> StoreResult<Vec<UnreadCount>> {
    let mut counts: Vec<_> = ranges.into_iter().map(UnreadCounter::of).collect();
    let mut reader = Reader { store, user, blocked: FxHashMap::default() };
    loop {
        if let Some(known) = &known {
            counts.iter_mut().try_for_each(|count| count.add_known(&mut reader, known))?;
        }
        let open: Vec<usize> = (0..counts.len()).filter(|index| counts[*index].is_open()).collect();
        if open.is_empty() {
            return Ok(counts.into_iter().map(|count| count.unread).collect());
        }
        let limit = (COUNT_ENTRIES_MAX / open.len()).clamp(1, READ_AT_ONCE);
        let asked: Vec<_> = open.iter().map(|index| counts[*index].next_page(limit)).collect();
        let pages = store.pages(&asked, PAGES_BYTES_MAX)?;
        for (index, page) in open.into_iter().zip(pages) {
            let (place, page) = (counts[index].place(), ScannedPage::of(page));
            counts[index].add(&mut reader, &page)?;
            if let Some(known) = &mut known {
                known.keep(place, page);
            }
        }
    }
}

/// Counts the unread messages of many users one after another. Those who have read a conversation up to the same message share
/// its entries, each of which is read from the store once.
#[derive(Default)]
pub struct SharedPages(FxHashMap<(ConversationNo, u64), ScannedPage>);

impl SharedPages {
    /// The same as [`count_unread`].
    ///
    /// # Errors
    /// Those of the store's reads.
    pub fn count_unread(
        &mut self,
        store: &dyn Store,
        user: &User,
        ranges: Vec<UnreadRange>,
    ) -> StoreResult<Vec<UnreadCount>> {
        count(store, user, ranges, Some(self))
    }

    fn keep(&mut self, place: (ConversationNo, u64), page: ScannedPage) {
        if self.0.len() >= SHARED_PAGES_MAX {
            self.0.clear();
        }
        self.0.insert(place, page);
    }
}

/// Some entries of a conversation, as far as they count.
struct ScannedPage {
    /// `None`: there were none.
    last_seq: Option<u64>,
    entries: usize,
    messages: Vec<CountedMessage>,
}

/// A message that counts for all but its sender.
struct CountedMessage {
    seq: u64,
    sender: Option<UserNo>,
    mentions: Vec<String>,
}

impl ScannedPage {
    fn of(page: Vec<StoredEntry>) -> ScannedPage {
        let (last_seq, entries) = (page.last().map(|last| last.seq), page.len());
        let message = |StoredEntry { seq, content, .. }: StoredEntry| CountedMessage {
            seq,
            mentions: content.mentioned().to_vec(),
            sender: content.sender.map(|sender| sender.no),
        };
        let messages = page.into_iter().filter(|entry| counts(&entry.content)).map(message).collect();
        ScannedPage { last_seq, entries, messages }
    }
}

/// Whether an entry counts as unread for all but its sender.
pub(crate) fn counts(content: &NewEntry) -> bool {
    content.kind == EntryKind::Message && !content.silent && !content.is_recalled() && !content.is_hidden()
}

/// For whom messages are counted.
struct Reader<'a> {
    store: &'a dyn Store,
    user: &'a User,
    /// Whether the user blocks a sender who mentions them.
    blocked: FxHashMap<UserNo, bool>,
}

impl Reader<'_> {
    /// Whether a message of another one mentions the reader: one by somebody whom the reader blocks mentions nobody.
    fn is_mentioned(&mut self, message: &CountedMessage) -> StoreResult<bool> {
        if !message.mentions.iter().any(|id| id == MENTION_ALL || *id == self.user.id) {
            return Ok(false);
        }
        let Some(sender) = message.sender.filter(|_| self.user.blocks > 0) else { return Ok(true) };
        if let Some(blocked) = self.blocked.get(&sender) {
            return Ok(!blocked);
        }
        let blocked = self.store.row(RowSpace::Chat, &block_key(self.user.no, sender))?.is_some();
        self.blocked.insert(sender, blocked);
        Ok(!blocked)
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
        let limit = limit.min(UNREAD_ENTRIES_MAX.saturating_sub(self.scanned));
        PageRequest { conversation: self.conversation, from_seq: self.next, to_seq: self.last_seq, limit }
    }

    fn place(&self) -> (ConversationNo, u64) {
        (self.conversation, self.next)
    }

    /// Goes on through the pages that are known.
    fn add_known(&mut self, reader: &mut Reader<'_>, known: &SharedPages) -> StoreResult<()> {
        while self.is_open()
            && let Some(page) = known.0.get(&self.place()).filter(|page| page.last_seq.is_some())
        {
            self.add(reader, page)?;
        }
        Ok(())
    }

    fn add(&mut self, reader: &mut Reader<'_>, page: &ScannedPage) -> StoreResult<()> {
        // An empty page: retention removed the rest, and nothing more is unread.
        self.next = page.last_seq.unwrap_or(self.last_seq) + 1;
        self.scanned += page.entries;
        for message in page.messages.iter().filter(|message| message.sender != Some(reader.user.no)) {
            if self.unread.count == UNREAD_COUNT_MAX {
                (self.unread.capped, self.unread.uncounted_from) = (true, message.seq);
                return Ok(());
            }
            self.unread.count += 1;
            self.unread.mentions += u64::from(reader.is_mentioned(message)?);
        }
        self.unread.capped = self.scanned >= UNREAD_ENTRIES_MAX && self.next <= self.last_seq;
        self.unread.uncounted_from = self.next;
        Ok(())
    }
}

//! Reads of many things at once, done as single reads one after another: for stores at hand, to which a read
//! costs little, and to compare the others with.

use crate::{model::*, store::*};
use std::collections::BinaryHeap;

/// Entries read of a conversation's tail at once: first a few, most have no more; then more.
const TAIL_PAGE_FIRST: u64 = 8;
const TAIL_PAGE_MAX: u64 = 64;

pub fn conversation_states<S: Store + ?Sized>(
    store: &S,
    user: UserNo,
    filter: ConversationFilter,
    limit: usize,
) -> StoreResult<Vec<ConversationState>> {
    let mut states = Vec::new();
    for UserConversation { conversation, kind } in store.conversations_of(user, filter != ConversationFilter::NonDirect, limit)? {
        if filter == ConversationFilter::Direct && kind != ConversationKind::Direct {
            continue;
        }
        let head = store.head(conversation)?;
        // Left since the list was read: not in it.
        let Some(membership) = store.membership(conversation, user)? else { continue };
        states.push(ConversationState { conversation, kind, head, membership });
    }
    Ok(states)
}

pub fn heads<S: Store + ?Sized>(store: &S, conversations: &[ConversationNo]) -> StoreResult<Vec<Head>> {
    conversations.iter().map(|no| store.head(*no)).collect()
}

pub fn conversations<S: Store + ?Sized>(
    store: &S,
    conversations: &[ConversationNo],
) -> StoreResult<Vec<Option<Conversation>>> {
    conversations.iter().map(|no| store.conversation(*no)).collect()
}

pub fn positions_at<S: Store + ?Sized>(
    store: &S,
    entries: &[(ConversationNo, u64)],
) -> StoreResult<Vec<Option<Position>>> {
    entries.iter().map(|(no, seq)| position_at(store, *no, *seq)).collect()
}

fn position_at<S: Store + ?Sized>(store: &S, no: ConversationNo, seq: u64) -> StoreResult<Option<Position>> {
    Ok(store.entries(no, seq, seq, 1, End::Oldest)?.first().map(|entry| entry.position))
}

pub fn pages<S: Store + ?Sized>(store: &S, asked: &[PageRequest], bytes_max: usize) -> StoreResult<Vec<Vec<StoredEntry>>> {
    let mut bytes = 0;
    let mut pages = Vec::with_capacity(asked.len());
    for ask in asked {
        let limit = if bytes < bytes_max { ask.limit } else { ask.limit.min(1) };
        let page = store.entries(ask.conversation, ask.from_seq, ask.to_seq, limit, End::Oldest)?;
        bytes += page.iter().map(|entry| entry.content.body.len()).sum::<usize>();
        pages.push(page);
    }
    Ok(pages)
}

/// Walks the tails back from their newest ends. A tail is only looked into once its newest entry is next in line,
/// so that a user of 10,000 conversations costs no more memory than what is handed out.
pub fn missed<S: Store + ?Sized>(store: &S, tails: &[Tail], query: MissedQuery) -> StoreResult<MissedEntries> {
    let mut walks: Vec<_> = tails.iter().map(Walk::of).collect();
    // By position; of a tail not looked into yet, where its newest entry cannot be above.
    let mut newest: BinaryHeap<(Position, usize)> =
        tails.iter().enumerate().map(|(index, tail)| (tail.newest_position.min(tail.until), index)).collect();
    let mut entries = Vec::new();
    let mut bytes = 0;
    while entries.len() < query.entries_max
        && bytes < query.bytes_max
        && let Some((bound, index)) = newest.pop()
    {
        let walk = &mut walks[index];
        let Some(position) = walk.fill(store)? else { continue };
        if position < bound {
            newest.push((position, index));
            continue;
        }
        if let Some(entry) = walk.page.pop() {
            walk.left_seq = entry.seq - 1;
            bytes += entry.content.body.len();
            entries.push((index, entry));
        }
        newest.push((position - 1, index));
    }
    let mut remaining = Vec::new();
    if query.ranges {
        for (_, index) in newest {
            let Walk { tail, left_seq, .. } = &walks[index];
            let from_seq = first_after(store, tail, tail.after, *left_seq)?;
            let to_seq = first_after(store, tail, tail.until, *left_seq)?.saturating_sub(1);
            remaining.extend((from_seq <= to_seq).then_some((index, from_seq, to_seq)));
        }
        remaining.sort_unstable();
    }
    Ok(MissedEntries { entries, remaining })
}

/// How far a tail has been walked back.
struct Walk<'a> {
    tail: &'a Tail,
    /// Read but not handed out yet, newest last.
    page: Vec<StoredEntry>,
    page_size: u64,
    /// The next `seq` to read, downwards.
    next_seq: u64,
    /// The newest `seq` that was not handed out.
    left_seq: u64,
}

impl Walk<'_> {
    fn of(tail: &Tail) -> Walk<'_> {
        let (next_seq, left_seq) = (tail.newest_seq, tail.newest_seq);
        Walk { tail, page: Vec::new(), page_size: TAIL_PAGE_FIRST, next_seq, left_seq }
    }

    /// Makes sure that the newest entry not handed out is at the end of `page`, if there is one.
    fn fill<S: Store + ?Sized>(&mut self, store: &S) -> StoreResult<Option<Position>> {
        let Tail { conversation, floor_seq, after, until, .. } = *self.tail;
        while self.page.is_empty() && self.next_seq >= floor_seq {
            let low = floor_seq.max(self.next_seq.saturating_sub(self.page_size - 1));
            let page = store.entries(conversation, low, self.next_seq, self.page_size as usize, End::Newest)?;
            self.page_size = (self.page_size * 2).min(TAIL_PAGE_MAX);
            self.next_seq = low - 1;
            let reached = page.first().is_none_or(|oldest| oldest.position <= after);
            self.page = page.into_iter().filter(|e| e.position > after && e.position <= until).collect();
            if reached {
                self.next_seq = 0;
            }
        }
        Ok(self.page.last().map(|entry| entry.position))
    }
}

/// The first `seq` of a tail, up to `newest_seq`, that stands after a position; `newest_seq + 1` if none does.
/// Found by halving: positions rise with `seq`.
fn first_after<S: Store + ?Sized>(store: &S, tail: &Tail, position: Position, newest_seq: u64) -> StoreResult<u64> {
    let (mut low, mut high) = (tail.floor_seq, newest_seq + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match position_at(store, tail.conversation, middle)? {
            Some(found) if found > position => high = middle,
            _ => low = middle + 1,
        }
    }
    Ok(low)
}

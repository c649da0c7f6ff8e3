//! The batched reads of the [`Store`] port as a sequence of single reads: the default for stores without a round trip
//! for each read, and the model with which the other stores are compared. Every function fails with the errors of the
//! single reads.

use super::*;
use crate::model::*;
use std::collections::BinaryHeap;

/// Entries of a tail that are read at once: first a few, since most tails have no more; then more.
const TAIL_PAGE_FIRST: u64 = 8;
const TAIL_PAGE_MAX: u64 = 64;

/// [`Store::conversation_states`] with a read of the head and of the membership for each conversation.
///
/// # Errors
/// Those of the single reads.
pub fn conversation_states<S: Store + ?Sized>(
    store: &S,
    user: UserNo,
    filter: ConversationFilter,
    limit: usize,
) -> StoreResult<Vec<ConversationState>> {
    let mut states = Vec::new();
    for UserConversation { conversation, kind } in
        store.conversations_of(user, filter != ConversationFilter::NonDirect, limit)?
    {
        if filter == ConversationFilter::Direct && kind != ConversationKind::Direct {
            continue;
        }
        let head = store.head(conversation)?;
        // The user has left since the list was read.
        let Some(membership) = store.membership(conversation, user)? else { continue };
        states.push(ConversationState { conversation, kind, head, membership });
    }
    Ok(states)
}

/// [`Store::heads`] with a read for each conversation.
///
/// # Errors
/// Those of the single reads.
pub fn heads<S: Store + ?Sized>(store: &S, conversations: &[ConversationNo]) -> StoreResult<Vec<Head>> {
    conversations.iter().map(|no| store.head(*no)).collect()
}

/// [`Store::conversations`] with a read for each conversation.
///
/// # Errors
/// Those of the single reads.
pub fn conversations<S: Store + ?Sized>(
    store: &S,
    conversations: &[ConversationNo],
) -> StoreResult<Vec<Option<Conversation>>> {
    conversations.iter().map(|no| store.conversation(*no)).collect()
}

/// [`Store::users`] with a read for each user.
///
/// # Errors
/// Those of the single reads.
pub fn users<S: Store + ?Sized>(store: &S, users: &[UserNo]) -> StoreResult<Vec<Option<User>>> {
    users.iter().map(|no| store.user(*no)).collect()
}

/// [`Store::memberships`] with a read for each conversation.
///
/// # Errors
/// Those of the single reads.
pub fn memberships<S: Store + ?Sized>(
    store: &S,
    user: UserNo,
    conversations: &[ConversationNo],
) -> StoreResult<Vec<Option<Membership>>> {
    conversations.iter().map(|no| store.membership(*no, user)).collect()
}

/// [`Store::positions_at`] with a read for each entry.
///
/// # Errors
/// Those of the single reads.
pub fn positions_at<S: Store + ?Sized>(
    store: &S,
    entries: &[(ConversationNo, u64)],
) -> StoreResult<Vec<Option<Position>>> {
    entries.iter().map(|(no, seq)| position_at(store, *no, *seq)).collect()
}

fn position_at<S: Store + ?Sized>(store: &S, no: ConversationNo, seq: u64) -> StoreResult<Option<Position>> {
    Ok(store.entries(no, seq, seq, 1, End::Oldest)?.first().map(|entry| entry.position))
}

/// [`Store::pages`] with a read for each page.
///
/// # Errors
/// Those of the single reads.
pub fn pages<S: Store + ?Sized>(
    store: &S,
    requests: &[PageRequest],
    bytes_max: usize,
) -> StoreResult<Vec<Vec<StoredEntry>>> {
    let mut bytes = 0;
    let mut pages = Vec::with_capacity(requests.len());
    for request in requests {
        let limit = if bytes < bytes_max { request.limit } else { request.limit.min(1) };
        let page = store.entries(request.conversation, request.from_seq, request.to_seq, limit, End::Oldest)?;
        bytes += page.iter().map(|entry| entry.content.body.len()).sum::<usize>();
        pages.push(page);
    }
    Ok(pages)
}

/// Walks the tails back from their newest ends. A tail is not read until its newest entry is the next one to answer,
/// so that a user of 10,000 conversations costs no more memory than the entries that are answered.
///
/// # Errors
/// Those of the single reads.
pub fn missed<S: Store + ?Sized>(store: &S, tails: &[Tail], query: MissedQuery) -> StoreResult<MissedEntries> {
    let mut walks: Vec<_> = tails.iter().map(Walk::of).collect();
    // Each tail by the position of its next entry; before the tail is read, by an upper bound of it.
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
            walk.unanswered_seq = entry.seq - 1;
            bytes += entry.content.body.len();
            entries.push((index, entry));
        }
        newest.push((position - 1, index));
    }
    let mut remaining = Vec::new();
    if query.ranges {
        for (_, index) in newest {
            let Walk { tail, unanswered_seq, .. } = &walks[index];
            let from_seq = first_after(store, tail, tail.after, *unanswered_seq)?;
            let to_seq = first_after(store, tail, tail.until, *unanswered_seq)?.saturating_sub(1);
            remaining.extend((from_seq <= to_seq).then_some((index, from_seq, to_seq)));
        }
        remaining.sort_unstable();
    }
    Ok(MissedEntries { entries, remaining })
}

/// A tail on its walk back.
struct Walk<'a> {
    tail: &'a Tail,
    /// Entries that are read and not answered yet, newest last.
    page: Vec<StoredEntry>,
    page_size: u64,
    /// The next `seq` to read, downwards.
    next_seq: u64,
    /// The newest `seq` that is not answered yet.
    unanswered_seq: u64,
}

impl Walk<'_> {
    fn of(tail: &Tail) -> Walk<'_> {
        let (next_seq, unanswered_seq) = (tail.newest_seq, tail.newest_seq);
        Walk { tail, page: Vec::new(), page_size: TAIL_PAGE_FIRST, next_seq, unanswered_seq }
    }

    /// Reads until `page` has an entry or the tail ends; answers the position of its newest entry.
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

/// The first `seq` of a tail, up to `newest_seq`, whose entry is after a position; `newest_seq + 1` if there is none.
/// A binary search: positions rise with `seq`.
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

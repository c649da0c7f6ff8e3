//! What a client missed: everything in its conversations between its cursor and a later position.
//!
//! Nothing is kept per user for this. Within a conversation positions rise with `seq`, so the tail of
//! each conversation is walked back until the cursor; the newest 800 entries (fewer when they are large)
//! are handed out, and of what is older the answer names the exact ranges to fetch. A conversation is
//! only looked into once its newest entry is next in line, so that a user of 10,000 conversations
//! costs no more memory than what is handed out.
//!
//! A conversation's entries from before the user joined are not missed, they are history. What retention
//! removed in between cannot be had any more: then the answer is not `complete`, without a range for it.

use crate::{
    commit::store_refusal, delivery::Place, engine::Engine, lanes::encode_entry, model::*, reads::entry_of, store::End,
};
use std::{collections::BinaryHeap, sync::Arc};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::{MissedRange, Resume},
    http::SyncAnswer,
    limits::{CONVERSATIONS_PER_USER_MAX, INBOX_BYTES_MAX, INBOX_ENTRIES_MAX},
};

/// Entries read of a conversation's tail at once: first a few, most have no more; then more.
const TAIL_PAGE_FIRST: u64 = 8;
const TAIL_PAGE_MAX: u64 = 64;

/// What a session is handed before it goes live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missed {
    pub resume: Resume,
    /// Entries as JSON, each preceded by a comma, in commit order.
    pub json: Vec<u8>,
    pub entries: u32,
}

/// An entry that is handed out, with its conversation.
type Taken = (Arc<Conversation>, StoredEntry);

/// A conversation's part in what was missed.
struct Tail {
    card: Arc<Conversation>,
    /// The oldest `seq` that the user may have missed.
    floor_seq: u64,
    /// The cursor's position in this conversation's lane.
    after: Position,
    until: Position,
    /// Read but not handed out yet, newest last.
    page: Vec<StoredEntry>,
    page_size: u64,
    /// The next `seq` to read, downwards.
    next_seq: u64,
    /// The newest `seq`; what stands after `until` comes live.
    newest_seq: u64,
    /// The oldest `seq` handed out; 0 for none.
    taken_seq: u64,
    joined_seq: u64,
}

impl Tail {
    /// Makes sure that the newest entry not handed out is at the end of `page`, if there is one.
    fn fill(&mut self, engine: &Engine) -> Result<Option<Position>, Refusal> {
        while self.page.is_empty() && self.next_seq >= self.floor_seq {
            let low = self.floor_seq.max(self.next_seq.saturating_sub(self.page_size - 1));
            let page = engine.store.entries(self.card.no, low, self.next_seq, self.page_size as usize, End::Newest);
            let page = page.map_err(store_refusal)?;
            self.page_size = (self.page_size * 2).min(TAIL_PAGE_MAX);
            self.next_seq = low - 1;
            let reached = page.first().is_none_or(|oldest| oldest.position <= self.after);
            self.page = page.into_iter().filter(|e| e.position > self.after && e.position <= self.until).collect();
            if reached {
                self.next_seq = 0;
            }
        }
        Ok(self.page.last().map(|entry| entry.position))
    }
}

impl Engine {
    /// The conversations whose audience a user's sessions join, for a shard that has applied `since`.
    pub fn memberships_for_delivery(&self, user: UserNo, since: [Position; LANES]) -> Result<Vec<Place>, Refusal> {
        let mut places = Vec::new();
        for place in self.store.conversations_of(user, false, CONVERSATIONS_PER_USER_MAX).map_err(store_refusal)? {
            let (conversation, lane) = (place.conversation, Lane::of(place.kind));
            let mut joined_after = 0;
            let head = self.store.head(conversation).map_err(store_refusal)?;
            if head.last_position > since[lane as usize] {
                let membership = self.store.membership(conversation, user).map_err(store_refusal)?;
                // Left since the list was read: the leave is still to come, or noted already.
                let Some(membership) = membership else { continue };
                joined_after = self.position_of(conversation, membership.joined_seq)?.unwrap_or(0);
            }
            places.push(Place { conversation, lane, joined_after });
        }
        Ok(places)
    }

    /// What the user missed after `cursor` and up to `until`, per lane. Without a cursor, nothing.
    pub fn missed(&self, user: UserNo, cursor: Option<&Cursor>, until: [Position; LANES]) -> Result<Missed, Refusal> {
        let (resume, taken) = self.missed_entries(user, cursor, until)?;
        let mut json = Vec::new();
        for (card, entry) in &taken {
            json.push(b',');
            encode_entry(&mut json, &card.id, entry);
        }
        Ok(Missed { resume, json, entries: taken.len() as u32 })
    }

    fn missed_entries(
        &self,
        user: UserNo,
        cursor: Option<&Cursor>,
        until: [Position; LANES],
    ) -> Result<(Resume, Vec<Taken>), Refusal> {
        let whole = Resume { complete: true, reset: false, ranges: vec![] };
        let Some(cursor) = cursor else { return Ok((whole, vec![])) };
        let last = self.store.last_position();
        let reset = cursor.epoch != self.store.epoch() || cursor.positions.iter().any(|position| *position > last);
        let after = if reset { [0; LANES] } else { cursor.positions };
        let mut tails = self.tails(user, after, until)?;

        // By position; of a tail not looked into yet, where its newest entry cannot be above.
        let mut newest: BinaryHeap<(Position, usize)> =
            tails.iter().enumerate().map(|(index, (head, tail))| (head.last_position.min(tail.until), index)).collect();
        let mut taken = Vec::new();
        let mut bytes = 0;
        while taken.len() < INBOX_ENTRIES_MAX
            && bytes < INBOX_BYTES_MAX
            && let Some((bound, index)) = newest.pop()
        {
            let (_, tail) = &mut tails[index];
            let Some(position) = tail.fill(self)? else { continue };
            if position < bound {
                newest.push((position, index));
                continue;
            }
            if let Some(entry) = tail.page.pop() {
                tail.taken_seq = entry.seq;
                bytes += entry.content.body.len();
                taken.push((tail.card.clone(), entry));
            }
            newest.push((position - 1, index));
        }
        taken.reverse();
        if reset {
            return Ok((Resume { complete: false, reset, ranges: vec![] }, taken));
        }
        let mut ranges = Vec::new();
        for (_, index) in newest {
            ranges.extend(self.range_left(&tails[index].1)?);
        }
        let gone = self.any_removed(tails.iter().map(|(_, tail)| tail))?;
        ranges.sort_by(|a: &MissedRange, b| a.conversation.cmp(&b.conversation));
        Ok((Resume { complete: ranges.is_empty() && !gone, reset, ranges }, taken))
    }

    fn tails(
        &self,
        user: UserNo,
        after: [Position; LANES],
        until: [Position; LANES],
    ) -> Result<Vec<(Head, Tail)>, Refusal> {
        let mut tails = Vec::new();
        for place in self.store.conversations_of(user, true, CONVERSATIONS_PER_USER_MAX).map_err(store_refusal)? {
            let lane = Lane::of(place.kind) as usize;
            let head = self.store.head(place.conversation).map_err(store_refusal)?;
            if head.last_position <= after[lane] || until[lane] <= after[lane] {
                continue;
            }
            let membership = self.store.membership(place.conversation, user).map_err(store_refusal)?;
            let card = self.directory.conversation(place.conversation).map_err(store_refusal)?;
            let (Some(membership), Some(card)) = (membership, card) else { continue };
            let floor_seq = (membership.joined_seq + 1).max(head.first_seq);
            let tail = Tail {
                card,
                floor_seq,
                after: after[lane],
                until: until[lane],
                page: vec![],
                page_size: TAIL_PAGE_FIRST,
                next_seq: head.last_seq,
                newest_seq: head.last_seq,
                taken_seq: 0,
                joined_seq: membership.joined_seq,
            };
            tails.push((head, tail));
        }
        Ok(tails)
    }

    /// The range of a tail that was not handed out.
    fn range_left(&self, tail: &Tail) -> Result<Option<MissedRange>, Refusal> {
        let newest_seq = if tail.taken_seq > 0 { tail.taken_seq - 1 } else { tail.newest_seq };
        let from_seq = self.first_after(tail, tail.after, newest_seq)?;
        let to_seq = self.first_after(tail, tail.until, newest_seq)?.saturating_sub(1);
        let range = MissedRange { conversation: tail.card.id.clone(), from_seq, to_seq };
        Ok((from_seq <= to_seq).then_some(range))
    }

    /// The first `seq` of a tail, up to `newest_seq`, that stands after a position; `newest_seq + 1` if
    /// none does. Found by halving: positions rise with `seq`.
    fn first_after(&self, tail: &Tail, position: Position, newest_seq: u64) -> Result<u64, Refusal> {
        let (mut low, mut high) = (tail.floor_seq, newest_seq + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.position_of(tail.card.no, middle)? {
                Some(found) if found > position => high = middle,
                _ => low = middle + 1,
            }
        }
        Ok(low)
    }

    /// Whether retention removed entries that may have been missed. Asked last, so that what was
    /// removed while the tails were read counts.
    fn any_removed<'a>(&self, tails: impl Iterator<Item = &'a Tail>) -> Result<bool, Refusal> {
        for tail in tails {
            let head = self.store.head(tail.card.no).map_err(store_refusal)?;
            if head.first_seq <= tail.joined_seq + 1 {
                continue;
            }
            // The oldest that is left is newer than the cursor: what was before it may have been, too.
            let oldest = self.position_of(tail.card.no, head.first_seq)?.unwrap_or(head.last_position + 1);
            if oldest > tail.after + 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn position_of(&self, conversation: ConversationNo, seq: u64) -> Result<Option<Position>, Refusal> {
        let found = self.store.entries(conversation, seq, seq, 1, End::Oldest).map_err(store_refusal)?;
        Ok(found.first().map(|entry| entry.position))
    }

    /// The same over HTTP, for apps that read without a connection.
    pub fn sync(&self, user: &Arc<User>, cursor: Option<&str>) -> Result<SyncAnswer, Refusal> {
        let cursor = cursor.map(str::parse::<Cursor>).transpose();
        let cursor = cursor.map_err(|_| Refusal::new(ErrorCode::CursorInvalid, "cursor: not one of this server's"))?;
        let until = [self.store.last_position(); LANES];
        let (resume, taken) = self.missed_entries(user.no, cursor.as_ref(), until)?;
        let entries = taken.iter().map(|(card, entry)| entry_of(&card.id, entry)).collect::<Result<_, _>>()?;
        let cursor = Cursor { epoch: self.store.epoch(), positions: until };
        Ok(SyncAnswer { cursor: cursor.to_string(), resume, entries })
    }
}

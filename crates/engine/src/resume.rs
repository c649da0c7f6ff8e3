//! What a client missed: everything in its conversations between its cursor and a later position.
//!
//! Nothing is kept per user for this. Within a conversation positions rise with `seq`, so the tail of
//! each conversation is walked back until the cursor; the newest 800 entries (fewer when they are large)
//! are handed out, and of what is older the answer names the exact ranges to fetch. The walk itself is the
//! store's: one that must travel for each read does all tails in one ([`crate::batch_reads`] tells how it goes).
//! What is read of 10,000 conversations is their heads and memberships, and what is handed out.
//!
//! A conversation's entries from before the user joined are not missed, they are history. What retention
//! removed in between cannot be had any more: then the answer is not `complete`, without a range for it.

use crate::{
    commit::store_refusal, delivery::MembershipSnapshot, engine::Engine, lanes::encode_entry, model::*, reads::entry_of, store::*,
};
use std::sync::Arc;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::{MissedRange, Resume},
    http::SyncAnswer,
    limits::{CONVERSATIONS_PER_USER_MAX, INBOX_BYTES_MAX, INBOX_ENTRIES_MAX},
};

/// What a session is handed before it goes live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missed {
    pub resume: Resume,
    /// Entries as JSON, each preceded by a comma, in commit order.
    pub json: Vec<u8>,
    pub entries: u32,
}

/// What is walked back for a user.
struct Tails {
    tails: Vec<Tail>,
    /// The last `seq` before the user joined each.
    joined: Vec<u64>,
    /// Whether no conversation of the user was left out.
    are_all: bool,
}

/// An entry that is handed out, with its conversation.
pub(crate) type Taken = (Arc<Conversation>, StoredEntry);

impl Engine {
    /// The conversations whose audience a user's sessions join, for a shard that has applied `since`.
    pub fn memberships_for_delivery(&self, user: UserNo, since: [Position; LANES]) -> Result<Vec<MembershipSnapshot>, Refusal> {
        let states = self.store.conversation_states(user, ConversationFilter::NonDirect, CONVERSATIONS_PER_USER_MAX);
        let states = states.map_err(store_refusal)?;
        // Where nothing was said since, the user has joined before.
        let moved = |state: &ConversationState| state.head.last_position > since[Lane::of(state.kind) as usize];
        let joined: Vec<_> =
            states.iter().filter(|s| moved(s)).map(|s| (s.conversation, s.membership.joined_seq)).collect();
        let mut joined = self.store.positions_at(&joined).map_err(store_refusal)?.into_iter();
        let place = |state: &ConversationState| MembershipSnapshot {
            conversation: state.conversation,
            lane: Lane::of(state.kind),
            joined_after: if moved(state) { joined.next().flatten().unwrap_or(0) } else { 0 },
        };
        Ok(states.iter().map(place).collect())
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

    pub(crate) fn missed_entries(
        &self,
        user: UserNo,
        cursor: Option<&Cursor>,
        until: [Position; LANES],
    ) -> Result<(Resume, Vec<Taken>), Refusal> {
        let whole = Resume { complete: true, reset: false, ranges: vec![] };
        let Some(cursor) = cursor else { return Ok((whole, vec![])) };
        // What this node has come to is committed: only a cursor beyond that asks where the history ends.
        let farthest = cursor.positions.into_iter().max().unwrap_or(0);
        let is_beyond = until.iter().all(|until| farthest > *until) && farthest > self.store.last_position();
        let reset = cursor.epoch != self.store.epoch() || is_beyond;
        let after = if reset { [0; LANES] } else { cursor.positions };
        let Tails { tails, joined, are_all } = self.tails(user, after, until)?;
        let query = MissedQuery { entries_max: INBOX_ENTRIES_MAX, bytes_max: INBOX_BYTES_MAX, ranges: !reset };
        let recent = self.cluster.as_ref().filter(|_| !reset).and_then(|cluster| cluster.missed(&tails, query));
        let all_at_hand = recent.is_some();
        let missed = match recent {
            Some(missed) => missed,
            None => self.store.missed(&tails, query).map_err(store_refusal)?,
        };
        let cards = self.cards_of(&tails, &missed)?;
        let mut taken = Vec::with_capacity(missed.entries.len());
        for (index, entry) in missed.entries.into_iter().rev() {
            taken.extend(cards[index].clone().map(|card| (card, entry)));
        }
        if reset {
            return Ok((Resume { complete: false, reset, ranges: vec![] }, taken));
        }
        let mut ranges = Vec::with_capacity(missed.remaining.len());
        for (index, from_seq, to_seq) in missed.remaining {
            let Some(card) = &cards[index] else { continue };
            ranges.push(MissedRange { conversation: card.id.clone(), from_seq, to_seq });
        }
        let gone = !all_at_hand && self.any_removed(&tails, &joined)?;
        ranges.sort_by(|a: &MissedRange, b| a.conversation.cmp(&b.conversation));
        Ok((Resume { complete: ranges.is_empty() && !gone && are_all, reset, ranges }, taken))
    }

    /// Tails of the conversations in which anything was said since.
    fn tails(&self, user: UserNo, after: [Position; LANES], until: [Position; LANES]) -> Result<Tails, Refusal> {
        let states = self.store.conversation_states(user, ConversationFilter::All, CONVERSATIONS_PER_USER_MAX).map_err(store_refusal)?;
        let tail = |ConversationState { conversation, kind, head, membership }: ConversationState| {
            let (after, until) = (after[Lane::of(kind) as usize], until[Lane::of(kind) as usize]);
            let tail = Tail {
                conversation,
                floor_seq: (membership.joined_seq + 1).max(head.first_seq),
                newest_seq: head.last_seq,
                newest_position: head.last_position,
                after,
                until,
            };
            (head.last_position > after && until > after).then_some((tail, membership.joined_seq))
        };
        let are_all = states.len() < CONVERSATIONS_PER_USER_MAX;
        let (tails, joined) = states.into_iter().filter_map(tail).unzip();
        Ok(Tails { tails, joined, are_all })
    }

    /// The cards of conversations that the answer speaks of, by index of their tails.
    fn cards_of(&self, tails: &[Tail], missed: &MissedEntries) -> Result<Vec<Option<Arc<Conversation>>>, Refusal> {
        let mut spoken_of = vec![false; tails.len()];
        missed.entries.iter().for_each(|(index, _)| spoken_of[*index] = true);
        missed.remaining.iter().for_each(|(index, ..)| spoken_of[*index] = true);
        let asked =
            tails.iter().zip(&spoken_of).filter(|(_, spoken_of)| **spoken_of).map(|(tail, _)| tail.conversation);
        let asked: Vec<_> = asked.collect();
        let mut found = self.directory.conversations(&asked).map_err(store_refusal)?.into_iter();
        Ok(spoken_of.into_iter().map(|spoken_of| if spoken_of { found.next().flatten() } else { None }).collect())
    }

    /// Whether retention removed entries that may have been missed. Asked last, so that what was
    /// removed while the tails were read counts.
    fn any_removed(&self, tails: &[Tail], joined: &[u64]) -> Result<bool, Refusal> {
        let nos: Vec<_> = tails.iter().map(|tail| tail.conversation).collect();
        let heads = self.store.heads(&nos).map_err(store_refusal)?;
        let cut = tails.iter().zip(&heads).zip(joined).filter(|((_, head), joined)| head.first_seq > **joined + 1);
        let cut: Vec<_> = cut.map(|(tail_and_head, _)| tail_and_head).collect();
        let oldest: Vec<_> = cut.iter().map(|(tail, head)| (tail.conversation, head.first_seq)).collect();
        let oldest = self.store.positions_at(&oldest).map_err(store_refusal)?;
        // The oldest that is left is newer than the cursor: what was before it may have been, too.
        let newer = |((tail, head), oldest): (&(&Tail, &Head), Option<Position>)| {
            oldest.unwrap_or(head.last_position + 1) > tail.after + 1
        };
        Ok(cut.iter().zip(oldest).any(newer))
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

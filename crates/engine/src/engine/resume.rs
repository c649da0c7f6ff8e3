//! A user's inbox: all entries of the user's conversations between a client's cursor and a later position.
//!
//! Nothing is stored per user for this. Within a conversation positions rise with `seq`, so the tail of
//! each conversation is walked back to the cursor. The answer has the newest 800 entries (fewer when they are large)
//! and names the exact ranges of older ones to fetch. The store does the walk: one with a round trip for each read
//! walks all tails in a single one ([`tidings_domain::store::batch_reads`] has the algorithm).
//! Of 10,000 conversations this reads the heads and memberships, and the entries of the answer.
//!
//! A conversation's entries from before the user joined are not missed, they are history; nor are those that the user has cleared. Entries that retention
//! removed in between are lost: the answer is then not `complete`, and has no range for them.

use crate::{
    delivery::MembershipSnapshot,
    desks::AccountDesk,
    engine::{Engine, list_line::ListLine},
    entry_view::{encode_entry, entry_of},
};
use rustc_hash::FxHashSet;
use std::sync::Arc;
use tidings_domain::{
    desks::{Whose, index_key, indexed},
    model::*,
    refusals::store_refusal,
    store::*,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::SyncAnswer,
    ids::direct_id,
    limits::{CONVERSATIONS_PER_USER_MAX, INBOX_BYTES_MAX, INBOX_ENTRIES_MAX},
    resume::{MissedRange, Resume},
};

/// Conversations of an account that an agent's resume looks at. With more that have moved no resume is called complete: the
/// agent's client reads the list.
const ACCOUNT_CONVERSATIONS_MAX: usize = 5_000;
const ACCOUNT_CONVERSATIONS_AT_ONCE: usize = 500;

/// The inbox of a session, which it is sent before it goes live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbox {
    pub resume: Resume,
    /// Entries as JSON, each preceded by a comma, in commit order.
    pub json: Vec<u8>,
    pub entries: u32,
}

/// The tails of a user's conversations.
struct Tails {
    tails: Vec<Tail>,
    /// For each tail, the last `seq` before the user joined, or up to which the user has cleared it.
    joined: Vec<u64>,
    /// Whether the user has no more conversations than were looked at.
    are_all: bool,
}

/// An entry of an inbox, with its conversation.
pub(crate) type InboxEntry = (Arc<Conversation>, StoredEntry);

impl Engine {
    /// Whether a session that resumes with this cursor must wait: its client has seen commits on another node that this
    /// node's shards, which have come to `positions`, have not.
    pub fn is_behind(&self, cursor: &Cursor, positions: [Position; LANES]) -> bool {
        self.cluster.is_some()
            && cursor.epoch == self.store.epoch()
            && cursor.positions.iter().zip(positions).any(|(cursor, position)| *cursor > position)
    }

    /// Waits until this node's shards have come as far as a cursor from another node. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`: they did not come so far in time, or the store could not be asked whether there is as much.
    pub fn catch_up(&self, cursor: &Cursor) -> Result<(), Refusal> {
        self.cluster.as_ref().map_or(Ok(()), |cluster| cluster.catch_up(cursor))
    }

    /// The memberships of a user whose conversations have an audience, for a shard that has applied the positions
    /// `since`.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn memberships_for_delivery(
        &self,
        user: UserNo,
        since: [Position; LANES],
    ) -> Result<Vec<MembershipSnapshot>, Refusal> {
        let states = self.store.conversation_states(user, ConversationFilter::NonDirect, CONVERSATIONS_PER_USER_MAX);
        let states = states.map_err(store_refusal)?;
        // In a conversation without entries since then, the user joined before.
        let moved = |state: &ConversationState| state.head.last_position > since[Lane::of(state.kind) as usize];
        let joined: Vec<_> =
            states.iter().filter(|s| moved(s)).map(|s| (s.conversation, s.membership.joined_seq)).collect();
        let mut joined = self.store.positions_at(&joined).map_err(store_refusal)?.into_iter();
        let snapshot = |state: &ConversationState| MembershipSnapshot {
            conversation: state.conversation,
            lane: Lane::of(state.kind),
            joined_after: if moved(state) { joined.next().flatten().unwrap_or(0) } else { 0 },
        };
        Ok(states.iter().map(snapshot).collect())
    }

    /// The user's inbox after `cursor` and up to `until`, per lane. Empty without a cursor.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn read_inbox(
        &self,
        user: UserNo,
        cursor: Option<&Cursor>,
        until: [Position; LANES],
    ) -> Result<Inbox, Refusal> {
        let (resume, inbox) = self.read_inbox_entries(user, cursor, until)?;
        let mut json = Vec::new();
        for (card, entry) in &inbox {
            json.push(b',');
            encode_entry(&mut json, &card.id, entry);
        }
        Ok(Inbox { resume, json, entries: inbox.len() as u32 })
    }

    pub(crate) fn read_inbox_entries(
        &self,
        user: UserNo,
        cursor: Option<&Cursor>,
        until: [Position; LANES],
    ) -> Result<(Resume, Vec<InboxEntry>), Refusal> {
        let whole = Resume { complete: true, reset: false, ranges: vec![] };
        let Some(cursor) = cursor else { return Ok((whole, vec![])) };
        // Positions that this node has applied are committed. Only for a cursor beyond them the store must tell where
        // the history ends.
        let farthest = cursor.positions.into_iter().max().unwrap_or(0);
        let is_beyond = until.iter().all(|until| farthest > *until) && farthest > self.store.last_position();
        let reset = cursor.epoch != self.store.epoch() || is_beyond;
        let after = if reset { [0; LANES] } else { cursor.positions };
        let Tails { tails, joined, are_all } = self.tails(user, after, until)?;
        let query = MissedQuery { entries_max: INBOX_ENTRIES_MAX, bytes_max: INBOX_BYTES_MAX, ranges: !reset };
        let recent = self.cluster.as_ref().filter(|_| !reset).and_then(|cluster| cluster.missed(&tails, query));
        let is_from_memory = recent.is_some();
        let missed = match recent {
            Some(missed) => missed,
            None => self.store.missed(&tails, query).map_err(store_refusal)?,
        };
        let cards = self.cards_of(&tails, &missed)?;
        let mut inbox = Vec::with_capacity(missed.entries.len());
        for (index, mut entry) in missed.entries.into_iter().rev() {
            self.streams.overlay(tails[index].conversation, &mut entry);
            inbox.extend(cards[index].clone().map(|card| {
                self.veil(Some(user), &card, &mut entry);
                (card, entry)
            }));
        }
        self.attach_previews(inbox.iter_mut().map(|(card, entry)| (card.no, entry)))?;
        if reset {
            return Ok((Resume { complete: false, reset, ranges: vec![] }, inbox));
        }
        let mut ranges = Vec::with_capacity(missed.remaining.len());
        for (index, from_seq, to_seq) in missed.remaining {
            let Some(card) = &cards[index] else { continue };
            ranges.push(MissedRange { conversation: card.id.clone(), from_seq, to_seq });
        }
        let has_gap = !is_from_memory && self.is_any_removed(&tails, &joined)?;
        ranges.sort_by(|a: &MissedRange, b| a.conversation.cmp(&b.conversation));
        Ok((Resume { complete: ranges.is_empty() && !has_gap && are_all, reset, ranges }, inbox))
    }

    /// The tails of conversations with entries after `after`.
    fn tails(&self, user: UserNo, after: [Position; LANES], until: [Position; LANES]) -> Result<Tails, Refusal> {
        let states = self
            .store
            .conversation_states(user, ConversationFilter::All, CONVERSATIONS_PER_USER_MAX)
            .map_err(store_refusal)?;
        let preferences = self.preferences_of(user)?;
        let tail = |ConversationState { conversation, kind, head, membership }: ConversationState| {
            let (after, until) = (after[Lane::of(kind) as usize], until[Lane::of(kind) as usize]);
            let cleared_seq = preferences.get(&conversation).map_or(0, |preferences| preferences.cleared_seq);
            let unseen_seq = membership.joined_seq.max(cleared_seq);
            let tail = Tail {
                conversation,
                floor_seq: (unseen_seq + 1).max(head.first_seq),
                newest_seq: head.last_seq,
                newest_position: head.last_position,
                after,
                until,
            };
            (head.last_position > after && until > after).then_some((tail, unseen_seq))
        };
        let mut are_all = states.len() < CONVERSATIONS_PER_USER_MAX;
        let (mut tails, mut joined): (Vec<Tail>, Vec<u64>) = states.into_iter().filter_map(tail).unzip();
        for desk in self.directory.desks.served_by(user) {
            let (lines, are_all_of_desk) = self.moved_lines(&desk, user, after[Lane::Direct as usize])?;
            are_all &= are_all_of_desk;
            for ListLine { state, preferences } in lines {
                let (after, until) = (after[Lane::Direct as usize], until[Lane::Direct as usize]);
                if until > after {
                    tails.push(Tail {
                        conversation: state.conversation,
                        floor_seq: (preferences.cleared_seq + 1).max(state.head.first_seq),
                        newest_seq: state.head.last_seq,
                        newest_position: state.head.last_position,
                        after,
                        until,
                    });
                    joined.push(preferences.cleared_seq);
                }
            }
        }
        Ok(Tails { tails, joined, are_all })
    }

    /// The conversations of an account with entries after a position, for one of its agents, who has an own one with it in
    /// another way; and whether these are all.
    fn moved_lines(
        &self,
        desk: &AccountDesk,
        agent: UserNo,
        after: Position,
    ) -> Result<(Vec<ListLine>, bool), Refusal> {
        let place = |newest, no| index_key(desk.account, Whose::Anyones, newest, ConversationNo(no));
        let (mut from, to) = (place(Position::MAX, 0), place(after + 1, u64::MAX));
        let Some(account) = self.directory.user(desk.desk.user.no).map_err(store_refusal)? else {
            return Ok((vec![], true));
        };
        let mut lines: Vec<ListLine> = Vec::new();
        while lines.len() < ACCOUNT_CONVERSATIONS_MAX {
            let rows =
                self.store.rows(RowSpace::Chat, &from, &to, ACCOUNT_CONVERSATIONS_AT_ONCE).map_err(store_refusal)?;
            let places: Vec<_> = rows.iter().filter_map(|(key, _)| indexed(key)).collect();
            lines.extend(self.lines_of(&account, &places)?);
            match rows.last() {
                Some((last, _)) if rows.len() == ACCOUNT_CONVERSATIONS_AT_ONCE => from = [&last[..], &[0]].concat(),
                _ => {
                    let own = self.own_conversation(&account, agent)?;
                    lines.retain(|line| Some(line.state.conversation) != own);
                    // One that moved to the top meanwhile was perhaps found twice.
                    let mut seen = FxHashSet::default();
                    lines.retain(|line| seen.insert(line.state.conversation));
                    return Ok((lines, true));
                }
            }
        }
        Ok((lines, false))
    }

    /// The conversation that an agent has with the account as any other user.
    fn own_conversation(&self, account: &User, agent: UserNo) -> Result<Option<ConversationNo>, Refusal> {
        let Some(agent) = self.directory.user(agent).map_err(store_refusal)? else { return Ok(None) };
        let own = self.directory.conversation_by_id(&direct_id(&account.id, &agent.id)).map_err(store_refusal)?;
        Ok(own.map(|own| own.no))
    }

    /// The cards of conversations that the answer names, by index of their tails; the others are `None`.
    fn cards_of(&self, tails: &[Tail], missed: &MissedEntries) -> Result<Vec<Option<Arc<Conversation>>>, Refusal> {
        let mut is_named = vec![false; tails.len()];
        missed.entries.iter().for_each(|(index, _)| is_named[*index] = true);
        missed.remaining.iter().for_each(|(index, ..)| is_named[*index] = true);
        let asked = tails.iter().zip(&is_named).filter(|(_, is_named)| **is_named).map(|(tail, _)| tail.conversation);
        let asked: Vec<_> = asked.collect();
        let mut found = self.directory.conversations(&asked).map_err(store_refusal)?.into_iter();
        Ok(is_named.into_iter().map(|is_named| if is_named { found.next().flatten() } else { None }).collect())
    }

    /// Whether retention removed entries that may have been missed. Called last, so that entries that were
    /// removed while the tails were read count.
    fn is_any_removed(&self, tails: &[Tail], joined: &[u64]) -> Result<bool, Refusal> {
        let nos: Vec<_> = tails.iter().map(|tail| tail.conversation).collect();
        let heads = self.store.heads(&nos).map_err(store_refusal)?;
        let cut = tails.iter().zip(&heads).zip(joined).filter(|((_, head), joined)| head.first_seq > **joined + 1);
        let cut: Vec<_> = cut.map(|(tail_and_head, _)| tail_and_head).collect();
        let oldest: Vec<_> = cut.iter().map(|(tail, head)| (tail.conversation, head.first_seq)).collect();
        let oldest = self.store.positions_at(&oldest).map_err(store_refusal)?;
        // When the oldest entry that is left is newer than the cursor, removed ones before it may be newer too.
        let newer = |((tail, head), oldest): (&(&Tail, &Head), Option<Position>)| {
            oldest.unwrap_or(head.last_position + 1) > tail.after + 1
        };
        Ok(cut.iter().zip(oldest).any(newer))
    }

    /// The user's inbox after a cursor, and the cursor to go on from: for apps that read over HTTP without a
    /// connection.
    ///
    /// # Errors
    /// `cursor_invalid`; `store_unavailable`.
    pub fn sync(&self, user: &Arc<User>, cursor: Option<&str>) -> Result<SyncAnswer, Refusal> {
        let cursor = cursor.map(str::parse::<Cursor>).transpose();
        let cursor = cursor.map_err(|_| Refusal::new(ErrorCode::CursorInvalid, "cursor: not one of this server's"))?;
        let until = [self.store.last_position(); LANES];
        let (resume, inbox) = self.read_inbox_entries(user.no, cursor.as_ref(), until)?;
        let entries = inbox.iter().map(|(card, entry)| entry_of(&card.id, entry)).collect::<Result<_, _>>()?;
        let cursor = Cursor { epoch: self.store.epoch(), positions: until };
        Ok(SyncAnswer { cursor: cursor.to_string(), resume, entries })
    }
}

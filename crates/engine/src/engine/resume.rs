//! A user's inbox: all entries of the user's conversations between a client's cursor and a later position.
//!
//! Nothing is stored per user for this. Within a conversation positions rise with `seq`, so the tail of
//! each conversation is walked back to the cursor. The answer has the newest 800 entries (fewer when they are large)
//! and names the exact ranges of older ones to fetch. The store does the walk: one with a round trip for each read
//! walks all tails in a single one ([`tidings_domain::store::batch_reads`] has the algorithm).
//! Of 10,000 conversations this reads the heads and memberships, and the entries of the answer.
//!
//! A conversation's entries from before the user joined are not missed, they are history; nor are those that the user has cleared. Of a
//! conversation that the user has left and joined again behind the cursor all entries behind the cursor are missed that the user
//! may read: the client has the conversation, and no gap may be in it. Entries that retention removed in between are lost: the
//! answer is then not `complete`, and has no range for them.

use crate::{
    Engine,
    delivery::MembershipSnapshot,
    desks::AccountDesk,
    entry_view::{encode_entry, entry_of},
    lists::line::ListLine,
    views::Found,
    visibility::{View, first_readable},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::{collections::HashMap, sync::Arc};
use tidings_domain::{
    chat_rows::Preferences,
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
    resume::{MissedRange, RemovedRange, Resume},
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
    /// For each tail, what is not missed.
    unmissed: Vec<Unmissed>,
    /// Whether the user has no more conversations than were looked at.
    are_all: bool,
}

/// What a user has not missed of a conversation.
#[derive(Debug, Clone, Copy)]
struct Unmissed {
    /// The last `seq` before the user joined.
    joined_seq: u64,
    /// The last `seq` that the user has cleared.
    cleared_seq: u64,
    /// The last `seq` that was not missed.
    through: u64,
}

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

    /// Called before the memberships of users are read who have bound at a shard that had applied the positions `since`: when this
    /// returns, the shard has passed all that was taken to concern nobody here before they came. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`: the shard did not come so far in time.
    pub fn pass_skipped(&self, shard: usize, since: [Position; LANES]) -> Result<(), Refusal> {
        self.cluster.as_ref().map_or(Ok(()), |cluster| cluster.pass_skipped(shard, since))
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
        self.directory.cleared.begin(user);
        let cleared = self.preferences_of(user)?.into_iter();
        self.directory.cleared.note_read(user, cleared.map(|(conversation, set)| (conversation, set.cleared_seq)));
        // In a conversation without entries since then, the user joined before.
        let moved = |state: &ConversationState| state.head.last_position > since[Lane::of(state.kind) as usize];
        let joined: Vec<_> =
            states.iter().filter(|s| moved(s)).map(|s| (s.conversation, s.membership.joined_seq)).collect();
        let mut joined = self.store.positions_at(&joined).map_err(store_refusal)?.into_iter();
        let snapshot = |state: &ConversationState| MembershipSnapshot {
            conversation: state.conversation,
            lane: Lane::of(state.kind),
            joined_seq: state.membership.joined_seq,
            joined_after: if moved(state) { joined.next().flatten().unwrap_or(0) } else { 0 },
        };
        Ok(states.iter().map(snapshot).collect())
    }

    /// The user has no session on this node any more.
    pub fn forget_cleared(&self, user: UserNo) {
        self.directory.cleared.forget(user);
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
        let mut entries = 0;
        for found in &inbox {
            let Some(shown) = found.shown() else { continue };
            json.push(b',');
            encode_entry(&mut json, &found.conversation.id, &shown);
            entries += 1;
        }
        Ok(Inbox { resume, json, entries })
    }

    pub(crate) fn read_inbox_entries(
        &self,
        user: UserNo,
        cursor: Option<&Cursor>,
        until: [Position; LANES],
    ) -> Result<(Resume, Vec<Found>), Refusal> {
        let whole = Resume { complete: true, reset: false, ranges: vec![], removed: vec![] };
        let Some(cursor) = cursor else { return Ok((whole, vec![])) };
        // Positions that this node has applied are committed. Only for a cursor beyond them the store must tell where
        // the history ends.
        let farthest = cursor.positions.into_iter().max().unwrap_or(0);
        let is_beyond = until.iter().all(|until| farthest > *until) && farthest > self.store.last_position();
        let reset = cursor.epoch != self.store.epoch() || is_beyond;
        let after = if reset { [0; LANES] } else { cursor.positions };
        let Tails { tails, unmissed, are_all } = self.tails(user, after, until, reset)?;
        let query = MissedQuery { entries_max: INBOX_ENTRIES_MAX, bytes_max: INBOX_BYTES_MAX, ranges: !reset };
        let recent = self.cluster.as_ref().filter(|_| !reset).and_then(|cluster| cluster.missed(&tails, query));
        let is_from_memory = recent.is_some();
        let missed = match recent {
            Some(missed) => missed,
            None => self.store.missed(&tails, query).map_err(store_refusal)?,
        };
        let all_details = self.details_of_missed(&tails, &missed)?;
        let mut inbox = Vec::with_capacity(missed.entries.len());
        let mut views: FxHashMap<usize, View> = FxHashMap::default();
        for (index, entry) in missed.entries.into_iter().rev() {
            let Some(conversation) = all_details[index].clone() else { continue };
            let view = *views.entry(index).or_insert_with(|| {
                let Unmissed { joined_seq, cleared_seq, .. } = unmissed[index];
                self.view_of_member(user, &conversation, joined_seq, cleared_seq)
            });
            inbox.push(Found { conversation, view, entry });
        }
        self.complete(&mut inbox)?;
        if reset {
            return Ok((Resume { complete: false, reset, ranges: vec![], removed: vec![] }, inbox));
        }
        let mut ranges = Vec::with_capacity(missed.remaining.len());
        for (index, from_seq, to_seq) in missed.remaining {
            let Some(details) = &all_details[index] else { continue };
            ranges.push(MissedRange { conversation: details.id.clone(), from_seq, to_seq });
        }
        let removed = if is_from_memory { vec![] } else { self.removed(&tails, &unmissed)? };
        ranges.sort_by(|a: &MissedRange, b| a.conversation.cmp(&b.conversation));
        let complete = ranges.is_empty() && removed.is_empty() && are_all;
        Ok((Resume { complete, reset, ranges, removed }, inbox))
    }

    /// The tails of conversations with entries after `after`.
    fn tails(
        &self,
        user: UserNo,
        after: [Position; LANES],
        until: [Position; LANES],
        reset: bool,
    ) -> Result<Tails, Refusal> {
        let states = self
            .store
            .conversation_states(user, ConversationFilter::All, CONVERSATIONS_PER_USER_MAX)
            .map_err(store_refusal)?;
        let preferences = self.preferences_of(user)?;
        let rejoined = if reset { HashMap::new() } else { self.rejoined(&states, &preferences, after)? };
        let tail = |ConversationState { conversation, kind, head, membership }: ConversationState| {
            let (after, until) = (after[Lane::of(kind) as usize], until[Lane::of(kind) as usize]);
            let cleared_seq = preferences.get(&conversation).map_or(0, |preferences| preferences.cleared_seq);
            let joined_seq = membership.joined_seq;
            let through = rejoined.get(&conversation).copied().unwrap_or(joined_seq.max(cleared_seq));
            let unmissed = Unmissed { joined_seq, cleared_seq, through };
            let tail = Tail {
                conversation,
                floor_seq: (unmissed.through + 1).max(head.first_seq),
                newest_seq: head.last_seq,
                newest_position: head.last_position,
                after,
                until,
            };
            (head.last_position > after && until > after).then_some((tail, unmissed))
        };
        let mut are_all = states.len() < CONVERSATIONS_PER_USER_MAX;
        let (mut tails, mut unmissed): (Vec<Tail>, Vec<Unmissed>) = states.into_iter().filter_map(tail).unzip();
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
                    let cleared_seq = preferences.cleared_seq;
                    unmissed.push(Unmissed { joined_seq: 0, cleared_seq, through: cleared_seq });
                }
            }
        }
        Ok(Tails { tails, unmissed, are_all })
    }

    /// The conversations that the user has left and joined again behind `after`, each with the last `seq` that the user may
    /// not read.
    fn rejoined(
        &self,
        states: &[ConversationState],
        preferences: &HashMap<ConversationNo, Preferences>,
        after: [Position; LANES],
    ) -> Result<HashMap<ConversationNo, u64>, Refusal> {
        let has_left = states.iter().filter_map(|state| {
            let kept = preferences.get(&state.conversation)?;
            let moved = state.head.last_position > after[Lane::of(state.kind) as usize];
            kept.left_seq.filter(|_| moved).map(|left_seq| (state, kept, left_seq))
        });
        let has_left: Vec<_> = has_left.collect();
        let left: Vec<_> = has_left.iter().map(|(state, _, left_seq)| (state.conversation, *left_seq)).collect();
        let left = self.store.positions_at(&left).map_err(store_refusal)?;
        let nos: Vec<_> = has_left.iter().map(|(state, ..)| state.conversation).collect();
        let all_details = self.directory.conversations(&nos).map_err(store_refusal)?;
        let mut rejoined = HashMap::new();
        for (((state, kept, _), left), details) in has_left.into_iter().zip(left).zip(all_details) {
            // Retention has removed the entry: the client may have been away since then. So it may of an account, whose members
            // leave without an entry.
            let is_untold = state.kind == ConversationKind::Official;
            let was_away = is_untold || left.is_none_or(|left| left > after[Lane::of(state.kind) as usize]);
            if let Some(details) = details.filter(|_| was_away) {
                let first = first_readable(details.history(), state.membership.joined_seq, kept.cleared_seq);
                rejoined.insert(state.conversation, first - 1);
            }
        }
        Ok(rejoined)
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
        let oldest = self.store.index_after(after).map_err(store_refusal)?;
        let (mut from, to) = (place(u64::MAX, 0), place(oldest, u64::MAX));
        let Some(account) = self.directory.user(desk.desk.user.no).map_err(store_refusal)? else {
            return Ok((vec![], true));
        };
        let mut lines: Vec<ListLine> = Vec::new();
        while lines.len() < ACCOUNT_CONVERSATIONS_MAX {
            let rows =
                self.store.rows(RowSpace::Chat, &from, &to, ACCOUNT_CONVERSATIONS_AT_ONCE).map_err(store_refusal)?;
            let places: Vec<_> = rows.iter().filter_map(|(key, _)| indexed(key)).collect();
            lines.extend(self.lines_of(&account, &places)?);
            lines.retain(|line| line.state.head.last_position > after);
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

    /// The all_details of conversations that the answer names, by index of their tails; the others are `None`.
    fn details_of_missed(
        &self,
        tails: &[Tail],
        missed: &MissedEntries,
    ) -> Result<Vec<Option<Arc<Conversation>>>, Refusal> {
        let mut is_named = vec![false; tails.len()];
        missed.entries.iter().for_each(|(index, _)| is_named[*index] = true);
        missed.remaining.iter().for_each(|(index, ..)| is_named[*index] = true);
        let asked = tails.iter().zip(&is_named).filter(|(_, is_named)| **is_named).map(|(tail, _)| tail.conversation);
        let asked: Vec<_> = asked.collect();
        let mut found = self.directory.conversations(&asked).map_err(store_refusal)?.into_iter();
        Ok(is_named.into_iter().map(|is_named| if is_named { found.next().flatten() } else { None }).collect())
    }

    /// The conversations of which retention removed entries that may have been missed. Called last, so that entries that were
    /// removed while the tails were read count.
    fn removed(&self, tails: &[Tail], unmissed: &[Unmissed]) -> Result<Vec<RemovedRange>, Refusal> {
        let nos: Vec<_> = tails.iter().map(|tail| tail.conversation).collect();
        let heads = self.store.heads(&nos).map_err(store_refusal)?;
        let is_cut = |((_, head), unmissed): &((&Tail, &Head), &Unmissed)| head.first_seq > unmissed.through + 1;
        let cut = tails.iter().zip(&heads).zip(unmissed).filter(is_cut);
        let cut: Vec<_> = cut.map(|(tail_and_head, _)| tail_and_head).collect();
        let oldest: Vec<_> = cut.iter().map(|(tail, head)| (tail.conversation, head.first_seq)).collect();
        let oldest = self.store.positions_at(&oldest).map_err(store_refusal)?;
        // When the oldest entry that is left is newer than the cursor, removed ones before it may be newer too.
        let newer = |((tail, head), oldest): &(&(&Tail, &Head), Option<Position>)| {
            oldest.unwrap_or(head.last_position + 1) > tail.after + 1
        };
        let newer: Vec<_> = cut.iter().zip(oldest).filter(newer).map(|((tail, head), _)| (tail, head)).collect();
        let nos: Vec<_> = newer.iter().map(|(tail, _)| tail.conversation).collect();
        let details = self.directory.conversations(&nos).map_err(store_refusal)?;
        let removed = details.into_iter().zip(newer).filter_map(|(details, (_, head))| {
            Some(RemovedRange { conversation: details?.id.clone(), first_seq: head.first_seq })
        });
        Ok(removed.collect())
    }

    /// The user's inbox after a cursor, and the cursor to go on from: for apps that read over HTTP without a
    /// connection.
    ///
    /// # Errors
    /// `cursor_invalid`; `store_unavailable`.
    pub fn sync(&self, user: &Arc<User>, cursor: Option<&str>) -> Result<SyncAnswer, Refusal> {
        let cursor = cursor.map(str::parse::<Cursor>).transpose();
        let cursor =
            cursor.map_err(|_| Refusal::new(ErrorCode::CursorInvalid, "cursor: this server did not issue it"))?;
        let until = [self.store.last_position(); LANES];
        let (resume, inbox) = self.read_inbox_entries(user.no, cursor.as_ref(), until)?;
        let shown = inbox.iter().filter_map(|found| Some((&found.conversation, found.shown()?)));
        let entries = shown.map(|(details, entry)| entry_of(&details.id, &entry)).collect::<Result<_, _>>()?;
        let cursor = Cursor { epoch: self.store.epoch(), positions: until };
        Ok(SyncAnswer { cursor: cursor.to_string(), resume, entries })
    }
}

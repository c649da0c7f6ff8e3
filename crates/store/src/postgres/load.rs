//! Locks and loads the rows that a batch touches, in one round trip and in the one order of locks.

use super::{
    clock::recently_left,
    connection::{Call, Connection, bigint, number},
    failure::Failure,
    staged_batch::LoadedState,
};
use crate::rows::{damaged, decode_content, decode_conversation, decode_user};
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use tidings_domain::{chat_rows, decide::chat_row_keys, model::*, store::*};
use tokio_postgres::Row;

/// The keys of the rows that a batch's proposals read or write.
#[derive(Default)]
pub(crate) struct TouchedKeys<'a> {
    users: BTreeSet<UserNo>,
    pub user_ids: BTreeSet<&'a str>,
    heads: BTreeSet<ConversationNo>,
    cards: BTreeSet<ConversationNo>,
    pub conversation_ids: BTreeSet<&'a str>,
    memberships: BTreeSet<(ConversationNo, UserNo)>,
    sends: FxHashSet<(UserNo, &'a str)>,
    /// The senders of each conversation.
    authors: BTreeSet<(ConversationNo, UserNo)>,
    /// Entries that are changed.
    entries: BTreeSet<(ConversationNo, u64)>,
    chat_rows: BTreeSet<Vec<u8>>,
    /// Conversations whose members are told of reactions.
    untold: BTreeSet<ConversationNo>,
    /// Conversations that members leave in this batch.
    left: FxHashSet<ConversationNo>,
    /// Whether a proposal names users by number, so that the number of users must be state.
    counters: bool,
}

impl<'a> TouchedKeys<'a> {
    pub(crate) fn of(batch: &'a [Proposal]) -> TouchedKeys<'a> {
        let mut touched = TouchedKeys::default();
        batch.iter().for_each(|proposal| touched.add(proposal));
        touched
    }

    fn add(&mut self, proposal: &'a Proposal) {
        self.chat_rows.extend(chat_row_keys(proposal));
        match proposal {
            Proposal::ChangeMessage { conversation, target, entry, .. } => {
                self.entry(*conversation, entry);
                self.authors.extend(entry.sender.as_ref().map(|sender| (*conversation, sender.no)));
                self.entries.insert((*conversation, *target));
            }
            Proposal::CheckpointStream { conversation, target, .. } => {
                self.heads.insert(*conversation);
                self.entries.insert((*conversation, *target));
            }
            Proposal::Append { conversation, entry } => {
                self.entry(*conversation, entry);
                self.authors.extend(entry.sender.as_ref().map(|sender| (*conversation, sender.no)));
                self.entries
                    .extend(Some(entry.details().reply_to).filter(|seq| *seq != 0).map(|seq| (*conversation, seq)));
            }
            Proposal::React { conversation, target, user, .. } => {
                self.heads.insert(*conversation);
                self.authors.insert((*conversation, user.no));
                self.entries.insert((*conversation, *target));
                self.untold.insert(*conversation);
            }
            Proposal::TellReactions { conversation } => {
                self.heads.insert(*conversation);
                self.untold.insert(*conversation);
            }
            Proposal::PutUsers(patches) => self.user_ids.extend(patches.iter().map(|patch| patch.id.as_str())),
            Proposal::CreateConversation(new) => {
                self.conversation_ids.insert(&new.id);
                self.counters = true;
            }
            Proposal::UpdateConversation { conversation, notice, .. } => {
                self.heads.insert(*conversation);
                self.cards.insert(*conversation);
                notice.iter().for_each(|notice| self.entry(*conversation, notice));
            }
            Proposal::ChangeMembers { conversation, add, remove, notice, .. } => {
                self.heads.insert(*conversation);
                self.cards.insert(*conversation);
                self.counters = true;
                if !remove.is_empty() {
                    self.left.insert(*conversation);
                }
                let users = add.iter().map(|(user, _)| user).chain(remove);
                self.memberships.extend(users.map(|user| (*conversation, *user)));
                notice.iter().for_each(|notice| self.entry(*conversation, notice));
            }
            Proposal::SetDesk { account, id, .. } => {
                // A desk and its agents are changed under the lock of the account's head.
                self.heads.insert(*account);
                self.user_ids.insert(id);
            }
            Proposal::Assign { conversation, entry, .. } => self.entry(*conversation, entry),
            Proposal::MarkRead { conversation, user, .. }
            | Proposal::SetMute { conversation, user, .. }
            | Proposal::SetPreferences { conversation, user, .. } => {
                // A membership is changed under the lock of its conversation's head.
                self.heads.insert(*conversation);
                self.memberships.insert((*conversation, *user));
            }
            Proposal::SetDoNotDisturb { user, .. }
            | Proposal::Revoke { user, .. }
            | Proposal::SetReceipts { user, .. }
            | Proposal::SetReach { user, .. } => drop(self.users.insert(*user)),
            // A user's chat rows are changed under the lock of the user: another node may change the same ones.
            Proposal::SetStored(told) => self.users.extend(told.iter().map(|(user, _)| *user)),
            Proposal::SetPushToken { user, owner, .. } => {
                self.users.insert(*user);
                self.users.extend(owner.iter().map(|(user, _)| *user));
            }
            Proposal::SetLastSeen(_)
            | Proposal::SetReachCounts(_)
            | Proposal::Kick { .. }
            | Proposal::AdvanceOutbox { .. }
            | Proposal::DeleteDeadLetters { .. } => {}
        }
    }

    fn entry(&mut self, conversation: ConversationNo, entry: &'a NewEntry) {
        self.heads.insert(conversation);
        self.sends.extend(entry.idempotency_key());
    }

    /// Begins the transaction, takes the locks and loads the rows.
    pub(crate) async fn load(&self, connection: &Connection) -> Result<LoadedState, Failure> {
        let user_nos = column(self.users.iter().map(|user| user.0));
        let user_ids: Vec<&str> = self.user_ids.iter().copied().collect();
        let heads = column(self.heads.iter().map(|conversation| conversation.0));
        let cards = column(self.cards.iter().map(|conversation| conversation.0));
        let conversation_ids: Vec<&str> = self.conversation_ids.iter().copied().collect();
        let (of, members): (Vec<i64>, Vec<i64>) =
            self.memberships.iter().map(|(c, u)| (bigint(c.0), bigint(u.0))).unzip();
        let (entries_of, entry_seqs) = columns(self.entries.iter());
        let chat_rows: Vec<&[u8]> = self.chat_rows.iter().map(Vec::as_slice).collect();
        let (senders, sends): (Vec<i64>, Vec<&str>) = self.sends.iter().map(|(user, id)| (bigint(user.0), *id)).unzip();

        let mut state = LoadedState::default();
        let mut calls = vec![Call::new("BEGIN", &[])];
        let mut readers: Vec<fn(&mut LoadedState, &Row) -> StoreResult<()>> = vec![|_, _| Ok(())];
        let mut read = |call, reader| {
            calls.push(call);
            readers.push(reader);
        };
        if !user_nos.is_empty() || !user_ids.is_empty() {
            read(Call::new(LOCK_USERS, &[&user_nos, &user_ids]), read_user);
        }
        if !heads.is_empty() {
            read(Call::new(LOCK_HEADS, &[&heads]), read_head);
        }
        if !cards.is_empty() || !conversation_ids.is_empty() {
            read(Call::new(CARDS, &[&cards, &conversation_ids]), read_card);
        }
        if !of.is_empty() {
            read(Call::new(MEMBERSHIPS, &[&of, &members]), read_membership);
        }
        if !sends.is_empty() {
            read(Call::new(SENDS, &[&senders, &sends]), read_send);
        }
        if !entry_seqs.is_empty() {
            read(Call::new(ENTRIES, &[&entries_of, &entry_seqs]), read_entry);
        }
        if !chat_rows.is_empty() {
            read(Call::new("SELECT key, value FROM chat_rows WHERE key = ANY($1)", &[&chat_rows]), |state, row| {
                state.chat_rows.insert(row.get(0), row.get(1));
                Ok(())
            });
        }
        if self.counters {
            read(Call::new("SELECT users FROM counters", &[]), |state, row| {
                state.user_count = number(row, 0);
                Ok(())
            });
        }
        let answers = connection.pipeline(&calls).await?;
        for (rows, reader) in answers.iter().zip(readers) {
            for row in rows {
                reader(&mut state, row).map_err(|error| Failure::Incompatible(error.to_string()))?;
            }
        }
        self.load_non_members(connection, &mut state).await?;
        self.load_mentioned_entries(connection, &mut state).await?;
        Ok(state)
    }

    /// Loads the entries that loaded rows name: those by which the loaded messages were edited, whose bodies a change may
    /// remove, and those whose reactions are yet to be told.
    async fn load_mentioned_entries(&self, connection: &Connection, state: &mut LoadedState) -> Result<(), Failure> {
        let damaged = |error: StoreError| Failure::Incompatible(error.to_string());
        let mut named = BTreeSet::new();
        for ((conversation, _), (_, entry)) in &state.entries {
            named.extend(entry.content.details().edits.iter().map(|seq| (*conversation, *seq)));
        }
        for conversation in &self.untold {
            let row = state.chat_rows.get(&chat_rows::untold_key(*conversation));
            let untold: Vec<u64> = chat_rows::decode(row.map(Vec::as_slice)).map_err(damaged)?;
            named.extend(untold.iter().map(|seq| (*conversation, *seq)));
        }
        named.retain(|key| !state.entries.contains_key(key));
        if !named.is_empty() {
            let (conversations, seqs) = columns(named.iter());
            for row in connection.query(ENTRIES, &[&conversations, &seqs]).await? {
                read_entry(state, &row).map_err(damaged)?;
            }
        }
        Ok(())
    }

    /// Loads which senders are not members, for conversations that a member has just left or leaves in this batch. Other
    /// batches send no statement for it.
    async fn load_non_members(&self, connection: &Connection, state: &mut LoadedState) -> Result<(), Failure> {
        let senders = self
            .authors
            .iter()
            .filter(|(conversation, _)| state.recently_left.contains(conversation) || self.left.contains(conversation));
        let (of, who): (Vec<i64>, Vec<i64>) = senders.map(|(c, u)| (bigint(c.0), bigint(u.0))).unzip();
        if !of.is_empty() {
            for row in connection.query(NON_MEMBERS, &[&of, &who]).await? {
                state.non_members.insert((ConversationNo(number(&row, 0)), UserNo(number(&row, 1))));
            }
        }
        Ok(())
    }
}

fn columns<'a>(entries: impl Iterator<Item = &'a (ConversationNo, u64)>) -> (Vec<i64>, Vec<i64>) {
    entries.map(|(conversation, seq)| (bigint(conversation.0), bigint(*seq))).unzip()
}

fn column(numbers: impl Iterator<Item = u64>) -> Vec<i64> {
    numbers.map(bigint).collect()
}

const LOCK_USERS: &str = "SELECT no, card FROM users WHERE no = ANY($1) OR id = ANY($2) ORDER BY no FOR UPDATE";
const LOCK_HEADS: &str = concat!(
    "SELECT h.conversation, h.last_seq, h.last_at, h.last_position, ",
    recently_left!(),
    " FROM heads h WHERE h.conversation = ANY($1) ORDER BY h.conversation FOR UPDATE"
);
const NON_MEMBERS: &str = "SELECT k.conversation, k.user_no FROM unnest($1::bigint[], $2::bigint[]) AS k (conversation, user_no) \
     WHERE NOT EXISTS (SELECT FROM members m WHERE m.conversation = k.conversation AND m.user_no = k.user_no)";
const CARDS: &str = "SELECT no, card FROM conversations WHERE no = ANY($1) OR id = ANY($2)";
const MEMBERSHIPS: &str = "SELECT m.conversation, m.user_no, m.role, m.joined_at, m.joined_seq, m.read_seq, m.muted_until \
     FROM unnest($1::bigint[], $2::bigint[]) AS k (conversation, user_no) \
     JOIN members m ON m.conversation = k.conversation AND m.user_no = k.user_no";
/// First results, each with whether its entry is still there: only then it counts.
const SENDS: &str = "SELECT d.sender, d.client_msg_id, d.conversation, d.seq, d.at, d.position, \
     EXISTS (SELECT FROM chapters c WHERE c.conversation = d.conversation AND c.first_seq <= d.seq) \
     FROM unnest($1::bigint[], $2::text[]) AS k (sender, client_msg_id) \
     JOIN dedupe d ON d.sender = k.sender AND d.client_msg_id = k.client_msg_id";

/// Entries by conversation and sequence, under the locks of their conversations' heads.
const ENTRIES: &str = "SELECT k.conversation, k.seq, e.part, e.position, e.at, e.content \
     FROM unnest($1::bigint[], $2::bigint[]) AS k (conversation, seq) \
     JOIN LATERAL (SELECT part FROM chapters WHERE conversation = k.conversation AND first_seq <= k.seq \
       ORDER BY first_seq DESC LIMIT 1) c ON true \
     JOIN entries e ON e.part = c.part AND e.conversation = k.conversation AND e.seq = k.seq";

fn read_entry(state: &mut LoadedState, row: &Row) -> StoreResult<()> {
    let (conversation, seq) = (ConversationNo(number(row, 0)), number(row, 1));
    let entry = decode_content(seq, number(row, 3), number(row, 4), row.get(5))?;
    state.entries.insert((conversation, seq), (row.get(2), entry));
    Ok(())
}

fn read_user(state: &mut LoadedState, row: &Row) -> StoreResult<()> {
    let no = UserNo(number(row, 0));
    let user = decode_user(no, row.get(1))?;
    state.user_nos.insert(user.id.clone(), no);
    state.users.insert(no, user);
    Ok(())
}

fn read_head(state: &mut LoadedState, row: &Row) -> StoreResult<()> {
    let (last_seq, last_at, last_position) = (number(row, 1), number(row, 2), number(row, 3));
    // An append does not need the first sequence.
    let head = Head { last_seq, last_at, last_position, first_seq: 1 };
    let conversation = ConversationNo(number(row, 0));
    state.heads.insert(conversation, head);
    if row.get(4) {
        state.recently_left.insert(conversation);
    }
    Ok(())
}

fn read_card(state: &mut LoadedState, row: &Row) -> StoreResult<()> {
    let no = ConversationNo(number(row, 0));
    let conversation = decode_conversation(no, row.get(1))?;
    state.conversation_nos.insert(conversation.id.clone(), no);
    state.conversations.insert(no, conversation);
    Ok(())
}

fn read_membership(state: &mut LoadedState, row: &Row) -> StoreResult<()> {
    let key = (ConversationNo(number(row, 0)), UserNo(number(row, 1)));
    state.memberships.insert(key, membership(row, 2)?);
    Ok(())
}

fn read_send(state: &mut LoadedState, row: &Row) -> StoreResult<()> {
    let (sender, client_msg_id) = (UserNo(number(row, 0)), row.get::<_, String>(1));
    let conversation = ConversationNo(number(row, 2));
    let (seq, at, position) = (number(row, 3), number(row, 4), number(row, 5));
    match row.get(6) {
        true => {
            let first = Appended { conversation, seq, at, position, duplicate: true };
            state.first_results.insert((sender, client_msg_id), first);
        }
        false => state.expired_results.push((sender, client_msg_id, position)),
    }
    Ok(())
}

/// A membership from five columns, `first` and those behind it.
pub(crate) fn membership(row: &Row, first: usize) -> StoreResult<Membership> {
    let role = match row.get::<_, i16>(first) {
        0 => Role::Member,
        1 => Role::Admin,
        2 => Role::Owner,
        other => return Err(damaged(format_args!("a member's role is {other}"))),
    };
    let mute = match row.get::<_, i64>(first + 4) {
        0 => MuteState::Off,
        MUTED_FOR_GOOD => MuteState::Forever,
        end => MuteState::Until(end as u64),
    };
    let [joined_at, joined_seq, read_seq] = [1, 2, 3].map(|column| number(row, first + column));
    Ok(Membership { role, joined_at, joined_seq, read_seq, mute })
}

pub(crate) const MUTED_FOR_GOOD: i64 = -1;

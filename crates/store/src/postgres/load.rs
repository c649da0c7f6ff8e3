//! Loads the rows that a batch touches, in one round trip. The locks are taken in their one order when the batch is written:
//! [`CheckedRead::check`] reads each row again there, under its lock, and fails if another batch has changed one.

use super::{
    checked_read::{CheckedRead, Loaded, Locking, OwnedParam, ReadStatement, RowReader, checked_read},
    clock::recently_left,
    connection::{Call, Connection, bigint, number},
    entries::{ids_sql, kept_by},
    failure::Failure,
    staged_batch::LoadedState,
};
use crate::rows::{decode_content, decode_conversation, decode_user};
use rustc_hash::FxHashSet;
use std::collections::BTreeSet;
use tidings_domain::{
    chat_rows, decide::chat_row_keys, erasure::EraseStep, model::*, request_digest::RequestDigest, store::*,
};
use tokio_postgres::Row;

/// The keys of the rows that a batch's proposals read or write.
#[derive(Default)]
pub(crate) struct TouchedKeys<'a> {
    users: BTreeSet<UserNo>,
    pub user_ids: BTreeSet<&'a str>,
    heads: BTreeSet<ConversationNo>,
    cards: BTreeSet<ConversationNo>,
    pub conversation_ids: BTreeSet<&'a str>,
    /// Ids of users and conversations that the batch frees, and may give to new ones.
    pub freed: (u64, u64),
    memberships: BTreeSet<(ConversationNo, UserNo)>,
    sends: FxHashSet<(ConversationNo, UserNo, &'a str)>,
    /// The senders of each conversation.
    authors: BTreeSet<(ConversationNo, UserNo)>,
    /// Entries that are changed.
    entries: BTreeSet<(ConversationNo, u64)>,
    chat_rows: BTreeSet<Vec<u8>>,
    /// Conversations whose members are told of reactions.
    untold: BTreeSet<ConversationNo>,
    /// Conversations that members leave in this batch.
    left: FxHashSet<ConversationNo>,
    /// Users whom proposals name by number as members to be.
    named_users: BTreeSet<UserNo>,
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
                self.entries.extend(entry.reply_to().map(|seq| (*conversation, seq)));
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
                self.named_users.extend(new.members.iter().map(|(user, _)| *user));
            }
            Proposal::OpenDirect { new, entry } => {
                self.conversation_ids.insert(&new.id);
                self.named_users.extend(new.members.iter().map(|(user, _)| *user));
                // A new conversation has no first results, but others may have taken the id.
                let send = entry.idempotency_key().map(|(author, id)| (ConversationNo(0), author, id));
                self.sends.extend(send);
            }
            Proposal::UpdateConversation { conversation, notice, .. } => {
                self.heads.insert(*conversation);
                self.cards.insert(*conversation);
                notice.iter().for_each(|notice| self.entry(*conversation, notice));
            }
            Proposal::ChangeMembers { conversation, add, remove, heir, act, notice, .. } => {
                self.heads.insert(*conversation);
                self.cards.insert(*conversation);
                self.named_users.extend(add.iter().map(|(user, _)| *user));
                if !remove.is_empty() {
                    self.left.insert(*conversation);
                }
                let users = add.iter().map(|(user, _)| *user).chain(remove.iter().copied()).chain(*heir);
                let users = users.chain(act.iter().filter_map(|act| act.user()));
                // How many requests of a user wait is changed under the lock of the user.
                self.users.extend(act.iter().filter_map(|act| act.asker()));
                self.memberships.extend(users.map(|user| (*conversation, user)));
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
            Proposal::Report { report, .. } | Proposal::SetReport { report, .. } => {
                // A report's row is changed under the lock of its reporter.
                self.users.insert(report.reporter);
            }
            Proposal::SetDoNotDisturb { user, .. }
            | Proposal::Revoke { user, .. }
            | Proposal::SetSuspension { user, .. }
            | Proposal::SetBlock { user, .. }
            | Proposal::SetReceipts { user, .. }
            | Proposal::SetNotificationPreferences { user, .. } => drop(self.users.insert(*user)),
            Proposal::Erase(step) => match &**step {
                EraseStep::Begin { user, .. } => drop(self.users.insert(*user)),
                EraseStep::Profile { person, .. } => {
                    self.freed.0 += 1;
                    self.users.insert(person.no);
                }
                EraseStep::Entries { conversation, seqs, .. } => {
                    self.heads.insert(*conversation);
                    self.entries.extend(seqs.iter().map(|seq| (*conversation, *seq)));
                }
                EraseStep::Rename { conversation, .. } => {
                    self.freed.1 += 1;
                    self.heads.insert(*conversation);
                    self.cards.insert(*conversation);
                }
                EraseStep::Blank { conversation, seqs } => {
                    self.heads.insert(*conversation);
                    self.entries.extend(seqs.iter().map(|seq| (*conversation, *seq)));
                }
                EraseStep::Details { conversation, .. } => {
                    self.freed.1 += 1;
                    self.heads.insert(conversation.no);
                    self.cards.insert(conversation.no);
                }
                // A row that changes meanwhile has the batch decided anew.
                EraseStep::Rows { .. } | EraseStep::RowsIn { .. } | EraseStep::BeginConversation { .. } => {}
            },
            Proposal::SetLegalHold { conversation, .. } => drop(self.cards.insert(*conversation)),
            // A user's chat rows are changed under the lock of the user: another node may change the same ones.
            Proposal::SetStored(told) => self.users.extend(told.iter().map(|(user, _)| *user)),
            Proposal::SetPushToken { user, owner, .. } => {
                self.users.insert(*user);
                self.users.extend(owner.iter().map(|(user, _)| *user));
            }
            Proposal::SetLastSeen(_)
            | Proposal::SetNotificationCounts(_)
            | Proposal::SetApiKeyUse(_)
            | Proposal::AddFeedNotes(_)
            | Proposal::Kick { .. }
            | Proposal::AdvanceOutbox { .. }
            | Proposal::DeleteStoredNotifications { .. } => {}
        }
    }

    fn entry(&mut self, conversation: ConversationNo, entry: &'a NewEntry) {
        self.heads.insert(conversation);
        self.sends.extend(entry.idempotency_key().map(|(author, id)| (conversation, author, id)));
        let previous = entry.request.import.as_ref().and_then(|import| import.previous.as_deref());
        self.sends.extend(previous.map(|id| (conversation, UserNo::NOBODY, id)));
    }

    /// Loads the rows. With `Locking::First` it begins the transaction, and takes the locks in it.
    pub(crate) async fn load(&self, connection: &Connection, locking: Locking) -> Result<Loaded<'a>, Failure> {
        let mut loaded = Loaded::default();
        let mut reads = Vec::new();
        let mut readers: Vec<RowReader> = Vec::new();
        let mut read = |statement, params: Vec<OwnedParam<'a>>, reader| {
            reads.push(CheckedRead::new(statement, params));
            readers.push(reader);
        };
        let user_nos = column(self.users.iter().map(|user| user.0));
        let user_ids: Vec<&'a str> = self.user_ids.iter().copied().collect();
        if !user_nos.is_empty() || !user_ids.is_empty() {
            read(&USERS, vec![Box::new(user_nos), Box::new(user_ids)], read_user as RowReader);
        }
        if !self.heads.is_empty() {
            read(&HEADS, vec![Box::new(column(self.heads.iter().map(|head| head.0)))], read_head);
        }
        if !self.cards.is_empty() || !self.conversation_ids.is_empty() {
            let cards = column(self.cards.iter().map(|conversation| conversation.0));
            let ids: Vec<&'a str> = self.conversation_ids.iter().copied().collect();
            read(&CARDS, vec![Box::new(cards), Box::new(ids)], read_card);
        }
        if !self.memberships.is_empty() {
            let (of, members) = user_columns(self.memberships.iter());
            read(&MEMBERSHIPS, vec![Box::new(of), Box::new(members)], read_membership);
        }
        if !self.sends.is_empty() {
            let of = column(self.sends.iter().map(|(conversation, ..)| conversation.0));
            let senders: Vec<i64> = self.sends.iter().map(|(of, author, _)| kept_by(*of, *author)).collect();
            let ids: Vec<&'a str> = self.sends.iter().map(|(.., id)| *id).collect();
            read(&SENDS, vec![Box::new(of), Box::new(senders), Box::new(ids)], read_send);
        }
        if !self.entries.is_empty() {
            let (of, seqs) = columns(self.entries.iter());
            read(&ENTRIES, vec![Box::new(of), Box::new(seqs)], read_stored_entry);
        }
        if !self.chat_rows.is_empty() {
            let keys: Vec<Vec<u8>> = self.chat_rows.iter().cloned().collect();
            read(&CHAT_ROWS, vec![Box::new(keys)], |state, row| {
                state.chat_rows.insert(row.get(0), row.get(1));
                Ok(())
            });
        }
        if !self.named_users.is_empty() {
            // Users are never removed, so that this read need not be looked at again.
            let nos = column(self.named_users.iter().map(|user| user.0));
            read(&NAMED_USERS, vec![Box::new(nos)], |state, row| {
                state.named_users.insert(UserNo(number(row, 0)));
                Ok(())
            });
        }
        let mut calls: Vec<Call<'_>> = match locking {
            Locking::First => vec![Call::new("BEGIN", &[])],
            Locking::AtCommit => vec![],
        };
        let first = calls.len();
        calls.extend(reads.iter().map(|read| read.call(locking)));
        let answers = connection.pipeline(&calls).await?;
        drop(calls);
        for ((rows, reader), read) in answers.iter().skip(first).zip(readers).zip(&mut reads) {
            read.take(rows, &mut loaded.state, reader)?;
        }
        loaded.reads = reads;
        self.load_non_members(connection, &mut loaded).await?;
        self.load_mentioned_entries(connection, &mut loaded).await?;
        Ok(loaded)
    }

    /// Loads the entries that loaded rows name: those by which the loaded messages were edited, whose bodies a change may
    /// remove, and those whose reactions are yet to be told.
    async fn load_mentioned_entries(&self, connection: &Connection, loaded: &mut Loaded<'a>) -> Result<(), Failure> {
        let state = &loaded.state;
        let damaged = |error: StoreError| Failure::Incompatible(error.to_string());
        let mut named = BTreeSet::new();
        for ((conversation, _), (_, entry)) in &state.entries {
            named.extend(entry.content.message_details().edits.iter().map(|seq| (*conversation, *seq)));
        }
        for conversation in &self.untold {
            let row = state.chat_rows.get(&chat_rows::untold_key(*conversation));
            let untold: Vec<u64> = chat_rows::decode(row.map(Vec::as_slice)).map_err(damaged)?;
            named.extend(untold.iter().map(|seq| (*conversation, *seq)));
        }
        named.retain(|key| !state.entries.contains_key(key));
        if named.is_empty() {
            return Ok(());
        }
        let (of, seqs) = columns(named.iter());
        loaded.read_more(connection, &ENTRIES, vec![Box::new(of), Box::new(seqs)], read_stored_entry).await
    }

    /// Loads which senders are not members, for conversations that a member has just left or leaves in this batch. Other
    /// batches send no statement for it.
    async fn load_non_members(&self, connection: &Connection, loaded: &mut Loaded<'a>) -> Result<(), Failure> {
        let recently_left = &loaded.state.recently_left;
        let left = |conversation| recently_left.contains(conversation) || self.left.contains(conversation);
        let (of, who) = user_columns(self.authors.iter().filter(|(conversation, _)| left(conversation)));
        if of.is_empty() {
            return Ok(());
        }
        loaded
            .read_more(connection, &NON_MEMBERS, vec![Box::new(of), Box::new(who)], |state, row| {
                state.non_members.insert((ConversationNo(number(row, 0)), UserNo(number(row, 1))));
                Ok(())
            })
            .await
    }
}

fn columns<'a>(entries: impl Iterator<Item = &'a (ConversationNo, u64)>) -> (Vec<i64>, Vec<i64>) {
    entries.map(|(conversation, seq)| (bigint(conversation.0), bigint(*seq))).unzip()
}

fn user_columns<'a>(keys: impl Iterator<Item = &'a (ConversationNo, UserNo)>) -> (Vec<i64>, Vec<i64>) {
    keys.map(|(conversation, user)| (bigint(conversation.0), bigint(user.0))).unzip()
}

fn column(numbers: impl Iterator<Item = u64>) -> Vec<i64> {
    numbers.map(bigint).collect()
}

/// Numbers first: a condition on either of two columns, in the order of one, is answered by reading the whole table.
const USERS: ReadStatement = checked_read!(
    "$3",
    " FOR UPDATE",
    "SELECT no, card FROM users WHERE no = ANY (ARRAY( \
       SELECT unnest($1::bigint[]) UNION ALL \
       SELECT i.no FROM users i WHERE i.id = ANY($2))) ORDER BY no"
);
const HEADS: ReadStatement = checked_read!(
    "$2",
    " FOR UPDATE OF h",
    "SELECT h.conversation, h.last_seq, h.last_at, h.last_position, ",
    recently_left!(),
    " AS recently_left FROM heads h WHERE h.conversation = ANY($1) ORDER BY h.conversation"
);
const NON_MEMBERS: ReadStatement = checked_read!(
    "$3",
    "",
    "SELECT k.conversation, k.user_no FROM unnest($1::bigint[], $2::bigint[]) AS k (conversation, user_no) \
     WHERE NOT EXISTS (SELECT FROM members m WHERE m.conversation = k.conversation AND m.user_no = k.user_no)"
);
const CARDS: ReadStatement =
    checked_read!("$3", "", "SELECT no, card FROM conversations WHERE no = ANY($1) OR id = ANY($2)");
const MEMBERSHIPS: ReadStatement = checked_read!(
    "$3",
    "",
    "SELECT m.conversation, m.user_no, m.role, m.joined_at, m.joined_seq, m.read_seq, m.muted_until \
     FROM unnest($1::bigint[], $2::bigint[]) AS k (conversation, user_no) \
     JOIN members m ON m.conversation = k.conversation AND m.user_no = k.user_no"
);
/// First results under the ids of sends and their qualified ids, each with whether its entry is still there: only then it counts.
const SENDS: ReadStatement = checked_read!(
    "$4",
    "",
    "SELECT d.sender, k.client_msg_id, d.conversation, d.seq, d.at, d.position, \
     EXISTS (SELECT FROM chapters c WHERE c.conversation = d.conversation AND c.first_seq <= d.seq) AS is_there, \
     d.request, d.client_msg_id AS kept_as, k.conversation AS sent_to \
     FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS k (conversation, sender, client_msg_id) \
     CROSS JOIN LATERAL ",
    ids_sql!("k"),
    " CROSS JOIN LATERAL (SELECT * FROM dedupe WHERE sender = k.sender AND client_msg_id = i.id OFFSET 0) d"
);
/// Entries by conversation and sequence, under the locks of their conversations' heads.
const ENTRIES: ReadStatement = checked_read!(
    "$3",
    "",
    "SELECT k.conversation, k.seq, e.part, e.position, e.at, e.content \
     FROM unnest($1::bigint[], $2::bigint[]) AS k (conversation, seq) \
     JOIN LATERAL (SELECT part FROM chapters WHERE conversation = k.conversation AND first_seq <= k.seq \
       ORDER BY first_seq DESC LIMIT 1) c ON true \
     JOIN entries e ON e.part = c.part AND e.conversation = k.conversation AND e.seq = k.seq"
);
const CHAT_ROWS: ReadStatement = checked_read!("$2", "", "SELECT key, value FROM chat_rows WHERE key = ANY($1)");
const NAMED_USERS: ReadStatement = {
    let sql = "SELECT no FROM users WHERE no = ANY($1)";
    ReadStatement { load: sql, lock_and_load: sql, check: None }
};

fn read_stored_entry(state: &mut LoadedState, row: &Row) -> StoreResult<()> {
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
    let (kept_by, client_msg_id) = (row.get::<_, i64>(0), row.get::<_, String>(1));
    let conversation = ConversationNo(number(row, 2));
    let (seq, at, position) = (number(row, 3), number(row, 4), number(row, 5));
    let kept_as: String = row.get(8);
    if row.get(6) {
        let appended = Appended { conversation, seq, at, position, duplicate: true };
        let request = row.get::<_, Option<&[u8]>>(7).and_then(RequestDigest::from_stored);
        let author = UserNo(u64::try_from(kept_by).unwrap_or(UserNo::NOBODY.0));
        if kept_as == client_msg_id {
            state.taken_ids.insert((kept_by, kept_as));
        }
        state.first_results.insert((conversation, author, client_msg_id), FirstResult { appended, request });
    } else {
        state.expired_results.push((kept_by, kept_as, position))
    }
    Ok(())
}

/// A membership from five columns, `first` and those behind it.
pub(crate) fn membership(row: &Row, first: usize) -> StoreResult<Membership> {
    let (role, restricted) = Membership::role_of_stored(u8::try_from(row.get::<_, i16>(first)).unwrap_or_default());
    let mute = match row.get::<_, i64>(first + 4) {
        0 => MuteState::Off,
        MUTED_FOR_GOOD => MuteState::Forever,
        end => MuteState::Until(end as u64),
    };
    let [joined_at, joined_seq, read_seq] = [1, 2, 3].map(|column| number(row, first + column));
    Ok(Membership { role, joined_at, joined_seq, read_seq, mute, restricted })
}

pub(crate) const MUTED_FOR_GOOD: i64 = -1;

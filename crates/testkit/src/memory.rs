//! The memory store: a `Store` in plain maps, simple enough to be obviously right, and not durable. Tests compare the real
//! stores with it as their model, and use it where they need no disk.

mod commit_log;
mod desks;
mod erasure;
mod joining;
mod message_changes;
mod preferences;
mod push_tokens;
mod reactions;
mod receipts;
mod reports;

use commit_log::MemoryLog;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tidings_domain::{
    commit_log::{CommitLog, LogPage},
    joining::{Invite, JoinRequest},
    model::*,
    push_store::*,
    reports::{ReportChange, StoredReport},
    restrictions::*,
    store::*,
    stored_id::StoredId,
};
use tidings_protocol::http::ReportState;

#[derive(Default)]
struct State {
    users: Vec<User>,
    user_nos: HashMap<String, UserNo>,
    conversations: Vec<Conversation>,
    conversation_nos: HashMap<String, ConversationNo>,
    members: BTreeMap<(ConversationNo, UserNo), Membership>,
    /// Conversations that a member has left.
    left: BTreeSet<ConversationNo>,
    memberships: BTreeSet<(UserNo, ConversationNo)>,
    timelines: HashMap<ConversationNo, BTreeMap<u64, StoredEntry>>,
    /// The results of first sends.
    first_results: HashMap<Send, FirstResult>,
    outbox: BTreeMap<Position, OutboxItem>,
    last_seen: HashMap<UserNo, u64>,
    outbox_done: Position,
    notifications: BTreeMap<NotificationKey, StoredNotification>,
    position: Position,
    push: BTreeMap<PushKey, PushRow>,
    rows: BTreeMap<(RowSpace, Vec<u8>), Vec<u8>>,
    /// Who gave which reactions to each message, the earliest first.
    reactions: BTreeMap<(ConversationNo, u64), Vec<(Sender, String)>>,
    /// When each conversation was last notified of reactions, and of which messages it is yet to be notified.
    untold: BTreeMap<ConversationNo, (u64, Vec<u64>)>,
    pins: BTreeMap<ConversationNo, Vec<u64>>,
    desks: BTreeMap<ConversationNo, desks::AccountState>,
    /// The agents to whom conversations are assigned.
    assigned: BTreeMap<ConversationNo, Sender>,
    /// The conversations that are in the lists of an account.
    listed: BTreeMap<ConversationNo, ConversationNo>,
    invites: BTreeMap<ConversationNo, Vec<Invite>>,
    requests: BTreeMap<(ConversationNo, UserNo), JoinRequest>,
    /// Several engines share the store: one may not know yet that a member has left, as another one has it.
    is_shared: bool,
    /// In a store that several engines share, or that keeps events.
    log: Option<MemoryLog>,
}

/// The index of a number. Numbers start at 1: the index of 0 is out of bounds.
fn index(no: u64) -> usize {
    (no as usize).wrapping_sub(1)
}

/// Numbers as they are in keys.
fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// Who is added, who is removed, who owns the conversation, and what else becomes of one user.
type MembersProposal<'p> = (&'p [(UserNo, Role)], &'p [UserNo], Option<UserNo>, Option<&'p MemberAct>);

/// What makes a send safe to repeat: where it is, who wrote it, which of an account's messages is an agent, and the writer's id of
/// it. Messages of the conversation itself have an id for all of them.
type Send = (ConversationNo, Option<UserNo>, String);

fn send_of(conversation: ConversationNo, entry: &NewEntry) -> Option<Send> {
    let writer = entry.desk().and_then(|desk| desk.agent.as_ref()).or(entry.sender.as_ref());
    // An imported message is the conversation's, whoever sent it.
    let writer = writer.filter(|_| !entry.is_imported());
    Some((conversation, writer.map(|writer| writer.no), entry.client_msg_id.clone()?))
}

/// A store in memory.
#[derive(Default)]
pub struct MemoryStore(Mutex<State>);

impl MemoryStore {
    /// A store for several engines: its commit order has changes too, and can be read back.
    pub fn shared() -> Self {
        MemoryStore(Mutex::new(State { is_shared: true, log: Some(MemoryLog::default()), ..State::default() }))
    }

    /// A store for one engine whose commit order can be read back all the same, for the feed of events.
    pub fn with_events() -> Self {
        MemoryStore(Mutex::new(State { log: Some(MemoryLog::default()), ..State::default() }))
    }

    /// The same, as a version without gates has left it: all gates are closed.
    pub fn shared_with_closed_gates() -> Self {
        let store = MemoryStore::shared();
        store.0.lock().log.iter_mut().for_each(|log| log.open_gates.clear());
        store
    }

    /// Gives the store a clock of its own, which stands still until it is set again.
    pub fn set_clock(&self, now_ms: u64) {
        self.0.lock().log.get_or_insert_default().now_ms = Some(now_ms);
    }
}

impl State {
    fn head(&self, no: ConversationNo) -> Head {
        let Some(timeline) = self.timelines.get(&no) else { return Head { first_seq: 1, ..Head::default() } };
        match (timeline.first_key_value(), timeline.last_key_value()) {
            (Some((first, _)), Some((_, last))) => {
                Head { last_seq: last.seq, last_at: last.at, last_position: last.position, first_seq: *first }
            }
            _ => Head { first_seq: 1, ..Head::default() },
        }
    }

    /// Appends a message. A shared store refuses a sender who has left, unless the message is stored already.
    fn send(&mut self, conversation: ConversationNo, entry: &NewEntry, now_ms: u64) -> Result<Appended, Rejection> {
        if let Some(first) = self.first_result(conversation, entry)? {
            return Ok(first);
        }
        let sender = entry.sender.as_ref().map(|sender| sender.no);
        let has_left =
            |sender| self.left.contains(&conversation) && !self.members.contains_key(&(conversation, sender));
        if self.is_of_stranger(entry) {
            return Err(Rejection::NotAMember);
        }
        if let Some(import) = &entry.request.import {
            let is_stored = |id: &String| self.first_results.contains_key(&(conversation, None, id.clone()));
            if !import.previous.as_ref().is_none_or(is_stored) {
                return Err(Rejection::PreviousNotStored);
            }
            let appended = self.append(conversation, entry, now_ms)?;
            for (user, keys) in &import.reactions {
                let id =
                    self.users.iter().find(|known| known.no == *user).map_or_else(String::new, |user| user.id.clone());
                let given = self.reactions.entry((conversation, appended.seq)).or_default();
                given.extend(keys.iter().map(|key| (Sender { no: *user, id: id.clone() }, key.clone())));
                let key = [b"r".to_vec(), numbers(&[conversation.0, appended.seq, user.0])].concat();
                self.rows.insert((RowSpace::Chat, key), serde_json::to_vec(keys).unwrap_or_default());
            }
            return Ok(appended);
        }
        match sender {
            Some(sender) if self.is_shared && has_left(sender) => Err(Rejection::NotAMember),
            Some(sender) => {
                if let Some(interval_ms) = entry.request.slow_mode_ms {
                    if index(conversation.0) >= self.conversations.len() {
                        return Err(Rejection::NoSuchConversation);
                    }
                    let key = (RowSpace::Chat, last_send_key(conversation, sender));
                    let last =
                        self.rows.get(&key).and_then(|row| std::str::from_utf8(row).ok()?.parse().ok()).unwrap_or(0);
                    if now_ms.abs_diff(last) < interval_ms {
                        return Err(Rejection::TooSoon { retry_after_ms: last + interval_ms - now_ms });
                    }
                    self.rows.insert(key, now_ms.to_string().into_bytes());
                }
                self.append(conversation, entry, now_ms)
            }
            None => self.append(conversation, entry, now_ms),
        }
    }

    fn append(&mut self, conversation: ConversationNo, entry: &NewEntry, now_ms: u64) -> Result<Appended, Rejection> {
        if let Some(first) = self.first_result(conversation, entry)? {
            return Ok(first);
        }
        let send = send_of(conversation, entry);
        if index(conversation.0) >= self.conversations.len() {
            return Err(Rejection::NoSuchConversation);
        }
        let head = self.head(conversation);
        self.position += 1;
        let (seq, at, position) = (head.last_seq + 1, entry.request.time(now_ms).max(head.last_at), self.position);
        for id in entry.mentions.iter().filter(|_| entry.kind == EntryKind::Message && !entry.is_hidden()) {
            let (at, seq) = (u64::MAX - at, u64::MAX - seq);
            let key = match &**id {
                "@all" => [b"A".to_vec(), numbers(&[conversation.0, at, seq])].concat(),
                id => [b"m", id.as_bytes(), &[0], &numbers(&[at, conversation.0, seq])].concat(),
            };
            self.rows.insert((RowSpace::Chat, key), Vec::new());
        }
        if let Some(answered) = entry.reply_to() {
            let key = [b"y".to_vec(), numbers(&[conversation.0, answered, seq])].concat();
            self.rows.insert((RowSpace::Chat, key), Vec::new());
        }
        let content = NewEntry { request: EntryRequest::default(), ..entry.clone() };
        let stored = StoredEntry { seq, position, at, content };
        if let StreamState::Open { node } = entry.message_details().stream {
            let row = (RowSpace::Chat, message_changes::open_stream_key(conversation, seq));
            self.rows.insert(row, node.to_be_bytes().to_vec());
        }
        if let Some(Expiry { after_s, after_read_s }) = entry.message_details().expires {
            let since = entry.details.as_deref().and_then(|details| details.imported_at).unwrap_or(at);
            let last_time = since + u64::from(after_s) * 1_000;
            let key = |of: &[u64]| (RowSpace::Chat, [b"Y".to_vec(), numbers(of)].concat());
            self.rows.insert(key(&[0, last_time, conversation.0, seq]), after_read_s.map_or(vec![], |_| b"u".to_vec()));
            if let Some(after_read_s) = after_read_s {
                let (sender, ms) = (entry.sender.as_ref().map_or(0, |sender| sender.no.0), after_read_s * 1_000);
                let waits = format!(r#"{{"last_time":{last_time},"after_read_ms":{ms},"sender":{sender}}}"#);
                self.rows.insert(key(&[1, conversation.0, seq]), waits.into_bytes());
                self.rows.insert(key(&[0, since, conversation.0, seq]), b"w".to_vec());
            }
        }
        self.timelines.entry(conversation).or_default().insert(seq, stored);
        if entry.may_be_pushed() {
            self.outbox.insert(position, OutboxItem { position, conversation, seq });
        }
        if let Some(EntryDesk { account, for_customer, .. }) = entry.desk() {
            self.list_for_account(*account, conversation, *for_customer);
        }
        let appended = Appended { conversation, seq, at, position, duplicate: false };
        if let Some(send) = send {
            let appended = Appended { duplicate: true, ..appended };
            self.first_results.insert(send, FirstResult { appended, request: entry.request.digest });
        }
        Ok(appended)
    }

    /// Appends an answer to a message of the conversation.
    fn reply(
        &mut self,
        conversation: ConversationNo,
        answered: u64,
        entry: &NewEntry,
        now_ms: u64,
    ) -> Result<Outcome, Rejection> {
        let mut preview = None;
        if self.first_result(conversation, entry)?.is_none() {
            if index(conversation.0) >= self.conversations.len() {
                return Err(Rejection::NoSuchConversation);
            }
            preview = Some(ReplyPreview::of(self.message(conversation, answered)?));
        }
        let appended = self.send(conversation, entry, now_ms)?;
        Ok(Outcome::Replied { appended, preview })
    }

    /// The message with this `seq`.
    fn message(&self, conversation: ConversationNo, seq: u64) -> Result<&StoredEntry, Rejection> {
        let found = self.timelines.get(&conversation).and_then(|timeline| timeline.get(&seq));
        match found.ok_or(Rejection::NoSuchEntry(seq))? {
            message if message.content.kind == EntryKind::Message => Ok(message),
            _ => Err(Rejection::NotAMessage(seq)),
        }
    }

    /// Rejects a change whose notice has the client message id of another request.
    fn check_notice(&self, conversation: ConversationNo, notice: Option<&NewEntry>) -> Result<(), Rejection> {
        notice.map_or(Ok(None), |notice| self.first_result(conversation, notice)).map(drop)
    }

    /// The place of an entry that was appended before by the same request.
    fn first_result(&self, conversation: ConversationNo, entry: &NewEntry) -> Result<Option<Appended>, Rejection> {
        let first = send_of(conversation, entry).and_then(|send| self.first_results.get(&send));
        match (first, &entry.request) {
            (Some(FirstResult { request: Some(first), .. }), EntryRequest { digest: Some(again), .. })
                if first != again =>
            {
                Err(Rejection::ClientMsgIdReused)
            }
            (Some(first), _) => Ok(Some(first.appended)),
            (None, EntryRequest { refusal: Some(refusal), .. }) => Err(Rejection::Refused(refusal.clone())),
            (None, _) => Ok(None),
        }
    }

    fn restrictions(&self, conversation: ConversationNo, user: UserNo) -> Restrictions {
        let row = self.rows.get(&(RowSpace::Chat, restrictions_key(conversation, user)));
        Restrictions::decode(row.map(Vec::as_slice)).unwrap_or_default()
    }

    fn put_member(&mut self, conversation: ConversationNo, user: UserNo, role: Role, now_ms: u64) {
        let joined_seq = self.head(conversation).last_seq;
        let mute = self.kept_mute(conversation, user);
        let restricted = self.restrictions(conversation, user) != Restrictions::default();
        let membership = Membership { role, joined_at: now_ms, joined_seq, read_seq: joined_seq, mute, restricted };
        self.members.insert((conversation, user), membership);
        self.memberships.insert((user, conversation));
    }

    fn propose(&mut self, proposal: &Proposal, now_ms: u64) -> Result<Outcome, Rejection> {
        Ok(match proposal {
            Proposal::Append { conversation, entry } => match entry.reply_to() {
                Some(answered) => self.reply(*conversation, answered, entry, now_ms)?,
                None => Outcome::Appended(self.send(*conversation, entry, now_ms)?),
            },
            Proposal::OpenDirect { new, entry } => self.open_direct(new, entry, now_ms)?,
            Proposal::React { conversation, target, user, key, add, keys_max, interval_ms } => {
                let reaction = reactions::Reaction { target: *target, user, key, add: *add };
                self.react(*conversation, reaction, *keys_max, *interval_ms, now_ms)?
            }
            Proposal::TellReactions { conversation } => self.tell_reactions(*conversation, now_ms)?,
            Proposal::ChangeMessage { conversation, target, change, entry } => {
                self.change_message(*conversation, *target, change, entry, now_ms)?
            }
            Proposal::CheckpointStream { conversation, target, body } => {
                self.checkpoint_stream(*conversation, *target, body)?
            }
            Proposal::PutUsers(patches) => self.put_users(patches, now_ms),
            Proposal::CreateConversation(new) => self.create(new, now_ms)?,
            Proposal::UpdateConversation { conversation, name, avatar, attributes, settings, notice } => {
                if index(conversation.0) >= self.conversations.len() {
                    return Err(Rejection::NoSuchConversation);
                }
                self.check_notice(*conversation, notice.as_ref())?;
                let details = &mut self.conversations[index(conversation.0)];
                details.name = name.clone().or(details.name.take());
                details.avatar = avatar.clone().or(details.avatar.take());
                details.attributes = attributes.clone().or(details.attributes.take());
                if settings.receipts.is_some() {
                    details.settings.receipts = settings.receipts;
                }
                if settings.history.is_some() {
                    details.settings.history = settings.history;
                }
                if settings.mention_all.is_some() {
                    details.settings.mention_all = settings.mention_all;
                }
                if settings.blocks.is_some() {
                    details.settings.blocks = settings.blocks;
                }
                if settings.posting.is_some() {
                    details.settings.posting = settings.posting;
                }
                if settings.slow_mode_s.is_some() {
                    details.settings.slow_mode_s = settings.slow_mode_s;
                }
                if settings.join_requests.is_some() {
                    details.settings.join_requests = settings.join_requests;
                }
                if let Some(own) = settings.retention {
                    details.settings.retention = Some(own);
                    let row = (RowSpace::Chat, [b"Y".to_vec(), numbers(&[3, conversation.0])].concat());
                    match own == OwnRetention::default() {
                        true => drop(self.rows.remove(&row)),
                        false => drop(self.rows.insert(row, Vec::new())),
                    }
                }
                if settings.expires.is_some() {
                    details.settings.expires = settings.expires;
                }
                if settings.importing.is_some() {
                    details.settings.importing = settings.importing;
                }
                if settings.deleted.is_some() {
                    details.settings.deleted = settings.deleted;
                }
                if settings.reactions.is_some() {
                    details.settings.reactions = settings.reactions.clone();
                }
                match notice {
                    Some(notice) => Outcome::Appended(self.append(*conversation, notice, now_ms)?),
                    None => Outcome::Done,
                }
            }
            Proposal::ChangeMembers { conversation, add, remove, heir, act, members_max, notice } => {
                let change = (&**add, &**remove, *heir, act.as_deref());
                self.change_members(*conversation, change, *members_max, notice.as_ref(), now_ms)?
            }
            Proposal::SetDesk { account, id, patch, agents_max, adopts_user } => {
                self.set_desk(*account, id, patch, *agents_max, *adopts_user, now_ms)?
            }
            Proposal::Assign { conversation, account, to, expected, entry } => {
                self.assign(*conversation, *account, to.as_ref(), *expected, entry, now_ms)?
            }
            Proposal::MarkRead { conversation, user, seq } => {
                let last = self.head(*conversation).last_seq;
                let membership = self.members.get_mut(&(*conversation, *user)).ok_or(Rejection::NotAMember)?;
                let seq = membership.read_seq.max((*seq).min(last));
                let before = std::mem::replace(&mut membership.read_seq, seq);
                Outcome::Read { seq, before }
            }
            Proposal::SetMute { conversation, user, mute } => {
                self.members.get_mut(&(*conversation, *user)).ok_or(Rejection::NotAMember)?.mute = *mute;
                Outcome::Done
            }
            Proposal::SetDoNotDisturb { user, window } => {
                let found = self.users.get_mut(index(user.0)).ok_or(Rejection::NoSuchUser(*user))?;
                found.change_extras(|extras| extras.do_not_disturb = window.clone().map(Box::new));
                Outcome::Done
            }
            Proposal::Revoke { user, before, .. } => {
                let found = self.users.get_mut(index(user.0)).ok_or(Rejection::NoSuchUser(*user))?;
                found.revoked_at = found.revoked_at.max(*before);
                Outcome::Done
            }
            Proposal::SetPreferences { conversation, user, patch } => {
                self.set_preferences(*conversation, *user, patch, now_ms)?
            }
            Proposal::SetStored(told) => self.set_stored(told),
            Proposal::SetReceipts { user, send } => self.set_receipts(*user, *send)?,
            Proposal::SetSuspension { user, suspended, until, reason, by } => {
                let suspension =
                    suspended.then(|| Suspension { until: *until, reason: reason.clone(), by: by.clone(), at: now_ms });
                self.set_suspension(*user, suspension)?
            }
            Proposal::Report { report, reason, text, reported, open_max } => {
                let new = StoredReport {
                    reason: *reason,
                    text: text.clone(),
                    reported: *reported,
                    at: now_ms,
                    state: ReportState::Open,
                    changed: None,
                };
                self.report(*report, &new, *open_max)?
            }
            Proposal::SetReport { report, expected, state, note, by } => {
                let changed = ReportChange { by: by.clone(), note: note.clone(), at: now_ms };
                self.set_report(*report, *expected, *state, changed)?
            }
            Proposal::SetBlock { user, other, blocked, blocks_max } => {
                self.set_block(*user, *other, *blocked, *blocks_max, now_ms)?
            }
            Proposal::SetNotificationPreferences { user, preferences } => {
                self.set_notification_preferences(*user, preferences)?
            }
            Proposal::SetPushToken { user, device, token, former, owner, additions, .. } => {
                let registration = push_tokens::Registration {
                    user: *user,
                    device,
                    token: token.as_ref(),
                    former: *former,
                    owner: owner.as_ref(),
                    additions: *additions,
                };
                self.set_push_token(registration, now_ms)?
            }
            Proposal::SetLastSeen(seen) => {
                self.last_seen.extend(seen.iter().copied());
                Outcome::Done
            }
            Proposal::SetNotificationCounts(counts) => {
                for (hour, boot, channel, row) in counts {
                    let key = tidings_domain::chat_rows::notification_counts_key(*hour, *boot, *channel);
                    self.rows.insert((RowSpace::Chat, key), row.clone());
                }
                Outcome::Done
            }
            Proposal::SetApiKeyUse(uses) => {
                for (key, at) in uses {
                    let key = tidings_domain::chat_rows::api_key_use_key(*key);
                    self.rows.insert((RowSpace::Chat, key), tidings_domain::chat_rows::encode(at));
                }
                Outcome::Done
            }
            Proposal::Kick { .. } | Proposal::AddFeedNotes(_) => Outcome::Done,
            Proposal::Erase(step) => self.erase(step, now_ms)?,
            Proposal::SetLegalHold { conversation, hold } => {
                if index(conversation.0) >= self.conversations.len() {
                    return Err(Rejection::NoSuchConversation);
                }
                let key = (RowSpace::Chat, tidings_domain::erasure::legal_hold_key(*conversation));
                match hold {
                    Some(hold) => drop(self.rows.insert(key, tidings_domain::chat_rows::encode(hold))),
                    None => drop(self.rows.remove(&key)),
                }
                Outcome::Done
            }
            Proposal::AdvanceOutbox { through, dead } => {
                self.outbox_done = self.outbox_done.max(*through);
                self.outbox = self.outbox.split_off(&(self.outbox_done + 1));
                self.notifications.extend(dead.iter().map(|notification| (notification.key, notification.clone())));
                Outcome::Done
            }
            Proposal::DeleteStoredNotifications { keys } => {
                keys.iter().for_each(|key| drop(self.notifications.remove(key)));
                Outcome::Done
            }
        })
    }

    fn put_users(&mut self, patches: &[UserPatch], now_ms: u64) -> Outcome {
        let (mut created, mut updated) = (0, 0);
        for patch in patches {
            let no = match self.user_nos.get(&patch.id) {
                Some(no) => {
                    updated += 1;
                    *no
                }
                None => {
                    created += 1;
                    let no = UserNo(self.users.len() as u64 + 1);
                    self.user_nos.insert(patch.id.clone(), no);
                    self.users.push(User::new(no, patch.id.clone(), now_ms));
                    no
                }
            };
            let user = &mut self.users[index(no.0)];
            user.name = patch.name.clone().or(user.name.take());
            user.avatar = patch.avatar.clone().or(user.avatar.take());
            let mut locale = user.locale().cloned().unwrap_or_default();
            for (own, new) in [(&mut locale.language, &patch.language), (&mut locale.time_zone, &patch.time_zone)] {
                match new.as_deref() {
                    Some("") => *own = None,
                    Some(new) => *own = Some(new.to_owned()),
                    None => {}
                }
            }
            user.change_extras(|extras| {
                extras.attributes = patch.attributes.clone().or(extras.attributes.take());
                extras.locale = (locale != Locale::default()).then(|| Box::new(locale));
            });
        }
        Outcome::Users { created, updated }
    }

    fn create(&mut self, new: &NewConversation, now_ms: u64) -> Result<Outcome, Rejection> {
        if let Some(no) = self.conversation_nos.get(&new.id) {
            let conversation = self.conversations[index(no.0)].clone();
            return if conversation.kind == new.kind {
                Ok(Outcome::Conversation { conversation, created: false })
            } else {
                Err(Rejection::KindDiffers)
            };
        }
        if let Some((missing, _)) = new.members.iter().find(|(user, _)| index(user.0) >= self.users.len()) {
            return Err(Rejection::NoSuchUser(*missing));
        }
        let members: BTreeMap<UserNo, Role> = new.members.iter().copied().collect();
        let no = ConversationNo(self.conversations.len() as u64 + 1);
        self.conversation_nos.insert(new.id.clone(), no);
        let conversation = Conversation {
            no,
            id: new.id.clone(),
            kind: new.kind,
            pair: new.pair,
            name: new.name.clone(),
            avatar: new.avatar.clone(),
            attributes: new.attributes.clone(),
            created_at: now_ms,
            member_count: members.len() as u64,
            settings: new.settings.clone(),
            blocks: PairBlocks::default(),
        };
        self.conversations.push(conversation.clone());
        for (user, role) in members {
            self.put_member(no, user, role, now_ms);
        }
        Ok(Outcome::Conversation { conversation, created: true })
    }

    fn open_direct(&mut self, new: &NewConversation, entry: &NewEntry, now_ms: u64) -> Result<Outcome, Rejection> {
        if !self.conversation_nos.contains_key(&new.id) {
            if let Some(refusal) = &entry.request.refusal {
                return Err(Rejection::Refused(refusal.clone()));
            }
            if let Some(answered) = entry.reply_to() {
                return Err(Rejection::NoSuchEntry(answered));
            }
            if self.is_of_stranger(entry) {
                return Err(Rejection::NotAMember);
            }
        }
        match self.create(new, now_ms)? {
            Outcome::Conversation { conversation, created: true } => {
                let appended = self.append(conversation.no, entry, now_ms)?;
                Ok(Outcome::Opened { conversation, appended })
            }
            existing => Ok(existing),
        }
    }

    fn change_members(
        &mut self,
        conversation: ConversationNo,
        (add, remove, heir, act): MembersProposal<'_>,
        members_max: u64,
        notice: Option<&NewEntry>,
        now_ms: u64,
    ) -> Result<Outcome, Rejection> {
        let before = self.conversations.get(index(conversation.0)).ok_or(Rejection::NoSuchConversation)?.member_count;
        if let Some((missing, _)) = add.iter().find(|(user, _)| index(user.0) >= self.users.len()) {
            return Err(Rejection::NoSuchUser(*missing));
        }
        // A user who is named twice gets the role named last.
        let add: BTreeMap<UserNo, Role> = add.iter().copied().collect();
        let is_member = |state: &State, user| state.members.contains_key(&(conversation, user));
        let new: BTreeSet<UserNo> = add.keys().copied().filter(|u| !is_member(self, *u)).collect();
        let gone: BTreeSet<UserNo> = remove.iter().copied().filter(|u| is_member(self, *u)).collect();
        for user in &new {
            let ban = self.restrictions(conversation, *user).ban.filter(|ban| ban.holds(now_ms));
            if let Some(ban) = ban {
                return Err(Rejection::Banned(*user, ban.until));
            }
        }
        let would_be = before + new.len() as u64 - gone.len() as u64;
        let role_of = |user: &UserNo| self.members.get(&(conversation, *user)).map(|membership| membership.role);
        let has_new_role = |(user, role): &(&UserNo, &Role)| role_of(user).is_some_and(|before| before != **role);
        let mut changed: Vec<UserNo> = add.iter().filter(has_new_role).map(|(user, _)| *user).collect();
        if let Some(heir) = heir {
            if !is_member(self, heir) || gone.contains(&heir) {
                return Err(Rejection::NotAMember);
            }
            changed.extend(Some(heir).filter(|heir| role_of(heir) != Some(Role::Owner)));
        }
        let mut restricted = None;
        let mut joining = None;
        match act {
            None => {}
            Some(MemberAct::StepDown(owner)) => {
                let named_now = add.get(owner).copied().or_else(|| role_of(owner));
                let role = if heir == Some(*owner) { Some(Role::Owner) } else { named_now };
                if !is_member(self, *owner) || gone.contains(owner) || role != Some(Role::Owner) {
                    return Err(Rejection::NotTheOwner);
                }
                changed.push(*owner);
            }
            Some(MemberAct::Restrict { user, kind, restriction }) => {
                let stays = is_member(self, *user) && !gone.contains(user);
                if !stays && *kind == RestrictionKind::Mute && restriction.is_some() {
                    return Err(Rejection::NotAMember);
                }
                let before = self.restrictions(conversation, *user);
                let mut after = before.clone();
                match kind {
                    RestrictionKind::Mute => after.mute = restriction.clone(),
                    RestrictionKind::Ban => after.ban = restriction.clone(),
                }
                after.mute = after.mute.filter(|mute| mute.holds(now_ms));
                after.ban = after.ban.filter(|ban| ban.holds(now_ms));
                let is_new = match kind {
                    RestrictionKind::Mute => before.mute.filter(|mute| mute.holds(now_ms)) != after.mute,
                    RestrictionKind::Ban => before.ban.filter(|ban| ban.holds(now_ms)) != after.ban,
                };
                if is_new {
                    changed.extend(Some(*user).filter(|user| !gone.contains(user)));
                    restricted = Some((*user, after));
                }
            }
            Some(act) => {
                let is_new = act.user().is_some_and(|user| new.contains(&user));
                joining = self.joining(conversation, act, is_new, now_ms)?;
            }
        }
        if would_be > members_max && !new.is_empty() {
            return Err(Rejection::TooManyMembers { limit: members_max, would_be });
        }
        changed.extend(act.and_then(MemberAct::asker).filter(|user| !new.contains(user)));
        let mut seen = BTreeSet::new();
        changed.retain(|user| seen.insert(*user));
        let changes_nothing =
            new.is_empty() && gone.is_empty() && changed.is_empty() && restricted.is_none() && joining.is_none();
        let notice = notice.filter(|_| !changes_nothing);
        self.check_notice(conversation, notice)?;
        for (user, role) in &add {
            match self.members.get_mut(&(conversation, *user)) {
                Some(membership) => membership.role = *role,
                None => self.put_member(conversation, *user, *role, now_ms),
            }
        }
        if let Some(membership) = heir.and_then(|heir| self.members.get_mut(&(conversation, heir))) {
            membership.role = Role::Owner;
        }
        if let Some(MemberAct::StepDown(owner)) = act
            && let Some(membership) = self.members.get_mut(&(conversation, *owner))
        {
            membership.role = Role::Admin;
        }
        if let Some(joining) = joining {
            self.keep_joining(conversation, joining);
        }
        if let Some((user, restrictions)) = restricted {
            if let Some(membership) = self.members.get_mut(&(conversation, user)).filter(|_| !new.contains(&user)) {
                membership.restricted = restrictions != Restrictions::default();
            }
            let key = (RowSpace::Chat, restrictions_key(conversation, user));
            match restrictions.encode() {
                Some(row) => drop(self.rows.insert(key, row)),
                None => drop(self.rows.remove(&key)),
            }
        }
        if !gone.is_empty() {
            self.left.insert(conversation);
        }
        let mut mutes = Vec::new();
        for user in &gone {
            mutes.extend(self.members.remove(&(conversation, *user)).map(|membership| (*user, membership.mute)));
            self.memberships.remove(&(*user, conversation));
        }
        self.conversations[index(conversation.0)].member_count = would_be;
        let notice = match notice {
            Some(notice) => Some(self.append(conversation, notice, now_ms)?),
            None => None,
        };
        for (user, mute) in mutes {
            self.keep_of_membership(conversation, user, mute);
        }
        let (added, removed) = (new.into_iter().collect(), gone.into_iter().collect());
        Ok(Outcome::MembersChanged { added, removed, changed, member_count: would_be, notice })
    }
}

impl Store for MemoryStore {
    fn commit(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<Vec<Outcome>> {
        Ok(self.commit_in_order(batch, now_ms)?.0)
    }

    fn commit_in_order(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<(Vec<Outcome>, PositionRange)> {
        let mut state = self.0.lock();
        let after = state.position;
        let outcomes = batch.iter().map(|p| state.propose_and_log(p, now_ms)).collect();
        Ok((outcomes, PositionRange { after, through: state.position }))
    }

    fn log_after(&self, after: Position, limit: usize) -> StoreResult<LogPage> {
        self.committed_after(after, limit)
    }

    fn find_ids(
        &self,
        of: NamedKind,
        prefix: Option<StoredId<'_>>,
        after: Option<StoredId<'_>>,
        limit: usize,
    ) -> StoreResult<Vec<(String, u64)>> {
        let (prefix, after) = (prefix.map_or("", StoredId::as_str), after.map_or("", StoredId::as_str));
        let state = self.0.lock();
        let mut all: Vec<_> = match of {
            NamedKind::User => state.user_nos.iter().map(|(id, no)| (id.clone(), no.0)).collect(),
            NamedKind::Conversation => state.conversation_nos.iter().map(|(id, no)| (id.clone(), no.0)).collect(),
        };
        all.retain(|(id, _)| id.starts_with(prefix) && id.as_str() > after);
        all.sort();
        all.truncate(limit);
        Ok(all)
    }

    fn stored_seqs(&self, requests: &[(ConversationNo, UserNo, &str)]) -> StoreResult<Vec<Option<u64>>> {
        let state = self.0.lock();
        let seq = |(conversation, author, id): &(ConversationNo, UserNo, &str)| {
            let author = Some(*author).filter(|author| *author != UserNo::NOBODY);
            state.first_results.get(&(*conversation, author, (*id).to_owned())).map(|first| first.appended.seq)
        };
        Ok(requests.iter().map(seq).collect())
    }

    fn log_start(&self) -> StoreResult<Option<Position>> {
        Ok(self.0.lock().log.is_some().then_some(0))
    }

    fn epoch(&self) -> u64 {
        1
    }

    fn last_position(&self) -> Position {
        self.0.lock().position
    }

    fn last_numbers(&self) -> StoreResult<LastNumbers> {
        let state = self.0.lock();
        Ok(LastNumbers { users: state.users.len() as u64, conversations: state.conversations.len() as u64 })
    }

    fn find_user(&self, id: StoredId<'_>) -> StoreResult<Option<UserNo>> {
        Ok(self.0.lock().user_nos.get(id.as_str()).copied())
    }

    fn user(&self, no: UserNo) -> StoreResult<Option<User>> {
        Ok(self.0.lock().users.get(index(no.0)).cloned())
    }

    fn last_seen(&self, no: UserNo) -> StoreResult<Option<u64>> {
        Ok(self.0.lock().last_seen.get(&no).copied())
    }

    fn find_conversation(&self, id: StoredId<'_>) -> StoreResult<Option<ConversationNo>> {
        Ok(self.0.lock().conversation_nos.get(id.as_str()).copied())
    }

    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>> {
        Ok(self.0.lock().conversations.get(index(no.0)).cloned())
    }

    fn head(&self, no: ConversationNo) -> StoreResult<Head> {
        Ok(self.0.lock().head(no))
    }

    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        Ok(self.0.lock().members.get(&(conversation, user)).cloned())
    }

    fn members(
        &self,
        conversation: ConversationNo,
        after: Option<UserNo>,
        limit: usize,
    ) -> StoreResult<Vec<(UserNo, Membership)>> {
        let first = (conversation, UserNo(after.map_or(0, |user| user.0 + 1)));
        let state = self.0.lock();
        let members = state.members.range(first..=(conversation, UserNo(u64::MAX)));
        Ok(members.take(limit).map(|((_, user), membership)| (*user, membership.clone())).collect())
    }

    fn conversations_of(&self, user: UserNo, direct: bool, limit: usize) -> StoreResult<Vec<UserConversation>> {
        let state = self.0.lock();
        let all = state.memberships.range((user, ConversationNo(0))..=(user, ConversationNo(u64::MAX)));
        let all = all.map(|(_, conversation)| UserConversation {
            conversation: *conversation,
            kind: state.conversations[index(conversation.0)].kind,
        });
        Ok(all.filter(|c| direct || c.kind != ConversationKind::Direct).take(limit).collect())
    }

    fn entries(
        &self,
        conversation: ConversationNo,
        from_seq: u64,
        to_seq: u64,
        limit: usize,
        from: End,
    ) -> StoreResult<Vec<StoredEntry>> {
        let state = self.0.lock();
        let Some(timeline) = state.timelines.get(&conversation).filter(|_| from_seq <= to_seq) else {
            return Ok(vec![]);
        };
        let range = timeline.range(from_seq..=to_seq).map(|(_, entry)| entry.clone());
        Ok(match from {
            End::Oldest => range.take(limit).collect(),
            End::Newest => {
                let mut newest: Vec<_> = range.rev().take(limit).collect();
                newest.reverse();
                newest
            }
        })
    }

    fn seq_at(&self, conversation: ConversationNo, at_ms: u64) -> StoreResult<u64> {
        let state = self.0.lock();
        let found = state.timelines.get(&conversation).and_then(|t| t.values().find(|e| e.at >= at_ms).map(|e| e.seq));
        Ok(found.unwrap_or_else(|| state.head(conversation).last_seq + 1))
    }

    fn outbox(&self, after: Position, limit: usize) -> StoreResult<Vec<OutboxItem>> {
        Ok(self.0.lock().outbox.range(after + 1..).take(limit).map(|(_, item)| *item).collect())
    }

    fn outbox_position(&self) -> StoreResult<Position> {
        Ok(self.0.lock().outbox_done)
    }

    fn stored_notifications(
        &self,
        table: NotificationTable,
        after: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<StoredNotification>> {
        let first = NotificationKey { table, id: after.map_or(0, |id| id + 1) };
        let last = NotificationKey { table, id: u64::MAX };
        Ok(self.0.lock().notifications.range(first..=last).take(limit).map(|(_, found)| found.clone()).collect())
    }

    fn retain_but(&self, _: Retention, _: &[ConversationNo], _: u64) -> StoreResult<u64> {
        Ok(0)
    }

    fn retain_in(&self, _: ConversationNo, _: Retention, _: u64) -> StoreResult<RetainedIn> {
        Ok(RetainedIn::default())
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

impl PushStore for MemoryStore {
    fn write_push(&self, term: Term, changes: &[PushChange]) -> StoreResult<()> {
        let mut state = self.0.lock();
        state.check_term(term)?;
        for change in changes {
            match change {
                PushChange::Put(row) => drop(state.push.insert(row.key(), row.clone())),
                PushChange::Delete(key) => drop(state.push.remove(key)),
            }
        }
        Ok(())
    }

    fn push_row(&self, key: &PushKey) -> StoreResult<Option<PushRow>> {
        Ok(self.0.lock().push.get(key).cloned())
    }

    fn push_rows(&self, from: &PushKey, to: &PushKey, limit: usize) -> StoreResult<Vec<PushRow>> {
        if from > to {
            return Ok(Vec::new());
        }
        Ok(self.0.lock().push.range(from..=to).take(limit).map(|(_, row)| row.clone()).collect())
    }
}

impl RowStore for MemoryStore {
    fn write_rows(&self, term: Term, space: RowSpace, changes: Vec<RowChange>) -> StoreResult<()> {
        let is_too_long = |change: &RowChange| {
            change.key.len() > ROW_KEY_BYTES_MAX
                || change.value.as_ref().is_some_and(|value| value.len() > ROW_BYTES_MAX)
        };
        if changes.iter().any(is_too_long) {
            return Err(StoreError::Unavailable("a row is too long".into()));
        }
        let mut state = self.0.lock();
        state.check_term(term)?;
        for RowChange { key, value } in changes {
            match value {
                Some(value) => drop(state.rows.insert((space, key), value)),
                None => drop(state.rows.remove(&(space, key))),
            }
        }
        Ok(())
    }

    fn row(&self, space: RowSpace, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        Ok(self.0.lock().rows.get(&(space, key.to_vec())).cloned())
    }

    fn rows(&self, space: RowSpace, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>> {
        if from > to {
            return Ok(Vec::new());
        }
        let state = self.0.lock();
        let range = state.rows.range((space, from.to_vec())..=(space, to.to_vec())).take(limit);
        Ok(range.map(|((_, key), value)| (key.clone(), value.clone())).collect())
    }
}

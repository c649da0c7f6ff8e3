//! The rules of a commit: what becomes of each proposal of a batch. Every durable store decides by them, over rows of its
//! own kind ([`StagedRows`]); the memory store of the tests has its own rules, with which the others are compared.

use crate::{
    chat_rows, desks,
    erasure::{EraseStep, legal_hold_key},
    expiry::{own_retention_key, rows_of},
    model::*,
    push_tokens::row_keys as push_token_keys,
    reports::{ReportChange, StoredReport},
    restrictions::*,
    store::*,
};
use conversations::MemberChange;
use reactions::Reaction;
use std::borrow::Cow;
use tidings_protocol::http::ReportState;

/// The rows of a batch that is being decided: those that the batch has written so far, over the stored ones. `'a` is the
/// life of the batch's proposals.
///
/// # Errors
/// A row is damaged or cannot be read: the whole batch must be dropped.
pub trait StagedRows<'a> {
    /// The key of a send's first result.
    type SendKey;

    /// The key of the sends of an author in a conversation with a `client_msg_id`.
    fn send_key(&self, conversation: ConversationNo, author: UserNo, client_msg_id: &'a str) -> Self::SendKey;
    /// The result of the first send with this key.
    fn first_result(&self, key: &Self::SendKey) -> StoreResult<Option<FirstResult>>;
    /// Whether the user has left the conversation so lately that the node of a send may not know it. Never in a store
    /// that one node writes.
    fn has_just_left(&self, _: ConversationNo, _: UserNo) -> bool {
        false
    }
    /// The number by which a conversation with this head stands in the index of an account: it rises with every entry of any
    /// conversation of the account, or stays.
    fn index_number(&self, head: &Head) -> u64 {
        head.last_position
    }
    /// The head of a conversation; `None` if there is no such conversation.
    fn head(&self, conversation: ConversationNo) -> StoreResult<Option<Head>>;
    /// Takes the next position of the commit order.
    fn next_position(&mut self) -> Position;
    /// Stores an entry in the place `appended`, which makes `head` the conversation's head, and the place with the entry's
    /// request as the first result of `send`.
    fn append(
        &mut self,
        entry: Cow<'a, NewEntry>,
        appended: Appended,
        head: Head,
        send: Option<Self::SendKey>,
    ) -> StoreResult<()>;
    /// The entry with this `seq`; `None` if there is none, or retention has removed it.
    fn entry(&self, conversation: ConversationNo, seq: u64) -> StoreResult<Option<StoredEntry>>;
    /// Replaces the content of an entry that [`StagedRows::entry`] returned. The former content is removed.
    fn put_entry(&mut self, conversation: ConversationNo, entry: StoredEntry) -> StoreResult<()>;

    /// The value of a row of [`RowSpace::Chat`]. The key is among [`chat_row_keys`] of the proposal.
    fn chat_row(&self, key: &[u8]) -> StoreResult<Option<Vec<u8>>>;
    /// Writes a row of [`RowSpace::Chat`], or deletes it. The value has at most [`ROW_BYTES_MAX`] bytes.
    fn put_chat_row(&mut self, key: Vec<u8>, value: Option<Vec<u8>>);

    /// Whether a user has this number. A number may be free below one that is given: nodes reserve them in blocks.
    fn is_user(&self, no: UserNo) -> StoreResult<bool>;
    /// The number of the user with this id.
    fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>>;
    /// The user with this number.
    fn user(&self, no: UserNo) -> StoreResult<Option<User>>;
    /// Gives the id of a new user the next number.
    fn new_user_no(&mut self, id: &'a str) -> UserNo;
    /// Stores a user's profile, without the time of revocation.
    fn put_user(&mut self, user: User);
    /// Stores that the user's tokens from before `user.revoked_at` are refused.
    fn put_revoked(&mut self, user: User);
    /// Stores when the user's last session ended.
    fn put_last_seen(&mut self, user: UserNo, at: u64);

    /// The number of the conversation with this id.
    fn conversation_no(&self, id: &str) -> StoreResult<Option<ConversationNo>>;
    /// The details of a conversation.
    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>>;
    /// Gives the id of a new conversation the next number.
    fn new_conversation_no(&mut self, id: &'a str) -> ConversationNo;
    /// Stores a new conversation's details and the head of its empty timeline.
    fn create_conversation(&mut self, conversation: Conversation);
    /// Stores the changed details of a conversation.
    fn put_conversation(&mut self, conversation: Conversation);

    /// A user's membership of a conversation; `None` if the user is no member.
    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>>;
    /// Stores the membership of a user who was no member.
    fn add_member(&mut self, conversation: &Conversation, user: UserNo, membership: Membership);
    /// Stores the changed membership of a member.
    fn put_membership(&mut self, conversation: ConversationNo, user: UserNo, membership: Membership);
    /// Removes a member.
    fn remove_member(&mut self, conversation: &Conversation, user: UserNo);

    /// Forgets the first result of the sends of an author under this id, if there is one.
    fn forget_send(&mut self, conversation: ConversationNo, author: UserNo, client_msg_id: &str) -> StoreResult<()>;
    /// Stores a conversation under another id in place of `former`, which is free from then on.
    fn rename_conversation(&mut self, former: &str, conversation: Conversation);
    /// Stores a user under another id in place of `former`, which is free from then on, and forgets when the user was last seen,
    /// before when tokens are revoked, and the first results of the user's sends that are not forgotten yet.
    fn erase_user(&mut self, former: &str, user: User);

    /// Moves the outbox's position forward to `through`, never back, and stores notifications.
    fn advance_outbox(&mut self, through: Position, dead: &'a [StoredNotification]) -> StoreResult<()>;
    /// Deletes stored notifications.
    fn delete_notifications(&mut self, keys: &'a [NotificationKey]);
}

/// The rows of [`RowSpace::Chat`] that a proposal reads or writes, for stores that load what a batch touches at once.
pub fn chat_row_keys(proposal: &Proposal) -> Vec<Vec<u8>> {
    match proposal {
        Proposal::Append { conversation, entry } => {
            let mut keys = desk_keys(*conversation, entry);
            keys.extend(turn_key(*conversation, entry));
            keys
        }
        // A new conversation has no rows.
        Proposal::OpenDirect { entry, .. } => agent_keys(entry).collect(),
        Proposal::UpdateConversation { conversation, notice: Some(notice), .. } => desk_keys(*conversation, notice),
        Proposal::ChangeMembers { conversation, add, remove, act, notice, .. } => {
            let users = add.iter().map(|(user, _)| user).chain(remove);
            let kept = users.map(|user| chat_rows::preferences_key(*user, *conversation));
            let restricted =
                add.iter().map(|(user, _)| *user).chain(act.iter().filter_map(|act| act.restricted_user()));
            let restrictions = restricted.map(|user| restrictions_key(*conversation, user));
            let of_notice = notice.iter().flat_map(|notice| desk_keys(*conversation, notice));
            let joining = act.iter().flat_map(|act| act.joining_keys(*conversation));
            kept.chain(restrictions).chain(joining).chain(of_notice).collect()
        }
        Proposal::React { conversation, target, user, .. } => {
            let own = chat_rows::reactions_key(*conversation, *target, user.no);
            let (told, untold) = (chat_rows::told_key(*conversation), chat_rows::untold_key(*conversation));
            vec![own, told, untold, desks::assignment_key(*conversation)]
        }
        Proposal::TellReactions { conversation } => {
            let (told, untold) = (chat_rows::told_key(*conversation), chat_rows::untold_key(*conversation));
            vec![told, untold, desks::assignment_key(*conversation)]
        }
        Proposal::ChangeMessage { conversation, change, entry, .. } => {
            let mut keys = desk_keys(*conversation, entry);
            // Whether it is a conversation with an account is known by the message.
            if keys.is_empty() {
                keys.push(desks::assignment_key(*conversation));
            }
            if matches!(change, MessageChange::Recall | MessageChange::Expire | MessageChange::Pin { .. }) {
                keys.push(chat_rows::pins_key(*conversation));
            }
            if *change == MessageChange::Expire {
                keys.push(legal_hold_key(*conversation));
            }
            keys
        }
        Proposal::SetDesk { account, patch, .. } => {
            let users = patch.add.iter().map(|user| user.no).chain(patch.remove.iter().chain(&patch.forget).copied());
            users.map(|user| desks::agent_key(*account, user)).chain([desks::desk_key(*account)]).collect()
        }
        Proposal::Assign { conversation, account, to, entry, .. } => {
            let mut keys = desk_keys(*conversation, entry);
            keys.extend(to.as_ref().map(|to| desks::agent_key(*account, to.no)));
            keys
        }
        Proposal::SetStored(told) => told.iter().map(|(user, _)| chat_rows::stored_key(*user)).collect(),
        Proposal::SetReceipts { user, .. } | Proposal::SetNotificationPreferences { user, .. } => {
            vec![chat_rows::settings_key(*user)]
        }
        Proposal::SetSuspension { user, .. } => vec![chat_rows::settings_key(*user)],
        Proposal::Report { report, .. } | Proposal::SetReport { report, .. } => {
            vec![report.row(), chat_rows::settings_key(report.reporter)]
        }
        Proposal::SetBlock { user, other, .. } => {
            vec![chat_rows::settings_key(*user), chat_rows::block_key(*user, *other)]
        }
        Proposal::SetPushToken { user, device, token, former, owner, .. } => {
            push_token_keys(*user, device, token.as_ref(), former.as_ref(), owner.as_ref())
        }
        Proposal::SetPreferences { conversation, user, .. } => vec![chat_rows::preferences_key(*user, *conversation)],
        Proposal::Erase(step) => match &**step {
            EraseStep::Begin { user, key, .. } => vec![key.clone(), chat_rows::settings_key(*user)],
            EraseStep::BeginConversation { key, .. } => vec![key.clone()],
            EraseStep::Rows { keys, .. } | EraseStep::RowsIn { keys, .. } => keys.clone(),
            EraseStep::Entries { .. }
            | EraseStep::Blank { .. }
            | EraseStep::Rename { .. }
            | EraseStep::Details { .. }
            | EraseStep::Profile { .. } => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// The row of when the sender sent last, if the conversation is in slow mode for the sender.
fn turn_key(conversation: ConversationNo, entry: &NewEntry) -> Option<Vec<u8>> {
    let sender = entry.sender.as_ref().filter(|_| entry.request.slow_mode_ms.is_some())?;
    Some(last_send_key(conversation, sender.no))
}

/// The rows that an entry in a conversation with an account needs.
fn desk_keys(conversation: ConversationNo, entry: &NewEntry) -> Vec<Vec<u8>> {
    match entry.desk() {
        Some(_) => agent_keys(entry).chain([desks::assignment_key(conversation)]).collect(),
        None => Vec::new(),
    }
}

/// The row of the agent who acts for the account.
fn agent_keys(entry: &NewEntry) -> impl Iterator<Item = Vec<u8>> {
    let desk = entry.desk().and_then(|desk| Some((desk.account, desk.agent.as_ref()?)));
    desk.map(|(account, agent)| desks::agent_key(account, agent.no)).into_iter()
}

/// Decides one proposal; `now_ms` is the time of the batch.
///
/// # Errors
/// Those of the rows: the whole batch must be dropped. A rejection is no error, but an outcome.
pub fn decide<'a, R: StagedRows<'a>>(rows: &mut R, proposal: &'a Proposal, now_ms: u64) -> StoreResult<Outcome> {
    match (Decider { rows, now_ms }).decide(proposal) {
        Ok(outcome) => Ok(outcome),
        Err(ProposalError::Rejected(rejection)) => Ok(Outcome::Rejected(rejection)),
        Err(ProposalError::Failed(error)) => Err(error),
    }
}

/// Why a proposal was not accepted: it was refused, or the store failed and with it the whole batch.
enum ProposalError {
    Rejected(Rejection),
    Failed(StoreError),
}

impl From<StoreError> for ProposalError {
    fn from(error: StoreError) -> Self {
        ProposalError::Failed(error)
    }
}

impl From<Rejection> for ProposalError {
    fn from(rejection: Rejection) -> Self {
        ProposalError::Rejected(rejection)
    }
}

struct Decider<'r, R> {
    rows: &'r mut R,
    now_ms: u64,
}

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    fn decide(&mut self, proposal: &'a Proposal) -> Result<Outcome, ProposalError> {
        match proposal {
            Proposal::Append { conversation, entry } => match entry.reply_to() {
                Some(answered) => self.reply(*conversation, answered, entry),
                None => self.send(*conversation, entry).map(Outcome::Appended),
            },
            Proposal::OpenDirect { new, entry } => self.open_direct(new, entry),
            Proposal::ChangeMessage { conversation, target, change, entry } => {
                self.change_message(*conversation, *target, change, entry)
            }
            Proposal::React { conversation, target, user, key, add, keys_max, interval_ms } => {
                let reaction = Reaction { target: *target, user, key, add: *add, keys_max: *keys_max };
                self.react(*conversation, &reaction, *interval_ms)
            }
            Proposal::TellReactions { conversation } => self.tell_reactions(*conversation),
            Proposal::CheckpointStream { conversation, target, body } => {
                self.checkpoint_stream(*conversation, *target, body)
            }
            Proposal::PutUsers(patches) => self.put_users(patches),
            Proposal::CreateConversation(new) => self.create_conversation(new),
            Proposal::UpdateConversation { conversation, name, avatar, attributes, settings, notice } => {
                let mut details = self.rows.conversation(*conversation)?.ok_or(Rejection::NoSuchConversation)?;
                details.name = name.clone().or(details.name);
                details.avatar = avatar.clone().or(details.avatar);
                details.attributes = attributes.clone().or(details.attributes);
                self.check_notice(*conversation, notice.as_ref())?;
                details.settings = details.settings.with(settings.clone());
                if let Some(own) = settings.retention {
                    let row = (own != OwnRetention::default()).then(Vec::new);
                    self.rows.put_chat_row(own_retention_key(*conversation), row);
                }
                self.rows.put_conversation(details);
                match notice {
                    Some(notice) => self.notice(*conversation, notice).map(Outcome::Appended),
                    None => Ok(Outcome::Done),
                }
            }
            Proposal::ChangeMembers { conversation, add, remove, heir, act, members_max, notice } => {
                let change = MemberChange { add, remove, heir: *heir, act: act.as_deref() };
                self.change_members(*conversation, change, *members_max, notice.as_ref())
            }
            Proposal::SetDesk { account, id, patch, agents_max, adopts_user } => {
                self.set_desk(*account, id, patch, *agents_max, *adopts_user)
            }
            Proposal::Assign { conversation, account, to, expected, entry } => {
                self.assign(*conversation, *account, to.as_ref(), *expected, entry)
            }
            Proposal::MarkRead { conversation, user, seq } => {
                let mut membership = self.rows.membership(*conversation, *user)?.ok_or(Rejection::NotAMember)?;
                let last = self.rows.head(*conversation)?.ok_or(Rejection::NoSuchConversation)?.last_seq;
                let before = membership.read_seq;
                let moved = before.max((*seq).min(last));
                if moved != before {
                    membership.read_seq = moved;
                    self.rows.put_membership(*conversation, *user, membership);
                }
                Ok(Outcome::Read { seq: moved, before })
            }
            Proposal::SetMute { conversation, user, mute } => {
                let mut membership = self.rows.membership(*conversation, *user)?.ok_or(Rejection::NotAMember)?;
                membership.mute = *mute;
                self.rows.put_membership(*conversation, *user, membership);
                Ok(Outcome::Done)
            }
            Proposal::SetDoNotDisturb { user, window } => {
                let mut found = self.rows.user(*user)?.ok_or(Rejection::NoSuchUser(*user))?;
                found.change_extras(|extras| extras.do_not_disturb = window.clone().map(Box::new));
                self.rows.put_user(found);
                Ok(Outcome::Done)
            }
            Proposal::Revoke { user, before, .. } => {
                let mut found = self.rows.user(*user)?.ok_or(Rejection::NoSuchUser(*user))?;
                found.revoked_at = found.revoked_at.max(*before);
                self.rows.put_revoked(found);
                Ok(Outcome::Done)
            }
            Proposal::SetPreferences { conversation, user, patch } => self.set_preferences(*conversation, *user, patch),
            Proposal::SetStored(told) => self.set_stored(told),
            Proposal::SetReceipts { user, send } => {
                self.change_settings(*user, |settings| settings.receipts_off = !send)
            }
            Proposal::SetNotificationPreferences { user, preferences } => {
                self.change_settings(*user, |settings| settings.notifications = (**preferences).clone())
            }
            Proposal::SetSuspension { user, suspended, until, reason, by } => {
                let suspension = suspended.then(|| {
                    Box::new(Suspension { until: *until, reason: reason.clone(), by: by.clone(), at: self.now_ms })
                });
                self.change_settings(*user, |settings| settings.suspension = suspension)
            }
            Proposal::Report { report, reason, text, reported, open_max } => {
                let new = StoredReport {
                    reason: *reason,
                    text: text.clone(),
                    reported: *reported,
                    at: self.now_ms,
                    state: ReportState::Open,
                    changed: None,
                };
                self.report(*report, &new, *open_max)
            }
            Proposal::SetReport { report, expected, state, note, by } => {
                let changed = ReportChange { by: by.clone(), note: note.clone(), at: self.now_ms };
                self.set_report(*report, *expected, *state, changed)
            }
            Proposal::SetBlock { user, other, blocked, blocks_max } => {
                self.set_block(*user, *other, *blocked, *blocks_max)
            }
            Proposal::SetPushToken { user, device, token, former, owner, additions, .. } => {
                self.set_push_token(*user, device, token.as_ref(), *former, owner.as_ref(), *additions)
            }
            Proposal::SetLastSeen(seen) => {
                seen.iter().for_each(|(user, at)| self.rows.put_last_seen(*user, *at));
                Ok(Outcome::Done)
            }
            Proposal::SetNotificationCounts(counts) => {
                for (hour, boot, channel, row) in counts {
                    self.rows
                        .put_chat_row(chat_rows::notification_counts_key(*hour, *boot, *channel), Some(row.clone()));
                }
                Ok(Outcome::Done)
            }
            Proposal::SetApiKeyUse(uses) => {
                for (key, at) in uses {
                    self.rows.put_chat_row(chat_rows::api_key_use_key(*key), Some(chat_rows::encode(at)));
                }
                Ok(Outcome::Done)
            }
            Proposal::Kick { .. } | Proposal::AddFeedNotes(_) => Ok(Outcome::Done),
            Proposal::Erase(step) => self.erase(step),
            Proposal::SetLegalHold { conversation, hold } => {
                self.rows.conversation(*conversation)?.ok_or(Rejection::NoSuchConversation)?;
                let row = hold.as_ref().map(chat_rows::encode);
                self.rows.put_chat_row(legal_hold_key(*conversation), row);
                Ok(Outcome::Done)
            }
            Proposal::AdvanceOutbox { through, dead } => {
                self.rows.advance_outbox(*through, dead)?;
                Ok(Outcome::Done)
            }
            Proposal::DeleteStoredNotifications { keys } => {
                self.rows.delete_notifications(keys);
                Ok(Outcome::Done)
            }
        }
    }

    /// Appends a sender's message. A sender who has just left is rejected: the sender's node may not know it yet.
    fn send(&mut self, conversation: ConversationNo, entry: &'a NewEntry) -> Result<Appended, ProposalError> {
        let send = self.send_key(conversation, entry);
        if let Some(first) = self.first_result(send.as_ref(), entry)? {
            return Ok(first);
        }
        self.check_agent(entry)?;
        if let Some(import) = &entry.request.import {
            return self.import(conversation, entry, import, send);
        }
        match &entry.sender {
            Some(sender) if self.rows.has_just_left(conversation, sender.no) => Err(Rejection::NotAMember.into()),
            _ => {
                self.take_turn(conversation, entry)?;
                self.append(conversation, Cow::Borrowed(entry), send)
            }
        }
    }

    /// Appends a message of another system, with the reactions to it. Its sender need not be a member any more.
    fn import(
        &mut self,
        conversation: ConversationNo,
        entry: &'a NewEntry,
        import: &'a ImportRequest,
        send: Option<R::SendKey>,
    ) -> Result<Appended, ProposalError> {
        if let Some(previous) = &import.previous {
            let previous = self.rows.send_key(conversation, UserNo::NOBODY, previous);
            self.rows.first_result(&previous)?.ok_or(Rejection::PreviousNotStored)?;
        }
        let appended = self.append(conversation, Cow::Borrowed(entry), send)?;
        for (user, keys) in &import.reactions {
            let own = chat_rows::reactions_key(conversation, appended.seq, *user);
            self.rows.put_chat_row(own, Some(chat_rows::encode(keys)));
        }
        Ok(appended)
    }

    /// Takes the sender's turn in a conversation in slow mode.
    fn take_turn(&mut self, conversation: ConversationNo, entry: &NewEntry) -> Result<(), ProposalError> {
        let (Some(key), Some(interval_ms)) = (turn_key(conversation, entry), entry.request.slow_mode_ms) else {
            return Ok(());
        };
        self.rows.head(conversation)?.ok_or(Rejection::NoSuchConversation)?;
        let last: u64 = chat_rows::decode(self.rows.chat_row(&key)?.as_deref())?;
        // A clock that was set back by more than an interval keeps nobody out.
        let is_recent = last.abs_diff(self.now_ms) < interval_ms;
        if is_recent {
            return Err(Rejection::TooSoon { retry_after_ms: last + interval_ms - self.now_ms }.into());
        }
        self.rows.put_chat_row(key, Some(chat_rows::encode(&self.now_ms)));
        Ok(())
    }

    /// Rejects a change whose notice cannot be appended, before anything of the change is staged.
    fn check_notice(&self, conversation: ConversationNo, notice: Option<&'a NewEntry>) -> Result<(), ProposalError> {
        let Some(notice) = notice else { return Ok(()) };
        self.first_result(self.send_key(conversation, notice).as_ref(), notice).map(drop)
    }

    /// Appends the notice of a change, whose sender may be a member who leaves by it.
    fn notice(&mut self, conversation: ConversationNo, entry: &'a NewEntry) -> Result<Appended, ProposalError> {
        let send = self.send_key(conversation, entry);
        match self.first_result(send.as_ref(), entry)? {
            Some(first) => Ok(first),
            None => self.append(conversation, Cow::Borrowed(entry), send),
        }
    }

    fn send_key(&self, conversation: ConversationNo, entry: &'a NewEntry) -> Option<R::SendKey> {
        entry.idempotency_key().map(|(author, id)| self.rows.send_key(conversation, author, id))
    }

    /// The place of the entry, if it is a retry; otherwise it is rejected if it may be nothing else.
    fn first_result(&self, send: Option<&R::SendKey>, entry: &NewEntry) -> Result<Option<Appended>, ProposalError> {
        if let Some(send) = send
            && let Some(first) = self.rows.first_result(send)?
        {
            return Ok(Some(first.answer(&entry.request)?));
        }
        match &entry.request.refusal {
            Some(refusal) => Err(Rejection::Refused(refusal.clone()).into()),
            None => Ok(None),
        }
    }

    fn append(
        &mut self,
        conversation: ConversationNo,
        entry: Cow<'a, NewEntry>,
        send: Option<R::SendKey>,
    ) -> Result<Appended, ProposalError> {
        let before = self.rows.head(conversation)?.ok_or(Rejection::NoSuchConversation)?;
        let position = self.rows.next_position();
        let head = Head {
            last_seq: before.last_seq + 1,
            last_at: before.last_at.max(entry.request.time(self.now_ms)),
            last_position: position,
            ..before
        };
        if let Some(EntryDesk { account, for_customer, .. }) = entry.desk() {
            self.move_in_index(conversation, *account, *for_customer, [&before, &head])?;
        }
        let appended = Appended { conversation, seq: head.last_seq, at: head.last_at, position, duplicate: false };
        let Appended { seq, at, .. } = appended;
        let place = chat_rows::MentionPlace { at, conversation, seq };
        for user in entry.mentioned_ids() {
            self.rows.put_chat_row(chat_rows::mention_key(user, place), Some(Vec::new()));
        }
        if entry.mentions_all() {
            self.rows.put_chat_row(chat_rows::mention_all_key(place), Some(Vec::new()));
        }
        if let Some(reply_to) = entry.reply_to() {
            self.rows.put_chat_row(chat_rows::reply_key(conversation, reply_to, seq), Some(Vec::new()));
        }
        self.note_open_stream(conversation, seq, &entry);
        for RowChange { key, value } in rows_of(conversation, seq, at, &entry) {
            self.rows.put_chat_row(key, value);
        }
        self.rows.append(entry, appended, head, send)?;
        Ok(appended)
    }

    /// Appends an answer to a message, which must be there; it may have been recalled.
    fn reply(
        &mut self,
        conversation: ConversationNo,
        answered: u64,
        entry: &'a NewEntry,
    ) -> Result<Outcome, ProposalError> {
        let send = self.send_key(conversation, entry);
        if let Some(first) = self.first_result(send.as_ref(), entry)? {
            return Ok(Outcome::Replied { appended: first, preview: None });
        }
        self.rows.head(conversation)?.ok_or(Rejection::NoSuchConversation)?;
        let message = self.message(conversation, answered)?;
        let appended = self.send(conversation, entry)?;
        Ok(Outcome::Replied { appended, preview: Some(ReplyPreview::of(&message)) })
    }

    /// The message with this `seq`.
    fn message(&self, conversation: ConversationNo, seq: u64) -> Result<StoredEntry, ProposalError> {
        let message = self.rows.entry(conversation, seq)?.ok_or(Rejection::NoSuchEntry(seq))?;
        match message.content.kind {
            EntryKind::Message => Ok(message),
            _ => Err(Rejection::NotAMessage(seq).into()),
        }
    }

    fn put_users(&mut self, patches: &'a [UserPatch]) -> Result<Outcome, ProposalError> {
        let (mut created, mut updated) = (0, 0);
        for patch in patches {
            let mut user = match self.rows.user_no(&patch.id)? {
                Some(no) => {
                    updated += 1;
                    self.rows.user(no)?.ok_or_else(|| without_row("user", &patch.id))?
                }
                None => {
                    created += 1;
                    self.new_user(&patch.id)
                }
            };
            user.name = patch.name.clone().or(user.name);
            user.avatar = patch.avatar.clone().or(user.avatar);
            if let Some(attributes) = &patch.attributes {
                user.change_extras(|extras| extras.attributes = Some(attributes.clone()));
            }
            user.change_locale(patch.language.as_deref(), patch.time_zone.as_deref());
            self.rows.put_user(user);
        }
        Ok(Outcome::Users { created, updated })
    }

    /// A new user with this id, who is yet to be stored.
    fn new_user(&mut self, id: &'a str) -> User {
        User::new(self.rows.new_user_no(id), id.to_owned(), self.now_ms)
    }
}

/// An id has a number, and the number has no row.
fn without_row(what: &str, id: &str) -> StoreError {
    StoreError::Damaged(format!("{what} {id} has a number and no row"))
}

mod blocks;
mod conversations;
mod desks_and_assignments;
mod erasure;
mod message_changes;
mod preferences;
mod push_tokens;
mod reactions;
mod receipts;
mod reports;
mod streams;
#[cfg(test)]
mod tests;

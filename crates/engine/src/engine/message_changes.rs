//! Edits and recalls of messages: who may change what until when. The commit decides which of two racing changes is first.

use crate::{
    Engine,
    access::{Writing, check_not_suspended},
    commit::{CommitRequest, Origin, Reply},
    engine::send::{check_message, unless_retry},
    fairness::FlowKey,
    request_digests,
    shards::SessionReply,
    views::Found,
    visibility::is_by,
};
use std::sync::Arc;
use tidings_domain::{
    model::*,
    refusals::{not_a_member, proposal_refusal, store_refusal},
    store::{End, MessageChange, Outcome, Proposal, Rejection},
};
use tidings_protocol::{
    entry::Entry,
    error::{ErrorCode, Refusal},
    http::{BodyVersion, BodyVersions, ChangeReceipt, EditMessage, NewMessage},
    ids::check_id,
    limits::EDITS_PER_MESSAGE_MAX,
};
use tokio::sync::oneshot;

impl Engine {
    /// Gives a message another body.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `not_a_message`, `message_recalled`, `version_conflict`;
    /// `invalid_field`, `limit_exceeded`, `client_msg_id_reused`; `rate_limited` for users; `queue_full`,
    /// `store_unavailable` and `draining`: nothing was stored.
    pub async fn edit_message(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
        edit: EditMessage,
    ) -> Result<ChangeReceipt, Refusal> {
        self.begin_edit(actor, conversation, seq, edit, None)?.await
    }

    /// Takes a message back: its body is removed for good. A repeated recall answers with the first result.
    ///
    /// # Errors
    /// Those of [`Engine::edit_message`], but for a body's.
    pub async fn recall_message(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
        by: Option<String>,
        client_msg_id: Option<String>,
    ) -> Result<ChangeReceipt, Refusal> {
        self.begin_recall(actor, conversation, seq, by, client_msg_id, None)?.await
    }

    /// Submits a session's edit; the reply comes to the shard as that of a send does. Blocks for a read of the store.
    ///
    /// # Errors
    /// Those of [`Engine::edit_message`] that are found before the commit.
    pub fn submit_edit(
        &self,
        user: &Arc<User>,
        conversation: &str,
        seq: u64,
        edit: EditMessage,
        reply: SessionReply,
    ) -> Result<(), Refusal> {
        self.begin_edit(&Actor::User(user.clone()), conversation, seq, edit, Some(reply)).map(|_| ())
    }

    /// Submits a session's recall, as [`Engine::submit_edit`] does an edit.
    ///
    /// # Errors
    /// Those of [`Engine::recall_message`] that are found before the commit.
    pub fn submit_recall(
        &self,
        user: &Arc<User>,
        conversation: &str,
        seq: u64,
        client_msg_id: Option<String>,
        reply: SessionReply,
    ) -> Result<(), Refusal> {
        let actor = Actor::User(user.clone());
        self.begin_recall(&actor, conversation, seq, None, client_msg_id, Some(reply)).map(|_| ())
    }

    fn begin_edit(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
        edit: EditMessage,
        reply: Option<SessionReply>,
    ) -> Result<impl Future<Output = Result<ChangeReceipt, Refusal>> + use<>, Refusal> {
        let digest = request_digests::of_edit(seq, &edit);
        let EditMessage { from, client_msg_id, content_type, body, mentions, if_version } = edit;
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        let by = self.acting_user(actor, from)?;
        let changeable = self.changeable_message(actor, by.as_deref(), &conversation, seq, "edit");
        let changeable = changeable.and_then(|message| match actor {
            // What mentions all already may go on doing so.
            Actor::User(user) if !message.content.mentions_all() => {
                self.check_may_mention(user, &conversation, &mentions).map(|()| message)
            }
            _ => Ok(message),
        });
        let (former_type, refusal) = Self::type_or_refusal(changeable, &client_msg_id)?;
        let content_type = content_type.unwrap_or(former_type);
        let (silent, skip_push) = (false, false);
        let edit = NewMessage {
            client_msg_id,
            content_type,
            body,
            mentions,
            silent,
            skip_push,
            reply_to: None,
            expires: None,
        };
        check_message(&edit)?;
        let entry = NewEntry {
            kind: EntryKind::Edit,
            sender: by.as_deref().map(Sender::of),
            client_msg_id: edit.client_msg_id,
            content_type: edit.content_type,
            body: edit.body.into(),
            mentions: edit.mentions,
            silent: true,
            skip_push: true,
            details: self.desk_details(EntryKind::Edit, &conversation, by.as_deref()),
            request: EntryRequest { digest, refusal, ..EntryRequest::default() },
        };
        let change = MessageChange::Edit {
            if_version,
            keep_replaced: self.config.messages.edit_history,
            edits_max: EDITS_PER_MESSAGE_MAX,
        };
        self.submit_change(actor, conversation, seq, change, entry, reply)
    }

    fn begin_recall(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
        by: Option<String>,
        client_msg_id: Option<String>,
        reply: Option<SessionReply>,
    ) -> Result<impl Future<Output = Result<ChangeReceipt, Refusal>> + use<>, Refusal> {
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        let by = self.acting_user(actor, by)?;
        client_msg_id.as_deref().map_or(Ok(()), |id| check_id("client_msg_id", id))?;
        let digest = request_digests::of_recall(seq, client_msg_id.as_deref());
        let changeable = self.changeable_message(actor, by.as_deref(), &conversation, seq, "recall");
        let (content_type, refusal) = Self::type_or_refusal(changeable, &client_msg_id)?;
        let entry = NewEntry {
            kind: EntryKind::Recall,
            sender: by.as_deref().map(Sender::of),
            client_msg_id,
            content_type,
            body: NO_BODY.into(),
            mentions: vec![],
            silent: true,
            skip_push: true,
            details: self.desk_details(EntryKind::Recall, &conversation, by.as_deref()),
            request: EntryRequest { digest, refusal, ..EntryRequest::default() },
        };
        self.submit_change(actor, conversation, seq, MessageChange::Recall, entry, reply)
    }

    /// The kind of content of a message that may be changed; of one that may not, any, with the refusal that a retry is spared.
    fn type_or_refusal(
        changeable: Result<StoredEntry, Refusal>,
        client_msg_id: &Option<String>,
    ) -> Result<(String, Option<Box<Refusal>>), Refusal> {
        match changeable {
            Ok(message) => Ok((message.content.content_type, None)),
            Err(refusal) => Ok(("text".into(), Some(unless_retry(refusal, client_msg_id)?))),
        }
    }

    /// The user in whose name a change is made: the token's user, or the one whom an app server names.
    pub(crate) fn acting_user(&self, actor: &Actor, named: Option<String>) -> Result<Option<Arc<User>>, Refusal> {
        match (actor, named) {
            (Actor::User(user), None) => Ok(Some(user.clone())),
            (Actor::User(user), Some(named)) if named == user.id => Ok(Some(user.clone())),
            (Actor::User(_), Some(_)) => {
                Err(Refusal::new(ErrorCode::Forbidden, "from: a user token acts only as its own user"))
            }
            (Actor::App, Some(named)) => {
                let user = self.directory.require_user(&named)?;
                check_not_suspended(&user, self.clock.now_ms()).map(|()| Some(user))
            }
            (Actor::App, None) => Ok(None),
        }
    }

    /// The message, if the actor may change it. An app server may change every message; it acts in the name of `by`.
    fn changeable_message(
        &self,
        actor: &Actor,
        by: Option<&User>,
        conversation: &Conversation,
        seq: u64,
        what: &str,
    ) -> Result<StoredEntry, Refusal> {
        self.check_draining()?;
        let role = match by {
            Some(user) if what == "edit" => Some(self.check_may_write(actor, user, conversation, Writing::Content)?),
            Some(user) => Some(self.role_of_member(user, conversation)?),
            None => None,
        };
        self.check_exists_for(actor, conversation, seq)?;
        let message = self.stored_message(conversation, seq)?;
        if let (Actor::User(user), Some(role)) = (actor, role) {
            let is_moderator = role >= Role::Admin && conversation.kind != ConversationKind::Direct;
            if !is_moderator {
                self.check_own_and_recent(user, conversation, &message, what)?;
            }
        }
        Ok(message)
    }

    fn check_own_and_recent(
        &self,
        user: &User,
        conversation: &Conversation,
        message: &StoredEntry,
        what: &str,
    ) -> Result<(), Refusal> {
        if message.content.sender.as_ref().is_none_or(|sender| sender.no != user.no) {
            let who = match conversation.kind {
                ConversationKind::Direct => "only its sender may",
                ConversationKind::Group | ConversationKind::Official => "only its sender, the owner and admins may",
            };
            return Err(Refusal::new(ErrorCode::Forbidden, format!("{who} {what} message {}", message.seq)));
        }
        let windows = &self.config.messages;
        let window = if what == "edit" { windows.edit_window } else { windows.recall_window };
        let window_ms = window[conversation.lane() as usize].as_millis() as u64;
        if self.clock.now_ms() > message.at.saturating_add(window_ms) {
            let seconds = window_ms / 1_000;
            let why = format!("a sender may {what} a message for {seconds} s, and this one is older");
            return Err(Refusal::new(ErrorCode::Forbidden, why));
        }
        Ok(())
    }

    /// The member's role; the two users of a direct conversation are its members.
    pub(crate) fn role_of_member(&self, user: &User, conversation: &Conversation) -> Result<Role, Refusal> {
        if let Some((a, b)) = conversation.pair {
            let is_member = user.no == a || user.no == b;
            return if is_member { Ok(Role::Member) } else { Err(not_a_member(&user.id, &conversation.id)) };
        }
        let membership = self.directory.membership(conversation.no, user.no).map_err(store_refusal)?;
        membership.map(|membership| membership.role).ok_or_else(|| not_a_member(&user.id, &conversation.id))
    }

    /// The message with this `seq`.
    ///
    /// # Errors
    /// `not_found`, `not_a_message`; `store_unavailable`.
    pub fn stored_message(&self, conversation: &Conversation, seq: u64) -> Result<StoredEntry, Refusal> {
        let found = self.store.entries(conversation.no, seq, seq, 1, End::Oldest).map_err(store_refusal)?;
        let message = found.into_iter().next().ok_or_else(|| proposal_refusal(&Rejection::NoSuchEntry(seq)))?;
        match message.content.kind {
            EntryKind::Message => Ok(message),
            _ => Err(proposal_refusal(&Rejection::NotAMessage(seq))),
        }
    }

    /// Hands a change to the committer; the reply goes to a session, or else is what the future yields.
    pub(crate) fn submit_change(
        &self,
        actor: &Actor,
        conversation: Arc<Conversation>,
        target: u64,
        change: MessageChange,
        entry: NewEntry,
        reply: Option<SessionReply>,
    ) -> Result<impl Future<Output = Result<ChangeReceipt, Refusal>> + use<>, Refusal> {
        let flow_key = entry.author().map_or(FlowKey::Conversation(conversation.no), |author| FlowKey::User(author.no));
        let slot = Some(self.committer.reserve(&conversation, flow_key)?);
        let (caller, committed) = oneshot::channel();
        let reply = match reply {
            Some(SessionReply { shard, session, reference }) => Reply::Session { shard, session, reference },
            None => Reply::Caller(caller),
        };
        let proposal = Proposal::ChangeMessage { conversation: conversation.no, target, change, entry };
        let about = Some(conversation.clone());
        let by = Origin::of(actor);
        self.committer.submit(CommitRequest {
            proposal,
            by,
            flow_key,
            conversation: about,
            reply,
            slot,
            stream: None,
        })?;
        Ok(finish_change(conversation, committed))
    }

    /// One entry of a timeline.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`; `store_unavailable`.
    pub fn entry(&self, actor: &Actor, conversation: &str, seq: u64) -> Result<Entry, Refusal> {
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        let view = self.view(actor, &conversation)?;
        let found = self.store.entries(conversation.no, seq, seq, 1, End::Oldest).map_err(store_refusal)?;
        let found = found.into_iter().map(|entry| Found { conversation: conversation.clone(), view, entry });
        let entry = self.present(found.collect())?.pop();
        entry.ok_or_else(|| proposal_refusal(&Rejection::NoSuchEntry(seq)))
    }

    /// The bodies that a message has had, oldest first, as far as they are kept; the newest is the last.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `not_a_message`; `store_unavailable`.
    pub fn body_versions(&self, actor: &Actor, conversation: &str, seq: u64) -> Result<BodyVersions, Refusal> {
        let (_, conversation) = self.enter_at(actor, conversation, seq)?;
        let message = self.stored_message(&conversation, seq)?;
        if let Actor::User(user) = actor
            && message.content.is_hidden()
            && !is_by(user.no, &message.content)
        {
            return Ok(BodyVersions { versions: Vec::new() });
        }
        let mut versions = Vec::new();
        let details = message.content.message_details();
        for edit in &details.edits {
            let found = self.store.entries(conversation.no, *edit, *edit, 1, End::Oldest).map_err(store_refusal)?;
            let Some(entry) = found.into_iter().next() else { continue };
            if let Some(EditDetails { version, replaced: Some(replaced), .. }) = entry.content.edit_details() {
                versions.push(body_version(version.saturating_sub(1), seq, replaced)?);
            }
        }
        if details.recalled.is_none() {
            let newest = tidings_domain::message_changes::body_to_be_replaced(&message);
            versions.push(body_version(details.body_version(), seq, &newest)?);
        }
        Ok(BodyVersions { versions })
    }
}

fn body_version(version: u32, seq: u64, replaced: &ReplacedBody) -> Result<BodyVersion, Refusal> {
    let ReplacedBody { content_type, body, at, by } = replaced.clone();
    let body = serde_json::value::RawValue::from_string(body.into())
        .map_err(|_| Refusal::new(ErrorCode::Internal, format!("a body of message {seq} is damaged")))?;
    Ok(BodyVersion { version, at, by: by.map(|by| by.id), content_type, body })
}

async fn finish_change(
    conversation: Arc<Conversation>,
    committed: oneshot::Receiver<Result<Outcome, Refusal>>,
) -> Result<ChangeReceipt, Refusal> {
    let committed = committed.await.map_err(|_| Refusal::new(ErrorCode::Internal, "the committer has ended"))?;
    match committed? {
        Outcome::MessageChanged { appended, version, .. } => Ok(ChangeReceipt {
            conversation: conversation.id.clone(),
            seq: appended.seq,
            at: appended.at,
            version,
            duplicate: appended.duplicate,
        }),
        Outcome::Rejected(rejection) => Err(proposal_refusal(&rejection)),
        _ => Err(Refusal::new(ErrorCode::Internal, "unexpected outcome")),
    }
}

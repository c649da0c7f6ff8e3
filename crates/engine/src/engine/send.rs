//! Accept: the checks of a message before it is stored.

use crate::{
    commit::{CommitRequest, Reply, receipt},
    engine::Engine,
    fairness::FlowKey,
};
use std::sync::Arc;
use tidings_domain::{
    model::*,
    store::{NewConversation, Outcome, Proposal},
};
use tidings_protocol::{
    depth::check_depth,
    error::{ErrorCode, Refusal},
    http::{NewMessage, SendReceipt, SendRequest},
    ids::{check_id, direct_id, direct_pair},
    limits::*,
};
use tokio::sync::oneshot;

/// Where a message goes, as the sender named it.
#[derive(Debug, Clone, Copy)]
pub enum SendTarget<'a> {
    Conversation(&'a str),
    User(&'a str),
}

/// The session that gets the reply to a send.
#[derive(Debug, Clone, Copy)]
pub struct SessionReply {
    pub shard: usize,
    pub session: u64,
    pub reference: Option<u64>,
}

/// The immediate result of a session's send.
#[derive(Debug, PartialEq)]
pub enum SubmitOutcome {
    /// The send waits for its commit; the reply comes to the shard as a control.
    Pending,
    /// The direct conversation does not exist yet: open it with [`Engine::open_direct`] off the
    /// shard's thread, then submit again. `opener` is the sender, or the account for which the sender acts.
    NeedsDirect { opener: Arc<User>, with: String },
}

/// What a message is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Occasion {
    /// Nothing, or a batch of one sender.
    Single,
    /// A batch of several senders.
    MixedBatch,
    /// A bulk send. Agents of the account have the message in the conversation's history, and are neither handed it nor
    /// shown the conversation until the follower answers.
    BulkSend,
}

impl Engine {
    /// Sends one message; with the receipt it is durable.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`, `not_found`, `not_a_member`, `forbidden`, `client_msg_id_reused`;
    /// `rate_limited` for users; `queue_full`, `store_unavailable` and `draining`: not acknowledged, a retry with the
    /// same `client_msg_id` is safe.
    pub async fn send(&self, actor: &Actor, request: SendRequest) -> Result<SendReceipt, Refusal> {
        self.send_as(actor, request, false).await
    }

    /// Sends a message, whole or to grow.
    pub(super) async fn send_as(
        &self,
        actor: &Actor,
        request: SendRequest,
        grows: bool,
    ) -> Result<SendReceipt, Refusal> {
        let (conversation, answer) = self.begin_send(actor, request, Occasion::Single, grows).await?;
        finish_send(&conversation, answer).await
    }

    /// Sends messages in order, in as few commits as possible. Each has its own result.
    ///
    /// # Errors
    /// `limit_exceeded` for too many messages; a result has those of [`Engine::send`].
    pub async fn send_batch(
        &self,
        actor: &Actor,
        requests: Vec<SendRequest>,
    ) -> Result<Vec<Result<SendReceipt, Refusal>>, Refusal> {
        if requests.len() > SEND_BATCH_MAX {
            return Err(Refusal::limit("messages in a batch", SEND_BATCH_MAX as u64, requests.len() as u64));
        }
        // A batch of several senders is ordered as a whole, so that it must wait in one queue.
        let first = requests.first().and_then(|request| request.from.as_deref());
        let is_mixed = requests.iter().any(|request| request.from.as_deref() != first);
        let occasion = if is_mixed { Occasion::MixedBatch } else { Occasion::Single };
        Ok(self.send_all(actor, requests, occasion).await)
    }

    /// Sends messages in order; each has its own result.
    pub(super) async fn send_all(
        &self,
        actor: &Actor,
        requests: Vec<SendRequest>,
        occasion: Occasion,
    ) -> Vec<Result<SendReceipt, Refusal>> {
        let mut begun = Vec::with_capacity(requests.len());
        for request in requests {
            begun.push(self.begin_send(actor, request, occasion, false).await);
        }
        let mut results = Vec::with_capacity(begun.len());
        for begun in begun {
            results.push(match begun {
                Ok((conversation, answer)) => finish_send(&conversation, answer).await,
                Err(refusal) => Err(refusal),
            });
        }
        results
    }

    async fn begin_send(
        &self,
        actor: &Actor,
        request: SendRequest,
        occasion: Occasion,
        grows: bool,
    ) -> Result<(Arc<Conversation>, oneshot::Receiver<Result<Outcome, Refusal>>), Refusal> {
        let (conversation, to, from, message) = request.into_parts();
        let sender = match (actor, from) {
            (Actor::User(user), None) => Some(user.clone()),
            (Actor::User(user), Some(from)) if from == user.id => Some(user.clone()),
            (Actor::User(user), Some(from)) => {
                let why = "from: a user token sends only as its own user, or as an account that it answers for";
                let account = self.as_account_named(user, &from)?;
                Some(account.ok_or_else(|| Refusal::new(ErrorCode::Forbidden, why))?)
            }
            (Actor::App, Some(from)) => Some(self.directory.require_user(&from)?),
            (Actor::App, None) => None,
        };
        let target = match (&conversation, &to) {
            (Some(id), None) => SendTarget::Conversation(id),
            (None, Some(user)) => SendTarget::User(user),
            _ => return Err(Refusal::field("conversation", "give either conversation or to")),
        };
        let (actor, sender) = self.act_in(actor, sender, target)?;
        let actor = &actor;
        let conversation = match self.resolve_target(sender.as_deref(), target)? {
            Ok(conversation) => {
                if let Actor::User(user) = actor {
                    check_may_know(user, &conversation)?;
                }
                conversation
            }
            Err(with) => {
                let sender = sender.as_ref().ok_or_else(|| Refusal::field("from", "to needs a sender"))?;
                self.check_may_open(actor, sender, &with)?;
                self.open_direct(sender, &with).await?
            }
        };
        let mut proposal = self.accept(actor, sender.as_deref(), &conversation, message)?;
        if let (Occasion::BulkSend, Proposal::Append { entry, .. }) = (occasion, &mut proposal)
            && let Some(details) = &mut entry.details
        {
            details.for_customer = details.desk.is_some();
        }
        let stream = if grows { self.prepare_stream(actor, &mut proposal, None)? } else { None };
        let flow_key = match sender {
            _ if occasion == Occasion::MixedBatch => FlowKey::Bulk,
            Some(sender) => FlowKey::User(sender.person()),
            None => FlowKey::Conversation(conversation.no),
        };
        let slot = Some(self.committer.reserve(&conversation, flow_key)?);
        let (reply, answer) = oneshot::channel();
        self.committer.submit(CommitRequest {
            proposal,
            flow_key,
            conversation: Some(conversation.clone()),
            reply: Reply::Caller(reply),
            slot,
            stream,
        })?;
        Ok((conversation, answer))
    }

    /// Submits a session's send from its shard's thread, without waiting.
    ///
    /// # Errors
    /// Those of [`Engine::send`] that are found before the commit; the others come with the reply.
    pub fn submit(
        &self,
        sender: &Arc<User>,
        target: SendTarget<'_>,
        message: NewMessage,
        reply: SessionReply,
    ) -> Result<SubmitOutcome, Refusal> {
        self.submit_as(sender, target, message, reply, false)
    }

    pub(super) fn submit_as(
        &self,
        sender: &Arc<User>,
        target: SendTarget<'_>,
        message: NewMessage,
        reply: SessionReply,
        grows: bool,
    ) -> Result<SubmitOutcome, Refusal> {
        let acting = match target {
            SendTarget::Conversation(id) => self.acting(sender, id)?,
            SendTarget::User(_) => sender.clone(),
        };
        let sender = &acting;
        let conversation = match self.resolve_target(Some(sender), target)? {
            Ok(conversation) => {
                check_may_know(sender, &conversation)?;
                conversation
            }
            Err(with) => {
                self.check_may_open(&Actor::User(sender.clone()), sender, &with)?;
                return Ok(SubmitOutcome::NeedsDirect { opener: acting, with });
            }
        };
        let actor = Actor::User(sender.clone());
        let SessionReply { shard, session, reference } = reply;
        let mut proposal = self.accept(&actor, Some(sender), &conversation, message)?;
        let stream = if grows { self.prepare_stream(&actor, &mut proposal, Some((shard, session)))? } else { None };
        let flow_key = FlowKey::User(sender.person());
        let slot = Some(self.committer.reserve(&conversation, flow_key)?);
        self.committer.submit(CommitRequest {
            proposal,
            flow_key,
            conversation: Some(conversation),
            reply: Reply::Session { shard, session, reference },
            slot,
            stream,
        })?;
        Ok(SubmitOutcome::Pending)
    }

    /// The conversation of a target, or the user with whom a direct one must be opened first.
    fn resolve_target(
        &self,
        sender: Option<&User>,
        target: SendTarget<'_>,
    ) -> Result<Result<Arc<Conversation>, String>, Refusal> {
        let direct;
        let id = match (target, sender) {
            (SendTarget::Conversation(id), _) => id,
            (SendTarget::User(user), Some(sender)) => {
                direct = direct_id(&sender.id, user);
                &direct
            }
            (SendTarget::User(_), None) => return Err(Refusal::field("from", "to needs a sender")),
        };
        let found = self.directory.conversation_by_id(id).map_err(tidings_domain::refusals::store_refusal)?;
        match (found.as_deref(), direct_pair(id), sender) {
            (Some(_), _, _) => Ok(found.ok_or_else(String::new)),
            // A direct conversation is opened by its first message.
            (None, Some((a, b)), Some(sender)) if a == sender.id => Ok(Err(b.to_owned())),
            (None, Some((a, b)), Some(sender)) if b == sender.id => Ok(Err(a.to_owned())),
            _ => Err(Refusal::not_found("conversation", id)),
        }
    }

    /// Whether a message to this target opens a direct conversation first. `from`: the account for which the caller sends.
    pub fn would_open(&self, sender: &Arc<User>, from: Option<&str>, target: SendTarget<'_>) -> bool {
        let account = from.and_then(|from| self.as_account_named(sender, from).ok().flatten());
        let sender = match (account, target) {
            (Some(account), _) => Ok(account),
            (None, SendTarget::Conversation(id)) => self.acting(sender, id),
            (None, SendTarget::User(_)) => Ok(sender.clone()),
        };
        sender.is_ok_and(|sender| self.resolve_target(Some(&sender), target).is_ok_and(|found| found.is_err()))
    }

    /// The caller and the sender of a message: an agent sends as the account, in the account's conversations.
    fn act_in(
        &self,
        actor: &Actor,
        sender: Option<Arc<User>>,
        target: SendTarget<'_>,
    ) -> Result<(Actor, Option<Arc<User>>), Refusal> {
        let Some(sender) = sender else { return Ok((actor.clone(), None)) };
        let sender = match target {
            SendTarget::Conversation(id) => self.acting(&sender, id)?,
            SendTarget::User(_) => sender,
        };
        let actor = match actor {
            Actor::App => Actor::App,
            Actor::User(_) => Actor::User(sender.clone()),
        };
        Ok((actor, Some(sender)))
    }

    /// Opens the direct conversation of two users, or answers the existing one.
    ///
    /// # Errors
    /// `not_found`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn open_direct(&self, user: &Arc<User>, with: &str) -> Result<Arc<Conversation>, Refusal> {
        let other = self.directory.require_user(with)?;
        let desks = &self.directory.desks;
        if desks.of_user(user.no).is_some() && desks.of_user(other.no).is_some() {
            return Err(Refusal::new(ErrorCode::Forbidden, "accounts have no conversations with each other"));
        }
        let (first, second) = if user.id <= other.id { (user, &other) } else { (&other, user) };
        let mut members = vec![(first.no, Role::Member)];
        if first.no != second.no {
            members.push((second.no, Role::Member));
        }
        let proposal = Proposal::CreateConversation(NewConversation {
            id: direct_id(&user.id, with),
            kind: ConversationKind::Direct,
            pair: Some((first.no, second.no)),
            name: None,
            avatar: None,
            attributes: None,
            members,
            settings: ConversationSettings::default(),
        });
        match self.committer.propose_as(user.person(), proposal).await? {
            Outcome::Conversation { conversation, .. } => Ok(Arc::new(conversation)),
            _ => Err(Refusal::new(ErrorCode::Internal, "an outcome of another kind")),
        }
    }

    /// Checks that a direct conversation may be opened. That takes a commit before the one of its first message, so
    /// that it counts as a send of its own.
    pub(crate) fn check_may_open(&self, actor: &Actor, sender: &User, with: &str) -> Result<(), Refusal> {
        self.check_draining()?;
        match actor {
            Actor::User(_) => {
                self.rate.check(sender.person())?;
                self.check_opening_limits(sender, with)
            }
            Actor::App => Ok(()),
        }
    }

    pub(crate) fn check_draining(&self) -> Result<(), Refusal> {
        if self.is_draining() {
            let why = "the server is draining; nothing was stored";
            return Err(Refusal::new(ErrorCode::Draining, why).retry_after(1_000));
        }
        Ok(())
    }

    /// Checks a message against limits, membership and role, and makes the proposal.
    fn accept(
        &self,
        actor: &Actor,
        sender: Option<&User>,
        conversation: &Conversation,
        message: NewMessage,
    ) -> Result<Proposal, Refusal> {
        self.check_draining()?;
        check_message(&message)?;
        if let Some(sender) = sender {
            self.check_may_send(actor, sender, conversation)?;
            if matches!(actor, Actor::User(_)) {
                self.check_may_mention(sender, conversation, &message.mentions)?;
                self.rate.check(sender.person())?;
            }
        }
        let NewMessage { client_msg_id, content_type, body, mentions, silent, skip_push, reply_to } = message;
        let mut details = self.desk_details(conversation, sender);
        if let Some(reply_to) = reply_to {
            let details: &mut EntryDetails = details.get_or_insert_default();
            details.reply_to = reply_to;
        }
        let entry = NewEntry {
            kind: EntryKind::Message,
            sender: sender.map(|s| Sender { no: s.no, id: s.id.clone() }),
            client_msg_id,
            content_type,
            body: body.into(),
            mentions,
            silent,
            skip_push,
            details,
        };
        Ok(Proposal::Append { conversation: conversation.no, entry })
    }

    pub(super) fn check_may_send(
        &self,
        actor: &Actor,
        sender: &User,
        conversation: &Conversation,
    ) -> Result<(), Refusal> {
        if let Some((a, b)) = conversation.pair {
            return if sender.no == a || sender.no == b {
                Ok(())
            } else {
                Err(not_a_member(&sender.id, &conversation.id))
            };
        }
        let membership =
            self.directory.membership(conversation.no, sender.no).map_err(tidings_domain::refusals::store_refusal)?;
        let Some(membership) = membership else { return Err(not_a_member(&sender.id, &conversation.id)) };
        let follows_only = conversation.kind == ConversationKind::Official && membership.role == Role::Member;
        if follows_only && matches!(actor, Actor::User(_)) {
            return Err(Refusal::new(ErrorCode::Forbidden, "only the owner and admins of an official account send"));
        }
        Ok(())
    }
}

/// Hides a direct conversation of two others from a user: the refusal is that of a conversation that does not exist.
/// Checked before all else, so that no other refusal reveals it. App servers may know every conversation.
fn check_may_know(user: &User, conversation: &Conversation) -> Result<(), Refusal> {
    match conversation.pair {
        Some((a, b)) if user.no != a && user.no != b => Err(Refusal::not_found("conversation", &conversation.id)),
        _ => Ok(()),
    }
}

pub(crate) fn not_a_member(user: &str, conversation: &str) -> Refusal {
    Refusal::new(ErrorCode::NotAMember, format!("user {user:?} is not a member of conversation {conversation:?}"))
}

async fn finish_send(
    conversation: &Conversation,
    answer: oneshot::Receiver<Result<Outcome, Refusal>>,
) -> Result<SendReceipt, Refusal> {
    match answer.await {
        Ok(outcome) => receipt(&outcome?, Some(conversation)),
        Err(_) => Err(Refusal::new(ErrorCode::Internal, "the committer ended")),
    }
}

pub(crate) fn check_message(message: &NewMessage) -> Result<(), Refusal> {
    let body = message.body.get().len();
    if body > BODY_BYTES_MAX {
        return Err(Refusal::limit("body (bytes)", BODY_BYTES_MAX as u64, body as u64));
    }
    check_depth("body", message.body.get())?;
    if message.content_type.is_empty() || message.content_type.len() > TYPE_BYTES_MAX {
        let asked = message.content_type.len() as u64;
        return Err(Refusal::limit("type (bytes, at least 1)", TYPE_BYTES_MAX as u64, asked));
    }
    if message.mentions.len() > MENTIONS_MAX {
        return Err(Refusal::limit("mentions", MENTIONS_MAX as u64, message.mentions.len() as u64));
    }
    for mention in message.mentions.iter().filter(|m| *m != MENTION_ALL) {
        check_id("mentions", mention)?;
    }
    if message.reply_to == Some(0) {
        return Err(Refusal::field("reply_to", "is the seq of a message, from 1 on"));
    }
    message.client_msg_id.as_deref().map_or(Ok(()), |id| check_id("client_msg_id", id))
}

impl Engine {
    /// Tells the live members of a conversation that the user is typing; nothing is stored.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`; `forbidden` for a user who may not send; `store_unavailable`.
    pub fn typing(&self, user: &Arc<User>, conversation: &str) -> Result<(), Refusal> {
        let (ref user, conversation) = self.enter_as(user, conversation)?;
        self.check_may_send(&Actor::User(user.clone()), user, &conversation)?;
        self.hub.typing(&conversation, user.no, &user.id.as_str().into());
        Ok(())
    }
}

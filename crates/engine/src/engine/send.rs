//! Accept: the checks of a message before it is stored.

use crate::{
    Engine,
    access::{Caller, Operation, Writing, blocked},
    commit::{CommitRequest, Origin, Reply, receipt},
    engine::expiring::check_expires,
    fairness::FlowKey,
    request_digests,
    shards::SessionReply,
};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::{hash::BuildHasher, sync::Arc};
use tidings_domain::{
    model::*,
    refusals::{store_refusal, unexpected_outcome},
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

/// Tells the messages of one sender in one conversation from others of a batch, however the request names the two.
fn flow_in_batch(caller: &Caller, request: &SendRequest) -> u64 {
    let own = if let Actor::User(user) = &caller.actor { Some(&*user.id) } else { None };
    let (from, to) = (request.from.as_deref().or(own), request.to.as_deref());
    let pair = from.zip(to).map(|(from, to)| (from.min(to), from.max(to)));
    let pair = request.conversation.as_deref().map_or(pair, direct_pair);
    FxBuildHasher.hash_one((from, pair, request.conversation.as_deref().filter(|_| pair.is_none())))
}

/// Where a message goes, as the sender named it.
#[derive(Debug, Clone, Copy)]
pub enum SendTarget<'a> {
    Conversation(&'a str),
    User(&'a str),
}

impl<'a> SendTarget<'a> {
    /// The target that a request names.
    ///
    /// # Errors
    /// `invalid_field`: it names both or neither.
    pub fn named(conversation: Option<&'a str>, to: Option<&'a str>) -> Result<SendTarget<'a>, Refusal> {
        match (conversation, to) {
            (Some(id), None) => Ok(SendTarget::Conversation(id)),
            (None, Some(user)) => Ok(SendTarget::User(user)),
            _ => Err(Refusal::field("conversation", "give either conversation or to")),
        }
    }
}

/// What a message is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// Nothing, or a batch of one sender.
    Single,
    /// A batch of several senders.
    MixedBatch,
    /// A bulk send. Agents of the account have the message in the conversation's history, and are neither handed it nor
    /// shown the conversation until the follower answers.
    BulkSend,
}

/// A send that waits for its commit: its conversation, and where the outcome comes.
pub(crate) type BegunSend = (Arc<Conversation>, oneshot::Receiver<Result<Outcome, Refusal>>);

/// Messages that were accepted or refused one by one, and wait for their commits.
pub struct BegunBatch(Vec<Result<BegunSend, Refusal>>);

impl BegunBatch {
    /// Waits for the commits; each message has its own result.
    pub async fn finish(self) -> Vec<Result<SendReceipt, Refusal>> {
        let mut results = Vec::with_capacity(self.0.len());
        for begun in self.0 {
            results.push(match begun {
                Ok((conversation, answer)) => finish_send(&conversation, answer).await,
                Err(refusal) => Err(refusal),
            });
        }
        results
    }
}

/// How a message is sent.
#[derive(Debug, Clone, Copy)]
struct Manner {
    occasion: Occasion,
    grows: bool,
    /// The session with which a message that grows ends, by shard and number.
    session: Option<(usize, u64)>,
}

impl Engine {
    /// Sends one message; with the receipt it is durable.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`, `not_found`, `not_a_member`, `forbidden`, `client_msg_id_reused`;
    /// `rate_limited` for users; `queue_full`, `store_unavailable` and `draining`: not acknowledged, a retry with the
    /// same `client_msg_id` is safe.
    pub async fn send(&self, caller: impl Into<Caller>, request: SendRequest) -> Result<SendReceipt, Refusal> {
        self.send_as(&caller.into(), request, false).await
    }

    /// Sends a message that grows; with the receipt it is durable. A retry with the same `client_msg_id` answers with the
    /// first result, whether the message still grows or not.
    ///
    /// # Errors
    /// Those of [`Engine::send`]; `queue_full` also if too many messages grow.
    pub async fn begin_stream(&self, caller: impl Into<Caller>, request: SendRequest) -> Result<SendReceipt, Refusal> {
        self.send_as(&caller.into(), request, true).await
    }

    /// Sends a message, whole or to grow.
    async fn send_as(&self, caller: &Caller, request: SendRequest, grows: bool) -> Result<SendReceipt, Refusal> {
        let (conversation, answer) = self.begin_send(caller, request, Occasion::Single, grows)?;
        finish_send(&conversation, answer).await
    }

    /// Sends messages in order, in as few commits as possible. Each has its own result.
    ///
    /// # Errors
    /// Those of [`Engine::begin_batch`]; a result has those of [`Engine::send`].
    pub async fn send_batch(
        &self,
        caller: impl Into<Caller>,
        requests: Vec<SendRequest>,
    ) -> Result<Vec<Result<SendReceipt, Refusal>>, Refusal> {
        Ok(self.begin_batch(caller, requests)?.finish().await)
    }

    /// Accepts or refuses each message of a batch, without waiting for the commits.
    ///
    /// # Errors
    /// `limit_exceeded` for too many messages, and `forbidden` if one of them would open a conversation and the caller's token does
    /// not allow that.
    pub fn begin_batch(&self, caller: impl Into<Caller>, requests: Vec<SendRequest>) -> Result<BegunBatch, Refusal> {
        let caller = caller.into();
        requests.iter().try_for_each(|request| self.check_opens(&caller, request))?;
        if requests.len() > SEND_BATCH_MAX {
            return Err(Refusal::limit("messages in a batch", SEND_BATCH_MAX as u64, requests.len() as u64));
        }
        // A batch of several senders is ordered as a whole, so that it must wait in one queue.
        let first = requests.first().and_then(|request| request.from.as_deref());
        let is_mixed = requests.iter().any(|request| request.from.as_deref() != first);
        let occasion = if is_mixed { Occasion::MixedBatch } else { Occasion::Single };
        Ok(self.begin_all(&caller, requests, occasion))
    }

    /// Begins messages in order; each has its own result. Behind one that found no room, those of the same sender in the same
    /// conversation find none either: they would overtake it.
    pub(crate) fn begin_all(&self, caller: &Caller, requests: Vec<SendRequest>, occasion: Occasion) -> BegunBatch {
        let mut held_up: FxHashMap<u64, Refusal> = FxHashMap::default();
        let begin = |request: SendRequest| {
            let flow = flow_in_batch(caller, &request);
            if let Some(refusal) = held_up.get(&flow) {
                return Err(refusal.clone());
            }
            self.begin_send(caller, request, occasion, false).inspect_err(|refusal| {
                if matches!(refusal.code, ErrorCode::QueueFull | ErrorCode::RateLimited) {
                    held_up.insert(flow, refusal.clone());
                }
            })
        };
        BegunBatch(requests.into_iter().map(begin).collect())
    }

    pub(crate) fn begin_send(
        &self,
        caller: &Caller,
        request: SendRequest,
        occasion: Occasion,
        grows: bool,
    ) -> Result<BegunSend, Refusal> {
        let (conversation, to, from, message) = request.into_parts();
        let sender = match (&caller.actor, from) {
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
        let target = SendTarget::named(conversation.as_deref(), to.as_deref())?;
        let (reply, answer) = oneshot::channel();
        let manner = Manner { occasion, grows, session: None };
        let conversation = self.submit_message(caller, sender, target, message, manner, Reply::Caller(reply))?;
        Ok((conversation, answer))
    }

    /// Submits a session's send from its shard's thread, without waiting.
    ///
    /// # Errors
    /// Those of [`Engine::send`] that are found before the commit; the others come with the reply.
    pub fn submit(
        &self,
        caller: impl Into<Caller>,
        target: SendTarget<'_>,
        message: NewMessage,
        reply: SessionReply,
    ) -> Result<(), Refusal> {
        self.submit_as(&caller.into(), target, message, reply, false)
    }

    /// Submits a session's message that grows, as [`Engine::submit`] does a send. The message ends with the session.
    ///
    /// # Errors
    /// Those of [`Engine::begin_stream`] that are found before the commit.
    pub fn submit_stream(
        &self,
        caller: impl Into<Caller>,
        target: SendTarget<'_>,
        message: NewMessage,
        reply: SessionReply,
    ) -> Result<(), Refusal> {
        self.submit_as(&caller.into(), target, message, reply, true)
    }

    fn submit_as(
        &self,
        caller: &Caller,
        target: SendTarget<'_>,
        message: NewMessage,
        reply: SessionReply,
        grows: bool,
    ) -> Result<(), Refusal> {
        let SessionReply { shard, session, reference } = reply;
        let manner = Manner { occasion: Occasion::Single, grows, session: Some((shard, session)) };
        let reply = Reply::Session { shard, session, reference };
        self.submit_message(caller, caller.actor.user().cloned(), target, message, manner, reply).map(drop)
    }

    /// The path of every send: accepts a message and hands it to the committer; answers its conversation. A direct conversation
    /// that does not exist yet is opened by the message in the same commit: a message that is not stored opens none.
    fn submit_message(
        &self,
        caller: &Caller,
        sender: Option<Arc<User>>,
        target: SendTarget<'_>,
        message: NewMessage,
        manner: Manner,
        reply: Reply,
    ) -> Result<Arc<Conversation>, Refusal> {
        let (ref actor, ref sender) = self.act_in(&caller.actor, sender, target)?;
        let (conversation, new) = match self.resolve_target(sender.as_deref(), target)? {
            Ok(conversation) => (conversation, None),
            Err(with) => {
                caller.scopes.check(Operation::OpenDirect)?;
                let sender = sender.as_ref().ok_or_else(|| Refusal::field("from", "to needs a sender"))?;
                let (conversation, new) = self.new_direct(sender, &with)?;
                (Arc::new(conversation), Some((new, sender, with)))
            }
        };
        let mut entry = self.accept(actor, sender.as_deref(), &conversation, message, manner.grows)?;
        if let (Occasion::BulkSend, Some(details)) = (manner.occasion, &mut entry.details) {
            details.desk.iter_mut().for_each(|desk| desk.for_customer = true);
        }
        // What can only be a retry begins nothing.
        let stream = if manner.grows && entry.request.refusal.is_none() {
            let counted = new.is_none().then_some(conversation.no);
            Some(self.prepare_stream(actor, counted, &mut entry, manner.session)?)
        } else {
            None
        };
        let proposal = match new {
            Some((new, sender, with)) => {
                self.check_may_open(actor, sender, &with)?;
                Proposal::OpenDirect { new: Box::new(new), entry }
            }
            None => Proposal::Append { conversation: conversation.no, entry },
        };
        let flow_key = match sender {
            _ if manner.occasion == Occasion::MixedBatch => FlowKey::Bulk,
            Some(sender) => FlowKey::User(sender.person()),
            None => FlowKey::Conversation(conversation.no),
        };
        let slot = Some(self.committer.reserve(&conversation, flow_key)?);
        let about = Some(conversation.clone());
        let by = match manner.occasion {
            Occasion::Single | Occasion::MixedBatch => Origin::of(actor),
            Occasion::BulkSend => Origin::Server,
        };
        self.committer.submit(CommitRequest { proposal, by, flow_key, conversation: about, reply, slot, stream })?;
        Ok(conversation)
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
        let found = self.directory.conversation_by_id(id).map_err(store_refusal)?;
        match (found.as_deref(), direct_pair(id), sender) {
            (Some(_), _, _) => Ok(found.ok_or_else(String::new)),
            // A direct conversation is opened by its first message.
            (None, Some((a, b)), Some(sender)) if a == sender.id => Ok(Err(b.to_owned())),
            (None, Some((a, b)), Some(sender)) if b == sender.id => Ok(Err(a.to_owned())),
            _ => Err(Refusal::not_found("conversation", id)),
        }
    }

    /// Refuses a message of a batch that would open a direct conversation, if the caller's token does not allow that.
    pub(crate) fn check_opens(&self, caller: &Caller, request: &SendRequest) -> Result<(), Refusal> {
        let Some(user) = caller.actor.user().filter(|_| !caller.scopes.allow(Operation::OpenDirect)) else {
            return Ok(());
        };
        // What else is wrong with the message is in its own result.
        let Ok(target) = SendTarget::named(request.conversation.as_deref(), request.to.as_deref()) else {
            return Ok(());
        };
        let account = request.from.as_deref().and_then(|from| self.as_account_named(user, from).ok().flatten());
        let sender = Some(account.unwrap_or_else(|| user.clone()));
        let found = self.act_in(&caller.actor, sender, target);
        match found.and_then(|(_, sender)| self.resolve_target(sender.as_deref(), target)) {
            Ok(Err(_)) => caller.scopes.check(Operation::OpenDirect),
            Ok(Ok(_)) | Err(_) => Ok(()),
        }
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
    /// `not_found`; `rate_limited` for users; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub(crate) async fn open_direct(
        &self,
        actor: &Actor,
        user: &Arc<User>,
        with: &str,
    ) -> Result<Arc<Conversation>, Refusal> {
        let (_, new) = self.new_direct(user, with)?;
        match self.committer.propose(actor, None, Proposal::CreateConversation(new)).await? {
            Outcome::Conversation { conversation, .. } => Ok(Arc::new(conversation)),
            _ => Err(unexpected_outcome()),
        }
    }

    /// The direct conversation of two users as it will be, without a number, and the request to create it.
    ///
    /// # Errors
    /// `not_found`, `forbidden`; `store_unavailable`.
    pub(crate) fn new_direct(&self, user: &Arc<User>, with: &str) -> Result<(Conversation, NewConversation), Refusal> {
        let other = self.directory.require_user(with)?;
        let blocks = self.directory.pair_blocks((user.no, other.no)).map_err(store_refusal)?;
        if !blocks.is_none() {
            return Err(blocked(true, blocks));
        }
        let desks = &self.directory.desks;
        if desks.of_user(user.no).is_some() && desks.of_user(other.no).is_some() {
            return Err(Refusal::new(ErrorCode::Forbidden, "accounts have no conversations with each other"));
        }
        let (first, second) = if user.id <= other.id { (user, &other) } else { (&other, user) };
        let mut members = vec![(first.no, Role::Member)];
        if first.no != second.no {
            members.push((second.no, Role::Member));
        }
        let (id, kind, pair) = (direct_id(&user.id, with), ConversationKind::Direct, Some((first.no, second.no)));
        let settings = ConversationSettings::default();
        let conversation = Conversation {
            no: ConversationNo(0),
            id: id.clone(),
            kind,
            pair,
            name: None,
            avatar: None,
            attributes: None,
            created_at: self.clock.now_ms(),
            member_count: members.len() as u64,
            settings: settings.clone(),
            blocks,
        };
        let new = NewConversation { id, kind, pair, name: None, avatar: None, attributes: None, members, settings };
        Ok((conversation, new))
    }

    /// Checks that a direct conversation may be opened, and takes it from the rates of both users.
    pub(crate) fn check_may_open(&self, actor: &Actor, opener: &User, with: &str) -> Result<(), Refusal> {
        self.check_draining()?;
        match actor {
            Actor::User(_) => self.check_opening_limits(opener, with),
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

    /// Checks a message against limits, membership and role, and makes the entry.
    fn accept(
        &self,
        actor: &Actor,
        sender: Option<&User>,
        conversation: &Conversation,
        message: NewMessage,
        grows: bool,
    ) -> Result<NewEntry, Refusal> {
        let rights = sender.map_or(Ok(Role::Owner), |sender| self.check_rights(actor, sender, conversation, &message));
        let is_slowed = |role| role < Role::Admin && matches!(actor, Actor::User(_));
        let slow_mode_ms = conversation.slow_mode_ms().filter(|_| rights.as_ref().is_ok_and(|role| is_slowed(*role)));
        let refusal =
            rights.map_or_else(|refusal| unless_retry(refusal, &message.client_msg_id).map(Some), |_| Ok(None))?;
        let checked = self.check_draining().and_then(|()| check_message(&message));
        if let Err(other) = checked {
            return Err(refusal.map_or(other, |refusal| *refusal));
        }
        let digest = request_digests::of_send(&message, grows);
        let expires = self.expiry_of(conversation, &message)?;
        let NewMessage { client_msg_id, content_type, body, mentions, silent, skip_push, reply_to, .. } = message;
        let mut entry = NewEntry {
            kind: EntryKind::Message,
            sender: sender.map(|s| Sender { no: s.no, id: s.id.clone() }),
            client_msg_id,
            content_type,
            body: body.into(),
            mentions,
            silent,
            skip_push,
            details: self.desk_details(EntryKind::Message, conversation, sender),
            request: EntryRequest { digest, refusal, slow_mode_ms, import: None },
        };
        if let Some(answered) = reply_to
            && let Some(details) = entry.message_details_mut()
        {
            details.reply_to = Some(AnsweredMessage::at(answered));
        }
        if expires.is_some()
            && let Some(details) = entry.message_details_mut()
        {
            details.expires = expires;
        }
        Ok(entry)
    }

    /// Checks that the actor may know of the conversation, and may send this as the sender; answers the sender's role.
    fn check_rights(
        &self,
        actor: &Actor,
        sender: &User,
        conversation: &Conversation,
        message: &NewMessage,
    ) -> Result<Role, Refusal> {
        if let Actor::User(user) = actor {
            check_may_know(user, conversation)?;
        }
        let role = self.check_may_write(actor, sender, conversation, Writing::Content)?;
        if let Actor::User(_) = actor {
            self.check_may_mention(sender, conversation, &message.mentions)?;
        }
        let answered = message.reply_to.filter(|seq| *seq > 0);
        answered.map_or(Ok(()), |seq| self.check_exists_for(actor, conversation, seq))?;
        Ok(role)
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

/// Keeps the refusal of a request that may be a retry from after its author lost a right: the commit answers with the first
/// result, or with the refusal if there is none.
pub(crate) fn unless_retry(refusal: Refusal, client_msg_id: &Option<String>) -> Result<Box<Refusal>, Refusal> {
    match refusal.code {
        ErrorCode::NotAMember
        | ErrorCode::Muted
        | ErrorCode::Forbidden
        | ErrorCode::NotFound
        | ErrorCode::UserSuspended
        | ErrorCode::Blocked
            if client_msg_id.is_some() =>
        {
            Ok(Box::new(refusal))
        }
        _ => Err(refusal),
    }
}

pub(crate) async fn finish_send(
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
        return Err(Refusal::field("reply_to", "must be the seq of a message, at least 1"));
    }
    message.expires.as_ref().map_or(Ok(()), check_expires)?;
    message.client_msg_id.as_deref().map_or(Ok(()), |id| check_id("client_msg_id", id))
}

impl Engine {
    /// Tells the live members of a conversation that the user is typing; nothing is stored.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `muted`; `forbidden` for a user who may not send; `store_unavailable`.
    pub fn typing(&self, user: &Arc<User>, conversation: &str) -> Result<(), Refusal> {
        let (ref user, conversation) = self.enter_as(user, conversation)?;
        self.check_may_write(&Actor::User(user.clone()), user, &conversation, Writing::Content)?;
        self.hub.typing(&conversation, user.no, &user.id.as_str().into());
        Ok(())
    }
}

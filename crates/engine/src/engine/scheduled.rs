//! Messages for a later time: the leader keeps them, and sends each when its time has come, as if its sender did so then. That a message
//! is sent once rests on its `client_msg_id`, as for every send: a crash between the send and the removal of its rows sends it again
//! under the same id, and is answered with the first result.

use crate::{
    Engine,
    access::{Caller, check_not_suspended},
    engine::send::{Occasion, check_message},
    paging::page_limit,
    request_digests,
};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tidings_domain::{
    chat_rows::{decode, encode, feed_notes_key},
    feed_note::FeedNote,
    function::Function,
    gates::Gate,
    leadership::Term,
    model::*,
    refusals::{leader_unavailable, not_a_member, store_refusal},
    scheduled::*,
    store::{RowChange, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    limits::{SCHEDULED_MAX, SCHEDULED_OF_SENDER_MAX, SCHEDULED_PAGE_MAX},
};

/// Messages that are sent together.
const SENT_AT_ONCE: usize = 100;
const ROWS_AT_ONCE: usize = 1_000;
/// The shortest and the longest pause before a message is tried again that was refused for now.
const AGAIN_AFTER_MS: std::ops::RangeInclusive<u64> = 1_000..=60 * 60 * 1_000;
/// How long a message that has failed is kept.
const FAILED_KEPT_MS: u64 = 30 * 24 * 60 * 60 * 1_000;

/// What the leader knows of all scheduled messages in its term.
pub(crate) struct Schedule {
    term: Term,
    /// How many there are.
    total: usize,
    /// The highest number that was given. No number appears twice: it is part of the id under which a message is sent.
    last_number: u64,
    /// Nothing is due before this time.
    next_due: u64,
    /// Messages that were refused for now: they hold up no others.
    postponed: FxHashMap<(UserNo, u64), Postponed>,
}

/// A message that was refused for now.
#[derive(Debug, Clone, Copy)]
struct Postponed {
    /// When it is tried again.
    until: u64,
    /// The refusal says for certain that it was not stored: it can be changed and cancelled meanwhile.
    is_unsent: bool,
}

impl Engine {
    /// Accepts a message for a later time: with the answer it is durable. A retry with the same `client_msg_id` answers with the first
    /// one, as long as that is not sent. Blocks.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`, `not_found`, `not_a_member`, `forbidden`, `client_msg_id_reused`, `not_yet_enabled`;
    /// `store_unavailable`, `node_unavailable` and `draining`: nothing was stored.
    pub fn schedule_message(&self, caller: &Caller, new: ScheduleMessage) -> Result<ScheduledMessageView, Refusal> {
        self.gates.require(Gate::ScheduledMessages)?;
        self.check_draining()?;
        let ScheduleMessage { send_at, message } = new;
        self.check_send_at(send_at)?;
        self.check_opens(caller, &message)?;
        let (conversation, to, from, message) = message.into_parts();
        check_message(&message)?;
        message.expires.map_or(Ok(()), |_| self.gates.require(Gate::DisappearingMessages))?;
        let (sender, account) = self.scheduling_sender(caller, from.as_deref())?;
        let conversation = match (&conversation, &to) {
            (Some(id), None) => {
                let found = self.directory.require_conversation_by(&caller.actor, id)?;
                if let Actor::User(user) = &caller.actor
                    && account.is_none()
                    && self.directory.membership(found.no, user.no).map_err(store_refusal)?.is_none()
                {
                    return Err(not_a_member(&user.id, &found.id));
                }
                Some(found.no)
            }
            (None, Some(_)) => None,
            _ => return Err(Refusal::field("message", "give exactly one of conversation and to")),
        };
        let to = to.map(|to| self.directory.require_user(&to).map(|user| user.no)).transpose()?;
        if to.is_some() && sender == UserNo::NOBODY {
            return Err(Refusal::field("message.from", "a message to a user needs a sender"));
        }
        let digest = request_digests::of_schedule(send_at, account, &message);
        let NewMessage { client_msg_id, content_type, body, mentions, silent, skip_push, reply_to, expires } = message;
        let header = ScheduledHeader {
            send_at,
            at: self.clock.now_ms(),
            by_app: matches!(caller.actor, Actor::App),
            account,
            conversation,
            to,
            client_msg_id,
            request: digest,
            content_type,
            mentions,
            silent,
            skip_push,
            reply_to,
            expires,
            parts: 0,
            failed: None,
        };
        let mut schedule = self.schedule.lock();
        let schedule = self.known_schedule(&mut schedule)?;
        let (from, end) = headers_of(sender, 0);
        let own = self.store.rows(RowSpace::Chat, &from, &end, SCHEDULED_OF_SENDER_MAX + 1).map_err(store_refusal)?;
        for (key, row) in &own {
            let first = ScheduledHeader::decode(row).map_err(store_refusal)?;
            if header.client_msg_id.is_some()
                && (&first.client_msg_id, first.conversation, first.to)
                    == (&header.client_msg_id, header.conversation, header.to)
            {
                if first.request != header.request {
                    let why = "this client_msg_id stands for another scheduled message";
                    return Err(Refusal::new(ErrorCode::ClientMsgIdReused, why));
                }
                let number = header_in(key).map_or(0, |(_, number)| number);
                let first = ScheduledMessage::load(&*self.store, sender, number, first).map_err(store_refusal)?;
                return self.scheduled_view(first);
            }
        }
        if sender != UserNo::NOBODY && own.len() >= SCHEDULED_OF_SENDER_MAX {
            let (limit, asked) = (SCHEDULED_OF_SENDER_MAX as u64, own.len() as u64 + 1);
            return Err(Refusal::limit("scheduled messages of a sender", limit, asked));
        }
        if schedule.total >= SCHEDULED_MAX {
            return Err(Refusal::limit("scheduled messages", SCHEDULED_MAX as u64, schedule.total as u64 + 1));
        }
        let number = schedule.last_number + 1;
        let message = ScheduledMessage { number, sender, header, body: body.get().to_owned() };
        let mut rows = message.rows();
        rows.push(RowChange { key: last_number_key(), value: Some(encode(&number)) });
        // Whatever becomes of the write: the number is not given again.
        schedule.last_number = number;
        self.store.write_rows(schedule.term, RowSpace::Chat, rows).map_err(store_refusal)?;
        schedule.total += 1;
        schedule.next_due = schedule.next_due.min(send_at);
        self.scheduled_view(message)
    }

    /// A page of the caller's messages that are yet to be sent; for app servers of the sender that it names, or of nobody: those of
    /// conversations themselves. Blocks.
    ///
    /// # Errors
    /// `not_found`, `forbidden`, `limit_exceeded`; `store_unavailable`.
    pub fn scheduled_messages(
        &self,
        caller: &Caller,
        from: Option<&str>,
        after: Option<u64>,
        limit: usize,
    ) -> Result<ScheduledMessages, Refusal> {
        let limit = page_limit(limit, SCHEDULED_PAGE_MAX, SCHEDULED_PAGE_MAX)?;
        let (sender, _) = self.scheduling_sender(caller, from)?;
        let (first, last) = headers_of(sender, after.unwrap_or(0));
        let rows = self.store.rows(RowSpace::Chat, &first, &last, limit).map_err(store_refusal)?;
        let next = rows.last().filter(|_| rows.len() == limit).and_then(|(key, _)| header_in(key));
        let mut found = Vec::with_capacity(rows.len());
        for (key, row) in &rows {
            let Some((sender, number)) = header_in(key) else { continue };
            let header = ScheduledHeader::decode(row).map_err(store_refusal)?;
            let message = ScheduledMessage::load(&*self.store, sender, number, header).map_err(store_refusal)?;
            found.push(self.scheduled_view(message)?);
        }
        Ok(ScheduledMessages { scheduled_messages: found, next: next.map(|(_, number)| number) })
    }

    /// One of them.
    ///
    /// # Errors
    /// `not_found`: also if it was sent; `forbidden`; `store_unavailable`.
    pub fn scheduled_message(
        &self,
        caller: &Caller,
        from: Option<&str>,
        number: u64,
    ) -> Result<ScheduledMessageView, Refusal> {
        let (sender, _) = self.scheduling_sender(caller, from)?;
        self.scheduled_view(self.stored_scheduled(sender, number)?)
    }

    /// Changes a message that is yet to be sent. Blocks.
    ///
    /// # Errors
    /// `not_found`, `forbidden`, `invalid_field`, `limit_exceeded`; `conflict` if it is being sent; `store_unavailable`,
    /// `node_unavailable`: nothing was changed.
    pub fn update_scheduled_message(
        &self,
        caller: &Caller,
        from: Option<&str>,
        number: u64,
        update: UpdateScheduledMessage,
    ) -> Result<ScheduledMessageView, Refusal> {
        let (sender, _) = self.scheduling_sender(caller, from)?;
        update.send_at.map_or(Ok(()), |send_at| self.check_send_at(send_at))?;
        let mut schedule = self.schedule.lock();
        let schedule = self.known_schedule(&mut schedule)?;
        let before = self.changeable_scheduled(schedule, sender, number)?;
        let mut after = before.clone();
        let UpdateScheduledMessage { send_at, content_type, body, mentions } = update;
        let header = &mut after.header;
        header.at = self.clock.now_ms();
        header.failed = header.failed.take().filter(|_| send_at.is_none());
        header.send_at = send_at.unwrap_or(header.send_at);
        header.content_type = content_type.unwrap_or_else(|| header.content_type.clone());
        header.mentions = mentions.unwrap_or_else(|| header.mentions.clone());
        if let Some(body) = body {
            body.get().clone_into(&mut after.body);
        }
        check_message(&self.request_of(&after)?.into_parts().3)?;
        self.store.write_rows(schedule.term, RowSpace::Chat, before.replacement(&after)).map_err(store_refusal)?;
        schedule.postponed.remove(&(sender, number));
        schedule.next_due = schedule.next_due.min(after.header.send_at);
        self.scheduled_view(after)
    }

    /// Cancels a message that is yet to be sent, or forgets one that has failed. Blocks.
    ///
    /// # Errors
    /// `not_found`, `forbidden`; `conflict` if it is being sent; `store_unavailable`, `node_unavailable`.
    pub fn cancel_scheduled_message(&self, caller: &Caller, from: Option<&str>, number: u64) -> Result<(), Refusal> {
        let (sender, _) = self.scheduling_sender(caller, from)?;
        let mut schedule = self.schedule.lock();
        let schedule = self.known_schedule(&mut schedule)?;
        let message = self.changeable_scheduled(schedule, sender, number)?;
        self.store.write_rows(schedule.term, RowSpace::Chat, message.removal()).map_err(store_refusal)?;
        schedule.postponed.remove(&(sender, number));
        schedule.total = schedule.total.saturating_sub(1);
        Ok(())
    }

    /// Has messages sent, and disappear, whose time has come. Answers whether there is more to do at once. Only the leader does so.
    ///
    /// # Errors
    /// `store_unavailable`, `queue_full`: a later call goes on.
    pub async fn work_on_due_messages(self: &Arc<Self>) -> Result<bool, Refusal> {
        let engine = self.clone();
        let expired = blocking(move || engine.expire_messages()).await;
        // What holds up one of the two does not hold up the other.
        let sent = self.send_scheduled().await;
        Ok(expired? | sent?)
    }

    /// Sends what is due. Answers whether there is more to send at once. Only the leader does so.
    ///
    /// # Errors
    /// `store_unavailable`: a later call goes on.
    pub async fn send_scheduled(self: &Arc<Self>) -> Result<bool, Refusal> {
        let engine = self.clone();
        let due = blocking(move || engine.due_messages()).await?;
        if due.is_empty() {
            return Ok(false);
        }
        let mut results = Vec::with_capacity(due.len());
        let requests = due.iter().map(|message| Ok((self.caller_of(message)?, self.request_of(message)?)));
        for result in self.send_each(requests.collect::<Vec<Result<_, Refusal>>>()).await {
            results.push(result);
        }
        let engine = self.clone();
        blocking(move || engine.settle_sent(due, results)).await
    }

    /// The messages whose time has come, the earliest first.
    fn due_messages(&self) -> Result<Vec<ScheduledMessage>, Refusal> {
        if self.leads.term(Function::ScheduledMessages).is_none() {
            return Ok(Vec::new());
        }
        let now_ms = self.clock.now_ms();
        let mut schedule = self.schedule.lock();
        let schedule = self.known_schedule(&mut schedule)?;
        if schedule.next_due > now_ms {
            return Ok(Vec::new());
        }
        let (mut from, to) = due_until(now_ms);
        let (mut due, mut again_at) = (Vec::new(), u64::MAX);
        loop {
            let rows = self.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE).map_err(store_refusal)?;
            for (_, sender, number) in rows.iter().filter_map(|(key, _)| due_in(key)) {
                if let Some(waits) = schedule.postponed.get(&(sender, number)).filter(|waits| waits.until > now_ms) {
                    again_at = again_at.min(waits.until);
                    continue;
                }
                match self.stored_scheduled(sender, number) {
                    Ok(message) => due.push(message),
                    // Its sender is being erased.
                    Err(refusal) if refusal.code == ErrorCode::NotFound => {
                        schedule.postponed.remove(&(sender, number));
                    }
                    Err(refusal) => return Err(refusal),
                }
                if due.len() == SENT_AT_ONCE {
                    return Ok(due);
                }
            }
            match rows.last() {
                Some((last, _)) if rows.len() == ROWS_AT_ONCE => from = [&last[..], &[0]].concat(),
                _ => break,
            }
        }
        if due.is_empty() {
            schedule.next_due = self.first_due_after(now_ms)?.min(again_at);
        }
        Ok(due)
    }

    /// Removes what was sent, and keeps what was refused.
    fn settle_sent(
        &self,
        due: Vec<ScheduledMessage>,
        results: Vec<Result<SendReceipt, Refusal>>,
    ) -> Result<bool, Refusal> {
        let (mut changes, mut sent, mut waiting, mut notes) = (Vec::new(), 0, Vec::new(), Vec::new());
        let now_ms = self.clock.now_ms();
        for (message, result) in due.iter().zip(results) {
            match result {
                Ok(_) => {
                    changes.extend(message.removal());
                    sent += 1;
                }
                // A later round sends it under the same id.
                Err(refusal) if refusal.code.retryable() => {
                    let pause = refusal.retry_after_ms.unwrap_or_default();
                    let until = now_ms + pause.clamp(*AGAIN_AFTER_MS.start(), *AGAIN_AFTER_MS.end());
                    let is_unsent = matches!(
                        refusal.code,
                        ErrorCode::RateLimited
                            | ErrorCode::QueueFull
                            | ErrorCode::HookUnavailable
                            | ErrorCode::NotYetEnabled
                    );
                    waiting.push(((message.sender, message.number), Postponed { until, is_unsent }));
                }
                Err(refusal) => {
                    let mut failed = message.clone();
                    failed.header.failed = Some((now_ms, refusal.code.as_str().into(), refusal.detail.to_string()));
                    changes.extend(message.replacement(&failed));
                    notes.extend(self.failure_note(message, &refusal, now_ms));
                }
            }
        }
        // The feed learns of a failure in the write that keeps it.
        changes.extend(
            self.feed_notes
                .rows(notes)
                .into_iter()
                .map(|row| RowChange { key: feed_notes_key(row.no), value: Some(row.bytes) }),
        );
        let mut schedule = self.schedule.lock();
        let schedule = self.known_schedule(&mut schedule)?;
        for some in changes.chunks(ROWS_AT_ONCE) {
            self.store.write_rows(schedule.term, RowSpace::Chat, some.to_vec()).map_err(store_refusal)?;
        }
        schedule.total = schedule.total.saturating_sub(sent);
        for message in &due {
            schedule.postponed.remove(&(message.sender, message.number));
        }
        schedule.postponed.extend(waiting);
        // The next look says when it is.
        schedule.next_due = 0;
        Ok(due.len() == SENT_AT_ONCE)
    }

    /// When the first of those is due that are not due at this time.
    fn first_due_after(&self, at: u64) -> Result<u64, Refusal> {
        let ((_, due), (_, to)) = (due_until(at), due_until(u64::MAX));
        let first = self.store.rows(RowSpace::Chat, &[&due[..], &[0]].concat(), &to, 1).map_err(store_refusal)?;
        Ok(first.first().and_then(|(key, _)| due_in(key)).map_or(u64::MAX, |(at, ..)| at))
    }

    /// What is known in this term: read once, when the term has begun. Messages that failed long ago are forgotten then.
    fn known_schedule<'s>(&self, known: &'s mut Option<Schedule>) -> Result<&'s mut Schedule, Refusal> {
        let term = self.leads.term(Function::ScheduledMessages).ok_or_else(leader_unavailable)?;
        if known.as_ref().is_none_or(|schedule| schedule.term != term) {
            let (mut from, to) = all_headers();
            let (mut total, now_ms) = (0, self.clock.now_ms());
            loop {
                let rows = self.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE).map_err(store_refusal)?;
                for (key, row) in &rows {
                    let header = ScheduledHeader::decode(row).map_err(store_refusal)?;
                    let failed_at = header.failed.as_ref().map(|(at, ..)| *at);
                    match header_in(key).filter(|_| failed_at.is_some_and(|at| at + FAILED_KEPT_MS < now_ms)) {
                        Some((sender, number)) => {
                            let old = ScheduledMessage { number, sender, header, body: String::new() };
                            self.store.write_rows(term, RowSpace::Chat, old.removal()).map_err(store_refusal)?;
                        }
                        None => total += 1,
                    }
                }
                match rows.last() {
                    Some((last, _)) if rows.len() == ROWS_AT_ONCE => from = [&last[..], &[0]].concat(),
                    _ => break,
                }
            }
            let last_number = self.store.row(RowSpace::Chat, &last_number_key()).map_err(store_refusal)?;
            let last_number = decode(last_number.as_deref()).map_err(store_refusal)?;
            *known = Some(Schedule { term, total, last_number, next_due: 0, postponed: FxHashMap::default() });
        }
        known.as_mut().ok_or_else(leader_unavailable)
    }

    fn check_send_at(&self, send_at: u64) -> Result<(), Refusal> {
        let now_ms = self.clock.now_ms();
        if send_at < now_ms {
            return Err(Refusal::field("send_at", "lies in the past: send the message at once"));
        }
        Ok(())
    }

    /// Whose message it is, and the account in whose name an agent speaks.
    fn scheduling_sender(&self, caller: &Caller, from: Option<&str>) -> Result<(UserNo, Option<UserNo>), Refusal> {
        match (&caller.actor, from) {
            (Actor::User(user), None) => Ok((user.no, None)),
            (Actor::User(user), Some(from)) if from == user.id => Ok((user.no, None)),
            (Actor::User(user), Some(from)) => {
                let account = self.as_account_named(user, from)?;
                let why = "from: a user token schedules only as its own user, or as an account that it answers for";
                let account = account.ok_or_else(|| Refusal::new(ErrorCode::Forbidden, why))?;
                Ok((user.no, Some(account.no)))
            }
            (Actor::App, Some(from)) => Ok((self.directory.require_user(from)?.no, None)),
            (Actor::App, None) => Ok((UserNo::NOBODY, None)),
        }
    }

    fn stored_scheduled(&self, sender: UserNo, number: u64) -> Result<ScheduledMessage, Refusal> {
        let row = self.store.row(RowSpace::Chat, &header_key(sender, number)).map_err(store_refusal)?;
        let row = row.ok_or_else(|| Refusal::not_found("scheduled message", &number.to_string()))?;
        let header = ScheduledHeader::decode(&row).map_err(store_refusal)?;
        ScheduledMessage::load(&*self.store, sender, number, header).map_err(store_refusal)
    }

    /// What the feed says of a message that could not be sent.
    fn failure_note(&self, message: &ScheduledMessage, refusal: &Refusal, at: u64) -> Option<FeedNote> {
        if !self.feed_notes.wants(EventType::ScheduledFailed) {
            return None;
        }
        let SendRequest { conversation, to, from, .. } = self.request_of(message).ok()?;
        let ScheduledMessage { number: id, header: ScheduledHeader { send_at, client_msg_id, .. }, .. } =
            message.clone();
        let (code, detail) = (refusal.code.as_str().into(), refusal.detail.to_string());
        let event = ScheduledFailedEvent { id, from, conversation, to, client_msg_id, send_at, code, detail };
        let subject = event.from.as_ref().or(event.conversation.as_ref())?;
        Some(FeedNote::new(EventType::ScheduledFailed, subject, at, &event))
    }

    /// The message, unless it may be under way. The caller holds the lock of the schedule.
    fn changeable_scheduled(
        &self,
        schedule: &Schedule,
        sender: UserNo,
        number: u64,
    ) -> Result<ScheduledMessage, Refusal> {
        let message = self.stored_scheduled(sender, number)?;
        let now_ms = self.clock.now_ms();
        let waits =
            schedule.postponed.get(&(sender, number)).is_some_and(|waits| waits.is_unsent && waits.until > now_ms);
        if message.header.failed.is_none() && message.header.send_at <= now_ms && !waits {
            return Err(Refusal::new(ErrorCode::Conflict, format!("scheduled message {number} is being sent")));
        }
        Ok(message)
    }

    /// Who sends it: the rights are those of the moment.
    fn caller_of(&self, message: &ScheduledMessage) -> Result<Caller, Refusal> {
        if message.header.by_app {
            return Ok(Caller::APP);
        }
        let user = self.directory.user(message.sender).map_err(store_refusal)?;
        let user = user.ok_or_else(|| Refusal::not_found("user", &message.sender.0.to_string()))?;
        check_not_suspended(&user, self.clock.now_ms())?;
        Ok(Caller::from(&Actor::User(user)))
    }

    /// The send that it is.
    fn request_of(&self, message: &ScheduledMessage) -> Result<SendRequest, Refusal> {
        let ScheduledMessage { number, sender, header, body } = message;
        let id_of = |user: UserNo| match self.directory.user(user).map_err(store_refusal)? {
            Some(user) => Ok(user.id.clone()),
            None => Err(Refusal::not_found("user", &user.0.to_string())),
        };
        let conversation = match header.conversation {
            Some(no) => {
                let found = self.directory.conversation(no).map_err(store_refusal)?;
                Some(found.ok_or_else(|| Refusal::not_found("conversation", &no.0.to_string()))?.id.clone())
            }
            None => None,
        };
        let from = header.account.or(Some(*sender).filter(|sender| *sender != UserNo::NOBODY));
        let body = serde_json::value::RawValue::from_string(body.clone());
        Ok(SendRequest {
            conversation,
            to: header.to.map(id_of).transpose()?,
            from: from.map(id_of).transpose()?,
            client_msg_id: Some(header.client_msg_id.clone().unwrap_or_else(|| format!("scheduled-{number}"))),
            content_type: header.content_type.clone(),
            body: body.map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?,
            mentions: header.mentions.clone(),
            silent: header.silent,
            skip_push: header.skip_push,
            reply_to: header.reply_to,
            expires: header.expires,
        })
    }

    pub(super) fn scheduled_view(&self, message: ScheduledMessage) -> Result<ScheduledMessageView, Refusal> {
        let request = self.request_of(&message)?;
        let ScheduledMessage { number, header, .. } = message;
        let failed = header.failed.map(|(at, code, detail)| ScheduledFailure { at, code, detail });
        let client_msg_id = header.client_msg_id;
        let message = SendRequest { client_msg_id, ..request };
        Ok(ScheduledMessageView { id: number, send_at: header.send_at, updated_at: header.at, message, failed })
    }

    /// Sends messages of several callers, in order; each has its own result.
    async fn send_each(
        &self,
        requests: Vec<Result<(Caller, SendRequest), Refusal>>,
    ) -> Vec<Result<SendReceipt, Refusal>> {
        let mut results = Vec::with_capacity(requests.len());
        let mut begun = Vec::with_capacity(requests.len());
        for request in requests {
            begun.push(match request {
                Ok((caller, request)) => self.begin_send(&caller, request, Occasion::MixedBatch, false),
                Err(refusal) => Err(refusal),
            });
        }
        for begun in begun {
            results.push(match begun {
                Ok((conversation, answer)) => super::send::finish_send(&conversation, answer).await,
                Err(refusal) => Err(refusal),
            });
        }
        results
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Refusal> + Send + 'static) -> Result<T, Refusal> {
    let ended = |_| Refusal::new(ErrorCode::Internal, "the schedule met a defect of the server");
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}

//! The operations of bound sessions.

use super::{
    FrameOutcome, Shard,
    binding::BindFields,
    decoding::{DecodeError, decode_frame, malformed, missing_field},
    defects::or_defect_later,
    store_reads::answer_or_refusal,
};
use crate::{
    commands::{Command, ShardHandle},
    connection::Phase,
    encoding::{error_json, json, json_frame},
};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::{borrow::Cow, sync::Arc};
use tidings_domain::model::{Actor, User};
use tidings_engine::{
    Engine,
    access::{Caller, Operation, Scopes},
    engine::send::SendTarget,
    lists::account_list::AccountList,
    shards::SendReply,
    shards::SessionReply,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal, quoted},
    frames::{RawClientFrame, ServerFrame},
    http::{HistoryQuery, NewMessage},
    ws::NORMAL,
};

/// When a session with too many requests in flight may try again.
const BUSY_RETRY_AFTER_MS: u64 = 100;

impl Shard {
    pub(super) fn handle_text(&mut self, key: usize, text: &str, following: &[u8]) -> FrameOutcome {
        let phase = self.connections[key].phase;
        let frame = match decode_frame(text) {
            Ok(frame) => frame,
            Err(DecodeError { reference, refusal }) if phase == Phase::Unbound => {
                self.close_answering(key, reference, refusal);
                return FrameOutcome::Continue;
            }
            Err(DecodeError { reference, refusal }) => return self.refuse(key, reference, refusal),
        };
        match (&*frame.t, phase) {
            ("bind", Phase::Unbound) => {
                return self.handle_bind(key, BindFields::of(&frame, &self.parts.config), following);
            }
            (_, Phase::Unbound) => {
                self.close_answering(key, frame.reference, Refusal::new(ErrorCode::NotBound, "bind first"));
                return FrameOutcome::Continue;
            }
            _ => {}
        }
        self.handle_operation(key, &frame)
    }

    /// An operation of a bound session, of either protocol.
    pub(super) fn handle_operation(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        if let Err(refusal) = self.check_scope(key, &frame.t) {
            return self.refuse(key, frame.reference, refusal);
        }
        match &*frame.t {
            "refresh" => self.handle_refresh(key, frame),
            "send" => self.handle_send(key, frame, false),
            "stream_begin" => self.handle_send(key, frame, true),
            "stream_append" => self.handle_stream_append(key, frame),
            "stream_end" => self.handle_stream_end(key, frame),
            "edit" => self.handle_edit(key, frame),
            "recall" => self.handle_recall(key, frame),
            "react" => self.handle_react(key, frame),
            "pin" => self.handle_pin(key, frame),
            "ping" => {
                let pong = json(&ServerFrame::Pong { reference: frame.reference });
                self.send_json(key, &pong)
            }
            "typing" => self.handle_typing(key, frame),
            "signal" => self.handle_signal(key, frame),
            "read" => self.handle_read(key, frame),
            "receipts" => self.handle_receipts(key, frame),
            "unread" => self.handle_unread(key, frame),
            "stored" => self.handle_stored(key, frame),
            "attention" => self.handle_attention(key, frame),
            "preferences" => self.handle_preferences(key, frame),
            "history" => self.handle_history(key, frame),
            "assign" => self.handle_assign(key, frame),
            "conversations" => self.handle_conversations(key, frame),
            "watch_presence" => self.handle_watch(key, frame),
            "unwatch_presence" => self.handle_unwatch(key, frame),
            "popup" => self.handle_popup(key, frame),
            "popup_events" => self.handle_popup_events(key, frame),
            "ack" => self.handle_ack(key, frame.reference, frame.pushes.clone()),
            "unbind" => {
                self.close_gracefully(key, &NORMAL.to_be_bytes());
                FrameOutcome::Continue
            }
            "bind" => self.refuse(key, frame.reference, Refusal::new(ErrorCode::AlreadyBound, "the session is bound")),
            other => self.refuse(key, frame.reference, malformed(format_args!("t: no operation {}", quoted(other)))),
        }
    }

    /// Whether the session's token allows an operation.
    fn check_scope(&self, key: usize, frame_kind: &str) -> Result<(), Refusal> {
        let operation = match frame_kind {
            "send" => Operation::Send,
            "stream_begin" | "stream_append" | "stream_end" => Operation::GrowMessage,
            "edit" | "recall" => Operation::ChangeMessage,
            "react" => Operation::React,
            "pin" => Operation::Pin,
            "typing" => Operation::Typing,
            "signal" => Operation::Signal,
            "assign" => Operation::Assign,
            "read" | "stored" => Operation::MoveMark,
            "preferences" => Operation::SetPreferences,
            "history" | "receipts" => Operation::ReadMessages,
            "conversations" | "unread" => Operation::ReadLists,
            "watch_presence" => Operation::WatchPresence,
            "popup" => Operation::AskForPopup,
            "popup_events" => Operation::ReportPopupEvents,
            _ => return Ok(()),
        };
        self.scopes(key).check(operation)
    }

    pub(super) fn scopes(&self, key: usize) -> Scopes {
        self.connections[key].binding.as_ref().map_or(Scopes::NONE, |binding| binding.scopes)
    }

    pub(super) fn send_json(&mut self, key: usize, json: &[u8]) -> FrameOutcome {
        let frame = json_frame(self.connections[key].protocol, json);
        self.send_frame(key, frame)
    }

    /// Queues an answer. A session that asks for more than it reads is closed.
    pub(super) fn send_frame(&mut self, key: usize, frame: Vec<u8>) -> FrameOutcome {
        let connection = &mut self.connections[key];
        // A late answer must not follow the close frame.
        if connection.phase == Phase::Closing {
            return FrameOutcome::Continue;
        }
        if connection.outbound.queued_bytes() > self.parts.config.session_buffer_bytes {
            self.parts.engine.metrics.slow_readers_closed.inc();
            self.close(key, Refusal::new(ErrorCode::SlowReader, "answers are not read; connect again"));
            return FrameOutcome::Continue;
        }
        connection.outbound.queue_frame(frame);
        self.scheduler.flush_soon(connection, key);
        FrameOutcome::Continue
    }

    pub(super) fn refuse(&mut self, key: usize, reference: Option<u64>, refusal: Refusal) -> FrameOutcome {
        self.parts.engine.metrics.count_refusal(refusal.code);
        self.send_json(key, &error_json(reference, &refusal))
    }

    pub(super) fn user(&self, key: usize) -> Option<Arc<User>> {
        self.connections[key].binding.as_ref().map(|b| b.user.clone())
    }

    /// Submits a message: whole, or one that grows from here on.
    fn handle_send(&mut self, key: usize, frame: &RawClientFrame<'_>, grows: bool) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let session = self.connections[key].session;
        let target = match SendTarget::named(frame.conversation.as_deref(), frame.to.as_deref()) {
            Ok(target) => target,
            Err(refusal) => return self.refuse(key, frame.reference, refusal),
        };
        let Some(body) = frame.body else {
            return self.refuse(key, frame.reference, missing_field("body", "a send"));
        };
        let message = NewMessage {
            client_msg_id: frame.client_msg_id.as_deref().map(str::to_owned),
            content_type: frame.content_type.as_deref().unwrap_or("text").to_owned(),
            body: body.to_owned(),
            mentions: frame.mentions.clone(),
            silent: frame.silent,
            skip_push: frame.skip_push,
            reply_to: frame.reply_to,
            expires: frame.expires,
        };
        let reply = SessionReply { shard: self.parts.index, session, reference: frame.reference };
        let caller = Caller { actor: Actor::User(user), scopes: self.scopes(key) };
        let submitted = if grows {
            self.parts.engine.submit_stream(caller, target, message, reply)
        } else {
            self.parts.engine.submit(caller, target, message, reply)
        };
        match submitted {
            Ok(()) => FrameOutcome::Continue,
            Err(refusal) => self.refuse(key, frame.reference, refusal),
        }
    }

    pub(super) fn handles(&self) -> (Arc<Engine>, ShardHandle) {
        (self.parts.engine.clone(), self.parts.shards[self.parts.index].clone())
    }

    /// Counts a request that will run on another thread, or refuses it when the session has too many in flight.
    pub(super) fn begin_request(&mut self, key: usize) -> Result<u64, Refusal> {
        let most = self.parts.config.session_requests;
        let connection = &mut self.connections[key];
        if connection.requests_in_flight >= most {
            let why = format!("a session may have {most} requests under way");
            return Err(Refusal::new(ErrorCode::RateLimited, why).retry_after(BUSY_RETRY_AFTER_MS));
        }
        connection.requests_in_flight += 1;
        Ok(connection.session)
    }

    /// Answers a session's request once its future is done, with the frame that the future yields or with its refusal.
    /// `request` gets the number of the session.
    pub(super) fn answer_later<F>(
        &mut self,
        key: usize,
        reference: Option<u64>,
        request: impl FnOnce(Arc<Engine>, u64) -> F,
    ) -> FrameOutcome
    where
        F: Future<Output = Result<Vec<u8>, Refusal>> + Send + 'static,
    {
        let session = match self.begin_request(key) {
            Ok(session) => session,
            Err(refusal) => return self.refuse(key, reference, refusal),
        };
        let (engine, shard) = self.handles();
        let answer = request(engine.clone(), session);
        self.parts.runtime.spawn(async move {
            let json = or_defect_later(answer).await.unwrap_or_else(|refusal| {
                engine.metrics.count_refusal(refusal.code);
                error_json(reference, &refusal)
            });
            shard.send(Command::Answer { session, json, running: None });
        });
        FrameOutcome::Continue
    }

    /// Answers a session's request with `ok` once its future is done, or with its refusal. Such requests change something:
    /// they are submitted in the order in which the client sent them. `request` gets the number of the session.
    pub(super) fn confirm_later<F>(
        &mut self,
        key: usize,
        reference: Option<u64>,
        request: impl FnOnce(Arc<Engine>, u64) -> F,
    ) -> FrameOutcome
    where
        F: Future<Output = Result<(), Refusal>> + Send + 'static,
    {
        let session = match self.begin_request(key) {
            Ok(session) => session,
            Err(refusal) => return self.refuse(key, reference, refusal),
        };
        let (engine, shard) = self.handles();
        let done = request(engine.clone(), session);
        let requests = self.connections[key].ordered_requests();
        requests.push_commit(async move {
            match or_defect_later(done).await {
                Ok(()) => json(&ServerFrame::Ok { reference: reference.unwrap_or(0) }),
                Err(refusal) => {
                    engine.metrics.count_refusal(refusal.code);
                    error_json(reference, &refusal)
                }
            }
        });
        self.parts.runtime.spawn(async move {
            if let Some(json) = requests.commit_oldest().await {
                shard.send(Command::Answer { session, json, running: None });
            }
        });
        FrameOutcome::Continue
    }

    fn handle_read(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let Some(conversation) = &frame.conversation else {
            return self.refuse(key, frame.reference, missing_field("conversation", "read"));
        };
        let Some(seq) = frame.seq else {
            return self.refuse(key, frame.reference, missing_field("seq", "read"));
        };
        let conversation = conversation.to_string();
        self.confirm_later(key, frame.reference, move |engine, _| async move {
            engine.mark_read(&user, &conversation, seq).await.map(drop)
        })
    }

    fn handle_history(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let Some(conversation) = &frame.conversation else {
            return self.refuse(key, frame.reference, missing_field("conversation", "history"));
        };
        let query = HistoryQuery {
            cursor: frame.cursor.as_deref().map(str::to_owned),
            from_seq: frame.from_seq,
            to_seq: frame.to_seq,
            from_time: frame.from_time,
            to_time: frame.to_time,
            limit: frame.limit,
        };
        let (conversation, reference) = (conversation.to_string(), frame.reference);
        self.spawn_store_read(key, reference, move |engine| {
            let page = engine.history(&Actor::User(user), &conversation, &query);
            Some(answer_or_refusal(engine, reference, page, |page| ServerFrame::History {
                reference,
                conversation,
                page,
            }))
        })
    }

    /// A page of the user's conversations, as over HTTP.
    fn handle_conversations(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let (after, limit) = (frame.after.as_deref().map(str::to_owned), frame.limit.unwrap_or(0));
        let (reference, filter) = (frame.reference, frame.filter);
        let one = frame.conversation.as_deref().map(str::to_owned);
        let search = frame.search.as_deref().map(str::to_owned);
        let of_account = frame.account.as_deref().map(|account| AccountList {
            account: account.to_owned(),
            assigned_to: frame.assigned_to.clone().flatten(),
        });
        self.spawn_store_read(key, reference, move |engine| {
            let after = after.as_deref();
            let page = match (of_account, one, search) {
                (Some(list), ..) => engine.account_conversations(&Actor::User(user), &list, filter, after, limit),
                (None, Some(one), _) => engine.conversation_line(&user, &one),
                (None, None, Some(search)) => engine.search_conversations(&user, &search, filter, after, limit),
                (None, None, None) => engine.conversations(&user, filter, after, limit),
            };
            Some(answer_or_refusal(engine, reference, page, |page| ServerFrame::Conversations { reference, page }))
        })
    }

    /// What the user has not read in all conversations, as over HTTP.
    fn handle_unread(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        let reference = frame.reference;
        self.spawn_store_read(key, reference, move |engine| {
            let total = engine.unread_total(&user);
            Some(answer_or_refusal(engine, reference, total, |total| ServerFrame::Unread { reference, total }))
        })
    }

    /// Answers sends and changes of messages. The receipts of one session share a frame.
    pub(super) fn answer_sends(&mut self, replies: Vec<SendReply>) {
        #[derive(Serialize)]
        struct Sent<'a> {
            #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
            reference: Option<u64>,
            conversation: Cow<'a, str>,
            seq: u64,
            at: u64,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            duplicate: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            version: Option<u32>,
        }
        const OPENING: &[u8] = b"{\"t\":\"sent\",\"results\":[";
        let mut frames: FxHashMap<usize, Vec<u8>> = FxHashMap::default();
        for SendReply { session, reference, result, version } in replies {
            let Some(key) = self.find(session) else { continue };
            match result {
                Ok(receipt) => {
                    let frame = frames.entry(key).or_insert_with(|| OPENING.to_vec());
                    if frame.len() > OPENING.len() {
                        frame.push(b',');
                    }
                    let sent = Sent {
                        reference,
                        conversation: Cow::Borrowed(&receipt.conversation),
                        seq: receipt.seq,
                        at: receipt.at,
                        duplicate: receipt.duplicate,
                        version,
                    };
                    // Writing to memory cannot fail.
                    let _ = serde_json::to_writer(frame, &sent);
                }
                Err(refusal) => drop(self.refuse(key, reference, refusal)),
            }
        }
        for (key, mut frame) in frames {
            frame.extend_from_slice(b"]}");
            self.send_json(key, &frame);
        }
    }
}

//! What a client's frames do once it is bound.

use crate::{
    binding::BindFields,
    commands::Command,
    connection::{Phase, error_json, json, json_frame, malformed},
    decoding::{Unreadable, missing, read_frame},
    gateway::ShardHandle,
    shard::{After, Shard},
};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::{borrow::Cow, sync::Arc};
use tidings_engine::{
    Engine,
    engine::Actor,
    model::User,
    pass::{Scope, Scopes},
    send::{SessionReply, Submitted, Target},
    shards::SendReply,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::{RawClientFrame, ServerFrame},
    http::{HistoryQuery, NewMessage},
    ws::NORMAL,
};

/// When a session with too many requests under way may try again.
const BUSY_RETRY_AFTER_MS: u64 = 100;

impl Shard {
    pub(crate) fn take_text(&mut self, key: usize, text: &str, following: &[u8]) -> After {
        let phase = self.connections[key].phase;
        let frame = match read_frame(text) {
            Ok(frame) => frame,
            Err(Unreadable { reference, refusal }) if phase == Phase::Unbound => {
                self.close_answering(key, reference, refusal);
                return After::Stays;
            }
            Err(Unreadable { reference, refusal }) => return self.refuse(key, reference, refusal),
        };
        match (&*frame.t, phase) {
            ("bind", Phase::Unbound) => {
                return self.take_bind(key, BindFields::of(&frame, &self.parts.config), following);
            }
            (_, Phase::Unbound) => {
                self.close_answering(key, frame.reference, Refusal::new(ErrorCode::NotBound, "bind first"));
                return After::Stays;
            }
            _ => {}
        }
        self.take_operation(key, &frame)
    }

    /// An operation of a bound session, from either door.
    pub(crate) fn take_operation(&mut self, key: usize, frame: &RawClientFrame<'_>) -> After {
        if let Err(refusal) = self.check_scope(key, &frame.t) {
            return self.refuse(key, frame.reference, refusal);
        }
        match &*frame.t {
            "refresh" => self.take_refresh(key, frame),
            "send" => self.take_send(key, frame),
            "ping" => {
                let pong = json(&ServerFrame::Pong { reference: frame.reference });
                self.push(key, &pong)
            }
            "typing" => self.take_typing(key, frame),
            "read" => self.take_read(key, frame),
            "history" => self.take_history(key, frame),
            "conversations" => self.take_conversations(key, frame),
            "watch_presence" => self.take_watch(key, frame),
            "unwatch_presence" => self.take_unwatch(key, frame),
            "popup" => self.take_popup(key, frame),
            "popup_events" => self.take_popup_events(key, frame),
            "ack" => self.take_ack(key, frame.reference, frame.pushes.clone()),
            "unbind" => {
                self.say_goodbye(key, &NORMAL.to_be_bytes());
                After::Stays
            }
            "bind" => self.refuse(key, frame.reference, Refusal::new(ErrorCode::AlreadyBound, "the session is bound")),
            other => self.refuse(key, frame.reference, malformed(format_args!("t: no operation {other:?}"))),
        }
    }

    /// Whether the session's token allows an operation.
    fn check_scope(&self, key: usize, operation: &str) -> Result<(), Refusal> {
        let scope = match operation {
            "send" | "typing" => Scope::Send,
            "read" | "history" | "conversations" => Scope::Read,
            "watch_presence" => Scope::Presence,
            "popup" | "popup_events" => Scope::Popups,
            _ => return Ok(()),
        };
        self.scopes(key).check(scope)
    }

    fn scopes(&self, key: usize) -> Scopes {
        self.connections[key].bound.as_ref().map_or(Scopes::NONE, |bound| bound.scopes)
    }

    pub(crate) fn push(&mut self, key: usize, json: &[u8]) -> After {
        let frame = json_frame(self.connections[key].door, json);
        self.answer(key, frame)
    }

    /// Puts a frame to a session as an answer. Who asks for more than they read is let go.
    pub(crate) fn answer(&mut self, key: usize, frame: Vec<u8>) -> After {
        let connection = &mut self.connections[key];
        // An answer that comes late does not follow the goodbye.
        if connection.phase == Phase::Closing {
            return After::Stays;
        }
        if connection.outgoing.queued_bytes() > self.parts.config.session_buffer_bytes {
            self.parts.engine.metrics.slow_readers_closed.inc();
            self.close(key, Refusal::new(ErrorCode::SlowReader, "answers are not read; connect again"));
            return After::Stays;
        }
        connection.outgoing.push_frame(frame);
        self.schedule.flush_soon(connection, key);
        After::Stays
    }

    pub(crate) fn refuse(&mut self, key: usize, reference: Option<u64>, refusal: Refusal) -> After {
        self.parts.engine.metrics.count_refusal(refusal.code);
        self.push(key, &error_json(reference, &refusal))
    }

    pub(crate) fn user(&self, key: usize) -> Option<Arc<User>> {
        self.connections[key].bound.as_ref().map(|b| b.user.clone())
    }

    fn take_send(&mut self, key: usize, frame: &RawClientFrame<'_>) -> After {
        let Some(user) = self.user(key) else { return After::Stays };
        let session = self.connections[key].session;
        let target = match (&frame.conversation, &frame.to) {
            (Some(id), None) => Target::Conversation(id),
            (None, Some(id)) => Target::User(id),
            _ => {
                return self.refuse(
                    key,
                    frame.reference,
                    Refusal::field("conversation", "give either conversation or to"),
                );
            }
        };
        let Some(body) = frame.body else {
            return self.refuse(key, frame.reference, missing("body", "a send"));
        };
        let message = NewMessage {
            client_msg_id: frame.client_msg_id.as_deref().map(str::to_owned),
            content_type: frame.content_type.as_deref().unwrap_or("text").to_owned(),
            body: body.to_owned(),
            mentions: frame.mentions.clone(),
            silent: frame.silent,
            skip_push: frame.skip_push,
        };
        let reply = SessionReply { shard: self.parts.index, session, reference: frame.reference };
        // Kept for the rare first message between two users, whose conversation must be opened before.
        let retry = matches!(target, Target::User(_)) || frame.conversation.as_ref().is_some_and(|id| id.contains('~'));
        let again = retry.then(|| message.clone());
        match self.parts.engine.submit(&user, target, message, reply) {
            Ok(Submitted::Pending) => After::Stays,
            Ok(Submitted::NeedsDirect { with }) => match (self.scopes(key).check(Scope::OpenDirect), again) {
                (Ok(()), Some(message)) => self.open_direct(key, user, with, message, reply),
                (Ok(()), None) => After::Stays,
                (Err(refusal), _) => self.refuse(key, frame.reference, refusal),
            },
            Err(refusal) => self.refuse(key, frame.reference, refusal),
        }
    }

    /// Opens the conversation off this thread, submits, and goes on with the session's next frames:
    /// a second message must not overtake the first.
    fn open_direct(
        &mut self,
        key: usize,
        user: Arc<User>,
        with: String,
        message: NewMessage,
        reply: SessionReply,
    ) -> After {
        self.connections[key].paused = true;
        let (engine, shard) = self.handles();
        self.parts.runtime.spawn(async move {
            let submitted = match engine.open_direct(&user, &with).await {
                Ok(conversation) => engine.submit(&user, Target::Conversation(&conversation.id), message, reply),
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = submitted {
                engine.metrics.count_refusal(refusal.code);
                shard.tell(Command::Answer { session: reply.session, json: error_json(reply.reference, &refusal) });
            }
            shard.tell(Command::GoOn { session: reply.session });
        });
        After::Pauses
    }

    pub(crate) fn handles(&self) -> (Arc<Engine>, ShardHandle) {
        (self.parts.engine.clone(), self.parts.shards[self.parts.index].clone())
    }

    /// Counts a request that runs elsewhere, or refuses it when the session has too many.
    pub(crate) fn begin_request(&mut self, key: usize) -> Result<u64, Refusal> {
        let most = self.parts.config.session_requests;
        let connection = &mut self.connections[key];
        if connection.requests >= most {
            let why = format!("a session may have {most} requests under way");
            return Err(Refusal::new(ErrorCode::RateLimited, why).retry_after(BUSY_RETRY_AFTER_MS));
        }
        connection.requests += 1;
        Ok(connection.session)
    }

    fn take_read(&mut self, key: usize, frame: &RawClientFrame<'_>) -> After {
        let Some(user) = self.user(key) else { return After::Stays };
        let Some(conversation) = &frame.conversation else {
            return self.refuse(key, frame.reference, missing("conversation", "read"));
        };
        let Some(seq) = frame.seq else {
            return self.refuse(key, frame.reference, missing("seq", "read"));
        };
        let session = match self.begin_request(key) {
            Ok(session) => session,
            Err(refusal) => return self.refuse(key, frame.reference, refusal),
        };
        let (conversation, reference) = (conversation.to_string(), frame.reference);
        let (engine, shard) = self.handles();
        self.parts.runtime.spawn(async move {
            let json = match engine.mark_read(&user, &conversation, seq).await {
                Ok(_) => json(&ServerFrame::Ok { reference: reference.unwrap_or(0) }),
                Err(refusal) => {
                    engine.metrics.count_refusal(refusal.code);
                    error_json(reference, &refusal)
                }
            };
            shard.tell(Command::Answer { session, json });
        });
        After::Stays
    }

    fn take_history(&mut self, key: usize, frame: &RawClientFrame<'_>) -> After {
        let Some(user) = self.user(key) else { return After::Stays };
        let Some(conversation) = &frame.conversation else {
            return self.refuse(key, frame.reference, missing("conversation", "history"));
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
        self.read_for(key, reference, move |engine| {
            Some(match engine.history(&Actor::User(user), &conversation, &query) {
                Ok(page) => json(&ServerFrame::History { reference, conversation, page }),
                Err(refusal) => {
                    engine.metrics.count_refusal(refusal.code);
                    error_json(reference, &refusal)
                }
            })
        })
    }

    /// The user's list of conversations, page by page as over HTTP.
    fn take_conversations(&mut self, key: usize, frame: &RawClientFrame<'_>) -> After {
        let Some(user) = self.user(key) else { return After::Stays };
        let (after, limit) = (frame.after.as_deref().map(str::to_owned), frame.limit.unwrap_or(0));
        let reference = frame.reference;
        self.read_for(key, reference, move |engine| {
            Some(match engine.conversations(&user, after.as_deref(), limit) {
                Ok(page) => json(&ServerFrame::Conversations { reference, page }),
                Err(refusal) => {
                    engine.metrics.count_refusal(refusal.code);
                    error_json(reference, &refusal)
                }
            })
        })
    }

    /// Answers sends, those of one session together.
    pub(crate) fn answer_sends(&mut self, replies: Vec<SendReply>) {
        #[derive(Serialize)]
        struct Sent<'a> {
            #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
            reference: Option<u64>,
            conversation: Cow<'a, str>,
            seq: u64,
            at: u64,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            duplicate: bool,
        }
        const OPENING: &[u8] = b"{\"t\":\"sent\",\"results\":[";
        let mut frames: FxHashMap<usize, Vec<u8>> = FxHashMap::default();
        for SendReply { session, reference, result } in replies {
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
                    };
                    // Writing to memory cannot fail.
                    let _ = serde_json::to_writer(frame, &sent);
                }
                Err(refusal) => drop(self.refuse(key, reference, refusal)),
            }
        }
        for (key, mut frame) in frames {
            frame.extend_from_slice(b"]}");
            self.push(key, &frame);
        }
    }
}

//! The binary door's frames: what each does to its session. The chat ones carry the WebSocket door's JSON.

use crate::{
    binding::BindFields,
    connection::{Phase, malformed},
    decoding::{Unreadable, read_frame},
    shard::{After, Shard},
};
use std::borrow::Cow;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    miop::{self, Bind, ErrorFrame, Frame, MiopError, decode, kind, take_head, wants},
};

impl Shard {
    /// Takes the frames that have come whole; the rest is kept with the connection.
    pub(crate) fn take_miop_frames(&mut self, key: usize, bytes: &[u8]) -> After {
        let mut rest = bytes;
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return After::Moves };
            if connection.phase == Phase::Closing {
                return After::Stays;
            }
            if connection.paused {
                connection.partial = rest.to_vec();
                return After::Pauses;
            }
            let limit = connection.frame_bytes_max();
            let head = match take_head(rest, limit) {
                Ok(Some(head)) => head,
                Ok(None) => {
                    connection.partial = rest.to_vec();
                    return After::Stays;
                }
                Err(error) => return self.end_miop(key, &error),
            };
            let (frame, following) = rest.split_at(head.payload.end);
            rest = following;
            if self.take_miop_frame(key, head.kind, &frame[head.payload], following) == After::Moves {
                return After::Moves;
            }
        }
    }

    fn take_miop_frame(&mut self, key: usize, kind: u8, payload: &[u8], following: &[u8]) -> After {
        if let Some(refusal) = misplaced(self.connections[key].phase, kind) {
            self.close(key, refusal);
            return After::Stays;
        }
        let frame = match decode(kind, payload) {
            Ok(frame) => frame,
            Err(error) => return self.end_miop(key, &error),
        };
        match frame {
            Frame::Bind(bind) => self.take_miop_bind(key, &bind, following),
            Frame::Heartbeat { interval_s } => self.take_heartbeat(key, interval_s),
            Frame::Ack { .. } if !self.wants_pushes(key) => self.refuse_unwanted(key, "pushes"),
            Frame::Ack { pushes } => self.take_ack(key, None, pushes),
            Frame::Chat { json } => self.take_chat(key, json),
            Frame::Unbind { .. } => {
                self.say_goodbye(key, &[]);
                After::Stays
            }
            // `misplaced` has refused the frames that only servers send.
            Frame::Skipped { .. } | Frame::Bound(_) | Frame::Push(_) | Frame::Redirect { .. } | Frame::Error(_) => {
                After::Stays
            }
        }
    }

    fn wants_pushes(&self, key: usize) -> bool {
        self.connections[key].bound.as_ref().is_some_and(|bound| bound.push)
    }

    fn take_miop_bind(&mut self, key: usize, bind: &Bind<'_>, following: &[u8]) -> After {
        let wanted = bind.wants.unwrap_or(wants::PUSH | wants::CHAT);
        let fields = BindFields {
            token: Some(Cow::Borrowed(bind.token)),
            device_id: Some(Cow::Borrowed(bind.device_id)),
            device_kind: Cow::Borrowed(bind.device_kind.unwrap_or("device")),
            app_version: bind.app_version.map(Cow::Borrowed),
            cursor: bind.cursor.map(Cow::Borrowed),
            chat: wanted & wants::CHAT != 0,
            push: wanted & wants::PUSH != 0,
            answers_probes: wanted & wants::PROBES != 0,
            push_is_meant: bind.wants.is_some(),
            heartbeat_ms: self.parts.config.granted_heartbeat_s(bind.heartbeat_s) as u32 * 1_000,
        };
        self.take_bind(key, fields, following)
    }

    fn take_heartbeat(&mut self, key: usize, proposed_s: Option<u64>) -> After {
        let granted = proposed_s.map(|proposed| self.parts.config.granted_heartbeat_s(Some(proposed)));
        let tick = self.tick();
        match granted {
            None => self.answer(key, miop::HEARTBEAT.to_vec()),
            Some(granted) => {
                self.connections[key].heartbeat_ms = granted as u32 * 1_000;
                self.arm(key, tick + crate::shard::silence_max(granted as u32 * 1_000));
                self.answer(key, Frame::Heartbeat { interval_s: Some(granted) }.to_bytes())
            }
        }
    }

    fn take_chat(&mut self, key: usize, json: &[u8]) -> After {
        let has_chat = self.connections[key].bound.as_ref().is_some_and(|bound| bound.chat);
        let Ok(text) = std::str::from_utf8(json) else {
            return match has_chat {
                true => self.refuse(key, None, malformed("text that is not UTF-8")),
                false => self.refuse_unwanted(key, "chat"),
            };
        };
        let frame = match read_frame(text) {
            Ok(frame) => frame,
            Err(_) if !has_chat => return self.refuse_unwanted(key, "chat"),
            Err(Unreadable { reference, refusal }) => return self.refuse(key, reference, refusal),
        };
        match &*frame.t {
            // A session without chat has a token too.
            "refresh" => self.take_operation(key, &frame),
            _ if !has_chat => self.refuse_unwanted(key, "chat"),
            "bind" | "unbind" | "ack" => {
                let why = format!("{:?} has a frame of its own in this protocol", frame.t);
                self.refuse(key, frame.reference, Refusal::new(ErrorCode::Malformed, why))
            }
            _ => self.take_operation(key, &frame),
        }
    }

    /// Part of the protocol that this session did not bind for. It may have no chat to be told so by.
    fn refuse_unwanted(&mut self, key: usize, what: &str) -> After {
        let code = ErrorCode::Forbidden;
        self.parts.engine.metrics.count_refusal(code);
        let message = format!("this session did not ask for {what} when it bound");
        let error = ErrorFrame {
            code: code.as_str(),
            message: &message,
            retry: code.retryable(),
            retry_after_ms: None,
            fatal: false,
        };
        self.answer(key, Frame::Error(error).to_bytes())
    }

    /// Bytes outside the protocol: nothing after them can be understood.
    fn end_miop(&mut self, key: usize, error: &MiopError) -> After {
        self.close(key, Refusal::new(error.code(), error.to_string()));
        After::Stays
    }
}

/// Why a whole frame of this kind is refused in this phase, whatever is in it: who has not bound has nothing decoded
/// but its bind, and a relay, which looks at kinds alone, answers the same.
fn misplaced(phase: Phase, kind: u8) -> Option<Refusal> {
    match (phase, kind) {
        (_, 0x80..) | (Phase::Unbound, kind::BIND) => None,
        (Phase::Unbound, _) => Some(Refusal::new(ErrorCode::NotBound, "bind first")),
        (_, kind::BIND) => Some(Refusal::new(ErrorCode::AlreadyBound, "the session is bound")),
        (_, kind::BOUND | kind::PUSH | kind::REDIRECT | kind::ERROR) => {
            Some(malformed("a frame that only a server sends"))
        }
        _ => None,
    }
}

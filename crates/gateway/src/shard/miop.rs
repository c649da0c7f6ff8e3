//! The frames of MIOP, and what each does to its session. Chat frames carry the WebSocket protocol's JSON.

use super::{
    FrameOutcome, Shard,
    binding::BindFields,
    decoding::{DecodeError, decode_frame, malformed},
};
use crate::{connection::Phase, session_config::silence_max};
use std::borrow::Cow;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    miop::{self, Bind, ErrorFrame, Frame, MiopError, decode, kind, take_head, wants},
};

impl Shard {
    /// Handles the complete frames; an incomplete one is kept with the connection.
    pub(super) fn handle_miop_frames(&mut self, key: usize, bytes: &[u8]) -> FrameOutcome {
        let mut rest = bytes;
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return FrameOutcome::Moved };
            if connection.phase == Phase::Closing {
                return FrameOutcome::Continue;
            }
            let limit = connection.frame_bytes_max();
            let head = match take_head(rest, limit) {
                Ok(Some(head)) => head,
                Ok(None) => {
                    connection.partial = rest.into();
                    return FrameOutcome::Continue;
                }
                Err(error) => return self.close_for_miop_error(key, &error),
            };
            let (frame, following) = rest.split_at(head.payload.end);
            rest = following;
            if self.handle_miop_frame(key, head.kind, &frame[head.payload], following) == FrameOutcome::Moved {
                return FrameOutcome::Moved;
            }
        }
    }

    fn handle_miop_frame(&mut self, key: usize, kind: u8, payload: &[u8], following: &[u8]) -> FrameOutcome {
        if let Some(refusal) = out_of_phase(self.connections[key].phase, kind) {
            self.close(key, refusal);
            return FrameOutcome::Continue;
        }
        let frame = match decode(kind, payload) {
            Ok(frame) => frame,
            Err(error) => return self.close_for_miop_error(key, &error),
        };
        match frame {
            Frame::Bind(bind) => self.handle_miop_bind(key, &bind, following),
            Frame::Heartbeat { interval_s } => self.handle_heartbeat(key, interval_s),
            Frame::Ack { .. } if !self.wants_pushes(key) => self.refuse_unrequested(key, "pushes"),
            Frame::Ack { pushes } => self.handle_ack(key, None, pushes),
            Frame::Chat { json } => self.handle_chat(key, json),
            Frame::Unbind { .. } => {
                self.close_gracefully(key, &[]);
                FrameOutcome::Continue
            }
            // `out_of_phase` has refused the frames that only servers send.
            Frame::Skipped { .. } | Frame::Bound(_) | Frame::Push(_) | Frame::Redirect { .. } | Frame::Error(_) => {
                FrameOutcome::Continue
            }
        }
    }

    fn wants_pushes(&self, key: usize) -> bool {
        self.connections[key].binding.as_ref().is_some_and(|binding| binding.push)
    }

    fn handle_miop_bind(&mut self, key: usize, bind: &Bind<'_>, following: &[u8]) -> FrameOutcome {
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
            // An `attention` frame may follow.
            background: false,
            compact: wanted & wants::COMPACT != 0,
            push_is_explicit: bind.wants.is_some(),
            heartbeat_ms: self.parts.config.granted_heartbeat_s(bind.heartbeat_s) as u32 * 1_000,
        };
        self.handle_bind(key, fields, following)
    }

    fn handle_heartbeat(&mut self, key: usize, proposed_s: Option<u64>) -> FrameOutcome {
        let granted = proposed_s.map(|proposed| self.parts.config.granted_heartbeat_s(Some(proposed)));
        let tick = self.tick();
        match granted {
            None => self.send_frame(key, miop::HEARTBEAT.to_vec()),
            Some(granted) => {
                self.connections[key].heartbeat_ms = granted as u32 * 1_000;
                self.arm_timeout(key, tick + silence_max(granted as u32 * 1_000));
                self.send_frame(key, Frame::Heartbeat { interval_s: Some(granted) }.to_bytes())
            }
        }
    }

    fn handle_chat(&mut self, key: usize, json: &[u8]) -> FrameOutcome {
        // What the token allows is checked for each operation.
        let has_chat = self.connections[key].binding.as_ref().is_some_and(|binding| binding.sends_chat);
        let Ok(text) = std::str::from_utf8(json) else {
            return if has_chat {
                self.refuse(key, None, malformed("text that is not UTF-8"))
            } else {
                self.refuse_unrequested(key, "chat")
            };
        };
        let frame = match decode_frame(text) {
            Ok(frame) => frame,
            Err(_) if !has_chat => return self.refuse_unrequested(key, "chat"),
            Err(DecodeError { reference, refusal }) => return self.refuse(key, reference, refusal),
        };
        match &*frame.t {
            // A session without chat refreshes its token too.
            "refresh" => self.handle_operation(key, &frame),
            _ if !has_chat => self.refuse_unrequested(key, "chat"),
            "bind" | "unbind" | "ack" => {
                let why = format!("{:?} has a frame of its own in this protocol", frame.t);
                self.refuse(key, frame.reference, Refusal::new(ErrorCode::Malformed, why))
            }
            _ => self.handle_operation(key, &frame),
        }
    }

    /// Refuses a part of the protocol that the session did not bind for. The answer is a MIOP error frame: the session may
    /// have no chat.
    fn refuse_unrequested(&mut self, key: usize, what: &str) -> FrameOutcome {
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
        self.send_frame(key, Frame::Error(error).to_bytes())
    }

    /// Closes a connection with invalid framing: nothing after it can be decoded.
    fn close_for_miop_error(&mut self, key: usize, error: &MiopError) -> FrameOutcome {
        self.close(key, Refusal::new(error.code(), error.to_string()));
        FrameOutcome::Continue
    }
}

/// Refuses a frame by its kind in this phase, whatever its payload: an unbound client has nothing decoded but its bind,
/// and a relay, which looks at kinds alone, answers the same.
fn out_of_phase(phase: Phase, kind: u8) -> Option<Refusal> {
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

//! A socket and the state of the session on it. An idle one holds no buffer.

use crate::{
    binding::FIRST_FRAME_BYTES_MAX,
    commands::BindRequest,
    outgoing::{Outgoing, put_json_head},
    probing::Unheard,
    transport::{Door, Transport},
    typing::Typed,
};
use std::time::Instant;
use tidings_engine::{model::*, push::DeviceNo};
use tidings_listen::ThrottleKey;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::ServerFrame,
    limits::FRAME_BYTES_MAX,
    miop::{ErrorFrame, Frame},
    ws::{Assembly, Control, OpCode, close_payload, put_server_frame},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody yet: only a bind is taken, and soon.
    Unbound,
    /// Memberships or missed entries are being read; what comes live waits.
    Binding,
    Live,
    /// A close frame is on its way; what still comes in is thrown away.
    Closing,
}

/// Where a connection waits to be flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheduled {
    No,
    Later,
    Bulk,
    Urgent,
}

pub(crate) struct Connection {
    pub transport: Transport,
    pub door: Door,
    /// The session's name: the slab key, and a generation above it that tells apart who had the key before.
    pub session: u64,
    pub phase: Phase,
    pub scheduled: Scheduled,
    /// The kernel's buffer is full; the next writable event goes on.
    pub blocked: bool,
    /// Waits in the shard's list of readable connections.
    pub readable: bool,
    /// The client's end was announced, perhaps together with its last bytes: read until it comes,
    /// since it is not announced again.
    pub ending: bool,
    /// Asked to be told of others' presence.
    pub watches: bool,
    /// Frames are not taken until something before them is done.
    pub paused: bool,
    /// Requests that run on other threads.
    pub requests: u8,
    /// Something is heard at least this often from a bound session.
    pub heartbeat_ms: u32,
    /// The device that pushes go to, once it is registered.
    pub device: Option<DeviceNo>,
    /// The wheel's tick of the last byte heard, or of the start of the phase.
    pub heard: u32,
    /// The tick of its entry in the wheel.
    pub due: u32,
    /// The tick at which its token's time is over.
    pub expires: u32,
    /// Whom a bind that fails is counted for.
    pub throttle_key: ThrottleKey,
    pub flushed_at: Option<Instant>,
    pub cursor: Cursor,
    /// What it was handed since it was last heard, if anything.
    pub unheard: Option<Box<Unheard>>,
    /// The head of a frame that has not come whole.
    pub partial: Vec<u8>,
    /// The parts of a fragmented message so far.
    pub assembly: Assembly,
    pub outgoing: Outgoing,
    /// Where the user typed a moment ago, once they have typed anywhere.
    pub typed: Option<Box<Typed>>,
    pub bound: Option<Box<BindRequest>>,
}

impl Connection {
    pub(crate) fn new(transport: Transport, door: Door, session: u64, tick: u32) -> Self {
        Connection {
            transport,
            door,
            session,
            phase: Phase::Unbound,
            scheduled: Scheduled::No,
            blocked: false,
            readable: false,
            ending: false,
            watches: false,
            paused: false,
            requests: 0,
            heartbeat_ms: 0,
            device: None,
            heard: tick,
            due: u32::MAX,
            expires: u32::MAX,
            throttle_key: ThrottleKey::UNKNOWN,
            flushed_at: None,
            cursor: Cursor::default(),
            unheard: None,
            partial: Vec::new(),
            assembly: Assembly::default(),
            outgoing: Outgoing::default(),
            typed: None,
            bound: None,
        }
    }

    /// What one message of the client may hold, in however many parts it comes.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        if self.phase == Phase::Unbound { FIRST_FRAME_BYTES_MAX } else { FRAME_BYTES_MAX }
    }

    pub(crate) fn push_json(&mut self, json: &[u8]) {
        self.outgoing.push_frame(json_frame(self.door, json));
    }

    pub(crate) fn push_control(&mut self, opcode: Control, payload: &[u8]) {
        let mut frame = Vec::with_capacity(payload.len() + 2);
        put_server_frame(&mut frame, OpCode::Control(opcode), payload);
        self.outgoing.push_frame(frame);
    }

    /// Says why the connection is being closed: an error frame, and on a WebSocket its close frame.
    pub(crate) fn push_close(&mut self, reference: Option<u64>, refusal: &Refusal, close_code: u16) {
        match self.door {
            Door::WebSocket => {
                self.push_json(&error_json(reference, refusal));
                self.push_control(Control::Close, &close_payload(close_code, refusal.code.as_str()));
            }
            Door::Miop => self.outgoing.push_frame(fatal_error(refusal)),
        }
    }

    /// When to connect again.
    pub(crate) fn reconnect_frame(&self, after_ms: u64) -> Vec<u8> {
        match self.door {
            Door::WebSocket => json_frame(self.door, &json(&ServerFrame::Reconnect { after_ms })),
            Door::Miop => Frame::Redirect { address: None, after_ms }.to_bytes(),
        }
    }
}

/// A frame of the door that carries JSON.
pub(crate) fn json_frame(door: Door, json: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(json.len() + 10);
    put_json_head(door, &mut frame, json.len());
    frame.extend_from_slice(json);
    frame
}

/// The last frame of a MIOP connection.
pub(crate) fn fatal_error(refusal: &Refusal) -> Vec<u8> {
    let error = ErrorFrame {
        code: refusal.code.as_str(),
        message: &refusal.detail,
        retry: refusal.code.retryable(),
        retry_after_ms: refusal.retry_after_ms,
        fatal: true,
    };
    Frame::Error(error).to_bytes()
}

/// The JSON of a frame; a type of ours always serializes.
pub(crate) fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

pub(crate) fn error_json(reference: Option<u64>, refusal: &Refusal) -> Vec<u8> {
    json(&tidings_protocol::frames::ServerFrame::Error {
        reference,
        code: refusal.code,
        message: refusal.detail.clone(),
        retry: refusal.code.retryable(),
        retry_after_ms: refusal.retry_after_ms,
    })
}

pub(crate) fn malformed(detail: impl std::fmt::Display) -> Refusal {
    Refusal::new(ErrorCode::Malformed, detail.to_string())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_state_of_an_idle_connection_is_small() {
        let bytes = std::mem::size_of::<super::Connection>();
        println!("size_of::<Connection>() = {bytes}");
        assert!(bytes <= 320, "{bytes} bytes: what grew, and does every idle session need it?");
    }
}

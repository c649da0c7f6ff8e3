//! A connection and the state of the session on it. An idle connection holds no buffer.

mod ended_streams;
mod event_stream;
mod ordered_requests;
mod pending_chunks;
mod typing_limiter;
mod unacknowledged;

pub(crate) use ended_streams::{EndedStreams, session_gone};
pub(crate) use event_stream::EventStream;
pub(crate) use ordered_requests::OrderedRequests;
pub(crate) use pending_chunks::{PendingChunk, PendingChunks};

use crate::{
    encoding::{error_json, fatal_error, json, json_frame},
    outbound_queue::OutboundQueue,
    timer_wheel::TimerWheel,
    transport::{Protocol, Transport},
};
use std::{num::NonZeroU64, sync::Arc};
use tidings_domain::{model::*, push_store::DeviceNo};
use tidings_engine::access::Scopes;
use tidings_listen::{ThrottleKey, Unbound};
use tidings_protocol::{
    error::Refusal,
    event_stream::{StreamClosed, named_event},
    frames::ServerFrame,
    limits::FRAME_BYTES_MAX,
    miop::Frame,
    ws::{Assembly, Control, OpCode, close_payload, put_server_frame},
};
use typing_limiter::TypingLimiter;
pub(crate) use unacknowledged::{HandedMessage, UnacknowledgedDelivery};

/// The first frame holds a token and little else; an unbound client gets no more memory than this.
pub(crate) const FIRST_FRAME_BYTES_MAX: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The client is not known yet: only a bind is accepted, within the bind time-out.
    Unbound,
    /// Memberships or missed entries are being read; live entries wait in the outbound queue.
    Binding,
    Live,
    /// A close frame waits to be written; input is discarded.
    Closing,
}

/// Which queue of the shard's `FlushScheduler` holds a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushState {
    Idle,
    Delayed,
    Bulk,
    Urgent,
}

pub(crate) struct Connection {
    pub transport: Transport,
    pub protocol: Protocol,
    /// The session's id: the slab key, and above it a generation that differs for each connection with the same key.
    pub session: u64,
    pub phase: Phase,
    pub flush_state: FlushState,
    /// The kernel's buffer is full: nothing is written before the next writable event.
    pub blocked: bool,
    /// The connection is in the shard's list of readable connections.
    pub readable: bool,
    /// The poll has announced that the client closed its side, perhaps together with its last bytes: the socket is read
    /// to its end, since there is no second announcement.
    pub read_closed: bool,
    /// The session watches the presence of others.
    pub watches_presence: bool,
    /// Requests that run on other threads.
    pub requests_in_flight: u8,
    /// A bound client sends something at least this often.
    pub heartbeat_ms: u32,
    /// The device that pushes of this session are addressed to, once it is registered.
    pub device: Option<DeviceNo>,
    /// The tick at which the last byte was received, or the phase began.
    pub last_heard: u32,
    /// The tick of the connection's valid entry in the timer wheel.
    pub timer_due: u32,
    /// The tick at which the session's token expires.
    pub token_expires: u32,
    /// The address that a failed bind is counted for.
    pub throttle_key: ThrottleKey,
    /// In microseconds since the shard began; absent before the first flush.
    pub flushed_at: Option<NonZeroU64>,
    pub cursor: Cursor,
    /// Set while the session was handed messages and has sent nothing since.
    pub unconfirmed: Option<Box<UnconfirmedDelivery>>,
    /// The client tells what it has stored.
    pub acknowledges: bool,
    /// Set while a session whose client acknowledges was handed messages that its client has not stored.
    pub unacknowledged: Option<Box<UnacknowledgedDelivery>>,
    /// The received part of an incomplete frame.
    pub partial: Box<[u8]>,
    /// The fragments of a WebSocket message received so far.
    pub assembly: Assembly,
    pub outbound: OutboundQueue,
    /// The client asked for compact entries.
    pub is_compact: bool,
    /// What few sessions need; absent until one does.
    extras: Option<Box<Extras>>,
    pub binding: Option<Box<SessionBinding>>,
    /// Set while the connection has not bound, or is closing: it gives way to others.
    pub unbound: Option<Box<Unbound>>,
}

/// What few sessions need, or only some of the time.
#[derive(Default)]
pub(crate) struct Extras {
    /// Requests on other threads whose order matters.
    ordered_requests: Option<OrderedRequests>,
    /// Limits typing notifications.
    pub typing: TypingLimiter,
    /// Chunks of messages that grow, while the socket takes nothing.
    pub pending_chunks: Option<PendingChunks>,
    /// Absent on other connections than event streams.
    pub event_stream: Option<EventStream>,
}

impl Connection {
    pub(crate) fn new(transport: Transport, protocol: Protocol, session: u64, tick: u32) -> Self {
        Connection {
            transport,
            protocol,
            session,
            phase: Phase::Unbound,
            flush_state: FlushState::Idle,
            blocked: false,
            readable: false,
            read_closed: false,
            watches_presence: false,
            requests_in_flight: 0,
            heartbeat_ms: 0,
            device: None,
            last_heard: tick,
            timer_due: u32::MAX,
            token_expires: u32::MAX,
            throttle_key: ThrottleKey::UNKNOWN,
            flushed_at: None,
            cursor: Cursor::default(),
            unconfirmed: None,
            acknowledges: false,
            unacknowledged: None,
            partial: Box::default(),
            assembly: Assembly::default(),
            outbound: OutboundQueue::default(),
            is_compact: false,
            extras: None,
            binding: None,
            unbound: None,
        }
    }

    /// Has the wheel come back to the connection, under its key, at this tick at the latest.
    pub(crate) fn arm(&mut self, key: usize, tick: u32, timers: &mut TimerWheel) {
        if tick < self.timer_due {
            self.timer_due = timers.put(key, tick);
        }
    }

    /// The longest message that the client may send, in however many fragments.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        if self.phase == Phase::Unbound { FIRST_FRAME_BYTES_MAX } else { FRAME_BYTES_MAX }
    }

    pub(crate) fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    pub(crate) fn ordered_requests(&mut self) -> OrderedRequests {
        self.extras_mut().ordered_requests.get_or_insert_default().clone()
    }

    pub(crate) fn event_stream(&self) -> Option<&EventStream> {
        self.extras.as_ref()?.event_stream.as_ref()
    }

    pub(crate) fn event_stream_mut(&mut self) -> Option<&mut EventStream> {
        self.extras.as_mut()?.event_stream.as_mut()
    }

    pub(crate) fn pending_chunks(&self) -> Option<&PendingChunks> {
        self.extras.as_ref()?.pending_chunks.as_ref()
    }

    pub(crate) fn drop_pending_chunks(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.pending_chunks = None;
        }
    }

    pub(crate) fn queue_json(&mut self, json: &[u8]) {
        self.outbound.queue_frame(json_frame(self.protocol, json));
    }

    pub(crate) fn queue_control(&mut self, opcode: Control, payload: &[u8]) {
        let mut frame = Vec::with_capacity(payload.len() + 2);
        put_server_frame(&mut frame, OpCode::Control(opcode), payload);
        self.outbound.queue_frame(frame);
    }

    /// Queues the reason for closing: an error frame, followed by the close frame on a WebSocket.
    pub(crate) fn queue_close(&mut self, reference: Option<u64>, refusal: &Refusal, close_code: u16) {
        match self.protocol {
            Protocol::WebSocket => {
                self.queue_json(&error_json(reference, refusal));
                self.queue_control(Control::Close, &close_payload(close_code, refusal.code.as_str()));
            }
            Protocol::EventStream(_) => {
                self.queue_json(&error_json(reference, refusal));
                self.queue_close_event(close_code, refusal.code.as_str());
            }
            Protocol::Miop => self.outbound.queue_frame(fatal_error(refusal)),
        }
    }

    /// Queues the last event of a stream, and its end.
    pub(crate) fn queue_close_event(&mut self, code: u16, reason: &str) {
        self.outbound.queue_frame(named_event("close", &StreamClosed { code, reason: reason.to_owned() }));
        self.outbound.queue_end();
    }

    /// The frame that tells the client when to connect again.
    pub(crate) fn reconnect_frame(&self, after_ms: u64) -> Vec<u8> {
        match self.protocol {
            Protocol::WebSocket | Protocol::EventStream(_) => {
                json_frame(self.protocol, &json(&ServerFrame::Reconnect { after_ms }))
            }
            Protocol::Miop => Frame::Redirect { address: None, after_ms }.to_bytes(),
        }
    }
}

/// A bind whose token was accepted: the user and device of a session, and what the session takes part in.
#[derive(Clone)]
pub(crate) struct SessionBinding {
    pub user: Arc<User>,
    pub device_id: Arc<str>,
    pub device_kind: Arc<str>,
    /// What is needed until the session is live.
    pub pending: Option<Box<PendingBind>>,
    /// The session receives messages of conversations.
    pub chat: bool,
    /// The client asked for chat: its chat frames are read, also if its token does not let it receive messages.
    pub sends_chat: bool,
    /// The session's device receives pushes, and they are kept for it while it is offline.
    pub push: bool,
    /// The client answers probes.
    pub answers_probes: bool,
    /// The client has said that nobody looks at it.
    pub background: bool,
    /// The client asked for compact entries.
    pub compact: bool,
    /// The session goes live only after its device was registered, or the registration was postponed.
    pub awaits_registration: bool,
    /// When the bind was sent, as far as that is known, in milliseconds since 1970 UTC.
    pub since: u64,
    /// What the token allows.
    pub scopes: Scopes,
    /// When the token was issued, if it says so, and when it expires, in milliseconds since 1970 UTC.
    pub issued_at: Option<NonZeroU64>,
    pub expires_at: u64,
}

/// The part of a bind that is needed only until the session is live.
#[derive(Clone, Default)]
pub(crate) struct PendingBind {
    pub app_version: Option<Arc<str>>,
    pub cursor: Option<Cursor>,
    /// How far commits had come when the session was bound: from there on offline push counts the user as online.
    pub positions_at_bind: [Position; LANES],
}

/// Messages that a session was handed, and that nothing received from it confirms yet.
pub(crate) struct UnconfirmedDelivery {
    /// The session's cursor before the first of these messages.
    pub since: Cursor,
    /// The tick of the probe, or of its time-out.
    pub next_tick: u32,
    pub probed: bool,
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_state_of_an_idle_connection_is_small() {
        let bytes = std::mem::size_of::<super::Connection>();
        println!("size_of::<Connection>() = {bytes}");
        assert!(bytes <= 200, "{bytes} bytes: what grew, and does every idle session need it?");
        let bytes = std::mem::size_of::<super::SessionBinding>();
        println!("size_of::<SessionBinding>() = {bytes}");
        assert!(bytes <= 80, "{bytes} bytes: what grew, and does every idle session need it?");
    }
}

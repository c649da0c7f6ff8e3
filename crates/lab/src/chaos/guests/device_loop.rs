//! All devices of the guests on one thread, by one reactor: each is connected while it is wanted.

use super::{
    super::push_verifier::PushVerifier,
    device_handle::{DeviceHandle, GuestConfig, GuestProtocol},
    offline_notices::OfflineNotices,
};
use crate::{
    LabError,
    client_engine::{
        device::{
            DeviceBind, DeviceProtocol, ServerMessage, put_ack, put_bind, put_heartbeat, put_unbind, take_message,
        },
        other_than,
        reactor::{Clients, Reactor},
        session::{put_frame, user_token},
        websocket::WebSocket,
    },
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_client::session::CONNECT_PATH;
use tidings_protocol::frames::{ClientFrame, PresenceChange};

/// The longest time without a look at what devices are to do.
const TICK: Duration = Duration::from_millis(20);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A connection that received nothing for so long is closed, since the server answers heartbeats.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(4);
/// The longest wait for a connection: another node may answer sooner.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest wait for the answer to a bind; a node that cannot reach the leader refuses the bind itself.
const BIND_TIMEOUT: Duration = Duration::from_secs(5);
/// The wait before a device reconnects, in milliseconds at random, so that devices of a failed node do not all reach the next
/// one at once.
const RECONNECT_DELAY_MS: std::ops::Range<u64> = 100..500;
const TOLD_TO_RECONNECT: &str = "told to connect again";

/// What all devices share.
#[derive(Clone)]
pub(super) struct DeviceContext {
    pub(super) devices: Arc<[DeviceHandle]>,
    pub(super) config: Arc<GuestConfig>,
    pub(super) push_verifier: Arc<PushVerifier>,
    pub(super) notices: Arc<OfflineNotices>,
    pub(super) stopped: Arc<AtomicBool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    /// Connecting, or upgrading.
    Opening,
    Binding,
    Live,
}

/// The session of a device.
struct DeviceSession {
    state: State,
    node: usize,
    /// How many sessions there were.
    connection: u64,
    websocket: WebSocket,
    /// When the state began; of a closed session, when it may be opened.
    since: Instant,
    last_receive_at: Instant,
    last_heartbeat_at: Instant,
    /// Whether the device watches the other guests, and was not refused.
    watches: bool,
}

/// Why a session ended, in words.
pub(super) struct SessionEnd(String);

impl From<io::Error> for SessionEnd {
    fn from(error: io::Error) -> Self {
        SessionEnd(error.kind().to_string())
    }
}

struct DeviceLoop {
    context: DeviceContext,
    sessions: Vec<DeviceSession>,
}

/// Runs all devices until they are stopped.
pub(super) fn run_devices(context: DeviceContext) -> Result<(), LabError> {
    let mut reactor = Reactor::new()?;
    let now = Instant::now();
    let session = |handle: &DeviceHandle| DeviceSession {
        state: State::Closed,
        node: handle.home,
        connection: 0,
        websocket: WebSocket::default(),
        since: now,
        last_receive_at: now,
        last_heartbeat_at: now,
        watches: false,
    };
    let sessions = context.devices.iter().map(session).collect();
    let mut devices = DeviceLoop { context, sessions };
    while !devices.context.stopped.load(Ordering::Relaxed) {
        for number in 0..devices.sessions.len() {
            devices.advance(&mut reactor, number, Instant::now());
        }
        reactor.turn(TICK, &mut devices)?;
    }
    for number in 0..devices.sessions.len() {
        devices.leave(&mut reactor, number, true);
    }
    Ok(())
}

fn protocol_of(handle: &DeviceHandle) -> DeviceProtocol {
    match handle.via {
        GuestProtocol::Miop { .. } => DeviceProtocol::Miop,
        GuestProtocol::WebSocket => DeviceProtocol::Ws,
    }
}

impl DeviceLoop {
    /// What is due of a device, whatever comes.
    fn advance(&mut self, reactor: &mut Reactor, number: usize, now: Instant) {
        let (handle, session) = (&self.context.devices[number], &mut self.sessions[number]);
        let lasts = now.saturating_duration_since(session.since);
        match session.state {
            State::Closed => {
                if handle.take_home_request() {
                    session.node = handle.home;
                }
                if !handle.is_wanted() {
                    handle.end_change();
                } else if now >= session.since {
                    self.open(reactor, number, now);
                }
            }
            State::Opening if lasts > CONNECT_TIMEOUT => self.end(reactor, number, "timed out"),
            State::Binding if lasts > BIND_TIMEOUT => self.end(reactor, number, "timed out"),
            State::Opening | State::Binding => {}
            State::Live => self.advance_live(reactor, number, now),
        }
    }

    fn advance_live(&mut self, reactor: &mut Reactor, number: usize, now: Instant) {
        let (handle, session) = (&self.context.devices[number], &mut self.sessions[number]);
        if handle.take_home_request() {
            if session.node != handle.home {
                return self.leave(reactor, number, true);
            }
            handle.end_change();
        }
        if !handle.is_wanted() {
            // Every other time without an unbind, like an app that is swiped away.
            let with_unbind = session.connection.is_multiple_of(2);
            return self.leave(reactor, number, with_unbind);
        }
        if now.saturating_duration_since(session.last_receive_at) > SILENCE_TIMEOUT {
            return self.end(reactor, number, "silence");
        }
        if now.saturating_duration_since(session.last_heartbeat_at) >= HEARTBEAT_INTERVAL {
            session.last_heartbeat_at = now;
            let (via, config, out) = (protocol_of(handle), &self.context.config, reactor.out(number));
            put_heartbeat(via, out);
            // Devices over MIOP do not watch: some are bound for pushes alone.
            if !std::mem::replace(&mut session.watches, true) && via == DeviceProtocol::Ws {
                let (conversation, users) = (Some(config.group.clone()), config.guests.clone());
                put_frame(out, &ClientFrame::WatchPresence { reference: None, conversation, users });
            }
        }
    }

    /// Closed => Opening, or Closed again.
    fn open(&mut self, reactor: &mut Reactor, number: usize, now: Instant) {
        let (handle, session) = (&self.context.devices[number], &mut self.sessions[number]);
        handle.begin_change();
        let (http, miop) = self.context.config.nodes[session.node];
        let address = if protocol_of(handle) == DeviceProtocol::Ws { http } else { miop };
        (session.state, session.since) = (State::Opening, now);
        if let Err(error) = reactor.connect(number, address, None) {
            self.end(reactor, number, &SessionEnd::from(error).0);
        }
    }

    fn put_bind(&mut self, number: usize, out: &mut Vec<u8>) {
        let (handle, session) = (&self.context.devices[number], &mut self.sessions[number]);
        (session.state, session.since) = (State::Binding, Instant::now());
        let bind = DeviceBind {
            token: &user_token(&self.context.config.token_key, &handle.user),
            device_id: handle.device,
            device_kind: handle.device,
            pushes: true,
            chats: matches!(handle.via, GuestProtocol::Miop { chats: true }),
            heartbeat_s: None,
        };
        put_bind(protocol_of(handle), out, &bind);
    }

    /// Ends a session on purpose.
    fn leave(&mut self, reactor: &mut Reactor, number: usize, with_unbind: bool) {
        let (handle, session) = (&self.context.devices[number], &mut self.sessions[number]);
        if session.state != State::Live {
            return;
        }
        // The change begins before the connection closes: nodes may notice it at once.
        handle.begin_change();
        if with_unbind {
            put_unbind(protocol_of(handle), reactor.out(number));
            reactor.flush();
        }
        reactor.close(number);
        handle.record_end();
        (session.state, session.since, session.node) = (State::Closed, Instant::now(), handle.home);
    }

    /// Ends a session that failed; the device tries another node a little later.
    fn end(&mut self, reactor: &mut Reactor, number: usize, why: &str) {
        reactor.close(number);
        let (handle, session) = (&self.context.devices[number], &mut self.sessions[number]);
        if session.state == State::Live {
            handle.record_end();
            handle.record_break(why.to_owned());
        } else {
            handle.record_break(format!("not bound: {why}"));
        }
        let delay = Duration::from_millis(rand::random_range(RECONNECT_DELAY_MS));
        (session.state, session.since) = (State::Closed, Instant::now() + delay);
        session.node = other_than(session.node, self.context.config.nodes.len());
    }

    fn handle_message(
        &mut self,
        number: usize,
        message: ServerMessage<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionEnd> {
        let DeviceContext { devices, push_verifier, notices, .. } = &self.context;
        let (handle, session) = (&devices[number], &mut self.sessions[number]);
        let is_live = session.state == State::Live;
        match message {
            ServerMessage::Upgraded => self.put_bind(number, out),
            ServerMessage::Bound { pushes, .. } => {
                // Live => Live: bound anew, with or without pushes.
                if !is_live {
                    session.state = State::Live;
                    session.connection += 1;
                    (session.last_heartbeat_at, session.watches) = (Instant::now(), false);
                }
                handle.record_bound(pushes);
            }
            ServerMessage::Redirect { .. } => return Err(SessionEnd(TOLD_TO_RECONNECT.into())),
            ServerMessage::Refused { code, fatal, .. } if fatal || !is_live => {
                return Err(SessionEnd(code.into_owned()));
            }
            // The only refusable request is to watch: repeat it.
            ServerMessage::Refused { .. } => session.watches = false,
            ServerMessage::Ignored => {}
            _ if !is_live => return Err(SessionEnd("a bind was answered with something else".into())),
            ServerMessage::Push { id, body } => {
                push_verifier.record_delivery(number, session.connection, id, body);
                put_ack(protocol_of(handle), out, vec![id]);
            }
            ServerMessage::Presence { changes } => {
                let changes: Vec<PresenceChange> =
                    serde_json::from_str(changes).map_err(|error| SessionEnd(error.to_string()))?;
                let changes = changes.into_iter().map(|change| (change.user, change.online)).collect();
                notices.record(changes, devices, session.node);
            }
            ServerMessage::Heartbeat => {}
        }
        Ok(())
    }
}

impl Clients for DeviceLoop {
    type Error = SessionEnd;

    fn connected(&mut self, number: usize, out: &mut Vec<u8>) {
        match protocol_of(&self.context.devices[number]) {
            DeviceProtocol::Ws => self.sessions[number].websocket.begin(CONNECT_PATH, out),
            DeviceProtocol::Miop | DeviceProtocol::Miops => self.put_bind(number, out),
        }
    }

    fn receive(&mut self, number: usize, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<usize, SessionEnd> {
        let via = protocol_of(&self.context.devices[number]);
        let mut taken = 0;
        loop {
            let session = &mut self.sessions[number];
            session.last_receive_at = Instant::now();
            let message = take_message(via, &mut session.websocket, &mut bytes[taken..], out);
            let Some((length, message)) = message.map_err(SessionEnd)? else { return Ok(taken) };
            taken += length;
            self.handle_message(number, message, out)?;
        }
    }

    fn ended(&mut self, reactor: &mut Reactor, number: usize, why: SessionEnd) -> Result<(), LabError> {
        self.end(reactor, number, &why.0);
        Ok(())
    }
}

//! What other threads tell a shard, besides the engine's fan-outs.

use crate::{
    link::RelayThread,
    transport::{Door, Passage},
};
use crossbeam_channel::Sender;
use std::{net::TcpStream, sync::Arc, time::Duration};
use tidings_engine::{
    delivery::Place,
    model::*,
    pass::Scopes,
    presence::compare::{Correction, HeldSession},
    resume::Missed,
};
use tidings_listen::{MaybeTlsSocket, ThrottleKey};
use tidings_protocol::error::Refusal;

/// Results and connections for a shard. The queue needs no bound of its own: each connection has a
/// bounded number of requests under way, and connections are bounded.
pub(crate) enum Command {
    /// A new connection, with what was read of it already.
    Adopt { socket: MaybeTlsSocket, door: Door, already_read: Vec<u8>, throttle_key: ThrottleKey },
    /// A relay's link to this shard.
    AdoptLink { socket: TcpStream, relay: RelayThread, lease: Duration, welcome: Vec<u8> },
    /// A relay's successor attached: its links are of no use any more.
    DropLinks { node: u32 },
    /// List the sessions, all or one user's; a dropped reply: too many are made.
    List { user: Option<UserNo>, reply: Sender<Vec<HeldSession>> },
    /// Have the registry of presence say of these sessions what is so; the reply is dropped when it does.
    Correct { corrections: Vec<Correction>, reply: Sender<()> },
    /// A connection that bound as a user of this shard.
    Move(Box<Moving>),
    /// A user's group and official conversations, by the number under which they were asked for.
    Memberships { user: UserNo, number: u64, result: Result<Vec<Place>, Refusal> },
    /// This node has come as far as a session had come elsewhere.
    CaughtUp { session: u64, result: Result<(), Refusal> },
    /// What a session missed up to where it went live.
    Missed { session: u64, result: Result<Missed, Refusal> },
    /// The answer to a request that ran elsewhere: a frame's JSON.
    Answer { session: u64, json: Vec<u8> },
    /// A direct conversation was opened: go on with what the session sent after it.
    GoOn { session: u64 },
    /// Tell every client to connect again within `spread_ms`, then close.
    Drain { spread_ms: u64 },
    /// Close what is left and end the thread.
    Stop,
}

pub(crate) struct Moving {
    pub passage: Passage,
    pub door: Door,
    pub already_read: Vec<u8>,
    pub bind: BindRequest,
}

/// A bind whose token was found good.
#[derive(Clone)]
pub(crate) struct BindRequest {
    pub user: Arc<User>,
    pub device_id: Arc<str>,
    pub device_kind: Arc<str>,
    /// What is needed until it is live.
    pub opening: Option<Box<Opening>>,
    /// Conversations are delivered to it.
    pub chat: bool,
    /// Pushes are delivered to it, and kept for it while it is away.
    pub push: bool,
    /// The device answers when it is asked whether it is there.
    pub answers_probes: bool,
    /// It goes live when its device is known, or known to be known later.
    pub awaits_device: bool,
    pub heartbeat_ms: u32,
    /// When it was bound, in milliseconds since 1970 UTC.
    pub since: u64,
    /// What its token allows.
    pub scopes: Scopes,
    /// When its token was issued, if it says so, and when it expires, in milliseconds since 1970 UTC.
    pub issued_at: Option<u64>,
    pub expires_at: u64,
}

impl BindRequest {
    /// Whether pushes come to it from whichever node does push. A device's connection is carried to that node instead.
    pub(crate) fn stays(&self, door: Door) -> bool {
        door == Door::WebSocket
    }
}

/// The part of a bind that is of no use once the session is live.
#[derive(Clone, Default)]
pub(crate) struct Opening {
    pub app_version: Option<Arc<str>>,
    pub cursor: Option<Cursor>,
    /// Where the shard stood when it was bound: from there on offline push takes the user to be here.
    pub bound_at: [Position; LANES],
}

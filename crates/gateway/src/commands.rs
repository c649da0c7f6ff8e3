//! The commands that other threads send to a shard. (The engine's fan-outs have queues of their own.)

use crate::{
    connection::SessionBinding,
    link::RelayThread,
    open_connections::EnteredConnection,
    transport::{DetachedConnection, Protocol},
    wake::ShardWake,
};
use crossbeam_channel::Sender;
use std::{net::TcpStream, sync::Arc, time::Duration};
use tidings_domain::model::*;
use tidings_engine::{
    delivery::MembershipSnapshot,
    engine::resume::Inbox,
    presence::compare::{Correction, LiveSession},
    shards::Wake,
};
use tidings_listen::{MaybeTlsSocket, ThrottleKey};
use tidings_protocol::{error::Refusal, event_stream::StreamPost};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// What became of a request with frames: the number of the newest one that was taken.
pub(crate) type PostReply = oneshot::Sender<Result<u64, Refusal>>;

/// The memberships of a user, read for sessions that bind.
pub(crate) struct MembershipRead {
    pub user: UserNo,
    /// The number of the read, as the delivery gave it.
    pub number: u64,
    pub result: Result<Vec<MembershipSnapshot>, Refusal>,
}

/// Results and connections for a shard. The queue needs no bound of its own: each connection, of the session
/// listeners or of HTTP, has a bounded number of requests under way, and connections are bounded.
pub(crate) enum Command {
    /// A new connection, with the bytes that were read from it already.
    Adopt {
        socket: MaybeTlsSocket,
        protocol: Protocol,
        already_read: Vec<u8>,
        throttle_key: ThrottleKey,
        entered: EnteredConnection,
    },
    /// A connection that has not bound, or is closing, gives way to another one.
    EndUnbound { session: u64 },
    /// A connection whose client does not read has the memory that others need.
    CloseSlowReader { session: u64 },
    /// A client's frames for its session over an event stream.
    Post { post: StreamPost, reply: PostReply },
    /// A relay's link to this shard.
    AdoptLink { socket: TcpStream, relay: RelayThread, lease: Duration, welcome: Vec<u8>, follows_cores: bool },
    /// A successor of this relay process has attached: the links of its predecessor are useless.
    DropLinks { node: u32 },
    /// List the sessions, all or one user's. A dropped reply means that too many listings run.
    List { user: Option<UserNo>, reply: Sender<Vec<LiveSession>> },
    /// Correct the presence registry for these sessions; the reply is dropped when that is done.
    Correct { corrections: Vec<Correction>, reply: Sender<()> },
    /// A connection that bound on another shard as a user of this one.
    Move(Box<MovedConnection>),
    /// The group and official conversations of users, by the numbers of the requests for them.
    Memberships(Vec<MembershipRead>),
    /// This node has reached the position that a session had reached on another node.
    CaughtUp { session: u64, result: Result<(), Refusal> },
    /// The entries that a session missed before it goes live.
    Missed { session: u64, result: Result<Inbox, Refusal> },
    /// The answer to a request that ran on another thread: a frame's JSON. A read keeps its permit to run until then: answers that no
    /// shard has taken yet would be memory that nobody counts.
    Answer { session: u64, json: Vec<u8>, running: Option<OwnedSemaphorePermit> },
    /// A request that ran on another thread is no longer under way there: it was submitted, and the commit answers it.
    Submitted { session: u64 },
    /// Tell every client to connect again within `spread_ms`, then close its connection.
    Drain { spread_ms: u64 },
    /// Close the remaining connections and end the thread.
    Stop,
}

/// A connection on its way to its user's shard, with the bind that names the user.
pub(crate) struct MovedConnection {
    pub connection: DetachedConnection,
    pub protocol: Protocol,
    pub already_read: Vec<u8>,
    pub bind: SessionBinding,
    pub heartbeat_ms: u32,
}

/// Sends commands to a shard from other threads.
#[derive(Clone)]
pub(crate) struct ShardHandle {
    commands: Sender<Command>,
    wake: Arc<ShardWake>,
}

impl ShardHandle {
    pub(crate) fn new(commands: Sender<Command>, wake: Arc<ShardWake>) -> Self {
        ShardHandle { commands, wake }
    }

    pub(crate) fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.wake.wake();
        }
    }
}

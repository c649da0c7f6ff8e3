//! The session server: starts the shards, hands them connections, drains them.

mod session_source;

use crate::{
    commands::{Command, ShardHandle},
    connection::session_gone,
    open_connections::OpenConnections,
    session_config::SessionConfig,
    shard::{Shard, ShardParts, store_reads::StoreReads},
    token_verification::VerifyToken,
    transport::Protocol,
    wake::{ShardWake, WAKE},
};
use crossbeam_channel::unbounded;
use mio::{Poll, Waker};
use parking_lot::Mutex;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_engine::{
    Engine,
    presence::NodeNo,
    shards::{ShardReceivers, Wake},
};
use tidings_listen::{ClientAddress, MaybeTlsSocket};
use tidings_notifications::Notifications;
use tidings_protocol::{error::Refusal, event_stream::StreamPost};
use tokio::sync::oneshot;

/// The shards' polls. They exist before the engine does, since the engine must be able to wake them.
pub struct PreparedServer {
    config: SessionConfig,
    polls: Vec<(Poll, Arc<ShardWake>)>,
}

/// The handle of all shards of this process.
pub struct SessionServer {
    engine: Arc<Engine>,
    shards: Vec<ShardHandle>,
    next: AtomicUsize,
    open: Arc<OpenConnections>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl SessionServer {
    /// Creates the shards' polls, and what wakes them.
    ///
    /// # Errors
    /// The system has no descriptor left for a poll.
    pub fn prepare(config: SessionConfig) -> io::Result<(PreparedServer, Vec<Arc<dyn Wake>>)> {
        let mut polls = Vec::new();
        let mut wakes: Vec<Arc<dyn Wake>> = Vec::new();
        for _ in 0..config.shards.max(1) {
            let poll = Poll::new()?;
            let wake =
                Arc::new(ShardWake { waker: Waker::new(poll.registry(), WAKE)?, asleep: AtomicBool::new(false) });
            wakes.push(wake.clone());
            polls.push((poll, wake));
        }
        Ok((PreparedServer { config, polls }, wakes))
    }

    /// Hands a connection to a shard, with the bytes that were read from it already (beyond the HTTP request, say).
    /// Answers whether there was room, or another connection gives way; if not, the socket is closed.
    pub fn adopt(
        &self,
        socket: MaybeTlsSocket,
        protocol: Protocol,
        already_read: Vec<u8>,
        client: ClientAddress,
    ) -> bool {
        let shard = &self.shards[self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len()];
        let of_shard = shard.clone();
        let entered = self.open.enter(client.address, move |session| of_shard.send(Command::EndUnbound { session }));
        let Some(entered) = entered else { return false };
        self.engine.metrics.connections_opened.inc();
        let throttle_key = client.throttle_key;
        shard.send(Command::Adopt { socket, protocol, already_read, throttle_key, entered });
        true
    }

    /// Hands a client's frames to its session over an event stream. The answer is the number of the newest request that was
    /// taken; there is none when the server stops.
    pub fn post(&self, post: StreamPost) -> oneshot::Receiver<Result<u64, Refusal>> {
        let (reply, answer) = oneshot::channel();
        match self.shards.get(usize::from(post.stream.shard)) {
            Some(shard) => shard.send(Command::Post { post, reply }),
            None => drop(reply.send(Err(session_gone()))),
        }
        answer
    }

    /// Whether another connection would be accepted now.
    pub fn has_room(&self) -> bool {
        self.open.has_room()
    }

    /// Has the connection that has been unbound for longest give way. False: none has been for long enough.
    pub fn evict_unbound(&self) -> bool {
        self.open.unbound.evict_oldest()
    }

    /// Connections that have not bound, or are closing.
    pub fn unbound(&self) -> usize {
        let metrics = &self.engine.metrics;
        let [bound, registered] =
            [&metrics.sessions, &metrics.connections].map(|gauge| usize::try_from(gauge.get()).unwrap_or(0));
        // Connections that no shard has registered yet count already. So do those that relays hold, since `bound` has them.
        self.connections().max(registered).saturating_sub(bound)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    pub(crate) fn send(&self, shard: usize, command: Command) {
        self.shards[shard].send(command);
    }

    /// Registers a relay process that has attached. Answers its node number.
    pub(crate) fn attach_node(&self, name: &str, boot_id: u64, address: &str, lease: Duration) -> u32 {
        let now_ms = self.engine.clock.now_ms();
        self.engine.presence.nodes.attach(name, boot_id, address, now_ms, lease.as_millis() as u64).0
    }

    /// Whether the node is still registered; its lease may have expired.
    pub(crate) fn knows_node(&self, node: u32) -> bool {
        self.engine.presence.nodes.record(NodeNo(node)).is_some()
    }

    pub(crate) fn is_node_alive(&self, node: u32) -> bool {
        self.engine.presence.nodes.is_alive(NodeNo(node))
    }

    /// Removes a node whose successor has attached, and the sessions behind its links.
    pub(crate) fn detach_node(&self, node: u32) {
        self.engine.presence.nodes.detach(NodeNo(node));
        for shard in &self.shards {
            shard.send(Command::DropLinks { node });
        }
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.open.count()
    }

    /// Tells all clients to connect again, spread over the deadline, and waits until their connections are closed or the
    /// deadline has passed; then ends the shards.
    pub async fn drain(&self, deadline: Duration) {
        let end = Instant::now() + deadline;
        for shard in &self.shards {
            shard.send(Command::Drain { spread_ms: deadline.as_millis() as u64 });
        }
        while self.connections() > 0 && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for shard in &self.shards {
            shard.send(Command::Stop);
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        let joined = tokio::task::spawn_blocking(move || {
            for thread in threads {
                let _ = thread.join();
            }
        });
        let _ = joined.await;
    }
}

impl PreparedServer {
    /// Starts the shard threads. Call this within the runtime that is to run blocking reads.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        self,
        engine: Arc<Engine>,
        notifications: Arc<Notifications>,
        receivers: Vec<ShardReceivers>,
        tokens: Arc<dyn VerifyToken>,
    ) -> io::Result<Arc<SessionServer>> {
        let open = self.config.open_connections();
        let reads = Arc::new(StoreReads::new(self.config.session_reads));
        let (handles, inboxes): (Vec<_>, Vec<_>) = self
            .polls
            .iter()
            .map(|(_, wake)| {
                #[expect(clippy::disallowed_methods, reason = "bounded by connections and their requests: see Command")]
                let (commands, inbox) = unbounded();
                (ShardHandle::new(commands, wake.clone()), inbox)
            })
            .unzip();
        let mut threads = Vec::new();
        for (index, (((poll, wake), inbox), receivers)) in
            self.polls.into_iter().zip(inboxes).zip(receivers).enumerate()
        {
            let shard = Shard::new(ShardParts {
                index,
                poll,
                wake,
                inbox,
                receivers,
                config: self.config.clone(),
                engine: engine.clone(),
                notifications: notifications.clone(),
                tokens: tokens.clone(),
                shards: handles.clone(),
                runtime: tokio::runtime::Handle::current(),
                reads: reads.clone(),
                open: open.clone(),
            });
            threads.push(std::thread::Builder::new().name(format!("shard-{index}")).spawn(move || shard.run())?);
        }
        Ok(Arc::new(SessionServer {
            engine,
            shards: handles,
            next: AtomicUsize::new(0),
            open,
            threads: Mutex::new(threads),
        }))
    }
}

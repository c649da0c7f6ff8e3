//! The sessions of all users: one thread and its poll. A session that breaks is opened again, and resumes.

use super::{
    cast::AckHabit,
    client_session::{ClientSession, Phase, ServerAnswer, SessionError},
    recorder::Recorder,
    records::{Delivery, Look},
};
use crate::{LabError, process};
use mio::{Events, Interest, Poll, Token, Waker};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};
use tidings_client::nonblocking::NonblockingSocket;

/// Concurrent handshakes: as many as a server's accept queue holds without loss.
const OPENING_MAX: usize = 200;
const BUFFER_BYTES: usize = 256 * 1024;
/// The longest sleep of the loop, and the interval in which it looks what is due.
const TICK: Duration = Duration::from_millis(20);
/// Each session says something so often: a third of the server's heartbeat interval.
const PING_INTERVAL_NS: u64 = 10_000_000_000;
/// How long a client takes to store what it got.
const STORE_AFTER_NS: u64 = 300_000_000;
/// A client that took longer is a lab that was held up, and the server may have given it up rightly.
const SLOW_NS: u64 = 1_000_000_000;
/// After a connection that failed the next one is tried so much later.
const RETRY_NS: u64 = 200_000_000;
/// A connection that ends so soon after a kill ended by it.
const KILL_SLACK_NS: u64 = 10_000_000_000;
const WAKER: Token = Token(usize::MAX);

/// What a user is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ClientCommand {
    /// Have a session, at which somebody looks or nobody.
    Connect {
        user: usize,
        looks: bool,
    },
    /// Have none.
    Disconnect {
        user: usize,
    },
    Stop,
}

#[derive(Debug, Default)]
struct Inbox {
    commands: Vec<ClientCommand>,
    /// Sessions that are not yet as they are wanted.
    unsettled: usize,
    /// The longest time from an entry to the moment at which its client said that it has stored it.
    ack_late_ns: u64,
    failure: Option<String>,
}

type SharedInbox = Arc<Mutex<Inbox>>;

fn lock(inbox: &SharedInbox) -> MutexGuard<'_, Inbox> {
    inbox.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread of the sessions. It ends with this handle.
pub(crate) struct Clients {
    inbox: SharedInbox,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Clients {
    pub(crate) fn start(address: SocketAddr, token_key: String, recorder: Arc<Recorder>) -> Result<Clients, LabError> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let inbox = SharedInbox::default();
        let sessions = recorder.cast.users.iter().map(|user| ClientSession::new(user.habit)).collect();
        let mut client_loop = ClientLoop {
            address,
            token_key,
            recorder,
            poll,
            sessions,
            buffer: vec![0; BUFFER_BYTES],
            inbox: inbox.clone(),
            opening: 0,
            last_ping_at: process::monotonic_ns(),
            next_reference: 1,
        };
        let of_thread = inbox.clone();
        let run = move || {
            if let Err(error) = client_loop.run() {
                lock(&of_thread).failure = Some(error.to_string());
            }
        };
        let thread = std::thread::Builder::new().name("notify-clients".into()).spawn(run)?;
        Ok(Clients { inbox, waker, thread: Some(thread) })
    }

    pub(crate) fn tell(&self, commands: impl IntoIterator<Item = ClientCommand>) -> Result<(), LabError> {
        lock(&self.inbox).commands.extend(commands);
        Ok(self.waker.wake()?)
    }

    /// Whether all sessions are as they are wanted.
    pub(crate) fn is_settled(&self) -> Result<bool, LabError> {
        let inbox = lock(&self.inbox);
        match &inbox.failure {
            Some(failure) => Err(LabError::Worker(failure.clone())),
            None => Ok(inbox.commands.is_empty() && inbox.unsettled == 0),
        }
    }

    pub(crate) fn unsettled(&self) -> usize {
        lock(&self.inbox).unsettled
    }

    /// See [`Inbox::ack_late_ns`].
    pub(crate) fn ack_late(&self) -> Duration {
        Duration::from_nanos(lock(&self.inbox).ack_late_ns)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.tell([ClientCommand::Stop]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct ClientLoop {
    address: SocketAddr,
    token_key: String,
    recorder: Arc<Recorder>,
    poll: Poll,
    /// By user.
    sessions: Vec<ClientSession>,
    buffer: Vec<u8>,
    inbox: SharedInbox,
    opening: usize,
    last_ping_at: u64,
    next_reference: u64,
}

impl ClientLoop {
    fn run(&mut self) -> Result<(), LabError> {
        let mut events = Events::with_capacity(4096);
        let mut looked_at = 0;
        loop {
            match self.poll.poll(&mut events, Some(TICK)) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => return Err(error.into()),
                _ => {}
            }
            for event in &events {
                if event.token() == WAKER {
                    continue;
                }
                let user = event.token().0;
                let mut result = if event.is_writable() { self.sessions[user].write() } else { Ok(()) };
                if result.is_ok() && (event.is_readable() || event.is_read_closed()) {
                    result = self.read(user);
                }
                if let Err(error) = result {
                    self.end(user, Some(&error));
                }
            }
            let now = process::monotonic_ns();
            let commands = lock(&self.inbox).commands.clone();
            if commands.iter().any(|command| matches!(command, ClientCommand::Stop)) {
                return Ok(());
            }
            commands.iter().for_each(|command| self.apply(*command));
            if commands.is_empty() && now < looked_at + TICK.as_nanos() as u64 {
                continue;
            }
            looked_at = now;
            self.do_what_is_due(now)?;
            let unsettled = self.sessions.iter().filter(|session| !session.is_settled()).count();
            let mut inbox = lock(&self.inbox);
            inbox.commands.drain(..commands.len());
            inbox.unsettled = unsettled;
        }
    }

    fn apply(&mut self, command: ClientCommand) {
        match command {
            ClientCommand::Connect { user, looks } => {
                let session = &mut self.sessions[user];
                (session.is_wanted, session.looks) = (true, looks);
            }
            ClientCommand::Disconnect { user } => self.sessions[user].is_wanted = false,
            ClientCommand::Stop => {}
        }
    }

    fn do_what_is_due(&mut self, now: u64) -> Result<(), LabError> {
        let pings = now >= self.last_ping_at + PING_INTERVAL_NS;
        if pings {
            self.last_ping_at = now;
        }
        self.opening = self.sessions.iter().filter(|session| is_opening(session.phase)).count();
        for user in 0..self.sessions.len() {
            let session = &mut self.sessions[user];
            match session.phase {
                Phase::Closed if session.is_wanted && session.retry_at <= now && self.opening < OPENING_MAX => {
                    self.opening += 1;
                    self.connect(user)?;
                    continue;
                }
                Phase::Live => {}
                _ => continue,
            }
            if !session.is_wanted {
                self.unbind(user, now);
            } else if session.looks != session.notified_looks && session.asked.is_none() {
                self.change_attention(user, now);
            } else if session.stored_due.is_some_and(|due| due <= now) {
                self.say_stored(user, now);
            } else if pings {
                session.queue(br#"{"t":"ping"}"#);
            } else {
                continue;
            }
            if let Err(error) = self.sessions[user].write() {
                self.end(user, Some(&error));
            }
        }
        Ok(())
    }

    fn connect(&mut self, user: usize) -> Result<(), LabError> {
        let session = &mut self.sessions[user];
        match NonblockingSocket::connect(self.address, None) {
            Ok(mut socket) => {
                let interest = Interest::READABLE | Interest::WRITABLE;
                self.poll.registry().register(socket.stream(), Token(user), interest)?;
                (session.socket, session.phase) = (Some(socket), Phase::Connecting);
            }
            Err(_) => session.retry_at = process::monotonic_ns() + RETRY_NS,
        }
        Ok(())
    }

    fn read(&mut self, user: usize) -> Result<(), SessionError> {
        let was = self.sessions[user].phase;
        let (heard, has_ended) = self.sessions[user].read(&mut self.buffer)?;
        if was == Phase::Upgrading && self.sessions[user].phase == Phase::Binding {
            if self.sessions[user].looks {
                self.look_begins(user);
            }
            let id = &self.recorder.cast.users[user].id;
            self.sessions[user].queue_bind(id, &self.token_key);
        }
        let is_closed = heard.iter().any(|heard| matches!(heard, ServerAnswer::Closed));
        for heard in heard {
            self.hear(user, heard);
        }
        if is_closed || (has_ended && self.sessions[user].phase == Phase::Unbinding) {
            self.end(user, None);
            return Ok(());
        }
        self.sessions[user].write()?;
        if has_ended { Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()) } else { Ok(()) }
    }

    fn hear(&mut self, user: usize, heard: ServerAnswer) {
        let now = process::monotonic_ns();
        let session = &mut self.sessions[user];
        match heard {
            ServerAnswer::Bound { is_complete } => {
                session.phase = Phase::Live;
                session.connection += 1;
                let mut records = self.recorder.records();
                records.first_bound.entry(user).or_insert(now);
                records.bound.insert((user, session.connection), now);
                drop(records);
                if session.notified_looks {
                    self.look_is_certain(user, now);
                }
                if !is_complete {
                    self.recorder.problem(format!("{} missed too much to resume", self.recorder.cast.users[user].id));
                }
                if self.sessions[user].habit != AckHabit::Silent {
                    // From the first one on the client is held to it.
                    self.say_stored(user, now);
                }
            }
            ServerAnswer::Entries(entries) => {
                let connection = session.connection;
                if session.habit == AckHabit::Stores && session.stored_due.is_none() {
                    session.unstored_since = now;
                    session.stored_due = Some(now + STORE_AFTER_NS);
                }
                let cast = self.recorder.cast.clone();
                let mut records = self.recorder.records();
                for (conversation, seq) in entries {
                    match cast.conversation_number(&conversation) {
                        Some(conversation) => {
                            records.deliveries.push(Delivery { user, conversation, seq, at: now, connection });
                        }
                        None => records.problems.push(format!("an entry of {conversation}, which is not of this run")),
                    }
                }
            }
            ServerAnswer::Ok { reference } if reference.is_some() && reference == session.asked => {
                session.asked = None;
                if session.notified_looks { self.look_is_certain(user, now) } else { self.look_has_ended(user, now) }
            }
            ServerAnswer::Ok { .. } | ServerAnswer::Closed => {}
            ServerAnswer::Error { code, message } => {
                let id = &self.recorder.cast.users[user].id;
                self.recorder.problem(format!("the session of {id} was notified {code}: {message}"));
            }
        }
    }

    fn say_stored(&mut self, user: usize, now: u64) {
        let session = &mut self.sessions[user];
        let Some(cursor) = &session.cursor else { return };
        let frame = format!(r#"{{"t":"stored","cursor":"{cursor}"}}"#);
        session.queue(frame.as_bytes());
        if session.stored_due.take().is_some() {
            let late = now.saturating_sub(session.unstored_since);
            if late > SLOW_NS {
                self.recorder.records().slow_acks.insert(user);
            }
            let mut inbox = lock(&self.inbox);
            inbox.ack_late_ns = inbox.ack_late_ns.max(late);
        }
    }

    fn change_attention(&mut self, user: usize, now: u64) {
        if self.sessions[user].looks {
            self.look_begins(user);
        } else {
            self.look_may_end(user, now);
        }
        let session = &mut self.sessions[user];
        let state = if session.looks { "foreground" } else { "background" };
        (session.notified_looks, session.asked) = (session.looks, Some(self.next_reference));
        let frame = format!(r#"{{"t":"attention","ref":{},"state":"{state}"}}"#, self.next_reference);
        session.queue(frame.as_bytes());
        self.next_reference += 1;
    }

    fn unbind(&mut self, user: usize, now: u64) {
        self.look_may_end(user, now);
        let session = &mut self.sessions[user];
        session.phase = Phase::Unbinding;
        session.queue(br#"{"t":"unbind"}"#);
    }

    /// The connection is gone. `error` is why, if it was not to end.
    fn end(&mut self, user: usize, error: Option<&SessionError>) {
        let now = process::monotonic_ns();
        // A server that was killed knew of nothing from then on, whenever this end is seen.
        let kill =
            self.recorder.records().kills.last().map(|(kill, _)| *kill).filter(|kill| now < kill + KILL_SLACK_NS);
        self.look_may_end(user, kill.unwrap_or(now));
        self.look_has_ended(user, now);
        let session = &mut self.sessions[user];
        let was = std::mem::replace(&mut session.phase, Phase::Closed);
        if let Some(mut socket) = session.socket.take() {
            let _ = self.poll.registry().deregister(socket.stream());
        }
        (session.asked, session.stored_due, session.retry_at) = (None, None, now + RETRY_NS);
        if let Some(error) = error
            && matches!(was, Phase::Live | Phase::Binding)
        {
            let mut records = self.recorder.records();
            let is_by_kill = records.kills.last().is_some_and(|(kill, _)| now < kill + KILL_SLACK_NS);
            if !is_by_kill {
                let id = &self.recorder.cast.users[user].id;
                records.problems.push(format!("the session of {id} ended: {error}"));
            }
        }
    }

    fn look_begins(&self, user: usize) {
        let look = Look { possible: (process::monotonic_ns(), u64::MAX), certain: (u64::MAX, 0) };
        self.recorder.records().looks[user].push(look);
    }

    fn look_is_certain(&self, user: usize, now: u64) {
        if let Some(look) = self.recorder.records().looks[user].last_mut() {
            look.certain = (now, u64::MAX);
        }
    }

    fn look_may_end(&self, user: usize, now: u64) {
        if let Some(look) = self.recorder.records().looks[user].last_mut().filter(|look| look.possible.1 == u64::MAX) {
            look.certain.1 = look.certain.1.min(now);
        }
    }

    fn look_has_ended(&self, user: usize, now: u64) {
        if let Some(look) = self.recorder.records().looks[user].last_mut() {
            look.possible.1 = look.possible.1.min(now);
        }
    }
}

fn is_opening(phase: Phase) -> bool {
    matches!(phase, Phase::Connecting | Phase::Upgrading | Phase::Binding)
}

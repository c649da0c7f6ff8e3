//! The sessions of all users: one thread and its reactor. A session that breaks is opened again, and resumes.

use super::{
    client_session::{ClientSession, Phase, ServerAnswer},
    participants::AckHabit,
    recorder::Recorder,
    records::{Delivery, Look},
};
use crate::{
    LabError,
    client_engine::{
        ConnectionError, HANDSHAKES_MAX,
        reactor::{Clients, Reactor},
        session::{self, PING_INTERVAL, put_ping},
        websocket::put_text,
    },
    lock::lock,
    process,
};
use mio::Waker;
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};
use tidings_client::session::CONNECT_PATH;

/// The longest sleep of the loop, and the interval in which it looks what is due.
const TICK: Duration = Duration::from_millis(20);
/// How long a client takes to store what it got.
const STORE_AFTER_NS: u64 = 300_000_000;
/// A client that took longer is a lab that was held up, and the server may have given it up rightly.
const SLOW_NS: u64 = 1_000_000_000;
/// After a connection that failed the next one is tried so much later.
const RETRY_NS: u64 = 200_000_000;
/// A connection that ends so soon after a kill ended by it.
const KILL_SLACK_NS: u64 = 10_000_000_000;

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

/// The thread of the sessions. It ends with this handle.
pub(crate) struct ClientThread {
    inbox: SharedInbox,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl ClientThread {
    pub(crate) fn start(
        address: SocketAddr,
        token_key: String,
        recorder: Arc<Recorder>,
    ) -> Result<ClientThread, LabError> {
        let mut reactor = Reactor::new()?;
        let waker = reactor.waker()?;
        let inbox = SharedInbox::default();
        let sessions = recorder.participants.users.iter().map(|user| ClientSession::new(user.habit)).collect();
        let mut client_loop = ClientLoop {
            address,
            token_key,
            recorder,
            sessions,
            inbox: inbox.clone(),
            opening: 0,
            last_ping_at: process::monotonic_ns(),
            next_reference: 1,
        };
        let of_thread = inbox.clone();
        let run = move || {
            if let Err(error) = client_loop.run(&mut reactor) {
                lock(&of_thread).failure = Some(error.to_string());
            }
        };
        let thread = std::thread::Builder::new().name("notify-clients".into()).spawn(run)?;
        Ok(ClientThread { inbox, waker, thread: Some(thread) })
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

impl Drop for ClientThread {
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
    /// By user.
    sessions: Vec<ClientSession>,
    inbox: SharedInbox,
    opening: usize,
    last_ping_at: u64,
    next_reference: u64,
}

impl ClientLoop {
    fn run(&mut self, reactor: &mut Reactor) -> Result<(), LabError> {
        let mut looked_at = 0;
        loop {
            reactor.turn(TICK, self)?;
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
            self.do_what_is_due(reactor, now);
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

    fn do_what_is_due(&mut self, reactor: &mut Reactor, now: u64) {
        let pings = now >= self.last_ping_at + PING_INTERVAL.as_nanos() as u64;
        if pings {
            self.last_ping_at = now;
        }
        self.opening = self.sessions.iter().filter(|session| is_opening(session.phase)).count();
        for user in 0..self.sessions.len() {
            let session = &mut self.sessions[user];
            match session.phase {
                Phase::Closed if session.is_wanted && session.retry_at <= now && self.opening < HANDSHAKES_MAX => {
                    self.opening += 1;
                    match reactor.connect(user, self.address, None) {
                        Ok(()) => session.phase = Phase::Opening,
                        Err(_) => session.retry_at = now + RETRY_NS,
                    }
                    continue;
                }
                Phase::Live => {}
                _ => continue,
            }
            if !session.is_wanted {
                self.unbind(user, now, reactor.out(user));
            } else if session.looks != session.notified_looks && session.asked.is_none() {
                self.change_attention(user, now, reactor.out(user));
            } else if session.stored_due.is_some_and(|due| due <= now) {
                self.say_stored(user, now, reactor.out(user));
            } else if pings {
                put_ping(reactor.out(user));
            }
        }
    }

    fn hear(&mut self, user: usize, heard: ServerAnswer, out: &mut Vec<u8>) {
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
                    self.recorder
                        .problem(format!("{} missed too much to resume", self.recorder.participants.users[user].id));
                }
                if self.sessions[user].habit != AckHabit::Silent {
                    // From the first one on the client is held to it.
                    self.say_stored(user, now, out);
                }
            }
            ServerAnswer::Entries(entries) => {
                let connection = session.connection;
                if session.habit == AckHabit::Stores && session.stored_due.is_none() {
                    session.unstored_since = now;
                    session.stored_due = Some(now + STORE_AFTER_NS);
                }
                let participants = self.recorder.participants.clone();
                let mut records = self.recorder.records();
                for (conversation, seq) in entries {
                    match participants.conversation_number(&conversation) {
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
            ServerAnswer::Ok { .. } => {}
            ServerAnswer::Error { code, message } => {
                let id = &self.recorder.participants.users[user].id;
                self.recorder.problem(format!("the session of {id} was notified {code}: {message}"));
            }
        }
    }

    fn say_stored(&mut self, user: usize, now: u64, out: &mut Vec<u8>) {
        let session = &mut self.sessions[user];
        let Some(cursor) = &session.cursor else { return };
        let frame = format!(r#"{{"t":"stored","cursor":"{cursor}"}}"#);
        put_text(out, frame.as_bytes());
        if session.stored_due.take().is_some() {
            let late = now.saturating_sub(session.unstored_since);
            if late > SLOW_NS {
                self.recorder.records().slow_acks.insert(user);
            }
            let mut inbox = lock(&self.inbox);
            inbox.ack_late_ns = inbox.ack_late_ns.max(late);
        }
    }

    fn change_attention(&mut self, user: usize, now: u64, out: &mut Vec<u8>) {
        if self.sessions[user].looks {
            self.look_begins(user);
        } else {
            self.look_may_end(user, now);
        }
        let session = &mut self.sessions[user];
        let state = if session.looks { "foreground" } else { "background" };
        (session.notified_looks, session.asked) = (session.looks, Some(self.next_reference));
        let frame = format!(r#"{{"t":"attention","ref":{},"state":"{state}"}}"#, self.next_reference);
        put_text(out, frame.as_bytes());
        self.next_reference += 1;
    }

    fn unbind(&mut self, user: usize, now: u64, out: &mut Vec<u8>) {
        self.look_may_end(user, now);
        self.sessions[user].phase = Phase::Unbinding;
        put_text(out, br#"{"t":"unbind"}"#);
    }

    /// The connection is gone; of one that was unbound that is as it should be.
    fn end(&mut self, user: usize, error: &ConnectionError) {
        let now = process::monotonic_ns();
        // A server that was killed knew of nothing from then on, whenever this end is seen.
        let kill =
            self.recorder.records().kills.last().map(|(kill, _)| *kill).filter(|kill| now < kill + KILL_SLACK_NS);
        self.look_may_end(user, kill.unwrap_or(now));
        self.look_has_ended(user, now);
        let session = &mut self.sessions[user];
        let was = std::mem::replace(&mut session.phase, Phase::Closed);
        (session.asked, session.stored_due, session.retry_at) = (None, None, now + RETRY_NS);
        if matches!(was, Phase::Live | Phase::Binding) {
            let mut records = self.recorder.records();
            let is_by_kill = records.kills.last().is_some_and(|(kill, _)| now < kill + KILL_SLACK_NS);
            if !is_by_kill {
                let id = &self.recorder.participants.users[user].id;
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

impl Clients for ClientLoop {
    type Error = ConnectionError;

    fn connected(&mut self, user: usize, out: &mut Vec<u8>) {
        self.sessions[user].websocket.begin(CONNECT_PATH, out);
    }

    fn receive(&mut self, user: usize, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<usize, ConnectionError> {
        session::receive(
            self,
            |clients| &mut clients.sessions[user].websocket,
            bytes,
            out,
            |clients, text, out| {
                let Some(text) = text else {
                    if clients.sessions[user].looks {
                        clients.look_begins(user);
                    }
                    clients.sessions[user].put_bind(
                        &clients.recorder.participants.users[user].id,
                        &clients.token_key,
                        out,
                    );
                    return Ok(());
                };
                if let Some(heard) = clients.sessions[user].read(text)? {
                    clients.hear(user, heard, out);
                }
                Ok(())
            },
        )
    }

    fn ended(&mut self, _: &mut Reactor, user: usize, why: ConnectionError) -> Result<(), LabError> {
        self.end(user, &why);
        Ok(())
    }
}

fn is_opening(phase: Phase) -> bool {
    matches!(phase, Phase::Opening | Phase::Binding)
}

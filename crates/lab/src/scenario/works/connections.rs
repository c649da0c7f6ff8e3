//! Connections that come and go: each binds when it is due, stays, and goes.
//!
//! A handful of threads take the planned connections in turn. Between two of its own each thread closes those whose time is
//! over and sends heartbeats on the others.

use super::{
    Job, Surroundings, WorkResult,
    figures::{Recorder, ServerUse},
};
use crate::{
    LabError,
    client_engine::session::user_token,
    interrupt,
    live::{LiveBlock, WorkLength},
    process::{self, ServerProcesses, monotonic_ns},
    rate_profile::PlannedTimes,
    scenario::{plan::phase::Load, trouble::Trouble},
    server::Target,
    setup,
};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidings_client::{ClientError, device::DeviceSession, session::Session};
use tidings_protocol::{frames::ClientFrame, miop::Bind};

/// Threads that open connections, each one at a time: a bind takes about a millisecond on an idle server.
const THREADS: u64 = 16;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const HEARTBEAT_NS: u64 = 10_000_000_000;
/// How long a thread sleeps at most, so that Ctrl-C ends it soon.
const SLEEP: Duration = Duration::from_millis(50);
/// A server that has opened this share of its descriptors keeps the others for itself.
const DESCRIPTORS_FULL: f64 = 0.8;
/// What a server logs that has fewer places for connections than it is set to, for want of descriptors.
const DESCRIPTORS_IN_LOG: &str = "file descriptors";

pub(crate) struct ConnectionWorker {
    addresses: Vec<SocketAddr>,
    metrics_address: SocketAddr,
    over_websocket: bool,
    stay: Option<Duration>,
    tokens: Vec<String>,
    /// Of a server that the lab has started.
    server_log: Option<PathBuf>,
    lag_max: Duration,
}

/// An open connection.
enum Connection {
    WebSocket(Box<Session>),
    Device(Box<DeviceSession>),
}

/// Why a connection could not be opened.
enum Failure {
    Server(String),
    /// The lab has no descriptor or no port left.
    Lab(String),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Io(error) => match error.raw_os_error() {
                // EMFILE, ENFILE, EADDRNOTAVAIL: on this side.
                Some(24 | 23 | 99) => Failure::Lab(error.to_string()),
                _ => Failure::Server(format!("{:?}", error.kind()).to_lowercase()),
            },
            ClientError::Ended { code, .. } => Failure::Server(code),
            ClientError::Closed { code, .. } => Failure::Server(format!("closed_{code}")),
            ClientError::Refused { problem, .. } => Failure::Server(problem.code.as_str().to_owned()),
            ClientError::Protocol(what) => Failure::Server(what),
        }
    }
}

impl Connection {
    fn heartbeat(&mut self) -> Result<(), ClientError> {
        match self {
            Connection::WebSocket(session) => session.write(&ClientFrame::Ping { reference: None }),
            Connection::Device(session) => session.heartbeat(),
        }
    }

    /// Reads what has come, and tells whether the server has ended the connection.
    fn drain(&mut self) -> Result<(), ClientError> {
        const SHORT: Duration = Duration::from_millis(1);
        loop {
            let is_empty = match self {
                Connection::WebSocket(session) => session.next(SHORT)?.is_none(),
                Connection::Device(session) => session.next(SHORT)?.is_none(),
            };
            if is_empty {
                return Ok(());
            }
        }
    }
}

/// An open connection with the time at which it goes.
struct TimedConnection {
    goes_at_ns: u64,
    connection: Connection,
}

impl PartialEq for TimedConnection {
    fn eq(&self, other: &Self) -> bool {
        self.goes_at_ns == other.goes_at_ns
    }
}

impl Eq for TimedConnection {}

impl PartialOrd for TimedConnection {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TimedConnection {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.goes_at_ns.cmp(&other.goes_at_ns)
    }
}

/// What the threads of one task share.
struct Shared<'a> {
    times: &'a PlannedTimes,
    start_ns: u64,
    end_ns: u64,
    next: AtomicU64,
    recorder: &'a Mutex<Recorder>,
    trouble: &'a Mutex<Option<Trouble>>,
    server: ServerProcesses,
}

impl ConnectionWorker {
    pub(crate) fn open(
        around: &Surroundings<'_>,
        users: usize,
        over_websocket: bool,
        stay: Option<Duration>,
    ) -> Result<Self, LabError> {
        let addresses = around.addresses(over_websocket)?;
        let ids = setup::numbered_ids(&format!("{}-c", process::run_tag()), users);
        setup::create_users(&mut around.target.http(), &ids)?;
        let key = around.target.keys().1;
        let tokens = ids.iter().map(|id| user_token(key, id)).collect();
        let metrics_address = around.target.address();
        let server_log = match around.target {
            Target::Own(own) => Some(own.log_file()),
            Target::Running { .. } => None,
        };
        let lag_max = around.args.lag_max;
        Ok(ConnectionWorker { addresses, metrics_address, over_websocket, stay, tokens, server_log, lag_max })
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        let Load::Planned(profile) = job.load else {
            return Err(LabError::Usage("connections come at a rate that is planned".into()));
        };
        let used = ServerUse::begin(job.server.clone(), Some(self.metrics_address));
        let length = WorkLength::Time(Duration::from_secs_f64(profile.seconds()));
        let live = LiveBlock::begin(&job.title, length);
        let start_ns = monotonic_ns();
        let recorder = Mutex::new(Recorder::new(live, start_ns, self.lag_max));
        let trouble = Mutex::new(None);
        let shared = Shared {
            times: &PlannedTimes::of(profile),
            start_ns,
            end_ns: start_ns + (profile.seconds() * 1e9) as u64,
            next: AtomicU64::new(0),
            recorder: &recorder,
            trouble: &trouble,
            server: job.server.clone(),
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| self.drive(&shared));
            }
        });
        let recorder = recorder.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut figures = recorder.figures(&job.title);
        used.end(&mut figures);
        let trouble = trouble.into_inner().unwrap_or_else(PoisonError::into_inner).or_else(|| {
            let late = figures.lateness.p99;
            (late > figures.lag_max_ms).then(|| Trouble::Lab(format!("began {late:.0} ms late at the 99th percentile")))
        });
        Ok(WorkResult { trouble, measured: figures.measured("connections") })
    }

    /// One thread: opens the connections that fall to it, and closes them when their time is over.
    fn drive(&self, shared: &Shared<'_>) {
        let mut held: BinaryHeap<Reverse<TimedConnection>> = BinaryHeap::new();
        let mut next_heartbeat_ns = shared.start_ns + HEARTBEAT_NS;
        let mut free_since_ns = shared.start_ns;
        loop {
            let number = shared.next.fetch_add(1, Ordering::Relaxed);
            let due_ns = shared.times.due(number).map(|due| shared.start_ns + due);
            // Without another connection to open, the thread stays until the end of the phase.
            let until_ns = due_ns.unwrap_or(shared.end_ns);
            loop {
                let now_ns = monotonic_ns();
                while held.peek().is_some_and(|Reverse(first)| first.goes_at_ns <= now_ns)
                    && let Some(Reverse(gone)) = held.pop()
                {
                    close(gone.connection, shared);
                }
                if now_ns >= next_heartbeat_ns {
                    next_heartbeat_ns = now_ns + HEARTBEAT_NS;
                    held = send_heartbeats(held, shared);
                }
                if now_ns >= until_ns || interrupt::requested() {
                    break;
                }
                let goes = held.peek().map_or(until_ns, |Reverse(first)| first.goes_at_ns.min(until_ns));
                std::thread::sleep(Duration::from_nanos(goes.saturating_sub(now_ns)).min(SLEEP));
            }
            let Some(due_ns) = due_ns.filter(|_| !interrupt::requested()) else { break };
            self.open_one(number, (due_ns, free_since_ns), &mut held, shared);
            free_since_ns = monotonic_ns();
        }
        for Reverse(last) in held {
            close(last.connection, shared);
        }
    }

    fn open_one(
        &self,
        number: u64,
        (due_ns, free_since_ns): (u64, u64),
        held: &mut BinaryHeap<Reverse<TimedConnection>>,
        shared: &Shared<'_>,
    ) {
        let began_ns = monotonic_ns();
        // A connection that waited for a thread waited for the server's answers to those before.
        let late_ns = began_ns.saturating_sub(due_ns.max(free_since_ns));
        let opened = self.connect(number);
        let now_ns = monotonic_ns();
        let mut recorder = shared.recorder.lock().unwrap_or_else(PoisonError::into_inner);
        recorder.begun(due_ns, began_ns, late_ns);
        match opened {
            Ok(connection) => {
                recorder.done(due_ns, now_ns);
                let stay_ns = self.stay.map(|stay| stay.as_nanos() as u64);
                let goes_at_ns = stay_ns.map_or(shared.end_ns, |stay| now_ns + stay);
                held.push(Reverse(TimedConnection { goes_at_ns, connection }));
            }
            Err(failure) => {
                let (code, found) = match failure {
                    Failure::Lab(what) => ("lab".into(), Trouble::Lab(what)),
                    Failure::Server(code) => (code.clone(), Trouble::Refusals(code)),
                };
                recorder.refused(&code);
                drop(recorder);
                let mut trouble = shared.trouble.lock().unwrap_or_else(PoisonError::into_inner);
                if trouble.is_none() {
                    let is_the_servers = matches!(found, Trouble::Refusals(_));
                    let full = is_the_servers.then(|| self.without_descriptors(&shared.server, &code)).flatten();
                    *trouble = Some(full.unwrap_or(found));
                }
            }
        }
    }

    /// Whether the server refuses because it has no descriptor for one more connection.
    fn without_descriptors(&self, server: &ServerProcesses, code: &str) -> Option<Trouble> {
        let (open, limit) = server.descriptors()?;
        let is_full = open as f64 >= DESCRIPTORS_FULL * limit as f64;
        let log = self.server_log.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let found = is_full || log.contains(DESCRIPTORS_IN_LOG);
        found.then(|| Trouble::Descriptors(format!("{open} of {limit} are open, the server keeps the others; {code}")))
    }

    fn connect(&self, number: u64) -> Result<Connection, Failure> {
        let address = self.addresses[(number % self.addresses.len() as u64) as usize];
        let token = &self.tokens[(number % self.tokens.len() as u64) as usize];
        if self.over_websocket {
            let mut session = Session::connect_within(address, CONNECT_TIMEOUT)?;
            session.bind(token, "lab", None)?;
            return Ok(Connection::WebSocket(Box::new(session)));
        }
        let mut session = DeviceSession::connect_within(address, CONNECT_TIMEOUT)?;
        session.bind(&device_bind(token))?;
        Ok(Connection::Device(Box::new(session)))
    }
}

fn device_bind(token: &str) -> Bind<'_> {
    Bind {
        version: 1,
        token,
        device_id: "lab",
        device_kind: None,
        app_version: None,
        cursor: None,
        wants: None,
        heartbeat_s: None,
    }
}

/// Closes a connection whose time is over, unless the server has ended it before.
fn close(mut connection: Connection, shared: &Shared<'_>) {
    if let Err(error) = connection.drain() {
        ended(&error, shared);
    }
}

fn ended(error: &ClientError, shared: &Shared<'_>) {
    shared.recorder.lock().unwrap_or_else(PoisonError::into_inner).broken(format!("a connection ended: {error}"));
    let mut trouble = shared.trouble.lock().unwrap_or_else(PoisonError::into_inner);
    match &mut *trouble {
        Some(Trouble::LostConnections(count)) => *count += 1,
        Some(_) => {}
        none => *none = Some(Trouble::LostConnections(1)),
    }
}

fn send_heartbeats(
    held: BinaryHeap<Reverse<TimedConnection>>,
    shared: &Shared<'_>,
) -> BinaryHeap<Reverse<TimedConnection>> {
    let alive = |mut one: Reverse<TimedConnection>| match one.0.connection.heartbeat() {
        Ok(()) => Some(one),
        Err(error) => {
            ended(&error, shared);
            None
        }
    };
    held.into_iter().filter_map(alive).collect()
}

//! The load client's loop: keep-alive connections with one request in flight each, one thread, no allocation per request.
//!
//! In a closed loop each connection sends its next request as soon as it has an answer. In an open loop requests are due at
//! planned times; a request that finds no free connection waits, and its latency counts from its due time.

use crate::{
    LabError,
    client_engine::{
        HANDSHAKES_MAX,
        http::{ConnectionUse, HttpAnswer, parse_answer},
        reactor::{Clients, Reactor},
    },
    interrupt,
    live::{LiveBlock, LiveCounts},
    load_times::{LoadTimes, TimeFigures},
    process::{monotonic_ns, thread_wait_seconds},
    rate_profile::{PlannedTimes, RateProfile},
};
use serde::Serialize;
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    time::Duration,
};

/// The loop spins instead of sleeping when the next request is due sooner than this.
const SLEEP_NS_MIN: u64 = 2_000_000;
/// Above this lateness at the 99th percentile the load client distorts what it measures.
const LATENESS_MS_MAX: f64 = 5.0;
/// A client that is busy for more than this share of the time is the limit itself, unless the server is as busy.
const BUSY_SHARE: f64 = 0.97;

/// The source of a run's requests, which also gets their answers. Connections are identified by their number.
pub(crate) trait TrafficSource {
    /// Appends the connection's next request; `false`: there is none now.
    fn next_request(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> bool;
    fn handle_answer(&mut self, connection: usize, now_ns: u64, answer: &HttpAnswer<'_>);
    /// The connection broke before the answer arrived.
    fn connection_lost(&mut self, connection: usize);
}

/// The arrival process of the requests, and when it ends. Outstanding answers are waited for in each case.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LoadModel<'a> {
    /// For so long.
    ClosedLoop(Duration),
    /// A closed loop until the source has no more requests.
    Exhausting,
    OpenLoop(&'a RateProfile),
}

/// The result of one phase of load.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct LoadResult {
    pub(crate) answers: u64,
    pub(crate) seconds: f64,
    /// From the due time of a request to its answer.
    #[serde(flatten)]
    pub(crate) times: TimeFigures,
    pub(crate) client_cpu_seconds: f64,
    /// The time in which the client was ready to run while other processes used its core.
    pub(crate) client_wait_seconds: f64,
    /// Connections that broke while a request was in flight.
    pub(crate) broken: u64,
    /// Due requests that were not sent, since no connection was free until the end.
    pub(crate) unsent: u64,
    /// The bound of the lateness at the 99th percentile, of an open loop.
    pub(crate) lag_max_ms: Option<f64>,
}

impl LoadResult {
    pub(crate) fn per_second(&self) -> f64 {
        self.answers as f64 / self.seconds.max(1e-9)
    }

    pub(crate) fn client_busy(&self) -> f64 {
        self.client_cpu_seconds / self.seconds.max(1e-9)
    }

    /// The share of the time in which other processes used the client's core.
    pub(crate) fn preempted_share(&self) -> f64 {
        self.client_wait_seconds / self.seconds.max(1e-9)
    }

    /// Whether the figures are the client's limit. `server_busy` is the share of its core that the server used.
    pub(crate) fn lab_is_the_limit(&self, server_busy: Option<f64>) -> bool {
        match self.lag_max_ms {
            Some(lag_max_ms) => self.times.lateness.p99 > lag_max_ms,
            None => self.client_busy() > BUSY_SHARE && server_busy.is_some_and(|busy| busy < BUSY_SHARE - 0.05),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Connection {
    /// Whether it was ever established.
    is_connected: bool,
    awaiting_answer: bool,
    /// When the request in flight was due.
    due_ns: u64,
}

/// Open connections to a server.
pub(crate) struct Connections {
    reactor: Reactor,
    clients: HttpClients,
    request: Vec<u8>,
    patience: Duration,
}

/// The connections without their sockets.
struct HttpClients {
    address: SocketAddr,
    connection_use: ConnectionUse,
    connections: Vec<Connection>,
}

impl Connections {
    pub(crate) fn open(
        address: SocketAddr,
        count: usize,
        patience: Duration,
        connection_use: ConnectionUse,
    ) -> Result<Self, LabError> {
        let clients = HttpClients { address, connection_use, connections: vec![Connection::default(); count] };
        let mut opened = Connections { reactor: Reactor::new()?, clients, request: Vec::with_capacity(4096), patience };
        if connection_use == ConnectionUse::Kept {
            opened.connect_all()?;
        }
        Ok(opened)
    }

    fn connect_all(&mut self) -> Result<(), LabError> {
        let (started, mut begun) = (monotonic_ns(), 0);
        loop {
            let connections = &self.clients.connections;
            let connected = connections.iter().filter(|connection| connection.is_connected).count();
            if connected == connections.len() {
                return Ok(());
            }
            while begun < connections.len().min(connected + HANDSHAKES_MAX) {
                self.reactor.connect(begun, self.clients.address, None)?;
                begun += 1;
            }
            if monotonic_ns() - started > self.patience.as_nanos() as u64 {
                return Err(LabError::Server(format!("accepted no connection within {:?}", self.patience)));
            }
            self.reactor.turn(Duration::from_millis(5), &mut self.clients)?;
        }
    }

    /// Loads the server.
    pub(crate) fn run(
        &mut self,
        traffic: &mut impl TrafficSource,
        model: LoadModel<'_>,
        live: &mut LiveBlock,
    ) -> Result<LoadResult, LabError> {
        let begin_ns = monotonic_ns();
        let (seconds, schedule) = match model {
            LoadModel::ClosedLoop(time) => (time.as_secs_f64(), None),
            LoadModel::Exhausting => (f64::INFINITY, None),
            LoadModel::OpenLoop(profile) => {
                let times = PlannedTimes::of(profile);
                (profile.seconds(), Some(times))
            }
        };
        let deadline_ns = begin_ns.saturating_add((seconds * 1e9) as u64);
        let mut state = LoopState::new(begin_ns, deadline_ns, schedule, self.clients.connections.len());
        let (cpu_before, waited_before) = (thread_cpu_seconds(), thread_wait_seconds());
        loop {
            let now_ns = monotonic_ns();
            let is_over = now_ns >= state.deadline_ns || interrupt::requested();
            if !is_over {
                self.send_due_requests(traffic, &mut state, now_ns)?;
            }
            let under_way = state.idle.len() < self.clients.connections.len();
            if !under_way {
                if is_over || matches!(model, LoadModel::Exhausting) {
                    break;
                }
                // No request is in flight: the source has none at the moment, but may have more a little later.
                state.last_answer_ns = now_ns;
            } else if now_ns.saturating_sub(state.last_answer_ns) > self.patience.as_nanos() as u64 {
                return Err(LabError::Server(format!("did not answer within {:?}", self.patience)));
            }
            let timeout = state.timeout(monotonic_ns(), is_over);
            let mut turn = Turn { clients: &mut self.clients, traffic, state: &mut state };
            self.reactor.turn(timeout, &mut turn)?;
            live.show_series(begin_ns, &mut state.times.series, || LiveCounts {
                done: state.answers,
                errors: state.broken,
                ..LiveCounts::default()
            });
        }
        live.export_rest(&mut state.times.series);
        let end_ns = state.last_answer_ns.max(begin_ns + 1);
        Ok(LoadResult {
            answers: state.answers,
            seconds: (end_ns - begin_ns) as f64 / 1e9,
            times: state.times.figures(),
            lag_max_ms: state.schedule.is_some().then_some(LATENESS_MS_MAX),
            client_cpu_seconds: thread_cpu_seconds() - cpu_before,
            client_wait_seconds: thread_wait_seconds() - waited_before,
            broken: state.broken,
            unsent: state.schedule.map_or(0, |times| times.messages().saturating_sub(state.sent)),
        })
    }

    /// Sends due requests on free connections.
    fn send_due_requests(
        &mut self,
        traffic: &mut impl TrafficSource,
        state: &mut LoopState,
        now_ns: u64,
    ) -> Result<(), LabError> {
        let free_since_ns = state.last_answer_ns.max(state.begin_ns);
        let mut left = state.idle.len();
        while left > 0 {
            left -= 1;
            let due_ns = state.next_ns().unwrap_or(now_ns);
            if due_ns > now_ns {
                break;
            }
            let Some(number) = state.idle.pop() else { break };
            if !self.send_request(traffic, number, due_ns, now_ns)? {
                // Other connections may have a request.
                state.idle.insert(0, number);
                continue;
            }
            if state.schedule.is_some() {
                state.sent += 1;
                let late_ns = now_ns.saturating_sub(due_ns.max(free_since_ns));
                state.times.begun(due_ns, now_ns, late_ns);
            }
        }
        Ok(())
    }

    /// Sends the connection's next request; returns whether the source had one.
    fn send_request(
        &mut self,
        traffic: &mut impl TrafficSource,
        number: usize,
        due_ns: u64,
        now_ns: u64,
    ) -> Result<bool, LabError> {
        self.request.clear();
        if !traffic.next_request(number, now_ns, &mut self.request) {
            return Ok(false);
        }
        let HttpClients { address, connection_use, connections } = &mut self.clients;
        let connection = &mut connections[number];
        if *connection_use == ConnectionUse::OneRequest {
            // The request is due already, so that its latency has the handshake in it. The kernel chooses the source when it
            // connects, which is a system call less; there are never many.
            connection.is_connected = false;
            self.reactor.connect_from(number, *address, None, None).map_err(no_connection)?;
        }
        (connection.awaiting_answer, connection.due_ns) = (true, due_ns);
        self.reactor.out(number).extend_from_slice(&self.request);
        self.reactor.flush();
        Ok(true)
    }
}

fn no_connection(error: io::Error) -> LabError {
    LabError::Environment(format!("no connection for a request: {error}"))
}

/// While connections are opened: none may fail.
impl Clients for HttpClients {
    type Error = io::Error;

    fn connected(&mut self, number: usize, _out: &mut Vec<u8>) {
        self.connections[number].is_connected = true;
    }

    fn receive(&mut self, _: usize, _: &mut [u8], _: &mut Vec<u8>) -> io::Result<usize> {
        Err(ErrorKind::InvalidData.into())
    }

    fn ended(&mut self, _: &mut Reactor, _: usize, why: io::Error) -> Result<(), LabError> {
        Err(why.into())
    }
}

/// A turn of the reactor: the connections, with what their requests come from and their answers go to.
struct Turn<'a, T> {
    clients: &'a mut HttpClients,
    traffic: &'a mut T,
    state: &'a mut LoopState,
}

impl<T: TrafficSource> Clients for Turn<'_, T> {
    type Error = io::Error;

    fn connected(&mut self, number: usize, out: &mut Vec<u8>) {
        self.clients.connected(number, out);
    }

    fn receive(&mut self, number: usize, bytes: &mut [u8], out: &mut Vec<u8>) -> io::Result<usize> {
        let Turn { clients, traffic, state } = self;
        let connection = &mut clients.connections[number];
        let is_kept = clients.connection_use == ConnectionUse::Kept;
        if !connection.awaiting_answer {
            return if is_kept { Err(ErrorKind::InvalidData.into()) } else { Ok(bytes.len()) };
        }
        let Some(answer) = parse_answer(bytes).map_err(io::Error::other)? else { return Ok(0) };
        let now_ns = monotonic_ns();
        state.answered(connection.due_ns, now_ns);
        connection.awaiting_answer = false;
        traffic.handle_answer(number, now_ns, &answer);
        let is_over = is_kept && answer.closes;
        let again =
            is_kept && !is_over && state.schedule.is_none() && now_ns < state.deadline_ns && !interrupt::requested();
        if again && traffic.next_request(number, now_ns, out) {
            (connection.awaiting_answer, connection.due_ns) = (true, now_ns);
        } else {
            state.idle.push(number);
        }
        if is_over { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(bytes.len()) }
    }

    /// Replaces a connection that ended; its request in flight counts as lost.
    fn ended(&mut self, reactor: &mut Reactor, number: usize, why: io::Error) -> Result<(), LabError> {
        let HttpClients { address, connection_use, connections } = &mut *self.clients;
        let connection = &mut connections[number];
        match connection_use {
            ConnectionUse::OneRequest if !connection.is_connected => return Err(no_connection(why)),
            // The server closes after the answer; the next request brings its own connection.
            ConnectionUse::OneRequest => {}
            ConnectionUse::Kept if !connection.is_connected => return Err(why.into()),
            ConnectionUse::Kept => {
                connection.is_connected = false;
                reactor.connect(number, *address, None)?;
            }
        }
        if std::mem::take(&mut connection.awaiting_answer) {
            self.state.broken += 1;
            self.traffic.connection_lost(number);
            self.state.idle.push(number);
        }
        Ok(())
    }
}

/// The state of a running phase.
#[derive(Default)]
struct LoopState {
    begin_ns: u64,
    deadline_ns: u64,
    /// The times of an open loop, and how many of them were sent at.
    schedule: Option<PlannedTimes>,
    sent: u64,
    idle: Vec<usize>,
    last_answer_ns: u64,
    times: LoadTimes,
    answers: u64,
    broken: u64,
}

impl LoopState {
    fn new(begin_ns: u64, deadline_ns: u64, schedule: Option<PlannedTimes>, connections: usize) -> Self {
        LoopState {
            begin_ns,
            deadline_ns,
            schedule,
            idle: (0..connections).rev().collect(),
            last_answer_ns: begin_ns,
            times: LoadTimes::from(begin_ns),
            ..LoopState::default()
        }
    }

    fn answered(&mut self, due_ns: u64, now_ns: u64) {
        self.answers += 1;
        self.last_answer_ns = now_ns;
        self.times.done(due_ns, now_ns);
    }

    /// When the next request of an open loop is due; never, when all are sent.
    fn next_ns(&self) -> Option<u64> {
        let times = self.schedule.as_ref()?;
        Some(times.due(self.sent).map_or(u64::MAX, |due_ns| self.begin_ns + due_ns))
    }

    /// How long a turn may wait.
    fn timeout(&self, now_ns: u64, is_over: bool) -> Duration {
        match self.next_ns() {
            Some(next_ns) if !is_over && !self.idle.is_empty() => {
                let wait_ns = next_ns.min(self.deadline_ns).saturating_sub(now_ns);
                if wait_ns < SLEEP_NS_MIN { Duration::ZERO } else { Duration::from_nanos(wait_ns - SLEEP_NS_MIN / 2) }
            }
            _ => Duration::from_millis(5),
        }
    }
}

/// CPU seconds that this thread has used.
fn thread_cpu_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

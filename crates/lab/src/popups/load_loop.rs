//! The load client's loop: keep-alive connections with one request in flight each, one thread, no allocation per request.
//!
//! In a closed loop each connection sends its next request as soon as it has an answer. In an open loop requests are due at
//! evenly spaced times; a request that finds no free connection waits, and its latency counts from its due time.

use super::wire::{ConnectionUse, HttpAnswer, ParsedAnswer, parse_answer};
use crate::{
    LabError, interrupt,
    latency::{Curve, Percentiles, curve_of},
    live::{LiveBlock, LiveCounts},
    process::{monotonic_ns, thread_wait_seconds},
    series::{Series, SeriesRecorder},
};
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token, net::TcpStream};
use serde::Serialize;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    time::Duration,
};

/// The longest answer that one read can complete; a longer one is buffered.
const READ_BYTES: usize = 64 * 1024;
/// The loop spins instead of sleeping when the next request is due sooner than this.
const SLEEP_NS_MIN: u64 = 2_000_000;
/// The longest latency of the histogram, in microseconds; longer ones are counted as this.
const LATENCY_US_MAX: u64 = 60_000_000;
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

/// The arrival process of the requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum LoadModel {
    ClosedLoop,
    /// A constant rate, in requests a second.
    OpenLoop(f64),
}

/// When a phase of load ends. Outstanding answers are waited for in either case.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StopCondition {
    Elapsed(Duration),
    /// The source has no more requests.
    Exhausted,
}

/// The result of one phase of load.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct LoadResult {
    pub(crate) answers: u64,
    pub(crate) seconds: f64,
    /// In milliseconds, from the due time of a request to its answer.
    pub(crate) latency: Percentiles,
    /// How late the client sent due requests while a connection was free, in milliseconds.
    pub(crate) lateness: Percentiles,
    pub(crate) client_cpu_seconds: f64,
    /// The time in which the client was ready to run while other processes used its core.
    pub(crate) client_wait_seconds: f64,
    /// Connections that broke while a request was in flight.
    pub(crate) broken: u64,
    /// Due requests that were not sent, since no connection was free until the end.
    pub(crate) unsent: u64,
    /// The bound of [`lateness`](Self::lateness) at the 99th percentile, of an open loop.
    pub(crate) lag_max_ms: Option<f64>,
    pub(crate) series: Series,
    pub(crate) latency_curve: Curve,
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
    pub(crate) fn lab_is_the_limit(&self, model: LoadModel, server_busy: Option<f64>) -> bool {
        match model {
            LoadModel::OpenLoop(_) => self.lateness.p99 > LATENESS_MS_MAX,
            LoadModel::ClosedLoop => {
                self.client_busy() > BUSY_SHARE && server_busy.is_some_and(|busy| busy < BUSY_SHARE - 0.05)
            }
        }
    }
}

struct Connection {
    stream: TcpStream,
    awaiting_answer: bool,
    /// When the request in flight was due.
    due_ns: u64,
    /// The beginning of an incomplete answer.
    partial: Vec<u8>,
    /// The rest of a request that the kernel did not accept at once.
    unsent: Vec<u8>,
}

/// Open connections to a server.
pub(crate) struct Connections {
    address: SocketAddr,
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    read: Box<[u8]>,
    request: Vec<u8>,
    patience: Duration,
    connection_use: ConnectionUse,
}

impl Connections {
    pub(crate) fn open(
        address: SocketAddr,
        count: usize,
        patience: Duration,
        connection_use: ConnectionUse,
    ) -> Result<Self, LabError> {
        let poll = Poll::new()?;
        let mut connections = Vec::with_capacity(count);
        for number in 0..count {
            connections.push(Connection {
                stream: connect(address, number, &poll)?,
                awaiting_answer: false,
                due_ns: 0,
                partial: Vec::new(),
                unsent: Vec::new(),
            });
        }
        Ok(Connections {
            address,
            poll,
            events: Events::with_capacity(count.clamp(16, 1024)),
            connections,
            read: vec![0; READ_BYTES].into_boxed_slice(),
            request: Vec::with_capacity(4096),
            patience,
            connection_use,
        })
    }

    /// Loads the server until the stop condition holds.
    pub(crate) fn run(
        &mut self,
        traffic: &mut impl TrafficSource,
        model: LoadModel,
        stop: StopCondition,
        live: &mut LiveBlock,
    ) -> Result<LoadResult, LabError> {
        let begin_ns = monotonic_ns();
        let mut state = LoopState {
            deadline_ns: match stop {
                StopCondition::Elapsed(time) => begin_ns + time.as_nanos() as u64,
                StopCondition::Exhausted => u64::MAX,
            },
            begin_ns,
            schedule: match model {
                LoadModel::ClosedLoop => None,
                LoadModel::OpenLoop(per_second) => {
                    Some(OpenLoopSchedule { begin_ns, every_ns: 1e9 / per_second, sent: 0 })
                }
            },
            idle: (0..self.connections.len()).rev().collect(),
            last_answer_ns: begin_ns,
            latency: new_histogram()?,
            series: SeriesRecorder::new(begin_ns),
            lateness: new_histogram()?,
            answers: 0,
            broken: 0,
        };
        let (cpu_before, waited_before) = (thread_cpu_seconds(), thread_wait_seconds());
        loop {
            let now_ns = monotonic_ns();
            let is_over = now_ns >= state.deadline_ns || interrupt::requested();
            if !is_over {
                self.send_due_requests(traffic, &mut state, now_ns)?;
            }
            let under_way = state.idle.len() < self.connections.len();
            if !under_way {
                if is_over || (state.schedule.is_none() && matches!(stop, StopCondition::Exhausted)) {
                    break;
                }
                // No request is in flight: the source has none at the moment, but may have more a little later.
                state.last_answer_ns = now_ns;
            } else if now_ns.saturating_sub(state.last_answer_ns) > self.patience.as_nanos() as u64 {
                return Err(LabError::Server(format!("did not answer within {:?}", self.patience)));
            }
            self.poll_once(traffic, &mut state, is_over)?;
            live.show_series(begin_ns, &mut state.series, || LiveCounts {
                done: state.answers,
                errors: state.broken,
                ..LiveCounts::default()
            });
        }
        let end_ns = state.last_answer_ns.max(begin_ns + 1);
        Ok(LoadResult {
            answers: state.answers,
            seconds: (end_ns - begin_ns) as f64 / 1e9,
            latency: Percentiles::of(&state.latency),
            latency_curve: curve_of(&state.latency),
            series: state.series.series(),
            lag_max_ms: matches!(model, LoadModel::OpenLoop(_)).then_some(LATENESS_MS_MAX),
            lateness: Percentiles::of(&state.lateness),
            client_cpu_seconds: thread_cpu_seconds() - cpu_before,
            client_wait_seconds: thread_wait_seconds() - waited_before,
            broken: state.broken,
            unsent: state.schedule.map_or(0, |due| due.due_by(state.deadline_ns).saturating_sub(due.sent)),
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
            let due_ns = match &state.schedule {
                None => now_ns,
                Some(due) if due.next_ns() <= now_ns => due.next_ns(),
                Some(_) => break,
            };
            let Some(number) = state.idle.pop() else { break };
            if !self.send_request(traffic, state, number, due_ns, now_ns)? {
                // Other connections may have a request.
                state.idle.insert(0, number);
                continue;
            }
            if let Some(due) = &mut state.schedule {
                due.sent += 1;
                let late_ns = now_ns.saturating_sub(due_ns.max(free_since_ns));
                state.lateness.saturating_record(late_ns / 1000);
                state.series.planned(due_ns);
                state.series.sent(now_ns, late_ns);
            }
        }
        Ok(())
    }

    /// Sends the connection's next request; returns whether the source had one.
    fn send_request(
        &mut self,
        traffic: &mut impl TrafficSource,
        state: &mut LoopState,
        number: usize,
        due_ns: u64,
        now_ns: u64,
    ) -> Result<bool, LabError> {
        self.request.clear();
        if !traffic.next_request(number, now_ns, &mut self.request) {
            return Ok(false);
        }
        let connection = &mut self.connections[number];
        if self.connection_use == ConnectionUse::OneRequest {
            // The request is due already, so that its latency has the handshake in it.
            let _ = self.poll.registry().deregister(&mut connection.stream);
            connection.stream = connect(self.address, number, &self.poll)
                .map_err(|error| LabError::Environment(format!("no connection for a request: {error}")))?;
        }
        (connection.awaiting_answer, connection.due_ns) = (true, due_ns);
        let written = match connection.stream.write(&self.request) {
            Ok(written) => written,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => {
                self.reconnect(traffic, state, number)?;
                return Ok(true);
            }
        };
        if written < self.request.len() {
            connection.unsent.extend_from_slice(&self.request[written..]);
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().reregister(&mut connection.stream, Token(number), interest)?;
        }
        Ok(true)
    }

    /// Waits for events and handles them.
    fn poll_once(
        &mut self,
        traffic: &mut impl TrafficSource,
        state: &mut LoopState,
        is_over: bool,
    ) -> Result<(), LabError> {
        let now_ns = monotonic_ns();
        let timeout = match &state.schedule {
            _ if is_over => Duration::from_millis(5),
            Some(due) if !state.idle.is_empty() => {
                let wait_ns = due.next_ns().saturating_sub(now_ns);
                if wait_ns < SLEEP_NS_MIN { Duration::ZERO } else { Duration::from_nanos(wait_ns - SLEEP_NS_MIN / 2) }
            }
            _ => Duration::from_millis(5),
        };
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let result = events.iter().try_for_each(|event| {
            let number = event.token().0;
            if event.is_writable() {
                self.write_unsent(number)?;
            }
            if event.is_readable() || event.is_read_closed() || event.is_error() {
                self.read_answers(traffic, state, number)?;
            }
            Ok(())
        });
        self.events = events;
        result
    }

    fn write_unsent(&mut self, number: usize) -> Result<(), LabError> {
        let connection = &mut self.connections[number];
        while !connection.unsent.is_empty() {
            match connection.stream.write(&connection.unsent) {
                Ok(written) => drop(connection.unsent.drain(..written)),
                // A broken connection is noticed when it is read.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn read_answers(
        &mut self,
        traffic: &mut impl TrafficSource,
        state: &mut LoopState,
        number: usize,
    ) -> Result<(), LabError> {
        loop {
            let connection = &mut self.connections[number];
            if self.connection_use == ConnectionUse::OneRequest && !connection.awaiting_answer {
                // The server closes after the answer; the next request brings its own connection.
                return Ok(());
            }
            let count = match connection.stream.read(&mut self.read) {
                Ok(0) => return self.reconnect(traffic, state, number),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return self.reconnect(traffic, state, number),
            };
            let gathered = !connection.partial.is_empty();
            if gathered {
                connection.partial.extend_from_slice(&self.read[..count]);
            }
            let bytes = if gathered { &connection.partial[..] } else { &self.read[..count] };
            match parse_answer(bytes) {
                ParsedAnswer::Whole { answer, closes } if connection.awaiting_answer => {
                    let now_ns = monotonic_ns();
                    state.answers += 1;
                    state.last_answer_ns = now_ns;
                    let latency_ns = now_ns.saturating_sub(connection.due_ns);
                    state.latency.saturating_record((latency_ns / 1000).min(LATENCY_US_MAX));
                    state.series.acknowledged(now_ns);
                    state.series.latency(connection.due_ns, now_ns);
                    connection.awaiting_answer = false;
                    traffic.handle_answer(number, now_ns, &answer);
                    connection.partial.clear();
                    if closes && self.connection_use == ConnectionUse::Kept {
                        connection.stream = connect(self.address, number, &self.poll)?;
                    }
                    let again = state.schedule.is_none() && now_ns < state.deadline_ns && !interrupt::requested();
                    if !(again && self.send_request(traffic, state, number, now_ns, now_ns)?) {
                        state.idle.push(number);
                    }
                    if self.connection_use == ConnectionUse::OneRequest {
                        return Ok(());
                    }
                }
                ParsedAnswer::Partial if !gathered => connection.partial.extend_from_slice(&self.read[..count]),
                ParsedAnswer::Partial => {}
                ParsedAnswer::Whole { .. } | ParsedAnswer::Broken => return self.reconnect(traffic, state, number),
            }
            // A short read drained the socket: the next event announces more (epoll(7)).
            if count < self.read.len() {
                return Ok(());
            }
        }
    }

    /// Replaces a connection that ended; its request in flight counts as lost.
    fn reconnect(
        &mut self,
        traffic: &mut impl TrafficSource,
        state: &mut LoopState,
        number: usize,
    ) -> Result<(), LabError> {
        let connection = &mut self.connections[number];
        connection.stream = connect(self.address, number, &self.poll)?;
        connection.partial.clear();
        connection.unsent.clear();
        if std::mem::take(&mut connection.awaiting_answer) {
            state.broken += 1;
            traffic.connection_lost(number);
            state.idle.push(number);
        }
        Ok(())
    }
}

/// The state of a running phase.
struct LoopState {
    begin_ns: u64,
    deadline_ns: u64,
    /// The schedule of an open loop.
    schedule: Option<OpenLoopSchedule>,
    idle: Vec<usize>,
    last_answer_ns: u64,
    latency: Histogram<u64>,
    series: SeriesRecorder,
    lateness: Histogram<u64>,
    answers: u64,
    broken: u64,
}

/// The schedule of an open loop.
struct OpenLoopSchedule {
    begin_ns: u64,
    every_ns: f64,
    sent: u64,
}

impl OpenLoopSchedule {
    fn next_ns(&self) -> u64 {
        self.begin_ns + (self.sent as f64 * self.every_ns) as u64
    }

    /// How many requests were due until `end_ns`.
    fn due_by(&self, end_ns: u64) -> u64 {
        (end_ns.saturating_sub(self.begin_ns) as f64 / self.every_ns) as u64
    }
}

fn new_histogram() -> Result<Histogram<u64>, LabError> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).map_err(|error| LabError::Usage(error.to_string()))
}

fn connect(address: SocketAddr, number: usize, poll: &Poll) -> io::Result<TcpStream> {
    let stream = std::net::TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    // Congestion control that models the path costs time on a loopback; if this fails, the machine's default works as well.
    let _ = socket2::SockRef::from(&stream).set_tcp_congestion(b"reno");
    let mut stream = TcpStream::from_std(stream);
    poll.registry().register(&mut stream, Token(number), Interest::READABLE)?;
    Ok(stream)
}

/// CPU seconds that this thread has used.
fn thread_cpu_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

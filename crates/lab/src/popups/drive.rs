//! The load client's loop: keep-alive connections with one request each, one thread, no allocation per request.
//!
//! In a closed loop each connection asks again as soon as it is answered. In an open loop requests are due at evenly
//! spaced times; what finds no free connection waits, and its latency counts from when it was due.

use super::wire::{Answer, Reading, read_answer};
use crate::{
    LabError,
    job::Percentiles,
    process::{monotonic_ns, thread_wait_seconds},
};
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token, net::TcpStream};
use serde::Serialize;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    time::Duration,
};

/// The longest answer that is read in one go; a longer one is gathered.
const READ_BYTES: usize = 64 * 1024;
/// Within a wait of less than this, the loop looks again instead of sleeping.
const SLEEP_NS_MIN: u64 = 2_000_000;
/// In microseconds; longer is counted as this.
const LATENCY_US_MAX: u64 = 60_000_000;
/// A client that gets to its requests later than this at the 99th percentile shapes what it measures.
const LATENESS_MS_MAX: f64 = 5.0;
/// A client that waits less than this share of the time is the limit itself, unless the server is as busy.
const BUSY_SHARE: f64 = 0.97;

/// What is asked, and what is made of the answers. A connection is known by its number.
pub(crate) trait Traffic {
    /// Appends the connection's next request; `false`: it has none now.
    fn ask(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> bool;
    fn answered(&mut self, connection: usize, now_ns: u64, answer: &Answer<'_>);
    /// The connection broke before an answer came.
    fn lost(&mut self, connection: usize);
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pace {
    Closed,
    /// So many requests a second.
    Open(f64),
}

/// When a stretch of load is over. Either way every answer is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    Passed(Duration),
    /// Nothing is left to ask.
    Done,
}

/// What a stretch of load came to.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Stretch {
    pub(crate) answers: u64,
    pub(crate) seconds: f64,
    /// In milliseconds, from when the request was due.
    pub(crate) latency: Percentiles,
    /// How late this client got to what was due while a connection was free.
    pub(crate) lateness: Percentiles,
    pub(crate) client_cpu_seconds: f64,
    /// The client was ready to run, and others had its core.
    pub(crate) client_wait_seconds: f64,
    /// Connections that broke while a request was under way.
    pub(crate) broken: u64,
    /// Requests due that were never sent, since no connection was free by the end.
    pub(crate) unsent: u64,
}

impl Stretch {
    pub(crate) fn per_second(&self) -> f64 {
        self.answers as f64 / self.seconds.max(1e-9)
    }

    pub(crate) fn client_busy(&self) -> f64 {
        self.client_cpu_seconds / self.seconds.max(1e-9)
    }

    /// The share of its time in which others had the client's core.
    pub(crate) fn disturbed(&self) -> f64 {
        self.client_wait_seconds / self.seconds.max(1e-9)
    }

    /// These figures are the client's limit. `server_busy` is the share of its core that the server used.
    pub(crate) fn lab_is_the_limit(&self, pace: Pace, server_busy: Option<f64>) -> bool {
        match pace {
            Pace::Open(_) => self.lateness.p99 > LATENESS_MS_MAX,
            Pace::Closed => self.client_busy() > BUSY_SHARE && server_busy.is_some_and(|busy| busy < BUSY_SHARE - 0.05),
        }
    }
}

struct Connection {
    stream: TcpStream,
    asking: bool,
    /// When its request was due.
    due_ns: u64,
    /// An answer that came in pieces.
    partial: Vec<u8>,
    /// What the kernel did not take at once.
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
}

impl Connections {
    pub(crate) fn open(address: SocketAddr, count: usize, patience: Duration) -> Result<Self, LabError> {
        let poll = Poll::new()?;
        let mut connections = Vec::with_capacity(count);
        for number in 0..count {
            connections.push(Connection {
                stream: connect(address, number, &poll)?,
                asking: false,
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
        })
    }

    /// Loads the server for a while.
    pub(crate) fn drive(&mut self, traffic: &mut impl Traffic, pace: Pace, until: Until) -> Result<Stretch, LabError> {
        let begin_ns = monotonic_ns();
        let mut run = Run {
            deadline_ns: match until {
                Until::Passed(time) => begin_ns + time.as_nanos() as u64,
                Until::Done => u64::MAX,
            },
            begin_ns,
            due: match pace {
                Pace::Closed => None,
                Pace::Open(per_second) => Some(Due { begin_ns, every_ns: 1e9 / per_second, given: 0 }),
            },
            idle: (0..self.connections.len()).rev().collect(),
            last_answer_ns: begin_ns,
            latency: histogram()?,
            lateness: histogram()?,
            answers: 0,
            broken: 0,
        };
        let (cpu_before, waited_before) = (thread_cpu_seconds(), thread_wait_seconds());
        loop {
            let now_ns = monotonic_ns();
            let over = now_ns >= run.deadline_ns;
            if !over {
                self.ask_idle(traffic, &mut run, now_ns)?;
            }
            let under_way = run.idle.len() < self.connections.len();
            if !under_way {
                if over || (run.due.is_none() && matches!(until, Until::Done)) {
                    break;
                }
                // A traffic that waits for its own answers has none to wait for here: it may have more a little later.
                run.last_answer_ns = now_ns;
            } else if now_ns.saturating_sub(run.last_answer_ns) > self.patience.as_nanos() as u64 {
                return Err(LabError::Server(format!("did not answer within {:?}", self.patience)));
            }
            self.turn(traffic, &mut run, over)?;
        }
        let end_ns = run.last_answer_ns.max(begin_ns + 1);
        Ok(Stretch {
            answers: run.answers,
            seconds: (end_ns - begin_ns) as f64 / 1e9,
            latency: Percentiles::of(&run.latency),
            lateness: Percentiles::of(&run.lateness),
            client_cpu_seconds: thread_cpu_seconds() - cpu_before,
            client_wait_seconds: thread_wait_seconds() - waited_before,
            broken: run.broken,
            unsent: run.due.map_or(0, |due| due.by(run.deadline_ns).saturating_sub(due.given)),
        })
    }

    /// Gives free connections what is due.
    fn ask_idle(&mut self, traffic: &mut impl Traffic, run: &mut Run, now_ns: u64) -> Result<(), LabError> {
        let free_since_ns = run.last_answer_ns.max(run.begin_ns);
        let mut left = run.idle.len();
        while left > 0 {
            left -= 1;
            let due_ns = match &run.due {
                None => now_ns,
                Some(due) if due.next_ns() <= now_ns => due.next_ns(),
                Some(_) => break,
            };
            let Some(number) = run.idle.pop() else { break };
            if !self.ask(traffic, run, number, due_ns, now_ns)? {
                // Others may have something to ask.
                run.idle.insert(0, number);
                continue;
            }
            if let Some(due) = &mut run.due {
                due.given += 1;
                let late_ns = now_ns.saturating_sub(due_ns.max(free_since_ns));
                run.lateness.saturating_record(late_ns / 1000);
            }
        }
        Ok(())
    }

    /// Whether the traffic had something to ask on this connection.
    fn ask(
        &mut self,
        traffic: &mut impl Traffic,
        run: &mut Run,
        number: usize,
        due_ns: u64,
        now_ns: u64,
    ) -> Result<bool, LabError> {
        self.request.clear();
        if !traffic.ask(number, now_ns, &mut self.request) {
            return Ok(false);
        }
        let connection = &mut self.connections[number];
        (connection.asking, connection.due_ns) = (true, due_ns);
        let written = match connection.stream.write(&self.request) {
            Ok(written) => written,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => {
                self.broke(traffic, run, number)?;
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

    /// Waits for answers and takes them.
    fn turn(&mut self, traffic: &mut impl Traffic, run: &mut Run, over: bool) -> Result<(), LabError> {
        let now_ns = monotonic_ns();
        let timeout = match &run.due {
            _ if over => Duration::from_millis(5),
            Some(due) if !run.idle.is_empty() => {
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
                self.write_rest(number)?;
            }
            if event.is_readable() || event.is_read_closed() || event.is_error() {
                self.hear(traffic, run, number)?;
            }
            Ok(())
        });
        self.events = events;
        result
    }

    fn write_rest(&mut self, number: usize) -> Result<(), LabError> {
        let connection = &mut self.connections[number];
        while !connection.unsent.is_empty() {
            match connection.stream.write(&connection.unsent) {
                Ok(written) => drop(connection.unsent.drain(..written)),
                // A broken connection is seen when it is read.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn hear(&mut self, traffic: &mut impl Traffic, run: &mut Run, number: usize) -> Result<(), LabError> {
        loop {
            let connection = &mut self.connections[number];
            let count = match connection.stream.read(&mut self.read) {
                Ok(0) => return self.broke(traffic, run, number),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return self.broke(traffic, run, number),
            };
            let gathered = !connection.partial.is_empty();
            if gathered {
                connection.partial.extend_from_slice(&self.read[..count]);
            }
            let bytes = if gathered { &connection.partial[..] } else { &self.read[..count] };
            match read_answer(bytes) {
                Reading::Whole { answer, closes } if connection.asking => {
                    let now_ns = monotonic_ns();
                    run.answers += 1;
                    run.last_answer_ns = now_ns;
                    let latency_ns = now_ns.saturating_sub(connection.due_ns);
                    run.latency.saturating_record((latency_ns / 1000).min(LATENCY_US_MAX));
                    connection.asking = false;
                    traffic.answered(number, now_ns, &answer);
                    connection.partial.clear();
                    if closes {
                        connection.stream = connect(self.address, number, &self.poll)?;
                    }
                    let again = run.due.is_none() && now_ns < run.deadline_ns;
                    if !(again && self.ask(traffic, run, number, now_ns, now_ns)?) {
                        run.idle.push(number);
                    }
                }
                Reading::Partial if !gathered => connection.partial.extend_from_slice(&self.read[..count]),
                Reading::Partial => {}
                Reading::Whole { .. } | Reading::Broken => return self.broke(traffic, run, number),
            }
            // A read that fills less than the buffer has emptied the socket: what comes next is told anew.
            if count < self.read.len() {
                return Ok(());
            }
        }
    }

    /// A connection that ended gets a successor; what it asked was not answered.
    fn broke(&mut self, traffic: &mut impl Traffic, run: &mut Run, number: usize) -> Result<(), LabError> {
        let connection = &mut self.connections[number];
        connection.stream = connect(self.address, number, &self.poll)?;
        connection.partial.clear();
        connection.unsent.clear();
        if std::mem::take(&mut connection.asking) {
            run.broken += 1;
            traffic.lost(number);
            run.idle.push(number);
        }
        Ok(())
    }
}

/// One stretch while it runs.
struct Run {
    begin_ns: u64,
    deadline_ns: u64,
    /// Of an open loop.
    due: Option<Due>,
    idle: Vec<usize>,
    last_answer_ns: u64,
    latency: Histogram<u64>,
    lateness: Histogram<u64>,
    answers: u64,
    broken: u64,
}

/// The schedule of an open loop.
struct Due {
    begin_ns: u64,
    every_ns: f64,
    given: u64,
}

impl Due {
    fn next_ns(&self) -> u64 {
        self.begin_ns + (self.given as f64 * self.every_ns) as u64
    }

    /// How many were due until then.
    fn by(&self, end_ns: u64) -> u64 {
        (end_ns.saturating_sub(self.begin_ns) as f64 / self.every_ns) as u64
    }
}

fn histogram() -> Result<Histogram<u64>, LabError> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).map_err(|error| LabError::Usage(error.to_string()))
}

fn connect(address: SocketAddr, number: usize, poll: &Poll) -> io::Result<TcpStream> {
    let stream = std::net::TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    // Models of the path cost time and gain nothing on a loopback; without it the machine's default serves as well.
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

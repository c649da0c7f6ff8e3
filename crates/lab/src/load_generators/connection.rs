//! The coordinator's line to one agent: greeting, signs of life, and what the agent says as events.

use crate::{
    LabError,
    agent::{
        machine::Machine,
        proof::{Nonces, Side, draw_nonce, is_proof, prove},
        read_token,
        wire::{
            AgentLine, CoordinatorLine, Credentials, GREETING_BYTES_MAX, GREETING_TIMEOUT, LINE_BYTES_MAX, Line,
            LineReader, LoadClientKind, PING_INTERVAL, PROTOCOL, READ_TICK, RefusalCode, VERSION, write_line,
        },
    },
    clock::{ClockOffset, machine_ns},
    lock::lock,
    options::AgentsArgs,
};
use serde::de::DeserializeOwned;
use std::{
    io,
    net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs},
    sync::{
        Arc, Mutex, OnceLock,
        mpsc::{Receiver, SyncSender},
    },
    time::{Duration, Instant},
};

/// Questions for an agent's clock; the one with the shortest round trip counts.
const CLOCK_QUESTIONS: u64 = 16;
/// How often waits for events look at the time.
pub(crate) const WAIT: Duration = Duration::from_millis(20);

/// How often, and after which pause, an agent is asked again that still serves another coordinator: one that has just ended.
const BUSY_ATTEMPTS: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// What an agent says; `R` is what its load client reports.
#[derive(Debug)]
pub(crate) enum AgentEvent<R> {
    Report(Box<R>),
    Pong {
        id: u64,
        clock_ns: u64,
        received_ns: u64,
    },
    Machine(Machine),
    Stored(String),
    /// The connection has ended, and why. Nothing follows.
    Gone(String),
}

/// An agent that has greeted this coordinator.
#[derive(Debug)]
pub(crate) struct AgentConnection {
    pub(crate) address: String,
    pub(crate) is_loopback: bool,
    pub(crate) machine: Machine,
    stream: Arc<Mutex<TcpStream>>,
}

/// Why an agent did not greet.
enum NoGreeting {
    Busy(String),
    Other(String),
}

impl From<String> for NoGreeting {
    fn from(why: String) -> Self {
        NoGreeting::Other(why)
    }
}

/// The session of this process: its connections are those of one coordinator.
fn session() -> &'static str {
    static SESSION: OnceLock<String> = OnceLock::new();
    SESSION.get_or_init(draw_nonce)
}

impl AgentConnection {
    /// Connects, and has a thread turn what the agent says into events, with its `number`. An agent that says nothing for
    /// `timeout` has vanished.
    fn open<R: DeserializeOwned + Send + 'static>(
        number: usize,
        address: &str,
        token: &str,
        timeout: Duration,
        events: SyncSender<(usize, AgentEvent<R>)>,
    ) -> Result<Self, LabError> {
        let failed = |why: String| LabError::Environment(format!("agent {address}: {why}"));
        let resolved = address.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
        let resolved = resolved.ok_or_else(|| LabError::Usage(format!("--agents {address}: no such address")))?;
        let mut attempt = 0;
        let (stream, lines, machine) = loop {
            attempt += 1;
            match greet(resolved, token, timeout) {
                Ok(greeted) => break greeted,
                Err(NoGreeting::Busy(_)) if attempt < BUSY_ATTEMPTS => std::thread::sleep(BUSY_PAUSE),
                Err(NoGreeting::Busy(why) | NoGreeting::Other(why)) => return Err(failed(why)),
            }
        };
        let stream = Arc::new(Mutex::new(stream));
        let connection =
            AgentConnection { address: address.into(), is_loopback: resolved.ip().is_loopback(), machine, stream };
        let stream = connection.stream.clone();
        std::thread::spawn(move || read_events(number, lines, &stream, timeout, &events));
        Ok(connection)
    }

    pub(crate) fn send(&self, line: &CoordinatorLine) -> Result<(), LabError> {
        send(&self.stream, line).map_err(|error| self.failed(&format!("has vanished: {error}")))
    }

    /// Connects to all agents, and has each start a load client of this kind.
    pub(crate) fn open_all<R: DeserializeOwned + Send + 'static>(
        args: &AgentsArgs,
        kind: LoadClientKind,
        events: &SyncSender<(usize, AgentEvent<R>)>,
    ) -> Result<Vec<Self>, LabError> {
        for (number, address) in args.agents.iter().enumerate() {
            if args.agents[..number].contains(address) {
                return Err(LabError::Usage(format!("--agents names {address} twice")));
            }
        }
        let addresses = args.agents.iter().enumerate();
        addresses.map(|(number, address)| Self::launch(number, address, args, kind, events)).collect()
    }

    /// Connects to an agent, and has it start a load client.
    pub(crate) fn launch<R: DeserializeOwned + Send + 'static>(
        number: usize,
        address: &str,
        args: &AgentsArgs,
        kind: LoadClientKind,
        events: &SyncSender<(usize, AgentEvent<R>)>,
    ) -> Result<Self, LabError> {
        let token = read_token(args.agent_token.as_deref(), args.agent_token_file.as_deref(), "--agent-token")?;
        let agent = Self::open(number, address, &token, args.agent_timeout, events.clone())?;
        agent.send(&CoordinatorLine::Launch(kind))?;
        Ok(agent)
    }

    /// Agents on other machines reach no server on this one's loopback; `options` name it as they do.
    pub(crate) fn check_reach(agents: &[Self], servers: &[SocketAddr], options: &str) -> Result<(), LabError> {
        let is_loopback = servers.iter().all(|address| address.ip().is_loopback());
        let Some(agent) = agents.iter().find(|agent| is_loopback && !agent.is_loopback) else { return Ok(()) };
        let why = format!("--agents {}: it cannot reach a server on this machine's loopback", agent.address);
        Err(LabError::Usage(format!("{why}; name the server by {options} as the agents reach it")))
    }

    /// Prints what the agent gets, and what its machine has.
    pub(crate) fn print_share(&self, share: &str) {
        let Machine { cores, descriptors, ports, load, .. } = self.machine;
        println!(
            "agent          {}: {share} ({cores} cores, {descriptors} descriptors, {ports} ports, load {load})",
            self.address
        );
    }

    /// Measures how far the agent's clock is ahead of this one. Its events have this `number`; every event is `check`ed on the way.
    pub(crate) fn measure_clock<R>(
        &self,
        number: usize,
        events: &Receiver<(usize, AgentEvent<R>)>,
        timeout: Duration,
        check: impl Fn(usize, AgentEvent<R>) -> Result<AgentEvent<R>, LabError>,
    ) -> Result<ClockOffset, LabError> {
        let mut offsets = Vec::new();
        for question in 1..=CLOCK_QUESTIONS {
            let (asked, sent_ns) = (Instant::now(), machine_ns());
            self.send(&CoordinatorLine::Ping { id: question })?;
            let answered = loop {
                if asked.elapsed() > timeout {
                    return Err(self.failed("did not tell its clock in time"));
                }
                let Ok((agent, event)) = events.recv_timeout(WAIT) else { continue };
                match check(agent, event)? {
                    AgentEvent::Pong { id, clock_ns, received_ns } if (agent, id) == (number, question) => {
                        break ClockOffset::of_round_trip(sent_ns, clock_ns, received_ns);
                    }
                    _ => {}
                }
            };
            offsets.push(answered);
        }
        let best = offsets.into_iter().min_by_key(|offset| offset.error_ns);
        best.ok_or_else(|| self.failed("did not tell its clock"))
    }

    /// The run ends for want of this agent.
    pub(crate) fn failed(&self, why: &str) -> LabError {
        LabError::Environment(format!("agent {}: {why}", self.address))
    }
}

impl Drop for AgentConnection {
    fn drop(&mut self) {
        // The agent kills its load client when the connection ends; the reading thread ends, too.
        let stream = lock(&self.stream);
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn send(stream: &Mutex<TcpStream>, line: &CoordinatorLine) -> io::Result<()> {
    let mut stream = lock(stream);
    write_line(&mut *stream, line)
}

type Greeted = (TcpStream, LineReader<TcpStream>, Machine);

fn greet(address: SocketAddr, token: &str, timeout: Duration) -> Result<Greeted, NoGreeting> {
    let told = |error: io::Error| error.to_string();
    let mut stream = TcpStream::connect_timeout(&address, GREETING_TIMEOUT).map_err(told)?;
    stream.set_nodelay(true).map_err(told)?;
    stream.set_read_timeout(Some(READ_TICK)).map_err(told)?;
    stream.set_write_timeout(Some(timeout)).map_err(told)?;
    let mut lines = LineReader::new(stream.try_clone().map_err(told)?, GREETING_BYTES_MAX);
    let AgentLine::Hello { protocol, version, nonce: theirs } = read_greeting(&mut lines)? else {
        return Err(NoGreeting::Other("is not an agent: it did not greet".into()));
    };
    if (protocol, version.as_str()) != (PROTOCOL, VERSION) {
        let why = format!(
            "is version {version} (protocol {protocol}), this program {VERSION} (protocol {PROTOCOL}) ({})",
            RefusalCode::OtherVersion.as_str()
        );
        return Err(NoGreeting::Other(why));
    }
    let nonce = draw_nonce();
    let nonces = Nonces { agent: &theirs, coordinator: &nonce };
    let credentials = Credentials {
        protocol: PROTOCOL,
        version: VERSION.into(),
        session: session().to_owned(),
        nonce: nonce.clone(),
        proof: prove(token, Side::Coordinator, nonces),
    };
    write_line(&mut stream, &CoordinatorLine::Authenticate(credentials)).map_err(told)?;
    match read_greeting(&mut lines)? {
        // What is sent next has keys of the server in it: an agent must have proved itself, too.
        AgentLine::Welcome { proof, machine } if is_proof(&proof, token, Side::Agent, nonces) => {
            lines.set_bytes_max(LINE_BYTES_MAX);
            Ok((stream, lines, machine))
        }
        AgentLine::Welcome { .. } => {
            let why = "did not prove that it knows the token";
            Err(NoGreeting::Other(RefusalCode::WrongToken.because(why).to_string()))
        }
        _ => Err(NoGreeting::Other("is not an agent: it did not welcome".into())),
    }
}

fn read_greeting(lines: &mut LineReader<TcpStream>) -> Result<AgentLine, NoGreeting> {
    let asked = Instant::now();
    while asked.elapsed() < GREETING_TIMEOUT {
        match lines.read_value().map_err(|refusal| refusal.to_string())? {
            Line::Complete(AgentLine::Refused(refusal)) if refusal.code == RefusalCode::Busy => {
                return Err(NoGreeting::Busy(format!("refused: {refusal}")));
            }
            Line::Complete(AgentLine::Refused(refusal)) => {
                return Err(NoGreeting::Other(format!("refused: {refusal}")));
            }
            Line::Complete(line) => return Ok(line),
            Line::NotYet => {}
            Line::End => return Err(NoGreeting::Other("closed the connection instead of greeting".into())),
        }
    }
    Err(NoGreeting::Other(format!("did not greet within {} s", GREETING_TIMEOUT.as_secs())))
}

/// Turns lines into events until the agent or the coordinator is gone, and says to the agent that the coordinator is there.
fn read_events<R: DeserializeOwned>(
    number: usize,
    mut lines: LineReader<TcpStream>,
    stream: &Mutex<TcpStream>,
    timeout: Duration,
    events: &SyncSender<(usize, AgentEvent<R>)>,
) {
    let (mut heard, mut pinged) = (Instant::now(), Instant::now());
    loop {
        if pinged.elapsed() >= PING_INTERVAL {
            pinged = Instant::now();
            // An agent that cannot be written to is noticed by its silence.
            let _ = send(stream, &CoordinatorLine::Ping { id: 0 });
        }
        let line = lines.read_value();
        let received_ns = machine_ns();
        let event = match line {
            Ok(Line::NotYet) if heard.elapsed() > timeout => {
                AgentEvent::Gone(format!("has vanished: silent for {} s", timeout.as_secs_f64()))
            }
            Ok(Line::NotYet) => continue,
            Ok(Line::End) => AgentEvent::Gone("has vanished: the connection ended".into()),
            Err(refusal) => AgentEvent::Gone(refusal.to_string()),
            Ok(Line::Complete(line)) => {
                heard = Instant::now();
                match line {
                    AgentLine::Pong { id: 0, .. } => continue,
                    AgentLine::Pong { id, clock_ns } => AgentEvent::Pong { id, clock_ns, received_ns },
                    AgentLine::Machine(machine) => AgentEvent::Machine(machine),
                    AgentLine::Stored { path } => AgentEvent::Stored(path),
                    AgentLine::Report(report) => match serde_json::from_str(report.get()) {
                        Ok(report) => AgentEvent::Report(Box::new(report)),
                        Err(error) => AgentEvent::Gone(format!("sent a report that does not parse: {error}")),
                    },
                    AgentLine::Ended { how } => AgentEvent::Gone(format!("its load client {how}")),
                    AgentLine::Refused(refusal) => AgentEvent::Gone(format!("serves no longer: {refusal}")),
                    AgentLine::Hello { .. } | AgentLine::Welcome { .. } => {
                        AgentEvent::Gone("greeted a second time".into())
                    }
                }
            }
        };
        let is_gone = matches!(event, AgentEvent::Gone(_));
        if events.send((number, event)).is_err() || is_gone {
            return;
        }
    }
}

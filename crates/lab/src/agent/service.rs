//! The agent's listener: who may come in, and whose turn it is.

use super::{
    machine::Machine,
    proof::{Nonces, Side, draw_nonce, is_proof, prove},
    session,
    wire::{
        AgentLine, CoordinatorLine, Credentials, GREETING_BYTES_MAX, GREETING_TIMEOUT, LINE_BYTES_MAX, Line,
        LineReader, PROTOCOL, READ_TICK, Refusal, RefusalCode, VERSION, write_line,
    },
};
use crate::lock::lock;
use std::{
    io::Read,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Connections at a time, those that have not greeted yet included. More are closed at once.
const CONNECTIONS_MAX: usize = 64;
/// The longest wait of a write: a coordinator that reads nothing for so long is gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an agent reads on after a refusal, so that the coordinator can read it: a socket that is closed with unread data
/// takes back what it sent.
const REFUSAL_LINGER: Duration = Duration::from_secs(1);

struct Agent {
    token: String,
    connections: AtomicUsize,
    serving: Mutex<Option<Serving>>,
}

/// The coordinator that is being served.
struct Serving {
    session: String,
    peer: SocketAddr,
    connections: usize,
}

/// A connection's part of being served; the coordinator's turn ends with its last connection.
struct Turn<'a>(&'a Agent);

impl Agent {
    fn take_turn(&self, session: &str, peer: SocketAddr) -> Result<Turn<'_>, Refusal> {
        let mut serving = lock(&self.serving);
        match &mut *serving {
            Some(other) if other.session != session => {
                let why = format!("another coordinator, at {}, is being served", other.peer);
                return Err(RefusalCode::Busy.because(why));
            }
            Some(same) => same.connections += 1,
            None => {
                println!("serves the coordinator at {peer}");
                *serving = Some(Serving { session: session.to_owned(), peer, connections: 1 });
            }
        }
        Ok(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut serving = lock(&self.0.serving);
        if let Some(same) = &mut *serving {
            same.connections -= 1;
            if same.connections == 0 {
                println!("has served the coordinator at {}", same.peer);
                *serving = None;
            }
        }
    }
}

/// Serves coordinators for ever.
pub(super) fn serve(listener: &TcpListener, token: String) {
    let agent = Arc::new(Agent { token, connections: AtomicUsize::new(0), serving: Mutex::default() });
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors: there are some again when a load client has ended.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if agent.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            agent.connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let agent = agent.clone();
        std::thread::spawn(move || {
            serve_connection(&stream, &agent);
            agent.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn serve_connection(stream: &TcpStream, agent: &Agent) {
    let Ok(peer) = stream.peer_addr() else { return };
    // They fail only on a socket that is gone already.
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(READ_TICK));
    let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let mut lines = LineReader::new(stream, GREETING_BYTES_MAX);
    let served = greet(stream, &mut lines, agent, peer).and_then(|turn| {
        lines.set_bytes_max(LINE_BYTES_MAX);
        let result = session::relay(stream, &mut lines);
        // The load client has ended by now: the next coordinator finds the machine free.
        drop(turn);
        result
    });
    if let Err(refusal) = served {
        eprintln!("the coordinator at {peer}: {refusal}");
        refuse(stream, refusal);
    }
}

/// Says why, and lets the other side read it.
fn refuse(mut stream: &TcpStream, refusal: Refusal) {
    if write_line(&mut stream, &AgentLine::Refused(refusal)).is_err() || stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let (refused, mut dropped) = (Instant::now(), [0; 4096]);
    while refused.elapsed() < REFUSAL_LINGER && stream.read(&mut dropped).is_ok_and(|count| count > 0) {}
}

/// Lets a coordinator in that knows the token, is of the same version, and is alone.
fn greet<'a>(
    mut stream: &TcpStream,
    lines: &mut LineReader<&TcpStream>,
    agent: &'a Agent,
    peer: SocketAddr,
) -> Result<Turn<'a>, Refusal> {
    let gone = |_| RefusalCode::Timeout.because("the coordinator has gone");
    let nonce = draw_nonce();
    let hello = AgentLine::Hello { protocol: PROTOCOL, version: VERSION.into(), nonce: nonce.clone() };
    write_line(&mut stream, &hello).map_err(gone)?;
    let credentials = read_credentials(lines)?;
    let nonces = Nonces { agent: &nonce, coordinator: &credentials.nonce };
    // First, since another version may prove itself in another way.
    if (credentials.protocol, credentials.version.as_str()) != (PROTOCOL, VERSION) {
        let theirs = format!("version {} (protocol {})", credentials.version, credentials.protocol);
        let why = format!("the coordinator is {theirs}, the agent version {VERSION} (protocol {PROTOCOL})");
        return Err(RefusalCode::OtherVersion.because(why));
    }
    if !is_proof(&credentials.proof, &agent.token, Side::Coordinator, nonces) {
        return Err(RefusalCode::WrongToken.because("the token is not this agent's"));
    }
    let turn = agent.take_turn(&credentials.session, peer)?;
    let proof = prove(&agent.token, Side::Agent, nonces);
    write_line(&mut stream, &AgentLine::Welcome { proof, machine: Machine::inspect() }).map_err(gone)?;
    Ok(turn)
}

fn read_credentials(lines: &mut LineReader<&TcpStream>) -> Result<Credentials, Refusal> {
    let asked = Instant::now();
    while asked.elapsed() < GREETING_TIMEOUT {
        match lines.read_value()? {
            Line::Complete(CoordinatorLine::Authenticate(credentials)) => return Ok(credentials),
            Line::Complete(_) => return Err(RefusalCode::BadLine.because("the first line must authenticate")),
            Line::NotYet => {}
            Line::End => break,
        }
    }
    Err(RefusalCode::Timeout.because(format!("did not authenticate within {} s", GREETING_TIMEOUT.as_secs())))
}

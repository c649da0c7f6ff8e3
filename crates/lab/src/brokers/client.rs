//! The load client for servers that others wrote: receivers that are all subscribed to one topic, and senders that publish to
//! it, on one thread.

use super::wire::{Packet, Protocol};
use crate::{
    LabError,
    delivery_ledger::{BODY_BYTES_MIN, Ledger, Marking, SendTimes},
    process,
    worker_protocol::Outcome,
};
use mio::{Events, Interest, Poll, Token};
use std::{io, net::SocketAddr, time::Duration};
use tidings_client::nonblocking::{NonblockingSocket, ReadOutcome};

/// Concurrent handshakes, as of the load client for Tidings.
const OPENING_MAX: usize = 200;
const BUFFER_BYTES: usize = 1024 * 1024;
/// A sender with so many unwritten bytes waits for the server.
const UNWRITTEN_BYTES_MAX: usize = 64 * 1024;

/// When messages are published.
#[derive(Debug, Clone, Copy)]
pub(super) enum Plan {
    /// As many as the server takes, with at most `window` messages between publisher and last receiver.
    ClosedLoop { window: usize, duration: Duration },
    /// One at a time.
    Rounds { rounds: usize, pause: Duration },
}

/// A connection to the server.
struct Link {
    socket: NonblockingSocket,
    is_ready: bool,
    has_greeted: bool,
    /// The server ended the connection, as it may do with a slow reader: what its receiver lacks is lost.
    has_ended: bool,
}

pub(super) struct BrokerClient {
    protocol: Protocol,
    /// Of this client alone, so that nothing of another run comes in.
    topic: String,
    poll: Poll,
    events: Option<Events>,
    /// The receivers, then the senders.
    links: Vec<Link>,
    receivers: usize,
    buffer: Vec<u8>,
    ready: usize,
    patience: Duration,
}

impl BrokerClient {
    /// Connects receivers and senders, and waits until the server has accepted all; says how long that took.
    pub(super) fn open(
        protocol: Protocol,
        address: SocketAddr,
        receivers: usize,
        senders: usize,
        patience: Duration,
    ) -> Result<(Self, Duration), LabError> {
        let mut client = BrokerClient {
            protocol,
            // Without a slash, which subjects of NATS may not have.
            topic: format!("lab-{}", process::run_tag()),
            poll: Poll::new()?,
            events: Some(Events::with_capacity(4096)),
            links: Vec::with_capacity(receivers + senders),
            receivers,
            buffer: vec![0; BUFFER_BYTES],
            ready: 0,
            patience,
        };
        let started = process::monotonic_ns();
        let mut nothing = Ledger::new(Marking::Bytes, started, receivers, senders.max(1), BODY_BYTES_MIN);
        while client.ready < receivers + senders {
            while client.links.len() < receivers + senders && client.links.len() - client.ready < OPENING_MAX {
                let mut socket = NonblockingSocket::connect(address, None)?;
                let token = Token(client.links.len());
                client.poll.registry().register(socket.stream(), token, Interest::READABLE | Interest::WRITABLE)?;
                client.links.push(Link { socket, is_ready: false, has_greeted: false, has_ended: false });
            }
            client.poll_once(Duration::from_millis(10), &mut nothing)?;
            if process::monotonic_ns() - started > patience.as_nanos() as u64 {
                let why = format!("{} of {} connections were accepted in time", client.ready, receivers + senders);
                return Err(LabError::Environment(why));
            }
        }
        let took = Duration::from_nanos(process::monotonic_ns() - started);
        Ok((client, took))
    }

    /// Publishes by the plan and waits for what was published.
    pub(super) fn run(&mut self, plan: Plan, body_bytes: usize) -> Result<Outcome, LabError> {
        let senders = self.links.len() - self.receivers;
        let cpu = process::cpu_seconds(std::process::id());
        let start = process::monotonic_ns();
        let body_bytes = body_bytes.max(BODY_BYTES_MIN);
        let mut ledger = Ledger::new(Marking::Bytes, start, self.receivers, senders, body_bytes);
        let mut payload = Vec::new();
        let (mut planned, mut next_at) = (0, start);
        loop {
            let now = process::monotonic_ns();
            let is_over = match plan {
                Plan::ClosedLoop { duration, .. } => now - start >= duration.as_nanos() as u64,
                Plan::Rounds { rounds, .. } => planned == rounds,
            };
            if is_over {
                break;
            }
            match plan {
                Plan::ClosedLoop { window, .. } => {
                    while ledger.outstanding < window
                        && self.publish(&mut ledger, &mut payload, process::monotonic_ns())?
                    {}
                    self.poll_once(Duration::from_millis(1), &mut ledger)?;
                }
                Plan::Rounds { pause, .. } => {
                    if now >= next_at && self.publish(&mut ledger, &mut payload, next_at.max(now))? {
                        planned += 1;
                        self.settle(&mut ledger)?;
                        next_at = process::monotonic_ns() + pause.as_nanos() as u64;
                    }
                    self.poll_once(Duration::from_millis(1), &mut ledger)?;
                }
            }
        }
        self.settle(&mut ledger)?;
        let outcome = ledger.outcome(matches!(plan, Plan::Rounds { .. }));
        let client_cpu_seconds = process::cpu_seconds(std::process::id()) - cpu;
        Ok(Outcome { client_cpu_seconds, ..outcome })
    }

    /// Publishes one message, unless its sender has too much that the server has not taken.
    fn publish(&mut self, ledger: &mut Ledger, payload: &mut Vec<u8>, planned: u64) -> Result<bool, LabError> {
        let sender = ledger.next_sender();
        let link = &mut self.links[self.receivers + sender];
        if link.socket.out().len() > UNWRITTEN_BYTES_MAX {
            return Ok(false);
        }
        ledger.publish(sender, SendTimes { planned, free_since: planned, now: process::monotonic_ns() }, payload);
        self.protocol.put_publish(&self.topic, payload, link.socket.out()).map_err(LabError::Worker)?;
        link.socket.flush()?;
        Ok(true)
    }

    /// Waits until every receiver has everything, or gets nothing any more.
    fn settle(&mut self, ledger: &mut Ledger) -> Result<(), LabError> {
        let (mut had, mut since) = (ledger.outstanding, process::monotonic_ns());
        while ledger.outstanding > 0 {
            self.poll_once(Duration::from_millis(1), ledger)?;
            let now = process::monotonic_ns();
            if ledger.outstanding != had {
                (had, since) = (ledger.outstanding, now);
            } else if now - since > self.patience.as_nanos() as u64 {
                return Ok(());
            }
        }
        Ok(())
    }

    fn poll_once(&mut self, timeout: Duration, ledger: &mut Ledger) -> Result<(), LabError> {
        let Some(mut events) = self.events.take() else { return Ok(()) };
        let polled = self.poll.poll(&mut events, Some(timeout));
        for event in &events {
            self.handle(event.token().0, ledger)?;
        }
        self.events = Some(events);
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn handle(&mut self, number: usize, ledger: &mut Ledger) -> Result<(), LabError> {
        let (protocol, is_receiver) = (self.protocol, number < self.receivers);
        let Link { socket, is_ready, has_greeted, has_ended } = &mut self.links[number];
        if *has_ended {
            return Ok(());
        }
        if !*has_greeted {
            *has_greeted = true;
            // A broker ends the older of two sessions of one name, so names differ between runs.
            let name = format!("{}-{number}", self.topic.trim_start_matches("lab-"));
            let subscribes_to = is_receiver.then_some(self.topic.as_str());
            protocol.put_hello(&name, subscribes_to, socket.out()).map_err(LabError::Worker)?;
        }
        let (mut answers, mut has_become_ready) = (Vec::new(), false);
        let read = socket.read(&mut self.buffer, |bytes| {
            let now = process::monotonic_ns();
            let mut taken = 0;
            loop {
                let rest = &bytes[taken..];
                let Some((packet, length)) = protocol.read(rest, is_receiver).map_err(io::Error::other)? else {
                    return Ok::<_, io::Error>(taken);
                };
                match packet {
                    Packet::Message(range) if is_receiver => ledger.deliver(number, &rest[range], now),
                    Packet::Ready => has_become_ready = true,
                    Packet::Ping => protocol.put_pong(&mut answers),
                    Packet::Message(_) | Packet::Other => {}
                }
                taken += length;
            }
        });
        if has_become_ready && !*is_ready {
            *is_ready = true;
            self.ready += 1;
        }
        socket.out().extend_from_slice(&answers);
        let wrote = socket.flush();
        let why = match read.and_then(|outcome| wrote.map(|()| outcome)) {
            Ok(ReadOutcome::Drained) => return Ok(()),
            Ok(ReadOutcome::Ended) => "it was closed".to_owned(),
            Err(error) => error.to_string(),
        };
        if !*is_ready || !is_receiver {
            return Err(LabError::Server(format!("ended the connection of client {number}: {why}")));
        }
        *has_ended = true;
        self.poll.registry().deregister(socket.stream())?;
        ledger.note(format!("the connection of receiver {number} ended: {why}"));
        Ok(())
    }
}

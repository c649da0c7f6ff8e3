//! The load client for servers that others wrote: receivers that are all subscribed to one topic, and senders that publish to
//! it, on one thread.

use super::wire::{Packet, Protocol};
use crate::{
    LabError,
    client_engine::{
        ConnectionError, HANDSHAKES_MAX,
        reactor::{Clients, Reactor},
    },
    delivery_ledger::{BODY_BYTES_MIN, Ledger, Marking, SendTimes},
    process,
    worker_protocol::Outcome,
};
use std::{net::SocketAddr, time::Duration};

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

pub(super) struct BrokerClient {
    reactor: Reactor,
    links: Links,
    patience: Duration,
}

/// The connections without their sockets: the receivers, then the senders.
struct Links {
    protocol: Protocol,
    /// Of this client alone, so that nothing of another run comes in.
    topic: String,
    receivers: usize,
    senders: usize,
    /// By connection: whether the server has accepted it.
    is_ready: Vec<bool>,
    ready: usize,
}

/// A turn of the reactor.
struct Turn<'a> {
    links: &'a mut Links,
    ledger: &'a mut Ledger,
}

impl Clients for Turn<'_> {
    type Error = ConnectionError;

    fn receive(&mut self, number: usize, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<usize, ConnectionError> {
        let Links { protocol, receivers, is_ready, ready, .. } = self.links;
        let is_receiver = number < *receivers;
        let now = process::monotonic_ns();
        let mut taken = 0;
        loop {
            let rest = &bytes[taken..];
            let read = protocol.read(rest, is_receiver).map_err(ConnectionError::Protocol)?;
            let Some((packet, length)) = read else { return Ok(taken) };
            match packet {
                Packet::Message(range) if is_receiver => self.ledger.deliver(number, &rest[range], now),
                Packet::Ready if !is_ready[number] => {
                    is_ready[number] = true;
                    *ready += 1;
                }
                Packet::Ping => protocol.put_pong(out),
                Packet::Message(_) | Packet::Ready | Packet::Other => {}
            }
            taken += length;
        }
    }

    /// A server may end the connection of a slow reader: what its receiver lacks is lost.
    fn ended(&mut self, _: &mut Reactor, number: usize, why: ConnectionError) -> Result<(), LabError> {
        if !self.links.is_ready[number] || number >= self.links.receivers {
            return Err(LabError::Server(format!("ended the connection of client {number}: {why}")));
        }
        self.ledger.note(format!("the connection of receiver {number} ended: {why}"));
        Ok(())
    }
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
        let all = receivers + senders;
        let mut client = BrokerClient {
            reactor: Reactor::new()?,
            links: Links {
                protocol,
                // Without a slash, which subjects of NATS may not have.
                topic: format!("lab-{}", process::run_tag()),
                receivers,
                senders,
                is_ready: vec![false; all],
                ready: 0,
            },
            patience,
        };
        let started = process::monotonic_ns();
        let mut nothing = Ledger::new(Marking::Bytes, started, receivers, senders.max(1), BODY_BYTES_MIN);
        let mut begun = 0;
        while client.links.ready < all {
            while begun < all.min(client.links.ready + HANDSHAKES_MAX) {
                client.connect(begun, address)?;
                begun += 1;
            }
            client.turn(Duration::from_millis(10), &mut nothing)?;
            if process::monotonic_ns() - started > patience.as_nanos() as u64 {
                let why = format!("{} of {all} connections were accepted in time", client.links.ready);
                return Err(LabError::Environment(why));
            }
        }
        let took = Duration::from_nanos(process::monotonic_ns() - started);
        Ok((client, took))
    }

    fn connect(&mut self, number: usize, address: SocketAddr) -> Result<(), LabError> {
        let BrokerClient { reactor, links: Links { protocol, topic, receivers, .. }, .. } = self;
        reactor.connect(number, address, None)?;
        // A broker ends the older of two sessions of one name, so names differ between runs.
        let name = format!("{}-{number}", topic.trim_start_matches("lab-"));
        let subscribes_to = (number < *receivers).then_some(topic.as_str());
        protocol.put_hello(&name, subscribes_to, reactor.out(number)).map_err(LabError::Worker)
    }

    /// Publishes by the plan and waits for what was published.
    pub(super) fn run(&mut self, plan: Plan, body_bytes: usize) -> Result<Outcome, LabError> {
        let Links { receivers, senders, .. } = self.links;
        let cpu = process::cpu_seconds(std::process::id());
        let start = process::monotonic_ns();
        let body_bytes = body_bytes.max(BODY_BYTES_MIN);
        let mut ledger = Ledger::new(Marking::Bytes, start, receivers, senders, body_bytes);
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
                    self.turn(Duration::from_millis(1), &mut ledger)?;
                }
                Plan::Rounds { pause, .. } => {
                    if now >= next_at && self.publish(&mut ledger, &mut payload, next_at.max(now))? {
                        planned += 1;
                        self.settle(&mut ledger)?;
                        next_at = process::monotonic_ns() + pause.as_nanos() as u64;
                    }
                    self.turn(Duration::from_millis(1), &mut ledger)?;
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
        let number = self.links.receivers + sender;
        if self.reactor.unsent(number) > UNWRITTEN_BYTES_MAX {
            return Ok(false);
        }
        ledger.publish(sender, SendTimes { planned, free_since: planned, now: process::monotonic_ns() }, payload);
        let Links { protocol, topic, .. } = &self.links;
        protocol.put_publish(topic, payload, self.reactor.out(number)).map_err(LabError::Worker)?;
        self.reactor.flush();
        Ok(true)
    }

    /// Waits until every receiver has everything, or gets nothing any more.
    fn settle(&mut self, ledger: &mut Ledger) -> Result<(), LabError> {
        let (mut had, mut since) = (ledger.outstanding, process::monotonic_ns());
        while ledger.outstanding > 0 {
            self.turn(Duration::from_millis(1), ledger)?;
            let now = process::monotonic_ns();
            if ledger.outstanding != had {
                (had, since) = (ledger.outstanding, now);
            } else if now - since > self.patience.as_nanos() as u64 {
                return Ok(());
            }
        }
        Ok(())
    }

    fn turn(&mut self, timeout: Duration, ledger: &mut Ledger) -> Result<(), LabError> {
        self.reactor.turn(timeout, &mut Turn { links: &mut self.links, ledger })
    }
}

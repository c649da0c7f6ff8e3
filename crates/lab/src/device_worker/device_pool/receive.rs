//! Receiving: the messages of the server, and how a device reacts to each.

use super::{DevicePool, heartbeat_interval_ms, user_id};
use crate::{
    LabError,
    client_engine::{
        device::{ServerMessage, put_ack, take_message},
        reactor::{Clients, Reactor},
    },
    clock::machine_ns,
    device_worker::{
        backoff::{ConnectionEnd, RetryTarget},
        device::DeviceState,
    },
    problems::Problems,
};
use rand::RngExt;
use std::borrow::Cow;

/// The most listeners in the list, to which redirects add.
const LISTENERS_MAX: usize = 1_000;

impl Clients for DevicePool {
    type Error = ConnectionEnd;

    fn receive(&mut self, index: usize, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<usize, ConnectionEnd> {
        self.take_frames(index, bytes, out)
    }

    fn next_timer(&mut self, _index: usize) -> Option<u64> {
        self.first_timer_ms.take()
    }

    fn ended(&mut self, reactor: &mut Reactor, index: usize, why: ConnectionEnd) -> Result<(), LabError> {
        self.first_timer_ms = None;
        self.handle_end(reactor, index, why);
        Ok(())
    }

    fn expired(&mut self, reactor: &mut Reactor, index: usize) -> Result<(), LabError> {
        self.handle_timer(reactor, index);
        Ok(())
    }
}

impl DevicePool {
    fn take_frames(&mut self, index: usize, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<usize, ConnectionEnd> {
        let mut taken = 0;
        let mut pushes = Vec::new();
        loop {
            let websocket = &mut self.devices[index].websocket;
            let message = take_message(self.config.via, websocket, &mut bytes[taken..], out);
            let Some((length, message)) = message.map_err(|why| self.protocol_violation(index, &why))? else { break };
            taken += length;
            self.handle_message(index, message, &mut pushes, out)?;
        }
        if !pushes.is_empty() {
            put_ack(self.config.via, out, pushes);
        }
        Ok(taken)
    }

    fn protocol_violation(&mut self, index: usize, why: &str) -> ConnectionEnd {
        self.counts.problems.note(format!("device {index} received a protocol violation: {why}"));
        ConnectionEnd::new("not the protocol", RetryTarget::Never)
    }

    fn handle_message(
        &mut self,
        index: usize,
        message: ServerMessage<'_>,
        pushes: &mut Vec<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), ConnectionEnd> {
        let state = self.devices[index].state;
        match message {
            ServerMessage::Upgraded => {
                self.devices[index].state = DeviceState::Binding;
                self.put_bind(index, out);
                Ok(())
            }
            ServerMessage::Bound { user, heartbeat_ms, .. } if state == DeviceState::Binding => {
                self.handle_bound(index, &user, heartbeat_ms)
            }
            ServerMessage::Bound { .. } => Err(self.protocol_violation(index, "bound, again")),
            ServerMessage::Heartbeat => {
                let device = &mut self.devices[index];
                if device.heartbeat_sent_ns != 0 {
                    self.counts.heartbeats_answered += 1;
                    self.heartbeat.record(device.heartbeat_sent_ns, machine_ns());
                    device.heartbeat_sent_ns = 0;
                }
                Ok(())
            }
            ServerMessage::Push { id, body } => {
                pushes.push(id);
                let now_of_bench = self.of_bench(machine_ns());
                let received = &mut self.devices[index].received;
                if let Err(why) = self.pushes.receive(received, id, body, now_of_bench) {
                    self.counts.problems.note(format!("device {index}: {why}"));
                }
                Ok(())
            }
            ServerMessage::Refused { code, retry, retry_after_ms, fatal } => {
                if !fatal && state == DeviceState::Live {
                    return Ok(());
                }
                let next = match (retry, retry_after_ms) {
                    (false, _) => RetryTarget::Never,
                    (true, Some(ms)) => RetryTarget::After { ms, listener: None },
                    (true, None) => RetryTarget::SameListener,
                };
                Err(ConnectionEnd::new(Cow::into_owned(code), next))
            }
            ServerMessage::Redirect { address, after_ms } => {
                self.counts.redirects += 1;
                let listener = address.and_then(|address| self.listener_index(address));
                Err(ConnectionEnd::new("redirected", RetryTarget::After { ms: after_ms, listener }))
            }
            ServerMessage::Presence { .. } | ServerMessage::Ignored => Ok(()),
        }
    }

    /// The index of the listener with that address, which is added to the list if it is new.
    fn listener_index(&mut self, address: &str) -> Option<u16> {
        let address = address.rsplit("://").next()?.parse().ok()?;
        let listeners = &mut self.config.listeners;
        let at = listeners.iter().position(|listener| *listener == address).or_else(|| {
            (listeners.len() < LISTENERS_MAX).then(|| {
                listeners.push(address);
                listeners.len() - 1
            })
        });
        at.map(|at| at as u16)
    }

    /// Binding => Live.
    fn handle_bound(&mut self, index: usize, user: &str, heartbeat_ms: u64) -> Result<(), ConnectionEnd> {
        if (user != user_id(&self.config, index) && !self.config.bare) || heartbeat_ms == 0 {
            return Err(
                self.protocol_violation(index, &format!("bound as {user:?} with a heartbeat of {heartbeat_ms} ms"))
            );
        }
        let now = machine_ns();
        let device = &mut self.devices[index];
        device.state = DeviceState::Live;
        device.attempts = 0;
        device.heartbeat_ms = heartbeat_ms.min(u64::from(u32::MAX)) as u32;
        // The first heartbeat is sent after a random time, so that devices that bind together do not send them together.
        let mut first_timer_ms = rand::rng().random_range(0..=heartbeat_interval_ms(device));
        self.bind.record(device.due_ns, now);
        self.series.latency(device.due_ns, now);
        self.series.acknowledged(now);
        if let Some(visits) = self.visits {
            device.due_ns = visits.stay_ns.map_or(u64::MAX, |stay| now + stay);
            first_timer_ms = first_timer_ms.min(visits.stay_ns.unwrap_or(u64::MAX) / 1_000_000);
        }
        self.first_timer_ms = Some(first_timer_ms);
        self.connecting -= 1;
        self.counts.live += 1;
        self.counts.bound += 1;
        self.counts.last_bound_ns = now;
        Ok(())
    }
}

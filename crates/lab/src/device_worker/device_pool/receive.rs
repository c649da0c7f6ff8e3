//! Receiving: the messages of the server, and how a device reacts to each.

use super::{DevicePool, heartbeat_interval_ms, user_id};
use crate::{
    clock::machine_ns,
    device_worker::{
        backoff::{ConnectionEnd, RetryTarget},
        device::{DeviceState, ReadOutcome},
        wire::{ServerMessage, put_ack, put_pong, take_message},
    },
    latency::record,
};
use mio::event::Event;
use rand::RngExt;
use std::borrow::Cow;

/// The most listeners in the list, to which redirects add.
const LISTENERS_MAX: usize = 1_000;

impl DevicePool {
    pub(super) fn handle_event(&mut self, index: usize, event: &Event) -> Result<(), ConnectionEnd> {
        // Reading comes first: a server that refuses and closes may reset the connection after its last frame, which can
        // still be read, and then the error.
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            let mut buffer = std::mem::take(&mut self.buffer);
            let result = self.read(index, event.is_read_closed(), &mut buffer);
            self.buffer = buffer;
            result?;
        }
        let device = &mut self.devices[index];
        if event.is_error()
            && let Some(stream) = &device.stream
            && let Some(error) = stream.take_error().map_err(|error| ConnectionEnd::of(&error))?
        {
            return Err(ConnectionEnd::of(&error));
        }
        if event.is_writable() {
            device.flush().map_err(|error| ConnectionEnd::of(&error))?;
        }
        Ok(())
    }

    fn read(&mut self, index: usize, closed: bool, buffer: &mut Vec<u8>) -> Result<(), ConnectionEnd> {
        loop {
            let read = self.devices[index].read(buffer);
            let (filled, reading) = read.map_err(|error| ConnectionEnd::of(&error))?;
            let taken = self.take_frames(index, &mut buffer[..filled])?;
            let device = &mut self.devices[index];
            device.keep_partial_frame(&buffer[taken..filled]);
            // TLS may have records of its own to send.
            device.flush().map_err(|error| ConnectionEnd::of(&error))?;
            match reading {
                ReadOutcome::Ended => return Err(ConnectionEnd::new("closed", RetryTarget::SameListener)),
                ReadOutcome::Drained if !closed || filled == 0 => return Ok(()),
                ReadOutcome::Drained | ReadOutcome::More => {}
            }
        }
    }

    fn take_frames(&mut self, index: usize, bytes: &mut [u8]) -> Result<usize, ConnectionEnd> {
        let mut taken = 0;
        let mut pushes = Vec::new();
        loop {
            let upgraded = self.devices[index].state != DeviceState::Opening;
            let message = take_message(self.config.via, upgraded, &mut bytes[taken..]);
            let Some((length, message)) = message.map_err(|why| self.protocol_violation(index, &why))? else { break };
            taken += length;
            self.handle_message(index, message, &mut pushes)?;
        }
        if !pushes.is_empty() {
            self.scratch.clear();
            put_ack(self.config.via, &mut self.scratch, pushes);
            self.devices[index].send(&self.scratch).map_err(|error| ConnectionEnd::of(&error))?;
        }
        Ok(taken)
    }

    fn protocol_violation(&mut self, index: usize, why: &str) -> ConnectionEnd {
        self.add_problem(format!("device {index} received a protocol violation: {why}"));
        ConnectionEnd::new("not the protocol", RetryTarget::Never)
    }

    fn handle_message(
        &mut self,
        index: usize,
        message: ServerMessage<'_>,
        pushes: &mut Vec<u64>,
    ) -> Result<(), ConnectionEnd> {
        let state = self.devices[index].state;
        match message {
            ServerMessage::Upgraded => {
                self.devices[index].state = DeviceState::Binding;
                self.scratch.clear();
                self.put_bind(index);
                self.devices[index].send(&self.scratch).map_err(|error| ConnectionEnd::of(&error))
            }
            ServerMessage::Bound { user, heartbeat_ms } if state == DeviceState::Binding => {
                self.handle_bound(index, &user, heartbeat_ms)
            }
            ServerMessage::Bound { .. } => Err(self.protocol_violation(index, "bound, again")),
            ServerMessage::Heartbeat => {
                let device = &mut self.devices[index];
                if device.heartbeat_sent_ns != 0 {
                    self.counts.heartbeats_answered += 1;
                    record(&mut self.heartbeat, device.heartbeat_sent_ns, machine_ns());
                    device.heartbeat_sent_ns = 0;
                }
                Ok(())
            }
            ServerMessage::Push { id, body } => {
                pushes.push(id);
                let now_of_bench = self.of_bench(machine_ns());
                let received = &mut self.devices[index].received;
                if let Err(why) = self.pushes.receive(received, id, body, now_of_bench) {
                    self.add_problem(format!("device {index}: {why}"));
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
            ServerMessage::Ping { payload } => {
                self.scratch.clear();
                put_pong(&mut self.scratch, payload);
                self.devices[index].send(&self.scratch).map_err(|error| ConnectionEnd::of(&error))
            }
            ServerMessage::Ignored => Ok(()),
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
        let first_ms = rand::rng().random_range(0..=heartbeat_interval_ms(device));
        // The last tick never expires: the baseline gets no heartbeats.
        device.due_tick = if self.config.bare { u32::MAX } else { self.timers.schedule(index as u32, first_ms) };
        record(&mut self.bind, device.planned_ns, now);
        self.connecting -= 1;
        self.counts.live += 1;
        self.counts.bound += 1;
        self.counts.last_bound_ns = now;
        Ok(())
    }
}

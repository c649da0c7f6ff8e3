//! What comes in from the server, and what a device does about it.

use super::{Swarm, beat_every_ms, name};
use crate::{
    device_worker::{
        device::{Reading, Stage},
        retry::{Ending, Next},
        wire::{Said, put_ack, put_pong, take},
    },
    process::monotonic_ns,
    worker::record,
};
use mio::event::Event;
use rand::RngExt;
use std::borrow::Cow;

/// Doors that redirects may add to the list.
const DOORS_MAX: usize = 1_000;

impl Swarm {
    pub(super) fn serve(&mut self, index: usize, event: &Event) -> Result<(), Ending> {
        // Reading comes first: a server that refuses and closes may reset the connection behind its last words, which
        // can be read all the same (and then the error).
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            let mut buffer = std::mem::take(&mut self.buffer);
            let result = self.read(index, event.is_read_closed(), &mut buffer);
            self.buffer = buffer;
            result?;
        }
        let device = &mut self.devices[index];
        if event.is_error()
            && let Some(stream) = &device.stream
            && let Some(error) = stream.take_error().map_err(|error| Ending::of(&error))?
        {
            return Err(Ending::of(&error));
        }
        if event.is_writable() {
            device.flush().map_err(|error| Ending::of(&error))?;
        }
        Ok(())
    }

    fn read(&mut self, index: usize, closed: bool, buffer: &mut Vec<u8>) -> Result<(), Ending> {
        loop {
            let read = self.devices[index].read(buffer);
            let (filled, reading) = read.map_err(|error| Ending::of(&error))?;
            let taken = self.take_frames(index, &mut buffer[..filled])?;
            let device = &mut self.devices[index];
            device.keep(&buffer[taken..filled]);
            // TLS may owe an answer of its own.
            device.flush().map_err(|error| Ending::of(&error))?;
            match reading {
                Reading::Ended => return Err(Ending::new("closed", Next::Same)),
                Reading::Drained if !closed || filled == 0 => return Ok(()),
                Reading::Drained | Reading::More => {}
            }
        }
    }

    fn take_frames(&mut self, index: usize, bytes: &mut [u8]) -> Result<usize, Ending> {
        let mut taken = 0;
        let mut pushes = Vec::new();
        loop {
            let upgraded = self.devices[index].stage != Stage::Opening;
            let said = take(self.open.via, upgraded, &mut bytes[taken..]);
            let Some((length, said)) = said.map_err(|why| self.nonsense(index, &why))? else { break };
            taken += length;
            self.hear(index, said, &mut pushes)?;
        }
        if !pushes.is_empty() {
            self.scratch.clear();
            put_ack(self.open.via, &mut self.scratch, pushes);
            self.devices[index].send(&self.scratch).map_err(|error| Ending::of(&error))?;
        }
        Ok(taken)
    }

    fn nonsense(&mut self, index: usize, why: &str) -> Ending {
        self.problem(format!("device {index} was told nonsense: {why}"));
        Ending::new("not the protocol", Next::Never)
    }

    fn hear(&mut self, index: usize, said: Said<'_>, pushes: &mut Vec<u64>) -> Result<(), Ending> {
        let stage = self.devices[index].stage;
        match said {
            Said::Upgraded => {
                self.devices[index].stage = Stage::Binding;
                self.scratch.clear();
                self.put_bind(index);
                self.devices[index].send(&self.scratch).map_err(|error| Ending::of(&error))
            }
            Said::Bound { user, heartbeat_ms } if stage == Stage::Binding => self.bound(index, &user, heartbeat_ms),
            Said::Bound { .. } => Err(self.nonsense(index, "bound, again")),
            Said::Beat => {
                let device = &mut self.devices[index];
                if device.beat_ns != 0 {
                    self.count.beats_answered += 1;
                    record(&mut self.beat, device.beat_ns, monotonic_ns());
                    device.beat_ns = 0;
                }
                Ok(())
            }
            Said::Push { id, body } => {
                pushes.push(id);
                let seen = &mut self.devices[index].seen;
                if let Err(why) = self.pushes.take(seen, id, body, monotonic_ns()) {
                    self.problem(format!("device {index}: {why}"));
                }
                Ok(())
            }
            Said::Refused { code, retry, retry_after_ms, fatal } => {
                if !fatal && stage == Stage::Live {
                    return Ok(());
                }
                let next = match (retry, retry_after_ms) {
                    (false, _) => Next::Never,
                    (true, Some(ms)) => Next::After { ms, door: None },
                    (true, None) => Next::Same,
                };
                Err(Ending::new(Cow::into_owned(code), next))
            }
            Said::ComeBack { address, after_ms } => {
                self.count.redirects += 1;
                let door = address.and_then(|address| self.door(address));
                Err(Ending::new("redirected", Next::After { ms: after_ms, door }))
            }
            Said::Ping { payload } => {
                self.scratch.clear();
                put_pong(&mut self.scratch, payload);
                self.devices[index].send(&self.scratch).map_err(|error| Ending::of(&error))
            }
            Said::Other => Ok(()),
        }
    }

    /// The door of that address, which joins the list if it is new.
    fn door(&mut self, address: &str) -> Option<u16> {
        let address = address.rsplit("://").next()?.parse().ok()?;
        let doors = &mut self.open.doors;
        let at = doors.iter().position(|door| *door == address).or_else(|| {
            (doors.len() < DOORS_MAX).then(|| {
                doors.push(address);
                doors.len() - 1
            })
        });
        at.map(|at| at as u16)
    }

    /// Binding => Live.
    fn bound(&mut self, index: usize, user: &str, heartbeat_ms: u64) -> Result<(), Ending> {
        if (user != name(&self.open, index) && !self.open.bare) || heartbeat_ms == 0 {
            return Err(self.nonsense(index, &format!("bound as {user:?} with a heartbeat of {heartbeat_ms} ms")));
        }
        let now = monotonic_ns();
        let device = &mut self.devices[index];
        device.stage = Stage::Live;
        device.attempts = 0;
        device.heartbeat_ms = heartbeat_ms.min(u64::from(u32::MAX)) as u32;
        // The first is sent at a random moment, so that a wave of binds is no wave of heartbeats.
        let first_ms = rand::rng().random_range(0..=beat_every_ms(device));
        // No tick comes up twice: what waits for the last one waits for ever.
        device.due = if self.open.bare { u32::MAX } else { self.wheel.put(index as u32, first_ms) };
        record(&mut self.bind, device.planned_ns, now);
        self.under_way -= 1;
        self.count.live += 1;
        self.count.bound += 1;
        self.count.last_bound_ns = now;
        Ok(())
    }
}

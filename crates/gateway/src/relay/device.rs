//! A device's connection at a relay. An idle one holds no buffer, only the bind that opens it anew.

use crate::transport::Transport;
use std::io::{ErrorKind, Write};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Only a bind is taken, and soon.
    Unbound,
    /// The bind is with the core; what follows it waits.
    Opening,
    Live,
    /// The core is away; heartbeats are answered, acknowledgements are not kept (the pushes come again).
    Detached,
    /// The old bind is with the core again; its `bound` is not for the device, which has one.
    Reopening,
    /// What is still to be said is being written.
    Closing,
}

pub(super) struct Device {
    pub transport: Transport,
    /// Its name at this relay.
    pub name: u64,
    /// Its name at the core, once told.
    pub session: Option<u64>,
    /// The link that its user's shard is behind.
    pub upstream: u16,
    pub phase: Phase,
    pub blocked: bool,
    pub readable: bool,
    pub ending: bool,
    pub heartbeat_ms: u32,
    pub heard: u32,
    pub due: u32,
    /// The head of a frame that has not come whole, or what waits for `bound`.
    pub partial: Vec<u8>,
    /// What the kernel did not take.
    pub rest: Vec<u8>,
    /// The bind frame of a device that wants pushes alone.
    pub bind: Option<Box<[u8]>>,
}

/// How a write ended.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum Written {
    Fine,
    /// The device does not read, and too much waits.
    TooSlow,
    Gone,
}

impl Device {
    pub(super) fn new(transport: Transport, name: u64, tick: u32) -> Self {
        Device {
            transport,
            name,
            session: None,
            upstream: 0,
            phase: Phase::Unbound,
            blocked: false,
            readable: false,
            ending: false,
            heartbeat_ms: 0,
            heard: tick,
            due: u32::MAX,
            partial: Vec::new(),
            rest: Vec::new(),
            bind: None,
        }
    }

    /// Writes at once what the kernel takes; the rest waits.
    pub(super) fn write(&mut self, bytes: &[u8], buffer_max: usize) -> Written {
        let mut done = 0;
        while self.rest.is_empty() && done < bytes.len() {
            match self.transport.write(&bytes[done..]) {
                Ok(0) => return Written::Gone,
                Ok(n) => done += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    break;
                }
                Err(_) => return Written::Gone,
            }
        }
        // A transport that encrypts may hold the last piece.
        match self.transport.flush() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.blocked = true,
            Err(_) => return Written::Gone,
        }
        let left = &bytes[done..];
        if self.rest.len() + left.len() > buffer_max {
            return Written::TooSlow;
        }
        self.rest.extend_from_slice(left);
        Written::Fine
    }

    /// The socket takes bytes again.
    pub(super) fn go_on(&mut self) -> Written {
        self.blocked = false;
        let rest = std::mem::take(&mut self.rest);
        self.write(&rest, usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_state_of_an_idle_device_is_small() {
        let bytes = std::mem::size_of::<super::Device>();
        println!("size_of::<Device>() = {bytes}");
        assert!(bytes <= 176, "{bytes} bytes: what grew, and does every idle device need it?");
    }
}

//! A device's connection at a relay. An idle connection holds no buffer, only the bind frame that opens it again.

use crate::transport::Transport;
use std::io::{ErrorKind, Write};
use tidings_listen::{Holding, Unbound};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Only a bind is accepted, within the bind time-out.
    Unbound,
    /// The bind was sent to the core; later frames wait for the answer.
    Opening,
    Live,
    /// The device's core is away, or the device moves to another one. Heartbeats are answered; acknowledgements are dropped,
    /// since the pushes come again.
    Detached,
    /// The stored bind was sent to a core again. The answer is not forwarded: the device has had its `bound`.
    Reopening,
    /// The last frames are being written.
    Closing,
}

pub(super) struct DeviceConnection {
    pub transport: Transport,
    /// The connection's id at this relay: another one for each core that it is opened at, so that a core's late packets are for
    /// nobody.
    pub id: u64,
    /// The place of the core that the connection was opened at.
    pub core: Option<u16>,
    /// The session's id at the core, once the core has announced it.
    pub session: Option<u64>,
    /// The link to the user's shard.
    pub upstream_index: u16,
    pub phase: Phase,
    pub blocked: bool,
    pub readable: bool,
    pub read_closed: bool,
    /// The core may be in the middle of a frame: what it sent last was as long as a packet can be.
    pub within_frame: bool,
    pub heartbeat_ms: u32,
    pub last_heard: u32,
    pub timer_due: u32,
    /// The received part of an incomplete frame, or input that waits for `bound`.
    pub partial: Vec<u8>,
    /// Bytes that the kernel did not take.
    pub unwritten: Vec<u8>,
    /// The bind frame of a device that wants pushes alone.
    pub bind: Option<Box<[u8]>>,
    /// A hash of the user's id, once the device is bound.
    pub user: u64,
    /// Set while bytes wait that the kernel did not take.
    pub holding: Option<Box<Holding>>,
    /// Set while the device has not bound, or its connection is closing: it gives way to others.
    pub unbound: Option<Box<Unbound>>,
}

/// How a write ended.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum WriteOutcome {
    Accepted,
    /// The device does not read, and its buffer is full.
    BufferFull,
    Disconnected,
}

impl DeviceConnection {
    pub(super) fn new(transport: Transport, id: u64, tick: u32) -> Self {
        DeviceConnection {
            transport,
            id,
            core: None,
            session: None,
            upstream_index: 0,
            phase: Phase::Unbound,
            blocked: false,
            readable: false,
            read_closed: false,
            within_frame: false,
            heartbeat_ms: 0,
            last_heard: tick,
            timer_due: u32::MAX,
            partial: Vec::new(),
            unwritten: Vec::new(),
            bind: None,
            user: 0,
            holding: None,
            unbound: None,
        }
    }

    /// Writes as much as the kernel takes; the rest waits for the next writable event.
    pub(super) fn write(&mut self, bytes: &[u8], buffer_max: usize) -> WriteOutcome {
        let mut done = 0;
        while self.unwritten.is_empty() && done < bytes.len() {
            match self.transport.write(&bytes[done..]) {
                Ok(0) => return WriteOutcome::Disconnected,
                Ok(n) => done += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    break;
                }
                Err(_) => return WriteOutcome::Disconnected,
            }
        }
        // A transport that encrypts may hold the last chunk.
        match self.transport.flush() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.blocked = true,
            Err(_) => return WriteOutcome::Disconnected,
        }
        let left = &bytes[done..];
        if self.unwritten.len() + left.len() > buffer_max {
            return WriteOutcome::BufferFull;
        }
        self.unwritten.extend_from_slice(left);
        WriteOutcome::Accepted
    }

    /// Continues after a writable event.
    pub(super) fn resume_write(&mut self) -> WriteOutcome {
        self.blocked = false;
        let unwritten = std::mem::take(&mut self.unwritten);
        self.write(&unwritten, usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_state_of_an_idle_device_connection_is_small() {
        let bytes = std::mem::size_of::<super::DeviceConnection>();
        println!("size_of::<DeviceConnection>() = {bytes}");
        assert!(bytes <= 176, "{bytes} bytes: what grew, and does every idle device need it?");
    }
}

//! One device of the worker without its socket: a few numbers, so that idle devices take little memory.

use super::push_verifier::ReceivedPushes;
use crate::client_engine::websocket::WebSocket;

/// The state of a device's connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum DeviceState {
    /// Not connected, and no connect is planned.
    #[default]
    Idle,
    /// Waits for its timer to retry.
    Waiting,
    /// Due to connect, while too many others are connecting.
    Queued,
    /// Waits for the answer to the WebSocket upgrade.
    Opening,
    /// Waits for `bound`.
    Binding,
    Live,
    GivenUp,
}

#[derive(Debug, Default)]
pub(crate) struct Device {
    pub(crate) received: ReceivedPushes,
    /// When it was due to connect; of a visitor that is bound, when it is to go, and never without a time.
    pub(crate) due_ns: u64,
    /// When the heartbeat that is not answered yet was sent; 0: there is none.
    pub(crate) heartbeat_sent_ns: u64,
    pub(crate) heartbeat_ms: u32,
    pub(crate) listener: u16,
    /// Consecutive failures.
    pub(crate) attempts: u16,
    /// The number of the connection: each connection uses the next source address, whose port is free.
    pub(crate) generation: u8,
    pub(crate) state: DeviceState,
    /// Of a device that connects over it.
    pub(crate) websocket: WebSocket,
}

impl Device {
    pub(crate) fn new(listener: u16) -> Self {
        Device { listener, ..Device::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_takes_at_most_112_bytes() {
        let size = size_of::<Device>() + crate::client_engine::reactor::IDLE_BYTES;
        println!("a device: {size} bytes, of which {} in the reactor", crate::client_engine::reactor::IDLE_BYTES);
        assert!(size <= 112, "{size}");
    }
}

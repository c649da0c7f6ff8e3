//! The thread of a device: connected while the device is wanted.

use super::{
    super::push_verifier::PushVerifier,
    device_connection::{DeviceConnection, DeviceEvent},
    device_handle::{DeviceHandle, GuestConfig},
    offline_notices::OfflineNotices,
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use tidings_client::ClientError;

/// How long a device reads before it checks for commands.
const READ_TIMEOUT: Duration = Duration::from_millis(50);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A connection that received nothing for so long is closed, since the server answers heartbeats.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(4);
/// The wait before a device reconnects, in milliseconds at random, so that devices of a failed node do not all reach the next
/// one at once.
const RECONNECT_DELAY_MS: std::ops::Range<u64> = 100..500;

/// The state that all devices share.
pub(super) struct DeviceContext<'a> {
    pub(super) devices: &'a [DeviceHandle],
    pub(super) config: &'a GuestConfig,
    pub(super) push_verifier: &'a PushVerifier,
    pub(super) notices: &'a OfflineNotices,
    pub(super) stopped: &'a AtomicBool,
}

pub(super) fn run_device(number: usize, context: &DeviceContext<'_>) {
    let DeviceContext { config, stopped, .. } = context;
    let handle = &context.devices[number];
    let mut node = handle.home;
    let mut connections = 0;
    while !stopped.load(Ordering::Relaxed) {
        if handle.take_home_request() {
            node = handle.home;
        }
        if !handle.is_wanted() {
            handle.end_change();
            std::thread::sleep(READ_TIMEOUT);
            continue;
        }
        handle.begin_change();
        match DeviceConnection::open(handle, config, node) {
            Ok((connection, pushes)) => {
                handle.record_bound(pushes);
                connections += 1;
                let ended = SessionRun { number, connection: connections, handle, context, node }.run(connection);
                match ended {
                    SessionEnd::Left => {
                        node = handle.home;
                        continue;
                    }
                    SessionEnd::Broken(why) => handle.record_break(why),
                }
            }
            Err(error) => handle.record_break(format!("not bound: {}", error_name(&error))),
        }
        node = another_node(node, config.nodes.len());
        std::thread::sleep(Duration::from_millis(rand::random_range(RECONNECT_DELAY_MS)));
    }
}

enum SessionEnd {
    /// The device disconnected on purpose.
    Left,
    Broken(String),
}

/// One session of a device.
struct SessionRun<'a> {
    number: usize,
    connection: u64,
    handle: &'a DeviceHandle,
    context: &'a DeviceContext<'a>,
    node: usize,
}

/// The state of a session.
struct SessionState {
    last_receive_at: Instant,
    last_heartbeat_at: Instant,
    /// Whether the device watches the other guests, and was not refused.
    watches: bool,
}

impl SessionRun<'_> {
    /// Runs the session until the device is no longer wanted, or the connection ends.
    fn run(&self, mut connection: DeviceConnection) -> SessionEnd {
        let mut state =
            SessionState { last_receive_at: Instant::now(), last_heartbeat_at: Instant::now(), watches: false };
        loop {
            if self.handle.take_home_request() {
                if self.node != self.handle.home {
                    return self.end(connection, true);
                }
                self.handle.end_change();
            }
            if !self.handle.is_wanted() || self.context.stopped.load(Ordering::Relaxed) {
                // Every other time without an unbind, like an app that is swiped away.
                return self.end(connection, self.connection.is_multiple_of(2));
            }
            let result = self.read_once(&mut connection, &mut state);
            if let Err(why) = result {
                self.handle.record_end();
                return SessionEnd::Broken(why);
            }
        }
    }

    fn end(&self, connection: DeviceConnection, with_unbind: bool) -> SessionEnd {
        // The change begins before the connection closes: nodes may notice it at once.
        self.handle.begin_change();
        connection.close(with_unbind);
        self.handle.record_end();
        SessionEnd::Left
    }

    fn read_once(&self, connection: &mut DeviceConnection, state: &mut SessionState) -> Result<(), String> {
        let word = |error: ClientError| error_name(&error);
        if state.last_heartbeat_at.elapsed() >= HEARTBEAT_INTERVAL {
            state.last_heartbeat_at = Instant::now();
            connection.send_heartbeat().map_err(word)?;
            if !std::mem::replace(&mut state.watches, true) {
                connection.watch(self.context.config).map_err(word)?;
            }
        }
        match connection.next(READ_TIMEOUT).map_err(word)? {
            Some(event) => {
                state.last_receive_at = Instant::now();
                match event {
                    DeviceEvent::Push { id, body } => {
                        self.context.push_verifier.record_delivery(self.number, self.connection, id, &body);
                        connection.acknowledge(id).map_err(word)?;
                    }
                    DeviceEvent::Bound { pushes } => self.handle.record_bound(pushes),
                    DeviceEvent::Reconnect => return Err("told to connect again".into()),
                    DeviceEvent::Presence(changes) => {
                        self.context.notices.record(changes, self.context.devices, self.node)
                    }
                    // The only refusable request is to watch: repeat it.
                    DeviceEvent::Refused(_) => state.watches = false,
                    DeviceEvent::Other => {}
                }
            }
            None if state.last_receive_at.elapsed() > SILENCE_TIMEOUT => return Err("silence".into()),
            None => {}
        }
        Ok(())
    }
}

/// Any other node.
fn another_node(node: usize, nodes: usize) -> usize {
    if nodes < 2 { node } else { (node + rand::random_range(1..nodes)) % nodes }
}

fn error_name(error: &ClientError) -> String {
    match error {
        ClientError::Io(error) => error.kind().to_string(),
        ClientError::Closed { code, reason } => format!("{code} {reason}"),
        ClientError::Ended { code, .. } => code.clone(),
        other => other.to_string(),
    }
}

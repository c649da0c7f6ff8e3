//! Delivers pushes to this shard's sessions, with lower priority than all work of chat.
//!
//! A push to many devices is a scan over the sessions, a batch per turn: a shard with 100,000 devices goes on serving its
//! sockets meanwhile. A device that binds during the scan gets the push with its backlog.

use super::{FrameOutcome, Shard};
use crate::connection::{Connection, Phase};
use std::{sync::Arc, time::Instant};
use tidings_domain::{model::Lane, push_store::DeviceNo};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::ACKS_PER_FRAME_MAX,
};
use tidings_push::{DeviceSet, PushFrame, PushItem};

/// Push items processed in a turn.
const ITEMS_PER_TURN: usize = 64;
/// Slab keys that a scan visits in a turn.
const SCAN_BATCH: usize = 256;
/// The time over which the reconnects of sessions that must find another node are spread.
const RECONNECT_SPREAD_MS: u64 = 5_000;

/// A push to every live device of a set, with the progress of its scan over the sessions.
pub(super) struct PushScan {
    frame: Arc<PushFrame>,
    devices: Arc<dyn DeviceSet>,
    next_key: usize,
}

/// Both clocks, read once for many sessions.
#[derive(Clone, Copy)]
struct Now {
    wall_ms: u64,
    monotonic: Instant,
}

impl Now {
    fn of(shard: &Shard) -> Self {
        Now { wall_ms: shard.parts.engine.clock.now_ms(), monotonic: Instant::now() }
    }
}

impl Shard {
    /// A bounded amount of pushes, unless chat has a backlog.
    pub(super) fn process_pushes(&mut self) {
        for _ in 0..ITEMS_PER_TURN {
            if self.push_scan.is_some() || self.scheduler.has_bulk_backlog() {
                break;
            }
            let Ok(item) = self.parts.receivers.push.try_recv() else { break };
            self.process_push_item(item);
        }
        if !self.scheduler.has_bulk_backlog() {
            self.continue_push_scan();
        }
    }

    fn process_push_item(&mut self, item: PushItem) {
        let now = Now::of(self);
        match item {
            PushItem::Registered { session, result } => self.finish_registration(session, result),
            PushItem::Pending { session, frames } => {
                let Some(key) = self.find(session) else { return };
                let Some(device) = self.connections[key].device else { return };
                for frame in frames {
                    if self.push_to(key, &frame, now) {
                        self.parts.engine.push.written(frame.push, vec![device]);
                    }
                }
            }
            PushItem::Sessions { frame, sessions } => {
                let mut written = Vec::with_capacity(sessions.len());
                for session in sessions {
                    if let Some(key) = self.find(session)
                        && let Some(device) = self.connections[key].device
                        && self.push_to(key, &frame, now)
                    {
                        written.push(device);
                    }
                }
                self.report_written(frame.push, written);
            }
            PushItem::Matching { frame, devices } => self.push_scan = Some(PushScan { frame, devices, next_key: 0 }),
            PushItem::LeadLost => self.end_pushes(),
        }
    }

    /// Another node leads push from here on. Relays move to it with the devices that they hold, and the engine forwards the
    /// pushes of WebSocket sessions; other clients must connect again.
    fn end_pushes(&mut self) {
        self.push_scan = None;
        self.drop_all_links();
        let wants_pushes = |connection: &Connection| {
            let must_move = connection
                .binding
                .as_ref()
                .is_some_and(|binding| binding.push && !binding.receives_remote_pushes(connection.protocol));
            must_move && (connection.device.is_some() || connection.phase == Phase::Binding)
        };
        let keys: Vec<usize> =
            self.connections.iter().filter(|(_, connection)| wants_pushes(connection)).map(|(key, _)| key).collect();
        for key in keys {
            let after_ms = rand::random_range(0..=RECONNECT_SPREAD_MS);
            let refusal = Refusal::new(ErrorCode::NodeUnavailable, "another node hands out pushes; connect again");
            let frame = self.connections[key].reconnect_frame(after_ms);
            self.close_after(key, frame, refusal.retry_after(after_ms));
        }
    }

    fn continue_push_scan(&mut self) {
        let Some(mut scan) = self.push_scan.take() else { return };
        let now = Now::of(self);
        let mut written = Vec::new();
        let end = (scan.next_key + SCAN_BATCH).min(self.connections.capacity());
        for key in scan.next_key..end {
            let Some(device) = self.connections.get(key).and_then(|connection| connection.device) else { continue };
            if scan.devices.contains(device) && self.push_to(key, &scan.frame, now) {
                written.push(device);
            }
        }
        self.report_written(scan.frame.push, written);
        if end < self.connections.capacity() {
            scan.next_key = end;
            self.push_scan = Some(scan);
        }
    }

    fn report_written(&self, push: u64, devices: Vec<DeviceNo>) {
        if !devices.is_empty() {
            self.parts.engine.push.written(push, devices);
        }
    }

    /// Queues a push on a session and answers whether it did. A session whose buffer is full gets the push at its next bind.
    fn push_to(&mut self, key: usize, frame: &Arc<PushFrame>, now: Now) -> bool {
        let connection = &mut self.connections[key];
        if connection.phase == Phase::Closing
            || frame.expires_at <= now.wall_ms
            || connection.outbound.queued_bytes() > self.parts.config.session_buffer_bytes
        {
            return false;
        }
        connection.outbound.queue_push(frame);
        self.scheduler.flush_batched(connection, key, Lane::Broadcast, now.monotonic);
        true
    }

    pub(super) fn handle_ack(&mut self, key: usize, reference: Option<u64>, pushes: Vec<u64>) -> FrameOutcome {
        let connection = &self.connections[key];
        let Some(device) = connection.device else {
            if connection.binding.as_ref().is_some_and(|binding| binding.push) {
                // The acks are of pushes that an earlier session received, and the device is not registered yet. Those pushes
                // come again.
                return FrameOutcome::Continue;
            }
            let why = "this session did not ask for pushes when it bound";
            return self.refuse(key, reference, Refusal::new(ErrorCode::Forbidden, why));
        };
        if pushes.len() > ACKS_PER_FRAME_MAX {
            let refusal = Refusal::limit("pushes in one ack", ACKS_PER_FRAME_MAX as u64, pushes.len() as u64);
            return self.refuse(key, reference, refusal);
        }
        self.parts.engine.push.acknowledged(device, pushes);
        FrameOutcome::Continue
    }
}

//! Delivers pushes to this shard's sessions, with lower priority than all work of chat.
//!
//! A push to many devices is a scan over the sessions, a batch per turn: a shard with 100,000 devices goes on serving its
//! sockets meanwhile. A device that binds during the scan gets the push with its backlog.

use super::{FrameOutcome, Shard};
use crate::connection::Phase;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::model::Lane;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::ACKS_PER_FRAME_MAX,
};
use tidings_push::{DeviceSet, PushFrame, PushItem, PushReports};

/// Push items processed in a turn.
const ITEMS_PER_TURN: usize = 64;
/// Slab keys that a scan visits in a turn.
const SCAN_BATCH: usize = 256;
/// Reports about pushes are handed to the worker at most so often, unless so many wait: each time wakes it, and after a push to
/// many every device reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(5);
const REPORTS_MAX: usize = 4_096;

/// A push to every live device of a set, with the progress of its scan over the sessions.
pub(super) struct PushScan {
    frame: Arc<PushFrame>,
    devices: Arc<dyn DeviceSet>,
    next_key: usize,
}

/// Reports about pushes that wait to be handed to the worker.
#[derive(Default)]
pub(super) struct WaitingReports {
    pending: PushReports,
    handed_over_at: Option<Instant>,
}

impl WaitingReports {
    /// How long the reports wait for others; `None`: there are none.
    pub(super) fn time_until_due(&self) -> Option<Duration> {
        if self.pending.is_empty() {
            return None;
        }
        let at = self.handed_over_at.filter(|_| self.pending.len() < REPORTS_MAX);
        Some(at.map_or(Duration::ZERO, |at| REPORT_INTERVAL.saturating_sub(at.elapsed())))
    }
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
                        self.push_reports.pending.add_written(frame.push, device);
                    }
                }
            }
            PushItem::Sessions { frame, sessions } => {
                for session in sessions {
                    if let Some(key) = self.find(session)
                        && let Some(device) = self.connections[key].device
                        && self.push_to(key, &frame, now)
                    {
                        self.push_reports.pending.add_written(frame.push, device);
                    }
                }
            }
            PushItem::Matching { frame, devices } => self.push_scan = Some(PushScan { frame, devices, next_key: 0 }),
        }
    }

    fn continue_push_scan(&mut self) {
        let Some(mut scan) = self.push_scan.take() else { return };
        let now = Now::of(self);
        let end = (scan.next_key + SCAN_BATCH).min(self.connections.keys_end());
        for key in scan.next_key..end {
            let Some(device) = self.connections.get(key).and_then(|connection| connection.device) else { continue };
            if scan.devices.contains(device) && self.push_to(key, &scan.frame, now) {
                self.push_reports.pending.add_written(scan.frame.push, device);
            }
        }
        if end < self.connections.keys_end() {
            scan.next_key = end;
            self.push_scan = Some(scan);
        }
    }

    /// Hands over the reports about pushes that have waited for others for long enough.
    pub(super) fn hand_over_due_reports(&mut self) {
        if self.push_reports.time_until_due().is_some_and(|due| due.is_zero()) {
            self.hand_over_reports();
        }
    }

    /// Hands all reports about pushes to the worker, which must know them before it learns of a session's end or of the next
    /// session of its device: what a device has acknowledged is no part of its backlog.
    pub(super) fn hand_over_reports(&mut self) {
        if !self.push_reports.pending.is_empty() {
            self.push_reports.handed_over_at = Some(Instant::now());
            self.parts.engine.push.report(std::mem::take(&mut self.push_reports.pending));
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
        self.push_reports.pending.add_acknowledged(device, &pushes);
        FrameOutcome::Continue
    }
}

//! Pushes on their way to this shard's sessions, behind everything that chat has to do.
//!
//! A push to many is a walk over the sessions, a piece a turn: a shard with 100,000 devices goes on
//! serving its sockets meanwhile. Who binds during the walk gets the push with what waited for its device.

use crate::{
    connection::{Connection, Phase},
    shard::{After, Shard},
};
use std::{sync::Arc, time::Instant};
use tidings_engine::{
    model::Lane,
    push::{DeviceNo, DeviceSet, PushFrame, PushItem},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::ACKS_PER_FRAME_MAX,
};

/// Push items taken in a turn.
const ITEMS_PER_TURN: usize = 64;
/// Sessions that a walk looks at in a turn.
const WALK_PIECE: usize = 256;
/// How long sessions are spread over that must look for the node that does push.
const RECONNECT_SPREAD_MS: u64 = 5_000;

/// A push to every live device of a set, as far as it has come.
pub(crate) struct Walk {
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
    /// A piece of what is to be pushed, unless chat has work waiting.
    pub(crate) fn take_pushes(&mut self) {
        for _ in 0..ITEMS_PER_TURN {
            if self.pushing.is_some() || self.schedule.bulk_waits() {
                break;
            }
            let Ok(item) = self.parts.receivers.push.try_recv() else { break };
            self.take_push_item(item);
        }
        if !self.schedule.bulk_waits() {
            self.walk_on();
        }
    }

    fn take_push_item(&mut self, item: PushItem) {
        let now = Now::of(self);
        match item {
            PushItem::Registered { session, result } => self.registered(session, result),
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
            PushItem::Matching { frame, devices } => self.pushing = Some(Walk { frame, devices, next_key: 0 }),
            PushItem::LeadLost => self.end_pushes(),
        }
    }

    /// Another node does push from here on. Relays find it with the devices that they hold, the engine for sessions that
    /// stay; others must themselves.
    fn end_pushes(&mut self) {
        self.pushing = None;
        self.drop_all_links();
        let wants_pushes = |connection: &Connection| {
            let bound = connection.bound.as_ref().is_some_and(|bound| bound.push && !bound.stays(connection.door));
            bound && (connection.device.is_some() || connection.phase == Phase::Binding)
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

    fn walk_on(&mut self) {
        let Some(mut walk) = self.pushing.take() else { return };
        let now = Now::of(self);
        let mut written = Vec::new();
        let end = (walk.next_key + WALK_PIECE).min(self.connections.capacity());
        for key in walk.next_key..end {
            let Some(device) = self.connections.get(key).and_then(|connection| connection.device) else { continue };
            if walk.devices.contains(device) && self.push_to(key, &walk.frame, now) {
                written.push(device);
            }
        }
        self.report_written(walk.frame.push, written);
        if end < self.connections.capacity() {
            walk.next_key = end;
            self.pushing = Some(walk);
        }
    }

    fn report_written(&self, push: u64, devices: Vec<DeviceNo>) {
        if !devices.is_empty() {
            self.parts.engine.push.written(push, devices);
        }
    }

    /// Puts a push to a session; answers whether it was taken. One whose buffer is full gets it on its next bind.
    fn push_to(&mut self, key: usize, frame: &Arc<PushFrame>, now: Now) -> bool {
        let connection = &mut self.connections[key];
        if connection.phase == Phase::Closing
            || frame.expires_at <= now.wall_ms
            || connection.outgoing.queued_bytes() > self.parts.config.session_buffer_bytes
        {
            return false;
        }
        connection.outgoing.push_push(frame);
        self.schedule.flush_gathered(connection, key, Lane::Broadcast, now.monotonic);
        true
    }

    pub(crate) fn take_ack(&mut self, key: usize, reference: Option<u64>, pushes: Vec<u64>) -> After {
        let connection = &self.connections[key];
        let Some(device) = connection.device else {
            if connection.bound.as_ref().is_some_and(|bound| bound.push) {
                // Of pushes that an earlier session was handed, before this one's device is known. They come again.
                return After::Stays;
            }
            let why = "this session did not ask for pushes when it bound";
            return self.refuse(key, reference, Refusal::new(ErrorCode::Forbidden, why));
        };
        if pushes.len() > ACKS_PER_FRAME_MAX {
            let refusal = Refusal::limit("pushes in one ack", ACKS_PER_FRAME_MAX as u64, pushes.len() as u64);
            return self.refuse(key, reference, refusal);
        }
        self.parts.engine.push.acknowledged(device, pushes);
        After::Stays
    }
}

//! The stage that decides who is told of a message while no session of theirs takes it: once for each message and person, whatever
//! roads there are.
//!
//! With each commit the store keeps a list of the entries that may need it; nothing is written per recipient. One thread walks that
//! list in commit order ([`worker`]). It finds the members who are to be told of each entry, and stores for each road a row with some
//! dozens of them ([`road_jobs`](crate::road_jobs)); then it moves its position, in the same write. The roads' own workers
//! ([`outbox`](crate::outbox), [`vendor_push`](crate::vendor_push)) do the rest.
//!
//! ```text
//!                                                    ┌▶ rows of the webhook ─▶ worker ─▶ webhook
//! commits ─▶ list ─▶ who is to be told? ─ one write ─┼▶ rows of APNs ────────▶ worker ─▶ APNs
//! messages that were not acknowledged ──▲            └▶ rows of FCM ─────────▶ worker ─▶ FCM
//! ```
//! The stage waits for nobody but the store, so a road that is away holds up neither another road nor senders. After a crash an
//! entry is decided again, and rows that are stored already may be stored once more. In a cluster the leader does all this.
//!
//! A road that is to be taken later is a row under its time; when it is due its people are looked at again ([`waiting`]).
//!
//! In reading order: this file, [`worker`], [`decision`] (the rows of one message), [`alike`] (of several), [`waiting`], [`unacknowledged`] (messages that a
//! session did not acknowledge), [`withdrawal`] (what was read is taken away from devices).

mod alike;
mod decision;
mod unacknowledged;
mod waiting;
mod withdrawal;
mod worker;

use crate::{internal_roads::InternalRoadsConfig, offline_recipients::OfflinePushContext, road_jobs::JobSignals};
use crossbeam_channel::{Sender, bounded};
use parking_lot::Mutex;
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};
use tidings_domain::model::Position;
use tidings_protocol::http::{PolicyRoad, PushVendor};

/// The roads that are set up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Roads {
    pub(crate) vendors: Vec<PushVendor>,
    pub(crate) webhook: Option<WebhookRoad>,
    pub(crate) internal: InternalRoadsConfig,
    /// After a message, if the policy does not say when a road expires.
    pub(crate) time_to_live_ms: u64,
}

impl Roads {
    /// Whether the road is set up.
    pub(crate) fn has(&self, road: PolicyRoad) -> bool {
        match road {
            PolicyRoad::Vendors => !self.vendors.is_empty(),
            PolicyRoad::Webhook => self.webhook.is_some(),
            PolicyRoad::Session => false,
            PolicyRoad::DevicePush | PolicyRoad::Popup => self.internal.has(road),
        }
    }
}

/// How the webhook is told of messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WebhookRoad {
    /// The members that one event names.
    pub(crate) recipients_per_event: usize,
}

/// How far the stage has come, for those who measure.
#[derive(Default)]
pub(crate) struct StageProgress(AtomicU64);

impl StageProgress {
    /// The position through which all is decided; 0 while that is unknown.
    pub(crate) fn decided(&self) -> Position {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, through: Position) {
        self.0.store(through, Ordering::Release);
    }
}

/// The engine's handle of the thread.
pub(crate) struct ReachStage {
    context: Arc<OfflinePushContext>,
    roads: Roads,
    stop: Mutex<Option<Sender<Infallible>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ReachStage {
    pub(crate) fn start(
        context: Arc<OfflinePushContext>,
        roads: Roads,
        signals: Arc<JobSignals>,
        progress: Arc<StageProgress>,
    ) -> ReachStage {
        let (stop, stopped) = bounded(0);
        let worker = worker::Worker::new(context.clone(), roads.clone(), signals, progress);
        let thread = std::thread::Builder::new().name("reach".into()).spawn(move || worker.run(&stopped));
        let thread = thread.inspect_err(|error| tracing::error!(%error, "no thread that decides who is told")).ok();
        ReachStage { context, roads, stop: Mutex::new(Some(stop)), thread: Mutex::new(thread) }
    }

    pub(crate) fn stop(&self) {
        self.stop.lock().take();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

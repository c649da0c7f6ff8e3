//! Offline push by vendors: messages for members without a live session go to APNs, FCM and browsers' push services.
//!
//! The [reach stage](crate::reach_stage) stores a row for each vendor and message, with up to some dozens of devices. One thread for
//! each vendor ([`vendor_worker`]) hands these to the vendor, and removes a row when all of its devices are dealt with.
//!
//! ```text
//! reach stage ─┬▶ rows of APNs ─▶ worker ─▶ APNs
//!              └▶ rows of FCM  ─▶ worker ─▶ FCM
//!                      ▲            │
//!                      └────────────┘ later, until its time is over
//! ```
//! A vendor that is away holds nobody else up. After a crash a row is sent again, with the same id and collapse key. In a cluster
//! the leader does all this.
//!
//! In reading order: this file, [`vendor_worker`], [`health`] (does the vendor take anything?), [`dead_letters`] (what was given
//! up), [`dead_letter_requests`], [`rendering`] (what a device shows), [`badge`].

mod badge;
mod dead_letter_requests;
mod dead_letters;
mod health;
mod rendering;
mod vendor_worker;

pub(crate) use badge::badge_of;
pub(crate) use rendering::{Appearance, DeviceText, MessageText};

use crate::{
    message_runs::SPAN_OF_MESSAGES_MAX,
    offline_recipients::OfflinePushContext,
    road_jobs::{Job, JobRoad, JobSignals},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use dead_letters::DeadLetters;
use parking_lot::Mutex;
pub use rendering::{Template, Templates};
use std::{convert::Infallible, sync::Arc, thread::JoinHandle, time::Duration};
use tidings_domain::{
    model::UserNo,
    store::{OutboxItem, RowSpace, StoreResult},
    vendors::Vendor,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{PushToken, PushVendor},
};

/// How offline push by vendors is done.
#[derive(Debug, Clone)]
pub struct VendorPushConfig {
    pub templates: Templates,
    /// From the message on. What was not handed to the vendor by then is given up.
    pub time_to_live: Duration,
    /// Whether notifications carry the number of unread messages.
    pub badge: bool,
    /// A device that was notified of a conversation is notified of it again after this time, of the newest message then.
    pub repeat_after: Duration,
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    /// For how long notifications that were given up are kept; 0: they are not.
    pub dead_letters_kept: Duration,
}

impl Default for VendorPushConfig {
    fn default() -> Self {
        VendorPushConfig {
            templates: Templates::default(),
            time_to_live: Duration::from_secs(24 * 60 * 60),
            badge: true,
            repeat_after: Duration::from_secs(1),
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
            dead_letters_kept: Duration::from_secs(7 * 24 * 60 * 60),
        }
    }
}

/// What [`Engine::start`](crate::Engine::start) needs for offline push by vendors.
pub struct VendorPushParts {
    pub vendors: Vec<Arc<dyn Vendor>>,
    pub config: VendorPushConfig,
}

/// Rows in one read.
const JOBS_READ_MAX: usize = 1_000;

/// A device to which a vendor is still to deliver a message.
pub(crate) struct Waiting {
    pub(crate) device: String,
}

/// The engine's handle of the threads.
pub(crate) struct VendorPush {
    context: Arc<OfflinePushContext>,
    vendors: Vec<Arc<dyn Vendor>>,
    dead_letters: Arc<DeadLetters>,
    signals: Arc<JobSignals>,
    stop: Mutex<Option<Sender<Infallible>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl VendorPush {
    pub(crate) fn start(
        context: Arc<OfflinePushContext>,
        parts: VendorPushParts,
        signals: &Arc<JobSignals>,
    ) -> VendorPush {
        let VendorPushParts { vendors, config } = parts;
        let (stop, stopped) = bounded(0);
        let mut threads = Vec::new();
        let mut spawn = |name: String, work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name).spawn(work);
            threads.extend(thread.inspect_err(|error| tracing::error!(%error, "no thread for vendors")));
        };
        let dead_letters = Arc::new(DeadLetters::new(config.dead_letters_kept));
        for vendor in &vendors {
            let shared = (signals.clone(), dead_letters.clone());
            let worker = vendor_worker::VendorWorker::new(context.clone(), vendor.clone(), config.clone(), shared);
            let signal = StopSignal(stopped.clone());
            spawn(format!("push-{}", vendor.vendor().name()), Box::new(move || worker.run(&signal)));
        }
        let (stop, threads) = (Mutex::new(Some(stop)), Mutex::new(threads));
        VendorPush { context, vendors, dead_letters, signals: signals.clone(), stop, threads }
    }

    pub(crate) fn stop(&self) {
        self.stop.lock().take();
        self.vendors.iter().for_each(|vendor| vendor.stop());
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Whether the vendor is set up.
    pub(crate) fn has(&self, vendor: PushVendor) -> bool {
        self.vendors.iter().any(|known| known.vendor() == vendor)
    }

    /// The devices of a user to which a vendor is still to deliver this message, or a newer one in its place.
    pub(crate) fn waiting_for(
        &self,
        vendor: PushVendor,
        message: OutboxItem,
        user: UserNo,
    ) -> StoreResult<Vec<Waiting>> {
        let OutboxItem { position, conversation, seq } = message;
        let road = JobRoad::Vendor(vendor);
        let (mut from, to) = (road.key(position, 0), road.key(position.saturating_add(SPAN_OF_MESSAGES_MAX), u64::MAX));
        let mut waiting = Vec::new();
        loop {
            let rows = self.context.store.rows(RowSpace::Chat, &from, &to, JOBS_READ_MAX)?;
            let Some((last, _)) = rows.last() else { return Ok(waiting) };
            from = [&last[..], &[0]].concat();
            for (_, row) in rows {
                let job = Job::decode(&row)?;
                if job.conversation == conversation.0
                    && !job.withdraws
                    && (job.seq == seq || job.older().any(|older| older == seq))
                {
                    let of_user = job.targets.into_iter().filter(|target| target.0 == user.0);
                    waiting.extend(of_user.map(|target| Waiting { device: target.1 }));
                }
            }
        }
    }

    /// Whether the token can be used here.
    ///
    /// # Errors
    /// `conflict` when the settings do not name its vendor; `invalid_field`.
    pub(crate) fn check_token(&self, token: &PushToken) -> Result<(), Refusal> {
        match self.vendors.iter().find(|vendor| vendor.vendor() == token.vendor()) {
            Some(vendor) => vendor.check_token(token),
            None => Err(no_vendor(token.vendor())),
        }
    }
}

/// The refusal of a token that nobody could use.
pub(crate) fn no_vendor(vendor: PushVendor) -> Refusal {
    let name = vendor.name();
    Refusal::new(
        ErrorCode::Conflict,
        format!("offline push by {name} is not set up: the settings [{name}] are missing"),
    )
}

/// Tells threads to stop, once the engine has dropped the other end.
struct StopSignal(Receiver<Infallible>);

impl StopSignal {
    /// Waits; answers whether the thread is to stop.
    fn wait(&self, time: Duration) -> bool {
        matches!(self.0.recv_timeout(time), Err(RecvTimeoutError::Disconnected))
    }
}

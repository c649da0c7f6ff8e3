//! Offline push by vendors: messages for members without a live session go to APNs, FCM and browsers' push services.
//!
//! Like the webhook of [`outbox`](crate::outbox) it begins with the list of entries that a commit keeps. One thread looks for
//! the devices that are to be notified ([`token_search`]) and stores a row for each vendor and message, with up to some dozens
//! of devices. One thread for each vendor ([`vendor_worker`]) hands these to the vendor, and removes a row when all of its
//! devices are dealt with.
//!
//! ```text
//!                                           ┌▶ rows of APNs ─▶ worker ─▶ APNs
//! commits ─▶ list ─▶ search for tokens ─────┼▶ rows of FCM  ─▶ worker ─▶ FCM
//! messages that were not acknowledged ─▶────┘                  ▲    │
//!                                                              └────┘ later, until its time is over
//! ```
//! The search waits for nobody but the store, so a vendor that is away, or a webhook, holds nobody else up. After a crash a row
//! is sent again, with the same id and collapse key. In a cluster the leader does all this.
//!
//! In reading order: this file, [`jobs`] (the rows), [`token_search`], [`vendor_worker`], [`job_queue`], [`rendering`] (what a
//! device shows), [`badge`], [`unacknowledged`].

mod badge;
mod job_queue;
mod jobs;
mod rendering;
mod token_search;
mod unacknowledged;
mod vendor_worker;

use crate::offline_recipients::OfflinePushContext;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
pub use rendering::{Template, Templates};
use std::{
    convert::Infallible,
    sync::{Arc, atomic::AtomicU64},
    thread::JoinHandle,
    time::Duration,
};
use tidings_domain::{
    chat_rows::vendor_job_key,
    model::{Position, UserNo},
    push_tokens::RegisteredToken,
    store::{RowSpace, StoreResult},
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
    pub backoff_min: Duration,
    pub backoff_max: Duration,
}

impl Default for VendorPushConfig {
    fn default() -> Self {
        VendorPushConfig {
            templates: Templates::default(),
            time_to_live: Duration::from_secs(24 * 60 * 60),
            badge: true,
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
        }
    }
}

/// What [`Engine::start`](crate::Engine::start) needs for offline push by vendors.
pub struct VendorPushParts {
    pub vendors: Vec<Arc<dyn Vendor>>,
    pub config: VendorPushConfig,
}

/// Rows of one message and vendor that are read for one answer.
const JOBS_READ_MAX: usize = 1_000;

/// A device to which a vendor is still to deliver a message.
pub(crate) struct Waiting {
    pub(crate) device: String,
}

/// The engine's handle of the threads.
pub(crate) struct VendorPush {
    context: Arc<OfflinePushContext>,
    vendors: Vec<Arc<dyn Vendor>>,
    stop: Mutex<Option<Sender<Infallible>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl VendorPush {
    /// `searched` is moved along with the search. `prunes`: nobody else reads the list of entries, which is cut behind the search.
    pub(crate) fn start(
        context: OfflinePushContext,
        parts: VendorPushParts,
        searched: Arc<AtomicU64>,
        prunes: bool,
    ) -> VendorPush {
        let context = Arc::new(context);
        let VendorPushParts { vendors, config } = parts;
        let (stop, stopped) = bounded(0);
        let mut threads = Vec::new();
        let mut spawn = |name: String, work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name).spawn(work);
            threads.extend(thread.inspect_err(|error| tracing::error!(%error, "no thread for vendors")));
        };
        let names = vendors.iter().map(|vendor| vendor.vendor()).collect();
        let search = token_search::TokenSearch::new(context.clone(), names, searched, prunes);
        let signal = StopSignal(stopped.clone());
        spawn("token-search".into(), Box::new(move || search.run(&signal)));
        for vendor in &vendors {
            let worker = vendor_worker::VendorWorker::new(context.clone(), vendor.clone(), config.clone());
            let signal = StopSignal(stopped.clone());
            spawn(format!("push-{}", vendor.vendor().name()), Box::new(move || worker.run(&signal)));
        }
        VendorPush { context, vendors, stop: Mutex::new(Some(stop)), threads: Mutex::new(threads) }
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

    /// The devices of a user to which a vendor is still to deliver this message.
    pub(crate) fn waiting_for(
        &self,
        vendor: PushVendor,
        position: Position,
        user: UserNo,
    ) -> StoreResult<Vec<Waiting>> {
        let (from, to) = (vendor_job_key(vendor, position, 0), vendor_job_key(vendor, position, u64::MAX));
        let rows = self.context.store.rows(RowSpace::Chat, &from, &to, JOBS_READ_MAX)?;
        let mut waiting = Vec::new();
        for (_, row) in rows {
            let targets = jobs::Job::decode(&row)?.targets.into_iter();
            waiting.extend(targets.filter(|target| target.0 == user.0).map(|target| Waiting { device: target.1 }));
        }
        Ok(waiting)
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

/// Where one user's device is reached, for a job.
fn target_of(token: RegisteredToken) -> jobs::Target {
    jobs::Target(token.user, token.device)
}

//! Roads that need no service elsewhere: a push to devices that hold a connection to this server, and an event on which popups react.
//!
//! The [reach stage](crate::reach_stage) stores a row for each message and road with some of the people who are to be told. One thread
//! for each road ([`worker`]) tells those who still want to know, and removes the row; a row whose success stops other roads stays
//! until the people have it, or until the last of these roads was due.
//!
//! ```text
//! reach stage ─▶ rows ─▶ worker ─▶ push to the devices ─ acknowledged ─▶ marks, which cancel roads that wait
//! ```
//! After a crash a row is told again: the push has the same id of its own, so that the push store recognises it. In a cluster the
//! leader does all this.
//!
//! The road `popup` cancels no other: nobody knows when the person comes.
//!
//! In reading order: this file, [`worker`], [`device_push`], [`popup_event`].

mod device_push;
mod popup_event;
mod worker;

use crate::{
    offline_recipients::{OfflinePushContext, OfflineRecipients},
    reach_policy::RoadStep,
    road_jobs::{Job, JobRoad, JobSignals},
    vendor_push::Templates,
};
use crossbeam_channel::{Sender, bounded};
use device_push::DevicePush;
use parking_lot::Mutex;
use popup_event::PopupEvents;
use std::{collections::HashSet, convert::Infallible, sync::Arc, thread::JoinHandle, time::Duration};
use tidings_domain::{
    model::{Position, User, UserNo},
    store::{RowSpace, StoreResult},
};
use tidings_popups::PopupService;
use tidings_protocol::{
    error::Refusal,
    http::{PolicyRoad, ReachOutcome, ReachRoad},
};
use tidings_push::PushHandle;

/// People in a row of `device_push`: each may have a push of their own, and the row that waits for acknowledgements has room for its
/// number.
pub(crate) const PEOPLE_PER_ROW: usize = 64;
/// Rows of one message that are read for one answer.
const JOBS_READ_MAX: usize = 1_000;

/// Which of these roads are set up, and what they show.
#[derive(Debug, Clone)]
pub struct InternalRoadsConfig {
    /// Whether a policy may tell people by pushes to their devices.
    pub device_push: bool,
    /// Whether a policy may tell people by popups at their next visit.
    pub popup: bool,
    pub templates: Templates,
    /// Whether pushes carry the number of unread messages, unless the policy says.
    pub badge: bool,
    /// After a message, if the policy does not say when a road expires.
    pub time_to_live: Duration,
}

impl Default for InternalRoadsConfig {
    fn default() -> Self {
        let time_to_live = Duration::from_secs(24 * 60 * 60);
        InternalRoadsConfig {
            device_push: false,
            popup: false,
            templates: Templates::default(),
            badge: true,
            time_to_live,
        }
    }
}

impl InternalRoadsConfig {
    /// Whether the road is set up.
    pub(crate) fn has(&self, road: PolicyRoad) -> bool {
        match road {
            PolicyRoad::DevicePush => self.device_push,
            PolicyRoad::Popup => self.popup,
            PolicyRoad::Session | PolicyRoad::Vendors | PolicyRoad::Webhook => false,
        }
    }

    pub(crate) fn is_any(&self) -> bool {
        PolicyRoad::ALL.into_iter().any(|road| self.has(road))
    }
}

/// A message for some people, as a road tells it.
struct Telling<'a> {
    found: &'a OfflineRecipients,
    /// What the policy says about the road, if it still has it.
    step: Option<&'a RoadStep>,
    /// When it is over, and the time now, in milliseconds since 1970 UTC.
    expires_at: u64,
    now_ms: u64,
}

/// A road's answer about one person.
struct Told {
    user: UserNo,
    outcome: ReachOutcome,
    /// What to ask for later, to learn whether the person has it.
    push: Option<u64>,
}

/// A road that this server takes by itself.
trait InternalRoad: Send {
    fn road(&self) -> ReachRoad;
    fn policy_road(&self) -> PolicyRoad;
    /// The road of its rows.
    fn job_road(&self) -> JobRoad;

    /// Tells these people of a message. To do so again changes nothing.
    ///
    /// # Errors
    /// Nobody was told, or perhaps some were; it is to be tried again.
    fn tell(&mut self, telling: &Telling<'_>, people: &[Arc<User>]) -> Result<Vec<Told>, Refusal>;

    /// The ids of those users who have one of these pushes.
    ///
    /// # Errors
    /// Who has them cannot be said now.
    fn acknowledged(&mut self, pushes: &[u64]) -> Result<HashSet<String>, Refusal>;
}

/// The engine's handle of the threads.
pub(crate) struct InternalRoads {
    context: Arc<OfflinePushContext>,
    config: InternalRoadsConfig,
    stop: Mutex<Option<Sender<Infallible>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl InternalRoads {
    pub(crate) fn start(
        context: Arc<OfflinePushContext>,
        config: InternalRoadsConfig,
        (push, popups): (Arc<PushHandle>, Arc<PopupService>),
        signals: &Arc<JobSignals>,
    ) -> InternalRoads {
        let (stop, stopped) = bounded(0);
        let mut roads: Vec<Box<dyn InternalRoad>> = Vec::new();
        if config.device_push {
            roads.push(Box::new(DevicePush::new(context.clone(), config.clone(), push)));
        }
        if config.popup {
            match PopupEvents::new(context.clone(), popups) {
                Ok(road) => roads.push(Box::new(road)),
                Err(error) => tracing::error!(%error, "no runtime for the road popup"),
            }
        }
        let mut threads = Vec::new();
        for road in roads {
            let name = road.policy_road().name();
            let worker = worker::Worker::new(context.clone(), road, config.time_to_live, signals.clone());
            let stopped = stopped.clone();
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || worker.run(&stopped));
            threads.extend(thread.inspect_err(|error| tracing::error!(%error, road = name, "no thread for the road")));
        }
        InternalRoads { context, config, stop: Mutex::new(Some(stop)), threads: Mutex::new(threads) }
    }

    pub(crate) fn stop(&self) {
        self.stop.lock().take();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Whether the road is set up.
    pub(crate) fn has(&self, road: PolicyRoad) -> bool {
        self.config.has(road)
    }

    /// Whether a road is still to tell this user of a message.
    pub(crate) fn is_waiting_for(&self, road: PolicyRoad, position: Position, user: UserNo) -> StoreResult<bool> {
        let Some(road) = JobRoad::of_users(road) else { return Ok(false) };
        let (from, to) = road.keys_of(position);
        let rows = self.context.store.rows(RowSpace::Chat, &from, &to, JOBS_READ_MAX)?;
        for (_, row) in rows {
            let job = Job::decode(&row)?;
            if job.pushes.is_empty() && job.users().any(|known| known == user) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

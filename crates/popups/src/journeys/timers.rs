//! The worker's part of journeys: when it looks at users next, and the thread on which pushes go out, since they wait.

use super::position::{Journeys, Moves};
use crate::{UserKey, frequency::FrequencyCounters, rows::Wake};
use rustc_hash::FxHashSet;
use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
};
use tidings_domain::end_reason::required;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::PopupJourneyPush,
};

/// Pushes that are on their way at a time; further ones wait in the store.
pub(crate) const PUSHES_MAX: usize = 256;

/// A push of a journey's step to a user.
#[derive(Debug, Clone)]
pub struct JourneyPush {
    /// The user's id.
    pub user: String,
    /// Names the push: the same for the same journey, version, user, step and turn, so that a push that is tried again is
    /// sent once.
    pub client_push_id: String,
    /// What is sent.
    pub push: Arc<PopupJourneyPush>,
}

/// What journeys push through.
pub trait JourneyPushes: Send + Sync + 'static {
    /// Makes the pushes durable, and answers each in their order. Blocks.
    fn push(&self, pushes: Vec<JourneyPush>) -> Vec<Result<(), Refusal>>;
}

/// Refuses every push: for servers and tests without devices.
#[derive(Debug)]
pub struct NoPushes;

impl JourneyPushes for NoPushes {
    fn push(&self, pushes: Vec<JourneyPush>) -> Vec<Result<(), Refusal>> {
        pushes.iter().map(|_| Err(Refusal::new(ErrorCode::NotFound, "there are no pushes here"))).collect()
    }
}

/// A user's push that is on its way: which journey, and after how many moves.
pub(crate) type PushKey = (UserKey, u32, u32);

pub(crate) struct PushJob {
    pub(crate) key: PushKey,
    /// The row of the time at which the user is looked at for the push.
    pub(crate) wake: Wake,
    pub(crate) push: JourneyPush,
}

/// A push that was made durable, or why not.
pub(crate) struct PushDone {
    pub(crate) key: PushKey,
    pub(crate) wake: Wake,
    pub(crate) user: String,
    pub(crate) result: Result<(), Refusal>,
}

/// The worker's part of journeys.
pub(crate) struct JourneyTimers {
    /// No user is to be looked at before this time.
    pub(crate) next_at: u64,
    /// The last run has left users for the next.
    pub(crate) has_more: bool,
    pub(crate) on_their_way: FxHashSet<PushKey>,
    pub(crate) jobs: Option<SyncSender<PushJob>>,
    pub(crate) done: Receiver<PushDone>,
    thread: Option<JoinHandle<()>>,
}

impl JourneyTimers {
    pub(crate) fn start(pushes: Arc<dyn JourneyPushes>) -> JourneyTimers {
        let (jobs, incoming) = sync_channel::<PushJob>(PUSHES_MAX);
        let (results, done) = sync_channel::<PushDone>(PUSHES_MAX);
        let run = move || {
            while let Ok(first) = incoming.recv() {
                let batch: Vec<PushJob> = std::iter::once(first).chain(incoming.try_iter()).collect();
                let answers = pushes.push(batch.iter().map(|job| job.push.clone()).collect());
                for (PushJob { key, wake, push }, result) in batch.into_iter().zip(answers) {
                    if results.send(PushDone { key, wake, user: push.user, result }).is_err() {
                        return;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("popup pushes".into()).spawn(run);
        let thread = Some(required("popup pushes", thread));
        JourneyTimers {
            next_at: 0,
            has_more: false,
            on_their_way: FxHashSet::default(),
            jobs: Some(jobs),
            done,
            thread,
        }
    }

    /// Whether there may be more users to look at right away.
    pub(crate) fn has_work(&self) -> bool {
        self.has_more
    }

    /// A user is to be looked at at this time.
    pub(crate) fn wakes_at(&mut self, at: u64) {
        self.next_at = self.next_at.min(at);
    }

    /// Ends the thread. Pushes that are on their way are tried again by the next leader, under the same names.
    pub(crate) fn stop(mut self) {
        self.jobs = None;
        let JourneyTimers { done, thread, .. } = self;
        drop(done);
        let _ = thread.map(JoinHandle::join);
    }
}

/// When a user is looked at, and whether the user stands in a journey, before and after a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WakeChange {
    pub(crate) before: Option<u64>,
    pub(crate) after: Option<u64>,
    pub(crate) stood: bool,
    pub(crate) stands: bool,
}

impl WakeChange {
    pub(crate) fn begin(journeys: &Journeys, counters: &FrequencyCounters, now_ms: u64) -> WakeChange {
        let before = journeys.wake_at(counters, now_ms);
        WakeChange { before, stood: journeys.has_standing(counters), ..WakeChange::default() }
    }

    pub(crate) fn end(self, journeys: &Journeys, counters: &FrequencyCounters, now_ms: u64) -> WakeChange {
        WakeChange { after: journeys.wake_at(counters, now_ms), stands: journeys.has_standing(counters), ..self }
    }
}

/// What an exposure moves in journeys: it is stored with the exposure.
pub(crate) struct JourneyTurn {
    pub(crate) user: String,
    pub(crate) moves: Moves,
    pub(crate) wake: WakeChange,
}

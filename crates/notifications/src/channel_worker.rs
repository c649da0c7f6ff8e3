//! The worker of a channel: a thread that takes the jobs that are due, has its channel deliver them, and stores what became of them.
//! What differs between channels is behind [`Driver`].
//!
//! ```text
//! rows ─▶ queue ─ due ─▶ attempt ─┬─ done, or given up ─▶ the row is deleted, and perhaps a dead letter stored
//!           ▲                     └─ to be tried again ─▶ the row is stored as it is now
//!           └──────────────── after a pause ──────────────┘
//! ```
//! A result is stored before the next round; while the store takes nothing the worker waits, since to deliver the same once more
//! would be worse. After a crash a round is repeated. In a cluster the leader alone works.

use crate::{
    channel_jobs::{Job, JobPlace, JobQueue, JobSignals, PushJob, RoundEnd},
    offline_recipients::OfflinePushContext,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use std::{
    convert::Infallible,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_domain::{
    end_reason::required,
    failure_log::FailureLog,
    leadership::Term,
    store::{RowChange, RowSpace, StoreError, StoreResult},
};
use tidings_protocol::http::Channel;

/// The pause after the store could not be read.
const READ_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The pause after the store could not be written.
pub(crate) const WRITE_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A channel, as its worker sees it.
pub(crate) trait Driver: Send {
    fn channel(&self) -> Channel;

    /// Services of the channel whose failed jobs wait apart from each other.
    fn services(&self) -> usize {
        1
    }

    /// Does what is to be done while this node does not lead.
    ///
    /// # Errors
    /// The store could not be read; all is read again.
    fn rest(&mut self, _: &StopSignal) -> Attempt<RoundEnd> {
        Ok(RoundEnd::Idle)
    }

    /// Does what comes before jobs; answers how many jobs this round may have, and how that work ended.
    ///
    /// # Errors
    /// As [`Driver::rest`].
    fn prepare(&mut self, round: &mut Round<'_>) -> Attempt<(usize, RoundEnd)>;

    /// Delivers jobs, and stores what became of them: each row is deleted, or put back into the queue.
    ///
    /// # Errors
    /// As [`Driver::rest`].
    fn deliver(&mut self, round: &mut Round<'_>, jobs: Vec<(Vec<u8>, Job)>) -> Attempt<RoundEnd>;

    /// The same with jobs of pushes, which providers alone have: others delete the rows.
    ///
    /// # Errors
    /// As [`Driver::rest`].
    fn deliver_pushes(&mut self, round: &mut Round<'_>, jobs: Vec<(Vec<u8>, PushJob)>) -> Attempt<RoundEnd> {
        tracing::error!(channel = self.channel().name(), jobs = jobs.len(), "only providers are handed pushes");
        let changes: Vec<_> = jobs.into_iter().map(|(key, _)| RowChange { key, value: None }).collect();
        Ok(if round.store(&changes)? { RoundEnd::Worked } else { RoundEnd::Idle })
    }
}

/// The jobs of a round, with their keys.
#[derive(Default)]
struct Jobs {
    messages: Vec<(Vec<u8>, Job)>,
    pushes: Vec<(Vec<u8>, PushJob)>,
}

/// Why a round did not come to its end.
pub(crate) enum Interruption {
    /// The worker is to stop. What is not stored is done again after the restart.
    Stopped,
    Store(StoreError),
}

impl From<StoreError> for Interruption {
    fn from(error: StoreError) -> Interruption {
        Interruption::Store(error)
    }
}

pub(crate) type Attempt<T> = Result<T, Interruption>;

/// Tells threads to stop, once the other end is dropped.
#[derive(Clone)]
pub(crate) struct StopSignal(Receiver<Infallible>);

impl StopSignal {
    /// Waits; answers whether the thread is to stop.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        matches!(self.0.recv_timeout(time), Err(RecvTimeoutError::Disconnected))
    }

    /// # Errors
    /// The thread is to stop.
    pub(crate) fn pause(&self, time: Duration) -> Attempt<()> {
        if self.wait(time) { Err(Interruption::Stopped) } else { Ok(()) }
    }

    /// # Errors
    /// The thread is to stop.
    pub(crate) fn check(&self) -> Attempt<()> {
        self.pause(Duration::ZERO)
    }
}

/// A round of a worker whose node leads.
pub(crate) struct Round<'a> {
    pub(crate) context: &'a OfflinePushContext,
    pub(crate) queue: &'a mut JobQueue,
    pub(crate) term: Term,
    /// When it began.
    pub(crate) now: Instant,
    pub(crate) stop: &'a StopSignal,
}

impl Round<'_> {
    /// Stores results in one write, as soon as the store takes them; answers whether it did: this node may not lead any more.
    ///
    /// # Errors
    /// The worker is to stop.
    pub(crate) fn store(&self, changes: &[RowChange]) -> Attempt<bool> {
        let failures = FailureLog::new("what became of notifications cannot be stored; it is tried again");
        loop {
            match self.context.store.write_rows(self.term, RowSpace::Chat, changes.to_vec()) {
                Ok(()) => {
                    failures.succeeded();
                    return Ok(true);
                }
                Err(StoreError::StaleTerm) => return Ok(false),
                Err(error) => failures.failed(&error),
            }
            self.stop.pause(WRITE_RETRY_PAUSE)?;
        }
    }
}

/// The threads of some channels.
pub(crate) struct Workers {
    stop: Mutex<Option<Sender<Infallible>>>,
    stopped: StopSignal,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    pub(crate) fn new() -> Workers {
        let (stop, stopped) = bounded(0);
        Workers { stop: Mutex::new(Some(stop)), stopped: StopSignal(stopped), threads: Mutex::default() }
    }

    pub(crate) fn start(
        &self,
        name: &str,
        context: &Arc<OfflinePushContext>,
        signals: &Arc<JobSignals>,
        driver: impl Driver + 'static,
    ) {
        let queue = JobQueue::new(driver.channel(), driver.services(), signals.clone());
        let (context, signals, stop) = (context.clone(), signals.clone(), self.stopped.clone());
        let worker = Worker { context, signals, driver, queue, term: None, stop };
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || worker.run());
        self.threads.lock().push(required(name, thread));
    }

    /// Tells the threads to stop.
    pub(crate) fn signal(&self) {
        self.stop.lock().take();
    }

    /// Tells the threads to stop, and waits until they have.
    pub(crate) fn stop(&self) {
        self.signal();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
    }
}

struct Worker<D> {
    context: Arc<OfflinePushContext>,
    signals: Arc<JobSignals>,
    driver: D,
    /// The rows that are still to be tried, in a term of this node.
    queue: JobQueue,
    term: Option<Term>,
    stop: StopSignal,
}

impl<D: Driver> Worker<D> {
    fn run(mut self) {
        let failures = FailureLog::new(format!("the channel {} waits for the store", self.driver.channel().name()));
        loop {
            let pause = match self.round() {
                Ok(end) => {
                    failures.succeeded();
                    end.pause()
                }
                Err(Interruption::Stopped) => return,
                Err(Interruption::Store(error)) => {
                    // All rows are read again: what was delivered and not stored is delivered once more, with the same ids.
                    self.term = None;
                    failures.failed(&error);
                    READ_RETRY_PAUSE
                }
            };
            if self.stop.wait(pause) {
                return;
            }
        }
    }

    fn round(&mut self) -> Attempt<RoundEnd> {
        let lead = &self.context.lead;
        let held = lead.term().filter(|term| lead.holds(*term));
        if self.term != held {
            self.queue = JobQueue::new(self.driver.channel(), self.driver.services(), self.signals.clone());
            self.signals.note_pushes(self.driver.channel(), 0);
            self.term = held;
        }
        let Some(term) = held else { return self.driver.rest(&self.stop) };
        let now = self.context.clock.monotonic();
        let has_more = self.queue.read_new(&*self.context.store, now)?;
        self.signals.note_pushes(self.driver.channel(), self.queue.pushes());
        let (context, queue, stop) = (&*self.context, &mut self.queue, &self.stop);
        let mut round = Round { context, queue, term, now, stop };
        let (jobs_max, prepared) = self.driver.prepare(&mut round)?;
        let keys = round.queue.take_due(now, jobs_max);
        if keys.is_empty() {
            return Ok(if has_more { RoundEnd::MoreIsDue } else { prepared });
        }
        let is_full = keys.len() == jobs_max;
        let Jobs { messages, pushes } = read(context, self.driver.channel(), keys)?;
        let mut end = prepared;
        if !messages.is_empty() {
            end = end.max(self.driver.deliver(&mut round, messages)?);
        }
        if !pushes.is_empty() {
            end = end.max(self.driver.deliver_pushes(&mut round, pushes)?);
        }
        Ok(match end {
            RoundEnd::Worked if is_full || has_more => RoundEnd::MoreIsDue,
            end => end,
        })
    }
}

/// The jobs of these rows, of those that are there still. A row that nobody can read must not hold up the others: it is deleted with this
/// round.
fn read(context: &OfflinePushContext, channel: Channel, keys: Vec<Vec<u8>>) -> StoreResult<Jobs> {
    let rows = context.store.rows_of(RowSpace::Chat, &keys)?;
    let mut jobs = Jobs::default();
    for (key, row) in keys.into_iter().zip(rows).filter_map(|(key, row)| Some((key, row?))) {
        if JobPlace::of_key(&key).part.is_push() {
            jobs.pushes.push((key, or_lost(channel, PushJob::decode(&row))));
        } else {
            jobs.messages.push((key, or_lost(channel, Job::decode(&row))));
        }
    }
    Ok(jobs)
}

fn or_lost<T: Default>(channel: Channel, job: StoreResult<T>) -> T {
    job.unwrap_or_else(|error| {
        tracing::error!(channel = channel.name(), %error, "a notification is lost");
        T::default()
    })
}

/// The time before the next attempt: doubles with each attempt, with jitter, so that many servers do not call a service that is back
/// all at once.
pub(crate) fn backoff(shortest: Duration, longest: Duration, attempts: u32) -> Duration {
    shortest.saturating_mul(1 << attempts.min(20)).min(longest).mul_f64(rand::random_range(0.5..=1.0))
}

//! The loop that follows one source while this node leads.

use crate::{
    OutboxParts,
    database::{PAGE_ROWS, SourceConfig, SourceError, SourceResult},
    row::{Outcome, Place, Row},
    source::Source,
    turns::{Subject, turns},
    walk::Walk,
};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    failure_log::FailureLog,
    leadership::Term,
    metrics::{OutboxLabel, OutboxOutcomeLabel},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{OutboxSource, OutboxState},
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant as TokioInstant, sleep, sleep_until},
};

/// How often a node looks whether it leads.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long after a failure the source is connected to again.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Subjects whose rows are being stored at once. Full: no page is read.
const SUBJECTS_MAX: usize = 1_024;
/// Conversations that wait for another attempt at once. Full: no page is read.
const PAUSED_MAX: usize = 10_000;
/// Conversations whose next rows are to be read. Those beyond are found by reading from the start.
const NEXT_MAX: usize = 4_096;
/// For how long a page is waited for, until others are read beside what is left of it.
const PATIENCE: Duration = Duration::from_millis(50);
/// How often rows are counted, for the metrics and the status.
const COUNT_EVERY: Duration = Duration::from_secs(2);
/// How often finished rows are removed.
const REMOVE_EVERY: Duration = Duration::from_secs(60);
/// The waits before another attempt at a row that was refused for now.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A pause that has been over for this long does not make the next one longer.
const FORGET_PAUSE_AFTER: Duration = Duration::from_secs(30);
/// How long a stop waits for the rows that are being stored. The others are stored by the next leader.
const STOP_TIME: Duration = Duration::from_secs(2);

/// What became of the rows of a subject.
struct Turn {
    subject: Subject,
    outcomes: Vec<Outcome>,
    /// Where the last row that was stored stands, if all were.
    last: Option<Place>,
    /// Why the next row was not stored, if that may be tried again.
    refusal: Option<Refusal>,
}

/// A subject that waits for another attempt.
struct Pause {
    until: Instant,
    attempts: u32,
}

/// Why a source is no longer followed.
enum Ended {
    TermOver,
    Stopping,
}

pub(crate) struct Reader {
    parts: Arc<OutboxParts>,
    config: Arc<SourceConfig>,
    status: Arc<Mutex<OutboxSource>>,
    stopping: watch::Receiver<bool>,
    failures: FailureLog,
    label: OutboxLabel,
}

impl Reader {
    pub(crate) fn new(
        parts: Arc<OutboxParts>,
        config: SourceConfig,
        status: Arc<Mutex<OutboxSource>>,
        stopping: watch::Receiver<bool>,
    ) -> Reader {
        let failures = FailureLog::new(format!("the outbox {:?} cannot be followed; it is tried again", config.name));
        let label = OutboxLabel { source: config.name.clone() };
        Reader { parts, config: Arc::new(config), status, stopping, failures, label }
    }

    /// Follows the source whenever this node leads, until a stop.
    pub(crate) async fn run(mut self) {
        while !*self.stopping.borrow() {
            let Some(term) = self.held_term() else {
                self.rest(LOOK_EVERY).await;
                continue;
            };
            match self.follow(term).await {
                Ok(Ended::Stopping) => break,
                Ok(Ended::TermOver) => {
                    *self.status.lock() = OutboxSource::waiting(&self.config.name);
                    self.parts.metrics.forget_outbox(&self.label);
                }
                Err(error) => {
                    self.note_failure(&error);
                    self.rest(CONNECT_AGAIN_AFTER).await;
                }
            }
        }
    }

    fn held_term(&self) -> Option<Term> {
        self.parts.leadership.term().filter(|term| self.parts.leadership.holds(*term))
    }

    /// Waits for so long, or until a stop.
    async fn rest(&mut self, time: Duration) {
        tokio::select! {
            _ = self.stopping.changed() => {}
            () = sleep(time) => {}
        }
    }

    async fn follow(&mut self, term: Term) -> SourceResult<Ended> {
        let mut source = Source::connect(&self.config).await?;
        // Nobody guesses it, and no two readers have the same.
        let owner = format!("{:032x}", rand::random::<u128>());
        source.claim(&owner).await?;
        let mut pass = Following {
            term,
            owner,
            walk: Walk::new(Instant::now()),
            busy: HashSet::new(),
            paused: HashMap::new(),
            tasks: JoinSet::new(),
            finished: Vec::new(),
            next: VecDeque::new(),
            counted_at: None,
            removed_at: None,
        };
        self.note_success();
        loop {
            if *self.stopping.borrow() {
                pass.settle_all(TokioInstant::now() + STOP_TIME).await;
                self.write_back(&mut source, &mut pass).await?;
                return Ok(Ended::Stopping);
            }
            if !self.parts.leadership.holds(term) {
                return Ok(Ended::TermOver);
            }
            let began = pass.tasks.len();
            let has_more = self.take_page(&mut source, &mut pass).await?;
            // A page of which nothing was taken is followed by the next at once.
            let is_idle_page = has_more && pass.tasks.len() == began;
            pass.settle(if is_idle_page { Duration::ZERO } else { PATIENCE }).await;
            self.write_back(&mut source, &mut pass).await?;
            self.keep_house(&mut source, &mut pass).await?;
            if !has_more && pass.tasks.is_empty() && pass.next.is_empty() {
                tokio::select! {
                    _ = self.stopping.changed() => {}
                    () = source.wait() => {}
                }
            }
        }
    }

    /// Reads a page, and starts with the rows whose turn it is. Answers whether there is more to do at once.
    async fn take_page(&self, source: &mut Source, pass: &mut Following) -> SourceResult<bool> {
        let now = Instant::now();
        // A row that is gone, or was skipped, is never stored.
        pass.paused.retain(|_, pause| pause.until + FORGET_PAUSE_AFTER > now);
        if pass.tasks.len() >= SUBJECTS_MAX
            || pass.paused.values().filter(|pause| pause.until > now).count() >= PAUSED_MAX
        {
            return Ok(false);
        }
        let behind: Vec<Place> = pass.next.drain(..pass.next.len().min(PAGE_ROWS)).collect();
        let next = source.read_next(&behind, PAGE_ROWS / behind.len().max(1)).await?;
        let mut rows = source.read(pass.walk.after(now)).await?;
        let is_full = rows.len() == PAGE_ROWS;
        pass.walk.have_read(rows.last().map(|row| row.id), is_full, now);
        rows.extend(next);
        rows.sort_unstable_by_key(|row| row.id);
        rows.dedup_by_key(|row| row.id);
        let is_taken = |subject: &Subject| {
            pass.busy.contains(subject) || pass.paused.get(subject).is_some_and(|pause| pause.until > now)
        };
        let turns = turns(rows, is_taken);
        if turns.has_late {
            pass.walk.look_back(now);
        }
        if turns.subjects.is_empty() {
            return Ok(is_full);
        }
        source.keep(&pass.owner).await?;
        for (subject, rows) in turns.subjects {
            pass.busy.insert(subject.clone());
            pass.tasks.spawn(store(self.parts.clone(), self.config.clone(), pass.term, subject, rows));
        }
        Ok(true)
    }

    /// Writes back what became of rows, and frees their subjects.
    async fn write_back(&self, source: &mut Source, pass: &mut Following) -> SourceResult<()> {
        let turns = std::mem::take(&mut pass.finished);
        let outcomes: Vec<Outcome> = turns.iter().flat_map(|turn| turn.outcomes.iter().cloned()).collect();
        source.finish(&outcomes).await?;
        let (done, refused): (Vec<&Outcome>, Vec<&Outcome>) =
            outcomes.iter().partition(|outcome| outcome.result.is_ok());
        self.count("done", done.len());
        self.count("refused", refused.len());
        self.status.lock().done += done.len() as u64;
        for turn in turns {
            pass.busy.remove(&turn.subject);
            pass.next.extend(turn.last);
            if pass.next.len() > NEXT_MAX {
                pass.next.truncate(NEXT_MAX);
                pass.walk.look_back(Instant::now());
            }
            let Some(refusal) = turn.refusal else {
                pass.paused.remove(&turn.subject);
                continue;
            };
            self.count("tried_again", 1);
            let made_progress = !turn.outcomes.is_empty();
            let before =
                pass.paused.get(&turn.subject).map_or(0, |pause| if made_progress { 0 } else { pause.attempts });
            let wait = PAUSE_MIN.saturating_mul(1 << before.min(10)).min(PAUSE_MAX);
            let until =
                Instant::now() + wait.max(Duration::from_millis(refusal.retry_after_ms.unwrap_or(0)).min(PAUSE_MAX));
            pass.walk.look_back(until);
            pass.paused.insert(turn.subject, Pause { until, attempts: before + 1 });
            self.status.lock().last_error = Some(refusal.to_string());
        }
        Ok(())
    }

    fn count(&self, outcome: &'static str, rows: usize) {
        let label = OutboxOutcomeLabel { source: self.label.source.clone(), outcome };
        self.parts.metrics.outbox_rows.get_or_create(&label).inc_by(rows as u64);
    }

    /// Counts rows, and removes old ones, when that is due.
    async fn keep_house(&self, source: &mut Source, pass: &mut Following) -> SourceResult<()> {
        let is_due = |at: Option<Instant>, every| at.is_none_or(|at| at.elapsed() >= every);
        if is_due(pass.counted_at, COUNT_EVERY) {
            let counts = source.counts().await?;
            let metrics = &self.parts.metrics;
            metrics.outbox_waiting.get_or_create(&self.label).set(counts.waiting);
            metrics.outbox_refused.get_or_create(&self.label).set(counts.refused);
            metrics.outbox_lag_seconds.get_or_create(&self.label).set(counts.lag_ms as f64 / 1_000.0);
            let mut status = self.status.lock();
            status.waiting = counts.waiting as u64;
            status.refused = counts.refused as u64;
            status.lag_ms = counts.lag_ms.max(0) as u64;
            status.refused_rows = counts.refused_rows;
            drop(status);
            pass.counted_at = Some(Instant::now());
        }
        if !self.config.keep.is_zero() && is_due(pass.removed_at, REMOVE_EVERY) {
            let has_more = source.remove_old(self.config.keep).await?;
            pass.removed_at = (!has_more).then(Instant::now);
        }
        Ok(())
    }

    fn note_failure(&self, error: &SourceError) {
        self.failures.failed(error);
        self.parts.metrics.outbox_failing.get_or_create(&self.label).set(1);
        let mut status = self.status.lock();
        status.state = OutboxState::Unreachable;
        status.last_error = Some(error.to_string());
    }

    fn note_success(&self) {
        self.failures.succeeded();
        self.parts.metrics.outbox_failing.get_or_create(&self.label).set(0);
        let mut status = self.status.lock();
        status.state = OutboxState::Followed;
        status.last_error = None;
    }
}

/// A source that is being followed, over one connection.
struct Following {
    term: Term,
    owner: String,
    walk: Walk,
    /// Subjects whose rows are being stored, or are not yet written back.
    busy: HashSet<Subject>,
    paused: HashMap<Subject, Pause>,
    tasks: JoinSet<Turn>,
    /// What is to be written back.
    finished: Vec<Turn>,
    /// Behind these there may be rows of conversations that are free again: one with many rows goes on without a look at all others.
    next: VecDeque<Place>,
    counted_at: Option<Instant>,
    removed_at: Option<Instant>,
}

impl Following {
    /// Waits for rows that are being stored, for so long at most.
    async fn settle(&mut self, patience: Duration) {
        self.settle_all(TokioInstant::now() + patience).await;
    }

    async fn settle_all(&mut self, until: TokioInstant) {
        while !self.tasks.is_empty() {
            tokio::select! {
                biased;
                Some(joined) = self.tasks.join_next() => match joined {
                    Ok(turn) => self.finished.push(turn),
                    // Its subject stays busy until the source is connected to again. A panic has ended the process.
                    Err(error) => tracing::error!(%error, "rows of an outbox met a defect"),
                },
                () = sleep_until(until) => return,
            }
        }
    }
}

/// Stores the rows of a subject, one after another, up to the first that is refused.
async fn store(
    parts: Arc<OutboxParts>,
    config: Arc<SourceConfig>,
    term: Term,
    subject: Subject,
    rows: Vec<Row>,
) -> Turn {
    let mut turn = Turn { subject, outcomes: Vec::with_capacity(rows.len()), last: None, refusal: None };
    for row in rows {
        if !parts.leadership.holds(term) {
            break;
        }
        let result = match row.request() {
            Ok(request) => parts.requests.call(&config.api_key, request).await,
            Err(refusal) => Err(refusal),
        };
        match result {
            Err(refusal) if is_for_now(refusal.code) => {
                turn.last = None;
                turn.refusal = Some(refusal);
                break;
            }
            result => {
                let is_refused = result.is_err();
                turn.last = row.place.filter(|_| !is_refused);
                turn.outcomes.push(Outcome { id: row.id, result });
                if is_refused {
                    break;
                }
            }
        }
    }
    turn
}

/// Whether a row is tried again by itself. An API key that is not valid is no row's fault.
fn is_for_now(code: ErrorCode) -> bool {
    code.retryable() || code == ErrorCode::Unauthorized
}

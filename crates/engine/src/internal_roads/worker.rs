//! The thread of one road: takes the rows that are due, tells their people, and stores what became of them.

use super::{InternalRoad, Telling, Told};
use crate::{
    offline_recipients::{OfflinePushContext, OfflineRecipients},
    reach_gate::Unwanted,
    reach_policy::{CompiledPolicy, RoadStep},
    reach_trace::{Record, Source},
    reached_marks,
    road_jobs::{Job, JobQueue, JobSignals, OUTCOME_WAIT_MS, part_of_service, short_cause},
};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::{collections::HashSet, convert::Infallible, sync::Arc, time::Duration};
use tidings_domain::{
    chat_rows::number_in,
    leadership::Term,
    model::*,
    store::{RowChange, RowSpace, StoreResult},
};
use tidings_protocol::http::ReachOutcome;

/// How often the rows are read when none was due.
const POLL: Duration = Duration::from_millis(100);
/// The pause after the store could not be read or written.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Rows in a round.
const JOBS_PER_ROUND: usize = 50;
/// The pauses between attempts: from the first, doubling, to the second. Between questions whether people have it they double
/// until the next road is due.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Rows that wait for acknowledgements have a lane of their own in the queue, so that they keep no new row waiting.
const LANES: usize = 2;
const ACKNOWLEDGEMENTS: u64 = 0;

pub(super) struct Worker {
    context: Arc<OfflinePushContext>,
    road: Box<dyn InternalRoad>,
    time_to_live_ms: u64,
    signals: Arc<JobSignals>,
    queue: JobQueue,
    term: Option<Term>,
}

/// A row while it is worked on.
struct OpenJob<'a> {
    key: Vec<u8>,
    job: Job,
    policy: &'a CompiledPolicy,
    now_ms: u64,
}

/// What becomes of a row.
enum Next {
    Done,
    /// Its people are told again after a pause.
    Retry(Job, Duration),
    /// After a pause it is asked who has what they were told.
    Check(Job, Duration),
}

impl Worker {
    pub(super) fn new(
        context: Arc<OfflinePushContext>,
        road: Box<dyn InternalRoad>,
        time_to_live: Duration,
        signals: Arc<JobSignals>,
    ) -> Worker {
        let queue = JobQueue::new(road.job_road(), LANES, signals.clone());
        let time_to_live_ms = u64::try_from(time_to_live.as_millis()).unwrap_or(u64::MAX);
        Worker { context, road, time_to_live_ms, signals, queue, term: None }
    }

    pub(super) fn run(mut self, stopped: &Receiver<Infallible>) {
        let mut told = false;
        loop {
            let pause = match self.round(stopped) {
                Ok(worked) => {
                    if std::mem::take(&mut told) {
                        tracing::info!(road = self.name(), "the road is taken again");
                    }
                    if worked { Duration::ZERO } else { POLL }
                }
                Err(error) => {
                    // All rows are read again; those that were told already are recognised.
                    self.term = None;
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(road = self.name(), %error, "the road waits for the store");
                    }
                    RETRY_PAUSE
                }
            };
            if matches!(stopped.recv_timeout(pause), Err(RecvTimeoutError::Disconnected)) {
                return;
            }
        }
    }

    fn name(&self) -> &'static str {
        self.road.policy_road().name()
    }

    /// Does one round of work; answers whether there was any.
    fn round(&mut self, stopped: &Receiver<Infallible>) -> StoreResult<bool> {
        let lead = &self.context.lead;
        let held = lead.term().filter(|term| lead.holds(*term));
        if self.term != held {
            self.queue = JobQueue::new(self.road.job_road(), LANES, self.signals.clone());
            self.term = held;
        }
        let Some(term) = held else { return Ok(false) };
        let now = self.context.clock.monotonic();
        let store = self.context.store.clone();
        let has_more = self.queue.read_new(&*store, now)?;
        let keys = self.queue.take_due(now, JOBS_PER_ROUND);
        if keys.is_empty() {
            return Ok(has_more);
        }
        let policy = self.context.policies.current();
        let rows = store.rows_of(RowSpace::Chat, &keys)?;
        for (key, row) in keys.into_iter().zip(rows) {
            let Some(row) = row else { continue };
            if matches!(stopped.try_recv(), Err(crossbeam_channel::TryRecvError::Disconnected)) {
                return Ok(false);
            }
            let job = Job::decode(&row).unwrap_or_else(|error| {
                // A row that nobody can read must not hold up the others.
                tracing::error!(road = self.name(), %error, "what a road is to do is lost");
                Job::default()
            });
            let now_ms = self.context.clock.now_ms();
            let open = OpenJob { key, job, policy: &policy, now_ms };
            let mut changes = Vec::new();
            let next = match open.job.pushes.is_empty() {
                true => self.tell(&open, &mut changes)?,
                false => self.check(&open, &mut changes)?,
            };
            let again = match next {
                Next::Done => None,
                Next::Retry(job, pause) => Some((open.key.clone(), job, pause)),
                Next::Check(job, pause) => Some((self.check_key(&open.key), job, pause)),
            };
            if again.as_ref().is_none_or(|(key, ..)| *key != open.key) {
                changes.push(RowChange { key: open.key, value: None });
            }
            changes.extend(again.iter().map(|(key, job, _)| RowChange { key: key.clone(), value: Some(job.encode()) }));
            store.write_rows(term, RowSpace::Chat, changes)?;
            if let Some((key, _, pause)) = again {
                self.queue.put(key, now + pause);
            }
        }
        Ok(true)
    }

    /// The key of the row that waits for acknowledgements of what this row told.
    fn check_key(&self, key: &[u8]) -> Vec<u8> {
        let number = |at| number_in(key, at).unwrap_or_default();
        self.road.job_road().key(number(1), part_of_service(number(2), ACKNOWLEDGEMENTS))
    }

    /// Tells the people of a row who still want to know.
    fn tell(&mut self, open: &OpenJob<'_>, changes: &mut Vec<RowChange>) -> StoreResult<Next> {
        let context = self.context.clone();
        let OpenJob { job, now_ms, .. } = open;
        let (conversation, seq) = (ConversationNo(job.conversation), job.seq);
        let Some(found) = OfflineRecipients::of(&context, conversation, seq)? else {
            let records = job.users().map(|user| Record::of_user(user, ReachOutcome::Recalled)).collect();
            self.record(open, self.attempt(open), records, changes);
            return Ok(Next::Done);
        };
        let step = open.step();
        let expires_ms = step.and_then(|step| step.expires_ms).unwrap_or(self.time_to_live_ms);
        let expires_at = found.entry.at.saturating_add(expires_ms);
        let (mut people, mut records) = (Vec::new(), Vec::new());
        for no in job.users() {
            let Some(user) = context.directory.user(no)? else { continue };
            let unwanted = match () {
                () if expires_at <= *now_ms => Some(ReachOutcome::Expired),
                () if !job.even_online && context.presence.is_active(no) => Some(ReachOutcome::Active),
                () => {
                    let why = found.why_unwanted_by(&context, &user, self.road.policy_road())?;
                    why.map(|Unwanted { outcome, .. }| outcome)
                }
            };
            match unwanted {
                Some(outcome) => records.push(Record::of_user(no, outcome)),
                None => people.push(user),
            }
        }
        let telling = Telling { found: &found, step, expires_at, now_ms: *now_ms };
        let told = match self.road.tell(&telling, &people) {
            Ok(told) => told,
            Err(refusal) => {
                let cause = short_cause(&refusal.to_string());
                let users = people.iter().map(|user| user.no);
                let retried = |user| Record::of_user(user, ReachOutcome::Retried).because(cause.clone());
                records.extend(users.clone().map(retried));
                self.record(open, self.attempt(open), records, changes);
                let attempts = job.attempts.saturating_add(1);
                let again = Job { attempts, cause: Some(cause), ..job.clone() }.with_users(users);
                return Ok(Next::Retry(again, pause(attempts).min(PAUSE_MAX)));
            }
        };
        records.extend(told.iter().map(|told| Record::of_user(told.user, told.outcome)));
        self.record(open, self.attempt(open), records, changes);
        let mut reached: Vec<Told> = told.into_iter().filter(|told| told.outcome == ReachOutcome::Accepted).collect();
        reached.sort_by_key(|told| told.user);
        let mut pushes: Vec<u64> = reached.iter().filter_map(|told| told.push).collect();
        pushes.dedup();
        if !job.stops_others || pushes.is_empty() {
            return Ok(Next::Done);
        }
        let job = Job { attempts: 0, cause: None, ..job.clone() }.with_users(reached.iter().map(|told| told.user));
        Ok(Next::Check(Job { pushes, ..job }, PAUSE_MIN))
    }

    /// Asks who has it by now, so that roads that wait are cancelled.
    fn check(&mut self, open: &OpenJob<'_>, changes: &mut Vec<RowChange>) -> StoreResult<Next> {
        let context = self.context.clone();
        let OpenJob { job, now_ms, .. } = open;
        let attempts = job.attempts.saturating_add(1);
        let (conversation, seq) = (ConversationNo(job.conversation), job.seq);
        let Some(found) = OfflineRecipients::of(&context, conversation, seq)? else { return Ok(Next::Done) };
        let acknowledged = self.road.acknowledged(&job.pushes).unwrap_or_else(|refusal| {
            tracing::debug!(road = self.name(), %refusal, "whether people have a push is asked later");
            HashSet::new()
        });
        let (mut left, mut records) = (Vec::new(), Vec::new());
        for no in job.users() {
            let Some(user) = context.directory.user(no)? else { continue };
            if acknowledged.contains(&user.id) {
                let StoredEntry { at, position, .. } = found.entry;
                changes.push(reached_marks::mark(at, position, no, self.road.policy_road()));
                records.push(Record::of_user(no, ReachOutcome::Acknowledged));
            } else {
                left.push(no);
            }
        }
        let source = Source::Acknowledged { road: self.road.road(), part: open.part(), check: job.attempts.into() };
        self.record(open, source, records, changes);
        let Some(due) = open.next_road_due(found.entry.at).filter(|_| !left.is_empty()) else {
            return Ok(Next::Done);
        };
        // Once more just before the next road is due.
        let before = Duration::from_millis(due - now_ms).saturating_sub(PAUSE_MIN).max(PAUSE_MIN);
        let again = Job { attempts, ..job.clone() }.with_users(left.into_iter());
        Ok(Next::Check(again, pause(attempts).min(before)))
    }

    fn attempt(&self, open: &OpenJob<'_>) -> Source {
        Source::Internal { road: self.road.road(), part: open.part(), attempt: open.job.attempts.into() }
    }

    fn record(&self, open: &OpenJob<'_>, source: Source, records: Vec<Record>, changes: &mut Vec<RowChange>) {
        let OpenJob { job, policy, now_ms, .. } = open;
        let rule: Option<Arc<str>> = (policy.version > 0 && !job.rule.is_empty()).then(|| job.rule.as_str().into());
        let records = records.into_iter().map(|record| record.by_rule(rule.clone()));
        self.context.trace.add((ConversationNo(job.conversation), job.seq), source, *now_ms, records, changes);
    }
}

impl<'a> OpenJob<'a> {
    /// What the policy says about the road, if it still has it.
    fn step(&self) -> Option<&'a RoadStep> {
        let rule = self.policy.rules.iter().find(|rule| *rule.id == *self.job.rule);
        rule.and_then(|rule| rule.roads.get(self.job.step as usize))
    }

    /// When the next of the roads after this one is due, of a message that was sent then; the last may be as late as all of them
    /// wait for each other. `None`: they all were.
    fn next_road_due(&self, sent_at: u64) -> Option<u64> {
        let rule = self.policy.rules.iter().find(|rule| *rule.id == *self.job.rule);
        let after = rule.and_then(|rule| rule.roads.get(self.job.step as usize + 1..)).unwrap_or_default();
        let dues = after.iter().map(|step| sent_at.saturating_add(step.after_ms));
        let last = dues.clone().max().map(|due| due.saturating_add(OUTCOME_WAIT_MS * after.len() as u64));
        dues.chain(last).filter(|due| *due > self.now_ms).min()
    }

    fn part(&self) -> u64 {
        number_in(&self.key, 2).unwrap_or_default()
    }
}

/// The pause after so many attempts: it doubles with each.
fn pause(attempts: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << attempts.saturating_sub(1).min(30))
}

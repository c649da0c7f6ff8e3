//! What a worker does for one of these channels: it tells the people of a row, and asks later who has it.

use super::{InternalChannel, Notified, Telling};
use crate::{
    channel_jobs::{DeferredPeople, Due, Job, JobPart, JobPlace, OUTCOME_WAIT_MS, RoundEnd, short_cause},
    channel_worker::{Attempt, Driver, Round},
    log::{Record, Source},
    notified_marks,
    offline_recipients::{OfflinePushContext, OfflineRecipients},
    policy::{ChannelStep, CompiledPolicy},
};
use std::{collections::HashSet, sync::Arc, time::Duration};
use tidings_domain::{
    model::*,
    store::{RowChange, StoreResult},
};
use tidings_protocol::http::{Channel, NotificationOutcome};

/// Rows in a round.
const JOBS_PER_ROUND: usize = 50;
/// The pauses between attempts: from the first, doubling, to the second. Between questions whether people have it they double
/// until the next channel is due.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Rows that wait for acknowledgements have a lane of their own in the queue, so that they keep no new row waiting.
const LANES: usize = 2;
const ACKNOWLEDGEMENTS: u64 = 0;

pub(super) struct Worker {
    context: Arc<OfflinePushContext>,
    channel: Box<dyn InternalChannel>,
    time_to_live_ms: u64,
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
    /// Its people are notified again after a pause.
    Retry(Job, Duration),
    /// After a pause it is asked who has what they were notified.
    Check(Job, Duration),
}

impl Driver for Worker {
    fn channel(&self) -> Channel {
        self.channel.channel()
    }

    fn services(&self) -> usize {
        LANES
    }

    fn prepare(&mut self, _: &mut Round<'_>) -> Attempt<(usize, RoundEnd)> {
        Ok((JOBS_PER_ROUND, RoundEnd::Idle))
    }

    fn deliver(&mut self, round: &mut Round<'_>, jobs: Vec<(Vec<u8>, Job)>) -> Attempt<RoundEnd> {
        for (key, job) in jobs {
            round.stop.check()?;
            let policy = self.context.policies.deciding(job.policy)?;
            let open = OpenJob { key, job, policy: &policy, now_ms: self.context.clock.now_ms() };
            let mut changes = Vec::new();
            let next = if open.job.pushes.is_empty() {
                self.tell(&open, &mut changes)?
            } else {
                self.check(&open, &mut changes)?
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
            if !round.store(&changes)? {
                return Ok(RoundEnd::Idle);
            }
            if let Some((key, _, pause)) = again {
                round.queue.put(key, round.now + pause);
            }
        }
        Ok(RoundEnd::MoreIsDue)
    }
}

impl Worker {
    pub(super) fn new(
        context: Arc<OfflinePushContext>,
        channel: Box<dyn InternalChannel>,
        time_to_live: Duration,
    ) -> Worker {
        let time_to_live_ms = u64::try_from(time_to_live.as_millis()).unwrap_or(u64::MAX);
        Worker { context, channel, time_to_live_ms }
    }

    /// The key of the row that waits for acknowledgements of what this row notified.
    fn check_key(&self, key: &[u8]) -> Vec<u8> {
        let JobPlace { position, part } = JobPlace::of_key(key);
        Due::Now(self.channel.channel()).key(position, part.at_service(ACKNOWLEDGEMENTS))
    }

    /// Tells the people of a row who still want to know.
    fn tell(&mut self, open: &OpenJob<'_>, changes: &mut Vec<RowChange>) -> StoreResult<Next> {
        let context = self.context.clone();
        let OpenJob { job, now_ms, .. } = open;
        let (conversation, seq) = (ConversationNo(job.conversation), job.seq);
        let Some(found) = OfflineRecipients::of(&context, conversation, seq)? else {
            let records = job.users().map(|user| Record::of_user(user, NotificationOutcome::Recalled)).collect();
            self.record(open, self.attempt(open), records, changes);
            return Ok(Next::Done);
        };
        let step = open.step();
        let expires_ms = step.and_then(|step| step.expires_ms).unwrap_or(self.time_to_live_ms);
        let expires_at = job.begins_at(found.entry.at).saturating_add(expires_ms);
        let (mut people, mut records) = (Vec::new(), Vec::new());
        let mut deferred = DeferredPeople::of(self.channel.channel());
        let JobPlace { position, part } = JobPlace::of_key(&open.key);
        for no in job.users() {
            let Some(user) = context.directory.user(no)? else { continue };
            let channel = self.channel.channel().policy_channel();
            let unwanted = if expires_at <= *now_ms {
                Some(NotificationOutcome::Expired)
            } else {
                let unwanted = found.why_not(&context, &user, channel, job.even_online)?;
                let until = unwanted.and_then(|unwanted| unwanted.deferred_to).filter(|_| part.deferred().is_some());
                if let Some(until) = until {
                    records.push(Record::of_user(no, NotificationOutcome::Deferred).until(until));
                    deferred.add_user(no, until);
                    continue;
                }
                unwanted.map(|unwanted| unwanted.outcome)
            };
            match unwanted {
                Some(outcome) => records.push(Record::of_user(no, outcome)),
                None => people.push(user),
            }
        }
        if let Some(part) = part.deferred() {
            deferred.add_rows(job, JobPlace { position, part }, changes);
        }
        let telling = Telling { found: &found, step, expires_at, now_ms: *now_ms };
        let notified = match self.channel.tell(&telling, &people) {
            Ok(notified) => notified,
            Err(refusal) => {
                let cause = short_cause(&refusal.to_string());
                let users = people.iter().map(|user| user.no);
                let retried = |user| Record::of_user(user, NotificationOutcome::Retried).because(cause.clone());
                records.extend(users.clone().map(retried));
                self.record(open, self.attempt(open), records, changes);
                let attempts = job.attempts.saturating_add(1);
                let again = Job { attempts, cause: Some(cause), ..job.clone() }.with_users(users);
                return Ok(Next::Retry(again, pause(attempts).min(PAUSE_MAX)));
            }
        };
        records.extend(notified.iter().map(|notified| Record::of_user(notified.user, notified.outcome)));
        self.record(open, self.attempt(open), records, changes);
        let mut reached: Vec<Notified> =
            notified.into_iter().filter(|notified| notified.outcome == NotificationOutcome::Accepted).collect();
        reached.sort_by_key(|notified| notified.user);
        let mut pushes: Vec<u64> = reached.iter().filter_map(|notified| notified.push).collect();
        pushes.dedup();
        if !job.stops_others || pushes.is_empty() {
            return Ok(Next::Done);
        }
        let job =
            Job { attempts: 0, cause: None, ..job.clone() }.with_users(reached.iter().map(|notified| notified.user));
        Ok(Next::Check(Job { pushes, ..job }, PAUSE_MIN))
    }

    /// Asks who has it by now, so that channels that wait are cancelled.
    fn check(&mut self, open: &OpenJob<'_>, changes: &mut Vec<RowChange>) -> StoreResult<Next> {
        let context = self.context.clone();
        let OpenJob { job, now_ms, .. } = open;
        let attempts = job.attempts.saturating_add(1);
        let (conversation, seq) = (ConversationNo(job.conversation), job.seq);
        let Some(found) = OfflineRecipients::of(&context, conversation, seq)? else { return Ok(Next::Done) };
        let acknowledged = self.channel.acknowledged(&job.pushes).unwrap_or_else(|refusal| {
            tracing::debug!(channel = self.channel.channel().name(), %refusal, "whether people have a push is asked later");
            HashSet::new()
        });
        let (mut left, mut records) = (Vec::new(), Vec::new());
        for no in job.users() {
            let Some(user) = context.directory.user(no)? else { continue };
            if acknowledged.contains(&user.id) {
                let StoredEntry { at, position, .. } = found.entry;
                changes.push(notified_marks::mark(at, position, no, self.channel.channel().policy_channel()));
                records.push(Record::of_user(no, NotificationOutcome::Acknowledged));
            } else {
                left.push(no);
            }
        }
        let source = Source::Acknowledged {
            channel: self.channel.channel(),
            part: open.part().number(),
            check: job.attempts.into(),
        };
        self.record(open, source, records, changes);
        let Some(due) = open.next_channel_due(job.begins_at(found.entry.at)).filter(|_| !left.is_empty()) else {
            return Ok(Next::Done);
        };
        // Once more just before the next channel is due.
        let before = Duration::from_millis(due - now_ms).saturating_sub(PAUSE_MIN).max(PAUSE_MIN);
        let again = Job { attempts, ..job.clone() }.with_users(left.into_iter());
        Ok(Next::Check(again, pause(attempts).min(before)))
    }

    fn attempt(&self, open: &OpenJob<'_>) -> Source {
        Source::Internal {
            channel: self.channel.channel(),
            part: open.part().number(),
            attempt: open.job.attempts.into(),
        }
    }

    fn record(&self, open: &OpenJob<'_>, source: Source, records: Vec<Record>, changes: &mut Vec<RowChange>) {
        let OpenJob { job, policy, now_ms, .. } = open;
        let rule: Option<Arc<str>> = (policy.version > 0 && !job.rule.is_empty()).then(|| job.rule.as_str().into());
        let records = records.into_iter().map(|record| record.by_rule(rule.clone()));
        self.context.trace.add((ConversationNo(job.conversation), job.seq), source, *now_ms, records, changes);
    }
}

impl<'a> OpenJob<'a> {
    /// What the policy that decided says about the channel; `None`: that one is not kept any more, and the present one has no such channel.
    fn step(&self) -> Option<&'a ChannelStep> {
        self.policy.step(&self.job.rule, self.job.step)
    }

    /// When the next of the channels after this one is due, of a message that was sent then; the last may be as late as all of them
    /// wait for each other. `None`: they all were.
    fn next_channel_due(&self, sent_at: u64) -> Option<u64> {
        let rule = self.policy.rules.iter().find(|rule| *rule.id == *self.job.rule);
        let after = rule.and_then(|rule| rule.channels.get(self.job.step as usize + 1..)).unwrap_or_default();
        let dues = after.iter().map(|step| sent_at.saturating_add(step.after_ms));
        let last = dues.clone().max().map(|due| due.saturating_add(OUTCOME_WAIT_MS * after.len() as u64));
        dues.chain(last).filter(|due| *due > self.now_ms).min()
    }

    fn part(&self) -> JobPart {
        JobPlace::of_key(&self.key).part
    }
}

/// The pause after so many attempts: it doubles with each.
fn pause(attempts: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << attempts.saturating_sub(1).min(30))
}

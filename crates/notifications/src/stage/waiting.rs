//! Channels that wait for their time: rows in the order in which they are due. When a row is due, each of its people is looked at
//! again: who has read the message, is back, or was reached by another channel meanwhile is not notified by this one.
//!
//! Rows that quiet hours have deferred come by conversation, the newest message first: who is notified of one by a channel is not notified of
//! those before it. A crash within a conversation of more rows than one round has may notify of an older one, too.

use super::{
    decision::{Decision, DecisionScope, Parts, Step, Taken, Told},
    worker::Worker,
};
use crate::{
    channel_jobs::{Job, JobPlace, JobRow},
    gate::Unwanted,
    log::{ANOTHER_POLICY, Record, Source},
    notified_marks::{marks_of, remove_old_marks},
    offline_recipients::{Candidate, OfflineRecipients},
    person_facts::facts_of,
};
use std::collections::HashSet;
use tidings_domain::{
    chat_rows::{DeferredPlace, deferred_until, number_in, waiting_until},
    leadership::Term,
    model::*,
    store::*,
};
use tidings_protocol::http::{NotificationOutcome, PolicyChannel};

/// Rows in one round.
const ROWS_PER_ROUND: usize = 100;
/// Rows in one round, of those that quiet hours have deferred.
const DEFERRED_PER_ROUND: usize = 500;

/// A row that is due.
struct DueRow {
    job: Job,
    place: JobPlace,
    due: u64,
    /// Quiet hours have deferred it until now.
    is_deferred: bool,
}

impl DueRow {
    /// Whom it is of, each once.
    fn users(&self) -> Vec<UserNo> {
        let mut users: Vec<UserNo> = self.job.people().collect();
        users.dedup();
        users
    }

    /// From when the times of its channel count: from the end of quiet hours, or as before.
    fn counts_from(&self) -> u64 {
        if self.is_deferred { self.due } else { self.job.counts_from }
    }
}

impl Worker {
    /// The time by which channels are due: that of the clock, but it never goes back while this thread runs. A clock that is set back
    /// holds nothing up.
    pub(super) fn due_time(&mut self) -> u64 {
        let (wall, monotonic) = (self.context.clock.now_ms(), self.context.clock.monotonic());
        let passed = self.last_time.map_or(0, |(time, at)| {
            time + u64::try_from(monotonic.saturating_duration_since(at).as_millis()).unwrap_or(0)
        });
        let time = wall.max(passed);
        self.last_time = Some((time, monotonic));
        time
    }

    /// Takes the channels whose time has come; answers whether there were any.
    pub(super) fn take_due(&mut self, term: Term) -> StoreResult<bool> {
        let now_ms = self.due_time();
        let context = self.context.clone();
        let (from, to) = waiting_until(now_ms);
        let mut rows = context.store.rows(RowSpace::Chat, &from, &to, ROWS_PER_ROUND)?;
        let (from, to) = deferred_until(now_ms);
        rows.extend(context.store.rows(RowSpace::Chat, &from, &to, DEFERRED_PER_ROUND)?);
        if rows.is_empty() {
            self.told = Told::default();
            return remove_old_marks(&context, term, now_ms, &mut self.marks_removed_at);
        }
        let (mut changes, mut written) = (Vec::new(), HashSet::new());
        for (key, row) in rows {
            let place = JobPlace::of_key(&key);
            let deferred = DeferredPlace::of_key(&key);
            let due = deferred.map_or_else(|| waiting_due(&key), |deferred| deferred.until);
            if let Some(DeferredPlace { until, conversation, .. }) = deferred
                && self.told.of != Some((until, conversation))
            {
                self.told = Told { of: Some((until, conversation)), ..Told::default() };
            }
            if place.part.is_push() {
                self.take_waiting_push(&row, &mut changes)?;
                changes.push(RowChange { key, value: None });
                continue;
            }
            match Job::decode(&row) {
                Ok(job) => {
                    let row = DueRow { job, place, due, is_deferred: deferred.is_some() };
                    for row in self.take_row(&row, now_ms, &mut changes)? {
                        changes.push(self.in_free_place(row, &mut written)?.change());
                    }
                }
                Err(error) => tracing::error!(%error, "a channel is not taken at its time"),
            }
            changes.push(RowChange { key, value: None });
        }
        self.write(term, changes)?;
        Ok(true)
    }

    /// The row with a part that no row has yet: rows of one message that were deferred for different reasons may come to the same.
    fn in_free_place(&self, row: JobRow, written: &mut HashSet<Vec<u8>>) -> StoreResult<JobRow> {
        let mut row = row;
        if row.part.deferred() != Some(row.part) {
            return Ok(row);
        }
        loop {
            let key = row.due.key(row.position, row.part);
            if !written.contains(&key) && self.context.store.row(RowSpace::Chat, &key)?.is_none() {
                written.insert(key);
                return Ok(row);
            }
            row.part = row.part.next();
        }
    }

    /// Takes the channel of a row; returns what it becomes.
    fn take_row(&mut self, row: &DueRow, now_ms: u64, changes: &mut Vec<RowChange>) -> StoreResult<Vec<JobRow>> {
        let context = self.context.clone();
        let DueRow { job, place, .. } = row;
        let policy = context.policies.deciding(job.policy)?;
        let users = row.users();
        let message = (ConversationNo(job.conversation), job.seq);
        let at = job.step as usize;
        let rule = policy.rules.iter().enumerate().find(|(_, rule)| *rule.id == *job.rule);
        let step = rule.map(|(rule_at, rule)| Step { rule, rule_at, at }).filter(|step| at < step.rule.channels.len());
        let all = |outcome| users.iter().map(move |user| Record::of_user(*user, outcome));
        let mut rows = Vec::new();
        let records: Vec<Record> = match (OfflineRecipients::of(&context, message.0, message.1)?, step) {
            (None, _) => all(NotificationOutcome::Recalled).collect(),
            (_, None) => all(NotificationOutcome::Cancelled).map(|record| record.because(ANOTHER_POLICY)).collect(),
            (Some(found), Some(step)) => {
                let channels = self.channels.clone();
                let scope = DecisionScope {
                    context: &context,
                    channels: &channels,
                    policy: &policy,
                    now_ms,
                    is_current: false,
                };
                let mut decision = Decision::new(scope, &found)
                    .in_parts(Parts::LaterRow(place.part))
                    .even_online(job.even_online)
                    .counted_from(row.counts_from());
                if !job.targets.is_empty() {
                    decision = decision.only(&job.targets);
                }
                let (taken, records) = self.take_step(scope, step, (row, &users), decision)?;
                rows = taken;
                records
            }
        };
        let deferred = if row.is_deferred { (row.due / 1_000).wrapping_add(job.delay_ms) as u32 } else { 0 };
        let source = Source::Later { part: place.part.number(), deferred };
        context.trace.add(message, source, now_ms, records, changes);
        Ok(rows)
    }

    /// Takes the channel to those who still need it; returns its rows, and what is to be recorded.
    fn take_step<'a>(
        &mut self,
        scope: DecisionScope<'a>,
        step: Step<'a>,
        (row, users): (&DueRow, &[UserNo]),
        mut decision: Decision<'a>,
    ) -> StoreResult<(Vec<JobRow>, Vec<Record>)> {
        let DecisionScope { context, policy, now_ms, .. } = scope;
        let DueRow { job, due, is_deferred, .. } = row;
        let found = decision.found;
        let marks = marks_of(context, &found.entry, users)?;
        let devices = context.directory.push_devices(users, false)?;
        let planned = &step.rule.channels[step.at];
        let expires_ms = planned.expires_ms.unwrap_or(self.channels.time_to_live_ms);
        let began_at = row.counts_from().max(found.entry.at);
        let is_expired = began_at.saturating_add(expires_ms) <= now_ms;
        let mut records = Vec::new();
        for ((no, mark), devices) in users.iter().copied().zip(marks).zip(devices) {
            let Some(user) = context.directory.user(no)? else { continue };
            let is_back = !job.even_online && step.rule.waits_for_sessions() && context.presence.is_active(no);
            let is_told = *is_deferred && self.told.people.contains(&(no, planned.channel));
            let left = match (mark, found.mute_of(context, &user)?) {
                (Some(reached_by), _) => Some((NotificationOutcome::Cancelled, Some(reached_by.name()))),
                (None, Err(Unwanted { outcome, .. })) => Some((outcome, None)),
                (None, Ok(_)) if is_back => Some((NotificationOutcome::Cancelled, Some("session"))),
                (None, Ok(_)) if is_told => Some((NotificationOutcome::Superseded, None)),
                (None, Ok(_)) if is_expired => Some((NotificationOutcome::Expired, None)),
                (None, Ok(mute)) => {
                    let taken = if *is_deferred && job.delay_ms > 0 {
                        decision.wait(step, job.even_online, no, due.saturating_add(job.delay_ms))
                    } else {
                        let facts = facts_of(context, policy, &user)?;
                        let person = Candidate { user: user.clone(), mute, is_active: job.even_online, devices: None };
                        let delay_ms = due.saturating_sub(began_at);
                        decision.take(step, &person, &facts, &devices, delay_ms)
                    };
                    if *is_deferred && matches!(taken, Taken::Now | Taken::Later) {
                        self.told.people.insert((no, planned.channel));
                    }
                    // Why it is not taken is recorded, but for the lack of a device.
                    let has_device = planned.channel != PolicyChannel::Providers || !devices.is_empty();
                    (taken == Taken::Not && !has_device).then_some((NotificationOutcome::NoDevice, None))
                }
            };
            records.extend(left.map(|(outcome, cause)| decision.record(step, no, outcome, cause)));
        }
        let (rows, recorded) = decision.finish_rows();
        records.extend(recorded);
        Ok((rows, records))
    }
}

/// The time in the key of a row that waits.
fn waiting_due(key: &[u8]) -> u64 {
    number_in(key, 0).unwrap_or_default()
}

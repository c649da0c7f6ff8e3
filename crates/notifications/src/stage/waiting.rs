//! Channels that wait for their time: rows in the order in which they are due. When a row is due, each of its people is looked at
//! again: who has read the message, is back, or was reached by another channel meanwhile is not notified by this one.

use super::{
    decision::{Decision, DecisionScope, Parts, Step},
    worker::Worker,
};
use crate::{
    channel_jobs::{Job, JobPart, JobPlace},
    gate::Unwanted,
    log::{ANOTHER_POLICY, Record, Source},
    notified_marks::{marks_of, remove_old_marks},
    offline_recipients::{Candidate, OfflineRecipients},
    person_facts::facts_of,
};
use tidings_domain::{chat_rows::waiting_until, leadership::Term, model::*, store::*};
use tidings_protocol::http::{NotificationOutcome, PolicyChannel};

/// Rows in one round.
const ROWS_PER_ROUND: usize = 100;

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
        let rows = context.store.rows(RowSpace::Chat, &from, &to, ROWS_PER_ROUND)?;
        if rows.is_empty() {
            return remove_old_marks(&context, term, now_ms, &mut self.marks_removed_at);
        }
        let mut changes = Vec::new();
        for (key, row) in rows {
            match Job::decode(&row) {
                Ok(job) => self.take_row(&job, JobPlace::of_key(&key).part, now_ms, &mut changes)?,
                Err(error) => tracing::error!(%error, "a channel is not taken at its time"),
            }
            changes.push(RowChange { key, value: None });
        }
        self.write(term, changes)?;
        Ok(true)
    }

    fn take_row(&self, job: &Job, part: JobPart, now_ms: u64, changes: &mut Vec<RowChange>) -> StoreResult<()> {
        let context = &*self.context;
        let policy = context.policies.deciding(job.policy)?;
        let users: Vec<UserNo> = job.users().collect();
        let message = (ConversationNo(job.conversation), job.seq);
        let at = job.step as usize;
        let rule = policy.rules.iter().enumerate().find(|(_, rule)| *rule.id == *job.rule);
        let step = rule.map(|(rule_at, rule)| Step { rule, rule_at, at }).filter(|step| at < step.rule.channels.len());
        let all = |outcome| users.iter().map(move |user| Record::of_user(*user, outcome));
        let records: Vec<Record> = match (OfflineRecipients::of(context, message.0, message.1)?, step) {
            (None, _) => all(NotificationOutcome::Recalled).collect(),
            (_, None) => all(NotificationOutcome::Cancelled).map(|record| record.because(ANOTHER_POLICY)).collect(),
            (Some(found), Some(step)) => {
                let scope =
                    DecisionScope { context, channels: &self.channels, policy: &policy, now_ms, is_current: false };
                let decision =
                    Decision::new(scope, &found).in_parts(Parts::LaterRow(part)).even_online(job.even_online);
                self.take_step(scope, step, (job, &users), decision, changes)?
            }
        };
        context.trace.add(message, Source::Later { part: part.number() }, now_ms, records, changes);
        Ok(())
    }

    /// Takes the channel to those who still need it; answers what is to be recorded.
    fn take_step<'a>(
        &self,
        scope: DecisionScope<'a>,
        step: Step<'a>,
        (job, users): (&Job, &[UserNo]),
        mut decision: Decision<'a>,
        changes: &mut Vec<RowChange>,
    ) -> StoreResult<Vec<Record>> {
        let DecisionScope { context, policy, now_ms, .. } = scope;
        let found = decision.found;
        let marks = marks_of(context, &found.entry, users)?;
        let devices = context.directory.push_devices(users, false)?;
        let planned = &step.rule.channels[step.at];
        let expires_ms = planned.expires_ms.unwrap_or(self.channels.time_to_live_ms);
        let is_expired = found.entry.at.saturating_add(expires_ms) <= now_ms;
        let mut records = Vec::new();
        for ((no, mark), devices) in users.iter().copied().zip(marks).zip(devices) {
            let Some(user) = context.directory.user(no)? else { continue };
            let is_back = !job.even_online && step.rule.waits_for_sessions() && context.presence.is_active(no);
            let left = match (mark, found.mute_of(context, &user)?) {
                (Some(reached_by), _) => Some((NotificationOutcome::Cancelled, Some(reached_by.name()))),
                (None, Err(Unwanted { outcome, .. })) => Some((outcome, None)),
                (None, Ok(_)) if is_back => Some((NotificationOutcome::Cancelled, Some("session"))),
                (None, Ok(_)) if is_expired => Some((NotificationOutcome::Expired, None)),
                (None, Ok(mute)) => {
                    let facts = facts_of(context, policy, &user)?;
                    let person = Candidate { user: user.clone(), mute, is_active: job.even_online, devices: None };
                    let is_taken = decision.take(step, &person, &facts, &devices);
                    // Why it is not taken is recorded, but for the lack of a device.
                    let has_device = planned.channel != PolicyChannel::Providers || !devices.is_empty();
                    (!is_taken && !has_device).then_some((NotificationOutcome::NoDevice, None))
                }
            };
            records.extend(left.map(|(outcome, cause)| decision.record(step, no, outcome, cause)));
        }
        records.extend(decision.finish(changes));
        Ok(records)
    }
}

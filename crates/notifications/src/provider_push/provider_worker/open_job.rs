//! What is known of a row while it is worked on: what is left of it, and what is to be recorded.

use super::super::dead_letters::{LetterMessage, LetterSubject, ProviderDeadLetter};
use crate::{
    channel_jobs::{DeferredPeople, Job, JobPlace, Target, short_cause},
    log::{NotificationLog, Record, Source},
};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{model::*, store::RowChange};
use tidings_protocol::http::{NotificationOutcome, PushProvider};

/// What is known of a row while it is worked on.
pub(super) struct OpenJob {
    pub(super) key: Vec<u8>,
    pub(super) job: Job,
    /// Where the message is, and the row's part.
    pub(super) place: JobPlace,
    /// Newer messages of the row that were recalled, with their records.
    pub(super) recalled: Vec<(u64, Vec<Record>)>,
    /// The provider was asked for some of its devices.
    pub(super) was_tried: bool,
    /// Devices that are to be tried again, by the service that is to take them.
    pub(super) left: BTreeMap<u64, RetryTargets>,
    /// Devices that are not notified of the message, but may be of the older ones of the row; by their service.
    pub(super) left_of_older: BTreeMap<u64, Vec<Target>>,
    /// Devices that were notified of the conversation a moment ago, and when they may be notified again.
    pub(super) waiting: Vec<Target>,
    pub(super) waits_until: Option<Instant>,
    /// What became of devices in this round.
    pub(super) records: Vec<Record>,
    /// When the message was sent.
    pub(super) sent_at: u64,
    /// Users whom the provider reaches by this round, if that stops other channels.
    pub(super) reached: Vec<UserNo>,
    /// Changes of what devices show.
    pub(super) shown: Vec<RowChange>,
    pub(super) dead: Vec<ProviderDeadLetter>,
    /// Devices whose users' quiet hours have begun.
    pub(super) deferred: DeferredPeople,
}

impl OpenJob {
    pub(super) fn new(provider: PushProvider, key: Vec<u8>, job: Job) -> OpenJob {
        OpenJob {
            place: JobPlace::of_key(&key),
            key,
            job,
            recalled: Vec::new(),
            was_tried: false,
            left: BTreeMap::new(),
            left_of_older: BTreeMap::new(),
            waiting: Vec::new(),
            waits_until: None,
            records: Vec::new(),
            sent_at: 0,
            reached: Vec::new(),
            shown: Vec::new(),
            dead: Vec::new(),
            deferred: DeferredPeople::of(provider.into()),
        }
    }

    /// The device is notified when the quiet hours of its user end.
    pub(super) fn defer(&mut self, target: Target, until: u64) {
        self.records.push(target.record(NotificationOutcome::Deferred, None).until(until));
        self.deferred.add_target(target, until);
    }

    /// Goes on to the older messages of the row, since there is no newest one any more; answers whether there are any.
    pub(super) fn pass_newest(&mut self) -> bool {
        let Some(job) = self.job.clone().without_newest() else { return false };
        let records = job.targets.iter().map(|target| target.record(NotificationOutcome::Recalled, None)).collect();
        self.recalled.push((self.job.seq, records));
        self.job = job;
        true
    }

    /// Whether all of its devices wait.
    pub(super) fn is_untouched(&self) -> bool {
        let has_left = !self.left.is_empty() || !self.left_of_older.is_empty();
        !has_left && self.records.is_empty() && self.recalled.is_empty() && self.shown.is_empty()
    }

    /// Gives a device up.
    pub(super) fn bury(
        &mut self,
        provider: PushProvider,
        target: &Target,
        outcome: NotificationOutcome,
        cause: Option<&str>,
        now_ms: u64,
    ) {
        let Job { conversation, seq, attempts, step, policy, .. } = self.job;
        let cause = cause.map(short_cause);
        // Of an expired one the attempts before count, of a refused one this one, too.
        let attempts = attempts + u32::from(outcome != NotificationOutcome::Expired);
        // A refusal is of one message, while the older ones expire with the newest.
        let older = self.job.older().filter(|_| outcome == NotificationOutcome::Expired);
        let subject = |seq| {
            let rule = self.job.rule.clone();
            LetterSubject::Message(LetterMessage { conversation, seq, policy, rule, step })
        };
        self.dead.extend(std::iter::once(seq).chain(older).map(|seq| ProviderDeadLetter {
            provider,
            subject: subject(seq),
            target: target.clone(),
            failed_at: now_ms,
            attempts,
            outcome,
            cause: cause.clone(),
        }));
    }

    /// Adds the records of this round. `version`: of the present policy, for a row that does not say which one decided.
    pub(super) fn add_records(
        &self,
        provider: PushProvider,
        trace: &NotificationLog,
        version: u32,
        now_ms: u64,
        changes: &mut Vec<RowChange>,
    ) {
        let conversation = ConversationNo(self.job.conversation);
        let source = Source::Provider { provider, part: self.place.part.number(), attempt: self.job.attempts.into() };
        let rule = stored_rule(self.job.policy.unwrap_or(version), &self.job.rule);
        let mut add = |seq: u64, older: &[u64], records: Vec<Record>| {
            let records = records.into_iter().map(|record| record.by_rule(rule.clone()));
            trace.rows(source, now_ms, records).add_to((conversation, seq), older, changes);
        };
        for (seq, records) in &self.recalled {
            add(*seq, &[], records.clone());
        }
        add(self.job.seq, &[], self.records.clone());
        if let (Some(newest), [_, older @ ..]) = (self.job.older().next(), &self.job.older[..]) {
            add(newest, older, self.records.iter().filter_map(of_older).collect());
        }
    }
}

/// What is to be recorded of an older message of a row, of what was of the newest; `None`: it is to be tried still.
fn of_older(record: &Record) -> Option<Record> {
    match record.outcome {
        NotificationOutcome::Retried | NotificationOutcome::Refused | NotificationOutcome::TokenGone => None,
        NotificationOutcome::Accepted => Some(Record::new(record.whom.clone(), NotificationOutcome::Superseded)),
        _ => Some(record.clone()),
    }
}

/// Devices that one service did not take.
#[derive(Default)]
pub(super) struct RetryTargets {
    pub(super) targets: Vec<Target>,
    /// The longest time for which the service asked.
    pub(super) retry_after: Option<Duration>,
    pub(super) cause: Option<String>,
}

impl RetryTargets {
    pub(super) fn add(&mut self, target: Target, retry_after: Option<Duration>, reason: &str) {
        self.retry_after = self.retry_after.max(retry_after);
        self.cause = Some(short_cause(reason));
        self.targets.push(target);
    }
}

/// The rule's name in records; none, while no policy is stored.
fn stored_rule(version: u32, rule: &str) -> Option<Arc<str>> {
    (version > 0 && !rule.is_empty()).then(|| rule.into())
}

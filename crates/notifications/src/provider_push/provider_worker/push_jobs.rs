//! Jobs of pushes: devices that have not acknowledged a push in time are notified. The push worker is asked about each device before each
//! attempt, and stores the provider's answer before the row goes: a crash between the two repeats a notification that was not noted, with
//! the same id.

use super::{Failure, ProviderWorker, RETRY_AFTER_MAX, open_job::RetryTargets, settled_label};
use crate::{
    channel_jobs::{Due, JobPlace, PushJob, RoundEnd, Target, short_cause},
    channel_worker::{Attempt, Round, WRITE_RETRY_PAUSE},
    gate,
    provider_push::{
        dead_letters::{LetterSubject, ProviderDeadLetter, why_settled},
        rendering::of_push,
    },
};
use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};
use tidings_domain::{model::*, notification_counts::ChannelEvent, providers::*, push_tokens::TokenDigest, store::*};
use tidings_protocol::http::{Channel, NotificationOutcome};
use tidings_push::{FallbackDevice, PushNotification};

/// The pause after the push worker could not be asked.
const ASK_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A row while it is worked on.
struct OpenPushJob {
    key: Vec<u8>,
    place: JobPlace,
    job: PushJob,
    /// Devices that are to be tried again, by the service that is to take them.
    left: BTreeMap<u64, RetryTargets>,
    /// Devices whose users' quiet hours have begun, by their end.
    deferred: BTreeMap<u64, Vec<Target>>,
    dead: Vec<ProviderDeadLetter>,
}

/// A shipment's place: its row, its device and its token.
struct AddressedPush {
    job: usize,
    target: Target,
    service: u64,
    digest: TokenDigest,
    registered_at: u64,
}

/// The notifications of some rows.
#[derive(Default)]
struct PreparedPushes {
    addressed: Vec<AddressedPush>,
    shipments: Vec<Shipment>,
    /// Devices that are notified in this round.
    taken: HashSet<(u64, Target)>,
}

impl ProviderWorker {
    pub(super) fn deliver_push_jobs(
        &mut self,
        round: &mut Round<'_>,
        jobs: Vec<(Vec<u8>, PushJob)>,
    ) -> Attempt<RoundEnd> {
        let (mut open, mut prepared) = (Vec::new(), PreparedPushes::default());
        for (key, job) in jobs {
            let mut row = OpenPushJob::new(key, job);
            match self.context.push.push_notification(row.job.push, row.devices()) {
                Ok(found) => {
                    self.prepare_push_job(open.len(), &mut row, found, &mut prepared)?;
                    open.push(row);
                }
                // Messages are not held up meanwhile.
                Err(refusal) => {
                    tracing::debug!(provider = self.name(), %refusal, "devices fall back later");
                    round.queue.put(row.key, round.now + ASK_RETRY_PAUSE);
                }
            }
        }
        let PreparedPushes { addressed, shipments, .. } = prepared;
        let (channel, now_ms) = (Channel::from(self.provider.provider()), self.context.clock.now_ms());
        let count = addressed.len() as u64;
        self.context.metrics.notifications.add(channel, ChannelEvent::Attempted, now_ms, count, None);
        let answers = if shipments.is_empty() { Vec::new() } else { self.provider.send_all(shipments) };
        // What was accepted is sent once more after the restart rather than perhaps never.
        round.stop.check()?;
        self.note_health(&answers);
        let mut sent = Vec::new();
        for (to, answer) in addressed.into_iter().zip(answers) {
            sent.extend(self.settle_push(&mut open[to.job], to, answer));
        }
        if !self.note_sent(round, &sent)? {
            return Ok(RoundEnd::Idle);
        }
        self.store_push_results(open, round)
    }

    /// Adds the notifications of a row, for those of its devices that are to be notified still.
    fn prepare_push_job(
        &self,
        at: usize,
        row: &mut OpenPushJob,
        found: Option<PushNotification>,
        prepared: &mut PreparedPushes,
    ) -> StoreResult<()> {
        let context = &*self.context;
        let (push, targets) = (row.job.push, std::mem::take(&mut row.job.targets));
        let Some(found) = found else {
            targets.iter().for_each(|_| self.count(settled_label(NotificationOutcome::Cancelled)));
            return Ok(());
        };
        let (now_ms, expires_at) = (context.clock.now_ms(), row.expires_at(&found));
        for (target, state) in targets.into_iter().zip(&found.states) {
            if let Some(outcome) =
                why_settled(*state).or((expires_at <= now_ms).then_some(NotificationOutcome::Expired))
            {
                self.settle_without_attempt(row, target, outcome, now_ms);
                continue;
            }
            let no = UserNo(target.0);
            let Some(user) = context.directory.user(no)? else {
                self.settle_without_attempt(row, target, NotificationOutcome::NoDevice, now_ms);
                continue;
            };
            let defers = context.quiet_hours.defers_pushes();
            if let Some(unwanted) = gate::why_not_by_fallback(&user, found.push_expires_at, defers, now_ms) {
                match unwanted.deferred_to {
                    Some(until) => row.deferred.entry(until).or_default().push(target),
                    None => self.settle_without_attempt(row, target, unwanted.outcome, now_ms),
                }
                continue;
            }
            let Some((digest, token)) = self.token_of(no, &target.1)? else {
                self.settle_without_attempt(row, target, NotificationOutcome::NoDevice, now_ms);
                continue;
            };
            // A page that was handed out twice.
            if !prepared.taken.insert((push, target.clone())) {
                self.settle_without_attempt(row, target, NotificationOutcome::Superseded, now_ms);
                continue;
            }
            let service = self.provider.service_of(&token.token);
            let epoch = context.store.epoch();
            let notification = of_push(push, &found, expires_at, user.language(), epoch, digest);
            prepared.shipments.push(Shipment { notification, token: token.token });
            let registered_at = token.registered_at;
            prepared.addressed.push(AddressedPush { job: at, target, service, digest, registered_at });
        }
        Ok(())
    }

    fn settle_without_attempt(&self, row: &mut OpenPushJob, target: Target, outcome: NotificationOutcome, now_ms: u64) {
        self.count(settled_label(outcome));
        self.count_notifications(outcome, None);
        // That nobody was asked is no failure of the provider's.
        if outcome == NotificationOutcome::Expired && row.job.attempts > 0 {
            let cause = row.job.cause.clone();
            row.bury(self, target, outcome, cause, now_ms);
        }
    }

    /// Notes what the provider answered for one device; returns the device if it took the notification.
    fn settle_push(
        &self,
        row: &mut OpenPushJob,
        to: AddressedPush,
        answer: ProviderAnswer,
    ) -> Option<(u64, FallbackDevice)> {
        let AddressedPush { target, service, digest, registered_at, .. } = to;
        if matches!(answer, ProviderAnswer::Accepted { .. }) {
            self.count("accepted");
            self.count_notifications(NotificationOutcome::Accepted, None);
            return Some((row.job.push, FallbackDevice { user: UserNo(target.0), device_id: target.1 }));
        }
        match self.failure_of(answer, &target, digest, registered_at) {
            Failure::ForGood { label, outcome, cause } => {
                self.count(label);
                self.count_notifications(outcome, None);
                if outcome == NotificationOutcome::Refused {
                    row.bury(self, target, outcome, cause, self.context.clock.now_ms());
                }
            }
            Failure::ForNow { retry_after, reason } => {
                self.count("retried");
                self.count_notifications(NotificationOutcome::Retried, None);
                row.left.entry(service).or_default().add(target, retry_after, &reason);
            }
        }
        None
    }

    /// Has the push worker store for which devices the provider took the notification; answers whether this node still leads.
    fn note_sent(&self, round: &Round<'_>, sent: &[(u64, FallbackDevice)]) -> Attempt<bool> {
        if sent.is_empty() {
            return Ok(true);
        }
        while let Err(refusal) = self.context.push.fallback_sent(self.provider.provider(), sent.to_vec()) {
            tracing::debug!(provider = self.name(), %refusal, "notifications of pushes are noted later");
            if !self.context.lead.holds(round.term) {
                return Ok(false);
            }
            round.stop.pause(WRITE_RETRY_PAUSE)?;
        }
        Ok(true)
    }

    /// Deletes the rows that are done, and stores the others with the devices that are left.
    fn store_push_results(&self, open: Vec<OpenPushJob>, round: &mut Round<'_>) -> Attempt<RoundEnd> {
        let due_now = Due::Now(self.provider.provider().into());
        let (mut changes, mut dead, mut again) = (Vec::new(), Vec::new(), Vec::<(Vec<u8>, Instant)>::new());
        for OpenPushJob { key, place: JobPlace { position, part }, job, left, deferred, dead: buried } in open {
            changes.push(RowChange { key, value: None });
            dead.extend(buried);
            let attempts = job.attempts.saturating_add(1);
            for (service, RetryTargets { targets, retry_after, cause }) in left {
                let pause = self.backoff(attempts).max(retry_after.unwrap_or_default().min(RETRY_AFTER_MAX));
                let key = due_now.key(position, part.at_service(service));
                let job = PushJob { targets, attempts, cause, ..job.clone() };
                changes.retain(|change| change.key != key);
                changes.push(RowChange { key: key.clone(), value: Some(job.encode()) });
                again.push((key, self.context.clock.monotonic() + pause));
            }
            for (until, targets) in deferred {
                let job = PushJob { counts_from: until, ..job.clone() };
                job.add_rows(Due::At(until), position, part, targets, &mut changes);
            }
        }
        // What the provider has answered is not asked again because the store cannot be read for a moment.
        while let Err(error) = self.dead_letters.add(&self.context, round.term, dead.clone(), &mut changes) {
            tracing::debug!(provider = self.name(), %error, "dead letters wait for the store");
            round.stop.pause(WRITE_RETRY_PAUSE)?;
        }
        if !round.store(&changes)? {
            return Ok(RoundEnd::Idle);
        }
        again.into_iter().for_each(|(key, due)| round.queue.put(key, due));
        Ok(RoundEnd::Worked)
    }
}

impl OpenPushJob {
    fn new(key: Vec<u8>, job: PushJob) -> OpenPushJob {
        let (left, deferred, dead) = Default::default();
        OpenPushJob { place: JobPlace::of_key(&key), key, job, left, deferred, dead }
    }

    fn devices(&self) -> Vec<FallbackDevice> {
        let device = |target: &Target| FallbackDevice { user: UserNo(target.0), device_id: target.1.clone() };
        self.job.targets.iter().map(device).collect()
    }

    /// Until when the notification may be shown: its time to live may count anew, the push's does not.
    fn expires_at(&self, found: &PushNotification) -> u64 {
        match found.fallback.ttl_s {
            Some(ttl_s) if self.job.counts_from > 0 => {
                self.job.counts_from.saturating_add(ttl_s * 1_000).min(found.push_expires_at)
            }
            _ => found.expires_at,
        }
    }

    /// Gives a device up.
    fn bury(
        &mut self,
        worker: &ProviderWorker,
        target: Target,
        outcome: NotificationOutcome,
        cause: Option<String>,
        now_ms: u64,
    ) {
        // Of an expired one the attempts before count, of a refused one this one, too.
        let attempts = self.job.attempts + u32::from(outcome != NotificationOutcome::Expired);
        self.dead.push(ProviderDeadLetter {
            provider: worker.provider.provider(),
            subject: LetterSubject::Push { push: self.job.push },
            target,
            failed_at: now_ms,
            attempts,
            outcome,
            cause: cause.as_deref().map(short_cause),
        });
    }
}

//! What a worker does for one provider: it sends the notifications of rows, and stores what became of them.

mod open_job;
mod push_jobs;
mod removals;

use super::{
    ProviderPushConfig,
    dead_letters::ProviderDeadLetters,
    health::Health,
    rendering::{Appearance, MessageText},
};
use crate::{
    badge::RoundBadges,
    channel_jobs::{Due, Job, JobPlace, PushJob, RoundEnd, Target},
    channel_worker::{self, Attempt, Driver, Round, StopSignal, WRITE_RETRY_PAUSE},
    notified_marks,
    offline_recipients::{OfflinePushContext, OfflineRecipients},
};
use open_job::{OpenJob, RetryTargets};
use quick_cache::unsync::Cache;
use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    chat_rows::{ShownNotification, shown_key},
    metrics::{ProviderLabel, ProviderOutcomeLabel},
    model::*,
    notification_counts::ChannelEvent,
    providers::*,
    push_tokens::*,
    store::*,
};
use tidings_protocol::http::{Channel, NotificationCollapse, NotificationOutcome, PolicyChannel};

/// Rows in a round. In a busy conversation one notification takes the place of hundreds.
const JOBS_PER_ROUND: usize = 1_000;
/// Notifications in a round, about. A crash repeats one round, and what comes meanwhile waits for its end.
const SHIPMENTS_PER_ROUND: usize = 1_000;
/// Notifications in a round, with those whose place a newer one takes.
const TARGETS_PER_ROUND: usize = 20_000;
/// A provider's own wish for a pause is followed up to this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);
/// Conversations of users whose newest notification is remembered, so that a late retry does not take its place.
const LATEST_MAX: usize = 50_000;

pub(super) struct ProviderWorker {
    context: Arc<OfflinePushContext>,
    provider: Arc<dyn Provider>,
    config: ProviderPushConfig,
    dead_letters: Arc<ProviderDeadLetters>,
    /// What a device was notified of last in a conversation, by [`hash_of`] the device.
    latest: Cache<(u64, u64), Notified>,
    health: Health,
    /// What became of notifications in this round.
    counted: RefCell<Vec<(&'static str, u64)>>,
}

/// The newest message that a device was notified of in a conversation, and when.
#[derive(Clone, Copy)]
struct Notified {
    seq: u64,
    at: Instant,
}

/// A shipment's place: its row, its device and its token.
struct Addressed {
    job: usize,
    target: Target,
    service: u64,
    digest: TokenDigest,
    registered_at: u64,
    /// When the message was sent, or somebody asked for another attempt.
    began_at: u64,
    /// Whether the newest notification of the conversation takes the place of the one before.
    collapses: bool,
}

/// A notification whose place a newer one takes, if the provider takes that one.
struct OlderNotification {
    job: usize,
    target: Target,
    /// The service that is to take the newer one.
    service: u64,
    /// The place of the newer one among the shipments.
    newer: usize,
}

/// The notification that a device is sent in a round.
#[derive(Clone, Copy)]
struct Newest {
    service: u64,
    /// Its place among the shipments.
    at: usize,
}

/// The notifications of a round, by conversation and device.
type NewestByDevice = HashMap<u64, HashMap<Target, Newest>>;

/// The notifications of a round.
#[derive(Default)]
struct Prepared {
    addressed: Vec<Addressed>,
    shipments: Vec<Shipment>,
    held: Vec<OlderNotification>,
}

/// A device in the keys of what is remembered of many.
fn hash_of(target: &Target) -> u64 {
    let mut hasher = DefaultHasher::new();
    target.hash(&mut hasher);
    hasher.finish()
}

/// Why a provider did not take a notification.
enum Failure {
    /// It is not tried again.
    ForGood { label: &'static str, outcome: NotificationOutcome, cause: Option<String> },
    /// It is tried again, not before the time for which the provider asked.
    ForNow { retry_after: Option<Duration>, reason: String },
}

/// How an outcome of a device that needs no shipment is counted.
fn settled_label(outcome: NotificationOutcome) -> &'static str {
    match outcome {
        NotificationOutcome::Superseded => "superseded",
        NotificationOutcome::Expired => "dead_expired",
        _ => "obsolete",
    }
}

impl ProviderWorker {
    pub(super) fn new(
        context: Arc<OfflinePushContext>,
        provider: Arc<dyn Provider>,
        config: ProviderPushConfig,
        dead_letters: Arc<ProviderDeadLetters>,
    ) -> Self {
        let (latest, health) = (Cache::new(LATEST_MAX), Health::default());
        ProviderWorker { context, provider, config, dead_letters, latest, health, counted: RefCell::default() }
    }

    fn name(&self) -> &'static str {
        self.provider.provider().name()
    }

    fn count(&self, outcome: &'static str) {
        self.count_some(outcome, 1);
    }

    fn count_some(&self, outcome: &'static str, count: u64) {
        self.counted.borrow_mut().push((outcome, count));
    }

    /// Shows what a round has counted once it is stored: who sees a count finds what it counts.
    fn show_counts(&self) {
        for (outcome, count) in self.counted.take() {
            let label = ProviderOutcomeLabel { provider: self.name(), outcome };
            self.context.metrics.provider_notifications.get_or_create(&label).inc_by(count);
        }
    }

    /// Counts what has become of a notification; with the time since its message, if the provider has taken it.
    fn count_notifications(&self, outcome: NotificationOutcome, took_ms: Option<u64>) {
        self.count_notifications_of(outcome, 1, took_ms);
    }

    fn count_notifications_of(&self, outcome: NotificationOutcome, count: u64, took_ms: Option<u64>) {
        let event = match outcome {
            NotificationOutcome::Accepted => ChannelEvent::Accepted,
            NotificationOutcome::Retried => ChannelEvent::Retried,
            NotificationOutcome::Refused => ChannelEvent::Refused,
            NotificationOutcome::TokenGone => ChannelEvent::TokenGone,
            NotificationOutcome::Expired => ChannelEvent::Expired,
            NotificationOutcome::Superseded => ChannelEvent::Superseded,
            _ => return,
        };
        let channel = Channel::from(self.provider.provider());
        self.context.metrics.notifications.add(channel, event, self.context.clock.now_ms(), count, took_ms);
    }

    fn set_waiting(&self, jobs: usize) {
        let label = ProviderLabel { provider: self.name() };
        self.context.metrics.provider_waiting.get_or_create(&label).set(jobs as i64);
    }
}

impl Driver for ProviderWorker {
    fn channel(&self) -> Channel {
        self.provider.provider().into()
    }

    fn services(&self) -> usize {
        self.provider.services()
    }

    fn rest(&mut self, _: &StopSignal) -> Attempt<RoundEnd> {
        self.set_waiting(0);
        Ok(RoundEnd::Idle)
    }

    fn prepare(&mut self, round: &mut Round<'_>) -> Attempt<(usize, RoundEnd)> {
        self.dead_letters.prune(&self.context, round.term)?;
        self.set_waiting(round.queue.len());
        Ok((JOBS_PER_ROUND, RoundEnd::Idle))
    }

    fn deliver(&mut self, round: &mut Round<'_>, jobs: Vec<(Vec<u8>, Job)>) -> Attempt<RoundEnd> {
        let end = self.deliver_jobs(round, jobs);
        self.show_counts();
        end
    }

    fn deliver_pushes(&mut self, round: &mut Round<'_>, jobs: Vec<(Vec<u8>, PushJob)>) -> Attempt<RoundEnd> {
        let end = self.deliver_push_jobs(round, jobs);
        self.show_counts();
        end
    }
}

impl ProviderWorker {
    fn deliver_jobs(&mut self, round: &mut Round<'_>, jobs: Vec<(Vec<u8>, Job)>) -> Attempt<RoundEnd> {
        let mut is_full = false;
        let (mut open, mut targets, mut places) = (Vec::new(), 0, HashSet::new());
        for (key, job) in jobs {
            if targets >= TARGETS_PER_ROUND || places.len() >= SHIPMENTS_PER_ROUND {
                is_full = true;
                round.queue.put(key, round.now);
                continue;
            }
            targets += job.targets.len();
            places.extend(job.targets.iter().map(|target| (job.conversation, hash_of(target))));
            open.push(OpenJob::new(self.provider.provider(), key, job));
        }
        let Prepared { addressed, shipments, held } = self.prepare_shipments(&mut open, round)?;
        let channel = Channel::from(self.provider.provider());
        let count = addressed.iter().filter(|to| !open[to.job].job.removes).count() as u64;
        self.context.metrics.notifications.add(
            channel,
            ChannelEvent::Attempted,
            self.context.clock.now_ms(),
            count,
            None,
        );
        let answers = if shipments.is_empty() { Vec::new() } else { self.provider.send_all(shipments) };
        // What was accepted is sent once more after the restart rather than perhaps never.
        round.stop.check()?;
        self.note_health(&answers);
        let is_accepted = |answer: &ProviderAnswer| matches!(answer, ProviderAnswer::Accepted { .. });
        let accepted: Vec<bool> = answers.iter().map(is_accepted).collect();
        for (to, answer) in addressed.into_iter().zip(answers) {
            self.settle(&mut open, to, answer, round.now);
        }
        let mut superseded = 0;
        for OlderNotification { job, target, service, newer } in held {
            let open = &mut open[job];
            if accepted.get(newer).is_some_and(|accepted| *accepted) {
                if open.job.removes {
                    self.count(settled_label(NotificationOutcome::Superseded));
                    continue;
                }
                superseded += open.job.messages();
                open.records.push(target.record(NotificationOutcome::Superseded, None));
            } else {
                // The newer one may turn out not to be needed.
                open.left.entry(service).or_default().targets.push(target);
            }
        }
        self.count_some(settled_label(NotificationOutcome::Superseded), superseded);
        self.count_notifications_of(NotificationOutcome::Superseded, superseded, None);
        if !self.store_results(open, round)? {
            return Ok(RoundEnd::Idle);
        }
        Ok(if is_full { RoundEnd::MoreIsDue } else { RoundEnd::Worked })
    }

    /// The notifications of the rows. Of several for the same conversation and device only the newest is sent.
    fn prepare_shipments(&mut self, open: &mut [OpenJob], round: &Round<'_>) -> StoreResult<Prepared> {
        let now = round.now;
        let context = self.context.clone();
        let place = |at: usize, job: &Job| (job.conversation, job.seq, Reverse(at));
        let mut order: BinaryHeap<_> = open.iter().enumerate().map(|(at, open)| place(at, &open.job)).collect();
        let (mut taken, mut badges) = (NewestByDevice::new(), RoundBadges::default());
        let Prepared { mut addressed, mut shipments, mut held } = Prepared::default();
        // Rows that wait take room from those that were never tried. With little left devices are notified at once.
        let may_wait = round.queue.has_room_to_wait();
        while let Some((.., Reverse(at))) = order.pop() {
            if open[at].job.removes {
                let newest = taken.entry(open[at].job.conversation).or_default();
                let prepared =
                    self.prepare_removal(at, &mut open[at], newest, &mut held, &mut badges, addressed.len())?;
                for (to, shipment) in prepared {
                    addressed.push(to);
                    shipments.push(shipment);
                }
                continue;
            }
            let now_ms = context.clock.now_ms();
            let open = &mut open[at];
            let Job { conversation, seq, even_online, counts_from, step, policy, .. } = open.job;
            let found = OfflineRecipients::of(&context, ConversationNo(conversation), seq)?;
            if found.is_none() && open.pass_newest() {
                // Rows of messages between this and the older ones come first.
                self.count_some(settled_label(NotificationOutcome::Recalled), open.job.targets.len() as u64);
                order.push(place(at, &open.job));
                continue;
            }
            let rule_id = open.job.rule.clone();
            // Only what is sent takes the place of older ones: a newer message may be one that the user does not need.
            let newest = taken.entry(conversation).or_default();
            let targets = std::mem::take(&mut open.job.targets);
            if let Some(found) = &found {
                (open.sent_at, open.place.position) = (found.entry.at, found.entry.position);
            }
            let may_defer = open.place.part.deferred().is_some();
            // What settles the newest message of a row settles the older ones.
            let mut settle = |target: &Target, outcome: NotificationOutcome| {
                self.count_some(settled_label(outcome), open.job.messages());
                self.count_notifications_of(outcome, open.job.messages(), None);
                open.records.push(target.record(outcome, None));
                if outcome == NotificationOutcome::Expired {
                    let cause = open.job.cause.clone();
                    open.bury(self.provider.provider(), target, outcome, cause.as_deref(), now_ms);
                }
            };
            let Some(found) = found else {
                targets.iter().for_each(|target| settle(target, NotificationOutcome::Recalled));
                continue;
            };
            let sender = found.entry.content.sender.as_ref().map(|sender| context.directory.user(sender.no));
            let sender = sender.transpose()?.flatten();
            let policy = context.policies.deciding(policy)?;
            let channel = policy.step(&rule_id, step);
            let expires_ms = channel.and_then(|channel| channel.expires_ms);
            let time_to_live_ms =
                expires_ms.unwrap_or_else(|| u64::try_from(self.config.time_to_live.as_millis()).unwrap_or(u64::MAX));
            let epoch = context.store.epoch();
            let mut text = MessageText::of(&self.config.templates, &found, sender.as_deref(), epoch, time_to_live_ms);
            if counts_from > 0 {
                text = text.expiring_at(counts_from.saturating_add(time_to_live_ms));
            }
            let collapse = channel.map(|channel| channel.shown.collapse).unwrap_or_default();
            let collapses = collapse == NotificationCollapse::Conversation;
            let (mut waiting, mut waits_until, mut deferred) = (Vec::new(), None, Vec::new());
            for target in targets {
                if text.expires_at() <= now_ms {
                    settle(&target, NotificationOutcome::Expired);
                    continue;
                }
                if collapses {
                    if let Some(Newest { service, at: newer }) = newest.get(&target).copied() {
                        held.push(OlderNotification { job: at, target, service, newer });
                        continue;
                    }
                    let latest = self.latest.get(&(conversation, hash_of(&target))).copied();
                    if latest.is_some_and(|notified| notified.seq > seq) {
                        settle(&target, NotificationOutcome::Superseded);
                        continue;
                    }
                    let until = latest.and_then(|notified| notified.at.checked_add(self.config.repeat_after));
                    let until = until.filter(|until| may_wait && now < *until);
                    if let Some(until) = until {
                        waits_until = waits_until.max(Some(until));
                        waiting.push(target);
                        continue;
                    }
                }
                let no = UserNo(target.0);
                let Some(user) = context.directory.user(no)? else {
                    settle(&target, NotificationOutcome::NotAMember);
                    continue;
                };
                let appearance =
                    Appearance::of(channel.map(|channel| &channel.shown), user.language(), self.config.badge);
                if let Some(unwanted) = found.why_not(&context, &user, PolicyChannel::Providers, even_online)? {
                    match unwanted.deferred_to.filter(|_| may_defer) {
                        Some(until) => deferred.push((target, until)),
                        None => settle(&target, unwanted.outcome),
                    }
                    continue;
                }
                let Some((digest, token)) = self.token_of(no, &target.1)? else {
                    settle(&target, NotificationOutcome::NoDevice);
                    continue;
                };
                let unread = if appearance.needs_unread() { badges.of(&context, &user)? } else { 0 };
                let RegisteredToken { registered_at, token, .. } = token;
                let service = self.provider.service_of(&token);
                if collapses {
                    newest.insert(target.clone(), Newest { service, at: shipments.len() });
                }
                shipments.push(Shipment { notification: text.notification(digest, &appearance, unread), token });
                let began_at = counts_from.max(found.entry.at);
                addressed.push(Addressed { job: at, target, service, digest, registered_at, began_at, collapses });
            }
            (open.waiting, open.waits_until) = (waiting, waits_until);
            deferred.into_iter().for_each(|(target, until)| open.defer(target, until));
        }
        Ok(Prepared { addressed, shipments, held })
    }

    /// The device's token, if it is of this provider still.
    fn token_of(&self, user: UserNo, device: &str) -> StoreResult<Option<(TokenDigest, RegisteredToken)>> {
        let store = &*self.context.store;
        let row = store.row(RowSpace::Chat, &device_key(user, device))?;
        let Some(digest) = digest_in(row.as_deref())? else { return Ok(None) };
        let token = RegisteredToken::decode(store.row(RowSpace::Chat, &token_key(digest))?.as_deref())?;
        let token =
            token.filter(|token| token.is_of(user, device) && token.token.provider() == self.provider.provider());
        Ok(token.map(|token| (digest, token)))
    }

    /// Notes what the provider answered for one device.
    fn settle(&mut self, open: &mut [OpenJob], to: Addressed, answer: ProviderAnswer, now: Instant) {
        let Addressed { job, target, service, digest, registered_at, began_at, collapses } = to;
        let open = &mut open[job];
        open.was_tried = true;
        let (label, outcome, cause) = match answer {
            ProviderAnswer::Accepted { id } if open.job.removes => {
                let (user, conversation) = (UserNo(target.0), ConversationNo(open.job.conversation));
                let key = shown_key(user, conversation, self.provider.provider(), &target.1);
                open.shown.push(RowChange { key, value: None });
                ("removed", NotificationOutcome::Removed, id)
            }
            ProviderAnswer::Accepted { id } => {
                let (user, conversation) = (UserNo(target.0), ConversationNo(open.job.conversation));
                let key = shown_key(user, conversation, self.provider.provider(), &target.1);
                let time_to_live_ms = u64::try_from(self.config.time_to_live.as_millis()).unwrap_or(u64::MAX);
                let until = began_at.saturating_add(time_to_live_ms);
                // A message that has its own notification is not taken away: there is no tag of the conversation's.
                if collapses {
                    let value = Some(ShownNotification::value(open.job.seq, until));
                    open.shown.push(RowChange { key, value });
                }
                let notified = Notified { seq: open.job.seq, at: now };
                self.latest.insert((open.job.conversation, hash_of(&target)), notified);
                if open.job.stops_others {
                    open.reached.push(UserNo(target.0));
                }
                let older = open.job.older.len() as u64;
                self.count_some(settled_label(NotificationOutcome::Superseded), older);
                self.count_notifications_of(NotificationOutcome::Superseded, older, None);
                ("accepted", NotificationOutcome::Accepted, id)
            }
            failed => match self.failure_of(failed, &target, digest, registered_at) {
                Failure::ForGood { label, outcome, cause } => (label, outcome, cause),
                Failure::ForNow { retry_after, reason } => {
                    open.left.entry(service).or_default().add(target.clone(), retry_after, &reason);
                    ("retried", NotificationOutcome::Retried, Some(reason))
                }
            },
        };
        self.count(label);
        // A removal notifies nobody: it neither counts as an attempt to reach somebody, nor is it kept when it fails.
        if !open.job.removes {
            let now_ms = self.context.clock.now_ms();
            let took = (outcome == NotificationOutcome::Accepted).then(|| now_ms.saturating_sub(began_at));
            self.count_notifications(outcome, took);
            if outcome == NotificationOutcome::Refused {
                open.bury(self.provider.provider(), &target, outcome, cause.as_deref(), now_ms);
            }
            if matches!(outcome, NotificationOutcome::Refused | NotificationOutcome::TokenGone)
                && !open.job.older.is_empty()
            {
                open.left_of_older.entry(service).or_default().push(target.clone());
            }
        }
        open.records.push(target.record(outcome, cause));
    }

    /// What the answer of a provider that did not take a notification comes to. The token of a device that has none any more is removed.
    fn failure_of(&self, answer: ProviderAnswer, target: &Target, digest: TokenDigest, registered_at: u64) -> Failure {
        let for_good = |label, outcome, cause| Failure::ForGood { label, outcome, cause };
        match answer {
            // The app has registered the token again since.
            ProviderAnswer::TokenGone { since: Some(since) } if registered_at > since => {
                let cause = "the token was gone before it was registered again".into();
                for_good("dead_refused", NotificationOutcome::Refused, Some(cause))
            }
            ProviderAnswer::TokenGone { .. } => {
                self.remove_token(target.clone(), digest);
                for_good("token_gone", NotificationOutcome::TokenGone, None)
            }
            ProviderAnswer::Refused { retry: Retry::Never, code } => {
                for_good("dead_refused", NotificationOutcome::Refused, Some(code))
            }
            ProviderAnswer::Refused { retry: Retry::After(retry_after), code: reason }
            | ProviderAnswer::Unreachable { retry_after, reason } => Failure::ForNow { retry_after, reason },
            // No failure: nothing is left to be tried.
            ProviderAnswer::Accepted { id } => for_good("accepted", NotificationOutcome::Accepted, id),
        }
    }

    /// Ends the registration of a token that no device has any more.
    fn remove_token(&self, Target(user, device): Target, digest: TokenDigest) {
        let feed = &self.context.feed_notes;
        // Of a user who cannot be read now there is no event, and the token goes all the same.
        let known = self.context.directory.user(UserNo(user)).ok().flatten();
        let note = known.and_then(|user| feed.of_device(&user.id, &device, None));
        let proposal = Proposal::SetPushToken {
            user: UserNo(user),
            notes: feed.for_commit(note.into_iter().collect()),
            device,
            token: None,
            former: Some(digest),
            owner: None,
            additions: None,
        };
        // A refusal does no harm: the device has another token by now, or the provider will say it again.
        if let Err(refusal) = self.context.proposals.propose_blocking(proposal) {
            tracing::debug!(provider = self.name(), %refusal, "a push token that is gone was not removed");
        }
    }

    /// Deletes the rows that are done, and stores the others with the devices that are left.
    fn store_results(&mut self, open: Vec<OpenJob>, round: &mut Round<'_>) -> Attempt<bool> {
        let now = self.context.clock.monotonic();
        let mut changes = Vec::new();
        let mut again = Vec::new();
        let now_ms = self.context.clock.now_ms();
        let mut dead = Vec::new();
        let version = self.context.policies.current().version;
        let due_now = Due::Now(self.provider.provider().into());
        for open in open {
            if open.is_untouched()
                && let Some(due) = open.waits_until
            {
                again.push((open.key, due));
                continue;
            }
            open.add_records(self.provider.provider(), &self.context.trace, version, now_ms, &mut changes);
            let OpenJob {
                key,
                job,
                place: JobPlace { position, part },
                was_tried,
                mut left,
                left_of_older,
                waiting,
                waits_until,
                ..
            } = open;
            let OpenJob { sent_at, reached, shown, dead: buried, deferred, .. } = open;
            if let Some(part) = part.deferred() {
                deferred.add_rows(&job, JobPlace { position, part }, &mut changes);
            }
            dead.extend(buried);
            let mark = |user| notified_marks::mark(sent_at, position, user, PolicyChannel::Providers);
            changes.extend(reached.into_iter().map(mark));
            changes.extend(shown);
            let mut is_kept = false;
            if let Some(due) = waits_until {
                let same = left.keys().copied().find(|service| due_now.key(position, part.at_service(*service)) == key);
                match same.and_then(|service| left.get_mut(&service)) {
                    Some(left) => left.targets.extend(waiting),
                    None => {
                        is_kept = true;
                        let value = Some(Job { targets: waiting, ..job.clone() }.encode());
                        changes.push(RowChange { key: key.clone(), value });
                        again.push((key.clone(), due));
                    }
                }
            }
            // A removal that stood behind a newer notification was not tried.
            let attempts = job.attempts.saturating_add(u32::from(was_tried || !job.removes));
            let job = Job { targets: Vec::new(), attempts, ..job };
            let mut keep = |position: Position, service: u64, job: Job, pause: Duration| {
                let later = due_now.key(position, part.at_service(service));
                is_kept |= later == key;
                changes.push(RowChange { key: later.clone(), value: Some(job.encode()) });
                again.push((later, now + pause));
            };
            for (service, RetryTargets { targets, retry_after, cause }) in left {
                let pause = self.backoff(attempts).max(retry_after.unwrap_or_default().min(RETRY_AFTER_MAX));
                keep(position, service, Job { targets, cause, ..job.clone() }, pause);
            }
            for (service, targets) in left_of_older {
                if let Some((position, older)) = self.older_messages(job.clone())? {
                    keep(position, service, Job { targets, cause: None, ..older }, self.backoff(attempts));
                }
            }
            if !is_kept {
                changes.push(RowChange { key, value: None });
            }
        }
        // What the provider has answered is not asked again because the store cannot be read for a moment.
        while let Err(error) = self.dead_letters.add(&self.context, round.term, dead.clone(), &mut changes) {
            tracing::debug!(provider = self.name(), %error, "dead letters wait for the store");
            round.stop.pause(WRITE_RETRY_PAUSE)?;
        }
        if !round.store(&changes)? {
            return Ok(false);
        }
        self.note_shown(&changes);
        for (key, due) in again {
            round.queue.put(key, due);
        }
        Ok(true)
    }

    /// The job of a row's older messages, and the position of the newest of these that is there still.
    fn older_messages(&self, mut job: Job) -> StoreResult<Option<(Position, Job)>> {
        while let Some(older) = job.without_newest() {
            let (conversation, seq) = (ConversationNo(older.conversation), older.seq);
            let found = self.context.store.entries(conversation, seq, seq, 1, End::Oldest)?;
            if let Some(entry) = found.first() {
                return Ok(Some((entry.position, older)));
            }
            job = older;
        }
        Ok(None)
    }

    fn backoff(&self, attempts: u32) -> Duration {
        channel_worker::backoff(self.config.backoff_min, self.config.backoff_max, attempts.saturating_sub(1))
    }

    /// Tells operators, once, when the provider takes nothing any more, and when it does again.
    fn note_health(&mut self, answers: &[ProviderAnswer]) {
        let was_failing = self.health.is_failing();
        let cause = self.health.note(answers);
        let label = ProviderLabel { provider: self.name() };
        self.context.metrics.provider_failing.get_or_create(&label).set(i64::from(self.health.is_failing()));
        match (was_failing, self.health.is_failing()) {
            (false, true) => tracing::warn!(provider = self.name(), cause, "the provider takes no notifications"),
            (true, false) => tracing::info!(provider = self.name(), "the provider takes notifications again"),
            _ => {}
        }
    }
}

//! The thread of one vendor: takes the rows that are due, sends their notifications, and stores what became of them.

mod open_job;
mod withdrawals;

use super::{
    StopSignal, VendorPushConfig,
    badge::badge_with,
    dead_letters::DeadLetters,
    health::Health,
    rendering::{Appearance, MessageText},
};
use crate::{
    offline_recipients::{OfflinePushContext, OfflineRecipients},
    reach_gate::Unwanted,
    reached_marks,
    road_jobs::{Job, JobQueue, JobRoad, JobSignals, RoundEnd, Target, part_of_service, short_cause},
    unread_counts::SharedPages,
};
use open_job::{Left, OpenJob};
use quick_cache::unsync::Cache;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    chat_rows::{ShownNotification, shown_key},
    leadership::Term,
    metrics::{VendorLabel, VendorOutcomeLabel},
    model::*,
    push_tokens::*,
    reach_counts::ReachEvent,
    store::*,
    vendors::*,
};
use tidings_protocol::http::{PolicyRoad, ReachCollapse, ReachOutcome, ReachRoad};

/// The pause after the store could not be read or written.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Rows in a round. In a busy conversation one notification takes the place of hundreds.
const JOBS_PER_ROUND: usize = 1_000;
/// Notifications in a round, about. A crash repeats one round, and what comes meanwhile waits for its end.
const SHIPMENTS_PER_ROUND: usize = 1_000;
/// Notifications in a round, with those whose place a newer one takes.
const TARGETS_PER_ROUND: usize = 20_000;
/// A vendor's own wish for a pause is followed up to this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);
/// Conversations of users whose newest notification is remembered, so that a late retry does not take its place.
const LATEST_MAX: usize = 50_000;

pub(super) struct VendorWorker {
    context: Arc<OfflinePushContext>,
    vendor: Arc<dyn Vendor>,
    config: VendorPushConfig,
    signals: Arc<JobSignals>,
    queue: JobQueue,
    dead_letters: Arc<DeadLetters>,
    term: Option<Term>,
    /// What a device was told of last in a conversation, by [`hash_of`] the device.
    latest: Cache<(u64, u64), Told>,
    health: Health,
}

/// The newest message that a device was told of in a conversation, and when.
#[derive(Clone, Copy)]
struct Told {
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
}

/// A notification whose place a newer one takes, if the vendor takes that one.
struct Held {
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
    held: Vec<Held>,
}

/// A device in the keys of what is remembered of many.
fn hash_of(target: &Target) -> u64 {
    let mut hasher = DefaultHasher::new();
    target.hash(&mut hasher);
    hasher.finish()
}

/// How an outcome of a device that needs no shipment is counted.
fn settled_label(outcome: ReachOutcome) -> &'static str {
    match outcome {
        ReachOutcome::Superseded => "superseded",
        ReachOutcome::Expired => "dead_expired",
        _ => "obsolete",
    }
}

impl VendorWorker {
    pub(super) fn new(
        context: Arc<OfflinePushContext>,
        vendor: Arc<dyn Vendor>,
        config: VendorPushConfig,
        (signals, dead_letters): (Arc<JobSignals>, Arc<DeadLetters>),
    ) -> Self {
        let queue = JobQueue::new(JobRoad::Vendor(vendor.vendor()), vendor.services(), signals.clone());
        let (latest, health) = (Cache::new(LATEST_MAX), Health::default());
        VendorWorker { context, vendor, config, signals, queue, dead_letters, term: None, latest, health }
    }

    pub(super) fn run(mut self, stop: &StopSignal) {
        let mut told = false;
        loop {
            let pause = match self.round(stop) {
                Ok(end) => {
                    if std::mem::take(&mut told) {
                        tracing::info!(vendor = self.name(), "offline push goes on");
                    }
                    end.pause()
                }
                Err(error) => {
                    // All rows are read again: what was sent and not stored is sent once more, with the same ids.
                    self.term = None;
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(vendor = self.name(), %error, "offline push waits for the store");
                    }
                    RETRY_PAUSE
                }
            };
            if stop.wait(pause) {
                return;
            }
        }
    }

    fn name(&self) -> &'static str {
        self.vendor.vendor().name()
    }

    fn count(&self, outcome: &'static str) {
        self.count_some(outcome, 1);
    }

    fn count_some(&self, outcome: &'static str, count: u64) {
        let label = VendorOutcomeLabel { vendor: self.name(), outcome };
        self.context.metrics.vendor_notifications.get_or_create(&label).inc_by(count);
    }

    /// Counts what has become of a notification; with the time since its message, if the vendor has taken it.
    fn count_reach(&self, outcome: ReachOutcome, took_ms: Option<u64>) {
        self.count_reach_of(outcome, 1, took_ms);
    }

    fn count_reach_of(&self, outcome: ReachOutcome, count: u64, took_ms: Option<u64>) {
        let event = match outcome {
            ReachOutcome::Accepted => ReachEvent::Accepted,
            ReachOutcome::Retried => ReachEvent::Retried,
            ReachOutcome::Refused => ReachEvent::Refused,
            ReachOutcome::TokenGone => ReachEvent::TokenGone,
            ReachOutcome::Expired => ReachEvent::Expired,
            ReachOutcome::Superseded => ReachEvent::Superseded,
            _ => return,
        };
        let road = ReachRoad::from(self.vendor.vendor());
        self.context.metrics.reach.add(road, event, self.context.clock.now_ms(), count, took_ms);
    }

    /// Does one round of work.
    fn round(&mut self, stop: &StopSignal) -> StoreResult<RoundEnd> {
        let lead = &self.context.lead;
        let held = lead.term().filter(|term| lead.holds(*term));
        if self.term != held {
            let road = JobRoad::Vendor(self.vendor.vendor());
            self.queue = JobQueue::new(road, self.vendor.services(), self.signals.clone());
            self.term = held;
        }
        let label = VendorLabel { vendor: self.name() };
        let waiting = self.context.metrics.vendor_waiting.get_or_create(&label).clone();
        let Some(term) = held else {
            waiting.set(0);
            return Ok(RoundEnd::Idle);
        };
        let now = self.context.clock.monotonic();
        let store = self.context.store.clone();
        let has_more = self.queue.read_new(&*store, now)?;
        self.dead_letters.prune(&self.context, term)?;
        waiting.set(self.queue.len() as i64);
        let keys = self.queue.take_due(now, JOBS_PER_ROUND);
        if keys.is_empty() {
            return Ok(if has_more { RoundEnd::MoreIsDue } else { RoundEnd::Idle });
        }
        let mut is_full = keys.len() == JOBS_PER_ROUND;
        let rows = store.rows_of(RowSpace::Chat, &keys)?;
        let (mut open, mut targets, mut places) = (Vec::new(), 0, HashSet::new());
        for (key, row) in keys.into_iter().zip(rows) {
            let Some(row) = row else { continue };
            if targets >= TARGETS_PER_ROUND || places.len() >= SHIPMENTS_PER_ROUND {
                is_full = true;
                self.queue.put(key, now);
                continue;
            }
            let job = Job::decode(&row).unwrap_or_else(|error| {
                // A row that nobody can read must not hold up the others: it is deleted with this round.
                tracing::error!(vendor = self.name(), %error, "a notification is lost");
                Job::default()
            });
            targets += job.targets.len();
            places.extend(job.targets.iter().map(|target| (job.conversation, hash_of(target))));
            open.push(OpenJob::new(key, job));
        }
        let Prepared { addressed, shipments, held } = self.prepare(&mut open, now)?;
        let road = ReachRoad::from(self.vendor.vendor());
        let count = shipments.iter().filter(|shipment| !shipment.notification.withdraws).count() as u64;
        self.context.metrics.reach.add(road, ReachEvent::Attempted, self.context.clock.now_ms(), count, None);
        let answers = if shipments.is_empty() { Vec::new() } else { self.vendor.send_all(shipments) };
        if stop.wait(Duration::ZERO) {
            // What was accepted is sent once more after the restart rather than perhaps never.
            return Ok(RoundEnd::Idle);
        }
        self.note_health(&answers);
        let is_accepted = |answer: &VendorAnswer| matches!(answer, VendorAnswer::Accepted { .. });
        let accepted: Vec<bool> = answers.iter().map(is_accepted).collect();
        for (to, answer) in addressed.into_iter().zip(answers) {
            self.settle(&mut open, to, answer, now);
        }
        let mut superseded = 0;
        for Held { job, target, service, newer } in held {
            let open = &mut open[job];
            if accepted.get(newer).is_some_and(|accepted| *accepted) {
                superseded += open.job.messages();
                open.records.push(target.record(ReachOutcome::Superseded, None));
            } else {
                // The newer one may turn out not to be needed.
                open.left.entry(service).or_default().targets.push(target);
            }
        }
        self.count_some(settled_label(ReachOutcome::Superseded), superseded);
        self.count_reach_of(ReachOutcome::Superseded, superseded, None);
        let is_stored = self.store_results(open, term, stop)?;
        Ok(match (is_stored, is_full || has_more) {
            (true, true) => RoundEnd::MoreIsDue,
            (true, false) => RoundEnd::Worked,
            (false, _) => RoundEnd::Idle,
        })
    }

    /// The notifications of the rows. Of several for the same conversation and device only the newest is sent.
    fn prepare(&mut self, open: &mut [OpenJob], now: Instant) -> StoreResult<Prepared> {
        let context = self.context.clone();
        let policy = context.policies.current();
        let place = |at: usize, job: &Job| (job.conversation, job.seq, Reverse(at));
        let mut order: BinaryHeap<_> = open.iter().enumerate().map(|(at, open)| place(at, &open.job)).collect();
        let (mut taken, mut badges, mut pages) = (NewestByDevice::new(), HashMap::new(), SharedPages::default());
        let Prepared { mut addressed, mut shipments, mut held } = Prepared::default();
        // Rows that wait take room from those that were never tried. With little left devices are told at once.
        let may_wait = self.queue.has_room_to_wait();
        while let Some((.., Reverse(at))) = order.pop() {
            if open[at].job.withdraws {
                let newest = taken.entry(open[at].job.conversation).or_default();
                let prepared = self.prepare_withdrawal(at, &mut open[at], newest, addressed.len())?;
                for (to, shipment) in prepared {
                    addressed.push(to);
                    shipments.push(shipment);
                }
                continue;
            }
            let now_ms = context.clock.now_ms();
            let open = &mut open[at];
            let Job { conversation, seq, even_online, replayed_at, step, .. } = open.job;
            let found = OfflineRecipients::of(&context, ConversationNo(conversation), seq)?;
            if found.is_none() && open.pass_newest() {
                // Rows of messages between this and the older ones come first.
                self.count_some(settled_label(ReachOutcome::Recalled), open.job.targets.len() as u64);
                order.push(place(at, &open.job));
                continue;
            }
            let rule_id = open.job.rule.clone();
            // Only what is sent takes the place of older ones: a newer message may be one that the user does not need.
            let newest = taken.entry(conversation).or_default();
            let targets = std::mem::take(&mut open.job.targets);
            if let Some(found) = &found {
                (open.sent_at, open.position) = (found.entry.at, found.entry.position);
            }
            // What settles the newest message of a row settles the older ones.
            let mut settle = |target: &Target, outcome: ReachOutcome| {
                self.count_some(settled_label(outcome), open.job.messages());
                self.count_reach_of(outcome, open.job.messages(), None);
                open.records.push(target.record(outcome, None));
                if outcome == ReachOutcome::Expired {
                    let cause = open.job.cause.clone();
                    open.bury(self.vendor.vendor(), target, outcome, cause.as_deref(), now_ms);
                }
            };
            let Some(found) = found else {
                targets.iter().for_each(|target| settle(target, ReachOutcome::Recalled));
                continue;
            };
            let sender = found.entry.content.sender.as_ref().map(|sender| context.directory.user(sender.no));
            let sender = sender.transpose()?.flatten();
            let rule = policy.rules.iter().find(|known| *known.id == *rule_id);
            let road = rule.and_then(|rule| rule.roads.get(step as usize));
            let expires_ms = road.and_then(|road| road.expires_ms);
            let time_to_live_ms =
                expires_ms.unwrap_or_else(|| u64::try_from(self.config.time_to_live.as_millis()).unwrap_or(u64::MAX));
            let message = (context.store.epoch(), time_to_live_ms);
            let mut text = MessageText::of(&self.config.templates, &found, sender.as_deref(), message);
            if replayed_at > 0 {
                text = text.expiring_at(replayed_at.saturating_add(time_to_live_ms));
            }
            let collapse = road.map(|road| road.shown.collapse).unwrap_or_default();
            let collapses = collapse == ReachCollapse::Conversation;
            let (mut waiting, mut waits_until) = (Vec::new(), None);
            for target in targets {
                if text.expires_at() <= now_ms {
                    settle(&target, ReachOutcome::Expired);
                    continue;
                }
                if collapses {
                    if let Some(Newest { service, at: newer }) = newest.get(&target).copied() {
                        held.push(Held { job: at, target, service, newer });
                        continue;
                    }
                    let latest = self.latest.get(&(conversation, hash_of(&target))).copied();
                    if latest.is_some_and(|told| told.seq > seq) {
                        settle(&target, ReachOutcome::Superseded);
                        continue;
                    }
                    let until = latest.and_then(|told| told.at.checked_add(self.config.repeat_after));
                    let until = until.filter(|until| may_wait && now < *until);
                    if let Some(until) = until {
                        waits_until = waits_until.max(Some(until));
                        waiting.push(target);
                        continue;
                    }
                }
                let no = UserNo(target.0);
                let Some(user) = context.directory.user(no)? else {
                    settle(&target, ReachOutcome::NotAMember);
                    continue;
                };
                let appearance = Appearance::of(road.map(|road| &road.shown), user.language(), self.config.badge);
                let is_back = !even_online && context.presence.is_active(no);
                if is_back {
                    settle(&target, ReachOutcome::Active);
                    continue;
                }
                if let Some(Unwanted { outcome, .. }) = found.why_unwanted_by(&context, &user, PolicyRoad::Vendors)? {
                    settle(&target, outcome);
                    continue;
                }
                let Some((digest, token)) = self.token_of(no, &target.1)? else {
                    settle(&target, ReachOutcome::NoDevice);
                    continue;
                };
                let unread = match badges.get(&no) {
                    _ if !appearance.needs_unread() => 0,
                    Some(unread) => *unread,
                    None => {
                        let unread = badge_with(&context, &user, &mut pages)?;
                        badges.insert(no, unread);
                        unread
                    }
                };
                let RegisteredToken { registered_at, token, .. } = token;
                let service = self.vendor.service_of(&token);
                if collapses {
                    newest.insert(target.clone(), Newest { service, at: shipments.len() });
                }
                shipments.push(Shipment { notification: text.notification(digest, &appearance, unread), token });
                let began_at = replayed_at.max(found.entry.at);
                addressed.push(Addressed { job: at, target, service, digest, registered_at, began_at });
            }
            (open.waiting, open.waits_until) = (waiting, waits_until);
        }
        Ok(Prepared { addressed, shipments, held })
    }

    /// The device's token, if it is of this vendor still.
    fn token_of(&self, user: UserNo, device: &str) -> StoreResult<Option<(TokenDigest, RegisteredToken)>> {
        let store = &*self.context.store;
        let row = store.row(RowSpace::Chat, &device_key(user, device))?;
        let Some(digest) = digest_in(row.as_deref())? else { return Ok(None) };
        let token = RegisteredToken::decode(store.row(RowSpace::Chat, &token_key(digest))?.as_deref())?;
        let token = token.filter(|token| token.is_of(user, device) && token.token.vendor() == self.vendor.vendor());
        Ok(token.map(|token| (digest, token)))
    }

    /// Notes what the vendor answered for one device.
    fn settle(&mut self, open: &mut [OpenJob], to: Addressed, answer: VendorAnswer, now: Instant) {
        let Addressed { job, target, service, digest, registered_at, began_at } = to;
        let open = &mut open[job];
        let (label, outcome, cause) = match answer {
            VendorAnswer::Accepted { id } if open.job.withdraws => {
                let (user, conversation) = (UserNo(target.0), ConversationNo(open.job.conversation));
                let key = shown_key(user, conversation, self.vendor.vendor(), &target.1);
                open.shown.push(RowChange { key, value: None });
                ("withdrawn", ReachOutcome::Withdrawn, id)
            }
            VendorAnswer::Accepted { id } => {
                let (user, conversation) = (UserNo(target.0), ConversationNo(open.job.conversation));
                let key = shown_key(user, conversation, self.vendor.vendor(), &target.1);
                let time_to_live_ms = u64::try_from(self.config.time_to_live.as_millis()).unwrap_or(u64::MAX);
                let until = began_at.saturating_add(time_to_live_ms);
                let value = Some(ShownNotification::value(open.job.seq, until));
                open.shown.push(RowChange { key, value });
                let told = Told { seq: open.job.seq, at: now };
                self.latest.insert((open.job.conversation, hash_of(&target)), told);
                if open.job.stops_others {
                    open.reached.push(UserNo(target.0));
                }
                let older = open.job.older.len() as u64;
                self.count_some(settled_label(ReachOutcome::Superseded), older);
                self.count_reach_of(ReachOutcome::Superseded, older, None);
                ("accepted", ReachOutcome::Accepted, id)
            }
            // The app has registered the token again since.
            VendorAnswer::TokenGone { since: Some(since) } if registered_at > since => (
                "dead_refused",
                ReachOutcome::Refused,
                Some("the token was gone before it was registered again".into()),
            ),
            VendorAnswer::TokenGone { .. } => {
                self.remove_token(target.clone(), digest);
                ("token_gone", ReachOutcome::TokenGone, None)
            }
            VendorAnswer::Refused { retry: Retry::Never, code } => ("dead_refused", ReachOutcome::Refused, Some(code)),
            VendorAnswer::Refused { retry: Retry::After(retry_after), code: reason }
            | VendorAnswer::Unreachable { retry_after, reason } => {
                let left = open.left.entry(service).or_default();
                left.retry_after = left.retry_after.max(retry_after);
                left.cause = Some(short_cause(&reason));
                left.targets.push(target.clone());
                ("retried", ReachOutcome::Retried, Some(reason))
            }
        };
        self.count(label);
        // A withdrawal tells nobody of anything: it neither counts as an attempt to reach somebody, nor is it kept when it fails.
        if !open.job.withdraws {
            let now_ms = self.context.clock.now_ms();
            let took = (outcome == ReachOutcome::Accepted).then(|| now_ms.saturating_sub(began_at));
            self.count_reach(outcome, took);
            if outcome == ReachOutcome::Refused {
                open.bury(self.vendor.vendor(), &target, outcome, cause.as_deref(), now_ms);
            }
            if matches!(outcome, ReachOutcome::Refused | ReachOutcome::TokenGone) && !open.job.older.is_empty() {
                open.left_of_older.entry(service).or_default().push(target.clone());
            }
        }
        open.records.push(target.record(outcome, cause));
    }

    /// Ends the registration of a token that no device has any more.
    fn remove_token(&self, Target(user, device): Target, digest: TokenDigest) {
        let proposal = Proposal::SetPushToken {
            user: UserNo(user),
            device,
            token: None,
            former: Some(digest),
            owner: None,
            additions: None,
        };
        // A refusal does no harm: the device has another token by now, or the vendor will say it again.
        if let Err(refusal) = self.context.committer.propose_blocking(proposal) {
            tracing::debug!(vendor = self.name(), %refusal, "a push token that is gone was not removed");
        }
    }

    /// Deletes the rows that are done, and stores the others with the devices that are left.
    fn store_results(&mut self, open: Vec<OpenJob>, term: Term, stop: &StopSignal) -> StoreResult<bool> {
        let now = self.context.clock.monotonic();
        let mut changes = Vec::new();
        let mut again = Vec::new();
        let now_ms = self.context.clock.now_ms();
        let mut dead = Vec::new();
        let version = self.context.policies.current().version;
        let road = JobRoad::Vendor(self.vendor.vendor());
        for open in open {
            if open.is_untouched()
                && let Some(due) = open.waits_until
            {
                again.push((open.key, due));
                continue;
            }
            open.add_records(self.vendor.vendor(), &self.context.trace, (version, now_ms), &mut changes);
            let OpenJob { key, job, position, part, mut left, left_of_older, waiting, waits_until, .. } = open;
            let OpenJob { sent_at, reached, shown, dead: buried, .. } = open;
            dead.extend(buried);
            let mark = |user| reached_marks::mark(sent_at, position, user, PolicyRoad::Vendors);
            changes.extend(reached.into_iter().map(mark));
            changes.extend(shown);
            let mut is_kept = false;
            if let Some(due) = waits_until {
                let same =
                    left.keys().copied().find(|service| road.key(position, part_of_service(part, *service)) == key);
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
            let attempts = job.attempts.saturating_add(1);
            let job = Job { targets: Vec::new(), attempts, ..job };
            let mut keep = |position: Position, service: u64, job: Job, pause: Duration| {
                let later = road.key(position, part_of_service(part, service));
                is_kept |= later == key;
                changes.push(RowChange { key: later.clone(), value: Some(job.encode()) });
                again.push((later, now + pause));
            };
            for (service, Left { targets, retry_after, cause }) in left {
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
        // What the vendor has answered is not asked again because the store cannot be read for a moment.
        while let Err(error) = self.dead_letters.add(&self.context, term, dead.clone(), &mut changes) {
            tracing::debug!(vendor = self.name(), %error, "dead letters wait for the store");
            if stop.wait(RETRY_PAUSE) {
                return Ok(false);
            }
        }
        let mut told = false;
        loop {
            match self.context.store.write_rows(term, RowSpace::Chat, changes.clone()) {
                Ok(()) => break,
                Err(StoreError::StaleTerm) => return Ok(false),
                Err(error) if !std::mem::replace(&mut told, true) => {
                    // To send it all again would be worse than to wait.
                    tracing::warn!(vendor = self.name(), %error, "offline push cannot record what was sent; it tries again");
                }
                Err(_) => {}
            }
            if stop.wait(RETRY_PAUSE) {
                return Ok(false);
            }
        }
        self.note_shown(&changes)?;
        for (key, due) in again {
            self.queue.put(key, due);
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

    /// The time before the next attempt: doubles with each attempt, with jitter.
    fn backoff(&self, attempts: u32) -> Duration {
        let doubled = self.config.backoff_min.saturating_mul(1 << (attempts - 1).min(20));
        doubled.min(self.config.backoff_max).mul_f64(rand::random_range(0.5..=1.0))
    }

    /// Tells operators, once, when the vendor takes nothing any more, and when it does again.
    fn note_health(&mut self, answers: &[VendorAnswer]) {
        let was_failing = self.health.is_failing();
        let cause = self.health.note(answers);
        let label = VendorLabel { vendor: self.name() };
        self.context.metrics.vendor_failing.get_or_create(&label).set(i64::from(self.health.is_failing()));
        match (was_failing, self.health.is_failing()) {
            (false, true) => tracing::warn!(vendor = self.name(), cause, "the vendor takes no notifications"),
            (true, false) => tracing::info!(vendor = self.name(), "the vendor takes notifications again"),
            _ => {}
        }
    }
}

//! The rows of what channels are still to do: one message, for some users or devices, by one channel; or one push, for some devices, by a
//! provider ([`PushJob`]). The part of a row's key says which of the two it is. The notification stage writes them, and the worker of each
//! channel removes them.

mod deferred;
mod job_part;
mod push_job;
mod queue;

use crate::{
    json_len::{digits, json_len},
    log::{Record, Whom},
    message_runs::{OLDER_BYTES_MAX, seqs_before},
};
pub(crate) use deferred::{Deferred, DeferredBy, DeferredPeople};
pub(crate) use job_part::{JobPart, JobPlace};
pub(crate) use push_job::PushJob;
pub(crate) use queue::JobQueue;
use serde::{Deserialize, Serialize};
use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};
use tidings_domain::{
    chat_rows::{channel_job_key, channel_job_of, encode, waiting_channel_key},
    model::*,
    store::{OutboxItem, ROW_BYTES_MAX, RowChange, StoreError, StoreResult},
};
use tidings_protocol::http::{Channel, NotificationOutcome, PushProvider};

/// Bytes of a row's targets, so that a row with all the rest stays below its limit.
const TARGETS_BYTES_MAX: usize = ROW_BYTES_MAX - 512 - OLDER_BYTES_MAX;
/// The channels that are not providers have numbers from here on, so that there is room for providers.
const OTHER_CHANNELS: u64 = 64;
/// Providers that there may be.
const PROVIDERS_MAX: usize = 16;
/// Other channels that there may be.
const OTHER_CHANNELS_MAX: usize = 4;

/// A channel that is due together with one before it that stops others waits so long for that one's outcome.
pub(crate) const OUTCOME_WAIT_MS: u64 = 10_000;

/// The number of a channel in the keys of its jobs. A session has none: what it is handed is no job.
fn number_of(channel: Channel) -> u64 {
    match (channel, channel.provider()) {
        (_, Some(provider)) => provider.number(),
        (Channel::DevicePush, None) => OTHER_CHANNELS + 1,
        (Channel::Popup, None) => OTHER_CHANNELS + 2,
        (_, None) => OTHER_CHANNELS,
    }
}

/// When a job is due. It is part of the key of its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Due {
    /// Now, by this channel.
    Now(Channel),
    /// At a time in milliseconds since 1970 UTC, when its people are looked at again.
    At(u64),
    /// When the quiet hours of its people end.
    Deferred(Deferred),
}

impl Due {
    pub(crate) fn key(self, position: Position, part: JobPart) -> Vec<u8> {
        match self {
            Due::Now(channel) => channel_job_key(number_of(channel), position, part.number()),
            Due::At(time) => waiting_channel_key(time, position, part.number()),
            Due::Deferred(deferred) => deferred.key(JobPlace { position, part }),
        }
    }

    /// The part of the row after one of the same writer. A row for later becomes several rows at its time.
    fn next(self, part: JobPart) -> JobPart {
        match self {
            Due::Now(_) => part.next(),
            Due::At(_) | Due::Deferred(_) => part.next_later(),
        }
    }

    /// The last key that a row can have.
    pub(crate) fn last_key(self) -> Vec<u8> {
        self.key(u64::MAX, JobPart::LAST)
    }

    /// The range of the rows of a message.
    pub(crate) fn keys_of(self, position: Position) -> (Vec<u8>, Vec<u8>) {
        (self.key(position, JobPart::FIRST), self.key(position, JobPart::LAST))
    }
}

/// How often rows are read when none was due.
const POLL: Duration = Duration::from_millis(100);
/// After a round further rows gather for so long: each write is synced to the disk, and the commits of messages wait meanwhile.
const GATHER: Duration = Duration::from_millis(20);

/// How a round of the notification stage or of a channel's worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RoundEnd {
    Idle,
    Worked,
    MoreIsDue,
}

impl RoundEnd {
    /// The time before the next round.
    pub(crate) fn pause(self) -> Duration {
        match self {
            RoundEnd::Idle => POLL,
            RoundEnd::Worked => GATHER,
            RoundEnd::MoreIsDue => Duration::ZERO,
        }
    }
}

/// The number of a user, and the id of a device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Target(pub(crate) u64, pub(crate) String);

impl Target {
    pub(crate) fn record(&self, outcome: NotificationOutcome, cause: Option<String>) -> Record {
        Record { cause, ..Record::new(Whom::Device(self.0, self.1.clone()), outcome) }
    }
}

/// The value of a row of a message. The names are short since there are many.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    #[serde(rename = "c")]
    pub(crate) conversation: u64,
    #[serde(rename = "s")]
    pub(crate) seq: u64,
    /// Devices, of a channel that reaches devices.
    #[serde(rename = "t", default, skip_serializing_if = "is_default")]
    pub(crate) targets: Vec<Target>,
    /// The numbers of users, of a channel that reaches users: each as what it is more than the one before.
    #[serde(rename = "u", default, skip_serializing_if = "is_default")]
    pub(crate) users: Vec<i64>,
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub(crate) attempts: u32,
    /// Users are notified though they have a session: it did not acknowledge the message.
    #[serde(rename = "o", default, skip_serializing_if = "is_default")]
    pub(crate) even_online: bool,
    /// The id of the policy's rule, and the place of the channel in it.
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub(crate) rule: String,
    #[serde(rename = "i", default, skip_serializing_if = "is_default")]
    pub(crate) step: u32,
    /// The version of the policy that decided the message: what becomes of this row is up to that one. `None`: a row of the form before, for
    /// which the version that holds now is asked.
    #[serde(rename = "v", default, skip_serializing_if = "is_default")]
    pub(crate) policy: Option<u32>,
    /// Success cancels channels that wait for their time.
    #[serde(rename = "m", default, skip_serializing_if = "is_default")]
    pub(crate) stops_others: bool,
    /// The devices are to take away what they show of the message.
    #[serde(rename = "w", default, skip_serializing_if = "is_default")]
    pub(crate) removes: bool,
    /// From when its time to live counts, in milliseconds since 1970 UTC: when a dead letter became this job, or the quiet hours ended that had
    /// deferred it. 0: from the message on.
    #[serde(rename = "d", default, skip_serializing_if = "is_default")]
    pub(crate) counts_from: u64,
    /// Of a row that waits for the end of quiet hours: so long after it the channel is due.
    #[serde(rename = "l", default, skip_serializing_if = "is_default")]
    pub(crate) delay_ms: u64,
    /// The pushes of which it is to be learned whether the users have them.
    #[serde(rename = "p", default, skip_serializing_if = "is_default")]
    pub(crate) pushes: Vec<u64>,
    /// Why the last attempt failed.
    #[serde(rename = "x", default, skip_serializing_if = "is_default")]
    pub(crate) cause: Option<String>,
    /// The messages of the conversation before this one whose place this one takes for all of the devices, as in
    /// [`message_runs`](crate::message_runs). Where this one cannot be notified they are.
    #[serde(rename = "b", default, skip_serializing_if = "is_default")]
    pub(crate) older: Vec<u64>,
}

/// Bytes of a cause, which the limit of a row has room for.
const CAUSE_BYTES_MAX: usize = 80;

/// A cause as jobs and dead letters keep it: short, and in characters that need no escape.
pub(crate) fn short_cause(cause: &str) -> String {
    let plain = |c: char| if matches!(c, '"' | '\\') || !(c.is_ascii_graphic() || c == ' ') { '\'' } else { c };
    cause.chars().take(CAUSE_BYTES_MAX).map(plain).collect()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Job {
    pub(crate) fn decode(row: &[u8]) -> StoreResult<Job> {
        serde_json::from_slice(row)
            .map_err(|error| StoreError::Damaged(format!("what a channel is still to do: {error}")))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Whom it is to reach.
    pub(crate) fn people(&self) -> impl Iterator<Item = UserNo> {
        self.users().chain(self.targets.iter().map(|target| UserNo(target.0)))
    }

    /// The users, of a channel that reaches users.
    pub(crate) fn users(&self) -> impl Iterator<Item = UserNo> {
        self.users.iter().scan(0_u64, |last, more| {
            *last = last.wrapping_add_signed(*more);
            Some(UserNo(*last))
        })
    }

    /// The `seq` of each of the older messages whose place this one takes, the newest first.
    pub(crate) fn older(&self) -> impl Iterator<Item = u64> {
        seqs_before(self.seq, &self.older)
    }

    /// From when its times count, of a message that was sent then.
    pub(crate) fn begins_at(&self, sent_at: u64) -> u64 {
        self.counts_from.max(sent_at)
    }

    /// How many messages it is of.
    pub(crate) fn messages(&self) -> u64 {
        1 + self.older.len() as u64
    }

    /// Of the older messages alone; `None`: there are none.
    #[must_use]
    pub(crate) fn without_newest(mut self) -> Option<Job> {
        let seq = self.older().next()?;
        self.older.remove(0);
        Some(Job { seq, ..self })
    }

    /// With these users in place of its own.
    #[must_use]
    pub(crate) fn with_users(self, users: impl Iterator<Item = UserNo>) -> Job {
        let mut last = 0;
        let more = |user: UserNo| user.0.wrapping_sub(std::mem::replace(&mut last, user.0)) as i64;
        Job { users: users.map(more).collect(), ..self }
    }
}

/// A row, and where it is to be.
pub(crate) struct JobRow {
    pub(crate) due: Due,
    pub(crate) position: Position,
    pub(crate) part: JobPart,
    pub(crate) job: Job,
}

impl JobRow {
    pub(crate) fn change(&self) -> RowChange {
        RowChange { key: self.due.key(self.position, self.part), value: Some(self.job.encode()) }
    }
}

/// Gathers the devices or users of one message and one channel into rows.
pub(crate) struct JobWriter {
    due: Due,
    position: Position,
    part: JobPart,
    job: Job,
    bytes: usize,
    last_user: u64,
    users_max: usize,
    rows: Vec<JobRow>,
}

impl JobWriter {
    /// The rows get the parts from `part` on.
    pub(crate) fn new(due: Due, message: OutboxItem, part: JobPart) -> JobWriter {
        let OutboxItem { position, conversation, seq } = message;
        let delay_ms = if let Due::Deferred(deferred) = due { deferred.delay_ms } else { 0 };
        let job = Job { conversation: conversation.0, seq, delay_ms, ..Job::default() };
        JobWriter { due, position, part, job, bytes: 0, last_user: 0, users_max: usize::MAX, rows: Vec::new() }
    }

    #[must_use]
    pub(crate) fn even_online(mut self, even_online: bool) -> JobWriter {
        self.job.even_online = even_online;
        self
    }

    /// Its time to live counts from then on; 0: from the message on.
    #[must_use]
    pub(crate) fn counted_from(mut self, counts_from: u64) -> JobWriter {
        self.job.counts_from = counts_from;
        self
    }

    /// Of the same channel, and for the same reason, as another row.
    #[must_use]
    pub(crate) fn like(mut self, other: &Job) -> JobWriter {
        let Job { even_online, rule, step, policy, stops_others, .. } = other;
        self.job.rule.clone_from(rule);
        (self.job.even_online, self.job.step, self.job.policy) = (*even_online, *step, *policy);
        self.job.stops_others = *stops_others;
        self
    }

    /// Decided by this version of the policy.
    #[must_use]
    pub(crate) fn decided_by(mut self, policy: u32) -> JobWriter {
        self.job.policy = Some(policy);
        self
    }

    /// Of this channel of a rule of the policy. `stops_others`: success cancels channels that wait for their time.
    #[must_use]
    pub(crate) fn of_step(mut self, rule: &str, step: u32, stops_others: bool) -> JobWriter {
        rule.clone_into(&mut self.job.rule);
        (self.job.step, self.job.stops_others) = (step, stops_others);
        self
    }

    /// The devices are to take away what they show of the message.
    #[must_use]
    pub(crate) fn removing(mut self) -> JobWriter {
        self.job.removes = true;
        self
    }

    /// A row has no more users than this.
    #[must_use]
    pub(crate) fn users_max(mut self, users_max: usize) -> JobWriter {
        self.users_max = users_max.max(1);
        self
    }

    pub(crate) fn add(&mut self, target: Target) {
        let bytes = json_len(&target.1) + digits(target.0) + 4;
        self.make_room(bytes);
        self.job.targets.push(target);
    }

    pub(crate) fn add_user(&mut self, user: UserNo) {
        if self.job.users.len() >= self.users_max {
            self.finish_row();
        }
        self.make_room(digits(user.0.abs_diff(self.last_user)) + 2);
        self.job.users.push(user.0.wrapping_sub(self.last_user) as i64);
        self.last_user = user.0;
    }

    fn make_room(&mut self, bytes: usize) {
        if self.bytes + bytes > TARGETS_BYTES_MAX {
            self.finish_row();
        }
        self.bytes += bytes;
    }

    fn finish_row(&mut self) {
        if self.job.targets.is_empty() && self.job.users.is_empty() {
            return;
        }
        let (targets, users) = (std::mem::take(&mut self.job.targets), std::mem::take(&mut self.job.users));
        let job = Job { targets, users, ..self.job.clone() };
        self.rows.push(JobRow { due: self.due, position: self.position, part: self.part, job });
        (self.part, self.bytes, self.last_user) = (self.due.next(self.part), 0, 0);
    }

    /// Takes the rows that are full.
    pub(crate) fn take_rows(&mut self) -> Vec<JobRow> {
        std::mem::take(&mut self.rows)
    }

    /// All rows that were not taken yet.
    pub(crate) fn finish(mut self) -> Vec<JobRow> {
        self.finish_row();
        self.rows
    }
}

/// The least position of some rows, by the channel's number.
pub(crate) struct JobNews(Vec<(u64, Position)>);

impl JobNews {
    /// Of those rows among the changes that are of channels.
    pub(crate) fn of(changes: &[RowChange]) -> JobNews {
        let mut news: Vec<(u64, Position)> = Vec::new();
        for (channel, position) in changes.iter().filter_map(|change| channel_job_of(&change.key)) {
            match news.iter_mut().find(|(known, _)| *known == channel) {
                Some((_, least)) => *least = position.min(*least),
                None => news.push((channel, position)),
            }
        }
        JobNews(news)
    }
}

/// Tells the workers of channels of rows that come behind those that they have read: rows of a message that a session did not
/// acknowledge have the position of that message.
pub(crate) struct JobSignals {
    least: [AtomicU64; PROVIDERS_MAX + OTHER_CHANNELS_MAX],
    /// How many rows of pushes each provider has not dealt with, as far as they are read.
    pushes: [AtomicUsize; PROVIDERS_MAX],
}

impl Default for JobSignals {
    fn default() -> Self {
        JobSignals {
            least: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            pushes: std::array::from_fn(|_| AtomicUsize::new(0)),
        }
    }
}

impl JobSignals {
    fn place(&self, number: u64) -> &AtomicU64 {
        let other = number.checked_sub(OTHER_CHANNELS).map(|other| PROVIDERS_MAX + other as usize);
        &self.least[other.unwrap_or(number as usize).min(self.least.len() - 1)]
    }

    /// The worker of a channel has so many rows of pushes.
    pub(crate) fn note_pushes(&self, channel: Channel, rows: usize) {
        let provider = channel.provider().and_then(|provider| self.pushes.get(provider.number() as usize));
        provider.into_iter().for_each(|pushes| pushes.store(rows, Ordering::Relaxed));
    }

    /// How many rows of pushes a provider has not dealt with.
    pub(crate) fn pushes(&self, provider: PushProvider) -> usize {
        self.pushes.get(provider.number() as usize).map_or(0, |pushes| pushes.load(Ordering::Relaxed))
    }

    /// The rows of these channels are stored.
    pub(crate) fn note(&self, news: &JobNews) {
        for (channel, position) in &news.0 {
            self.place(*channel).fetch_min(*position, Ordering::AcqRel);
        }
    }

    /// The least position of the rows since the last call.
    fn take(&self, channel: Channel) -> Position {
        self.place(number_of(channel)).swap(u64::MAX, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_come_out_as_they_went_in_and_rows_stay_below_their_limit() {
        let message = OutboxItem { position: 7, conversation: ConversationNo(1), seq: 3 };
        let mut writer = JobWriter::new(Due::Now(Channel::Webhook), message, JobPart::FIRST).users_max(1_000);
        let users: Vec<u64> = (0..5_000).map(|n| n * 37 % 4_999 + (n % 3) * (u64::MAX / 4)).collect();
        let mut changes = Vec::new();
        users.iter().for_each(|user| writer.add_user(UserNo(*user)));
        changes.extend(writer.finish().iter().map(JobRow::change));
        let mut found = Vec::new();
        let mut part = JobPart::FIRST;
        for change in &changes {
            assert_eq!(change.key, Due::Now(Channel::Webhook).key(7, part));
            part = part.next();
            let value = change.value.clone().unwrap_or_default();
            assert!(value.len() <= ROW_BYTES_MAX, "{} bytes", value.len());
            let job = Job::decode(&value).unwrap_or_default();
            assert!(job.users.len() <= 1_000);
            found.extend(job.users().map(|user| user.0));
        }
        assert_eq!(found, users);
    }
}

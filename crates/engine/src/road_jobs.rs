//! The rows of what roads are still to do: one message, for some users or devices, by one road. The reach stage writes them, and
//! the worker of each road removes them.

mod queue;

use crate::{
    json_len::{digits, json_len},
    message_runs::{OLDER_BYTES_MAX, seqs_before},
    reach_trace::{Record, Whom},
};
pub(crate) use queue::JobQueue;
use serde::{Deserialize, Serialize};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tidings_domain::{
    chat_rows::{encode, road_job_key, road_job_of, waiting_road_key},
    model::*,
    store::{OutboxItem, ROW_BYTES_MAX, RowChange, StoreError, StoreResult},
};
use tidings_protocol::http::{PolicyRoad, PushVendor, ReachOutcome};

/// Bytes of a row's targets, so that a row with all the rest stays below its limit.
const TARGETS_BYTES_MAX: usize = ROW_BYTES_MAX - 512 - OLDER_BYTES_MAX;
/// The roads that are not vendors have numbers from here on, so that there is room for vendors.
const OTHER_ROADS: u64 = 64;
/// Vendors that there may be.
const VENDORS_MAX: usize = 16;
/// Other roads that there may be.
const OTHER_ROADS_MAX: usize = 4;
/// Parts from here on are of messages that a session did not acknowledge, [`PARTS_PER_USER`] for each user.
pub(crate) const UNACKNOWLEDGED_PARTS: u64 = 1 << 62;
pub(crate) const PARTS_PER_USER: u64 = 1 << 8;

/// The parts of the rows that one row for later becomes at its time: more than it has users, and than all their devices need.
pub(crate) const PARTS_PER_LATER_ROW: u64 = 1 << 14;
/// The parts of a message's rows that belong to one road of one rule.
pub(crate) const PARTS_PER_STEP: u64 = 1 << 40;
/// The bits of a road's place in its rule, and of whether users are told though they have a session.
const STEP_BITS: u32 = 5;

/// Which run of [`PARTS_PER_STEP`] parts the rows of one road of one rule have. Those of all rules are below [`SERVICE_SHIFT`].
pub(crate) fn step_number(rule_at: usize, road_at: usize, even_online: bool) -> u64 {
    (rule_at as u64) << STEP_BITS | (road_at as u64) << 1 | u64::from(even_online)
}

/// A road that is due together with one before it that stops others waits so long for that one's outcome.
pub(crate) const OUTCOME_WAIT_MS: u64 = 10_000;

/// Where the service stands in the number of a part: above the parts of a message, and below the bits of withdrawals and of
/// unacknowledged messages.
const SERVICE_SHIFT: u32 = 52;
const SERVICE_BITS: u64 = (1 << 8) - 1;
/// Services that have a lane of their own. The others are with the last of these.
const SERVICES_MAX: u64 = SERVICE_BITS - 1;

/// The number of the part with those devices of a part that failed at this service of the vendor's.
pub(crate) fn part_of_service(part: u64, service: u64) -> u64 {
    part & !(SERVICE_BITS << SERVICE_SHIFT) | (service.min(SERVICES_MAX) + 1) << SERVICE_SHIFT
}

/// The service whose devices a part has; `None`: it was never tried, and has those of any.
pub(crate) fn service_of_part(part: u64) -> Option<u64> {
    (part >> SERVICE_SHIFT & SERVICE_BITS).checked_sub(1)
}

/// A road that has rows of its own. Its number is part of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum JobRoad {
    Vendor(PushVendor),
    Webhook,
    DevicePush,
    Popup,
    /// Any road, at a time in milliseconds since 1970 UTC.
    Later(u64),
}

impl JobRoad {
    /// The road, if it has rows that name users.
    pub(crate) fn of_users(road: PolicyRoad) -> Option<JobRoad> {
        match road {
            PolicyRoad::Webhook => Some(JobRoad::Webhook),
            PolicyRoad::DevicePush => Some(JobRoad::DevicePush),
            PolicyRoad::Popup => Some(JobRoad::Popup),
            PolicyRoad::Session | PolicyRoad::Vendors => None,
        }
    }

    fn number(self) -> u64 {
        match self {
            JobRoad::Vendor(vendor) => vendor as u64,
            JobRoad::Webhook | JobRoad::Later(_) => OTHER_ROADS,
            JobRoad::DevicePush => OTHER_ROADS + 1,
            JobRoad::Popup => OTHER_ROADS + 2,
        }
    }

    pub(crate) fn key(self, position: Position, part: u64) -> Vec<u8> {
        match self {
            JobRoad::Later(due) => waiting_road_key(due, position, part),
            JobRoad::Vendor(_) | JobRoad::Webhook | JobRoad::DevicePush | JobRoad::Popup => {
                road_job_key(self.number(), position, part)
            }
        }
    }

    /// How far parts of one writer are from each other. A row for later becomes several rows at its time.
    fn stride(self) -> u64 {
        if matches!(self, JobRoad::Later(_)) { PARTS_PER_LATER_ROW } else { 1 }
    }

    /// The last key that a row of the road can have.
    pub(crate) fn last_key(self) -> Vec<u8> {
        self.key(u64::MAX, u64::MAX)
    }

    /// The range of the rows of a message.
    pub(crate) fn keys_of(self, position: Position) -> (Vec<u8>, Vec<u8>) {
        (self.key(position, 0), self.key(position, u64::MAX))
    }
}

/// How often rows are read when none was due.
const POLL: Duration = Duration::from_millis(100);
/// After a round further rows gather for so long: each write is synced to the disk, and the commits of messages wait meanwhile.
const GATHER: Duration = Duration::from_millis(20);

/// How a round of the reach stage or of a road's worker ended.
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
    pub(crate) fn record(&self, outcome: ReachOutcome, cause: Option<String>) -> Record {
        Record { cause, ..Record::new(Whom::Device(self.0, self.1.clone()), outcome) }
    }
}

/// The value of a row. The names are short since there are many.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    #[serde(rename = "c")]
    pub(crate) conversation: u64,
    #[serde(rename = "s")]
    pub(crate) seq: u64,
    /// Devices, of a road that reaches devices.
    #[serde(rename = "t", default, skip_serializing_if = "is_default")]
    pub(crate) targets: Vec<Target>,
    /// The numbers of users, of a road that reaches users: each as what it is more than the one before.
    #[serde(rename = "u", default, skip_serializing_if = "is_default")]
    pub(crate) users: Vec<i64>,
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub(crate) attempts: u32,
    /// Users are told though they have a session: it did not acknowledge the message.
    #[serde(rename = "o", default, skip_serializing_if = "is_default")]
    pub(crate) even_online: bool,
    /// The id of the policy's rule, and the place of the road in it.
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub(crate) rule: String,
    #[serde(rename = "i", default, skip_serializing_if = "is_default")]
    pub(crate) step: u32,
    /// Success cancels roads that wait for their time.
    #[serde(rename = "m", default, skip_serializing_if = "is_default")]
    pub(crate) stops_others: bool,
    /// The devices are to take away what they show of the message.
    #[serde(rename = "w", default, skip_serializing_if = "is_default")]
    pub(crate) withdraws: bool,
    /// When a dead letter became this job, in milliseconds since 1970 UTC; 0: it is none. Its time to live begins then.
    #[serde(rename = "d", default, skip_serializing_if = "is_default")]
    pub(crate) replayed_at: u64,
    /// The pushes of which it is to be learned whether the users have them.
    #[serde(rename = "p", default, skip_serializing_if = "is_default")]
    pub(crate) pushes: Vec<u64>,
    /// Why the last attempt failed.
    #[serde(rename = "x", default, skip_serializing_if = "is_default")]
    pub(crate) cause: Option<String>,
    /// The messages of the conversation before this one whose place this one takes for all of the devices, as in
    /// [`message_runs`](crate::message_runs). Where this one cannot be told they are.
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
        serde_json::from_slice(row).map_err(|error| StoreError::Damaged(format!("what a road is still to do: {error}")))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Whom it is to reach.
    pub(crate) fn people(&self) -> impl Iterator<Item = UserNo> {
        self.users().chain(self.targets.iter().map(|target| UserNo(target.0)))
    }

    /// The users, of a road that reaches users.
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
    pub(crate) road: JobRoad,
    pub(crate) position: Position,
    pub(crate) part: u64,
    pub(crate) job: Job,
}

impl JobRow {
    pub(crate) fn change(&self) -> RowChange {
        RowChange { key: self.road.key(self.position, self.part), value: Some(self.job.encode()) }
    }
}

/// Gathers the devices or users of one message and one road into rows.
pub(crate) struct JobWriter {
    road: JobRoad,
    position: Position,
    part: u64,
    job: Job,
    bytes: usize,
    last_user: u64,
    users_max: usize,
    rows: Vec<JobRow>,
}

impl JobWriter {
    /// The rows get the parts from `part` on.
    pub(crate) fn new(road: JobRoad, message: OutboxItem, part: u64) -> JobWriter {
        let OutboxItem { position, conversation, seq } = message;
        let job = Job { conversation: conversation.0, seq, ..Job::default() };
        JobWriter { road, position, part, job, bytes: 0, last_user: 0, users_max: usize::MAX, rows: Vec::new() }
    }

    #[must_use]
    pub(crate) fn even_online(mut self, even_online: bool) -> JobWriter {
        self.job.even_online = even_online;
        self
    }

    /// Of this road of a rule of the policy. `stops_others`: success cancels roads that wait for their time.
    #[must_use]
    pub(crate) fn of_step(mut self, rule: &str, step: u32, stops_others: bool) -> JobWriter {
        rule.clone_into(&mut self.job.rule);
        (self.job.step, self.job.stops_others) = (step, stops_others);
        self
    }

    /// The devices are to take away what they show of the message.
    #[must_use]
    pub(crate) fn withdrawing(mut self) -> JobWriter {
        self.job.withdraws = true;
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
        self.rows.push(JobRow { road: self.road, position: self.position, part: self.part, job });
        (self.part, self.bytes, self.last_user) = (self.part + self.road.stride(), 0, 0);
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

/// The least position of some rows, by the road's number.
pub(crate) struct JobNews(Vec<(u64, Position)>);

impl JobNews {
    /// Of those rows among the changes that are of roads.
    pub(crate) fn of(changes: &[RowChange]) -> JobNews {
        let mut news: Vec<(u64, Position)> = Vec::new();
        for (road, position) in changes.iter().filter_map(|change| road_job_of(&change.key)) {
            match news.iter_mut().find(|(known, _)| *known == road) {
                Some((_, least)) => *least = position.min(*least),
                None => news.push((road, position)),
            }
        }
        JobNews(news)
    }
}

/// Tells the workers of roads of rows that come behind those that they have read: rows of a message that a session did not
/// acknowledge have the position of that message.
pub(crate) struct JobSignals([AtomicU64; VENDORS_MAX + OTHER_ROADS_MAX]);

impl Default for JobSignals {
    fn default() -> Self {
        JobSignals(std::array::from_fn(|_| AtomicU64::new(u64::MAX)))
    }
}

impl JobSignals {
    fn place(&self, number: u64) -> &AtomicU64 {
        let other = number.checked_sub(OTHER_ROADS).map(|other| VENDORS_MAX + other as usize);
        &self.0[other.unwrap_or(number as usize).min(self.0.len() - 1)]
    }

    /// The rows of these roads are stored.
    pub(crate) fn note(&self, news: &JobNews) {
        for (road, position) in &news.0 {
            self.place(*road).fetch_min(*position, Ordering::AcqRel);
        }
    }

    /// The least position of the rows since the last call.
    fn take(&self, road: JobRoad) -> Position {
        self.place(road.number()).swap(u64::MAX, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_protocol::limits::{REACH_ROADS_MAX, REACH_RULES_MAX};

    #[test]
    fn the_rows_of_all_roads_of_all_rules_have_parts_of_their_own() {
        let mut seen = std::collections::HashSet::new();
        for (rule, road) in (0..REACH_RULES_MAX).flat_map(|rule| (0..REACH_ROADS_MAX).map(move |road| (rule, road))) {
            for even_online in [false, true] {
                let first = step_number(rule, road, even_online) * PARTS_PER_STEP;
                assert!(seen.insert(first), "rule {rule}, road {road}");
                let last = first + PARTS_PER_STEP - 1;
                assert_eq!((service_of_part(first), service_of_part(last)), (None, None), "rule {rule}, road {road}");
                assert_eq!(part_of_service(first, 0) & !(SERVICE_BITS << SERVICE_SHIFT), first);
            }
        }
    }

    #[test]
    fn users_come_out_as_they_went_in_and_rows_stay_below_their_limit() {
        let message = OutboxItem { position: 7, conversation: ConversationNo(1), seq: 3 };
        let mut writer = JobWriter::new(JobRoad::Webhook, message, 0).users_max(1_000);
        let users: Vec<u64> = (0..5_000).map(|n| n * 37 % 4_999 + (n % 3) * (u64::MAX / 4)).collect();
        let mut changes = Vec::new();
        users.iter().for_each(|user| writer.add_user(UserNo(*user)));
        changes.extend(writer.finish().iter().map(JobRow::change));
        let mut found = Vec::new();
        for (part, change) in changes.iter().enumerate() {
            assert_eq!(change.key, JobRoad::Webhook.key(7, part as u64));
            let value = change.value.clone().unwrap_or_default();
            assert!(value.len() <= ROW_BYTES_MAX, "{} bytes", value.len());
            let job = Job::decode(&value).unwrap_or_default();
            assert!(job.users.len() <= 1_000);
            found.extend(job.users().map(|user| user.0));
        }
        assert_eq!(found, users);
    }
}

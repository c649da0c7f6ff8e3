//! The records of who was notified of a message, by which channel, and why others were not: what
//! [`Notifications::message_notifications`](crate::Notifications::message_notifications) answers from.
//!
//! A record is a row with a bounded number of users or devices. It is written together with the work that it tells of: by the search
//! for recipients, with those whom it left out, and by each worker after an attempt. Records are kept by day of writing, so
//! that a day goes as a whole.

use crate::{
    json_len::{digits, json_len},
    message_runs::{SPAN_OF_MESSAGES_MAX, seqs_before},
};
use serde::{Deserialize, Serialize};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidings_domain::{
    chat_rows::{
        decode, encode, feed_notes_key, notification_log_before, notification_log_key, notification_log_of,
        notification_log_of_several, notification_log_of_several_key, number_in,
    },
    feed_note::{FeedNote, NotesRow},
    feed_notes::FeedNotes,
    leadership::Term,
    model::*,
    store::{RowChange, RowSpace, Store, StoreResult},
    stored_names,
};
use tidings_engine::directory::Directory;
use tidings_protocol::http::{Channel, EventType, NotificationEvent, NotificationOutcome, NotifiedUser, PushProvider};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// Bytes of users and devices in a row, so that a row with all the rest stays below its limit.
const ROW_BYTES: usize = 2_000;
/// Characters of a cause.
const CAUSE_CHARS_MAX: usize = 100;
/// The first attempts each keep a record; of those after them the last one does.
const ATTEMPTS_KEPT: u64 = 3;
/// Rows that are deleted in one write.
const ROWS_PER_WRITE: usize = 500;
/// Rows in one read.
const ROWS_READ_MAX: usize = 1_000;
/// The search for recipients, among sources of records. The channels have theirs from 1 on.
const SEARCH: u64 = 0;
/// Channels that waited for their time.
const LATER: u64 = 1 << 32;

/// The cause of a channel that was not taken since the policy of its time is not the present one.
pub(crate) const ANOTHER_POLICY: &str = "another policy";

/// Whom a record is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Whom {
    /// The number of a user.
    User(u64),
    /// The number of a user, and a device.
    Device(u64, String),
    /// The id of a user.
    Id(String),
}

impl Whom {
    fn is(&self, user: UserNo, user_id: &str) -> bool {
        match self {
            Whom::User(no) | Whom::Device(no, _) => *no == user.0,
            Whom::Id(id) => id == user_id,
        }
    }
}

/// What became of it, for some users or devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Group {
    #[serde(rename = "o", with = "stored_names::outcome")]
    outcome: NotificationOutcome,
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// The policy's rule.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    rule: Option<Arc<str>>,
    #[serde(rename = "u", default, skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    /// The numbers of users: each as what it is more than the one before.
    #[serde(rename = "n", default, skip_serializing_if = "Vec::is_empty")]
    users: Vec<i64>,
    #[serde(rename = "w", default, skip_serializing_if = "Vec::is_empty")]
    whom: Vec<Whom>,
    /// The last of `users`, while the group is gathered.
    #[serde(skip)]
    last_user: u64,
}

impl Group {
    /// Adds a user or a device; answers how many bytes it takes, about.
    fn add(&mut self, whom: Whom) -> usize {
        let bytes = match &whom {
            Whom::User(no) => {
                let more = no.wrapping_sub(std::mem::replace(&mut self.last_user, *no)) as i64;
                self.users.push(more);
                return digits(more.unsigned_abs()) + 2;
            }
            Whom::Device(no, device) => digits(*no) + json_len(device) + 4,
            Whom::Id(id) => json_len(id) + 1,
        };
        self.whom.push(whom);
        bytes
    }

    /// Whom it is about.
    fn whom(&self) -> impl Iterator<Item = Whom> {
        let by_number = self.users.iter().scan(0_u64, |last, more| {
            *last = last.wrapping_add_signed(*more);
            Some(Whom::User(*last))
        });
        by_number.chain(self.whom.iter().cloned())
    }

    /// What it has of this user: the device of each, if it is known.
    fn of_user(&self, user: UserNo, user_id: &str) -> impl Iterator<Item = Option<String>> {
        let by_number = self.users.iter().scan(0_u64, |last, more| {
            *last = last.wrapping_add_signed(*more);
            Some(*last)
        });
        let by_number = by_number.filter(move |no| *no == user.0).map(|_| None);
        let device = |whom: &Whom| if let Whom::Device(_, device) = whom { Some(device.clone()) } else { None };
        by_number.chain(self.whom.iter().filter(move |whom| whom.is(user, user_id)).map(device))
    }
}

/// The value of a row. The names are short since there are many.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Row {
    #[serde(rename = "a")]
    at: u64,
    #[serde(rename = "g")]
    groups: Vec<Group>,
    /// The older messages of which it is too, the newest first: each as what its `seq` is less than the one before.
    #[serde(rename = "b", skip_serializing_if = "Vec::is_empty")]
    older: Vec<u64>,
}

impl Row {
    /// Adds what it has of a user.
    fn add_of_user(self, user: &User, channel: Option<Channel>, found: &mut Vec<Recorded>) {
        for group in self.groups {
            found.extend(group.of_user(user.no, &user.id).map(|device| Recorded {
                at: self.at,
                channel,
                outcome: group.outcome,
                cause: group.cause.clone(),
                device,
                until: group.until,
                rule: group.rule.clone(),
            }));
        }
    }
}

/// One outcome, to be recorded.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) whom: Whom,
    pub(crate) outcome: NotificationOutcome,
    pub(crate) cause: Option<String>,
    pub(crate) until: Option<u64>,
    /// The id of the policy's rule.
    pub(crate) rule: Option<Arc<str>>,
}

impl Record {
    pub(crate) fn new(whom: Whom, outcome: NotificationOutcome) -> Record {
        Record { whom, outcome, cause: None, until: None, rule: None }
    }

    pub(crate) fn of_user(user: UserNo, outcome: NotificationOutcome) -> Record {
        Record::new(Whom::User(user.0), outcome)
    }

    #[must_use]
    pub(crate) fn because(self, cause: impl Into<String>) -> Record {
        Record { cause: Some(cause.into()), ..self }
    }

    #[must_use]
    pub(crate) fn by_rule(self, rule: Option<Arc<str>>) -> Record {
        Record { rule, ..self }
    }

    #[must_use]
    pub(crate) fn until(self, until: u64) -> Record {
        Record { until: Some(until), ..self }
    }
}

/// One outcome for one user, as it was recorded.
#[derive(PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) at: u64,
    pub(crate) channel: Option<Channel>,
    pub(crate) outcome: NotificationOutcome,
    pub(crate) cause: Option<String>,
    pub(crate) device: Option<String>,
    pub(crate) until: Option<u64>,
    pub(crate) rule: Option<Arc<str>>,
}

/// Where a record comes from. Two records with the same place are one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// The search for recipients, in this part of a large conversation.
    Search {
        part: u64,
    },
    Provider {
        provider: PushProvider,
        part: u64,
        attempt: u64,
    },
    Webhook {
        event: u64,
        attempt: u64,
    },
    /// A channel that this server takes by itself.
    Internal {
        channel: Channel,
        part: u64,
        attempt: u64,
    },
    /// The question who has what such a channel notified: each finds others.
    Acknowledged {
        channel: Channel,
        part: u64,
        check: u64,
    },
    /// A channel that waited for its time: the part of its row; of one that quiet hours deferred, what tells it from others of the part.
    Later {
        part: u64,
        deferred: u32,
    },
}

impl Source {
    /// The channel that was tried, if one was.
    fn channel(self) -> Option<Channel> {
        match self {
            Source::Search { .. } | Source::Later { .. } => None,
            Source::Provider { provider, .. } => Some(provider.into()),
            Source::Webhook { .. } => Some(Channel::Webhook),
            Source::Internal { channel, .. } | Source::Acknowledged { channel, .. } => Some(channel),
        }
    }

    fn place(self, chunk: u64) -> [u64; 3] {
        let attempt = |attempt: u64| attempt.min(ATTEMPTS_KEPT) << 32 | chunk;
        match self {
            Source::Search { part } => [SEARCH, part, chunk],
            Source::Provider { provider, part, attempt: number } => {
                [Channel::from(provider).number() + 1, part, attempt(number)]
            }
            Source::Internal { channel, part, attempt: number } => [channel.number() + 1, part, attempt(number)],
            Source::Acknowledged { channel, part, check } => [channel.number() + 1, part, check << 32 | chunk],
            Source::Later { part, deferred } => [LATER, part, u64::from(deferred) << 32 | chunk],
            Source::Webhook { event, attempt: number } => [Channel::Webhook.number() + 1, event, attempt(number)],
        }
    }
}

/// What the feed of events has of records: their ids are looked up as they are written.
struct NotificationFeed {
    notes: Arc<FeedNotes>,
    directory: Arc<Directory>,
}

/// Bytes of users in a note, and of older messages, so that it fits a row with all the rest.
const NOTE_USERS_BYTES: usize = 1_200;
const NOTE_OLDER_BYTES: usize = 700;

impl NotificationFeed {
    /// Adds the rows of events of these groups.
    fn add(
        &self,
        rows: &RecordRows,
        (conversation, seq): (ConversationNo, u64),
        older: &[u64],
        changes: &mut Vec<RowChange>,
    ) {
        let Ok(Some(conversation)) = self.directory.conversation(conversation) else { return };
        let (mut notes, mut bytes) = (Vec::new(), 0);
        let fits = |seq: &u64| {
            bytes += digits(*seq) + 1;
            bytes <= NOTE_OLDER_BYTES
        };
        let older: Vec<u64> = seqs_before(seq, older).take_while(fits).collect();
        for group in rows.groups.iter().flatten() {
            let mut event = NotificationEvent {
                conversation: conversation.id.clone(),
                seq,
                older: older.clone(),
                channel: rows.source.channel(),
                outcome: group.outcome,
                cause: group.cause.clone(),
                rule: group.rule.as_deref().map(str::to_owned),
                until: group.until,
                users: Vec::new(),
            };
            let mut note = |event: &NotificationEvent| {
                notes.push(FeedNote::new(EventType::Notification, &event.conversation, rows.at, event));
            };
            let mut bytes = 0;
            for user in group.whom().filter_map(|whom| self.user_of(whom)) {
                let more = json_len(&user.user) + user.device_id.as_deref().map_or(0, json_len) + 26;
                if bytes + more > NOTE_USERS_BYTES {
                    note(&event);
                    event.users.clear();
                    bytes = 0;
                }
                bytes += more;
                event.users.push(user);
            }
            if !event.users.is_empty() {
                note(&event);
            }
        }
        let row = |NotesRow { no, bytes }| RowChange { key: feed_notes_key(no), value: Some(bytes) };
        changes.extend(self.notes.rows(notes).into_iter().map(row));
    }

    /// `None`: the user is no more.
    fn user_of(&self, whom: Whom) -> Option<NotifiedUser> {
        let (no, device_id) = match whom {
            Whom::User(no) => (no, None),
            Whom::Device(no, device) => (no, Some(device)),
            Whom::Id(user) => return Some(NotifiedUser { user, device_id: None }),
        };
        let user = self.directory.user(UserNo(no)).ok().flatten()?;
        Some(NotifiedUser { user: user.id.clone(), device_id })
    }
}

/// The rows of some records, without the messages that they are of.
pub(crate) struct RecordRows {
    feed: Option<Arc<NotificationFeed>>,
    source: Source,
    at: u64,
    groups: Vec<Vec<Group>>,
}

impl RecordRows {
    /// Adds them as those of this message and of these older ones, which are written as in [`Row`].
    pub(crate) fn add_to(
        &self,
        (conversation, seq): (ConversationNo, u64),
        older: &[u64],
        changes: &mut Vec<RowChange>,
    ) {
        let RecordRows { source, at, groups, feed } = self;
        if let Some(feed) = feed {
            feed.add(self, (conversation, seq), older, changes);
        }
        let key = if older.is_empty() { notification_log_key } else { notification_log_of_several_key };
        changes.extend(groups.iter().zip(0..).map(|(groups, chunk)| RowChange {
            key: key(at / DAY_MS, conversation, seq, source.place(chunk)),
            value: Some(encode(&Row { at: *at, groups: groups.clone(), older: older.to_vec() })),
        }));
    }
}

/// The channel of a source, by its number.
fn channel_of(source: u64) -> Option<Channel> {
    Channel::of_number(source.checked_sub(1)?)
}

/// Writes, reads and removes records.
pub(crate) struct NotificationLog {
    /// For how many days records are kept; 0: none are written.
    days: u64,
    /// The day up to which old records were removed.
    pruned: AtomicU64,
    feed: Option<Arc<NotificationFeed>>,
}

impl NotificationLog {
    pub(crate) fn new(days: u32) -> NotificationLog {
        NotificationLog { days: days.into(), pruned: AtomicU64::new(0), feed: None }
    }

    /// The feed of events is to have the records, too.
    pub(crate) fn with_feed(self, notes: Arc<FeedNotes>, directory: Arc<Directory>) -> NotificationLog {
        NotificationLog { feed: Some(Arc::new(NotificationFeed { notes, directory })), ..self }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.days > 0
    }

    /// Adds the rows of these records, which are all of one source and one message.
    pub(crate) fn add(
        &self,
        (conversation, seq): (ConversationNo, u64),
        source: Source,
        at: u64,
        records: impl IntoIterator<Item = Record>,
        changes: &mut Vec<RowChange>,
    ) {
        self.rows(source, at, records).add_to((conversation, seq), &[], changes);
    }

    /// The rows of these records, which are all of one source, for one message or several.
    pub(crate) fn rows(&self, source: Source, at: u64, records: impl IntoIterator<Item = Record>) -> RecordRows {
        let feed = self.feed.clone().filter(|feed| feed.notes.wants(EventType::Notification));
        let mut rows = RecordRows { source, at, groups: Vec::new(), feed };
        if !self.is_on() {
            return rows;
        }
        let (mut groups, mut bytes) = (Vec::<Group>::new(), 0);
        for Record { whom, outcome, cause, until, rule } in records {
            let cause = cause.map(|mut cause| {
                cause.truncate(cause.char_indices().nth(CAUSE_CHARS_MAX).map_or(cause.len(), |(end, _)| end));
                cause
            });
            let is_same = |group: &&mut Group| {
                (group.outcome, &group.cause, group.until, &group.rule) == (outcome, &cause, until, &rule)
            };
            match groups.iter_mut().find(is_same) {
                Some(group) => bytes += group.add(whom),
                None => {
                    let (users, devices, last_user) = Default::default();
                    let mut group = Group { outcome, cause, until, rule, users, whom: devices, last_user };
                    bytes += 60 + encode(&group.cause).len() + group.rule.as_ref().map_or(0, |rule| rule.len() * 2);
                    bytes += group.add(whom);
                    groups.push(group);
                }
            }
            if bytes > ROW_BYTES {
                rows.groups.push(std::mem::take(&mut groups));
                bytes = 0;
            }
        }
        if !groups.is_empty() {
            rows.groups.push(groups);
        }
        rows
    }

    /// What is recorded of a user and a message, the oldest first.
    pub(crate) fn read(
        &self,
        store: &dyn Store,
        conversation: ConversationNo,
        message: &StoredEntry,
        user: &User,
        now_ms: u64,
    ) -> StoreResult<Vec<Recorded>> {
        let (first, last) = (message.at / DAY_MS, now_ms / DAY_MS);
        let is_sender = message.content.sender.as_ref().is_some_and(|sender| sender.no == user.no);
        let mut found = Vec::new();
        let seq = message.seq;
        for day in first.max(last.saturating_sub(self.days))..=last {
            let of_one = notification_log_of(day, conversation, seq);
            let of_several =
                notification_log_of_several(day, conversation, (seq, seq.saturating_add(SPAN_OF_MESSAGES_MAX)));
            for (mut from, to) in [of_one, of_several] {
                loop {
                    let rows = store.rows(RowSpace::Chat, &from, &to, ROWS_READ_MAX)?;
                    let Some((last, _)) = rows.last() else { break };
                    from = [&last[..], &[0]].concat();
                    for (key, row) in rows {
                        let row: Row = decode(Some(&row))?;
                        let newest = number_in(&key, 2).unwrap_or_default();
                        if newest != seq && !seqs_before(newest, &row.older).any(|older| older == seq) {
                            continue;
                        }
                        let source = number_in(&key, 3).unwrap_or_default();
                        // What was decided for several messages names their senders, too.
                        if source == SEARCH && is_sender {
                            continue;
                        }
                        row.add_of_user(user, channel_of(source), &mut found);
                    }
                }
            }
        }
        found.sort_by_key(|recorded| recorded.at);
        Ok(found)
    }

    /// Removes some of the records that are too old, once a day; answers whether there may be more.
    pub(crate) fn prune(&self, store: &dyn Store, term: Term, now_ms: u64) -> StoreResult<bool> {
        let today = now_ms / DAY_MS;
        if self.pruned.load(Ordering::Relaxed) == today {
            return Ok(false);
        }
        let mut rows = Vec::new();
        for (from, to) in notification_log_before(today.saturating_sub(self.days)) {
            rows.extend(store.rows(RowSpace::Chat, &from, &to, ROWS_PER_WRITE - rows.len())?);
        }
        let is_last = rows.len() < ROWS_PER_WRITE;
        let changes: Vec<_> = rows.into_iter().map(|(key, _)| RowChange { key, value: None }).collect();
        if !changes.is_empty() {
            store.write_rows(term, RowSpace::Chat, changes)?;
        }
        if is_last {
            self.pruned.store(today, Ordering::Relaxed);
        }
        Ok(!is_last)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_users_that_were_added_whatever_their_order() {
        let numbers = [7, 3, u64::MAX, 3, 0, 1 << 40];
        let records = numbers.into_iter().map(|no| Record::of_user(UserNo(no), NotificationOutcome::Active));
        let device = Record::new(Whom::Device(9, "phone".into()), NotificationOutcome::Active);
        let id = Record::new(Whom::Id("ben".into()), NotificationOutcome::Active);
        let mut changes = Vec::new();
        let source = Source::Search { part: 0 };
        NotificationLog::new(1).add((ConversationNo(1), 1), source, 0, records.chain([device, id]), &mut changes);
        assert_eq!(changes.len(), 1);
        let row: Row = decode(changes[0].value.as_deref()).unwrap();
        let found = |no, id: &str| row.groups[0].of_user(UserNo(no), id).collect::<Vec<_>>();
        for (no, times) in [(7, 1), (3, 2), (u64::MAX, 1), (0, 1), (1 << 40, 1), (4, 0), (10, 0)] {
            assert_eq!(found(no, "x"), vec![None; times], "{no}");
        }
        assert_eq!(found(9, "x"), [Some("phone".to_owned())]);
        assert_eq!(found(2, "ben"), [None]);
    }

    #[test]
    fn rows_of_an_older_version_are_read() {
        let row: Row = decode(Some(br#"{"a":5,"g":[{"o":"active","w":[7,[9,"phone"],"ben"]}]}"#)).unwrap();
        let found = |no, id: &str| row.groups[0].of_user(UserNo(no), id).collect::<Vec<_>>();
        assert_eq!(
            (found(7, "x"), found(9, "x"), found(1, "ben"), found(1, "x")),
            (vec![None], vec![Some("phone".to_owned())], vec![None], vec![])
        );
    }

    #[test]
    fn a_row_of_many_devices_stays_below_its_limit() {
        let device = |no: u64| Record::new(Whom::Device(no, "\"".repeat(64)), NotificationOutcome::Superseded);
        let mut changes = Vec::new();
        NotificationLog::new(1).add(
            (ConversationNo(1), 1),
            Source::Later { part: 0, deferred: 0 },
            0,
            (0..500).map(device),
            &mut changes,
        );
        assert!(changes.len() > 1);
        assert!(
            changes.iter().all(|change| change.value.as_ref().unwrap().len() < tidings_domain::store::ROW_BYTES_MAX)
        );
    }
}

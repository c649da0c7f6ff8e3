//! What is to be sent to a consumer's webhook, and in which order: no socket, no store, no clock of its own.
//!
//! Events of one subject are sent in their order, one request at a time; those of different subjects side by side, many in one
//! request. A request that fails is tried in halves, so that an event which the webhook does not take holds up its own subject only:
//! that subject is put aside, with all events that come for it, and tried again later. A webhook that takes nothing at all is taken for
//! away: nothing more is put aside, and one event is tried now and then.

use crate::{channel_worker::backoff, webhook::CallError};
use serde_json::value::RawValue;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_protocol::limits::EVENTS_ASIDE_MAX;

/// Events that are held at once; more are read once some are dealt with.
const HELD_MAX: usize = 5_000;
/// And their bytes.
const HELD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of events after which a request is closed.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;
/// After so many single events in a row that are not taken, the webhook may be away.
const SUSPECTED_AFTER: u32 = 10;
/// From then on one event is tried at a time, any of those that wait, since those that are not taken often lie side by side. If none is
/// taken for so long, the webhook is away.
const AWAY_AFTER: Duration = Duration::from_secs(1);
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// While the webhook is away, and between attempts of one event.
const AWAY_BACKOFF_MAX: Duration = Duration::from_secs(60);
const BACKOFF_MAX: Duration = Duration::from_secs(3_600);

type Subject = Arc<str>;

/// An event as it is sent.
#[derive(Debug)]
pub(super) struct ReadyEvent {
    pub id: String,
    pub subject: Subject,
    /// The feed after this begins with the event.
    pub before: String,
    /// The feed after this goes on behind it.
    pub cursor: String,
    pub json: Box<RawValue>,
}

/// An event that was put aside: where to read it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AsideEvent {
    /// The number of its row.
    pub number: u64,
    pub id: String,
    pub before: String,
}

/// The events of one subject in a request.
#[derive(Debug)]
pub(super) struct Part {
    pub subject: Subject,
    /// With the numbers of those that were put aside.
    pub events: Vec<(ReadyEvent, Place)>,
}

/// Where an event is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the order in which events were read.
    Read(u64),
    /// Aside, in a row.
    Aside(u64),
}

/// A request that is to be made.
#[derive(Debug)]
pub(super) struct Batch {
    pub parts: Vec<Part>,
}

/// What the webhook said to a request.
pub(super) type Answer = Result<Vec<String>, CallError>;

/// A row of an event that was put aside, as it is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AsideRow {
    pub event: AsideEvent,
    pub subject: Subject,
    pub attempts: u32,
    pub failed_since: u64,
    pub error: String,
}

/// What is to be stored.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// All events up to here are dealt with, or aside.
    pub cursor: Option<String>,
    pub put_aside: Vec<AsideRow>,
    pub removed: Vec<u64>,
    pub dead: Vec<AsideRow>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<(ReadyEvent, u64)>,
    is_under_way: bool,
}

struct Aside {
    events: VecDeque<AsideEvent>,
    attempts: u32,
    failed_since: u64,
    due: Instant,
    error: String,
    is_under_way: bool,
}

/// The limits of a consumer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub batch: usize,
    pub parallel: usize,
    pub give_up: Duration,
}

pub(super) struct Deliveries {
    limits: Limits,
    /// What was read, in its order: the cursor behind each event or page, and whether it is dealt with.
    read: VecDeque<(String, bool)>,
    /// The number of the first of these.
    first: u64,
    queues: HashMap<Subject, Queue>,
    /// Subjects that have something to send and no request under way, by their first event.
    ready: BTreeMap<u64, Subject>,
    held: usize,
    held_bytes: usize,
    aside: HashMap<Subject, Aside>,
    aside_events: usize,
    /// Subjects aside by when they are due, without those under way.
    due: BTreeSet<(Instant, Subject)>,
    last_number: u64,
    /// Halves of requests that have failed.
    again: VecDeque<Batch>,
    under_way: usize,
    aside_under_way: usize,
    /// Single events in a row that were not taken.
    failures: u32,
    /// Since when these are [`SUSPECTED_AFTER`].
    suspected_since: Option<Instant>,
    /// While the webhook is away: when to try it again.
    away_until: Option<Instant>,
    pauses: u32,
    changes: Changes,
    pub delivered: u64,
    pub last_error: Option<String>,
}

impl Deliveries {
    /// `last_number`: of rows that were given up.
    pub(super) fn new(limits: Limits, aside: Vec<AsideRow>, last_number: u64, now: Instant) -> Deliveries {
        let mut deliveries = Deliveries {
            limits,
            read: VecDeque::new(),
            first: 0,
            queues: HashMap::new(),
            ready: BTreeMap::new(),
            held: 0,
            held_bytes: 0,
            aside: HashMap::new(),
            aside_events: 0,
            due: BTreeSet::new(),
            last_number,
            again: VecDeque::new(),
            under_way: 0,
            aside_under_way: 0,
            failures: 0,
            suspected_since: None,
            away_until: None,
            pauses: 0,
            changes: Changes::default(),
            delivered: 0,
            last_error: None,
        };
        for row in aside {
            deliveries.last_number = deliveries.last_number.max(row.event.number);
            deliveries.hold_aside(row, now);
        }
        deliveries
    }

    /// Whether more events may be read.
    pub(super) fn has_room(&self) -> bool {
        self.held < HELD_MAX && self.held_bytes < HELD_BYTES_MAX && self.aside_events < EVENTS_ASIDE_MAX
    }

    pub(super) fn is_away(&self) -> bool {
        self.away_until.is_some()
    }

    pub(super) fn aside_events(&self) -> usize {
        self.aside_events
    }

    /// A page was read. `next` is the cursor behind all of it.
    pub(super) fn add(&mut self, events: Vec<ReadyEvent>, next: String, now: Instant) {
        for event in events {
            let number = self.first + self.read.len() as u64;
            self.read.push_back((event.cursor.clone(), false));
            if self.aside.contains_key(&event.subject) {
                self.put_aside(event.subject.clone(), event.id, event.before, now);
                self.settle(number);
                continue;
            }
            self.held += 1;
            self.held_bytes += event.json.get().len();
            let queue = self.queues.entry(event.subject.clone()).or_default();
            if queue.events.is_empty() && !queue.is_under_way {
                self.ready.insert(number, event.subject.clone());
            }
            queue.events.push_back((event, number));
        }
        let number = self.first + self.read.len() as u64;
        self.read.push_back((next, false));
        self.settle(number);
    }

    /// The next request of events that are not aside; `None`: nothing may be sent now.
    pub(super) fn next_batch(&mut self, now: Instant) -> Option<Batch> {
        if self.under_way >= self.limits.parallel {
            return None;
        }
        if let Some(until) = self.away_until {
            // One event, alone, says whether the webhook is back: now one of those that are aside, now another.
            let aside_is_due = self.due.first().is_some_and(|(due, _)| *due <= now);
            if now < until || self.under_way + self.aside_under_way > 0 || (aside_is_due && rand::random()) {
                return None;
            }
            return self.probe();
        }
        if self.suspected_since.is_some() {
            self.take_back_again();
            return if self.under_way == 0 { self.probe() } else { None };
        }
        let batch = match self.again.pop_front() {
            Some(batch) => batch,
            None => self.batch_from(*self.ready.keys().next()?, usize::MAX, self.limits.batch)?,
        };
        self.under_way += 1;
        Some(batch)
    }

    /// One event, alone.
    fn probe(&mut self) -> Option<Batch> {
        let number = *self.ready.keys().nth(rand::random_range(0..self.ready.len().max(1)))?;
        let batch = self.batch_from(number, 1, 1)?;
        self.under_way += 1;
        Some(batch)
    }

    /// A request of the subject whose first event has this number, and of those behind it.
    fn batch_from(&mut self, number: u64, subjects_max: usize, events_max: usize) -> Option<Batch> {
        let (mut parts, mut events, mut bytes) = (Vec::new(), 0, 0);
        let numbers: Vec<u64> = self.ready.range(number..).map(|(number, _)| *number).take(events_max).collect();
        for number in numbers.into_iter().take(subjects_max) {
            if events >= events_max || bytes >= REQUEST_BYTES_MAX {
                break;
            }
            let subject = self.ready.remove(&number)?;
            let queue = self.queues.get_mut(&subject)?;
            queue.is_under_way = true;
            let mut part = Part { subject, events: Vec::new() };
            while events < events_max
                && bytes < REQUEST_BYTES_MAX
                && let Some((event, number)) = queue.events.pop_front()
            {
                events += 1;
                bytes += event.json.get().len();
                part.events.push((event, Place::Read(number)));
            }
            parts.push(part);
        }
        (!parts.is_empty()).then_some(Batch { parts })
    }

    /// The events of a subject aside that is due, to be read again and sent by [`Deliveries::send_aside`].
    pub(super) fn next_aside(&mut self, now: Instant) -> Option<(Subject, Vec<AsideEvent>)> {
        let is_allowed = match self.away_until {
            Some(until) => now >= until && self.under_way + self.aside_under_way == 0,
            // They may take long to fail: most requests are for subjects that do not.
            None => self.aside_under_way < self.limits.parallel.div_ceil(4),
        };
        if !is_allowed {
            return None;
        }
        let (due, subject) = self.due.first()?.clone();
        if due > now {
            return None;
        }
        self.due.remove(&(due, subject.clone()));
        let aside = self.aside.get_mut(&subject)?;
        aside.is_under_way = true;
        self.aside_under_way += 1;
        // What has failed is tried alone.
        let count = if aside.attempts > 0 { 1 } else { self.limits.batch };
        Some((subject, aside.events.iter().take(count).cloned().collect()))
    }

    /// The request of what was read again. Events that were not found are gone: nobody wants to be notified of them any more.
    pub(super) fn send_aside(
        &mut self,
        subject: &Subject,
        asked: &[AsideEvent],
        found: Vec<(ReadyEvent, u64)>,
        now: Instant,
    ) -> Option<Batch> {
        let is_found: BTreeSet<u64> = found.iter().map(|(_, number)| *number).collect();
        let gone: Vec<u64> =
            asked.iter().map(|event| event.number).filter(|number| !is_found.contains(number)).collect();
        self.remove_aside(subject, &gone);
        let events: Vec<(ReadyEvent, Place)> =
            found.into_iter().map(|(event, number)| (event, Place::Aside(number))).collect();
        if events.is_empty() {
            self.end_aside(subject, now);
            return None;
        }
        Some(Batch { parts: vec![Part { subject: subject.clone(), events }] })
    }

    /// What was to be sent again could not be read now.
    pub(super) fn postpone_aside(&mut self, subject: &Subject, now: Instant) {
        self.end_aside(subject, now + BACKOFF_MIN);
    }

    /// A request has ended.
    pub(super) fn finish(&mut self, batch: Batch, answer: Answer, now: Instant, now_ms: u64) {
        let is_aside = matches!(batch.parts.first().and_then(|part| part.events.first()), Some((_, Place::Aside(_))));
        if is_aside {
            return self.finish_aside(batch, answer, now, now_ms);
        }
        self.under_way -= 1;
        match answer {
            Ok(refused) => {
                self.succeeded(now);
                let refused: BTreeSet<String> = refused.into_iter().collect();
                for part in batch.parts {
                    self.finish_part(part, &refused, now, now_ms);
                }
            }
            Err(error) => self.failed(batch, &error, now, now_ms),
        }
    }

    /// The webhook took a request, but for the events that it named.
    fn finish_part(&mut self, part: Part, refused: &BTreeSet<String>, now: Instant, now_ms: u64) {
        let Part { subject, events } = part;
        let mut left = VecDeque::new();
        for (event, place) in events {
            let Place::Read(number) = place else { continue };
            if left.is_empty() && !refused.contains(&event.id) {
                self.let_go(&event);
                self.settle(number);
                self.delivered += 1;
            } else {
                left.push_back((event, number));
            }
        }
        if left.is_empty() {
            self.make_ready(&subject, left);
        } else {
            self.put_subject_aside(&subject, left, "the webhook named the event as failed", now, now_ms);
        }
    }

    fn failed(&mut self, batch: Batch, error: &CallError, now: Instant, now_ms: u64) {
        self.last_error = Some(error.reason.clone());
        let events: usize = batch.parts.iter().map(|part| part.events.len()).sum();
        if error.is_away || self.is_away() {
            self.go_away(error.retry_after, now);
            return self.take_back(batch);
        }
        let Batch { mut parts } = batch;
        if parts.len() > 1 {
            let second = parts.split_off(parts.len() / 2);
            self.again.extend([Batch { parts }, Batch { parts: second }]);
            return;
        }
        let Some(mut part) = parts.pop() else { return };
        if events > 1 {
            // Which of them it is shows when they are tried one by one.
            let rest = part.events.split_off(1);
            let rest = rest.into_iter().filter_map(|(event, place)| match place {
                Place::Read(number) => Some((event, number)),
                Place::Aside(_) => None,
            });
            if let Some(queue) = self.queues.get_mut(&part.subject) {
                rest.rev().for_each(|event| queue.events.push_front(event));
            }
            self.again.push_back(Batch { parts: vec![part] });
            return;
        }
        if self.suspected_since.is_some_and(|since| now - since >= AWAY_AFTER) {
            self.go_away(None, now);
            return self.take_back(Batch { parts: vec![part] });
        }
        self.failures += 1;
        if self.failures == SUSPECTED_AFTER {
            self.suspected_since = Some(now);
        }
        let Part { subject, events } = part;
        let events = events.into_iter().filter_map(|(event, place)| match place {
            Place::Read(number) => Some((event, number)),
            Place::Aside(_) => None,
        });
        let events = events.collect();
        self.put_subject_aside(&subject, events, &error.reason, now, now_ms);
    }

    fn succeeded(&mut self, now: Instant) {
        (self.failures, self.suspected_since, self.pauses) = (0, None, 0);
        if self.away_until.take().is_some() {
            // Those aside may have failed for the same reason.
            let due: Vec<Subject> = std::mem::take(&mut self.due).into_iter().map(|(_, subject)| subject).collect();
            for subject in due {
                if let Some(aside) = self.aside.get_mut(&subject) {
                    aside.due = now;
                }
                self.due.insert((now, subject));
            }
        }
    }

    fn go_away(&mut self, retry_after: Option<Duration>, now: Instant) {
        // Several requests may have been under way.
        if retry_after.is_none() && self.away_until.is_some_and(|until| now < until) {
            return;
        }
        let pause = retry_after.unwrap_or_else(|| backoff(BACKOFF_MIN, AWAY_BACKOFF_MAX, self.pauses));
        self.pauses += 1;
        self.away_until = Some(self.away_until.map_or(now + pause, |until| until.max(now + pause)));
        self.take_back_again();
    }

    fn take_back_again(&mut self) {
        for batch in std::mem::take(&mut self.again) {
            self.take_back(batch);
        }
    }

    /// The events go back to the fronts of their queues.
    fn take_back(&mut self, batch: Batch) {
        for Part { subject, events } in batch.parts {
            let events = events.into_iter().filter_map(|(event, place)| match place {
                Place::Read(number) => Some((event, number)),
                Place::Aside(_) => None,
            });
            self.make_ready(&subject, events.collect());
        }
    }

    /// No request of the subject is under way any more; these events are to be sent before those in its queue.
    fn make_ready(&mut self, subject: &Subject, first: VecDeque<(ReadyEvent, u64)>) {
        let Some(queue) = self.queues.get_mut(subject) else { return };
        queue.is_under_way = false;
        first.into_iter().rev().for_each(|event| queue.events.push_front(event));
        match queue.events.front() {
            Some((_, number)) => drop(self.ready.insert(*number, subject.clone())),
            None => drop(self.queues.remove(subject)),
        }
    }

    /// The webhook does not take the first of these events: they and all behind them of the subject are put aside.
    fn put_subject_aside(
        &mut self,
        subject: &Subject,
        first: VecDeque<(ReadyEvent, u64)>,
        error: &str,
        now: Instant,
        now_ms: u64,
    ) {
        self.last_error = Some(error.to_owned());
        let behind = self.queues.remove(subject).map(|queue| queue.events).unwrap_or_default();
        for (at, (event, number)) in first.into_iter().chain(behind).enumerate() {
            self.let_go(&event);
            if at == 0 {
                let due = now + backoff(BACKOFF_MIN, BACKOFF_MAX, 0);
                let event = self.numbered(event.id, event.before);
                let (subject, error) = (subject.clone(), error.to_owned());
                let row = AsideRow { event, subject, attempts: 1, failed_since: now_ms, error };
                self.changes.put_aside.push(row.clone());
                self.hold_aside(row, due);
            } else {
                self.put_aside(subject.clone(), event.id, event.before, now);
            }
            self.settle(number);
        }
    }

    /// Puts an event behind those of its subject that are aside.
    fn put_aside(&mut self, subject: Subject, id: String, before: String, now: Instant) {
        let event = self.numbered(id, before);
        let row = AsideRow { event, subject, attempts: 0, failed_since: 0, error: String::new() };
        self.changes.put_aside.push(row.clone());
        self.hold_aside(row, now);
    }

    fn numbered(&mut self, id: String, before: String) -> AsideEvent {
        self.last_number += 1;
        AsideEvent { number: self.last_number, id, before }
    }

    /// `due`: when the subject is tried again if this is its first event.
    fn hold_aside(&mut self, row: AsideRow, due: Instant) {
        let AsideRow { event, subject, attempts, failed_since, error } = row;
        self.aside_events += 1;
        let mut is_new = false;
        let aside = self.aside.entry(subject.clone()).or_insert_with(|| {
            is_new = true;
            Aside { events: VecDeque::new(), attempts, failed_since, due, error, is_under_way: false }
        });
        aside.events.push_back(event);
        if is_new {
            self.due.insert((due, subject));
        }
    }

    fn finish_aside(&mut self, batch: Batch, answer: Answer, now: Instant, now_ms: u64) {
        let Some(Part { subject, events }) = batch.parts.into_iter().next() else { return };
        let numbers = events.iter().filter_map(|(_, place)| match place {
            Place::Aside(number) => Some(*number),
            Place::Read(_) => None,
        });
        let numbers: Vec<u64> = numbers.collect();
        let (taken, failed) = match answer {
            Ok(refused) => {
                self.succeeded(now);
                let taken = events.iter().take_while(|(event, _)| !refused.contains(&event.id)).count();
                let failed = (taken < numbers.len()).then(|| "the webhook named the event as failed".to_owned());
                (taken, failed)
            }
            Err(error) if error.is_away => {
                // It is no event's fault.
                self.last_error = Some(error.reason);
                self.go_away(error.retry_after, now);
                (0, None)
            }
            Err(error) if numbers.len() > 1 => {
                // Which of them it is shows when the first is tried alone.
                self.last_error = Some(error.reason.clone());
                (0, Some(error.reason))
            }
            Err(error) => {
                if self.is_away() {
                    self.go_away(None, now);
                }
                (0, Some(error.reason))
            }
        };
        self.delivered += taken as u64;
        self.remove_aside(&subject, &numbers[..taken]);
        let Some(reason) = failed else { return self.end_aside(&subject, now) };
        self.last_error = Some(reason.clone());
        let Some(aside) = self.aside.get_mut(&subject) else { return };
        if aside.attempts == 0 {
            aside.failed_since = now_ms;
        }
        aside.attempts += 1;
        aside.error = reason;
        let Some(event) = aside.events.front().cloned() else { return };
        let (attempts, failed_since, error) = (aside.attempts, aside.failed_since, aside.error.clone());
        let row = AsideRow { event, subject: subject.clone(), attempts, failed_since, error };
        let tried_for = Duration::from_millis(now_ms.saturating_sub(failed_since));
        if numbers.len() == 1 && tried_for >= self.limits.give_up {
            self.remove_aside(&subject, &[row.event.number]);
            self.changes.dead.push(row);
            return self.end_aside(&subject, now);
        }
        self.changes.put_aside.push(row);
        let alone_at_once = numbers.len() > 1;
        let due = if alone_at_once { now } else { now + backoff(BACKOFF_MIN, BACKOFF_MAX, attempts - 1) };
        self.end_aside(&subject, due);
    }

    /// These events of a subject aside are dealt with. The next one has not failed yet.
    fn remove_aside(&mut self, subject: &Subject, numbers: &[u64]) {
        let Some(aside) = self.aside.get_mut(subject).filter(|_| !numbers.is_empty()) else { return };
        let before = aside.events.len();
        aside.events.retain(|event| !numbers.contains(&event.number));
        self.aside_events -= before - aside.events.len();
        (aside.attempts, aside.failed_since) = (0, 0);
        self.changes.removed.extend(numbers);
    }

    /// No request of a subject aside is under way any more.
    fn end_aside(&mut self, subject: &Subject, due: Instant) {
        self.aside_under_way -= 1;
        let Some(aside) = self.aside.get_mut(subject) else { return };
        aside.is_under_way = false;
        aside.due = due;
        if aside.events.is_empty() {
            self.aside.remove(subject);
        } else {
            self.due.insert((due, subject.clone()));
        }
    }

    fn let_go(&mut self, event: &ReadyEvent) {
        self.held -= 1;
        self.held_bytes -= event.json.get().len();
    }

    /// What was read under this number is dealt with, or aside.
    fn settle(&mut self, number: u64) {
        if let Some((_, is_settled)) = self.read.get_mut((number - self.first) as usize) {
            *is_settled = true;
        }
        while self.read.front().is_some_and(|(_, is_settled)| *is_settled)
            && let Some((cursor, _)) = self.read.pop_front()
        {
            self.first += 1;
            self.changes.cursor = Some(cursor);
        }
    }

    /// What has changed since the last call.
    pub(super) fn take_changes(&mut self) -> Option<Changes> {
        let Changes { cursor, put_aside, removed, dead } = &self.changes;
        let is_none = cursor.is_none() && put_aside.is_empty() && removed.is_empty() && dead.is_empty();
        (!is_none).then(|| std::mem::take(&mut self.changes))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::value::to_raw_value;

    fn event(number: usize, subject: usize) -> ReadyEvent {
        let json = to_raw_value(&"x".repeat(300)).unwrap();
        let (before, cursor) = (number.to_string(), (number + 1).to_string());
        ReadyEvent { id: number.to_string(), subject: format!("s{subject}").into(), before, cursor, json }
    }

    /// Of ten thousand subjects each twentieth fails, by themselves or side by side: the others are through after a number of requests
    /// that the failing ones bound, and the webhook is not taken for away.
    #[test]
    fn failing_subjects_cost_a_few_requests_each() {
        const SUBJECTS: usize = 10_000;
        for side_by_side in [1, 10, 50] {
            let limits = Limits { batch: 100, parallel: 8, give_up: Duration::from_secs(86_400) };
            let now = Instant::now();
            let mut deliveries = Deliveries::new(limits, Vec::new(), 0, now);
            let (mut read, mut requests, mut away) = (0, 0, 0);
            let mut under_way = VecDeque::new();
            loop {
                while read < SUBJECTS && deliveries.has_room() {
                    let page = (read..read + 500).map(|number| event(number, number)).collect();
                    read += 500;
                    deliveries.add(page, read.to_string(), now);
                }
                under_way.extend(std::iter::from_fn(|| deliveries.next_batch(now)));
                let Some(batch): Option<Batch> = under_way.pop_front() else { break };
                requests += 1;
                let fails = |part: &Part| (part.subject[1..].parse::<usize>().unwrap() / side_by_side) % 20 == 7;
                let refused = || CallError { reason: "500".into(), is_away: false, retry_after: None };
                let answer = if batch.parts.iter().any(fails) { Err(refused()) } else { Ok(Vec::new()) };
                deliveries.finish(batch, answer, now, 0);
                away += usize::from(deliveries.is_away());
            }
            println!("{side_by_side} side by side: {requests} requests");
            assert_eq!((deliveries.delivered, deliveries.aside_events(), away), (9_500, 500, 0));
            assert!(requests < 500 * 20, "{requests} requests");
        }
    }

    /// A webhook that takes nothing is away after a second: what was tried until then is aside, and the rest waits.
    #[test]
    fn a_webhook_that_takes_nothing_is_away() {
        let limits = Limits { batch: 100, parallel: 8, give_up: Duration::from_secs(86_400) };
        let mut now = Instant::now();
        let mut deliveries = Deliveries::new(limits, Vec::new(), 0, now);
        deliveries.add((0..500).map(|number| event(number, number)).collect(), "500".into(), now);
        let mut requests = 0;
        while let Some(batch) = deliveries.next_batch(now) {
            requests += 1;
            now += Duration::from_millis(100);
            let refused = CallError { reason: "500".into(), is_away: false, retry_after: None };
            deliveries.finish(batch, Err(refused), now, 0);
        }
        assert!(deliveries.is_away() && requests < 200, "{requests} requests");
        assert_eq!((deliveries.held, deliveries.aside_events()), (481, 19));
    }
}

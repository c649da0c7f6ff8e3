//! Frequency counters: how often and when a user was shown something, in all, per placement, per popup and per session.
//! Frequency caps are checked against them. Marks of events are such counters too: how often and when the user did
//! something.
//!
//! A user's counters are one sorted list of 24 bytes each, since those of a million users are held in memory.

use super::{mark_kind::MarkKind, rows};
use tidings_domain::store::{StoreError, StoreResult};
use tidings_protocol::limits::CUSTOM_EVENT_NAMES_MAX;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A session ends this long after its last exposure.
pub(super) const SESSION_MS: u64 = 24 * 60 * 60 * 1_000;
/// Counters of live sessions of one user. Above: popups with a cap per session wait until the oldest session ends.
pub(super) const SESSION_COUNTERS_MAX: usize = 64;
/// A custom event is forgotten so long after it last happened, and so is an assignment: 13 months.
pub(super) const EVENT_MARK_MS: u64 = 400 * 24 * 60 * 60 * 1_000;

/// Whose exposures a counter counts: all, a placement's, a popup's, or one of these within a session. The upper two
/// bits are the kind, so that a sorted list has the counters of sessions at its end. Marks of events share the first kind
/// with the counter of all exposures, and the next two bits tell them apart: servers that know no marks keep them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CounterKey(pub(super) u64);

const KIND: u64 = 3 << 62;
const PLACEMENT: u64 = 1 << 62;
const POPUP: u64 = 2 << 62;
const SESSION: u64 = 3 << 62;
const MARK: u64 = 3 << 60;
const EVENT_MARK: u64 = 1 << 60;
const POPUP_MARK: u64 = 2 << 60;
const JOURNEY: u64 = 3 << 60;
/// Among the marks of popups, beside [`MarkKind`]: until when the user has asked not to be shown the popup.
const SNOOZE: u64 = 15;
/// Among the marks of popups: the user's assignment in a measurement. Its time is that of the assignment, its total the
/// number of the group, and `count_on_day` is 1 once the worker has written the assignment's row with an event.
const ASSIGNMENT: u64 = 14;

impl CounterKey {
    pub(super) const ALL: CounterKey = CounterKey(0);

    pub(super) fn placement(name: &str) -> Self {
        CounterKey(PLACEMENT | (xxh3_64(name.as_bytes()) & !KIND))
    }

    pub(super) fn popup(no: u32) -> Self {
        CounterKey(POPUP | u64::from(no))
    }

    /// The mark of a custom event.
    pub(super) fn event(name: &str) -> Self {
        CounterKey(EVENT_MARK | (xxh3_64(name.as_bytes()) & !(KIND | MARK)))
    }

    /// The mark of what the user did with a popup.
    pub(super) fn popup_event(no: u32, kind: MarkKind) -> Self {
        CounterKey(POPUP_MARK | (kind as u64 + 1) << 32 | u64::from(no))
    }

    /// The mark whose time is the end of a snooze of a popup.
    pub(super) fn snooze(no: u32) -> Self {
        CounterKey(POPUP_MARK | SNOOZE << 32 | u64::from(no))
    }

    /// The user's assignment in a measurement of a popup, whose number has 24 bits.
    pub(super) fn assignment(no: u32, measurement: u32) -> Self {
        CounterKey(POPUP_MARK | u64::from(measurement & 0xFF_FFFF) << 36 | ASSIGNMENT << 32 | u64::from(no))
    }

    /// The numbers of the popup and the measurement, if the mark is an assignment.
    pub(super) fn assignment_of(self) -> Option<(u32, u32)> {
        let is_assignment = self.is_popup_mark() && self.0 >> 32 & 15 == ASSIGNMENT;
        is_assignment.then_some((self.0 as u32, (self.0 >> 36) as u32 & 0xFF_FFFF))
    }

    /// The user's position in a journey.
    pub(super) fn journey(no: u32) -> Self {
        CounterKey(JOURNEY | u64::from(no))
    }

    /// The number of the journey, if the counter is a position in one.
    pub(super) fn journey_no(self) -> Option<u32> {
        (self.0 & (KIND | MARK) == JOURNEY).then_some(self.0 as u32)
    }

    fn is_event_mark(self) -> bool {
        self.0 & (KIND | MARK) == EVENT_MARK
    }

    fn is_popup_mark(self) -> bool {
        self.0 & (KIND | MARK) == POPUP_MARK
    }

    fn is_snooze(self) -> bool {
        self.is_popup_mark() && self.0 >> 32 & 15 == SNOOZE
    }

    fn is_mark(self) -> bool {
        self.0 & KIND == 0 && self != CounterKey::ALL
    }

    /// The counter of the same exposures within one session.
    pub(super) fn within(self, session: u64) -> Self {
        CounterKey(SESSION | (xxh3_64_with_seed(&self.0.to_le_bytes(), session) & !KIND))
    }

    /// The number of the popup or journey, if the counter or mark is one's.
    pub(super) fn owner_no(self) -> Option<u32> {
        (self.0 & KIND == POPUP || self.is_popup_mark() || self.journey_no().is_some()).then_some(self.0 as u32)
    }

    pub(super) fn is_session(self) -> bool {
        self.0 & KIND == SESSION
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrequencyCounter {
    pub(super) key: CounterKey,
    /// When the last exposure was, in milliseconds since 1970 UTC.
    pub(super) last_at: u64,
    pub(super) total: u32,
    /// The civil day of the last exposure, counted from 1970-01-01.
    pub(super) day: u16,
    pub(super) count_on_day: u16,
}

const COUNTER_BYTES: usize = 24;

/// A user's counters, sorted by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FrequencyCounters(Box<[FrequencyCounter]>);

impl FrequencyCounters {
    pub(super) fn get(&self, key: CounterKey) -> Option<&FrequencyCounter> {
        self.0.binary_search_by_key(&key, |counter| counter.key).ok().map(|at| &self.0[at])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &FrequencyCounter> {
        self.0.iter()
    }

    /// Counts one more exposure.
    pub(super) fn count(&mut self, key: CounterKey, now_ms: u64, day: u32) {
        let day = day.min(u32::from(u16::MAX)) as u16;
        match self.0.binary_search_by_key(&key, |counter| counter.key) {
            Ok(at) => {
                let counter = &mut self.0[at];
                counter.total = counter.total.saturating_add(1);
                counter.last_at = now_ms.max(counter.last_at);
                // A clock that was turned back does not start an earlier day anew.
                if day > counter.day {
                    (counter.day, counter.count_on_day) = (day, 0);
                }
                counter.count_on_day = counter.count_on_day.saturating_add(1);
            }
            Err(at) => {
                let mut counters = Vec::with_capacity(self.0.len() + 1);
                counters.extend_from_slice(&self.0[..at]);
                counters.push(FrequencyCounter { key, last_at: now_ms, total: 1, day, count_on_day: 1 });
                counters.extend_from_slice(&self.0[at..]);
                self.0 = counters.into();
            }
        }
    }

    /// Whether there is any mark. Marks follow the counter of all exposures, which is the first.
    pub(super) fn have_marks(&self) -> bool {
        self.0.iter().take(2).any(|counter| counter.key.is_mark())
    }

    /// Marks an event. Of too many custom events the one that happened longest ago is forgotten.
    pub(super) fn mark(&mut self, key: CounterKey, at: u64) {
        self.count(key, at, 0);
        let events = || self.0.iter().filter(|counter| counter.key.is_event_mark());
        if key.is_event_mark()
            && events().count() > CUSTOM_EVENT_NAMES_MAX
            && let Some(oldest) = events().filter(|counter| counter.key != key).min_by_key(|counter| counter.last_at)
        {
            let oldest = oldest.key;
            self.0 = self.0.iter().filter(|counter| counter.key != oldest).copied().collect();
        }
    }

    /// Records an assignment, unless there is one: the first holds.
    pub(super) fn assign(&mut self, key: CounterKey, at: u64, group: u32) {
        if let Err(position) = self.0.binary_search_by_key(&key, |counter| counter.key) {
            let mut counters = self.0.to_vec();
            counters.insert(position, FrequencyCounter { key, last_at: at, total: group, day: 0, count_on_day: 0 });
            self.0 = counters.into();
        }
    }

    /// Whether the user is assigned, and that is not so long ago that it is forgotten.
    pub(super) fn is_assigned(&self, key: CounterKey, now_ms: u64) -> bool {
        self.get(key).is_some_and(|mark| mark.last_at.saturating_add(EVENT_MARK_MS) > now_ms)
    }

    /// The row of an assignment has been written with an event.
    pub(super) fn set_assignment_written(&mut self, key: CounterKey) {
        if let Ok(at) = self.0.binary_search_by_key(&key, |counter| counter.key) {
            self.0[at].count_on_day = 1;
        }
    }

    pub(super) fn assignments(&self) -> impl Iterator<Item = &FrequencyCounter> {
        self.0.iter().filter(|counter| counter.key.assignment_of().is_some())
    }

    /// The user's positions in journeys.
    pub(super) fn journeys(&self) -> impl Iterator<Item = &FrequencyCounter> {
        let from = self.0.partition_point(|counter| counter.key < CounterKey::journey(0));
        self.0[from..].iter().take_while(|counter| counter.key.journey_no().is_some())
    }

    /// Replaces a counter, unless the one that is there has a higher total.
    pub(super) fn put(&mut self, counter: FrequencyCounter) {
        match self.0.binary_search_by_key(&counter.key, |own| own.key) {
            Ok(at) if self.0[at].total <= counter.total => self.0[at] = counter,
            Ok(_) => {}
            Err(at) => {
                let mut counters = self.0.to_vec();
                counters.insert(at, counter);
                self.0 = counters.into();
            }
        }
    }

    /// Replaces a counter that still is as it was.
    pub(super) fn replace(&mut self, was: FrequencyCounter, by: FrequencyCounter) {
        if let Ok(at) = self.0.binary_search_by_key(&was.key, |own| own.key)
            && self.0[at] == was
        {
            self.0[at] = by;
        }
    }

    /// The positions in journeys that differ in `after`, each with what it is there.
    pub(super) fn changed_journeys(&self, after: &FrequencyCounters) -> Vec<(FrequencyCounter, FrequencyCounter)> {
        let changed = |before: &FrequencyCounter| {
            after.get(before.key).filter(|after| *after != before).map(|after| (*before, *after))
        };
        self.journeys().filter_map(changed).collect()
    }

    /// Marks until when the user has asked not to be shown a popup: the last word counts.
    pub(super) fn snooze(&mut self, no: u32, until: u64) {
        let key = CounterKey::snooze(no);
        self.count(key, 0, 0);
        if let Ok(at) = self.0.binary_search_by_key(&key, |counter| counter.key) {
            self.0[at].last_at = until;
        }
    }

    /// Takes over each counter of `other` that has the higher total, and each mark that is later.
    pub(super) fn merge(&mut self, other: &FrequencyCounters) {
        let mut counters = self.0.to_vec();
        for counter in &other.0 {
            match counters.binary_search_by_key(&counter.key, |own| own.key) {
                Ok(at) if counter.key.assignment_of().is_some() => {
                    counters[at].count_on_day = counters[at].count_on_day.max(counter.count_on_day);
                }
                // A mark that was forgotten and made again has a lower total than before.
                Ok(at) if counter.key.is_event_mark() || (counter.key.is_popup_mark() && !counter.key.is_snooze()) => {
                    if (counters[at].last_at, counters[at].total) < (counter.last_at, counter.total) {
                        counters[at] = *counter;
                    }
                }
                Ok(at) if counters[at].total < counter.total => counters[at] = *counter,
                Ok(_) => {}
                Err(at) => counters.insert(at, *counter),
            }
        }
        self.0 = counters.into();
    }

    /// Removes counters that nothing looks at any more: of sessions that have ended, of popups that were deleted, of snoozes
    /// that are over and of custom events long ago.
    pub(super) fn prune(&mut self, now_ms: u64, is_known: impl Fn(u32) -> bool) {
        // A snooze stays for as long as a session, since the clock may be turned back into it.
        let has_ended = |counter: &FrequencyCounter| counter.last_at.saturating_add(SESSION_MS) <= now_ms;
        let is_obsolete = |counter: &FrequencyCounter| match counter.key.owner_no() {
            Some(no) => {
                let is_old = || counter.last_at.saturating_add(EVENT_MARK_MS) <= now_ms;
                !is_known(no)
                    || (counter.key.is_snooze() && has_ended(counter))
                    || (counter.key.assignment_of().is_some() && is_old())
            }
            None if counter.key.is_session() => has_ended(counter),
            None => counter.key.is_event_mark() && counter.last_at.saturating_add(EVENT_MARK_MS) <= now_ms,
        };
        if self.0.iter().any(is_obsolete) {
            self.0 = self.0.iter().filter(|counter| !is_obsolete(counter)).copied().collect();
        }
    }

    /// Whether the session has a counter of this kind that is live.
    pub(super) fn knows_session(&self, key: CounterKey, session: u64, now_ms: u64) -> bool {
        self.get(key.within(session)).is_some_and(|counter| counter.last_at.saturating_add(SESSION_MS) > now_ms)
    }

    /// When there is no room for another session's counter: the time at which enough sessions have ended.
    pub(super) fn sessions_full_until(&self, now_ms: u64) -> Option<u64> {
        let live = |counter: &&FrequencyCounter| {
            counter.key.is_session() && counter.last_at.saturating_add(SESSION_MS) > now_ms
        };
        let mut ends: Vec<u64> = self
            .0
            .iter()
            .rev()
            .take_while(|counter| counter.key.is_session())
            .filter(live)
            .map(|counter| counter.last_at.saturating_add(SESSION_MS))
            .collect();
        if ends.len() < SESSION_COUNTERS_MAX {
            return None;
        }
        ends.sort_unstable();
        ends.get(ends.len() - SESSION_COUNTERS_MAX).copied()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len() * COUNTER_BYTES);
        for counter in &self.0 {
            bytes.extend_from_slice(&counter.key.0.to_le_bytes());
            bytes.extend_from_slice(&counter.last_at.to_le_bytes());
            bytes.extend_from_slice(&counter.total.to_le_bytes());
            bytes.extend_from_slice(&counter.day.to_le_bytes());
            bytes.extend_from_slice(&counter.count_on_day.to_le_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> StoreResult<Self> {
        let (counters, rest) = bytes.as_chunks::<COUNTER_BYTES>();
        let bad = |what: &str| -> StoreError { rows::damaged(&format_args!("a user's marks: {what}")) };
        if !rest.is_empty() {
            return Err(bad("cut off"));
        }
        let counters: Box<[FrequencyCounter]> = counters
            .iter()
            .map(|bytes| {
                let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
                let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
                let total = u32::from_le_bytes(std::array::from_fn(|byte| bytes[16 + byte]));
                FrequencyCounter {
                    key: CounterKey(long(0)),
                    last_at: long(8),
                    total,
                    day: short(20),
                    count_on_day: short(22),
                }
            })
            .collect();
        if counters.is_sorted_by(|a, b| a.key < b.key) {
            Ok(FrequencyCounters(counters))
        } else {
            Err(bad("out of order"))
        }
    }
}

/// The session's name as [`CounterKey::within`] takes it.
pub(super) fn session_hash(session: &str) -> u64 {
    xxh3_64(session.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn counters_count_by_day_round_trip_and_lose_ended_sessions() {
        let (home, popup) = (CounterKey::placement("home"), CounterKey::popup(7));
        let mut counters = FrequencyCounters::default();
        for (key, at, day) in
            [(popup, 10, 5), (CounterKey::ALL, 20, 5), (home, 30, 5), (popup, 40, 5), (popup, 50, 6), (popup, 45, 5)]
        {
            counters.count(key, at, day);
        }
        counters.count(popup.within(1), 60, 6);
        assert_eq!(
            counters.get(popup),
            Some(&FrequencyCounter { key: popup, last_at: 50, total: 4, day: 6, count_on_day: 2 })
        );
        assert_eq!(FrequencyCounters::from_bytes(&counters.to_bytes()).unwrap(), counters);
        assert!(FrequencyCounters::from_bytes(&counters.to_bytes()[1..]).is_err());
        let mut swapped = counters.to_bytes();
        swapped.rotate_left(COUNTER_BYTES);
        assert!(
            FrequencyCounters::from_bytes(&swapped).is_err(),
            "a binary search in an unsorted list would miss counters"
        );
        counters.prune(60 + SESSION_MS - 1, |_| true);
        assert_eq!(counters.len(), 4);
        counters.prune(60 + SESSION_MS, |no| no != 7);
        assert_eq!(counters.iter().map(|counter| counter.key).collect::<Vec<_>>(), [CounterKey::ALL, home]);
    }

    #[test]
    fn a_new_session_finds_room_once_the_oldest_has_ended() {
        let mut counters = FrequencyCounters::default();
        for session in 0..SESSION_COUNTERS_MAX as u64 {
            assert_eq!(counters.sessions_full_until(session), None);
            counters.count(CounterKey::ALL.within(session), 100 + session, 0);
        }
        assert_eq!(counters.sessions_full_until(200), Some(100 + SESSION_MS));
        assert_eq!(counters.sessions_full_until(100 + SESSION_MS), None);
    }

    #[test]
    fn a_merge_keeps_the_higher_total_of_each_counter() {
        let counters = |counts: &[(u32, u64)]| {
            let mut counters = FrequencyCounters::default();
            for (popup, times) in counts {
                (0..*times).for_each(|at| counters.count(CounterKey::popup(*popup), at, 1));
            }
            counters
        };
        let mut merged = counters(&[(1, 3), (2, 1), (4, 1)]);
        merged.merge(&counters(&[(1, 2), (2, 5), (3, 1)]));
        assert_eq!(merged, counters(&[(1, 3), (2, 5), (3, 1), (4, 1)]));
    }

    #[test]
    fn a_counter_takes_24_bytes() {
        assert_eq!(size_of::<FrequencyCounter>(), COUNTER_BYTES);
    }
}

//! Frequency counters: how often and when a user was shown something, in all, per placement, per popup and per session.
//! Frequency caps are checked against them.
//!
//! A user's counters are one sorted list of 24 bytes each, since those of a million users are held in memory.

use super::rows;
use tidings_domain::store::{StoreError, StoreResult};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A session ends this long after its last exposure.
pub(super) const SESSION_MS: u64 = 24 * 60 * 60 * 1_000;
/// Counters of live sessions of one user. Above: popups with a cap per session wait until the oldest session ends.
pub(super) const SESSION_COUNTERS_MAX: usize = 64;

/// Whose exposures a counter counts: all, a placement's, a popup's, or one of these within a session. The upper two
/// bits are the kind, so that a sorted list has the counters of sessions at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CounterKey(pub(super) u64);

const KIND: u64 = 3 << 62;
const PLACEMENT: u64 = 1 << 62;
const POPUP: u64 = 2 << 62;
const SESSION: u64 = 3 << 62;

impl CounterKey {
    pub(super) const ALL: CounterKey = CounterKey(0);

    pub(super) fn placement(name: &str) -> Self {
        CounterKey(PLACEMENT | (xxh3_64(name.as_bytes()) & !KIND))
    }

    pub(super) fn popup(no: u32) -> Self {
        CounterKey(POPUP | u64::from(no))
    }

    /// The counter of the same exposures within one session.
    pub(super) fn within(self, session: u64) -> Self {
        CounterKey(SESSION | (xxh3_64_with_seed(&self.0.to_le_bytes(), session) & !KIND))
    }

    /// The number of the popup, if the counter is a popup's.
    pub(super) fn popup_no(self) -> Option<u32> {
        (self.0 & KIND == POPUP).then_some(self.0 as u32)
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

    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = &FrequencyCounter> {
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

    /// Takes over each counter of `other` that has the higher total.
    pub(super) fn merge(&mut self, other: &FrequencyCounters) {
        let mut counters = self.0.to_vec();
        for counter in &other.0 {
            match counters.binary_search_by_key(&counter.key, |own| own.key) {
                Ok(at) if counters[at].total < counter.total => counters[at] = *counter,
                Ok(_) => {}
                Err(at) => counters.insert(at, *counter),
            }
        }
        self.0 = counters.into();
    }

    /// Removes counters that no cap looks at any more: of sessions that have ended, and of popups that were deleted.
    pub(super) fn prune(&mut self, now_ms: u64, is_known: impl Fn(u32) -> bool) {
        let is_obsolete = |counter: &FrequencyCounter| match counter.key.popup_no() {
            Some(no) => !is_known(no),
            None => counter.key.is_session() && counter.last_at.saturating_add(SESSION_MS) <= now_ms,
        };
        if self.0.iter().any(is_obsolete) {
            self.0 = self.0.iter().filter(|counter| !is_obsolete(counter)).copied().collect();
        }
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
        match counters.is_sorted_by(|a, b| a.key < b.key) {
            true => Ok(FrequencyCounters(counters)),
            false => Err(bad("out of order")),
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

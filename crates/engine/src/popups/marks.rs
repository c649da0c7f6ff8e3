//! What a user was shown: how often and when, in all, per placement, per popup and per session.
//!
//! One sorted list of 24 bytes each, since a million users are held in memory.

use super::rows;
use crate::store::{StoreError, StoreResult};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A session is over when so long nothing was shown in it.
pub(super) const SESSION_MS: u64 = 24 * 60 * 60 * 1_000;
/// Sessions' marks of one user. Above: popups with a cap per session wait until the oldest is over.
pub(super) const SESSION_MARKS_MAX: usize = 64;

/// What a mark counts. The upper two bits are its kind, so that a list's order is that of kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct What(pub(super) u64);

const KIND: u64 = 3 << 62;
const PLACEMENT: u64 = 1 << 62;
const POPUP: u64 = 2 << 62;
const SESSION: u64 = 3 << 62;

impl What {
    pub(super) const ALL: What = What(0);

    pub(super) fn placement(name: &str) -> Self {
        What(PLACEMENT | (xxh3_64(name.as_bytes()) & !KIND))
    }

    pub(super) fn popup(no: u32) -> Self {
        What(POPUP | u64::from(no))
    }

    /// The same, within one session.
    pub(super) fn within(self, session: u64) -> Self {
        What(SESSION | (xxh3_64_with_seed(&self.0.to_le_bytes(), session) & !KIND))
    }

    /// The popup that it counts.
    pub(super) fn popup_no(self) -> Option<u32> {
        (self.0 & KIND == POPUP).then_some(self.0 as u32)
    }

    pub(super) fn is_session(self) -> bool {
        self.0 & KIND == SESSION
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) what: What,
    /// Milliseconds since 1970 UTC.
    pub(super) last_at: u64,
    pub(super) total: u32,
    /// The civil day of `on_day`, counted from 1970-01-01.
    pub(super) day: u16,
    pub(super) on_day: u16,
}

const MARK_BYTES: usize = 24;

/// A user's marks, sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Marks(Box<[Mark]>);

impl Marks {
    pub(super) fn get(&self, what: What) -> Option<&Mark> {
        self.0.binary_search_by_key(&what, |mark| mark.what).ok().map(|at| &self.0[at])
    }

    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = &Mark> {
        self.0.iter()
    }

    /// Counts one more.
    pub(super) fn count(&mut self, what: What, now_ms: u64, day: u32) {
        let day = day.min(u32::from(u16::MAX)) as u16;
        match self.0.binary_search_by_key(&what, |mark| mark.what) {
            Ok(at) => {
                let mark = &mut self.0[at];
                mark.total = mark.total.saturating_add(1);
                mark.last_at = now_ms.max(mark.last_at);
                // A clock that was turned back does not start an earlier day anew.
                if day > mark.day {
                    (mark.day, mark.on_day) = (day, 0);
                }
                mark.on_day = mark.on_day.saturating_add(1);
            }
            Err(at) => {
                let mut marks = Vec::with_capacity(self.0.len() + 1);
                marks.extend_from_slice(&self.0[..at]);
                marks.push(Mark { what, last_at: now_ms, total: 1, day, on_day: 1 });
                marks.extend_from_slice(&self.0[at..]);
                self.0 = marks.into();
            }
        }
    }

    /// Takes over what another list counts more of.
    pub(super) fn merge(&mut self, other: &Marks) {
        let mut marks = self.0.to_vec();
        for mark in &other.0 {
            match marks.binary_search_by_key(&mark.what, |own| own.what) {
                Ok(at) if marks[at].total < mark.total => marks[at] = *mark,
                Ok(_) => {}
                Err(at) => marks.insert(at, *mark),
            }
        }
        self.0 = marks.into();
    }

    /// Drops what no longer counts: sessions that are over, and popups that are gone.
    pub(super) fn tidy(&mut self, now_ms: u64, is_known: impl Fn(u32) -> bool) {
        let over = |mark: &Mark| match mark.what.popup_no() {
            Some(no) => !is_known(no),
            None => mark.what.is_session() && mark.last_at.saturating_add(SESSION_MS) <= now_ms,
        };
        if self.0.iter().any(over) {
            self.0 = self.0.iter().filter(|mark| !over(mark)).copied().collect();
        }
    }

    /// If there is no room for another session's mark: when there will be.
    pub(super) fn sessions_full_until(&self, now_ms: u64) -> Option<u64> {
        let live = |mark: &&Mark| mark.what.is_session() && mark.last_at.saturating_add(SESSION_MS) > now_ms;
        let mut ends: Vec<u64> = self
            .0
            .iter()
            .rev()
            .take_while(|mark| mark.what.is_session())
            .filter(live)
            .map(|mark| mark.last_at.saturating_add(SESSION_MS))
            .collect();
        if ends.len() < SESSION_MARKS_MAX {
            return None;
        }
        ends.sort_unstable();
        ends.get(ends.len() - SESSION_MARKS_MAX).copied()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len() * MARK_BYTES);
        for mark in &self.0 {
            bytes.extend_from_slice(&mark.what.0.to_le_bytes());
            bytes.extend_from_slice(&mark.last_at.to_le_bytes());
            bytes.extend_from_slice(&mark.total.to_le_bytes());
            bytes.extend_from_slice(&mark.day.to_le_bytes());
            bytes.extend_from_slice(&mark.on_day.to_le_bytes());
        }
        bytes
    }

    pub(super) fn of_bytes(bytes: &[u8]) -> StoreResult<Self> {
        let (marks, rest) = bytes.as_chunks::<MARK_BYTES>();
        let bad = |what: &str| -> StoreError { rows::damaged(&format_args!("a user's marks: {what}")) };
        if !rest.is_empty() {
            return Err(bad("cut off"));
        }
        let marks: Box<[Mark]> = marks
            .iter()
            .map(|bytes| {
                let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
                let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
                let total = u32::from_le_bytes(std::array::from_fn(|byte| bytes[16 + byte]));
                Mark { what: What(long(0)), last_at: long(8), total, day: short(20), on_day: short(22) }
            })
            .collect();
        match marks.is_sorted_by(|a, b| a.what < b.what) {
            true => Ok(Marks(marks)),
            false => Err(bad("out of order")),
        }
    }
}

/// A session as marks know it.
pub(super) fn session_hash(session: &str) -> u64 {
    xxh3_64(session.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn marks_are_counted_read_back_and_tidied() {
        let (home, popup) = (What::placement("home"), What::popup(7));
        let mut marks = Marks::default();
        for (what, at, day) in
            [(popup, 10, 5), (What::ALL, 20, 5), (home, 30, 5), (popup, 40, 5), (popup, 50, 6), (popup, 45, 5)]
        {
            marks.count(what, at, day);
        }
        marks.count(popup.within(1), 60, 6);
        assert_eq!(marks.get(popup), Some(&Mark { what: popup, last_at: 50, total: 4, day: 6, on_day: 2 }));
        assert_eq!(Marks::of_bytes(&marks.to_bytes()).unwrap(), marks);
        assert!(Marks::of_bytes(&marks.to_bytes()[1..]).is_err());
        let mut swapped = marks.to_bytes();
        swapped.rotate_left(MARK_BYTES);
        assert!(Marks::of_bytes(&swapped).is_err(), "a list that is not sorted would be searched in vain");
        marks.tidy(60 + SESSION_MS - 1, |_| true);
        assert_eq!(marks.len(), 4);
        marks.tidy(60 + SESSION_MS, |no| no != 7);
        assert_eq!(marks.iter().map(|mark| mark.what).collect::<Vec<_>>(), [What::ALL, home]);
    }

    #[test]
    fn sessions_have_room_again_when_the_oldest_is_over() {
        let mut marks = Marks::default();
        for session in 0..SESSION_MARKS_MAX as u64 {
            assert_eq!(marks.sessions_full_until(session), None);
            marks.count(What::ALL.within(session), 100 + session, 0);
        }
        assert_eq!(marks.sessions_full_until(200), Some(100 + SESSION_MS));
        assert_eq!(marks.sessions_full_until(100 + SESSION_MS), None);
    }

    #[test]
    fn of_two_lists_the_larger_counts_stand() {
        let marks = |counts: &[(u32, u64)]| {
            let mut marks = Marks::default();
            for (popup, times) in counts {
                (0..*times).for_each(|at| marks.count(What::popup(*popup), at, 1));
            }
            marks
        };
        let mut merged = marks(&[(1, 3), (2, 1), (4, 1)]);
        merged.merge(&marks(&[(1, 2), (2, 5), (3, 1)]));
        assert_eq!(merged, marks(&[(1, 3), (2, 5), (3, 1), (4, 1)]));
    }

    #[test]
    fn a_mark_is_small() {
        assert_eq!(size_of::<Mark>(), MARK_BYTES);
    }
}

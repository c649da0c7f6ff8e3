//! When clients of users last said what they have stored, at this node: for those who ask how soon a message was acknowledged. It is in
//! memory alone, and bounded: the newest few of the users that acknowledged lately.

use parking_lot::Mutex;
use quick_cache::unsync::Cache;
use std::collections::VecDeque;
use tidings_domain::model::*;

/// Users in all parts together. Above, those that were quiet longest are forgotten.
const USERS_MAX: usize = 50_000;
/// Acknowledgements of one user.
const NEWEST: usize = 8;
/// Threads that note at the same time rarely wait for each other.
const PARTS: usize = 8;

type Acknowledgements = VecDeque<(u64, [Position; LANES])>;

pub(crate) struct RecentAcknowledgements([Mutex<Cache<u64, Acknowledgements>>; PARTS]);

impl Default for RecentAcknowledgements {
    fn default() -> Self {
        RecentAcknowledgements(std::array::from_fn(|_| Mutex::new(Cache::new(USERS_MAX / PARTS))))
    }
}

impl RecentAcknowledgements {
    /// A client of the user has stored all up to these positions, at this time (milliseconds since 1970 UTC).
    pub(crate) fn note(&self, user: UserNo, positions: [Position; LANES], now_ms: u64) {
        let mut users = self.0[user.0 as usize % PARTS].lock();
        let mut known = users.remove(&user.0).map(|(_, known)| known).unwrap_or_default();
        let is_news = |(_, last): &(u64, [Position; LANES])| last.iter().zip(&positions).any(|(last, now)| now > last);
        if known.back().is_none_or(is_news) {
            if known.len() == NEWEST {
                known.pop_front();
            }
            known.push_back((now_ms, positions));
        }
        users.insert(user.0, known);
    }

    /// When a client of the user first said that it has an entry at this position, as far as that is known.
    pub(crate) fn first(&self, user: UserNo, lane: Lane, position: Position) -> Option<u64> {
        let users = self.0[user.0 as usize % PARTS].lock();
        let known = users.get(&user.0)?;
        known.iter().find(|(_, stored)| stored[lane as usize] >= position).map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_acknowledgement_that_covers_an_entry_counts() {
        let (recent, user) = (RecentAcknowledgements::default(), UserNo(1));
        assert_eq!(recent.first(user, Lane::Group, 5), None);
        for (at, position) in [(10, 4), (20, 6), (30, 6), (40, 9)] {
            let mut positions = [0; LANES];
            positions[Lane::Group as usize] = position;
            recent.note(user, positions, at);
        }
        let first = |position| recent.first(user, Lane::Group, position);
        assert_eq!((first(4), first(5), first(7), first(10)), (Some(10), Some(20), Some(40), None));
        assert_eq!(recent.first(user, Lane::Direct, 1), None);
        assert_eq!(recent.first(UserNo(9), Lane::Group, 1), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let recent = RecentAcknowledgements::default();
        for user in 0..USERS_MAX as u64 * 2 {
            recent.note(UserNo(user), [user; LANES], user);
        }
        let users: usize = recent.0.iter().map(|part| part.lock().len()).sum();
        assert!(users <= USERS_MAX, "{users}");
        (0..100).for_each(|position| recent.note(UserNo(1), [position; LANES], position));
        assert_eq!(recent.first(UserNo(1), Lane::Direct, 0), Some(100 - NEWEST as u64));
    }
}

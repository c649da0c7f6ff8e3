//! From where rows are read.
//!
//! A database keeps what was updated for as long as any transaction is open, so that reading from the start gets slow while one lasts
//! for an hour. Rows of the last seconds are read each time; all rows, in order to find those of long transactions, less often the
//! longer that takes. What [`turns`](crate::turns) takes is right either way.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Rows of transactions that took no longer than this are read each time.
const RECENT: Duration = Duration::from_secs(10);
/// How often the highest number that was read is noted.
const MARK_EVERY: Duration = Duration::from_secs(1);
const LOOK_BACK_EVERY_MIN: Duration = Duration::from_secs(1);
/// Reading all rows takes at most this part of the time.
const LOOK_BACK_SHARE: u32 = 20;

pub(crate) struct Walk {
    /// The last number that this pass has read, while it has more pages.
    cursor: Option<i64>,
    /// The highest numbers that had been read, with when.
    marks: VecDeque<(Instant, i64)>,
    highest: i64,
    look_back_at: Instant,
    /// When this pass began, if it reads all rows.
    looks_back_since: Option<Instant>,
}

impl Walk {
    pub(crate) fn new(now: Instant) -> Walk {
        Walk { cursor: None, marks: VecDeque::new(), highest: 0, look_back_at: now, looks_back_since: None }
    }

    /// After which number the next page is read.
    pub(crate) fn after(&mut self, now: Instant) -> i64 {
        if let Some(cursor) = self.cursor {
            return cursor;
        }
        if now >= self.look_back_at {
            self.looks_back_since = Some(now);
            return 0;
        }
        while self.marks.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= RECENT) {
            self.marks.pop_front();
        }
        self.marks.front().filter(|(at, _)| now.duration_since(*at) >= RECENT).map_or(0, |(_, highest)| *highest)
    }

    /// A page was read. `last`: its last number, if it has any row; `is_full`: there may be more.
    pub(crate) fn have_read(&mut self, last: Option<i64>, is_full: bool, now: Instant) {
        self.highest = self.highest.max(last.unwrap_or(0));
        if self.marks.back().is_none_or(|(at, _)| now.duration_since(*at) >= MARK_EVERY) {
            self.marks.push_back((now, self.highest));
        }
        self.cursor = last.filter(|_| is_full);
        if self.cursor.is_none()
            && let Some(since) = self.looks_back_since.take()
        {
            self.look_back_at = now + (now.duration_since(since) * LOOK_BACK_SHARE).max(LOOK_BACK_EVERY_MIN);
        }
    }

    /// Has all rows read from then on at the latest.
    pub(crate) fn look_back(&mut self, at: Instant) {
        self.look_back_at = self.look_back_at.min(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_rows_are_read_each_time_and_all_rows_now_and_then() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut walk = Walk::new(start);
        assert_eq!(walk.after(at(0.0)), 0);
        walk.have_read(Some(256), true, at(0.1));
        assert_eq!(walk.after(at(0.1)), 256);
        walk.have_read(Some(300), false, at(0.2));
        // That took 0.2 s: the next such pass is 4 s later. Until then nothing is older than ten seconds.
        for second in [1.0, 2.0, 3.0] {
            assert_eq!((walk.after(at(second)), walk.looks_back_since), (0, None));
            walk.have_read(Some(300 + second as i64), false, at(second));
        }
        assert_eq!((walk.after(at(4.3)), walk.looks_back_since), (0, Some(at(4.3))));
        walk.have_read(Some(400), false, at(24.3));
        // The pass took 20 s.
        assert_eq!((walk.after(at(25.0)), walk.looks_back_since), (303, None));
        walk.look_back(at(26.0));
        assert_eq!(walk.after(at(26.0)), 0);
    }
}

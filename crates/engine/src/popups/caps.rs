//! Frequency caps: from when on one more showing keeps to them.

use super::{
    marks::{Mark, Marks, SESSION_MS, What},
    timetable::Days,
};
use tidings_protocol::http::PopupCaps;

/// Longer than any day.
const DAYS_MS: u64 = 2 * 24 * 60 * 60 * 1_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Caps {
    pub(super) per_session: Option<u32>,
    pub(super) per_day: Option<u32>,
    pub(super) total: Option<u32>,
    pub(super) gap_ms: u64,
}

/// What keeps something from being shown: the cap's name, and until when, if time alone can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) by: &'static str,
    pub(super) until: Option<u64>,
}

impl Caps {
    pub(super) fn of(caps: &PopupCaps) -> Self {
        let PopupCaps { per_session, per_day, total, gap_s } = *caps;
        Caps { per_session, per_day, total, gap_ms: gap_s.unwrap_or(0) * 1_000 }
    }

    /// What keeps `what` from being shown once more at `at`, if anything. Without a session nothing that is
    /// capped by session can be shown.
    pub(super) fn keep(&self, what: What, marks: &Marks, session: Option<u64>, days: &Days, at: u64) -> Option<Kept> {
        if let Some(most) = self.per_session {
            let Some(session) = session else { return Some(Kept { by: "per_session", until: None }) };
            match marks.get(what.within(session)) {
                // A session that was silent for a day is over; its name may be used again.
                Some(mark) if mark.last_at.saturating_add(SESSION_MS) > at => {
                    if mark.total >= most {
                        let over = mark.last_at.saturating_add(SESSION_MS);
                        return Some(Kept { by: "per_session", until: Some(over) });
                    }
                }
                _ => {
                    if let Some(until) = marks.sessions_full_until(at) {
                        return Some(Kept { by: "per_session", until: Some(until) });
                    }
                }
            }
        }
        let mark = marks.get(what)?;
        if self.total.is_some_and(|most| mark.total >= most) {
            return Some(Kept { by: "total", until: None });
        }
        let gap_end = mark.last_at.saturating_add(self.gap_ms);
        if gap_end > at && self.gap_ms > 0 {
            return Some(Kept { by: "gap_s", until: Some(gap_end) });
        }
        if let Some(most) = self.per_day {
            return full_day(mark, most, days, at).map(|until| Kept { by: "per_day", until: Some(until) });
        }
        None
    }
}

/// If the mark's day is full and it is that day (or, by a clock that was turned back, one before): when the next begins.
/// The day of the last showing is that of now's zone too, if the zone was another one then.
fn full_day(mark: &Mark, most: u32, days: &Days, at: u64) -> Option<u64> {
    if u32::from(mark.on_day) < most {
        return None;
    }
    let (day, next) = days.day(at);
    let full =
        day <= u32::from(mark.day) || (mark.last_at.saturating_add(DAYS_MS) > at && day <= days.day(mark.last_at).0);
    full.then_some(next)
}

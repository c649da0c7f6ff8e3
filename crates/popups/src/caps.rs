//! Frequency caps: whether one more exposure keeps to them, and if not, from when on it will.

use super::{
    frequency::{CounterKey, FrequencyCounter, FrequencyCounters, SESSION_MS},
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

/// A cap that forbids one more exposure: its name in the configuration, and until when, if time alone lifts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CapReached {
    pub(super) cap: &'static str,
    pub(super) until: Option<u64>,
}

impl Caps {
    pub(super) fn of(caps: &PopupCaps) -> Self {
        let PopupCaps { per_session, per_day, total, gap_s } = *caps;
        Caps { per_session, per_day, total, gap_ms: gap_s.unwrap_or(0) * 1_000 }
    }

    /// The cap that forbids one more exposure of `key` at the time `at`, if one does. A cap per session forbids it
    /// whenever the question names no session.
    pub(super) fn reached(
        &self,
        key: CounterKey,
        counters: &FrequencyCounters,
        session: Option<u64>,
        days: &Days,
        at: u64,
    ) -> Option<CapReached> {
        if let Some(max) = self.per_session {
            let Some(session) = session else { return Some(CapReached { cap: "per_session", until: None }) };
            match counters.get(key.within(session)) {
                // A session without an exposure for a day has ended; its name may be used again.
                Some(counter) if counter.last_at.saturating_add(SESSION_MS) > at => {
                    if counter.total >= max {
                        let session_end = counter.last_at.saturating_add(SESSION_MS);
                        return Some(CapReached { cap: "per_session", until: Some(session_end) });
                    }
                }
                _ => {
                    if let Some(until) = counters.sessions_full_until(at) {
                        return Some(CapReached { cap: "per_session", until: Some(until) });
                    }
                }
            }
        }
        let counter = counters.get(key)?;
        if self.total.is_some_and(|max| counter.total >= max) {
            return Some(CapReached { cap: "total", until: None });
        }
        let gap_end = counter.last_at.saturating_add(self.gap_ms);
        if gap_end > at && self.gap_ms > 0 {
            return Some(CapReached { cap: "gap_s", until: Some(gap_end) });
        }
        if let Some(max) = self.per_day {
            return full_day(counter, max, days, at).map(|until| CapReached { cap: "per_day", until: Some(until) });
        }
        None
    }
}

/// When the next day begins, if the counter's day is full and that day has not passed. The time zone may have changed
/// since the last exposure: then the day of that exposure by the present zone counts as full too.
fn full_day(counter: &FrequencyCounter, max: u32, days: &Days, at: u64) -> Option<u64> {
    if u32::from(counter.count_on_day) < max {
        return None;
    }
    let (day, next) = days.day(at);
    // Not only `==`: a clock that was turned back may show an earlier day.
    let is_full = day <= u32::from(counter.day)
        || (counter.last_at.saturating_add(DAYS_MS) > at && day <= days.day(counter.last_at).0);
    is_full.then_some(next)
}

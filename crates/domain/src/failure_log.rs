//! How a worker that tries again logs its failures: when they begin, each minute with their number, and when they are over.

use parking_lot::Mutex;
use std::{
    borrow::Cow,
    fmt::Display,
    time::{Duration, Instant},
};

/// How often a failure that lasts is logged again.
const REPEAT_EVERY: Duration = Duration::from_secs(60);

/// The failures of one worker since its last success.
struct Failing {
    since: Instant,
    logged: Instant,
    count: u64,
}

/// Logs the failures of one worker by change of state instead of one by one.
pub struct FailureLog {
    /// What does not happen meanwhile, as a whole sentence.
    what: Cow<'static, str>,
    failing: Mutex<Option<Failing>>,
}

/// A line to be logged: the failures so far and the seconds since the first one.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    failures: u64,
    seconds: u64,
}

impl FailureLog {
    /// `what`: a sentence about what does not happen meanwhile, such as "old changes could not be removed; it is tried again".
    pub fn new(what: impl Into<Cow<'static, str>>) -> Self {
        FailureLog { what: what.into(), failing: Mutex::new(None) }
    }

    /// The worker has failed, and will try again.
    pub fn failed(&self, error: &dyn Display) {
        if let Some(Line { failures, seconds }) = self.failed_at(Instant::now()) {
            tracing::warn!(%error, failures, seconds, "{}", self.what);
        }
    }

    /// The worker has succeeded.
    pub fn succeeded(&self) {
        if let Some(Line { failures, seconds }) = self.succeeded_at(Instant::now()) {
            tracing::info!(failures, seconds, "this is over: {}", self.what);
        }
    }

    /// Takes a result for what it is.
    pub fn note<T, E: Display>(&self, result: &Result<T, E>) {
        match result {
            Ok(_) => self.succeeded(),
            Err(error) => self.failed(error),
        }
    }

    fn failed_at(&self, now: Instant) -> Option<Line> {
        let mut failing = self.failing.lock();
        let Some(state) = &mut *failing else {
            *failing = Some(Failing { since: now, logged: now, count: 1 });
            return Some(Line { failures: 1, seconds: 0 });
        };
        state.count += 1;
        if now.saturating_duration_since(state.logged) < REPEAT_EVERY {
            return None;
        }
        state.logged = now;
        Some(Line { failures: state.count, seconds: now.saturating_duration_since(state.since).as_secs() })
    }

    fn succeeded_at(&self, now: Instant) -> Option<Line> {
        let state = self.failing.lock().take()?;
        Some(Line { failures: state.count, seconds: now.saturating_duration_since(state.since).as_secs() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_lasts_is_logged_when_it_begins_each_minute_and_when_it_ends() {
        let (log, start) = (FailureLog::new("nothing is read"), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(log.succeeded_at(start), None, "nothing has failed");
        let lines: Vec<Line> = (0..150).filter_map(|second| log.failed_at(at(second))).collect();
        let line = |failures, seconds| Line { failures, seconds };
        assert_eq!(lines, [line(1, 0), line(61, 60), line(121, 120)]);
        assert_eq!(log.succeeded_at(at(150)), Some(line(150, 150)));
        assert_eq!(log.succeeded_at(at(151)), None);
        assert_eq!(log.failed_at(at(152)), Some(line(1, 0)), "the next failure is a new one");
    }
}

//! The header `Retry-After`: a number of seconds, or a date.

use reqwest::header::{HeaderMap, RETRY_AFTER};
use std::time::{Duration, UNIX_EPOCH};

/// How long the service wants to be left alone, by a clock of this time (milliseconds since 1970 UTC).
pub fn retry_after(headers: &HeaderMap, now_ms: u64) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    at.duration_since(UNIX_EPOCH + Duration::from_millis(now_ms)).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_read() {
        // 2026-01-01 00:00 UTC.
        let now_ms = 1_767_225_600_000;
        let check = |text: &str, expected: Option<u64>| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            assert_eq!(retry_after(&headers, now_ms), expected.map(Duration::from_secs), "{text}");
        };
        check("120", Some(120));
        check(" 0 ", Some(0));
        check("Thu, 01 Jan 2026 00:01:30 GMT", Some(90));
        check("Wed, 31 Dec 2025 23:59:59 GMT", None);
        check("soon", None);
        check("-5", None);
        assert_eq!(retry_after(&HeaderMap::new(), now_ms), None);
    }
}

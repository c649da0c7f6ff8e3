//! Daily windows: from one wall-clock time to another, in a time zone.

use jiff::tz::TimeZone;
use tidings_domain::model::DailyWindow;
use tidings_engine::daily_window::parse_wall_time;

/// Whether a daily window covers a moment. A window that cannot be parsed covers none: windows are
/// checked when they are set, and a push too many is better than one too few.
pub(crate) fn window_covers(window: &DailyWindow, now_ms: u64) -> bool {
    let (Some(start), Some(end)) = (parse_wall_time(&window.start), parse_wall_time(&window.end)) else {
        return false;
    };
    let Ok(zone) = TimeZone::get(&window.time_zone) else { return false };
    let Ok(now) = jiff::Timestamp::from_millisecond(now_ms as i64) else { return false };
    let time = now.to_zoned(zone).time();
    if start <= end { start <= time && time < end } else { start <= time || time < end }
}

/// When a window that covers this moment ends, in milliseconds since 1970 UTC.
pub(crate) fn window_end(window: &DailyWindow, now_ms: u64) -> Option<u64> {
    let end = parse_wall_time(&window.end)?;
    let now = jiff::Timestamp::from_millisecond(now_ms as i64).ok()?.to_zoned(TimeZone::get(&window.time_zone).ok()?);
    let day = if now.time() < end { now.date() } else { now.date().tomorrow().ok()? };
    let end = day.to_datetime(end).to_zoned(now.time_zone().clone()).ok()?;
    u64::try_from(end.timestamp().as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(start: &str, end: &str, zone: &str, at: &str) -> bool {
        let window = DailyWindow { start: start.into(), end: end.into(), time_zone: zone.into() };
        let at: jiff::Timestamp = at.parse().unwrap_or_default();
        window_covers(&window, at.as_millisecond() as u64)
    }

    #[test]
    fn a_window_follows_the_wall_clock_of_its_zone_and_may_span_midnight() {
        assert!(covers("22:00", "07:00", "UTC", "2026-03-01T23:30:00Z"));
        assert!(covers("22:00", "07:00", "UTC", "2026-03-01T06:59:00Z"));
        assert!(!covers("22:00", "07:00", "UTC", "2026-03-01T07:00:00Z"));
        assert!(covers("09:00", "17:00", "Asia/Tokyo", "2026-03-01T00:30:00Z"), "09:30 in Tokyo");
        assert!(!covers("09:00", "17:00", "Asia/Tokyo", "2026-03-01T10:00:00Z"), "19:00 in Tokyo");
        assert!(covers("22:00", "07:00", "America/New_York", "2026-01-02T03:30:00Z"), "22:30 the day before");
        assert!(!covers("22:00", "07:00", "America/New_York", "2026-01-02T12:30:00Z"), "07:30");
        assert!(!covers("08:00", "08:00", "UTC", "2026-01-02T08:00:00Z"), "a window of no length");
    }

    #[test]
    fn the_end_of_a_window_is_on_this_day_or_the_next() {
        let window = DailyWindow { start: "22:00".into(), end: "07:00".into(), time_zone: "Europe/Berlin".into() };
        for (now, expected) in [
            ("2026-03-01T23:30:00Z", "2026-03-02T06:00:00Z"),
            ("2026-03-01T21:30:00Z", "2026-03-02T06:00:00Z"),
            // The clocks go forward in this night.
            ("2026-03-28T22:30:00Z", "2026-03-29T05:00:00Z"),
        ] {
            let [now, expected] = [now, expected].map(|at| at.parse::<jiff::Timestamp>().unwrap_or_default());
            let end = window_end(&window, now.as_millisecond() as u64);
            assert_eq!(end, Some(expected.as_millisecond() as u64), "{now}");
        }
    }

    #[test]
    fn a_window_follows_daylight_saving_time() {
        assert!(covers("08:00", "09:00", "Europe/Berlin", "2026-01-15T07:30:00Z"));
        assert!(covers("08:00", "09:00", "Europe/Berlin", "2026-07-15T06:30:00Z"));
    }
}

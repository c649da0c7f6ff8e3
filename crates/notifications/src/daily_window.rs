//! Daily windows: from one wall-clock time to another, in a time zone.

use jiff::tz::TimeZone;
use tidings_domain::model::DailyWindow;
use tidings_engine::daily_window::{WindowEnd, parse_wall_time, parse_window_end};

/// Whether a daily window covers a moment. A window that cannot be parsed covers none: windows are
/// checked when they are set, and a push too many is better than one too few.
pub(crate) fn window_covers(window: &DailyWindow, now_ms: u64) -> bool {
    let (Some(start), Some(end)) = (parse_wall_time(&window.start), parse_window_end(&window.end)) else {
        return false;
    };
    let Ok(zone) = TimeZone::get(&window.time_zone) else { return false };
    let Ok(now) = jiff::Timestamp::from_millisecond(now_ms as i64) else { return false };
    let time = now.to_zoned(zone).time();
    match end {
        WindowEnd::Midnight => start <= time,
        WindowEnd::At(end) if start <= end => start <= time && time < end,
        WindowEnd::At(end) => start <= time || time < end,
    }
}

/// When a window that covers this moment ends, in milliseconds since 1970 UTC.
pub(crate) fn window_end(window: &DailyWindow, now_ms: u64) -> Option<u64> {
    let end = match parse_window_end(&window.end)? {
        WindowEnd::Midnight => jiff::civil::Time::midnight(),
        WindowEnd::At(end) => end,
    };
    let now = jiff::Timestamp::from_millisecond(now_ms as i64).ok()?.to_zoned(TimeZone::get(&window.time_zone).ok()?);
    let day = if now.time() < end { now.date() } else { now.date().tomorrow().ok()? };
    let zone = now.time_zone().clone();
    let end = zone.to_ambiguous_zoned(day.to_datetime(end));
    // An hour that comes twice in autumn: its first end may lie before the moment, which is then in the second one.
    let ends = [end.clone().compatible(), end.later()];
    let next = ends.into_iter().filter_map(Result::ok).find(|end| end.timestamp() > now.timestamp());
    u64::try_from(next?.timestamp().as_millisecond()).ok()
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
            // From 02:30 on, by the second of two: the first was an hour before.
            ("2026-10-25T00:45:00Z", "2026-10-25T06:00:00Z"),
            // The clocks go forward in this night.
            ("2026-03-28T22:30:00Z", "2026-03-29T05:00:00Z"),
        ] {
            let [now, expected] = [now, expected].map(|at| at.parse::<jiff::Timestamp>().unwrap_or_default());
            let end = window_end(&window, now.as_millisecond() as u64);
            assert_eq!(end, Some(expected.as_millisecond() as u64), "{now}");
        }
    }

    #[test]
    fn a_window_to_the_end_of_the_day_covers_its_last_minute() {
        assert!(covers("00:00", "24:00", "UTC", "2026-03-01T00:00:00Z"), "the whole day");
        assert!(covers("00:00", "24:00", "UTC", "2026-03-01T23:59:59Z"));
        assert!(covers("22:00", "24:00", "UTC", "2026-03-01T23:59:59Z"));
        assert!(!covers("22:00", "24:00", "UTC", "2026-03-01T00:00:00Z"));
        let window = DailyWindow { start: "22:00".into(), end: "24:00".into(), time_zone: "Europe/Berlin".into() };
        let [now, end] = ["2026-03-01T22:30:00Z", "2026-03-01T23:00:00Z"];
        let [now, end] = [now, end].map(|at| at.parse::<jiff::Timestamp>().unwrap_or_default().as_millisecond() as u64);
        assert_eq!(window_end(&window, now), Some(end));
    }

    /// Every minute of the night in which an hour comes twice.
    #[test]
    fn a_window_that_ends_in_the_repeated_hour_ends_after_each_moment_that_it_covers() {
        let window = DailyWindow { start: "01:30".into(), end: "02:30".into(), time_zone: "Europe/Berlin".into() };
        let from = "2026-10-24T22:00:00Z".parse::<jiff::Timestamp>().unwrap_or_default().as_millisecond() as u64;
        let mut covered = 0;
        for minute in 0..360 {
            let now = from + minute * 60_000;
            if window_covers(&window, now) {
                covered += 1;
                let end = window_end(&window, now);
                assert!(end.is_some_and(|end| end > now && end <= now + 3 * 3_600_000), "{minute}: {end:?}");
            }
        }
        assert_eq!(covered, 90, "by the wall clock: an hour, and the half of it that comes again");
    }

    #[test]
    fn a_window_follows_daylight_saving_time() {
        assert!(covers("08:00", "09:00", "Europe/Berlin", "2026-01-15T07:30:00Z"));
        assert!(covers("08:00", "09:00", "Europe/Berlin", "2026-07-15T06:30:00Z"));
    }
}

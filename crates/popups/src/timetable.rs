//! Timetables and days: when a popup may be shown, and when a day begins, by the wall time of a zone. Both are
//! precomputed for some days.
//!
//! Where the clocks of a zone change, some wall times are skipped and some occur twice. Here a wall time means the
//! first instant at which the clock shows it or a later one: a skipped span is over as soon as it has begun, and of a
//! repeated span the first occurrence counts. So days and windows neither overlap nor run backwards, and a window is
//! open at exactly those of its wall times that occur.

use jiff::{
    Timestamp,
    civil::{Date, DateTime},
    tz::{AmbiguousOffset, TimeZone},
};
use tidings_protocol::{
    error::Refusal,
    http::{PopupWindow, Weekday},
    limits::POPUP_WINDOWS_MAX,
};

const MINUTES_PER_DAY: u16 = 24 * 60;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// The precomputed span around the given instant. As long as the owner renews it within two weeks, nothing is computed
/// while a request waits.
const BEFORE_MS: u64 = 2 * DAY_MS;
const AFTER_MS: u64 = 15 * DAY_MS;
/// Later instants are treated like this one, the beginning of the year 9000: a clock that shows one is broken.
const LAST_MS: u64 = 221_845_392_000_000;

/// The zone of this name in the IANA database.
///
/// # Errors
/// There is no such zone (`invalid_field`).
pub fn zone(field: &str, name: &str) -> Result<TimeZone, Refusal> {
    match TimeZone::get(name) {
        Ok(zone) if !zone.is_unknown() => Ok(zone),
        _ => {
            let name: String = name.chars().take(64).collect();
            Err(Refusal::field(field, format_args!("unknown time zone {name:?}; expected a name of the IANA database")))
        }
    }
}

/// A part of the week in wall time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The days on which the window begins: bit 0 is Monday.
    days: u8,
    /// Minutes since midnight of the day on which the window begins: `from < to`, and `to` is on the next day if it is
    /// above the minutes of a day.
    from: u16,
    to: u16,
}

impl Window {
    /// Reads a window.
    ///
    /// # Errors
    /// The part that is wrong, such as `from`, and why.
    pub fn parse(window: &PopupWindow) -> Result<Window, (&'static str, &'static str)> {
        checked_window(window)
    }

    /// Whether the clock of this zone shows a time within the window at this instant.
    pub fn shows(&self, zone: &TimeZone, now_ms: u64) -> bool {
        let now = zone.to_datetime(timestamp(now_ms));
        let minute = now.hour() as u16 * 60 + now.minute() as u16;
        let begins_on = |day: i8| self.days & (1 << day.rem_euclid(7)) != 0;
        let today = now.weekday().to_monday_zero_offset();
        let is_in = |minute: u16| (self.from..self.to).contains(&minute);
        begins_on(today) && is_in(minute) || begins_on(today - 1) && is_in(minute + MINUTES_PER_DAY)
    }
}

/// Parses a popup's windows.
///
/// # Errors
/// There are too many, or a part is wrong: the refusal names it, such as `windows[1].from` (`invalid_field`).
pub fn parse_windows(windows: &[PopupWindow]) -> Result<Vec<Window>, Refusal> {
    if windows.len() > POPUP_WINDOWS_MAX {
        return Err(Refusal::field(
            "windows",
            format_args!("may be at most {POPUP_WINDOWS_MAX}, got {}", windows.len()),
        ));
    }
    windows.iter().enumerate().map(|(index, window)| parse_window(index, window)).collect()
}

fn parse_window(index: usize, window: &PopupWindow) -> Result<Window, Refusal> {
    Window::parse(window).map_err(|(part, why)| Refusal::field(&format!("windows[{index}].{part}"), why))
}

/// Checks the parts of a window; the error is the wrong part and why.
fn checked_window(window: &PopupWindow) -> Result<Window, (&'static str, &'static str)> {
    let refuse = |part, why| Err((part, why));
    let Some(from) = minutes(&window.from).filter(|minutes| *minutes < MINUTES_PER_DAY) else {
        return refuse("from", "must be HH:MM, from 00:00 to 23:59");
    };
    let Some(to) = minutes(&window.to) else { return refuse("to", "must be HH:MM, from 00:00 to 24:00") };
    if from == to {
        return refuse("to", "must differ from its from; a whole day is 00:00 to 24:00");
    }
    let mut days = 0;
    for day in &window.days {
        let bit = 1 << weekday(*day);
        if days & bit != 0 {
            return refuse("days", "a day appears twice");
        }
        days |= bit;
    }
    Ok(Window {
        days: if days == 0 { 0b111_1111 } else { days },
        from,
        to: if to > from { to } else { to + MINUTES_PER_DAY },
    })
}

/// `HH:MM` in minutes, up to 24:00.
fn minutes(text: &str) -> Option<u16> {
    let &[h, hh, b':', m, mm] = text.as_bytes() else { return None };
    if ![h, hh, m, mm].iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |tens: u8, ones: u8| u16::from(tens - b'0') * 10 + u16::from(ones - b'0');
    let minutes = number(h, hh) * 60 + number(m, mm);
    (number(m, mm) < 60 && minutes <= MINUTES_PER_DAY).then_some(minutes)
}

fn weekday(day: Weekday) -> u8 {
    match day {
        Weekday::Mon => 0,
        Weekday::Tue => 1,
        Weekday::Wed => 2,
        Weekday::Thu => 3,
        Weekday::Fri => 4,
        Weekday::Sat => 5,
        Weekday::Sun => 6,
    }
}

// ---- wall time

fn timestamp(ms: u64) -> Timestamp {
    Timestamp::from_millisecond(ms.min(LAST_MS) as i64).unwrap_or(Timestamp::MAX)
}

fn date(zone: &TimeZone, ms: u64) -> Date {
    zone.to_datetime(timestamp(ms)).date()
}

/// Adds days to a date. Saturation never shows: the dates here are never near the ends of the calendar.
fn add_days(date: Date, days: i64) -> Date {
    date.saturating_add(jiff::Span::new().days(days))
}

/// The first instant at which the clock shows this wall time or a later one, in milliseconds since 1970; 0 if before.
fn instant(zone: &TimeZone, wall: DateTime) -> u64 {
    let at = match zone.to_ambiguous_timestamp(wall).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(wall),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(wall),
        // Read with the offset after the change, a time in the gap is before the change: so the change that skips it is
        // the next one.
        AmbiguousOffset::Gap { before, after } => match after.to_timestamp(wall) {
            Ok(earlier) => match zone.following(earlier).next() {
                Some(change) => Ok(change.timestamp()),
                None => before.to_timestamp(wall),
            },
            Err(error) => Err(error),
        },
    };
    at.map_or(0, |at| u64::try_from(at.as_millisecond()).unwrap_or(0))
}

/// The instant of a wall time given as minutes after the beginning of a day, possibly beyond its end.
fn at_minutes(zone: &TimeZone, day: Date, minutes: u16) -> u64 {
    let day = add_days(day, i64::from(minutes / MINUTES_PER_DAY));
    let minutes = minutes % MINUTES_PER_DAY;
    instant(zone, day.at((minutes / 60) as i8, (minutes % 60) as i8, 0, 0))
}

// ---- days

/// The civil days of a zone.
#[derive(Debug, Clone)]
pub struct Days {
    zone: TimeZone,
    /// When each of the precomputed days begins, in order, and the number of the first.
    begins: Box<[u64]>,
    first: i64,
}

impl Days {
    pub fn new(zone: TimeZone, around_ms: u64) -> Self {
        let around_ms = around_ms.min(LAST_MS);
        let first = add_days(date(&zone, around_ms.saturating_sub(BEFORE_MS)), -1);
        let last = add_days(date(&zone, around_ms + AFTER_MS), 2);
        let mut begins = Vec::new();
        let mut day = first;
        while day <= last {
            begins.push(at_minutes(&zone, day, 0));
            day = add_days(day, 1);
        }
        Days { zone, begins: begins.into(), first: day_number(first) }
    }

    /// The number of the present day, in civil days since 1970-01-01, and when the next day begins, in milliseconds
    /// since 1970 UTC.
    pub fn day(&self, now_ms: u64) -> (u32, u64) {
        match self.begins.partition_point(|begin| *begin <= now_ms) {
            next if next > 0 && next < self.begins.len() => {
                (u32::try_from(self.first + next as i64 - 1).unwrap_or(0), self.begins[next])
            }
            _ => self.compute_day(now_ms),
        }
    }

    fn compute_day(&self, now_ms: u64) -> (u32, u64) {
        let now_ms = now_ms.min(LAST_MS);
        let begin = |day| at_minutes(&self.zone, day, 0);
        // A day that has begun stays the present day when the clock is set back before midnight; a skipped day has no
        // length.
        let mut next = add_days(date(&self.zone, now_ms), 1);
        while begin(next) <= now_ms {
            next = add_days(next, 1);
        }
        (u32::try_from(day_number(next) - 1).unwrap_or(0), begin(next))
    }
}

fn day_number(day: Date) -> i64 {
    i64::from((day - jiff::civil::date(1970, 1, 1)).get_days())
}

// ---- windows

/// Whether a timetable allows to show the popup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Open until this time, exclusive; absent: for good.
    Open { until: Option<u64> },
    /// Closed, and open again from this time on; absent: never again.
    Closed { opens_at: Option<u64> },
}

/// A popup's schedule: start, end and weekly windows.
#[derive(Debug, Clone)]
pub struct Timetable {
    starts_at: u64,
    ends_at: u64,
    /// Absent: always open between start and end.
    weekly: Option<Weekly>,
}

#[derive(Debug, Clone)]
struct Weekly {
    zone: TimeZone,
    windows: Box<[Window]>,
    precomputed: Spans,
}

impl Timetable {
    pub fn new(
        starts_at: Option<u64>,
        ends_at: Option<u64>,
        windows: &[Window],
        zone: TimeZone,
        around_ms: u64,
    ) -> Self {
        let weekly = (!windows.is_empty() && !cover_the_week(windows)).then(|| {
            let precomputed =
                Spans::of(windows, &zone, around_ms.saturating_sub(BEFORE_MS), around_ms.saturating_add(AFTER_MS));
            Weekly { zone, windows: windows.into(), precomputed }
        });
        Timetable { starts_at: starts_at.unwrap_or(0), ends_at: ends_at.unwrap_or(u64::MAX), weekly }
    }

    /// The part that keeps the popup from being shown at a time at which it is closed, by its name in the configuration.
    pub(crate) fn closed_by(&self, at: u64) -> &'static str {
        match at {
            at if at < self.starts_at => "starts_at",
            at if at >= self.ends_at => "ends_at",
            _ => "windows",
        }
    }

    pub fn at(&self, now_ms: u64) -> Phase {
        let from = now_ms.max(self.starts_at);
        if from >= self.ends_at {
            return Phase::Closed { opens_at: None };
        }
        let (begin, end) = match &self.weekly {
            None => (from, u64::MAX),
            Some(weekly) => weekly.open_from(from),
        };
        let begin = begin.max(from);
        if begin > now_ms {
            return Phase::Closed { opens_at: (begin < self.ends_at).then_some(begin) };
        }
        let until = end.min(self.ends_at);
        Phase::Open { until: (until < u64::MAX).then_some(until) }
    }
}

impl Weekly {
    /// The span that is open at this instant, or the next one.
    fn open_from(&self, ms: u64) -> (u64, u64) {
        let known = self.precomputed.find(ms);
        // There always is a next span: a window opens each week, or in the week after if a change of the clocks skips
        // it.
        known.or_else(|| Spans::of(&self.windows, &self.zone, ms, ms).find(ms)).unwrap_or((u64::MAX, u64::MAX))
    }
}

/// Whether every minute of the week is in a window.
fn cover_the_week(windows: &[Window]) -> bool {
    const WEEK: usize = 7 * MINUTES_PER_DAY as usize;
    let mut open = vec![false; WEEK];
    for window in windows {
        for day in (0..7).filter(|day| window.days & (1 << day) != 0) {
            let midnight = day * usize::from(MINUTES_PER_DAY);
            for minute in window.from..window.to {
                open[(midnight + usize::from(minute)) % WEEK] = true;
            }
        }
    }
    open.into_iter().all(|open| open)
}

/// The spans in which windows are open, in milliseconds: ascending and disjoint. They are complete for instants from
/// `from` to the beginning of the last span.
#[derive(Debug, Clone)]
struct Spans {
    from: u64,
    spans: Box<[(u64, u64)]>,
}

/// Days to look ahead for the next span. A weekly window whose opening a change of the clocks skips opens within two
/// weeks, and a window whose closing is skipped closes within two more.
const DAYS_MAX: u64 = 35;

impl Spans {
    /// Computes the spans that are needed for instants from `from` to `to`.
    fn of(windows: &[Window], zone: &TimeZone, from: u64, to: u64) -> Self {
        let (from, to) = (from.min(LAST_MS), to.min(LAST_MS));
        let mut spans: Vec<(u64, u64)> = Vec::new();
        // A window may have begun on the day before, and a change of the clocks may have moved the date by another day.
        let mut day = add_days(date(zone, from), -2);
        let last = add_days(date(zone, to), DAYS_MAX as i64);
        while day <= last && spans.last().is_none_or(|span| span.0 <= to) {
            let bit = 1 << day.weekday().to_monday_zero_offset();
            let mut today: Vec<(u64, u64)> = windows
                .iter()
                .filter(|window| window.days & bit != 0)
                .map(|window| (at_minutes(zone, day, window.from), at_minutes(zone, day, window.to)))
                .filter(|(begin, end)| begin < end)
                .collect();
            today.sort_unstable();
            for (begin, end) in today {
                match spans.last_mut() {
                    Some(span) if begin <= span.1 => span.1 = span.1.max(end),
                    _ => spans.push((begin, end)),
                }
            }
            day = add_days(day, 1);
        }
        Spans { from, spans: spans.into() }
    }

    /// The span that is open at this instant, or the next one; `None` if it is not among the computed ones.
    fn find(&self, ms: u64) -> Option<(u64, u64)> {
        if ms < self.from {
            return None;
        }
        let next = self.spans.partition_point(|span| span.1 <= ms);
        let span = *self.spans.get(next)?;
        // Only the beginning of the last span is certain: it may continue in days that were not computed.
        (next + 1 < self.spans.len() || ms < span.0).then_some(span)
    }
}

//! The times that callers name: milliseconds since 1970 UTC.
//!
//! Most clocks of other languages count seconds. A time in seconds is read as one in January 1970: a push for tomorrow goes out at
//! once, a mute is over before it begins. So every field of a caller's request that names a time reads it with [`time`] or
//! [`time_or_zero`], and [`json::read`](crate::json::read) refuses what must be seconds. What is stored is read without that check:
//! it may be older than the check. The `at` of a popup's event is not checked either: it comes from a device's clock, which may never
//! have been set, and nothing is decided by it.

use serde::{Deserialize, Deserializer};

/// The earliest time that a request may name: 9 September 2001, in milliseconds since 1970 UTC. Seconds reach this number in the
/// year 33658.
pub const TIME_MS_MIN: u64 = 1_000_000_000_000;

/// The names under which the strict reader of [`json`](crate::json) knows times, and whether 0 is among them.
const CHECKED: [(&str, bool); 2] = [("Time", false), ("TimeOrZero", true)];

#[derive(Deserialize)]
#[serde(rename = "Time")]
struct Time(u64);

#[derive(Deserialize)]
#[serde(rename = "TimeOrZero")]
struct TimeOrZero(u64);

/// Reads a time, for `deserialize_with`.
///
/// # Errors
/// It is no whole number, or the reader is strict and it is before [`TIME_MS_MIN`].
pub fn time<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
    Option::<Time>::deserialize(input).map(|time| time.map(|Time(ms)| ms))
}

/// As [`time`], of a field that must be given.
///
/// # Errors
/// As [`time`].
pub fn required_time<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    Time::deserialize(input).map(|Time(ms)| ms)
}

/// As [`time`], of a field in which 0 has a meaning: the beginning of all times, or at once.
///
/// # Errors
/// As [`time`], but 0 is none.
pub fn time_or_zero<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
    Option::<TimeOrZero>::deserialize(input).map(|time| time.map(|TimeOrZero(ms)| ms))
}

/// The words that every refusal of a time has.
pub const TIME_HINT: &str = "must be in milliseconds since 1970 UTC";

/// Whether values of this type are times, and if so, whether they may be 0.
pub(crate) fn may_be_zero(type_name: &str) -> Option<bool> {
    CHECKED.iter().find(|(name, _)| *name == type_name).map(|(_, may_be_zero)| *may_be_zero)
}

/// Why this cannot be meant as a time.
pub(crate) fn check_time(ms: u64, may_be_zero: bool) -> Result<(), String> {
    match ms {
        TIME_MS_MIN.. => Ok(()),
        0 if may_be_zero => Ok(()),
        0 => Err(format!("{TIME_HINT}, got 0: leave it out, or give a time from {TIME_MS_MIN} on")),
        // From 1973 on, in seconds.
        100_000_000.. => Err(format!("{TIME_HINT}, got {ms}, which looks like seconds: {ms}000 would be that time")),
        _ => Err(format!("{TIME_HINT}, got {ms}; the earliest time is {TIME_MS_MIN} (9 September 2001)")),
    }
}

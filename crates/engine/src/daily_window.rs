//! The ends of daily windows.

use jiff::civil::Time;

/// A wall-clock time as `HH:MM`.
pub fn parse_wall_time(text: &str) -> Option<Time> {
    let two_digits = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    let (hour, minute) = text.split_once(':').filter(|(hour, minute)| two_digits(hour) && two_digits(minute))?;
    Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
}

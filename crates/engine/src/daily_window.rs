//! The ends of daily windows.

use jiff::civil::Time;

/// The end of a daily window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowEnd {
    /// A time of the day.
    At(Time),
    /// `24:00`: the end of the day on which the window begins.
    Midnight,
}

/// The end of a window as `HH:MM`, also `24:00`.
pub fn parse_window_end(text: &str) -> Option<WindowEnd> {
    if text == "24:00" { Some(WindowEnd::Midnight) } else { parse_wall_time(text).map(WindowEnd::At) }
}

/// A wall-clock time as `HH:MM`.
pub fn parse_wall_time(text: &str) -> Option<Time> {
    let two_digits = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    let (hour, minute) = text.split_once(':').filter(|(hour, minute)| two_digits(hour) && two_digits(minute))?;
    Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
}

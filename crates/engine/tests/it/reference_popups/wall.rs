//! A wall clock that is never set back: while an hour is repeated it stands still.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};
use tidings_protocol::http::{PopupWindow, Weekday};

pub const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// The tested windows begin and end at quarters of an hour, and clocks change at them.
pub const QUARTER_MS: u64 = 15 * 60 * 1_000;
/// The span around a base that the clock covers.
const DAYS_BEFORE: u64 = 40;
const DAYS_AFTER: u64 = 130;

const WEEKDAYS: [Weekday; 7] =
    [Weekday::Mon, Weekday::Tue, Weekday::Wed, Weekday::Thu, Weekday::Fri, Weekday::Sat, Weekday::Sun];

#[derive(Clone, Copy)]
struct Shows {
    day: i32,
    weekday: usize,
    minute: u32,
}

pub struct Wall {
    first_ms: u64,
    quarters: Vec<Shows>,
}

type Walls = HashMap<(String, u64), Arc<Wall>>;

impl Wall {
    pub fn of(zone: &str, base: u64) -> Arc<Wall> {
        static WALLS: Mutex<Option<Walls>> = Mutex::new(None);
        let mut walls = WALLS.lock().unwrap();
        let walls = walls.get_or_insert_default();
        walls.entry((zone.to_owned(), base)).or_insert_with(|| Arc::new(Wall::around(zone, base))).clone()
    }

    fn around(zone: &str, base: u64) -> Wall {
        let zone = TimeZone::get(zone).unwrap();
        let first_ms = base / QUARTER_MS * QUARTER_MS - DAYS_BEFORE * DAY_MS;
        let mut latest = DateTime::MIN;
        let quarters = (0..(DAYS_BEFORE + DAYS_AFTER) * DAY_MS / QUARTER_MS).map(|quarter| {
            let at = Timestamp::from_millisecond((first_ms + quarter * QUARTER_MS) as i64).unwrap();
            latest = latest.max(zone.to_datetime(at));
            let day = (latest.date() - jiff::civil::date(1970, 1, 1)).get_days();
            let weekday = latest.weekday().to_monday_zero_offset() as usize;
            Shows { day, weekday, minute: latest.hour() as u32 * 60 + latest.minute() as u32 }
        });
        Wall { first_ms, quarters: quarters.collect() }
    }

    fn shows(&self, at: u64) -> Shows {
        self.quarters[((at - self.first_ms) / QUARTER_MS) as usize]
    }

    /// The last instant that the clock covers.
    pub fn last_ms(&self) -> u64 {
        self.first_ms + (self.quarters.len() as u64 - 1) * QUARTER_MS - DAY_MS
    }

    /// The civil day, counted from 1970-01-01.
    pub fn day(&self, at: u64) -> i32 {
        self.shows(at).day
    }

    pub fn is_open(&self, windows: &[PopupWindow], at: u64) -> bool {
        let Shows { weekday, minute, .. } = self.shows(at);
        windows.is_empty()
            || windows.iter().any(|window| {
                let begins_on = |day: usize| window.days.is_empty() || window.days.contains(&WEEKDAYS[day % 7]);
                let (from, to) = (minutes(&window.from), minutes(&window.to));
                match from < to {
                    true => begins_on(weekday) && (from..to).contains(&minute),
                    // The window ends on the next day.
                    false => (begins_on(weekday) && from <= minute) || (begins_on(weekday + 6) && minute < to),
                }
            })
    }
}

fn minutes(text: &str) -> u32 {
    let (hours, minutes) = text.split_once(':').unwrap();
    hours.parse::<u32>().unwrap() * 60 + minutes.parse::<u32>().unwrap()
}

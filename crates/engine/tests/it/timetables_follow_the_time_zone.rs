//! Windows and days agree with a simulated wall clock at every minute, around the days on which the zone's clocks change.
// Slow: left out by `make test-quick`.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use proptest::prelude::*;
use std::sync::OnceLock;
use tidings_popups::timetable::{Days, Phase, Timetable, parse_windows, zone};
use tidings_protocol::http::{PopupWindow, Weekday};

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;
const WEEKDAYS: [Weekday; 7] =
    [Weekday::Mon, Weekday::Tue, Weekday::Wed, Weekday::Thu, Weekday::Fri, Weekday::Sat, Weekday::Sun];

/// A zone, and an instant at which its clocks change (or just some instant).
const CHANGES: [(&str, &str); 12] = [
    ("UTC", "2026-03-01T00:00:00Z"),
    ("Europe/Berlin", "2026-03-29T01:00:00Z"),
    ("Europe/Berlin", "2026-10-25T01:00:00Z"),
    ("America/New_York", "2026-03-08T07:00:00Z"),
    ("America/New_York", "2026-11-01T06:00:00Z"),
    // A change by half an hour.
    ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
    // Changes at midnight: a day that begins at 1:00, and a day whose last hour is repeated.
    ("America/Sao_Paulo", "2018-11-04T03:00:00Z"),
    ("America/Sao_Paulo", "2018-02-18T02:00:00Z"),
    ("Africa/Cairo", "2026-04-23T22:00:00Z"),
    // A whole day is skipped.
    ("Pacific/Apia", "2011-12-30T10:00:00Z"),
    ("Asia/Kathmandu", "1985-12-31T18:30:00Z"),
];

fn ms(text: &str) -> u64 {
    text.parse::<Timestamp>().unwrap().as_millisecond() as u64
}

/// A wall clock that is never set back: while an hour is repeated it stands still.
struct Wall {
    first_ms: u64,
    minutes: Vec<DateTime>,
}

/// Days that the clock covers before and after the change: the farthest that a test asks for, and two weeks.
const DAYS_AROUND: u64 = 30;

impl Wall {
    fn around(zone: &str, change: &str) -> Self {
        let zone = TimeZone::get(zone).unwrap();
        let first_ms = ms(change) - DAYS_AROUND * DAY_MS;
        let shown =
            |minute| zone.to_datetime(Timestamp::from_millisecond((first_ms + minute * MINUTE_MS) as i64).unwrap());
        let mut minutes: Vec<DateTime> = Vec::new();
        for minute in 0..2 * DAYS_AROUND * DAY_MS / MINUTE_MS {
            let shown = shown(minute);
            minutes.push(minutes.last().map_or(shown, |last| shown.max(*last)));
        }
        Wall { first_ms, minutes }
    }

    fn all() -> &'static [Wall] {
        static WALLS: OnceLock<Vec<Wall>> = OnceLock::new();
        WALLS.get_or_init(|| CHANGES.iter().map(|(zone, change)| Wall::around(zone, change)).collect())
    }

    fn minute(&self, at_ms: u64) -> usize {
        ((at_ms - self.first_ms) / MINUTE_MS) as usize
    }

    fn ms(&self, minute: usize) -> u64 {
        self.first_ms + minute as u64 * MINUTE_MS
    }
}

fn minutes(text: &str) -> i64 {
    let (hours, minutes) = text.split_once(':').unwrap();
    hours.parse::<i64>().unwrap() * 60 + minutes.parse::<i64>().unwrap()
}

/// Whether a window is open at this wall time, as its text says.
fn is_open(windows: &[PopupWindow], wall: DateTime) -> bool {
    windows.is_empty()
        || windows.iter().any(|window| {
            let (from, to) = (minutes(&window.from), minutes(&window.to));
            let to = if to <= from { to + 1_440 } else { to };
            // The window may have begun today or yesterday.
            [0, 1].into_iter().any(|ago| {
                let day = wall.date().saturating_sub(jiff::Span::new().days(ago));
                let midnight = day.at(0, 0, 0, 0);
                let days = &window.days;
                let begins =
                    days.is_empty() || days.contains(&WEEKDAYS[day.weekday().to_monday_zero_offset() as usize]);
                let at = |minutes: i64| midnight.saturating_add(jiff::Span::new().minutes(minutes));
                begins && at(from) <= wall && wall < at(to)
            })
        })
}

fn window() -> impl Strategy<Value = PopupWindow> {
    // Half of the times are near the hours at which clocks change.
    let minute = || prop_oneof![0..24 * 60u32, 0..4 * 60u32, 22 * 60..24 * 60u32];
    let text = |minute: u32| format!("{:02}:{:02}", minute / 60, minute % 60);
    let days = prop_oneof![
        Just(Vec::new()),
        prop::sample::subsequence(WEEKDAYS.to_vec(), 1..=7),
        prop::sample::subsequence(WEEKDAYS.to_vec(), 1..=1),
    ];
    let to = prop_oneof![9 => minute(), 1 => Just(24 * 60)];
    (days, minute(), to)
        .prop_filter("an empty window is refused", |(_, from, to)| from != to)
        .prop_map(move |(days, from, to)| PopupWindow { days, from: text(from), to: text(to) })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_timetable_agrees_with_a_minute_by_minute_wall_clock(
        place in 0..CHANGES.len(),
        windows in prop::collection::vec(window(), 0..4),
        // Minutes from the change.
        around in -3 * 1_440..3 * 1_440i64,
        starts in prop::option::of(-5 * 1_440..5 * 1_440i64),
        ends in prop::option::of(-5 * 1_440..5 * 1_440i64),
        // Near the change, and beyond the precomputed span.
        asked in prop::collection::vec(prop_oneof![-300..300i64, -4 * 1_440..4 * 1_440i64], 1..20),
        far in prop_oneof![4 => Just(0i64), 1 => -20 * 1_440..20 * 1_440i64],
    ) {
        let (name, change) = CHANGES[place];
        let wall = &Wall::all()[place];
        let at = |minutes: i64| ms(change).checked_add_signed(minutes * MINUTE_MS as i64).unwrap();
        let (starts_at, ends_at) = (starts.map(at), ends.map(at));
        let parsed = parse_windows(&windows).unwrap();
        let timetable = Timetable::new(starts_at, ends_at, &parsed, zone("z", name).unwrap(), at(around + far));

        let open = |minute: usize| {
            let now = wall.ms(minute);
            starts_at.is_none_or(|start| start <= now)
                && ends_at.is_none_or(|end| now < end)
                && is_open(&windows, wall.minutes[minute])
        };
        for asked in asked {
            let minute = wall.minute(at(asked));
            // A window that opens or closes at all does so within three weeks.
            let turn = |to: bool| (minute..minute + 23 * 1_440).find(|minute| open(*minute) == to).map(|minute| wall.ms(minute));
            let expected = match open(minute) {
                true => Phase::Open { until: turn(false) },
                false => Phase::Closed { opens_at: turn(true) },
            };
            // The answer is the same throughout a minute.
            for now in [wall.ms(minute), wall.ms(minute) + MINUTE_MS - 1] {
                prop_assert_eq!(timetable.at(now), expected, "{} at {}", name, Timestamp::from_millisecond(now as i64).unwrap());
            }
        }
    }
}

#[test]
fn days_agree_with_a_minute_by_minute_wall_clock() {
    for (place, (name, change)) in CHANGES.iter().enumerate() {
        let wall = &Wall::all()[place];
        // Days within the precomputed span, and beyond it.
        for around in [ms(change), ms(change) + 40 * DAY_MS] {
            let days = Days::new(zone("z", name).unwrap(), around);
            for minute in wall.minute(ms(change) - 3 * DAY_MS)..wall.minute(ms(change) + 3 * DAY_MS) {
                let today = wall.minutes[minute].date();
                let number = (today - jiff::civil::date(1970, 1, 1)).get_days() as u32;
                let next = (minute..).find(|later| wall.minutes[*later].date() > today).unwrap();
                assert_eq!(days.day(wall.ms(minute)), (number, wall.ms(next)), "{name} {}", wall.minutes[minute]);
            }
        }
    }
}

#[test]
fn windows_open_and_close_at_the_documented_instants() {
    // Windows, then instants with the expected phase at each.
    let check = |windows: &[(&[Weekday], &str, &str)], zone_name: &str, answers: &[(&str, &str)]| {
        let windows: Vec<PopupWindow> = windows
            .iter()
            .map(|(days, from, to)| PopupWindow { days: days.to_vec(), from: (*from).into(), to: (*to).into() })
            .collect();
        let parsed = parse_windows(&windows).unwrap();
        let table = Timetable::new(None, None, &parsed, zone("z", zone_name).unwrap(), ms(answers[0].0));
        for (at, expected) in answers {
            let show = |at: Option<u64>| {
                at.map_or("never".to_owned(), |at| Timestamp::from_millisecond(at as i64).unwrap().to_string())
            };
            let phase = match table.at(ms(at)) {
                Phase::Open { until } => format!("open until {}", show(until)),
                Phase::Closed { opens_at } => format!("closed until {}", show(opens_at)),
            };
            assert_eq!(&phase, expected, "{windows:?} at {at}");
        }
    };
    // In Berlin the clock goes from 02:00 to 03:00 on 2026-03-29, a Sunday.
    check(
        &[(&[], "02:30", "03:30")],
        "Europe/Berlin",
        &[
            ("2026-03-28T01:30:00Z", "open until 2026-03-28T02:30:00Z"),
            ("2026-03-29T00:59:59Z", "closed until 2026-03-29T01:00:00Z"),
            ("2026-03-29T01:00:00Z", "open until 2026-03-29T01:30:00Z"),
            ("2026-03-29T01:30:00Z", "closed until 2026-03-30T00:30:00Z"),
        ],
    );
    check(
        &[(&[Weekday::Sun], "02:15", "02:45")],
        "Europe/Berlin",
        &[
            // The whole window is skipped: the next opens a week later.
            ("2026-03-29T00:30:00Z", "closed until 2026-04-05T00:15:00Z"),
            // Of the repeated hour the first occurrence counts.
            ("2026-10-25T00:20:00Z", "open until 2026-10-25T00:45:00Z"),
            ("2026-10-25T01:20:00Z", "closed until 2026-11-01T01:15:00Z"),
        ],
    );
    // A window over midnight, joined with the next one.
    check(
        &[
            (&[Weekday::Fri], "22:00", "06:00"),
            (&[Weekday::Sat], "06:00", "24:00"),
            (&[Weekday::Sun], "12:00", "00:00"),
        ],
        "UTC",
        &[
            ("2026-11-20T21:59:59Z", "closed until 2026-11-20T22:00:00Z"),
            ("2026-11-20T22:00:00Z", "open until 2026-11-22T00:00:00Z"),
            ("2026-11-21T07:00:00Z", "open until 2026-11-22T00:00:00Z"),
            ("2026-11-22T00:00:00Z", "closed until 2026-11-22T12:00:00Z"),
            ("2026-11-22T23:59:59Z", "open until 2026-11-23T00:00:00Z"),
        ],
    );
    // Windows that cover the whole week never close.
    check(&[(&[], "00:00", "24:00")], "UTC", &[("2026-11-20T21:59:59Z", "open until never")]);
    check(&[(&[], "12:00", "08:00"), (&[], "08:00", "12:00")], "UTC", &[("2026-11-20T08:00:00Z", "open until never")]);
}

#[test]
fn answers_are_independent_of_the_precomputed_span() {
    let window = |day, from: &str, to: &str| PopupWindow { days: vec![day], from: from.into(), to: to.into() };
    // Three windows that join into one span, and one apart.
    let windows = parse_windows(&[
        window(Weekday::Fri, "22:00", "06:00"),
        window(Weekday::Sat, "06:00", "24:00"),
        window(Weekday::Sun, "00:00", "09:00"),
        window(Weekday::Wed, "12:00", "13:00"),
    ])
    .unwrap();
    let zone = zone("z", "Europe/Berlin").unwrap();
    let first = ms("2026-03-20T00:30:00Z");
    for hour in 0..14 * 24 {
        let now = first + hour * 60 * MINUTE_MS;
        let answer = |around| Timetable::new(None, None, &windows, zone.clone(), around).at(now);
        let day = Days::new(zone.clone(), now).day(now);
        for days in 0..40 {
            let around = now + 20 * DAY_MS - days * DAY_MS;
            assert_eq!(answer(around), answer(now), "{days} {hour}");
            assert_eq!(Days::new(zone.clone(), around).day(now), day, "{days} {hour}");
        }
    }
}

#[test]
fn start_and_end_apply_at_any_distance_from_the_precomputed_span() {
    let windows =
        parse_windows(&[PopupWindow { days: vec![Weekday::Mon], from: "09:00".into(), to: "10:00".into() }]).unwrap();
    let utc = || zone("z", "UTC").unwrap();
    // A Monday years after the precomputed span.
    let monday = ms("2031-11-24T09:00:00Z");
    let table = |start, end, windows| Timetable::new(start, end, windows, utc(), 0);
    assert_eq!(table(Some(monday), None, &windows).at(0), Phase::Closed { opens_at: Some(monday) });
    assert_eq!(table(Some(monday - 1), Some(monday), &windows).at(0), Phase::Closed { opens_at: None });
    assert_eq!(
        table(Some(monday + 5), Some(monday + 9), &windows).at(monday + 5),
        Phase::Open { until: Some(monday + 9) }
    );
    assert_eq!(table(Some(9), Some(9), &[]).at(0), Phase::Closed { opens_at: None });
    assert_eq!(table(Some(9), None, &[]).at(8), Phase::Closed { opens_at: Some(9) });
    assert_eq!(table(Some(9), None, &[]).at(9), Phase::Open { until: None });
    // A broken clock must not cause a panic.
    for now in [0, 1, ms("9000-01-01T00:00:00Z"), u64::MAX - 1, u64::MAX] {
        table(None, None, &windows).at(now);
        Timetable::new(None, None, &windows, utc(), now).at(now);
        Days::new(utc(), now).day(now);
        Days::new(zone("z", "Pacific/Apia").unwrap(), now).day(u64::MAX - now);
    }
}

#[test]
fn invalid_windows_and_zones_are_refused_by_name() {
    let window =
        |days: &[Weekday], from: &str, to: &str| PopupWindow { days: days.to_vec(), from: from.into(), to: to.into() };
    let right = || window(&[], "09:00", "17:30");
    let cases = [
        (window(&[], "9:00", "17:30"), "windows[1].from: must be HH:MM, from 00:00 to 23:59"),
        (window(&[], "24:00", "17:30"), "windows[1].from: must be HH:MM"),
        (window(&[], "09:60", "17:30"), "windows[1].from: must be HH:MM"),
        (window(&[], "", "17:30"), "windows[1].from: must be HH:MM"),
        (window(&[], "09.00", "17:30"), "windows[1].from: must be HH:MM"),
        (window(&[], "0९:00", "17:30"), "windows[1].from: must be HH:MM"),
        (window(&[], "09:00", "24:01"), "windows[1].to: must be HH:MM, from 00:00 to 24:00"),
        (window(&[], "09:00", "25:00"), "windows[1].to: must be HH:MM"),
        (window(&[], "09:00", "+9:00"), "windows[1].to: must be HH:MM"),
        (window(&[], "09:00", "09:00"), "windows[1].to: must differ from its from"),
        (window(&[Weekday::Mon, Weekday::Mon], "09:00", "10:00"), "windows[1].days: a day appears twice"),
    ];
    for (window, detail) in cases {
        let refusal = parse_windows(&[right(), window]).unwrap_err();
        assert!(refusal.detail.starts_with(detail), "{refusal}");
    }
    assert!(parse_windows(&vec![right(); 32]).is_ok());
    assert_eq!(parse_windows(&vec![right(); 33]).unwrap_err().detail, "windows: may be at most 32, got 33");

    for name in ["Europe/Berlin", "UTC", "Etc/GMT+5"] {
        assert!(zone("time_zone", name).is_ok(), "{name}");
    }
    for name in
        ["", "Mars/Phobos", "Europe", "CEST+1", "../Europe/Berlin", "/etc/localtime", "Etc/Unknown", "Europe/Berlin\0"]
    {
        let refusal = zone("time_zone", name).unwrap_err();
        assert!(refusal.detail.starts_with("time_zone: unknown time zone \""), "{refusal}");
    }
    assert!(zone("time_zone", &"x".repeat(100_000)).unwrap_err().detail.len() < 200);
}

#[test]
fn bundled_zones_agree_with_the_system_zones() {
    // The bundled database is used when the system has none.
    let bundled = jiff::tz::TimeZoneDatabase::bundled();
    for (name, change) in CHANGES {
        let at = change.parse::<Timestamp>().unwrap();
        assert_eq!(bundled.get(name).unwrap().to_datetime(at), TimeZone::get(name).unwrap().to_datetime(at), "{name}");
    }
}

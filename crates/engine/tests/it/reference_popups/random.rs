//! Random configurations, of so few values that rules often match.

use super::wall::DAY_MS;
use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Map, Value, json};

pub const USERS: [&str; 5] = ["ada", "ben", "cyd", "dan", "eve"];
/// Some zones, and instants near which the clocks of one of them change: in 2026, and a day that was skipped.
const ZONES: [&str; 6] =
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Pacific/Apia"];
const BASES: [&str; 6] = [
    "2026-03-28T12:00:00Z",
    "2026-10-24T20:00:00Z",
    "2026-03-07T22:00:00Z",
    "2026-04-04T03:00:00Z",
    "2026-04-23T12:00:00Z",
    "2011-12-29T20:00:00Z",
];
const PLACEMENTS: [&str; 3] = ["home", "listing", "cart"];
pub const EVENTS: [&str; 2] = ["bought", "left"];
const TEXTS: [&str; 5] = ["DE", "AT", "4.2.0", "4.10", ""];

pub fn base(random: &mut StdRng) -> u64 {
    BASES.choose(random).unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond() as u64
}

pub fn maybe<T>(random: &mut StdRng, chance: f64, make: impl FnOnce(&mut StdRng) -> T) -> Option<T> {
    random.random_bool(chance).then(|| make(random))
}

pub fn any<T: Clone>(random: &mut StdRng, of: &[T]) -> T {
    of.choose(random).unwrap().clone()
}

fn test(random: &mut StdRng) -> Value {
    let name = any(random, &["a", "b", "user.a"]);
    let text = any(random, &TEXTS);
    let number = random.random_range(0..3);
    let (op, value) = match random.random_range(0..8) {
        0 => (any(random, &["eq", "ne"]), json!(text)),
        1 => (any(random, &["eq", "ne", "lt", "lte", "gt", "gte"]), json!(number)),
        2 => (any(random, &["in", "not_in"]), json!([text, "x"])),
        3 => (any(random, &["in", "not_in"]), json!([number, 7])),
        4 => (any(random, &["contains", "not_contains", "starts_with", "ends_with"]), json!(text)),
        5 => (any(random, &["version_eq", "version_lt", "version_lte", "version_gt", "version_gte"]), json!("4.3")),
        6 => (any(random, &["eq", "ne"]), json!(true)),
        _ => return json!({"attribute": name, "op": any(random, &["exists", "absent"])}),
    };
    json!({"attribute": name, "op": op, "value": value})
}

/// The custom events, some of which also trigger popups.
pub const CUSTOM: [&str; 3] = ["bought", "left", "read"];
/// Short and long spans in seconds: of seconds, hours and days.
const SPANS: [u64; 6] = [1, 90, 3_600, 20_000, 100_000, 300_000];

/// A condition on what the user did.
fn past(random: &mut StdRng) -> Value {
    let mut test = Map::new();
    test.extend(maybe(random, 0.4, |random| ("before_s".to_owned(), json!(any(random, &SPANS[..4])))));
    test.extend(maybe(random, 0.4, |random| ("within_s".to_owned(), json!(any(random, &SPANS[4..])))));
    test.extend(maybe(random, 0.2, |random| ("times_gte".to_owned(), json!(random.random_range(1..4)))));
    test.extend(maybe(random, 0.2, |random| ("since_event".to_owned(), json!(any(random, &CUSTOM)))));
    if random.random() {
        test.insert("name".into(), json!(any(random, &CUSTOM)));
        return json!({"event": test});
    }
    test.insert("type".into(), json!(any(random, &["impression", "click", "click", "dismiss", "conversion"])));
    test.extend(maybe(random, 0.3, |random| ("popup".to_owned(), json!(format!("p{}", random.random_range(0..12))))));
    json!({"popup_event": test})
}

fn after(random: &mut StdRng) -> Value {
    let mut after = Map::new();
    for kind in ["impression", "click", "dismiss", "conversion"] {
        let wait = |random: &mut StdRng| (kind.to_owned(), json!(any(random, &["never", "1s", "45m", "5h", "2d"])));
        after.extend(maybe(random, 0.3, wait));
    }
    Value::Object(after)
}

fn rule(random: &mut StdRng, depth: u32) -> Value {
    if random.random_bool(0.2) {
        return if random.random_bool(0.3) { json!({"not": past(random)}) } else { past(random) };
    }
    match random.random_range(0..12) {
        0 | 1 if depth > 0 => json!({"all": rules(random, depth)}),
        2..5 if depth > 0 => json!({"any": rules(random, depth)}),
        5 if depth > 0 => json!({"not": rule(random, depth - 1)}),
        6 => {
            let from = random.random_range(0..50);
            json!({"percent": {"salt": "s", "from": from, "to": random.random_range(from + 20..=100)}})
        }
        7 => json!({"segment": any(random, &["s0", "s1"])}),
        8 if depth == 0 => json!({"not": {"unread_direct": {"older_than_s": 600}}}),
        _ => test(random),
    }
}

/// A condition that a trigger accepts: it does not test the user's profile or messages.
fn rule_of_event(random: &mut StdRng) -> Value {
    loop {
        let rule = rule(random, 1);
        let text = rule.to_string();
        let names_past = text.contains("unread_direct") || text.contains("event\"") || text.contains("\"user.");
        if !names_past {
            return rule;
        }
    }
}

fn rules(random: &mut StdRng, depth: u32) -> Vec<Value> {
    (0..random.random_range(0..4)).map(|_| rule(random, depth - 1)).collect()
}

pub fn caps(random: &mut StdRng, chance: f64) -> Value {
    let mut caps = Map::new();
    for (name, most) in [("per_session", 3), ("per_day", 4), ("total", 12)] {
        caps.extend(maybe(random, chance, |random| (name.to_owned(), json!(random.random_range(1..most)))));
    }
    let gaps = [1, 60, 3_600, 18_000, 100_000, 250_000];
    caps.extend(maybe(random, chance, |random| ("gap_s".to_owned(), json!(any(random, &gaps)))));
    Value::Object(caps)
}

fn window(random: &mut StdRng) -> Value {
    let text = |quarter: u32| format!("{:02}:{:02}", quarter / 4, quarter % 4 * 15);
    // Half of them near times at which clocks change.
    let from = if random.random() { random.random_range(0..14) } else { random.random_range(0..96) };
    let to = (1..=96).cycle().nth((from + random.random_range(0..40)) as usize).unwrap();
    let week = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    let days: Vec<&str> = week.into_iter().filter(|_| random.random_bool(0.4)).collect();
    json!({"days": days, "from": text(from), "to": text(to)})
}

pub fn spec(random: &mut StdRng, base: u64) -> Value {
    let states = ["live", "live", "live", "live", "live", "scheduled", "draft", "paused", "ended"];
    let state = any(random, &states);
    let mut placements = PLACEMENTS.to_vec();
    placements.retain(|_| random.random_bool(0.6));
    if placements.is_empty() {
        placements.push(any(random, &PLACEMENTS));
    }
    let mut spec = json!({
        "state": state,
        "placements": placements,
        "priority": any(random, &[-1, 0, 0, 0, 5]),
        "caps": caps(random, 0.3),
        "control_percent": any(random, &[0.0, 0.0, 0.0, 33.33, 100.0]),
        "strict": random.random_bool(0.02),
    });
    let starts = base + random.random_range(0..8 * DAY_MS) - 5 * DAY_MS;
    let chance = if state == "scheduled" { 1.0 } else { 0.3 };
    let mut set = |name: &str, value: Option<Value>| value.into_iter().for_each(|value| spec[name] = value);
    set("starts_at", maybe(random, chance, |_| json!(starts)));
    set("ends_at", maybe(random, 0.3, |random| json!(starts + random.random_range(1..15 * DAY_MS))));
    set("time_zone", maybe(random, 0.5, |random| json!(any(random, &ZONES))));
    let windows = |random: &mut StdRng| (0..random.random_range(1..4)).map(|_| window(random)).collect::<Value>();
    set("windows", maybe(random, 0.3, windows));
    set("audience", maybe(random, 0.35, |random| rule(random, 2)));
    set(
        "trigger",
        maybe(random, 0.2, |random| {
            let mut trigger = json!({"event": any(random, &EVENTS)});
            if random.random_bool(0.4) {
                trigger["delay_s"] = json!(any(random, &SPANS));
            } else if random.random() {
                trigger["where"] = rule_of_event(random);
            }
            trigger
        }),
    );
    set("after", maybe(random, 0.3, after));
    set("test_users", maybe(random, 0.06, |random| json!([any(random, &USERS)])));
    let mut weights: Vec<u32> = (0..random.random_range(1..4)).map(|_| random.random_range(0..4)).collect();
    weights[0] += 1;
    let variant = |(at, weight): (usize, u32)| json!({"id": format!("v{at}"), "weight": weight, "content": {}});
    spec["variants"] = weights.into_iter().enumerate().map(variant).collect();
    spec
}

pub fn settings(random: &mut StdRng) -> Value {
    let mut settings = json!({
        "caps": caps(random, 0.12),
        "holdout_percent": any(random, &[0.0, 0.0, 0.0, 20.0]),
        "placements": {},
    });
    for placement in PLACEMENTS {
        if random.random_bool(0.3) {
            settings["placements"][placement] = caps(random, 0.3);
        }
    }
    if random.random() {
        settings["time_zone"] = json!(any(random, &ZONES));
    }
    settings
}

pub fn attributes(random: &mut StdRng) -> Map<String, Value> {
    let mut attributes = Map::new();
    for name in ["a", "b"] {
        let value = match random.random_range(0..8) {
            0..3 => json!(any(random, &TEXTS)),
            3..5 => json!(random.random_range(0..3)),
            5 => json!(random.random::<bool>()),
            6 => json!([any(random, &TEXTS)]),
            _ => continue,
        };
        attributes.insert(name.to_owned(), value);
    }
    attributes
}

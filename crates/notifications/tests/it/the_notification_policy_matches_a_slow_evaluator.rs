//! A compiled notification policy decides as a slow and obvious evaluation of the document as it was written: random policies, random
//! messages, people and times. `NOTIFICATION_SEED` replays a run.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use tidings_domain::model::{ConversationKind, Locale, User, UserExtras, UserNo};
use tidings_notifications::policy::{CompiledPolicy, MessageFacts, PersonFacts, check};

const HOUR_MS: u64 = 60 * 60 * 1_000;
/// Thursday, 1 January 2026, 00:00 UTC.
const NEW_YEAR: u64 = 1_767_225_600_000;

/// All that a condition can look at, in plain terms.
pub(crate) struct Facts {
    pub(crate) user: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) sender: Option<&'static str>,
    pub(crate) mentions: Vec<String>,
    pub(crate) unread: Option<u64>,
    pub(crate) unread_since: Option<u64>,
    pub(crate) language: Option<&'static str>,
    /// Hours ahead of UTC.
    pub(crate) zone: Option<i64>,
    /// The attributes of the user's profile.
    pub(crate) attributes: Value,
    pub(crate) now_ms: u64,
}

// ---- the slow evaluation

fn attribute(facts: &Facts, name: &str) -> Option<Value> {
    let mentions_all = facts.mentions.iter().any(|id| id == "@all");
    match name {
        "message.kind" => Some(json!(facts.kind)),
        "message.type" => Some(json!(facts.content_type)),
        "message.conversation" => Some(json!("room")),
        "sender" => facts.sender.map(|sender| json!(sender)),
        "mention" => Some(json!(mentions_all || facts.mentions.iter().any(|id| id == facts.user))),
        "mention_all" => Some(json!(mentions_all)),
        "unread" => facts.unread.map(|unread| json!(unread)),
        "language" => facts.language.map(|language| json!(language)),
        _ => facts.attributes.get(name.strip_prefix("user.").unwrap()).cloned(),
    }
}

fn holds(facts: &Facts, rule: &Value, policy_zone: i64) -> bool {
    let again = |rule: &Value| holds(facts, rule, policy_zone);
    if let Some(rules) = rule.get("all") {
        return rules.as_array().unwrap().iter().all(again);
    }
    if let Some(rules) = rule.get("any") {
        return rules.as_array().unwrap().iter().any(again);
    }
    if let Some(rule) = rule.get("not") {
        return !again(rule);
    }
    if let Some(age) = rule.get("unread_direct") {
        let age_ms = age["older_than_s"].as_u64().unwrap() * 1_000;
        return facts.unread_since.is_some_and(|since| since + age_ms <= facts.now_ms);
    }
    if let Some(time) = rule.get("time_of_day") {
        let zone = if time.get("time_zone").is_some() { 0 } else { facts.zone.unwrap_or(policy_zone) };
        let local_hours = (facts.now_ms / HOUR_MS) as i64 + zone;
        let number = |text: &Value| text.as_str().unwrap()[..2].parse::<i64>().unwrap();
        let (from, to) = (number(&time["from"]), number(&time["to"]));
        let days = time.get("days").map(|days| days.as_array().unwrap().clone()).unwrap_or_default();
        // The day and hour at which a window that is open now would have begun: hour by hour back.
        let length = if to > from { to - from } else { to + 24 - from };
        return (0..length).any(|back| {
            let begin = local_hours - back;
            let weekday =
                ["thu", "fri", "sat", "sun", "mon", "tue", "wed"][begin.div_euclid(24).rem_euclid(7) as usize];
            begin.rem_euclid(24) == from && (days.is_empty() || days.contains(&json!(weekday)))
        });
    }
    let value = attribute(facts, rule["attribute"].as_str().unwrap());
    match (rule["op"].as_str().unwrap(), value) {
        ("exists", value) => value.is_some(),
        ("absent", value) => value.is_none(),
        (_, None) => false,
        ("eq", Some(value)) => same_type(&value, &rule["value"]) && value == rule["value"],
        ("ne", Some(value)) => same_type(&value, &rule["value"]) && value != rule["value"],
        ("gte", Some(value)) => value.as_f64().is_some_and(|own| own >= rule["value"].as_f64().unwrap()),
        ("in", Some(value)) => rule["value"].as_array().unwrap().contains(&value),
        (op, _) => panic!("{op}"),
    }
}

fn same_type(a: &Value, b: &Value) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

/// Whether a rule or a channel has no condition, or one that holds.
pub(crate) fn conditions_hold(facts: &Facts, of: &Value, policy_zone: i64) -> bool {
    of.get("when").is_none_or(|when| holds(facts, when, policy_zone))
}

/// The position of the rule that decides, and for each of its channels whether it is taken.
pub(crate) fn decide(policy: &Value, facts: &Facts, policy_zone: i64) -> Option<(usize, Vec<bool>)> {
    let named = |list: Option<&Value>, word: &str| {
        list.and_then(Value::as_array).is_none_or(|list| list.is_empty() || list.contains(&json!(word)))
    };
    let conditions_hold = |of: &Value| conditions_hold(facts, of, policy_zone);
    let rules = policy["rules"].as_array().unwrap();
    let at = rules.iter().position(|rule| {
        let scope = rule.get("for");
        named(scope.and_then(|scope| scope.get("kinds")), facts.kind)
            && named(scope.and_then(|scope| scope.get("types")), facts.content_type)
            && conditions_hold(rule)
    })?;
    let channels = rules[at].get("channels").and_then(Value::as_array).cloned().unwrap_or_default();
    Some((at, channels.iter().map(conditions_hold).collect()))
}

// ---- random cases

fn condition(random: &mut impl Rng, depth: usize) -> Value {
    let forms = if depth == 0 { 7 } else { 10 };
    match random.random_range(0..forms) {
        0 => json!({"attribute": "message.kind", "op": "in", "value": ["direct", "official"]}),
        1 => {
            let name = *["mention", "mention_all"].choose(random).unwrap();
            json!({"attribute": name, "op": "eq", "value": random.random_bool(0.5)})
        }
        2 => json!({"attribute": "unread", "op": "gte", "value": random.random_range(0..4)}),
        3 => {
            let name = *["sender", "language", "user.plan", "message.type"].choose(random).unwrap();
            let value = *["ada", "de", "gold", "text"].choose(random).unwrap();
            match random.random_range(0..4) {
                0 => json!({"attribute": name, "op": "exists"}),
                1 => json!({"attribute": name, "op": "absent"}),
                2 => json!({"attribute": name, "op": "ne", "value": value}),
                _ => json!({"attribute": name, "op": "eq", "value": value}),
            }
        }
        4 => json!({"unread_direct": {"older_than_s": random.random_range(0..5) * 1_800}}),
        5 | 6 => {
            let from = random.random_range(0..24);
            let to = (from + random.random_range(1..24)) % 24;
            let mut time = json!({"from": format!("{from:02}:00"), "to": format!("{to:02}:00")});
            if random.random_bool(0.5) {
                let days = ["mon", "thu", "fri", "sun"];
                let count = random.random_range(1..=days.len());
                time["days"] = json!(days[..count]);
            }
            if random.random_bool(0.3) {
                time["time_zone"] = json!("UTC");
            }
            json!({"time_of_day": time})
        }
        7 => json!({"not": condition(random, depth - 1)}),
        form => {
            let parts: Vec<Value> = (0..random.random_range(0..4)).map(|_| condition(random, depth - 1)).collect();
            if form == 8 { json!({"all": parts}) } else { json!({"any": parts}) }
        }
    }
}

pub(crate) fn policy(random: &mut impl Rng) -> Value {
    let rule = |random: &mut StdRng, at: usize| {
        let mut rule = json!({"id": format!("r{at}")});
        if random.random_bool(0.5) {
            let kinds = ["group", "direct", "official"];
            rule["for"] = json!({"kinds": kinds[..random.random_range(0..=2)]});
            if random.random_bool(0.5) {
                rule["for"]["types"] = json!(["text"]);
            }
        }
        if random.random_bool(0.7) {
            rule["when"] = condition(random, 3);
        }
        let mut channels = vec![json!({"channel": "session"})];
        for channel in ["providers", "webhook", "device_push"] {
            let mut step = json!({"channel": channel});
            if random.random_bool(0.5) {
                step["when"] = condition(random, 2);
            }
            channels.push(step);
        }
        rule["channels"] = json!(channels);
        rule
    };
    let mut inner = StdRng::seed_from_u64(random.random());
    let rules: Vec<Value> = (0..random.random_range(0..5)).map(|at| rule(&mut inner, at)).collect();
    json!({"time_zone": "Etc/GMT-2", "rules": rules})
}

/// The zones that are used, by how many hours they are ahead of UTC. (The signs of these names are reversed.)
const ZONES: [(i64, &str); 3] = [(9, "Etc/GMT-9"), (-5, "Etc/GMT+5"), (0, "UTC")];

fn facts(random: &mut impl Rng) -> Facts {
    let mentions = [vec![], vec!["ben".to_owned()], vec!["@all".to_owned()], vec!["cleo".to_owned()]];
    let now_ms = NEW_YEAR + random.random_range(0..10 * 24) * HOUR_MS + random.random_range(0..HOUR_MS);
    let some = |yes: bool, value: &'static str| yes.then_some(value);
    Facts {
        user: "ben",
        kind: ["direct", "group", "official"].choose(random).unwrap(),
        content_type: ["text", "order"].choose(random).unwrap(),
        sender: some(random.random_bool(0.8), "ada"),
        mentions: mentions.choose(random).unwrap().clone(),
        unread: random.random_bool(0.8).then(|| random.random_range(0..5)),
        unread_since: random.random_bool(0.7).then(|| now_ms - random.random_range(0..3 * HOUR_MS)),
        language: some(random.random_bool(0.5), "de"),
        zone: random.random_bool(0.7).then(|| ZONES.choose(random).unwrap().0),
        attributes: [json!({}), json!({"plan": "gold"}), json!({"plan": 7})].choose(random).unwrap().clone(),
        now_ms,
    }
}

#[test]
fn policies_decide_as_the_document_says() {
    let seed = std::env::var("NOTIFICATION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("NOTIFICATION_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut decided, mut undecided, mut taken, mut not_taken) = (0, 0, 0, 0);
    for _ in 0..400 {
        let document = policy(&mut random);
        let checked = check(serde_json::from_str(&document.to_string()).unwrap()).unwrap();
        let compiled = CompiledPolicy::compile(&checked, 1, &|_| None);
        for _ in 0..20 {
            let facts = facts(&mut random);
            let zone = facts.zone.and_then(|hours| ZONES.iter().find(|(ahead, _)| *ahead == hours));
            let language = facts.language.map(str::to_owned);
            let user = User::new(UserNo(1), "ben".into(), 0).with_extras(UserExtras {
                attributes: Some(facts.attributes.to_string()),
                locale: Some(Box::new(Locale { language, time_zone: zone.map(|(_, name)| (*name).to_owned()) })),
                ..UserExtras::default()
            });
            let message = MessageFacts {
                kind: match facts.kind {
                    "direct" => ConversationKind::Direct,
                    "group" => ConversationKind::Group,
                    _ => ConversationKind::Official,
                },
                content_type: facts.content_type,
                conversation: "room",
                sender: facts.sender,
                mentions: &facts.mentions,
                mentions_all: facts.mentions.iter().any(|id| id == "@all"),
            };
            let person = PersonFacts { user: &user, unread: facts.unread, unread_since: facts.unread_since };
            let now_ms = facts.now_ms;
            let rule = compiled.rule_for(&message, &person, now_ms);
            let found = rule.map(|rule| {
                let takes = |step| {
                    let takes = compiled.takes(step, &message, &person, now_ms);
                    assert_eq!(compiled.why_not_taken(step, &message, &person, now_ms).is_none(), takes);
                    takes
                };
                let at = compiled.rules.iter().position(|other| other.id == rule.id).unwrap();
                (at, rule.channels.iter().map(takes).collect::<Vec<bool>>())
            });
            let expected = decide(&document, &facts, 2);
            assert_eq!(found, expected, "NOTIFICATION_SEED={seed} {document} at {now_ms}");
            let passed_over = compiled.passed_over(&message, &person, now_ms).len();
            assert_eq!(
                passed_over,
                expected.as_ref().map_or(compiled.rules.len(), |(at, _)| *at),
                "NOTIFICATION_SEED={seed}"
            );
            match expected {
                None => undecided += 1,
                Some((_, channels)) => {
                    decided += 1;
                    taken += channels[1..].iter().filter(|taken| **taken).count();
                    not_taken += channels[1..].iter().filter(|taken| !**taken).count();
                }
            }
        }
    }
    println!("{decided} decided, {undecided} not; channels: {taken} taken, {not_taken} not");
    assert!(decided > 500 && undecided > 500 && taken > 500 && not_taken > 500);
}

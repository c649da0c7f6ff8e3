//! Every refusal of wrong JSON names the path of the wrong value, and none shows a name or type of Rust.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tidings_protocol::{error::ErrorCode, frames::RawClientFrame, http::*, json};

/// Words of Rust and of its libraries.
const OURS: [&str; 17] = [
    "struct",
    "enum",
    "variant",
    "sequence",
    "tuple",
    "newtype",
    "option",
    "u64",
    "u32",
    "i32",
    "f64",
    "usize",
    "unit",
    "invalid type",
    "expected",
    "borrowed",
    "line ",
];

/// Every path in a JSON value, the root first.
fn places(json: &Value) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let parts: Vec<(String, &Value)> = match json {
        Value::Object(fields) => fields.iter().map(|(name, part)| (name.clone(), part)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(at, part)| (at.to_string(), part)).collect(),
        _ => Vec::new(),
    };
    for (step, part) in parts {
        found.extend(places(part).into_iter().map(|rest| [vec![step.clone()], rest].concat()));
    }
    found
}

/// The same JSON with another value at this path.
fn with(json: &Value, steps: &[String], other: &Value) -> Value {
    let Some((step, rest)) = steps.split_first() else { return other.clone() };
    let mut changed = json.clone();
    let part = match &mut changed {
        Value::Object(fields) => &mut fields[step],
        Value::Array(items) => &mut items[step.parse::<usize>().unwrap()],
        other => panic!("{other} has no {step}"),
    };
    *part = with(&part.clone(), rest, other);
    changed
}

/// Puts wrong values at every path of a valid request; returns how many were refused.
fn check_all(good: &Value, read: impl Fn(&str) -> Result<(), tidings_protocol::error::Refusal>) -> usize {
    read(&good.to_string()).unwrap_or_else(|refusal| panic!("{good}: {refusal}"));
    let wrong = [
        json!(null),
        json!(7),
        json!(-1),
        json!(1.5),
        json!("x"),
        json!(true),
        json!([]),
        json!([[7]]),
        json!({"x": 7}),
    ];
    let mut refused = 0;
    for steps in places(good) {
        for other in &wrong {
            let text = with(good, &steps, other).to_string();
            let Err(refusal) = read(&text) else { continue };
            refused += 1;
            assert_eq!(refusal.code, ErrorCode::InvalidField, "{text}: {refusal}");
            let (place, why) = refusal.detail.split_once(": ").unwrap_or_else(|| panic!("{text}: {refusal}"));
            assert!(!place.is_empty() && !place.contains(' '), "{text}: {refusal}");
            // The list of known fields may hold any word.
            let why = why.split("; expected one of").next().unwrap();
            assert!(!OURS.iter().any(|word| why.contains(word)), "{text}: {refusal}");
        }
    }
    refused
}

fn check<T: DeserializeOwned>(good: Value) {
    let refused = check_all(&good, |text| json::read::<T>(text.as_bytes()).map(drop));
    assert!(refused >= 8, "{good}: only {refused} were refused");
}

#[test]
fn every_request_field_is_refused_in_json_terms() {
    check::<UsersUpsert>(json!({"users": [{"id": "a", "name": "A", "avatar": "x", "attributes": {"vip": true}}]}));
    check::<SetDoNotDisturb>(json!({"window": {"start": "22:00", "end": "07:00", "time_zone": "UTC"}}));
    check::<SetLocale>(json!({"language": "de-AT", "time_zone": "Europe/Vienna"}));
    check::<NotificationPreferences>(
        json!({"off": ["webhook"], "group": {"off": ["popup"], "only_mentions": true}, "snooze_until": 1_764_238_000_000_u64}),
    );
    check::<NotificationPolicy>(
        json!({"time_zone": "UTC", "rules": [{"id": "a", "for": {"kinds": ["group"], "types": ["text"]}, "ack_timeout_ms": 500,
        "channels": [{"channel": "providers", "after_s": 1, "expires_s": 5, "on_success": "stop", "providers": ["apns"], "sound": "x",
            "template": {"title": "t", "body": "b", "image": "https://a.example"}, "templates": {"de": {"title": "t", "body": "b"}},
            "priority": "high", "collapse": "message", "badge": true}, {"channel": "popup", "event": "e"}]}]}),
    );
    check::<ExplainNotifications>(
        json!({"user": "b", "conversation": "g", "to": "b", "from": "a", "type": "text", "mentions": ["b"],
        "silent": true, "skip_push": false}),
    );
    check::<CreateConversation>(json!({"id": "g", "kind": "group", "owner": "a", "members": ["b"], "name": "G"}));
    check::<UpdateConversation>(json!({"name": "G", "avatar": "x", "attributes": {}}));
    check::<ChangeMembers>(json!({"add": ["a"], "remove": ["b"], "role": "admin"}));
    let message = json!({"conversation": "g", "from": "a", "client_msg_id": "1", "type": "text", "body": {"a": [1]},
        "mentions": ["b"], "silent": true, "skip_push": false});
    check::<SendRequest>(message.clone());
    check::<SendBatch>(json!({"messages": [message]}));
    check::<MarkRead>(json!({"seq": 1}));
    check::<Mute>(json!({"muted": true, "until": 1_764_238_000_000_u64}));
    check::<PushRequest>(json!({"to": {"users": ["a"], "devices": [{"user": "a", "device_id": "d"}], "kinds": ["web"],
        "tags": {"any": ["x"], "all": ["y"]}}, "type": "offer", "body": 1, "ttl_s": 60, "priority": "high", "dry_run": true}));
    check::<SetTags>(json!({"tags": ["a"]}));
    check::<PresenceQuery>(json!({"users": ["a"]}));
    check::<ComparePresence>(json!({"repair": true}));
    check::<Kick>(json!({"device_id": "d", "reason": "r"}));
    check::<SelectDeadLetters>(
        json!({"ids": ["webhook:1"], "channel": "webhook", "user": "a", "outcome": "refused", "cause": "x"}),
    );
    check::<PopupSpec>(
        json!({"state": "live", "placements": ["home"], "priority": 1, "starts_at": 1_764_238_000_000_u64, "time_zone": "UTC",
        "windows": [{"days": ["mon"], "from": "09:00", "to": "10:00"}], "trigger": {"event": "e"}, "caps": {"per_day": 1},
        "variants": [{"id": "a", "weight": 1, "content": {"title": "T", "buttons": [
            {"id": "go", "label": "Go", "action": {"type": "open", "url": "https://example.org"}}]}}],
        "control_percent": 1.5, "strict": true, "test_users": ["t"]}),
    );
    check::<PopupSettings>(json!({"caps": {"per_day": 1, "gap_s": 5}, "placements": {"home": {"total": 1}}}));
    check::<PopupEvents>(json!({"events": [{"id": "e", "decision": "d", "type": "click", "at": 1, "value": 1.5}]}));
}

#[test]
fn every_frame_field_is_refused_in_json_terms() {
    let frame = json!({"t": "send", "ref": 1, "conversation": "g", "to": "a", "client_msg_id": "1", "type": "t", "body": [],
        "mentions": ["a"], "silent": true, "seq": 1, "limit": 5, "token": "x", "device_id": "d", "push": true, "pushes": [1],
        "users": ["a"], "cursor": "c"});
    let refused = check_all(&frame, |text| json::read_text::<RawClientFrame<'_>>("frame", text).map(drop));
    assert!(refused > 100, "only {refused} were refused");
}

//! A request that names a time in seconds is refused with a hint.

use crate::support::*;
use serde_json::Value;
use std::collections::BTreeSet;

#[test]
fn a_time_in_seconds_is_refused_with_a_hint() {
    let server = Server::start().with_people();
    let mut app = server.app();
    let seconds = now_ms() / 1_000 + 3_600;
    let hint = |field: &str| {
        format!(
            "{field}: must be in milliseconds since 1970 UTC, got {seconds}, which looks like seconds: {seconds}000"
        )
    };
    let popup = |field| format!(r#"{{"state":"live","placements":["home"],"variants":[],"{field}":{seconds}}}"#);
    let snooze = format!(r#"{{"events":[{{"id":"1","type":"snooze","decision":"d","until":{seconds}}}]}}"#);
    for (method, path, body, field) in [
        ("POST", "/v1/push", format!(r#"{{"to":{{"all":true}},"body":1,"send_at":{seconds}}}"#), "send_at"),
        (
            "POST",
            "/v1/scheduled-messages",
            format!(r#"{{"send_at":{seconds},"message":{{"to":"bob","body":1}}}}"#),
            "send_at",
        ),
        ("PUT", "/v1/popups/p", popup("starts_at"), "starts_at"),
        ("PUT", "/v1/popups/p", popup("ends_at"), "ends_at"),
        ("PUT", "/v1/users/bob/conversations/g/mute", format!(r#"{{"muted":true,"until":{seconds}}}"#), "until"),
        ("PUT", "/v1/conversations/g/restrictions/bob", format!(r#"{{"kind":"mute","until":{seconds}}}"#), "until"),
        ("POST", "/v1/conversations/g/invites", format!(r#"{{"expires_at":{seconds}}}"#), "expires_at"),
        ("PUT", "/v1/users/bob/notification-preferences", format!(r#"{{"snooze_until":{seconds}}}"#), "snooze_until"),
        ("POST", "/v1/popup-events", snooze, "events[0].until"),
        ("POST", "/v1/admin/keys", format!(r#"{{"name":"n","scopes":["read"],"expires_at":{seconds}}}"#), "expires_at"),
        ("PATCH", "/v1/admin/keys/x", format!(r#"{{"expires_at":{seconds}}}"#), "expires_at"),
        ("GET", &format!("/v1/conversations/g/messages?from_time={seconds}"), String::new(), "from_time"),
        ("GET", &format!("/v1/conversations/g/messages?to_time={seconds}"), String::new(), "to_time"),
        ("GET", &format!("/v1/popups/p/counts?from={seconds}"), String::new(), "from"),
        ("GET", &format!("/v1/popup-events?to={seconds}"), String::new(), "to"),
        ("GET", &format!("/v1/notifications/stats?from={seconds}"), String::new(), "from"),
    ] {
        check_refused(&mut app, method, path, &body, "invalid_field", &hint(field));
    }
    expect_status(&mut app, "GET", "/v1/conversations/g/messages?from_time=0", "", 200);
    let push = r#"{"to":{"users":["bob"]},"body":1,"send_at":0}"#;
    expect_status(&mut app, "POST", "/v1/push", push, 202);
}

/// A new time in a request is to be read by `tidings_protocol::time` as well, and added here and to the tests of it.
#[test]
fn the_times_of_requests_are_known() {
    let server = Server::start();
    let described: Value =
        serde_json::from_str(&expect_status(&mut server.app(), "GET", "/openapi.json", "", 200)).unwrap();
    let mut times = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for operation in
        described["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values())
    {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            if is_time(parameter) {
                times.insert(format!("?{}", parameter["name"].as_str().unwrap()));
            }
        }
        add_times(&described, &operation["requestBody"], &mut seen, &mut times);
    }
    let known = [
        "?active_since",
        "?from",
        "?from_time",
        "?since",
        "CreateApiKey.expires_at",
        "Mute.until",
        "NewInvite.expires_at",
        "NotificationPreferences.snooze_until",
        // Of a device's clock: not checked.
        "PopupEvent.at",
        "PopupEvent.until",
        "PopupSpec.ends_at",
        "PopupSpec.starts_at",
        "PushRequest.send_at",
        "Restrict.until",
        "ScheduleMessage.send_at",
        "Suspend.until",
        "UpdateApiKey.expires_at",
        "UpdateScheduledMessage.send_at",
    ];
    assert_eq!(times.iter().map(String::as_str).collect::<Vec<_>>(), known);
}

fn is_time(described: &Value) -> bool {
    described["description"].as_str().is_some_and(|text| text.contains("since 1970"))
}

/// Adds the times of the schemas to which a description refers.
fn add_times(all: &Value, described: &Value, seen: &mut BTreeSet<String>, times: &mut BTreeSet<String>) {
    match described {
        Value::Array(items) => items.iter().for_each(|item| add_times(all, item, seen, times)),
        Value::Object(fields) => {
            for (name, field) in fields {
                match (name.as_str(), field.as_str()) {
                    ("$ref", Some(reference)) => {
                        let schema = reference.rsplit('/').next().unwrap();
                        if seen.insert(schema.to_owned()) {
                            let schema_text = &all["components"]["schemas"][schema];
                            let properties = schema_text["properties"].as_object().into_iter().flatten();
                            times.extend(
                                properties
                                    .filter(|(_, field)| is_time(field))
                                    .map(|(name, _)| format!("{schema}.{name}")),
                            );
                            add_times(all, schema_text, seen, times);
                        }
                    }
                    _ => add_times(all, field, seen, times),
                }
            }
        }
        _ => {}
    }
}

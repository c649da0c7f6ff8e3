//! Callers do only what their scopes allow, no more often than the limits allow, and learn nothing about other users' private data.

use crate::support::*;
use serde_json::{Value, json};
use std::time::Duration;
use tidings_api::{ApiConfig, routes::openapi};
use tidings_client::{
    http::HttpClient,
    token::{now_s, sign_claims, sign_scoped},
};
use tidings_domain::user_limiter::PerMinute;
use tidings_engine::config::{EngineConfig, LimitsConfig};
use tidings_listen::throttle::ThrottleConfig;

const HOUR: Duration = Duration::from_secs(3_600);

fn scoped(server: &Server, user: &str, scope: &str) -> HttpClient {
    server.with_credential(&sign_scoped(TOKEN_KEY, user, HOUR, scope))
}

/// The status and the body of a response.
fn ask(http: &mut HttpClient, method: &str, path: &str, body: &str) -> (u16, String) {
    let answer = http.exchange(method, path, body.as_bytes()).unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

/// The status of a call, and the code of its problem if it is one.
fn call(http: &mut HttpClient, method: &str, path: &str, body: &str) -> (u16, String) {
    let (status, body) = ask(http, method, path, body);
    let problem: Value = serde_json::from_str(&body).unwrap_or_default();
    (status, problem["code"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_token_whose_scopes_are_of_other_services_has_the_default_ones() {
    let server = Server::start().with_people();
    for (scope, status) in
        [("openid profile", 200), ("openid tidings:read", 200), ("openid send", 403), ("tidings:raed", 403)]
    {
        let mut alice = scoped(&server, "alice", scope);
        assert_eq!(call(&mut alice, "GET", "/v1/users/me", "").0, status, "{scope}");
    }
}

#[test]
fn a_token_without_scopes_is_forbidden_everything() {
    let server = Server::start().with_people();
    let mut nobody = scoped(&server, "alice", "");
    let description = serde_json::to_value(openapi()).unwrap();
    let mut asked = 0;
    for (path, operations) in description["paths"].as_object().unwrap() {
        // The credential of a stream's frames is the stream's secret.
        if ["/metrics", "/healthz", "/readyz", "/v1/stream/{stream}"].contains(&path.as_str()) {
            continue;
        }
        let concrete = path
            .replace("/v1/stream", "/v1/stream?device_id=d")
            .replace("/v1/stream?device_id=ds", "/v1/streams")
            .replace("{user}", "me")
            .replace("{conversation}", "g")
            .replace("{seq}", "1")
            .replace("{key}", "x")
            .replace("{invite}", "0")
            .replace("{push}", "1")
            .replace("{device_id}", "d")
            .replace("{popup}", "p")
            .replace("{segment}", "s")
            .replace("{scheduled}", "1");
        for method in operations.as_object().unwrap().keys().filter(|name| *name != "parameters") {
            let method = method.to_uppercase();
            // A body that each operation can read, so that the scope is what decides.
            let body = match (method.as_str(), path.as_str()) {
                ("GET" | "DELETE", _) => "",
                (_, "/v1/conversations") => r#"{"kind":"group"}"#,
                (_, "/v1/scheduled-messages") => r#"{"send_at":4102444800000,"message":{"conversation":"g","body":1}}"#,
                (_, "/v1/users/query") => r#"{"users":[]}"#,
                (_, "/v1/messages/batch") => r#"{"messages":[]}"#,
                (_, "/v1/popup-events") => r#"{"events":[]}"#,
                (_, "/v1/streams") => r#"{"conversation":"g","body":{"text":""}}"#,
                (_, "/v1/streams/{conversation}/{seq}") => r#"{"offset":0,"text":""}"#,
                (_, "/v1/conversations/{conversation}/assignment") => r#"{"assigned_to":null}"#,
                (_, "/v1/users/{user}/receipts") => r#"{"send":true}"#,
                (_, "/v1/users/{user}/devices/{device_id}/push_token") => r#"{"provider":"apns","token":"abcd"}"#,
                (_, "/v1/conversations/{conversation}/messages/{seq}") => r#"{"body":1}"#,
                (_, "/v1/users/{user}/conversations/{conversation}/read") => r#"{"seq":1}"#,
                (_, "/v1/users/{user}/conversations/{conversation}/mute") => r#"{"muted":true}"#,
                (_, "/v1/users/{user}/do-not-disturb") => r#"{"window":null}"#,
                (_, "/v1/conversations/{conversation}/members") => r#"{"add":["carol"]}"#,
                (_, "/v1/conversations/{conversation}/restrictions/{user}") => r#"{"kind":"mute"}"#,
                (_, "/v1/conversations/{conversation}/owner") => r#"{"to":"bob"}"#,
                (_, "/v1/conversations/{conversation}/messages/{seq}/report") => r#"{"reason":"spam"}"#,
                (_, "/v1/conversations/{conversation}/signals") => r#"{"type":"x"}"#,
                (_, "/v1/invites/join") => r#"{"token":"x"}"#,
                _ => "{}",
            };
            let concrete = match path.as_str() {
                "/v1/users" => "/v1/users?users=bob",
                "/v1/conversations/{conversation}/restrictions/{user}" if method == "DELETE" => {
                    "/v1/conversations/g/restrictions/bob?kind=mute"
                }
                _ => &concrete,
            };
            let (status, code) = call(&mut nobody, &method, concrete, body);
            assert_eq!((status, code.as_str()), (403, "forbidden"), "{method} {path}");
            asked += 1;
        }
    }
    assert!(asked > 40, "{asked} operations");
}

#[test]
fn each_scope_allows_only_its_own_operations() {
    let server = Server::start().with_people();
    let direct = r#"{"kind":"direct","members":["alice","carol"]}"#;
    let operations = [
        ("read", "GET", "/v1/conversations/g/messages", "", 200),
        ("read", "GET", "/v1/users/bob", "", 200),
        ("read", "GET", "/v1/users/me/desks", "", 200),
        ("read", "GET", "/v1/users/me/push_tokens", "", 200),
        ("read", "DELETE", "/v1/users/me/devices/d/push_token", "", 204),
        ("read", "PUT", "/v1/users/me/conversations/g/read", r#"{"seq":0}"#, 200),
        ("send", "POST", "/v1/messages", r#"{"conversation":"g","body":1}"#, 200),
        ("send", "POST", "/v1/messages/batch", r#"{"messages":[{"conversation":"g","body":1}]}"#, 200),
        ("send", "PATCH", "/v1/conversations/g/messages/2", r#"{"body":2}"#, 200),
        ("send", "PUT", "/v1/conversations/g/messages/2/reactions/x", "", 200),
        ("read", "GET", "/v1/conversations/g/messages/2/reactions", "", 200),
        ("send", "DELETE", "/v1/conversations/g/messages/2", "", 200),
        ("open_direct", "POST", "/v1/conversations", direct, 201),
        ("open_group", "POST", "/v1/conversations", r#"{"kind":"group","id":"new"}"#, 201),
        ("open_group", "POST", "/v1/conversations/g/members", r#"{"add":["carol"]}"#, 200),
        ("open_group", "PATCH", "/v1/conversations/g", r#"{"name":"Gee"}"#, 200),
        ("popups", "POST", "/v1/popups/decide", r#"{"placement":"home"}"#, 204),
        ("popups", "POST", "/v1/popup-events", r#"{"events":[]}"#, 202),
    ];
    for (scope, method, path, body, status) in operations {
        for other in ["read", "send", "open_direct", "open_group", "popups", "presence", "push"] {
            if other != scope {
                let refused = call(&mut scoped(&server, "alice", other), method, path, body);
                assert_eq!(refused, (403, "forbidden".into()), "{other}: {method} {path}");
            }
        }
        let allowed = call(&mut scoped(&server, "alice", scope), method, path, body);
        assert_eq!(allowed.0, status, "{scope}: {method} {path} {}", allowed.1);
    }
    // Leaving a group needs no scope for changing members.
    let left =
        call(&mut scoped(&server, "bob", "read"), "POST", "/v1/conversations/g/members", r#"{"remove":["bob"]}"#);
    assert_eq!(left.0, 200);
    // The first message opens the direct conversation; the next one does not.
    let first = r#"{"to":"bob","body":1}"#;
    let mut sender = scoped(&server, "carol", "send");
    assert_eq!(call(&mut sender, "POST", "/v1/messages", first), (403, "forbidden".into()));
    let batch = format!(r#"{{"messages":[{first}]}}"#);
    assert_eq!(call(&mut sender, "POST", "/v1/messages/batch", &batch), (403, "forbidden".into()));
    assert_eq!(call(&mut scoped(&server, "carol", "send open_direct"), "POST", "/v1/messages", first).0, 200);
    assert_eq!(call(&mut sender, "POST", "/v1/messages", first).0, 200);
}

#[test]
fn a_revoked_token_is_refused() {
    let server = Server::start().with_people();
    let old = server.with_credential(&sign_claims(
        TOKEN_KEY,
        &json!({"sub": "alice", "exp": now_s() + 3_600, "iat": now_ms() / 1_000 - 60}),
    ));
    let (mut old, mut bob) = (old, server.user("bob"));
    assert_eq!(call(&mut old, "GET", "/v1/users/me", "").0, 200);
    assert_eq!(call(&mut old, "POST", "/v1/users/alice/revoke", "{}").0, 403, "only an app server does");
    let answer = expect_status(&mut server.app(), "POST", "/v1/users/alice/revoke", r#"{"reason":"lost"}"#, 200);
    let from = serde_json::from_str::<Value>(&answer).unwrap()["issue_from"].as_u64().unwrap();
    assert_eq!(call(&mut old, "GET", "/v1/users/me", ""), (401, "unauthorized".into()));
    let without_iat = sign_claims(TOKEN_KEY, &json!({"sub": "alice", "exp": now_s() + 3_600}));
    assert_eq!(call(&mut server.with_credential(&without_iat), "GET", "/v1/users/me", "").0, 401);
    let new = |iat: u64| {
        let token = sign_claims(TOKEN_KEY, &json!({"sub": "alice", "exp": now_s() + 3_600, "iat": iat}));
        call(&mut server.with_credential(&token), "GET", "/v1/users/me", "").0
    };
    assert_eq!((new(from - 1), new(from)), (401, 200));
    assert_eq!(call(&mut bob, "GET", "/v1/users/me", "").0, 200);
}

#[test]
fn language_and_time_zone_are_shown_to_the_user_and_app_servers_alone() {
    let server = Server::start().with_people();
    let locale = r#"{"language":"de","time_zone":"Europe/Berlin"}"#;
    assert_eq!(call(&mut server.user("bob"), "PUT", "/v1/users/alice/locale", locale).0, 403, "of another user");
    assert_eq!(call(&mut server.user("alice"), "PUT", "/v1/users/me/locale", locale).0, 204);
    let seen = |http: &mut HttpClient| {
        let card: Value = serde_json::from_str(&expect_status(http, "GET", "/v1/users/alice", "", 200)).unwrap();
        (card["language"].clone(), card["time_zone"].clone())
    };
    let all = (json!("de"), json!("Europe/Berlin"));
    assert_eq!(seen(&mut server.app()), all);
    assert_eq!(seen(&mut server.user("alice")), all);
    assert_eq!(seen(&mut server.user("bob")), (json!(null), json!(null)));
}

#[test]
fn only_configured_attributes_are_public() {
    let check = |public: &[&str], shown: Value| {
        let engine = EngineConfig {
            public_attributes: public.iter().map(|name| (*name).to_owned()).collect(),
            ..EngineConfig::default()
        };
        let server = Server::of(ApiConfig::default(), engine, None).with_people();
        let all = json!({"title": "Dr", "salary": 7});
        let users = json!({"users": [{"id": "alice", "attributes": all}]}).to_string();
        expect_status(&mut server.app(), "PUT", "/v1/users", &users, 200);
        let seen = |http: &mut HttpClient, path: &str| {
            let card: Value = serde_json::from_str(&expect_status(http, "GET", path, "", 200)).unwrap();
            assert_eq!((&card["id"], &card["name"]), (&json!("alice"), &json!("Alice")));
            card["attributes"].clone()
        };
        assert_eq!(seen(&mut server.app(), "/v1/users/alice"), all);
        assert_eq!(seen(&mut server.user("alice"), "/v1/users/me"), all);
        assert_eq!(seen(&mut server.user("alice"), "/v1/users/alice"), all);
        assert_eq!(seen(&mut server.user("bob"), "/v1/users/alice"), shown);
    };
    check(&[], Value::Null);
    check(&["title", "age"], json!({"title": "Dr"}));
    check(&["age"], Value::Null);
}

#[test]
fn direct_conversations_of_others_look_nonexistent() {
    let server = Server::start().with_people();
    let mut carol = server.user("carol");
    let requests = [
        ("GET", "/v1/conversations/alice~bob", ""),
        ("GET", "/v1/conversations/alice~bob/messages", ""),
        ("GET", "/v1/conversations/alice~bob/members", ""),
        ("PATCH", "/v1/conversations/alice~bob", r#"{"name":"x"}"#),
        ("POST", "/v1/conversations/alice~bob/members", r#"{"add":["carol"]}"#),
        ("POST", "/v1/conversations/alice~bob/members", r#"{"remove":["carol"]}"#),
        ("POST", "/v1/messages", r#"{"conversation":"alice~bob","body":1}"#),
        ("PUT", "/v1/users/me/conversations/alice~bob/read", r#"{"seq":1}"#),
        ("PUT", "/v1/users/me/conversations/alice~bob/mute", r#"{"muted":true}"#),
    ];
    let mut ask = |(method, path, body): &(&str, &str, &str)| ask(&mut carol, method, path, body);
    let before: Vec<_> = requests.iter().map(&mut ask).collect();
    let sent = r#"{"from":"alice","to":"bob","body":1}"#;
    expect_status(&mut server.app(), "POST", "/v1/messages", sent, 200);
    let after: Vec<_> = requests.iter().map(&mut ask).collect();
    for ((request, before), after) in requests.iter().zip(before).zip(after) {
        assert_eq!(before, after, "{request:?}");
        assert_eq!(after.0, 404, "{request:?}: {}", after.1);
    }
}

#[test]
fn reserved_ids_are_refused_and_ids_with_a_zero_byte_are_not_found() {
    let server = Server::start().with_people();
    let mut app = server.app();
    for id in [".", "..", "me", "@all", "a\0b", "a\u{7}b", "\u{85}"] {
        let users = json!({"users": [{"id": id}]}).to_string();
        assert_eq!(call(&mut app, "PUT", "/v1/users", &users), (422, "invalid_field".into()), "{id:?}");
        let group = json!({"kind": "group", "id": id}).to_string();
        assert_eq!(call(&mut app, "POST", "/v1/conversations", &group), (422, "invalid_field".into()), "{id:?}");
    }
    for (method, path, body) in [
        ("GET", "/v1/users/a%00b", json!(null)),
        ("GET", "/v1/conversations/a%00b", json!(null)),
        ("GET", "/v1/conversations/a%00~b/messages", json!(null)),
        ("POST", "/v1/messages", json!({"from": "a\0", "conversation": "g", "body": 1})),
        ("POST", "/v1/messages", json!({"conversation": "g\0", "body": 1})),
        ("POST", "/v1/messages", json!({"from": "alice", "to": "b\0", "body": 1})),
        ("POST", "/v1/conversations", json!({"kind": "group", "members": ["b\0"]})),
        ("POST", "/v1/conversations", json!({"kind": "direct", "members": ["alice", "b\0"]})),
        ("POST", "/v1/users/a%00b/kick", json!({})),
    ] {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        assert_eq!(call(&mut app, method, path, &body), (404, "not_found".into()), "{method} {path} {body}");
    }
    let token = sign_claims(TOKEN_KEY, &json!({"sub": "a\0b", "exp": now_s() + 600}));
    assert_eq!(call(&mut server.with_credential(&token), "GET", "/v1/users/me", ""), (404, "not_found".into()));
}

#[test]
fn opening_and_joining_conversations_is_rate_limited_on_both_sides() {
    let engine = EngineConfig {
        limits: LimitsConfig {
            openings: PerMinute { count: 1, burst: 5 },
            additions: PerMinute { count: 1, burst: 8 },
            strangers: PerMinute { count: 1, burst: 4 },
            groups_per_user: 3,
        },
        ..EngineConfig::default()
    };
    let server = Server::of(ApiConfig::default(), engine, None).with_people();
    let people: Vec<Value> = (0..20).map(|n| json!({"id": format!("u{n}")})).collect();
    expect_status(&mut server.app(), "PUT", "/v1/users", &json!({ "users": people }).to_string(), 200);
    let gather = |user: &str, members: &[&str]| {
        let group = json!({"kind": "group", "members": members}).to_string();
        call(&mut server.user(user), "POST", "/v1/conversations", &group)
    };
    // Strangers may draw a user into three groups; after that the user is in too many for others to add.
    assert_eq!(gather("u0", &["carol"]).0, 201);
    assert_eq!(gather("u1", &["carol"]).0, 201);
    assert_eq!(gather("u2", &["carol"]).0, 201);
    assert_eq!(gather("u3", &["carol"]), (413, "limit_exceeded".into()));
    // The app server is not limited.
    let group = r#"{"kind":"group","members":["carol"]}"#;
    expect_status(&mut server.app(), "POST", "/v1/conversations", group, 201);
    // Strangers may approach another user four times.
    let approach = |user: &str| call(&mut server.user(user), "POST", "/v1/messages", r#"{"to":"bob","body":1}"#);
    for user in ["u4", "u5", "u6", "u7"] {
        assert_eq!(approach(user).0, 200);
    }
    assert_eq!(approach("u8"), (429, "rate_limited".into()));
    assert_eq!(approach("u4").0, 200, "who has a conversation is no stranger");
    assert_eq!(gather("u4", &["bob"]).0, 201);
    // One user may open five conversations, and add eight members.
    for n in 0..5 {
        assert_eq!(gather("u9", &[]).0, 201, "{n}");
    }
    assert_eq!(gather("u9", &[]), (429, "rate_limited".into()));
    assert_eq!(gather("u10", &["u11", "u12", "u13", "u14", "u15", "u16", "u17", "u18", "u19"]).0, 413, "never so many");
    assert_eq!(gather("u10", &["u11", "u12", "u13", "u14", "u15"]).0, 201);
    assert_eq!(gather("u10", &["u16", "u17", "u18", "u19"]), (429, "rate_limited".into()));
}

#[test]
fn repeated_authentication_failures_throttle_only_their_address() {
    let throttle = ThrottleConfig { per_minute: 60, burst: 10, exempt: Vec::new() };
    let server = Server::of(ApiConfig::default(), EngineConfig::default(), Some(throttle)).with_people();
    let mut kept = server.app();
    assert_eq!(call(&mut kept, "GET", "/v1/users/alice", "").0, 200);
    let mut statuses = Vec::new();
    for n in 0..40 {
        statuses.push(call(&mut server.with_credential(&format!("guess-{n}")), "GET", "/v1/users/alice", "").0);
    }
    let refused = statuses.iter().position(|status| *status == 429).expect("a guess too many");
    assert_eq!(refused, 10, "{statuses:?}");
    assert!(statuses.contains(&401) && statuses.iter().all(|status| [401, 429].contains(status)), "{statuses:?}");
    // Tokens are always verified: users who share the attacker's address are still served.
    assert_eq!(call(&mut server.user("alice"), "GET", "/v1/users/me", "").0, 200);
    let path = "/v1/popups/decide";
    assert_eq!(call(&mut server.user("alice"), "POST", path, r#"{"placement":"home"}"#).0, 204);
    // A forged token counts as a failure, on the popup fast path too.
    let forged = sign_scoped("another secret", "alice", HOUR, "popups");
    let forge = || call(&mut server.with_credential(&forged), "POST", path, r#"{"placement":"home"}"#).1;
    assert!((0..40).any(|_| forge() == "rate_limited"));
    // A key that nobody guesses is let in on a new connection and on the kept one, also on the popup fast path.
    for app in [&mut server.app(), &mut kept] {
        assert_eq!(call(app, "GET", "/v1/users/alice", "").0, 200);
        let question = r#"{"placement":"home","user":"alice"}"#;
        assert_eq!(call(&mut server.app(), "POST", path, question).0, 204);
    }
    // A short key is not told from guesses: it works again once the address may try again.
    let mut short = server.with_credential("a-second-key");
    assert_eq!(call(&mut short, "GET", "/v1/users/alice", ""), (429, "rate_limited".into()));
    server.throttle_clock.advance(Duration::from_secs(1));
    assert_eq!(call(&mut short, "GET", "/v1/users/alice", "").0, 200);
    // A request without a credential is no failed authentication: it always gets 401.
    let without = server.raw(b"GET /v1/users/me HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert!(without.starts_with("HTTP/1.1 401"), "{without}");
}

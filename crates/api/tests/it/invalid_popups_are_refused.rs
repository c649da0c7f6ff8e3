//! Invalid popup configurations are refused with the name of the invalid part, and nothing of them is stored.

use crate::support::*;
use serde_json::{Value, json};
use tidings_client::http::HttpClient;

const GOOD: &str = r#"{"state":"live","placements":["home"],"variants":[{"id":"a","content":{"title":"Hello"}}]}"#;

/// A server with one popup `p`, a segment `friends` and settings, none of which a refused request may change.
struct Fixture {
    server: Server,
    app: HttpClient,
    before: Vec<String>,
}

impl Fixture {
    fn start() -> Self {
        let server = Server::start().with_people();
        let mut app = server.app();
        expect_status(&mut app, "PUT", "/v1/popups/p", GOOD, 201);
        expect_status(&mut app, "PUT", "/v1/popup-settings", r#"{"caps":{"per_day":3}}"#, 200);
        upload(&mut app, "friends", b"bob\ncarol\n", 200);
        let before = stored_state(&mut app);
        Fixture { server, app, before }
    }

    #[track_caller]
    fn refuses(&mut self, method: &str, path: &str, body: &str, code: &str, names: &str) {
        check_refused(&mut self.app, method, path, body, code, names);
        self.is_unchanged();
    }

    /// Checks that a popup like [`GOOD`] with these fields replaced is refused, both as a new popup and as a version of `p`.
    #[track_caller]
    fn refuses_popup(&mut self, parts: Value, code: &str, names: &str) {
        let mut popup: Value = serde_json::from_str(GOOD).unwrap();
        for (name, part) in parts.as_object().unwrap() {
            popup[name] = part.clone();
        }
        let popup = popup.to_string();
        self.refuses("PUT", "/v1/popups/new", &popup, code, names);
        self.refuses("PUT", "/v1/popups/p", &popup, code, names);
    }

    #[track_caller]
    fn is_unchanged(&mut self) {
        assert_eq!(stored_state(&mut self.app), self.before);
    }
}

fn stored_state(app: &mut HttpClient) -> Vec<String> {
    let paths = ["/v1/popups", "/v1/popups/p/versions", "/v1/popup-segments", "/v1/popup-settings", "/v1/popup-events"];
    paths.iter().map(|path| expect_status(app, "GET", path, "", 200)).collect()
}

#[track_caller]
fn upload(app: &mut HttpClient, segment: &str, lines: &[u8], status: u16) -> String {
    let path = format!("/v1/popup-segments/{segment}");
    let answer = app.exchange_text("PUT", &path, "text/plain", lines).unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    assert_eq!(answer.status, status, "{text}");
    text
}

#[test]
fn an_invalid_part_is_named_in_the_refusal() {
    let mut fixture = Fixture::start();
    let variant = |id: &str, weight: u32| json!({"id": id, "weight": weight, "content": {}});
    let button =
        |action: Value| json!([{"id": "a", "content": {"buttons": [{"id": "go", "label": "Go", "action": action}]}}]);
    let many = |count: usize| (0..count).map(|at| format!("n{at}")).collect::<Vec<_>>();
    let invalid = "invalid_field";
    let limit = "limit_exceeded";
    for (parts, code, names) in [
        (json!({"surprise": 1}), invalid, "surprise: unknown field; expected one of name, state"),
        (json!({"state": "on"}), invalid, "state: must be one of draft, scheduled, live, paused, ended, got \"on\""),
        (
            json!({"state": "live", "variants": [{"id": "a", "content": {"buttons":
                [{"id": "go", "label": " ", "action": {"type": "dismiss"}}]}}]}),
            invalid,
            "variants[0].content.buttons[0].label: is empty",
        ),
        (json!({"placements": []}), invalid, "placements: names none"),
        (json!({"placements": ["home", ""]}), invalid, "placements[1]: must have 1 to 64 bytes"),
        (json!({"placements": ["home", "home"]}), invalid, "placements[1]: \"home\" appears twice"),
        (json!({"placements": many(33)}), limit, "placements is limited to 32, got 33"),
        (json!({"placements": "home"}), invalid, "placements: must be an array, got the string \"home\""),
        (
            json!({"priority": 1.5}),
            invalid,
            "priority: must be a whole number from -2147483648 to 2147483647, got the number 1.5",
        ),
        (
            json!({"priority": 3_000_000_000_u64}),
            invalid,
            "priority: must be a whole number from -2147483648 to 2147483647, got the number 3000000000",
        ),
        (json!({"starts_at": -1}), invalid, "starts_at: must be a whole number of at least 0, got the number -1"),
        (
            json!({"starts_at": "2026-01-01"}),
            invalid,
            "starts_at: must be a whole number of at least 0, got the string",
        ),
        (json!({"starts_at": u64::MAX}), invalid, "starts_at: is not a time"),
        (
            json!({"starts_at": 1_764_238_000}),
            invalid,
            "starts_at: must be in milliseconds since 1970 UTC, got 1764238000",
        ),
        (
            json!({"starts_at": 2_000_000_000_000_u64, "ends_at": 1_900_000_000_000_u64}),
            invalid,
            "ends_at: 1900000000000 is not after starts_at, 2000000000000",
        ),
        (
            json!({"starts_at": 2_000_000_000_000_u64, "ends_at": 2_000_000_000_000_u64}),
            invalid,
            "ends_at: 2000000000000 is not after",
        ),
        (json!({"state": "scheduled"}), invalid, "starts_at: is missing"),
        (json!({"time_zone": "Mars/Olympus_Mons"}), invalid, "time_zone: "),
        (json!({"time_zone": ""}), invalid, "time_zone: "),
        (json!({"time_zone": "../../etc/passwd"}), invalid, "time_zone: "),
        (json!({"time_zone": 1}), invalid, "time_zone: must be a string, got the number 1"),
        (json!({"windows": [{"from": "09:00"}]}), invalid, "windows[0].to: is missing"),
        (json!({"windows": [{"from": "09:00", "to": "17:60"}]}), invalid, "windows[0].to"),
        (json!({"windows": [{"from": "24:00", "to": "09:00"}]}), invalid, "windows[0].from"),
        (json!({"windows": [{"from": "9", "to": "17:00"}]}), invalid, "windows[0].from"),
        (json!({"windows": [{"days": ["monday"], "from": "09:00", "to": "10:00"}]}), invalid, "windows[0].days[0]"),
        (json!({"windows": vec![json!({"from": "09:00", "to": "10:00"}); 33]}), limit, "windows is limited to 32"),
        (json!({"trigger": {"event": ""}}), invalid, "trigger.event: must have"),
        (json!({"trigger": {"event": "e", "where": {"all": 1}}}), invalid, "trigger.where.all: must be a list"),
        (
            json!({"trigger": {"event": "e", "where": {"not": {"unread_direct": {"older_than_s": 1}}}}}),
            invalid,
            "trigger.where.not.unread_direct: a condition on an event is about the event",
        ),
        (
            json!({"trigger": {"event": "e", "where": {"any": [{"attribute": "user.x", "op": "absent"}]}}}),
            invalid,
            "trigger.where.any[0].attribute: a condition on an event names the event's properties",
        ),
        (
            json!({"trigger": {"event": "e", "when": {}}}),
            invalid,
            "trigger.when: unknown field; expected one of event, where",
        ),
        (json!({"caps": {"per_day": 0}}), invalid, "caps.per_day: must be from 1"),
        (json!({"caps": {"per_session": 10_001}}), invalid, "caps.per_session: must be from 1 to 10000"),
        (
            json!({"caps": {"total": -1}}),
            invalid,
            "caps.total: must be a whole number from 0 to 4294967295, got the number -1",
        ),
        (json!({"caps": {"gap_s": u64::MAX}}), invalid, "caps.gap_s: must be at most"),
        (json!({"caps": {"per_week": 1}}), invalid, "caps.per_week: unknown field"),
        (json!({"variants": []}), invalid, "variants: there must be at least one"),
        (json!({"variants": [variant("a", 1), variant("a", 1)]}), invalid, "variants[1].id: \"a\" appears twice"),
        (json!({"variants": [variant("a", 0)]}), invalid, "variants: weights must add up"),
        (
            json!({"variants": [variant("a", u32::MAX), variant("b", u32::MAX)]}),
            invalid,
            "variants: weights must add up",
        ),
        (json!({"variants": [{"id": "a", "weight": -1, "content": {}}]}), invalid, "variants[0].weight"),
        (json!({"variants": [variant("", 1)]}), invalid, "variants[0].id: must have 1 to 64 bytes"),
        (json!({"variants": [variant("a\u{0}b", 1)]}), invalid, "variants[0].id: control characters"),
        (
            json!({"variants": many(21).iter().map(|id| variant(id, 1)).collect::<Vec<_>>()}),
            limit,
            "variants is limited to 20",
        ),
        (json!({"variants": [{"id": "a"}]}), invalid, "variants[0].content: is missing"),
        (json!({"variants": [{"id": "a", "content": {"headline": ""}}]}), invalid, "variants[0].content.headline"),
        (
            json!({"variants": [{"id": "a", "content": {"title": "x".repeat(1_000)}}]}),
            limit,
            "variants[0].content.title",
        ),
        (
            json!({"variants": button(json!({"type": "explode"}))}),
            invalid,
            "variants[0].content.buttons[0].action.type: ",
        ),
        (
            json!({"variants": button(json!(["dismiss"]))}),
            invalid,
            "buttons[0].action: must be an object, got an array",
        ),
        (
            json!({"variants": button(json!({"type": "open", "url": 7}))}),
            invalid,
            "buttons[0].action.url: must be a string",
        ),
        (json!({"variants": button(json!({"type": "open"}))}), invalid, "buttons[0].action: open takes a url"),
        (
            json!({"variants": button(json!({"type": "open", "url": ""}))}),
            invalid,
            "buttons[0].action.url: must not be empty",
        ),
        (json!({"variants": button(json!({"type": "app", "name": ""}))}), invalid, "buttons[0].action.name"),
        (json!({"control_percent": 101}), invalid, "control_percent: must be from 0 to 100"),
        (json!({"control_percent": 0.001}), invalid, "control_percent: must be from 0 to 100, with at most two"),
        (json!({"control_percent": -1}), invalid, "control_percent: must be"),
        (json!({"strict": "yes"}), invalid, "strict: must be true or false, got the string \"yes\""),
        (json!({"test_users": ["a b"]}), invalid, "test_users[0]: must not contain"),
        (json!({"test_users": many(101)}), limit, "test_users is limited to 100"),
    ] {
        fixture.refuses_popup(parts, code, names);
    }
}

#[test]
fn an_invalid_rule_is_named_by_its_path() {
    let mut fixture = Fixture::start();
    let attribute = |op: &str, value: Value| json!({"attribute": "x", "op": op, "value": value});
    for (rule, names) in [
        (attribute("equals", json!(1)), "audience.op: unknown operator \"equals\"; known are eq"),
        (json!({"all": [{"all": []}, attribute("like", json!("%"))]}), "audience.all[1].op: unknown operator \"like\""),
        (attribute("lt", json!("1")), "audience.value: must be a number"),
        (attribute("in", json!("a")), "audience.value: must be a list"),
        (attribute("in", json!([])), "audience.value: must be a list"),
        (attribute("in", json!(["a", 1])), "audience.value[1]: must be a string"),
        (attribute("version_gte", json!("four")), "audience.value: \"four\" is not a semantic version"),
        (json!({"attribute": "x", "op": "eq"}), "audience.value: is missing"),
        (json!({"attribute": "x", "op": "exists", "value": 1}), "audience.value: exists takes no value"),
        (json!({"any": {}}), "audience.any: must be a list"),
        (json!({"not": [{"all": []}]}), "audience.not: must be an object"),
        (json!({"nor": []}), "audience: unknown name \"nor\""),
        (json!({"all": [], "any": []}), "audience: a rule has exactly one of"),
        (json!([]), "audience: must be an object"),
        (json!({"percent": {"salt": "s", "from": 50, "to": 50}}), "audience.percent.to: must be above from"),
        (json!({"percent": {"salt": "s", "from": 0, "to": 100.5}}), "audience.percent.to: must be from 0 to 100"),
        (json!({"percent": {"from": 0, "to": 1}}), "audience.percent.salt: is missing"),
        (json!({"segment": "nobody"}), "audience: unknown segment \"nobody\""),
        (json!({"not": {"segment": 5}}), "audience.not.segment: must be a string"),
        (json!({"unread_direct": {"older_than_s": -1}}), "audience.unread_direct.older_than_s: must be a whole number"),
        (json!({"all": vec![json!({"all": []}); 501]}), "may have at most 500 conditions"),
    ] {
        fixture.refuses_popup(json!({"audience": rule}), "invalid_field", names);
    }
    let elsewhere = json!({"trigger": {"event": "e", "where": {"segment": "nobody"}}});
    fixture.refuses_popup(elsewhere, "invalid_field", "trigger.where: unknown segment \"nobody\"");
}

#[test]
fn a_rule_nested_too_deep_is_refused_cheaply() {
    let mut fixture = Fixture::start();
    let nested = |depth: usize| {
        let rule = format!("{}{}{}", r#"{"not":"#.repeat(depth), r#"{"all":[]}"#, "}".repeat(depth));
        format!(r#"{{"placements":["home"],"audience":{rule},"variants":[{{"id":"a","content":{{}}}}]}}"#)
    };
    expect_status(&mut fixture.app, "PUT", "/v1/popups/deepest", &nested(15), 201);
    expect_status(&mut fixture.app, "DELETE", "/v1/popups/deepest", "", 204);
    let deep =
        "audience.not.not.not.not.not.not.not.not.not.not.not.not.not.not.not.not: rules may be nested at most 16";
    for depth in [16, 1_000, 8_000] {
        fixture.refuses("PUT", "/v1/popups/p", &nested(depth), "invalid_field", deep);
    }
    // Written as text, the rule is too long before it is too deep.
    fixture.refuses("PUT", "/v1/popups/p", &nested(100_000), "limit_exceeded", "popup (bytes) is limited to 65536");
    // A field that is no rule is refused by its type: nothing that is nested in it is read.
    let lists = "[".repeat(1_000_000);
    for (method, path, body) in [
        ("PUT", "/v1/popup-settings", format!(r#"{{"caps":{lists}"#)),
        ("PUT", "/v1/popups/p/state", format!(r#"{{"state":{lists}"#)),
        ("POST", "/v1/popups/decide", format!(r#"{{"user":"bob","placement":"home","attributes":{{"x":{lists}"#)),
        ("POST", "/v1/popups/explain", format!(r#"{{"user":"bob","placement":"home","event":{lists}"#)),
        ("POST", "/v1/popup-events", format!(r#"{{"events":{lists}"#)),
    ] {
        let answer = fixture.app.exchange(method, path, body.as_bytes()).unwrap();
        assert!([400, 422].contains(&answer.status), "{path}: {}", String::from_utf8_lossy(&answer.body));
        fixture.is_unchanged();
    }
    let data =
        format!(r#"{{"placements":["home"],"variants":[{{"id":"a","content":{{"data":{}}}}}]}}"#, "[".repeat(30_000));
    fixture.refuses("PUT", "/v1/popups/p", &data, "malformed", "body: is not JSON: expected value");
}

#[test]
fn a_body_that_is_no_popup_is_refused() {
    let mut fixture = Fixture::start();
    for (body, code, names) in [
        ("", "malformed", "body: is missing"),
        ("{", "malformed", "body: is not JSON: EOF"),
        ("\u{1}\u{2}", "malformed", "body: is not JSON: expected value"),
        ("{}", "invalid_field", "placements: is missing"),
        ("[]", "invalid_field", "body: must be an object, got an array"),
        ("null", "invalid_field", "body: must be an object, got null"),
        (&format!("{GOOD}{GOOD}"), "malformed", "body: is not JSON: trailing characters"),
        (&GOOD.replacen('{', r#"{"state":"live","#, 1), "invalid_field", "state: appears twice"),
    ] {
        fixture.refuses("PUT", "/v1/popups/p", body, code, names);
        fixture.refuses("PUT", "/v1/popups/new", body, code, names);
    }
    let long = format!(r#"{{"placements":["home"],"variants":[],"name":"{}"}}"#, "x".repeat(64 * 1024));
    fixture.refuses("PUT", "/v1/popups/p", &long, "limit_exceeded", "popup (bytes) is limited to 65536");
    let answer = fixture.app.exchange_text("PUT", "/v1/popups/p", "text/plain", GOOD.as_bytes()).unwrap();
    assert_eq!(answer.status, 415);
    let answer = fixture.app.exchange("PUT", "/v1/popups/p", b"{\"name\":\"\xFF\"}").unwrap();
    assert_eq!(answer.status, 400, "{}", String::from_utf8_lossy(&answer.body));
    fixture.is_unchanged();
}

#[test]
fn invalid_popup_ids_are_refused() {
    let mut fixture = Fixture::start();
    for operation in ["decide", "explain", "trigger"] {
        // This path is another operation's, which has no PUT.
        let path = format!("/v1/popups/{operation}");
        fixture.refuses("PUT", &path, GOOD, "method_not_allowed", "");
    }
    let long = "x".repeat(65);
    for (id, code, names) in [
        ("a%20b", "invalid_field", "popup: must not contain ' '"),
        ("a%2Fb", "invalid_field", "popup: must not contain '/'"),
        ("a~b", "invalid_field", "popup: must not contain '~'"),
        ("%00", "invalid_field", "popup: must not contain '\\0'"),
        (long.as_str(), "limit_exceeded", "popup (bytes) is limited to 64, got 65"),
    ] {
        fixture.refuses("PUT", &format!("/v1/popups/{id}"), GOOD, code, names);
    }
    for (method, path, body) in [
        ("GET", "/v1/popups/none", ""),
        ("GET", "/v1/popups/none/versions", ""),
        ("GET", "/v1/popups/none/counts", ""),
        ("PUT", "/v1/popups/none/state", r#"{"state":"live"}"#),
        ("DELETE", "/v1/popups/none", ""),
    ] {
        fixture.refuses(method, path, body, "not_found", "no popup \"none\"");
    }
    fixture.refuses("PUT", "/v1/popups/p/state", r#"{"state":"on"}"#, "invalid_field", "state: must be one of draft");
    // A state that contradicts the rest of the popup.
    fixture.refuses("PUT", "/v1/popups/p/state", r#"{"state":"scheduled"}"#, "invalid_field", "starts_at: is missing");
    fixture.refuses("GET", "/v1/popups?limit=501", "", "limit_exceeded", "limit (popups) is limited to 500");
    fixture.refuses(
        "GET",
        "/v1/popups?page=2",
        "",
        "invalid_field",
        "page: unknown parameter; expected one of after, limit",
    );
    fixture.refuses(
        "GET",
        "/v1/popup-events?format=xml",
        "",
        "invalid_field",
        "format: must be one of jsonl, csv, got \"xml\"",
    );
    fixture.refuses("GET", "/v1/popup-events?from=yesterday", "", "invalid_field", "from: must be a whole number");
}

#[test]
fn contradictory_popup_settings_are_refused() {
    let mut fixture = Fixture::start();
    for (body, names) in [
        (r#"{"time_zone":"Nowhere"}"#, "time_zone: "),
        (r#"{"caps":{"total":0}}"#, "caps.total: must be from 1"),
        (r#"{"placements":{"home":{"gap_s":9999999999}}}"#, "placements.home.gap_s: must be at most"),
        (r#"{"placements":{"home":{"per_hour":1}}}"#, "placements.home.per_hour: unknown field"),
        (r#"{"placements":{"":{}}}"#, "placements.: must have 1 to 64 bytes"),
        (r#"{"holdout_percent":100.01}"#, "holdout_percent: must be from 0 to 100"),
        (r#"{"holdout":1}"#, "holdout: unknown field"),
    ] {
        fixture.refuses("PUT", "/v1/popup-settings", body, "invalid_field", names);
    }
    let many: Vec<String> = (0..1_001).map(|at| format!(r#""n{at}":{{}}"#)).collect();
    let many = format!(r#"{{"placements":{{{}}}}}"#, many.join(","));
    fixture.refuses("PUT", "/v1/popup-settings", &many, "limit_exceeded", "placements is limited to 1000, got 1001");
}

#[test]
fn invalid_segment_uploads_are_refused() {
    let mut fixture = Fixture::start();
    let long = format!("ann\n{}\n", "x".repeat(65));
    let too_many: String = (0..1_000_001).map(|at| format!("{at}\n")).collect();
    let binary: Vec<u8> = (0..4_096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 | 0x80).collect();
    for (lines, code, names) in [
        (&b""[..], "invalid_field", "users: must not be empty"),
        (b"\n\r\n\n", "invalid_field", "users: must not be empty"),
        (b"ann\nbob smith\n", "invalid_field", "line 2: must not contain ' '"),
        (b"ann\n\n\xFF\xFE\n", "invalid_field", "line 3: is not UTF-8"),
        (b"\x89PNG\x0D\x0A\x1A\x0A", "invalid_field", "line 1: is not UTF-8"),
        (b"ann\0\n", "invalid_field", "line 1: must not contain '\\0'"),
        (b"[\"ann\", \"bob\"]", "invalid_field", "line 1: must not contain ' '"),
        (&binary, "invalid_field", "line 1: "),
        (long.as_bytes(), "limit_exceeded", "line 2 (bytes) is limited to 64, got 65"),
        (too_many.as_bytes(), "limit_exceeded", "users is limited to 1000000, got 1000001"),
    ] {
        for segment in ["friends", "new"] {
            let path = format!("/v1/popup-segments/{segment}");
            let answer = fixture.app.exchange_text("PUT", &path, "text/plain; charset=utf-8", lines).unwrap();
            let problem: tidings_protocol::http::Problem = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!(problem.code.as_str(), code, "{}", problem.detail);
            assert_eq!(answer.status, problem.code.http_status());
            assert!(problem.detail.contains(names), "{:?} does not name {names:?}", problem.detail);
            fixture.is_unchanged();
        }
    }
    // The stored list is unchanged.
    expect_status(&mut fixture.app, "GET", "/v1/popup-segments/friends/users/bob", "", 204);
    for kind in ["application/json", "multipart/form-data; boundary=x", "text/plainly"] {
        let answer = fixture.app.exchange_text("PUT", "/v1/popup-segments/friends", kind, b"ann\n").unwrap();
        assert_eq!(answer.status, 415, "{kind}");
        fixture.is_unchanged();
    }
    let declared = fixture.server.raw(
        format!(
            "PUT /v1/popup-segments/friends HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\ncontent-type: \
             text/plain\r\ncontent-length: 100000000\r\n\r\n"
        )
        .as_bytes(),
    );
    assert!(declared.starts_with("HTTP/1.1 413") && declared.contains("segment (bytes) is limited"), "{declared}");
    fixture.is_unchanged();
    fixture.refuses("GET", "/v1/popup-segments/none", "", "not_found", "no segment \"none\"");
    fixture.refuses("DELETE", "/v1/popup-segments/none", "", "not_found", "no segment \"none\"");
    fixture.refuses("GET", "/v1/popup-segments/none/users/bob", "", "not_found", "no segment \"none\"");
    assert!(upload(&mut fixture.app, "a%20b", b"ann\n", 422).contains("segment: must not contain ' '"));
    fixture.is_unchanged();
}

#[test]
fn a_segment_in_use_cannot_be_removed() {
    let mut fixture = Fixture::start();
    let popup = GOOD.replacen('{', r#"{"audience":{"segment":"friends"},"#, 1);
    expect_status(&mut fixture.app, "PUT", "/v1/popups/for-friends", &popup, 201);
    let path = "/v1/popup-segments/friends";
    check_refused(
        &mut fixture.app,
        "DELETE",
        path,
        "",
        "conflict",
        "popup \"for-friends\" names the segment \"friends\"",
    );
    expect_status(&mut fixture.app, "DELETE", "/v1/popups/for-friends", "", 204);
    fixture.is_unchanged();
    expect_status(&mut fixture.app, "DELETE", path, "", 204);
}

#[test]
fn invalid_decide_requests_and_events_are_refused() {
    let mut fixture = Fixture::start();
    let many: Vec<String> = (0..201).map(|at| format!(r#""n{at}":1"#)).collect();
    let many = format!(r#"{{"user":"bob","placement":"home","attributes":{{{}}}}}"#, many.join(","));
    for (body, code, names) in [
        ("", "malformed", "body: is missing"),
        ("{}", "invalid_field", "placement"),
        (r#"{"placement":"home"}"#, "invalid_field", "user: is missing"),
        (r#"{"user":5,"placement":"home"}"#, "invalid_field", "user: must be a string, got the number 5"),
        (r#"{"user":"a b","placement":"home"}"#, "invalid_field", "user: must not contain ' '"),
        (r#"{"user":"","placement":"home"}"#, "invalid_field", "user: must not be empty"),
        (r#"{"user":"a b","placement":"nowhere"}"#, "invalid_field", "user: must not contain ' '"),
        (r#"{"user":"bob","placement":"home","page":1}"#, "invalid_field", "page: unknown field"),
        (r#"{"user":"bob","placement":"home","attributes":{"x":{}}}"#, "invalid_field", "attribute \"x\""),
        (
            r#"{"user":"bob","placement":"home","attributes":{"x":[1]}}"#,
            "invalid_field",
            "\"x\": a list may hold strings",
        ),
        (r#"{"user":"bob","placement":"home","event":{}}"#, "invalid_field", "event.name: is missing"),
        (&many, "invalid_field", "at most 200 attributes"),
    ] {
        for path in ["/v1/popups/decide", "/v1/popups/explain", "/v1/popups/trigger"] {
            fixture.refuses("POST", path, body, code, names);
        }
    }
    let nobody = r#"{"user":"nobody","placement":"home"}"#;
    fixture.refuses("POST", "/v1/popups/trigger", nobody, "not_found", "nobody");

    let ask = r#"{"user":"bob","placement":"home"}"#;
    let shown: Value =
        serde_json::from_str(&expect_status(&mut fixture.app, "POST", "/v1/popups/decide", ask, 200)).unwrap();
    let decision = shown["decision"].as_str().unwrap();
    let other = Server::start();
    let mut app = other.app();
    expect_status(&mut app, "PUT", "/v1/popups/p", GOOD, 201);
    let foreign: Value = serde_json::from_str(&expect_status(&mut app, "POST", "/v1/popups/decide", ask, 200)).unwrap();
    let one = json!({"id": "e", "type": "click", "decision": decision});
    let not_ours = "events[1].decision: was not issued by this server";
    for (second, code, names) in [
        (json!({"id": "f", "type": "click", "decision": foreign["decision"]}), "invalid_field", not_ours),
        (json!({"id": "f", "type": "click", "decision": "p"}), "invalid_field", not_ours),
        (json!({"id": "f", "type": "click", "decision": ""}), "invalid_field", "events[1].decision: is missing"),
        (json!({"id": "f", "type": "click", "decision": format!("{decision}A")}), "invalid_field", not_ours),
        (json!({"id": "f", "type": "click", "decision": "A".repeat(1_000_000)}), "invalid_field", not_ours),
        (json!({"id": "", "type": "click", "decision": decision}), "invalid_field", "events[1].id: must not be empty"),
        (
            json!({"id": "x".repeat(65), "type": "click", "decision": decision}),
            "limit_exceeded",
            "events[1].id (bytes)",
        ),
        (
            json!({"id": "f", "type": "hover", "decision": decision}),
            "invalid_field",
            "events[1].type: must be one of impression, click",
        ),
        (json!({"id": "f", "type": "button", "decision": decision}), "invalid_field", "events[1].button: is missing"),
        (json!({"id": "f", "type": "button", "button": "", "decision": decision}), "invalid_field", "events[1].button"),
        (json!({"id": "f", "type": "click"}), "invalid_field", "events[1].decision: is missing"),
        (
            json!({"id": "f", "type": "click", "decision": decision, "x": 1}),
            "invalid_field",
            "events[1].x: unknown field; expected one of id, decision, type",
        ),
    ] {
        // A call with one invalid event stores none of its events.
        let body = json!({"events": [one, second]}).to_string();
        fixture.refuses("POST", "/v1/popup-events", &body, code, names);
    }
    let many = json!({"events": vec![&one; 1_001]}).to_string();
    fixture.refuses("POST", "/v1/popup-events", &many, "limit_exceeded", "events is limited to 1000, got 1001");
    let counts = expect_status(&mut fixture.app, "GET", "/v1/popups/p/counts", "", 200);
    assert!(counts.contains(r#""shown":1"#) && counts.contains(r#""clicks":0"#), "{counts}");
}

#[test]
fn a_user_token_reports_events_only_of_its_own_decisions() {
    let mut fixture = Fixture::start();
    let (mut bob, mut carol) = (fixture.server.user("bob"), fixture.server.user("carol"));
    let question = r#"{"placement":"home"}"#;
    let shown = expect_status(&mut bob, "POST", "/v1/popups/decide", question, 200);
    expect_status(&mut bob, "POST", "/v1/popups/decide", r#"{"user":"me","placement":"home"}"#, 200);
    expect_status(&mut bob, "POST", "/v1/popups/decide", r#"{"user":"bob","placement":"home"}"#, 200);
    let alices = r#"{"user":"alice","placement":"home"}"#;
    check_refused(&mut bob, "POST", "/v1/popups/decide", alices, "forbidden", "that user only");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let events = json!({"events": [{"id": "e", "type": "click", "decision": shown["decision"]}]}).to_string();
    let others = "events[0].decision: is another user's";
    check_refused(&mut carol, "POST", "/v1/popup-events", &events, "forbidden", others);
    fixture.is_unchanged();
    for (method, path, body) in [
        ("POST", "/v1/popups/explain", question),
        ("POST", "/v1/popups/trigger", question),
        ("GET", "/v1/popups", ""),
        ("GET", "/v1/popups/p", ""),
        ("PUT", "/v1/popups/p", GOOD),
        ("DELETE", "/v1/popups/p", ""),
        ("GET", "/v1/popups/p/versions", ""),
        ("GET", "/v1/popups/p/counts", ""),
        ("PUT", "/v1/popups/p/state", r#"{"state":"paused"}"#),
        ("GET", "/v1/popup-settings", ""),
        ("PUT", "/v1/popup-settings", "{}"),
        ("GET", "/v1/popup-segments", ""),
        ("GET", "/v1/popup-segments/friends", ""),
        ("GET", "/v1/popup-segments/friends/users/bob", ""),
        ("PUT", "/v1/popup-segments/friends", "bob"),
        ("DELETE", "/v1/popup-segments/friends", ""),
        ("GET", "/v1/popup-events", ""),
    ] {
        check_refused(&mut bob, method, path, body, "forbidden", "needs an API key");
    }
    fixture.is_unchanged();
    check_refused(&mut fixture.server.with_credential("x"), "POST", "/v1/popups/decide", question, "unauthorized", "");
    // A user may report its own events, an app server those of any user.
    check(&mut bob, "POST", "/v1/popup-events", &events, 202, r#"{"accepted":1,"duplicates":0}"#);
    check(&mut fixture.app, "POST", "/v1/popup-events", &events, 202, r#"{"accepted":0,"duplicates":1}"#);
}

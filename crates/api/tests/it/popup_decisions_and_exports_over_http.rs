//! Popups over HTTP: `Retry-After`, conditional writes, and exports of reported events.

use crate::support::*;
use serde_json::{Value, json};
use tidings_client::http::HttpClient;
use tidings_protocol::http::ExportedEvent;

const GOOD: &str = r#"{"state":"live","placements":["home"],"variants":[{"id":"a","content":{"title":"Hello"}}]}"#;

/// A popup like [`GOOD`] with these fields replaced.
#[track_caller]
fn put(app: &mut HttpClient, id: &str, parts: Value) {
    let mut popup: Value = serde_json::from_str(GOOD).unwrap();
    for (name, part) in parts.as_object().unwrap() {
        popup[name] = part.clone();
    }
    let answer = app.exchange("PUT", &format!("/v1/popups/{id}"), popup.to_string().as_bytes()).unwrap();
    assert!([200, 201].contains(&answer.status), "{}", String::from_utf8_lossy(&answer.body));
}

/// Asks for a decision. Returns the popup and the decision's id, or the seconds of `Retry-After`.
#[track_caller]
fn decide(http: &mut HttpClient, question: &Value) -> Result<(String, String), Option<u64>> {
    let answer = http.exchange("POST", "/v1/popups/decide", question.to_string().as_bytes()).unwrap();
    match answer.status {
        200 => {
            let shown: Value = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!(answer.retry_after, None);
            Ok((shown["popup"].as_str().unwrap().to_owned(), shown["decision"].as_str().unwrap().to_owned()))
        }
        204 => {
            assert!(answer.body.is_empty());
            Err(answer.retry_after)
        }
        status => panic!("{status}: {}", String::from_utf8_lossy(&answer.body)),
    }
}

#[test]
fn a_204_carries_retry_after_when_a_popup_will_be_due() {
    let server = Server::start().with_people();
    let mut app = server.app();
    let ask = |user: &str| json!({"user": user, "placement": "home"});
    assert_eq!(decide(&mut app, &ask("bob")), Err(None), "no popup, and time alone brings none");

    put(&mut app, "p", json!({"caps": {"gap_s": 3_600}}));
    assert_eq!(decide(&mut app, &ask("bob")).unwrap().0, "p");
    let wait = decide(&mut app, &ask("bob")).unwrap_err().unwrap();
    assert!((3_500..=3_600).contains(&wait), "{wait}");
    assert_eq!(
        decide(&mut server.user("bob"), &json!({"placement": "home"})).unwrap_err().map(|s| s > 3_500),
        Some(true)
    );
    assert_eq!(decide(&mut app, &ask("carol")).unwrap().0, "p", "each user by itself");

    // A popup that is due earlier shortens the wait; a popup whose cap is used up for good ends it.
    put(&mut app, "soon", json!({"starts_at": now_ms() + 600_000}));
    let wait = decide(&mut app, &ask("bob")).unwrap_err().unwrap();
    assert!((500..=601).contains(&wait), "{wait}");
    put(&mut app, "soon", json!({"state": "paused", "starts_at": now_ms() + 600_000}));
    put(&mut app, "p", json!({"caps": {"total": 1}}));
    assert_eq!(decide(&mut app, &ask("bob")), Err(None));
    // The next decision sees the change.
    put(&mut app, "p", json!({"caps": {"total": 2}}));
    assert_eq!(decide(&mut app, &ask("bob")).unwrap().0, "p");
}

#[test]
fn conditional_writes_check_the_popup_version() {
    let server = Server::start();
    let write = |method: &str, path: &str, header: &str, body: &str| {
        let length = body.len();
        server.raw(
            format!(
                "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\ncontent-type: \
                 application/json\r\n{header}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        )
    };
    let state = r#"{"state":"paused"}"#;
    for (method, path, header, body, status, holds) in [
        ("PUT", "/v1/popups/p", "If-Match: \"1\"", GOOD, 409, "does not exist yet"),
        ("PUT", "/v1/popups/p", "If-None-Match: *", GOOD, 201, r#""version":1,"#),
        ("PUT", "/v1/popups/p", "If-None-Match: *", GOOD, 409, "is there already, at version 1"),
        ("PUT", "/v1/popups/p", "If-None-Match: \"1\"", GOOD, 422, "If-None-Match: only * is supported"),
        ("PUT", "/v1/popups/p", "If-Match: \"1\"", GOOD, 200, r#""version":2,"#),
        ("PUT", "/v1/popups/p", "If-Match: \"1\"", GOOD, 409, "is at version 2, not 1"),
        ("PUT", "/v1/popups/p", "If-Match: 2", GOOD, 200, r#""version":3,"#),
        ("PUT", "/v1/popups/p", "If-Match: *", GOOD, 422, "If-Match: is not a version"),
        ("PUT", "/v1/popups/p", "If-Match: W/\"3\"", GOOD, 422, "If-Match: is not a version"),
        ("PUT", "/v1/popups/p/state", "If-Match: \"2\"", state, 409, "is at version 3, not 2"),
        (
            "PUT",
            "/v1/popups/p/state",
            "Tidings-Author: anna@example.org",
            state,
            200,
            r#""updated_by":"anna@example.org""#,
        ),
        ("PUT", "/v1/popups/p", "Tidings-Author: Zoë", GOOD, 200, r#""updated_by":"Zoë""#),
        ("DELETE", "/v1/popups/p", "If-Match: \"4\"", "", 409, "is at version 5, not 4"),
        ("DELETE", "/v1/popups/p", "If-Match: \"5\"", "", 204, ""),
        ("PUT", "/v1/popups/p", "If-None-Match: *", GOOD, 201, r#""version":1,"#),
    ] {
        let answer = write(method, path, header, body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path} {header}: {answer}");
        assert!(answer.contains(holds), "{method} {path} {header}: {answer}");
    }
    let no_text = format!(
        "PUT /v1/popups/p HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\ncontent-type: application/json\r\n\
         Tidings-Author: ?\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{GOOD}",
        GOOD.len()
    );
    let no_text: Vec<u8> = no_text.bytes().map(|byte| if byte == b'?' { 0xFF } else { byte }).collect();
    let answer = server.raw(&no_text);
    assert!(answer.starts_with("HTTP/1.1 422") && answer.contains("Tidings-Author: is not text"), "{answer}");
    let long = format!("Tidings-Author: {}", "x".repeat(257));
    let answer = write("PUT", "/v1/popups/p", &long, GOOD);
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("Tidings-Author (bytes) is limited"), "{answer}");
    expect_status(&mut server.app(), "GET", "/v1/popups/p", "", 200);
}

/// Strings that a careless CSV or JSON writer gets wrong.
const AWKWARD: [&str; 6] =
    ["plain", "a,b", "say \"yes\"", "=1+1", "ein gro\u{DF}er Knopf \u{1F389}", "'; DROP TABLE --"];

#[test]
fn exports_contain_exactly_the_reported_events() {
    let server = Server::start();
    let mut app = server.app();
    let button = |word: &str| json!({"id": word, "label": "label", "action": {"type": "dismiss"}});
    // A popup has at most five buttons; the other popup has the fourth.
    let (of_q, of_p) = (AWKWARD[3], AWKWARD.iter().filter(|word| **word != AWKWARD[3]));
    let of_p: Vec<_> = of_p.map(|word| button(word)).collect();
    put(&mut app, "p", json!({"variants": [{"id": "a, \"b\"", "content": {"buttons": of_p}}]}));
    let variants = json!([{"id": "a", "content": {"buttons": [button(of_q)]}}]);
    put(&mut app, "q", json!({"placements": ["q"], "variants": variants}));
    let mut reported = Vec::new();
    for (at, word) in AWKWARD.iter().enumerate() {
        let user = format!("user,\"{at}\"");
        let placement = if at == 3 { "q" } else { "home" };
        let (popup, decision) = decide(&mut app, &json!({"user": user, "placement": placement})).unwrap();
        let id = format!("{at},\"'");
        reported.push((popup, user.clone(), id.clone(), (*word).to_owned()));
        let event = json!({"id": id, "type": "button", "button": word, "decision": decision, "at": at, "value": 0.1});
        let events = json!({"events": [event]}).to_string();
        expect_status(&mut app, "POST", "/v1/popup-events", &events, 202);
    }

    let lines = expect_status(&mut app, "GET", "/v1/popup-events?format=jsonl", "", 200);
    let events: Vec<ExportedEvent> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Events of one millisecond are in no particular order.
    let read = |events: &[ExportedEvent]| {
        let mut read: Vec<_> = events
            .iter()
            .map(|event| (event.popup.clone(), event.user.clone(), event.id.clone(), event.button.clone().unwrap()))
            .collect();
        read.sort_by(|a, b| a.2.cmp(&b.2));
        read
    };
    assert_eq!(read(&events), reported);
    assert!(events.is_sorted_by_key(|event| event.taken_at));

    let text = expect_status(&mut app, "GET", "/v1/popup-events?format=csv", "", 200);
    assert!(text.ends_with("\r\n") && text.lines().count() == 1 + AWKWARD.len(), "{text}");
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    assert_eq!(
        reader.headers().unwrap().iter().collect::<Vec<_>>(),
        [
            "taken_at",
            "at",
            "id",
            "type",
            "popup",
            "variant",
            "decision",
            "user",
            "button",
            "value",
            "name",
            "until",
            "properties"
        ]
    );
    let from_csv: Vec<ExportedEvent> = reader.deserialize().map(Result::unwrap).collect();
    let mut without_formulas = events.clone();
    for button in without_formulas.iter_mut().filter_map(|event| event.button.as_mut()).filter(|word| *word == "=1+1") {
        button.insert(0, '\'');
    }
    assert_eq!(from_csv, without_formulas, "both forms say the same, but for what a spreadsheet would compute");

    let of_q = expect_status(&mut app, "GET", "/v1/popup-events?format=csv&popup=q", "", 200);
    assert_eq!(csv::Reader::from_reader(of_q.as_bytes()).records().count(), 1);
    let (first, last) = (events[0].taken_at, events[events.len() - 1].taken_at);
    for (query, count) in [
        (format!("from={first}"), AWKWARD.len()),
        (format!("from={}", last + 1), 0),
        (format!("to={}", last + 1), AWKWARD.len()),
        (format!("to={first}"), 0),
        ("to=0".to_owned(), 0),
        (format!("from={}&to={}", u64::MAX, u64::MAX), 0),
    ] {
        let lines = expect_status(&mut app, "GET", &format!("/v1/popup-events?{query}"), "", 200);
        assert_eq!(lines.lines().count(), count, "{query}: {lines}");
    }
    // An empty export still has the header line.
    let none = expect_status(&mut app, "GET", "/v1/popup-events?format=csv&to=0", "", 200);
    assert!(none.starts_with("taken_at,at,id,"), "{none:?}");
    let counts = expect_status(&mut app, "GET", "/v1/popups/p/counts", "", 200);
    assert!(counts.contains(r#""variant":"a, \"b\"","shown":5"#) && counts.contains(r#""buttons":5"#), "{counts}");
}

#[test]
fn no_cell_of_an_export_is_a_formula() {
    let server = Server::start();
    let mut app = server.app();
    put(&mut app, "p", json!({}));
    let (_, decision) = decide(&mut app, &json!({"user": "@bob", "placement": "home"})).unwrap();
    let ids = ["=1+1", "+1", "-1", "@SUM(A1)", "a=1", "'=1"];
    let events: Vec<_> =
        ids.iter().map(|id| json!({"id": id, "type": "click", "decision": decision, "value": -1.5})).collect();
    expect_status(&mut app, "POST", "/v1/popup-events", &json!({ "events": events }).to_string(), 202);
    let text = expect_status(&mut app, "GET", "/v1/popup-events?format=csv", "", 200);
    let cells = |column: usize| -> Vec<String> {
        csv::Reader::from_reader(text.as_bytes()).records().map(|record| record.unwrap()[column].to_owned()).collect()
    };
    let mut exported = cells(2);
    exported.sort();
    assert_eq!(exported, ["'+1", "'-1", "'=1", "'=1+1", "'@SUM(A1)", "a=1"]);
    assert!(cells(7).iter().all(|user| user == "'@bob"), "{text}");
    assert!(cells(9).iter().all(|value| value == "-1.5"), "numbers stay numbers: {text}");
}

#[test]
fn an_export_of_many_pages_is_complete() {
    let server = Server::start();
    let mut app = server.app();
    put(&mut app, "p", json!({}));
    let (_, decision) = decide(&mut app, &json!({"user": "bob", "placement": "home"})).unwrap();
    for batch in 0..5 {
        let event = |at: u32| json!({"id": format!("{batch}-{at}"), "type": "impression", "decision": decision});
        let events = json!({"events": (0..1_000).map(event).collect::<Vec<_>>()}).to_string();
        check(&mut app, "POST", "/v1/popup-events", &events, 202, r#"{"accepted":1000,"duplicates":0}"#);
    }
    for (format, lines) in [("jsonl", 5_000), ("csv", 5_001)] {
        let text = expect_status(&mut app, "GET", &format!("/v1/popup-events?format={format}"), "", 200);
        assert_eq!(text.lines().count(), lines);
        let ids: std::collections::BTreeSet<&str> = text.lines().collect();
        assert_eq!(ids.len(), lines, "none appears twice");
    }
}

#[test]
fn test_users_see_unpublished_popups() {
    let server = Server::start();
    let mut app = server.app();
    let draft =
        json!({"state": "draft", "test_users": ["ann"], "caps": {"total": 1}, "starts_at": now_ms() + 3_600_000});
    put(&mut app, "p", draft);
    let ask = json!({"user": "ann", "placement": "home"});
    for id in 0..3 {
        let (popup, decision) = decide(&mut app, &ask).unwrap();
        assert_eq!(popup, "p", "a preview is not counted against caps");
        let events = json!({"events": [{"id": id.to_string(), "type": "click", "decision": decision}]}).to_string();
        check(&mut app, "POST", "/v1/popup-events", &events, 202, r#"{"accepted":1,"duplicates":0}"#);
    }
    let shown = expect_status(&mut app, "POST", "/v1/popups/decide", &ask.to_string(), 200);
    assert!(shown.contains(r#""test":true"#), "{shown}");
    assert_eq!(decide(&mut app, &json!({"user": "bob", "placement": "home"})), Err(None));
    check(&mut app, "GET", "/v1/popups/p/counts", "", 200, r#"{"popup":"p","hours":[]}"#);
    check(&mut app, "GET", "/v1/popup-events", "", 200, "");
}

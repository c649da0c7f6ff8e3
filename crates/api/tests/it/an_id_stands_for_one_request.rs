//! A retry answers with the first result; another request under the same id is refused, and does nothing.

use crate::support::*;
use serde_json::Value;
use tidings_client::http::HttpClient;

const MESSAGES: &str = "/v1/messages";

fn ask(app: &mut HttpClient, method: &str, path: &str, body: &str, status: u16) -> Value {
    serde_json::from_str(&expect_status(app, method, path, body, status)).unwrap()
}

fn last_seq(app: &mut HttpClient) -> u64 {
    let page = ask(app, "GET", "/v1/conversations/g/messages?limit=1", "", 200);
    page["conversation_last_seq"].as_u64().unwrap()
}

/// The request is stored; the same one is a retry of it, and each of `others` is refused.
#[track_caller]
fn check_once(app: &mut HttpClient, (method, path, body): (&str, &str, &str), others: &[(&str, &str, &str)]) {
    let first = ask(app, method, path, body, 200);
    assert!(first["duplicate"].is_null(), "{first}");
    let last = last_seq(app);
    let again = ask(app, method, path, body, 200);
    assert_eq!((&again["seq"], &again["at"], &again["duplicate"]), (&first["seq"], &first["at"], &true.into()));
    for (method, path, body) in others {
        check_refused(app, method, path, body, "client_msg_id_reused", "stands for another request");
    }
    assert_eq!(last_seq(app), last, "nothing was stored");
}

#[test]
fn another_request_under_a_used_id_is_refused() {
    let server = Server::start().with_people();
    let mut app = server.app();
    let m = |rest: &str| format!(r#"{{"conversation":"g","from":"alice","client_msg_id":"1",{rest}}}"#);
    let (first, encoded_anew) =
        (m(r#""body":{"a":"é","b":[1]}"#), m(r#""type":"text","body":{ "b":[ 1 ],"a":"\u00e9"}"#));
    let edit = r#"{"from":"alice","client_msg_id":"1","body":"x"}"#;
    let (message, recall) =
        ("/v1/conversations/g/messages/1", "/v1/conversations/g/messages/1?from=alice&client_msg_id=1");
    let stream = m(r#""body":{"text":""}"#);
    let others = [
        ("POST", MESSAGES, m(r#""body":{"a":"é","b":[2]}"#)),
        ("POST", MESSAGES, m(r#""body":{"a":"é","b":[1]},"type":"card""#)),
        ("POST", MESSAGES, m(r#""body":{"a":"é","b":[1]},"silent":true"#)),
        ("POST", MESSAGES, m(r#""body":{"a":"é","b":[1]},"skip_push":true"#)),
        ("POST", MESSAGES, m(r#""body":{"a":"é","b":[1]},"mentions":["bob"]"#)),
        ("POST", MESSAGES, m(r#""body":{"a":"é","b":[1]},"reply_to":1"#)),
        ("POST", "/v1/streams", stream),
        ("PATCH", message, edit.to_owned()),
        ("DELETE", recall, String::new()),
    ];
    let others: Vec<_> = others.iter().map(|(method, path, body)| (*method, *path, body.as_str())).collect();
    check_once(&mut app, ("POST", MESSAGES, &first), &others);
    let again = ask(&mut app, "POST", MESSAGES, &encoded_anew, 200);
    assert_eq!((again["seq"].as_u64(), &again["duplicate"]), (Some(1), &true.into()), "encoded anew");

    let batch = format!(r#"{{"messages":[{first},{}]}}"#, m(r#""body":2"#));
    let results = ask(&mut app, "POST", "/v1/messages/batch", &batch, 200);
    assert_eq!(
        (&results["results"][0]["duplicate"], &results["results"][1]["error"]["code"]),
        (&true.into(), &"client_msg_id_reused".into())
    );

    ask(&mut app, "POST", MESSAGES, r#"{"conversation":"g","from":"alice","body":2}"#, 200);
    let edit = r#"{"from":"alice","client_msg_id":"e","body":"x","if_version":1}"#;
    let second = "/v1/conversations/g/messages/2";
    let e = |rest: &str| format!(r#"{{"from":"alice","client_msg_id":"e",{rest}}}"#);
    let (other, unconditional) = (e(r#""body":"y","if_version":1"#), e(r#""body":"x""#));
    let others = [
        ("PATCH", second, &*other),
        ("PATCH", second, &*unconditional),
        ("PATCH", message, edit),
        ("DELETE", "/v1/conversations/g/messages/2?from=alice&client_msg_id=e", ""),
    ];
    check_once(&mut app, ("PATCH", second, edit), &others);
    let recall = ("DELETE", "/v1/conversations/g/messages/2?from=alice&client_msg_id=r", "");
    check_once(&mut app, recall, &[("DELETE", "/v1/conversations/g/messages/1?from=alice&client_msg_id=r", "")]);
    let stream = r#"{"conversation":"g","from":"alice","client_msg_id":"s","body":{"text":""}}"#;
    let other = r#"{"conversation":"g","from":"alice","client_msg_id":"s","body":{"text":"a"}}"#;
    check_once(
        &mut app,
        ("POST", "/v1/streams", stream),
        &[("POST", "/v1/streams", other), ("POST", MESSAGES, stream)],
    );
    let other_author = r#"{"conversation":"g","from":"bob","client_msg_id":"1","body":2}"#;
    check_once(&mut app, ("POST", MESSAGES, other_author), &[]);
    let elsewhere = r#"{"from":"alice","to":"bob","client_msg_id":"1","body":2}"#;
    assert!(ask(&mut app, "POST", MESSAGES, elsewhere, 200)["duplicate"].is_null(), "another conversation");
}

#[test]
fn requests_without_an_author_are_stored_once() {
    let server = Server::start().with_people();
    let mut app = server.app();
    let send = r#"{"conversation":"g","client_msg_id":"1","body":1}"#;
    let other = r#"{"conversation":"g","client_msg_id":"1","body":2}"#;
    check_once(&mut app, ("POST", MESSAGES, send), &[("POST", MESSAGES, other)]);
    let batch = format!(r#"{{"messages":[{send},{send}]}}"#).replace(r#""1""#, r#""b""#);
    let results = ask(&mut app, "POST", "/v1/messages/batch", &batch, 200);
    assert_eq!((&results["results"][0]["seq"], &results["results"][1]["seq"]), (&2.into(), &2.into()));
    let (message, edit) = ("/v1/conversations/g/messages/1", r#"{"client_msg_id":"e","body":3}"#);
    check_once(&mut app, ("PATCH", message, edit), &[("POST", MESSAGES, &send.replace(r#""1""#, r#""e""#))]);
    check_once(&mut app, ("DELETE", "/v1/conversations/g/messages/2?client_msg_id=r", ""), &[]);
    let stream = r#"{"conversation":"g","client_msg_id":"s","body":{"text":""}}"#;
    check_once(&mut app, ("POST", "/v1/streams", stream), &[("POST", MESSAGES, stream)]);
}

#[test]
fn a_retry_answers_with_the_first_result_after_the_right_is_lost() {
    let server = Server::start().with_people();
    let mut app = server.app();
    let mut bob = server.user("bob");
    let send = r#"{"conversation":"g","client_msg_id":"1","body":1}"#;
    let (edit, recall) = (r#"{"client_msg_id":"e","body":2}"#, "/v1/conversations/g/messages/2?client_msg_id=r");
    assert_eq!(ask(&mut bob, "POST", MESSAGES, send, 200)["seq"], 1);
    assert_eq!(ask(&mut bob, "POST", MESSAGES, &send.replace(r#""1""#, r#""2""#), 200)["seq"], 2);
    let message = "/v1/conversations/g/messages/1";
    assert_eq!(ask(&mut bob, "PATCH", message, edit, 200)["seq"], 3);
    assert_eq!(ask(&mut bob, "DELETE", recall, "", 200)["seq"], 4);
    expect_status(&mut app, "POST", "/v1/conversations/g/members", r#"{"remove":["bob"]}"#, 200);
    for (method, path, body, seq) in
        [("POST", MESSAGES, send, 1), ("PATCH", message, edit, 3), ("DELETE", recall, "", 4)]
    {
        let again = ask(&mut bob, method, path, body, 200);
        assert_eq!((again["seq"].as_u64(), &again["duplicate"]), (Some(seq), &true.into()), "{method}");
    }
    let other = r#"{"conversation":"g","client_msg_id":"1","body":2}"#;
    check_refused(&mut bob, "POST", MESSAGES, other, "client_msg_id_reused", "");
    check_refused(&mut bob, "POST", MESSAGES, &send.replace(r#""1""#, r#""3""#), "not_a_member", "bob");
    check_refused(&mut bob, "POST", MESSAGES, r#"{"conversation":"g","body":1}"#, "not_a_member", "bob");
    check_refused(&mut bob, "PATCH", message, &edit.replace(r#""e""#, r#""f""#), "not_a_member", "bob");
    let stranger = r#"{"conversation":"alice~bob","client_msg_id":"1","body":1}"#;
    ask(&mut bob, "POST", MESSAGES, r#"{"to":"alice","client_msg_id":"1","body":1}"#, 200);
    check_refused(&mut server.user("carol"), "POST", MESSAGES, stranger, "not_found", "alice~bob");
}

#[test]
fn an_end_with_another_body_is_no_retry() {
    let server = Server::start().with_people();
    let mut app = server.app();
    let stream = r#"{"conversation":"g","from":"alice","body":{"text":"a"}}"#;
    for (seq, (first, alike, other)) in [
        (r#"{"body":{"text":"b","n":1}}"#, r#"{"body":{"n":1,"text":"b"}}"#, r#"{"body":{"text":"c","n":1}}"#),
        ("{}", r#"{"body":{"text":"a"}}"#, r#"{"body":{"text":"b"}}"#),
    ]
    .into_iter()
    .enumerate()
    {
        let seq = 2 * seq + 1;
        assert_eq!(ask(&mut app, "POST", "/v1/streams", stream, 200)["seq"], seq);
        let end = format!("/v1/streams/g/{seq}/end");
        assert!(ask(&mut app, "POST", &end, first, 200)["duplicate"].is_null());
        for retry in [first, alike, "{}"] {
            assert_eq!(ask(&mut app, "POST", &end, retry, 200)["duplicate"], true, "{retry}");
        }
        check_refused(&mut app, "POST", &end, other, "stream_ended", "");
    }
}

#[test]
fn pushes_and_bulk_sends_are_held_to_their_ids() {
    let server = Server::start().with_people();
    let mut app = server.app();
    let push = r#"{"client_push_id":"p","to":{"users":["alice","bob"]},"type":"t","body":{"a":1}}"#;
    let first = ask(&mut app, "POST", "/v1/push", push, 202);
    for again in [push.to_owned(), push.replace(r#""alice","bob""#, r#""bob","alice""#)] {
        let again = ask(&mut app, "POST", "/v1/push", &again, 200);
        assert_eq!((&again["push"], &again["duplicate"]), (&first["push"], &true.into()));
    }
    for (from, to) in [
        (r#"["alice","bob"]"#, r#"["alice","carol"]"#),
        (r#"{"a":1}"#, r#"{"a":2}"#),
        (r#""type":"t""#, r#""type":"u""#),
        (r#""type":"t""#, r#""type":"t","ttl_s":60"#),
        (r#""type":"t""#, r#""type":"t","priority":"high""#),
        (r#""type":"t""#, r#""type":"t","collapse_key":"k""#),
        (r#""users":["alice","bob"]"#, r#""all":true"#),
    ] {
        let other = push.replace(from, to);
        check_refused(&mut app, "POST", "/v1/push", &other, "client_push_id_reused", "stands for another push");
    }
    expect_status(&mut app, "PUT", "/v1/users", r#"{"users":[{"id":"shop"}]}"#, 200);
    let account = r#"{"id":"shop","kind":"official","owner":"alice","members":["bob","carol"]}"#;
    expect_status(&mut app, "POST", "/v1/conversations", account, 201);
    let bulk = r#"{"client_bulk_id":"b","account":"shop","to":{"users":["bob"]},"message":{"body":{"a":1}}}"#;
    assert_eq!(ask(&mut app, "POST", "/v1/bulk-sends", bulk, 202)["id"], 1);
    assert_eq!(ask(&mut app, "POST", "/v1/bulk-sends", bulk, 200)["id"], 1);
    for (from, to) in [(r#"["bob"]"#, r#"["carol"]"#), (r#"{"a":1}"#, r#"{"a":2}"#)] {
        let other = bulk.replace(from, to);
        check_refused(&mut app, "POST", "/v1/bulk-sends", &other, "client_bulk_id_reused", "another bulk send");
    }
}

//! Every refusal is problem details that name the reason.

use crate::support::*;
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};
use tidings_api::ApiConfig;
use tidings_client::{
    http::HttpClient,
    token::{sign, sign_claims},
};
use tidings_engine::config::EngineConfig;

#[test]
fn unknown_paths_and_methods_are_refused() {
    let server = Server::start();
    let mut app = server.app();
    check_refused(&mut app, "GET", "/nothing", "", "not_found", "/nothing");
    check_refused(&mut app, "GET", "/v1/nothing", "", "not_found", "/v1/nothing");
    check_refused(&mut app, "DELETE", "/v1/users", "", "method_not_allowed", "DELETE");
    check_refused(&mut app, "GET", "/v1/messages", "", "method_not_allowed", "GET");
    check_refused(&mut app, "GET", "/v1/users/%FF", "", "invalid_field", "user: is not UTF-8");
}

#[test]
fn wrong_bodies_and_queries_are_refused() {
    let server = Server::start().with_people();
    let mut app = server.app();
    for path in ["/v1/messages", "/v1/messages/batch", "/v1/conversations", "/v1/presence/query"] {
        for malformed in ["", "{", "nonsense", "\u{1}"] {
            check_refused(&mut app, "POST", path, malformed, "malformed", "body: ");
        }
        check_refused(&mut app, "POST", path, r#"{"surprise":1}"#, "invalid_field", "surprise");
        check_refused(&mut app, "POST", path, "[]", "invalid_field", "body: ");
    }
    let wrong = r#"{"conversation":5,"body":1}"#;
    check_refused(
        &mut app,
        "POST",
        "/v1/messages",
        wrong,
        "invalid_field",
        "conversation: must be a string, got the number 5",
    );
    check_refused(&mut app, "POST", "/v1/messages", r#"{"body":1}"#, "invalid_field", "conversation");
    let wrong = r#"{"conversation":"g","from":"alice","client_msg_id":7,"body":1}"#;
    let names = "client_msg_id: must be a string, got the number 7";
    check_refused(&mut app, "POST", "/v1/messages", wrong, "invalid_field", names);
    let names = "body: must be an object, got an array";
    check_refused(&mut app, "PUT", "/v1/users", r#"[{"id":"zoe"}]"#, "invalid_field", names);
    check_refused(&mut app, "PUT", "/v1/users", r#"[[{"id":"zoe"}]]"#, "invalid_field", names);
    let deep = format!(r#"{{"conversation":"g","from":"alice","body":{}}}"#, "[".repeat(100_000));
    check_refused(&mut app, "POST", "/v1/messages", &deep, "malformed", "line 1 column");
    let path = "/v1/conversations/g/messages";
    check_refused(
        &mut app,
        "GET",
        &format!("{path}?from=1"),
        "",
        "invalid_field",
        "from: unknown parameter; expected one of cursor, from_seq",
    );
    check_refused(
        &mut app,
        "GET",
        &format!("{path}?limit=-1"),
        "",
        "invalid_field",
        "limit: must be a whole number of at least 0, got \"-1\"",
    );
    check_refused(&mut app, "GET", &format!("{path}?limit=501"), "", "limit_exceeded", "500");
    check_refused(&mut app, "GET", "/v1/users/bob/sync?cursor=x", "", "cursor_invalid", "cursor");
    check_refused(&mut app, "POST", "/v1/admin/backup", r#"{"path":"../etc"}"#, "invalid_field", "/backups");
    check_refused(&mut app, "POST", "/v1/admin/backup", r#"{"path":"a\u0000b"}"#, "invalid_field", "NUL");

    let answer = server.raw(
        format!(
            "POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\nconnection: close\r\n\
        content-type: application/x-www-form-urlencoded\r\ncontent-length: 2\r\n\r\n{{}}"
        )
        .as_bytes(),
    );
    assert!(answer.starts_with("HTTP/1.1 415") && answer.contains("unsupported_media_type"), "{answer}");
}

#[test]
fn requests_over_a_limit_are_refused() {
    let server = Server::start().with_people();
    let mut app = server.app();
    let long = format!(r#"{{"conversation":"g","from":"alice","body":"{}"}}"#, "x".repeat(64 * 1024));
    check_refused(&mut app, "POST", "/v1/messages", &long, "limit_exceeded", "65536");
    let one = r#"{"conversation":"g","from":"alice","body":1}"#;
    let batch = format!(r#"{{"messages":[{}]}}"#, vec![one; 501].join(","));
    check_refused(&mut app, "POST", "/v1/messages/batch", &batch, "limit_exceeded", "500");
    let many = vec![r#""bob""#; 1_001].join(",");
    let query = format!(r#"{{"users":[{many}]}}"#);
    check_refused(&mut app, "POST", "/v1/presence/query", &query, "limit_exceeded", "1000");
    let names = vec![r#""bob""#; 10_001].join(",");
    let push = format!(r#"{{"to":{{"users":[{names}]}},"body":1}}"#);
    check_refused(&mut app, "POST", "/v1/push", &push, "limit_exceeded", "10000");
    let push = format!(r#"{{"to":{{"all":true}},"body":"{}"}}"#, "x".repeat(4 * 1024));
    check_refused(&mut app, "POST", "/v1/push", &push, "limit_exceeded", "body (bytes) is limited to 4096");
    let push =
        r#"{"to":{"all":true},"body":1,"fallback":{"after_s":30,"template":{"title":"T","body":"B"},"expires_s":1}}"#;
    check_refused(&mut app, "POST", "/v1/push", push, "invalid_field", "fallback.expires_s");
    let push = r#"{"to":{"all":true},"body":1,"fallback":{"after_s":30,"template":{"title":"T","body":"B"}}}"#;
    check_refused(&mut app, "POST", "/v1/push", push, "conflict", "no provider is set up");
    server.register("bob", "b1");
    let tags: Vec<String> = (0..33).map(|n| format!(r#""t{n}""#)).collect();
    let tags = format!(r#"{{"tags":[{}]}}"#, tags.join(","));
    check_refused(&mut app, "PUT", "/v1/users/bob/devices/b1/tags", &tags, "limit_exceeded", "32");
    check_refused(&mut app, "GET", "/v1/push/1/devices?limit=501", "", "limit_exceeded", "500");

    // A body that is declared too long, and one that is too long without a declaration: neither is read to its end.
    let head = format!("POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\n");
    let declared = server.raw(format!("{head}content-length: 9000000\r\n\r\n").as_bytes());
    assert!(declared.starts_with("HTTP/1.1 413") && declared.contains("131072, got 9000000"), "{declared}");
    let mut chunked = format!("{head}transfer-encoding: chunked\r\n\r\n900000\r\n").into_bytes();
    chunked.resize(chunked.len() + 8 * 1024 * 1024 + 2, b' ');
    let chunked = server.raw(&chunked);
    assert!(chunked.starts_with("HTTP/1.1 413"), "{chunked}");
}

#[test]
fn endless_headers_are_refused() {
    let server = Server::start();
    let mut head = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: ".to_vec();
    head.resize(10 * 1024 * 1024, b'a');
    let answer = server.raw(&head);
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many = format!("GET /healthz HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(1_000));
    let answer = server.raw(many.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    for nonsense in ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n"] {
        let answer = server.raw(nonsense.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400"), "{nonsense:?}: {answer}");
    }
    expect_status(&mut server.app(), "GET", "/healthz", "", 200);
}

#[test]
fn calls_without_a_valid_credential_are_refused() {
    let server = Server::start().with_people();
    let path = "/v1/users/me/conversations";
    let other = sign("another secret", "alice", Duration::from_secs(600));
    // {"alg":"none"}.{"sub":"alice","exp":4000000000}
    let unsigned = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImV4cCI6NDAwMDAwMDAwMH0.";
    for credential in ["", "wrong", &API_KEY[1..], other.as_str(), unsigned] {
        check_refused(&mut server.with_credential(credential), "GET", path, "", "unauthorized", "");
        let body = r#"{"conversation":"g","body":1}"#;
        check_refused(&mut server.with_credential(credential), "POST", "/v1/messages", body, "unauthorized", "");
    }
    // {"alg":"HS256"} with `exp` 1, signed with the right key.
    let expired = sign_claims(TOKEN_KEY, &serde_json::json!({"sub": "alice", "exp": 1}));
    check_refused(&mut server.with_credential(&expired), "GET", path, "", "token_expired", "expired");
    check_refused(&mut server.user("nobody"), "GET", path, "", "not_found", "nobody");
    let without = server.raw(b"GET /v1/users/me HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert!(without.starts_with("HTTP/1.1 401") && without.contains("www-authenticate: Bearer"), "{without}");
    expect_status(&mut server.with_credential("a-second-key"), "GET", "/v1/users/alice", "", 200);
}

#[test]
fn a_user_token_cannot_reach_other_users() {
    let server = Server::start().with_people();
    let mut carol = server.user("carol");
    for (method, path, body, code) in [
        ("POST", "/v1/messages", r#"{"conversation":"g","body":1}"#, "not_a_member"),
        ("POST", "/v1/messages", r#"{"conversation":"g","from":"alice","body":1}"#, "forbidden"),
        ("GET", "/v1/conversations/g/messages", "", "not_a_member"),
        ("GET", "/v1/conversations/g/members", "", "not_a_member"),
        ("GET", "/v1/conversations/g", "", "not_a_member"),
        ("GET", "/v1/users/alice/conversations", "", "forbidden"),
        ("GET", "/v1/users/alice/sync", "", "forbidden"),
        ("PUT", "/v1/users/alice/conversations/g/read", r#"{"seq":1}"#, "forbidden"),
        ("PUT", "/v1/users", r#"{"users":[]}"#, "forbidden"),
        ("POST", "/v1/users/alice/kick", "{}", "forbidden"),
        ("POST", "/v1/push", r#"{"to":{"all":true},"body":1}"#, "forbidden"),
        ("GET", "/v1/push/1", "", "forbidden"),
        ("GET", "/v1/push/1/devices", "", "forbidden"),
        ("DELETE", "/v1/push/1", "", "forbidden"),
        ("GET", "/v1/users/carol/devices", "", "forbidden"),
        ("PUT", "/v1/users/carol/devices/d/tags", r#"{"tags":[]}"#, "forbidden"),
        ("DELETE", "/v1/users/carol/devices/d", "", "forbidden"),
        ("GET", "/v1/notifications/dead-letters", "", "forbidden"),
        ("POST", "/v1/admin/backup", r#"{"path":"x"}"#, "forbidden"),
    ] {
        check_refused(&mut carol, method, path, body, code, "");
    }
}

#[test]
fn invalid_pushes_are_refused() {
    let server = Server::start().with_people();
    let mut app = server.app();
    for (method, path, body, code, names) in [
        ("POST", "/v1/push", r#"{"to":{},"body":1}"#, "invalid_field", "to:"),
        ("POST", "/v1/push", r#"{"to":{"all":true,"users":["bob"]},"body":1}"#, "invalid_field", "to:"),
        ("POST", "/v1/push", r#"{"to":{"everyone":true},"body":1}"#, "invalid_field", "everyone"),
        ("POST", "/v1/push", r#"{"to":{"all":true},"body":1,"ttl_s":0}"#, "invalid_field", "ttl_s"),
        ("GET", "/v1/push/7", "", "not_found", "7"),
        ("DELETE", "/v1/push/7", "", "not_found", "7"),
        ("GET", "/v1/push/x", "", "invalid_field", "push: must be a whole number of at least 0, got \"x\""),
        ("GET", "/v1/push/7/devices?state=lost", "", "invalid_field", "state: must be one of pending"),
        ("GET", "/v1/users/nobody/devices", "", "not_found", "nobody"),
        ("DELETE", "/v1/users/bob/devices/none", "", "not_found", "none"),
        ("PUT", "/v1/users/bob/devices/none/tags", r#"{"tags":["a b"]}"#, "invalid_field", "tags"),
    ] {
        check_refused(&mut app, method, path, body, code, names);
    }
}

#[test]
fn invalid_requests_for_dead_letters_are_refused() {
    let server = Server::start().with_people();
    let mut app = server.app();
    let path = "/v1/notifications/dead-letters";
    for (query, code, names) in [
        ("after=7", "invalid_field", "after: must be the id of a dead letter, such as webhook:409600"),
        ("channel=popup", "invalid_field", "channel: must be one of webhook, apns, fcm, web_push, huawei"),
        ("channel=sms", "invalid_field", "channel: must be one of session"),
        ("limit=501", "limit_exceeded", "501"),
        ("user=nobody", "not_found", "nobody"),
    ] {
        check_refused(&mut app, "GET", &format!("{path}?{query}"), "", code, names);
    }
    for (body, code, names) in [
        (r#"{"ids":["webhook:7","apns:7"]}"#, "invalid_field", "ids[1]: must be the id of a dead letter"),
        (r#"{"ids":[7]}"#, "invalid_field", "ids[0]: must be a string"),
        (r#"{"ids":["provider:7"]}"#, "not_found", "provider:7"),
        (r#"{"ids":["provider:7"],"user":"alice"}"#, "invalid_field", "ids: cannot be together"),
        (r#"{"channel":"session"}"#, "invalid_field", "channel: must be one of webhook"),
    ] {
        for verb in ["replay", "delete"] {
            check_refused(&mut app, "POST", &format!("{path}/{verb}"), body, code, names);
        }
    }
}

#[test]
fn refusals_are_counted_by_code() {
    let server = Server::start();
    let mut app = server.app();
    check_refused(&mut app, "GET", "/v1/nothing", "", "not_found", "");
    check_refused(&mut app, "POST", "/v1/messages", "{", "malformed", "");
    let metrics = expect_status(&mut app, "GET", "/metrics", "", 200);
    assert!(metrics.contains(r#"tidings_refused_total{code="not_found"} 1"#), "{metrics}");
    assert!(metrics.contains(r#"tidings_refused_total{code="malformed"} 1"#), "{metrics}");
    assert!(metrics.contains(r#"tidings_queue_depth{queue="http_connections"} 1"#), "{metrics}");
}

#[test]
fn a_connection_beyond_the_limit_gets_503_and_is_closed() {
    let server = Server::with(ApiConfig { connections_max: 1, ..ApiConfig::default() });
    let mut first = server.app();
    expect_status(&mut first, "GET", "/v1/users/nobody", "", 404);
    let answer = server.raw(b"GET /v1/users/nobody HTTP/1.1\r\nhost: x\r\n\r\n").to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 503") && answer.contains("queue_full"), "{answer}");
    let after = answer.split("retry-after: ").nth(1).and_then(|rest| rest.split('\r').next()).unwrap();
    assert!((1..=10).contains(&after.parse::<u32>().unwrap()), "{after}");
    expect_status(&mut first, "GET", "/v1/users/nobody", "", 404);
}

#[test]
fn a_drain_refuses_sends_and_ends_idle_connections() {
    let mut server = Server::start().with_people();
    let mut app = server.app();
    expect_status(&mut app, "GET", "/readyz", "", 200);
    server.engine.begin_drain();
    let body = r#"{"conversation":"g","from":"alice","body":1}"#;
    let answer = app.exchange("POST", "/v1/messages", body.as_bytes()).unwrap();
    assert_eq!((answer.status, answer.retry_after), (503, Some(1)));
    check_refused(&mut app, "GET", "/readyz", "", "draining", "draining");
    assert!(server.finish(), "an idle connection held the stop up");
}

#[test]
fn a_byte_order_mark_is_skipped_and_a_compressed_body_refused_with_words() {
    let server = Server::start().with_people();
    let body = "\u{feff}{\"conversation\":\"g\",\"from\":\"alice\",\"body\":1}";
    let answer = server.app().exchange("POST", "/v1/messages", body.as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    for (path, kind) in [
        ("/v1/messages", "application/json"),
        ("/v1/conversations", "application/json"),
        ("/v1/popups/decide", "application/json"),
        ("/v1/popup-segments/s", "text/plain"),
    ] {
        let method = if path.contains("segments") { "PUT" } else { "POST" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\nContent-Type: {kind}\r\n\
             Content-Encoding: gzip\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
        );
        let mut socket = TcpStream::connect(server.address).unwrap();
        socket.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 415 ") && answer.contains("send the body uncompressed"),
            "{path}: {answer}"
        );
    }
}

#[test]
fn a_batch_says_when_what_was_refused_may_be_tried_again() {
    let engine = EngineConfig { sends_per_second: 1, ..EngineConfig::default() };
    let server = Server::of(ApiConfig::default(), engine, None).with_people();
    let batch = |count: usize, to: &str| {
        let message = serde_json::json!({ "to": to, "body": 1 });
        serde_json::json!({ "messages": vec![message; count] }).to_string()
    };
    let send = |http: &mut HttpClient, body: String| {
        let answer = http.exchange("POST", "/v1/messages/batch", body.as_bytes()).unwrap();
        let text = String::from_utf8(answer.body).unwrap();
        assert_eq!(answer.status, 200, "{text}");
        (answer.retry_after, text)
    };
    let mut bob = server.user("bob");
    let (retry_after, text) = send(&mut bob, batch(1, "alice"));
    assert_eq!(retry_after, None, "it was sent: {text}");
    // More than a user may send at once.
    let (retry_after, text) = send(&mut bob, batch(100, "alice"));
    assert!(
        text.contains("rate_limited") && retry_after.is_some_and(|seconds| seconds >= 1),
        "{retry_after:?}: {text}"
    );
    let (retry_after, text) = send(&mut server.user("alice"), batch(1, "nobody-here"));
    assert!(text.contains("not_found") && retry_after.is_none(), "no time helps: {retry_after:?}: {text}");
}

//! Questions and events of popups, and pushes, that reach a node which does not lead go to the leader on few connections, many at once.
//! Clients see no difference.
// Slow: left out by `make test-quick`.

use crate::{
    any_node_answers_through_the_leader::{ask, nodes},
    support::*,
};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};
use tidings_domain::function::Function;
use tidings_protocol::http::{PopupEvent, PopupEventKind};

const CLIENTS: usize = 32;
const PLACEMENTS: usize = 20;

/// One connection of the fast path.
struct Client(TcpStream);

impl Client {
    fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(stream)
    }

    fn send(&mut self, request: &str) {
        self.0.write_all(request.as_bytes()).unwrap();
    }

    /// The next response, byte by byte, so that nothing of a later one is read.
    fn read(&mut self) -> String {
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            read.push(byte[0]);
        }
        let head = String::from_utf8(read).unwrap();
        let length =
            head.split("content-length: ").nth(1).map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        head + &String::from_utf8(body).unwrap()
    }

    fn answer(&mut self, request: &str) -> String {
        self.send(request);
        self.read()
    }

    /// The first answer that is no 503: on a busy machine a thread may be stopped for longer than a node waits for another.
    fn exchange(&mut self, request: &str) -> String {
        let mut answer = self.answer(request);
        until("it is answered", || {
            if answer.starts_with("HTTP/1.1 503 ") {
                answer = self.answer(request);
            }
            !answer.starts_with("HTTP/1.1 503 ")
        });
        answer
    }
}

fn request(path: &str, credential: &str, body: &str) -> String {
    let credential =
        if credential.is_empty() { String::new() } else { format!("Authorization: Bearer {credential}\r\n") };
    format!("POST {path} HTTP/1.1\r\nHost: x\r\n{credential}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn question(user: &str, placement: &str) -> String {
    request("/v1/popups/decide", API_KEY, &json!({"user": user, "placement": placement}).to_string())
}

/// Popups that each show at a placement of their own.
fn popups(at: &Server) {
    let mut app = at.app();
    for n in 0..PLACEMENTS {
        let popup = json!({"state": "live", "placements": [format!("p{n}")],
            "variants": [{"id": "a", "content": {"title": format!("title {n}")}}]});
        ask(&mut app, "PUT", &format!("/v1/popups/popup-{n}"), popup, 201);
    }
}

/// How many connections a server's HTTP listener has.
fn connections(server: &Server) -> usize {
    let metrics = server.service.api().metrics();
    let line = metrics.lines().find(|line| line.contains("queue_depth{queue=\"http_connections\"}")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn announce(server: &Server, address: &str) {
    server.engine.cluster.as_ref().unwrap().nodes.announce_addresses(address.to_owned(), String::new());
}

fn until_known(at: &Server, address: &str) {
    let nodes = &at.engine.cluster.as_ref().unwrap().nodes;
    until("the address is known", || nodes.leader(Function::Popups).is_some_and(|leader| leader.address == address));
}

/// A listener in the place of the leader.
fn fake_leader(first: &Server, second: &Server) -> TcpListener {
    let fake = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = format!("http://{}", fake.local_addr().unwrap());
    announce(first, &address);
    until_known(second, &address);
    fake
}

fn accept(fake: &TcpListener) -> Client {
    let (stream, _) = fake.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client(stream)
}

/// Reads a request of the follower, without its credential.
fn read_request(connection: &mut Client) -> String {
    let request = connection.read();
    request.lines().filter(|line| !line.starts_with("authorization")).collect::<Vec<_>>().join("\n")
}

#[test]
fn each_of_many_clients_gets_its_own_answers() {
    let [first, second] = nodes();
    popups(&first);
    let address = second.address;
    let ask_all = |n: usize| {
        let mut client = Client::connect(address);
        for round in 0..40 {
            let placement = (n + round) % PLACEMENTS;
            let user = if round % 2 == 0 { "ann" } else { "ben" };
            let answer = client.exchange(&question(user, &format!("p{placement}")));
            assert!(answer.contains(&format!("\"title\":\"title {placement}\"")), "{answer}");
        }
        client
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || ask_all(n))).collect();
        let clients: Vec<Client> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(connections(&second) >= clients.len());
        assert!(connections(&first) <= 8, "{}", connections(&first));
    });
    // Several requests in one packet are answered in their order.
    let mut client = Client::connect(second.address);
    client.send(&(0..PLACEMENTS).map(|n| question("ann", &format!("p{n}"))).collect::<String>());
    for n in 0..PLACEMENTS {
        assert!(client.read().contains(&format!("\"title\":\"title {n}\"")));
    }
}

/// Without what differs from answer to answer.
fn comparable(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut body = body.to_owned();
    let mut is_random = false;
    if let Some((before, (_, after))) =
        body.split_once(r#""decision":""#).and_then(|(before, after)| Some((before, after.split_once('"')?)))
    {
        body = format!("{before}{after}");
        is_random = true;
    }
    let lines = head.lines().map(|line| match line.split_once(": ") {
        Some((name @ ("date" | "retry-after"), _)) => name.to_owned(),
        Some((name @ "content-length", _)) if is_random => name.to_owned(),
        _ => line.to_owned(),
    });
    lines.chain([String::new(), body]).collect::<Vec<_>>().join("\r\n")
}

#[test]
fn answers_are_those_of_the_leader_byte_by_byte() {
    let [first, second] = nodes();
    popups(&first);
    let later = json!({"state": "live", "placements": ["later"], "variants": [{"id": "a", "content": {}}],
        "caps": {"gap_s": 3_600}});
    ask(&mut first.app(), "PUT", "/v1/popups/later", later, 201);
    let shown = Client::connect(first.address).exchange(&question("ann", "later"));
    let shown: Value = serde_json::from_str(shown.split_once("\r\n\r\n").unwrap().1).unwrap();
    let event = json!({"events": [{"id": "e", "type": "click", "decision": shown["decision"]}]}).to_string();
    let ask = |credential: &str, body: &str| request("/v1/popups/decide", credential, body);
    let report = |credential: &str, body: &str| request("/v1/popup-events", credential, body);
    let push = |credential: &str, body: &str| request("/v1/push", credential, body);
    let to_ann = |more: &str| format!(r#"{{"to":{{"users":["ann"]}},"type":"t","body":"{}"{more}}}"#, "x".repeat(100));
    let at_home = r#"{"placement":"home"}"#;
    let events = |count: usize, more: usize| {
        let event = |n| json!({"id": format!("{n}"), "type": "custom", "name": "n", "user": "ann", "properties": {"a": "x".repeat(more)}});
        json!({"events": (0..count).map(event).collect::<Vec<_>>()}).to_string()
    };
    let mut unexpected: Vec<(&str, String)> = Vec::new();
    for (name, status, request) in [
        ("a decision", 200, question("ann", "p1")),
        ("a decision for a user", 200, ask(&token("ann"), r#"{"placement":"p1"}"#)),
        ("no decision", 204, question("ann", "nowhere")),
        ("no decision now", 204, question("ann", "later")),
        ("events", 202, report(API_KEY, &event)),
        ("a user's events", 202, report(&token("ann"), &event)),
        ("no JSON", 400, ask(API_KEY, "{")),
        ("an unknown field", 422, ask(API_KEY, r#"{"user":"ann","placement":"home","colour":1}"#)),
        ("another user", 403, ask(&token("ann"), r#"{"user":"ben","placement":"home"}"#)),
        ("an unknown user's token", 404, ask(&token("nobody"), at_home)),
        ("no user", 422, ask(API_KEY, at_home)),
        ("no credential", 401, ask("", at_home)),
        ("a wrong key", 401, ask("wrong", at_home)),
        ("a token of another's", 401, ask(&format!("{}x", token("ann")), at_home)),
        ("no body", 400, ask(API_KEY, "")),
        ("a long report", 202, report(API_KEY, &events(100, 400))),
        ("a push", 200, push(API_KEY, &to_ann(r#","client_push_id":"p""#))),
        ("another push of the name", 409, push(API_KEY, &to_ann(r#","client_push_id":"p","ttl_s":9"#))),
        ("a dry run", 200, push(API_KEY, &to_ann(r#","dry_run":true"#))),
        ("a push to nobody", 422, push(API_KEY, r#"{"to":{},"type":"t","body":1}"#)),
        ("a user's push", 403, push(&token("ann"), &to_ann(""))),
        ("a push without a credential", 401, push("", &to_ann(""))),
        (
            "a long push",
            200,
            push(
                API_KEY,
                &json!({"to": {"users": vec!["ann"; 9_000]}, "type": "t", "body": 1, "dry_run": true}).to_string(),
            ),
        ),
        ("too many events", 413, report(API_KEY, &events(1_001, 1))),
        ("a report of more than a mebibyte", 202, report(API_KEY, &events(1_000, 1_000))),
        (
            "a long question",
            422,
            ask(
                API_KEY,
                &json!({"user": "ann", "placement": "home", "attributes": {"a": "x".repeat(40_000)}}).to_string(),
            ),
        ),
    ] {
        // What is reported twice counts once.
        Client::connect(first.address).exchange(&request);
        let [at_leader, forwarded] =
            [&first, &second].map(|server| comparable(&Client::connect(server.address).exchange(&request)));
        assert_eq!(at_leader, forwarded, "{name}");
        if !forwarded.starts_with(&format!("HTTP/1.1 {status} ")) {
            unexpected.push((name, forwarded));
        }
    }
    assert_eq!(unexpected, []);
}

#[test]
fn keys_that_are_guessed_are_counted_where_the_guesser_connects() {
    let [first, second] = nodes();
    let guess = request("/v1/popups/decide", "guess", r#"{"user":"ann","placement":"home"}"#);
    let mut guesser = Client::connect(second.address);
    until("the guesser has to wait", || guesser.exchange(&guess).starts_with("HTTP/1.1 429 "));
    let refused = guesser.exchange(&guess);
    assert!(refused.contains("rate_limited") && refused.contains("\r\nretry-after: "), "{refused}");
    for credential in [API_KEY, &token("ann")] {
        let question = request("/v1/popups/decide", credential, r#"{"user":"ann","placement":"home"}"#);
        assert!(guesser.exchange(&question).starts_with("HTTP/1.1 204 "), "from the same address");
    }
    assert!(Client::connect(first.address).exchange(&guess).starts_with("HTTP/1.1 401 "), "the leader counts none");
}

#[test]
fn a_forwarded_request_is_not_forwarded_again() {
    let [_first, second] = nodes();
    let mut client = Client::connect(second.address);
    let ordinary = question("ann", "home");
    let forwarded = ordinary.replace("Host", "Tidings-Forwarded: c\r\nHost");
    // The connection goes on, and other requests are forwarded.
    for _ in 0..2 {
        let refused = client.answer(&forwarded);
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("node_unavailable"), "{refused}");
        assert!(client.exchange(&ordinary).starts_with("HTTP/1.1 204 "));
    }
    client.send(&format!("{forwarded}{ordinary}{forwarded}"));
    let statuses = [(); 3].map(|()| client.read()[9..12].to_owned());
    assert_eq!(statuses, ["503", "204", "503"]);
}

#[test]
fn a_leader_answers_any_number_of_forwarded_requests_in_their_order() {
    let [first, _second] = nodes();
    popups(&first);
    let from_node = |request: String| request.replace("Host", "Tidings-Forwarded: b\r\nHost");
    let event = json!({"events": [{"id": "e", "type": "custom", "name": "n", "user": "ann"}]}).to_string();
    let push = r#"{"to":{"users":["ann"]},"type":"t","body":1}"#;
    let mut sent = String::new();
    let mut expected = Vec::new();
    for n in 0..300 {
        let placement = n % PLACEMENTS;
        let (request, answer) = match n % 7 {
            0 => (from_node(request("/v1/popup-events", API_KEY, &event)), "HTTP/1.1 202 ".to_owned()),
            1 => (from_node(request("/v1/popups/decide", API_KEY, "{")), "HTTP/1.1 400 ".to_owned()),
            2 => (from_node(request("/v1/popups/decide", "wrong", "{}")), "HTTP/1.1 401 ".to_owned()),
            // One of a client's own.
            3 => (question("ann", "nowhere"), "HTTP/1.1 204 ".to_owned()),
            4 => (from_node(request("/v1/push", API_KEY, push)), "HTTP/1.1 202 ".to_owned()),
            _ => (from_node(question("ann", &format!("p{placement}"))), format!("\"title\":\"title {placement}\"")),
        };
        sent += &request;
        expected.push(answer);
    }
    let mut client = Client::connect(first.address);
    let mut writer = Client(client.0.try_clone().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| writer.send(&sent));
        for expected in &expected {
            let answer = client.read();
            assert!(answer.contains(expected), "{expected}: {answer}");
        }
    });
}

/// More than are under way at once, in number and in bytes, behind one that waits for the disk.
#[test]
fn a_leader_comes_to_all_that_was_sent_at_once_and_reads_no_more() {
    let [first, _second] = nodes();
    let from_node = |request: String| request.replace("Host", "Tidings-Forwarded: b\r\nHost");
    let push = from_node(request("/v1/push", API_KEY, r#"{"to":{"users":["ann"]},"type":"t","body":1}"#));
    for (count, bytes) in [(300, 0), (200, 2_000), (20, 20_000)] {
        let question = json!({"user": "ann", "placement": "p".repeat(bytes)}).to_string();
        let question = from_node(request("/v1/popups/decide", API_KEY, &question));
        let mut client = Client::connect(first.address);
        let mut writer = Client(client.0.try_clone().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| writer.send(&[push.as_str(), &question.repeat(count), &push].concat()));
            for number in 0..count + 2 {
                let is_push = number == 0 || number == count + 1;
                let answer = client.read();
                assert_eq!(answer.starts_with("HTTP/1.1 202 "), is_push, "{number} of {count}: {answer}");
            }
        });
    }
}

#[test]
fn requests_outlive_a_leader_that_stops_and_are_answered_once() {
    let [first, second] = nodes();
    popups(&first);
    let (is_over, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (is_over, answers, address) = (&is_over, &answers, second.address);
            scope.spawn(move || {
                let mut client = Client::connect(address);
                while !is_over.load(Ordering::Relaxed) {
                    let placement = format!("p{n}");
                    let answer = client.answer(&question("ann", &placement));
                    let is_own = answer.contains(&format!("\"title\":\"title {n}\""));
                    // By the follower, by the leader that stops, or by the one that has just begun.
                    assert!(is_own || answer.starts_with("HTTP/1.1 503 "), "{answer}");
                    answers.fetch_add(usize::from(is_own), Ordering::Relaxed);
                }
            });
        }
        let more = |what| {
            let had = answers.load(Ordering::Relaxed);
            until(what, || answers.load(Ordering::Relaxed) > had + 100);
        };
        more("the leader answers");
        drop(first);
        until("the second leads", || second.engine.popups.settings().is_ok());
        more("the new leader answers");
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_client_that_has_gone_does_not_shift_the_answers_of_others() {
    let [first, second] = nodes();
    popups(&first);
    let address = second.address;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                for n in 0..100 {
                    Client::connect(address).send(&question("ben", &format!("p{}", n % PLACEMENTS)));
                }
            });
            scope.spawn(move || {
                let mut client = Client::connect(address);
                for n in 0..100 {
                    let placement = n % PLACEMENTS;
                    let answer = client.exchange(&question("ann", &format!("p{placement}")));
                    assert!(answer.contains(&format!("\"title\":\"title {placement}\"")), "{answer}");
                }
            });
        }
    });
}

#[test]
fn a_leader_that_breaks_off_or_makes_no_sense_costs_one_answer() {
    let [first, second] = nodes();
    let address = format!("http://{}", first.address);
    for said in ["", "HTTP/1.1 200 OK\r\ncontent-le", "220 mail.example.com ESMTP\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
        let fake = fake_leader(&first, &second);
        let mut client = Client::connect(second.address);
        client.send(&question("ann", "home"));
        let mut leader = accept(&fake);
        read_request(&mut leader);
        leader.send(said);
        drop(leader);
        let refused = client.read();
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("may have been executed or not"), "{refused}");
        announce(&first, &address);
        until_known(&second, &address);
        assert!(client.exchange(&question("ann", "home")).starts_with("HTTP/1.1 204 "), "after {said:?}");
    }
}

/// As a proxy between the nodes may say them.
#[test]
fn responses_in_chunks_are_left_to_the_library() {
    let [first, second] = nodes();
    let fake = fake_leader(&first, &second);
    let mut client = Client::connect(second.address);
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    client.send(&question("ann", "home"));
    let mut by_pipeline = accept(&fake);
    read_request(&mut by_pipeline);
    by_pipeline.send(chunked);
    let refused = client.read();
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("may have been executed or not"), "{refused}");
    client.send(&question("ann", "home"));
    let mut by_library = accept(&fake);
    read_request(&mut by_library);
    by_library.send(chunked);
    let mut answer = vec![0; "HTTP/1.1 200 OK".len()];
    client.0.read_exact(&mut answer).unwrap();
    assert_eq!(answer, b"HTTP/1.1 200 OK");
}

#[test]
fn without_a_leader_that_can_be_reached_nothing_is_forwarded() {
    let [first, second] = nodes();
    let mut client = Client::connect(second.address);
    assert!(client.exchange(&question("ann", "home")).starts_with("HTTP/1.1 204 "));
    announce(&first, "");
    until_known(&second, "");
    let refused = client.answer(&question("ann", "home"));
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("retry-after: 1\r\n"), "{refused}");
    // A port that is bound, so that no other process takes it, and not listening.
    let taken = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    taken.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let closed = format!("http://{}", taken.local_addr().unwrap().as_socket().unwrap());
    announce(&first, &closed);
    until_known(&second, &closed);
    for _ in 0..3 {
        let refused = client.answer(&question("ann", "home"));
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("was not executed"), "{refused}");
    }
}

/// The address of a node may be one of TLS, which a proxy ends: such requests go by the HTTP library.
#[test]
fn an_address_of_another_form_is_left_to_the_library() {
    let [first, second] = nodes();
    let address = format!("http://{}/.", first.address);
    announce(&first, &address);
    until_known(&second, &address);
    assert!(Client::connect(second.address).exchange(&question("ann", "home")).starts_with("HTTP/1.1 204 "));
}

#[test]
fn what_a_node_reports_itself_arrives_whatever_its_length() {
    let [_first, second] = nodes();
    let reports = second.engine.popup_event_reports();
    // Some fit a pipeline, and some do not.
    for count in [1, 500] {
        let event = |n| PopupEvent {
            name: Some("missed".into()),
            user: Some("ben".into()),
            ..PopupEvent::new(format!("an-event-of-{count}-{n:030}"), PopupEventKind::Custom)
        };
        let reported = second.wait(reports.report((0..count).map(event).collect())).unwrap();
        assert_eq!(reported.accepted, count);
    }
}

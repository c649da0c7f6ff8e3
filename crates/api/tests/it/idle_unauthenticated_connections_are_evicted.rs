//! When connections run out, idle connections are closed for new ones: first those without an accepted credential, then those of users,
//! and never those of app servers.

use crate::support::*;
use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};
use tidings_api::{ApiConfig, CONNECTIONS_RESERVED, listener::ListenerConfig};
use tidings_listen::proxy::TrustedProxies;

/// Idle unauthenticated connections may be closed at once.
fn at_once() -> ApiConfig {
    ApiConfig { idle_min: Duration::ZERO, ..ApiConfig::default() }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends a request, and returns the head of the response; `None`: the connection was closed.
fn ask(stream: &mut TcpStream, path: &str, key: &str) -> Option<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut read = Vec::new();
    let mut part = [0; 4_096];
    loop {
        match stream.read(&mut part) {
            Ok(0) => return None,
            Ok(count) => read.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("neither answered nor closed"),
            Err(_) => return None,
        }
        let text = String::from_utf8_lossy(&read);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.replace("Content-Length", "content-length").replace("Retry-After", "retry-after");
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next());
        if body.len() >= length.unwrap().parse().unwrap() {
            return Some(head);
        }
    }
}

fn status(stream: &mut TcpStream, path: &str, key: &str) -> Option<u16> {
    ask(stream, path, key).map(|head| head[9..12].parse().unwrap())
}

/// Waits until the server closes the connection, with or without a response; returns whether it did.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[test]
fn idle_unauthenticated_connections_never_block_new_ones() {
    let server = Server::with(ApiConfig { connections_max: 40, connections_per_address_max: 40, ..at_once() });
    let mut known = connect(server.address);
    assert_eq!(status(&mut known, "/v1/users/nobody", API_KEY), Some(404));
    // Connections of every kind: silent, in the middle of a head, and with an answered request that needs no credential.
    let mut strangers: Vec<TcpStream> = Vec::new();
    for number in 0..200 {
        let mut stranger = connect(server.address);
        match number % 3 {
            0 => {}
            1 => stranger.write_all(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Le").unwrap(),
            _ => assert_eq!(status(&mut stranger, "/healthz", "no key"), Some(200)),
        }
        strangers.push(stranger);
    }
    assert!(strangers.iter_mut().take(100).all(is_closed), "the oldest were not sent away");
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(status(&mut connect(server.address), path, ""), Some(200), "{path}");
    }
    assert_eq!(status(&mut connect(server.address), "/v1/users/nobody", API_KEY), Some(404));
    assert_eq!(status(&mut known, "/v1/users/nobody", API_KEY), Some(404), "who is known lives on");
    let metrics = expect_status(&mut server.app(), "GET", "/metrics", "", 200);
    let evicted = metrics.lines().find_map(|line| line.strip_prefix("tidings_http_connections_evicted_total "));
    assert!(evicted.unwrap().parse::<u32>().unwrap() >= 100, "{evicted:?}");
}

#[test]
fn every_authenticated_operation_protects_its_connection_from_eviction() {
    let config =
        ApiConfig { connections_max: 9, connections_per_address_max: 9, connections_per_user_max: 9, ..at_once() };
    let server = Server::with(config).with_people();
    let token = token("alice");
    let question = |path: &str, body: &str, credential: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {credential}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let send = r#"{"conversation":"g","from":"alice","body":1}"#;
    let mut known: Vec<(String, TcpStream)> = [
        question("/v1/messages", send, API_KEY),
        question("/v1/messages", r#"{"conversation":"g","body":1}"#, &token),
        question("/v1/messages", "{", API_KEY),
        question("/v1/popups/decide", r#"{"user":"alice","placement":"home"}"#, API_KEY),
        question("/v1/popups/decide", r#"{"placement":"home"}"#, &token),
        question("/v1/messages/batch", r#"{"messages":[]}"#, &token),
        question("/v1/popups/trigger", "{", API_KEY),
    ]
    .into_iter()
    .map(|request| {
        let mut stream = connect(server.address);
        stream.write_all(request.as_bytes()).unwrap();
        let mut start = [0; 12];
        stream.read_exact(&mut start).unwrap();
        (String::from_utf8_lossy(&start).into_owned() + &request, stream)
    })
    .collect();
    for _ in 0..20 {
        assert_eq!(status(&mut connect(server.address), "/healthz", ""), Some(200));
    }
    for (request, stream) in &mut known {
        // The response may have arrived in full or in part.
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("HTTP/1.1 200"), "{request}: {rest}");
    }
}

#[test]
fn health_is_answered_while_all_connections_are_taken() {
    let server = Server::with(ApiConfig { connections_max: 4, connections_per_address_max: 4, ..at_once() });
    let mut known: Vec<TcpStream> = (0..4).map(|_| connect(server.address)).collect();
    for stream in &mut known {
        assert_eq!(status(stream, "/v1/users/nobody", API_KEY), Some(404));
    }
    // Idle connections in the reserve are closed for others, too.
    let mut idle: Vec<TcpStream> = (0..3 * CONNECTIONS_RESERVED).map(|_| connect(server.address)).collect();
    assert!(idle.iter_mut().take(CONNECTIONS_RESERVED).all(is_closed));
    for _ in 0..10 {
        for path in ["/healthz", "/readyz", "/metrics"] {
            let head = ask(&mut connect(server.address), path, "").unwrap();
            assert!(head.starts_with("HTTP/1.1 200") && head.contains("connection: close"), "{head}");
        }
        let head = ask(&mut connect(server.address), "/v1/users/nobody", &token("nobody")).unwrap();
        assert!(head.starts_with("HTTP/1.1 503") && head.contains("retry-after: "), "{head}");
        let head = ask(&mut connect(server.address), "/v1/users/nobody", API_KEY).unwrap();
        assert!(head.starts_with("HTTP/1.1 404") && head.contains("connection: close"), "{head}");
    }
    assert!(known.iter_mut().all(|stream| status(stream, "/v1/users/nobody", API_KEY) == Some(404)));
    drop(known.pop());
    // The place is free once the server has seen that the connection closed.
    let mut next = connect(server.address);
    while status(&mut next, "/v1/users/nobody", &token("nobody")) != Some(404) {
        next = connect(server.address);
    }
}

#[test]
fn a_health_listener_has_a_connection_limit_of_its_own() {
    let mut server = Server::with(ApiConfig { connections_max: 1, ..at_once() });
    let health = server.listen(ListenerConfig::open(LOCAL), server.service.for_health());
    let mut known = connect(server.address);
    assert_eq!(status(&mut known, "/v1/users/nobody", API_KEY), Some(404));
    let mut prober = connect(health);
    for path in ["/healthz", "/readyz", "/metrics", "/healthz"] {
        assert_eq!(status(&mut prober, path, ""), Some(200), "{path}");
    }
    for path in ["/v1/users/nobody", "/v1/connect", "/docs", "/"] {
        assert_eq!(status(&mut prober, path, API_KEY), Some(404), "{path}");
    }
    let mut question = connect(health);
    let body = r#"{"user":"alice","placement":"home"}"#;
    let head = "POST /v1/popups/decide HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    write!(question, "{head}Authorization: Bearer {API_KEY}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut start = [0; 12];
    question.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 404");
}

/// A header of PROXY protocol 2 for TCP over IPv4.
fn binary_header(client: Ipv4Addr) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    header.extend(client.octets());
    header.extend([127, 0, 0, 1, 0x12, 0x34, 0, 80]);
    header
}

/// The same of PROXY protocol 1.
fn line_header(client: Ipv4Addr) -> Vec<u8> {
    format!("PROXY TCP4 {client} 127.0.0.1 4660 80\r\n").into()
}

/// A connection that a load balancer makes for a client.
fn connect_for(balancer: SocketAddr, client: Ipv4Addr, header: fn(Ipv4Addr) -> Vec<u8>) -> TcpStream {
    let mut stream = connect(balancer);
    stream.write_all(&header(client)).unwrap();
    stream
}

#[test]
fn the_per_address_limit_counts_clients_behind_a_load_balancer() {
    for header in [binary_header, line_header] {
        check_limit_behind_a_load_balancer(header);
    }
}

fn check_limit_behind_a_load_balancer(header: fn(Ipv4Addr) -> Vec<u8>) {
    let config = ApiConfig { connections_max: 20, connections_per_address_max: 5, ..at_once() };
    let mut server = Server::with(config);
    let proxies = Some(Arc::new(TrustedProxies::new(vec!["127.0.0.0/8".parse().unwrap()])));
    let balanced = server.listen(ListenerConfig { proxies, ..ListenerConfig::open(LOCAL) }, server.service.clone());
    let [greedy, modest] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    let mut quiet = connect_for(balanced, modest, header);
    assert_eq!(status(&mut quiet, "/healthz", ""), Some(200));
    let mut crowd: Vec<TcpStream> = (0..15)
        .map(|_| {
            let mut one = connect_for(balanced, greedy, header);
            assert_eq!(status(&mut one, "/healthz", ""), Some(200));
            one
        })
        .collect();
    assert!(crowd.iter_mut().take(10).all(is_closed));
    assert_eq!(status(&mut quiet, "/healthz", ""), Some(200), "an older connection of another address was sent away");
    // When all connections of an address are an app server's, a further one gets health only, or shows an API key; other addresses are served.
    for one in crowd.iter_mut().skip(10) {
        assert_eq!(status(one, "/v1/users/nobody", API_KEY), Some(404));
    }
    assert_eq!(status(&mut connect_for(balanced, greedy, header), "/v1/users/nobody", &token("nobody")), Some(503));
    assert_eq!(status(&mut connect_for(balanced, greedy, header), "/v1/users/nobody", API_KEY), Some(404));
    assert_eq!(status(&mut connect_for(balanced, greedy, header), "/healthz", ""), Some(200));
    assert_eq!(status(&mut connect_for(balanced, modest, header), "/v1/users/nobody", API_KEY), Some(404));
}

#[test]
fn idle_connections_of_a_user_do_not_shut_out_an_app_server() {
    let server =
        Server::with(ApiConfig { connections_max: 20, connections_per_user_max: 20, ..at_once() }).with_people();
    let token = token("alice");
    let mut app = connect(server.address);
    assert_eq!(status(&mut app, "/v1/users/alice", API_KEY), Some(200));
    let mut idle: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut one = connect(server.address);
            assert_eq!(status(&mut one, "/v1/users/me", &token), Some(200));
            one
        })
        .collect();
    for _ in 0..5 {
        assert_eq!(status(&mut connect(server.address), "/v1/users/alice", API_KEY), Some(200));
    }
    assert_eq!(status(&mut app, "/v1/users/alice", API_KEY), Some(200), "the app server's own connection stays");
    assert!(idle.iter_mut().take(20).all(is_closed));
}

#[test]
fn a_user_has_a_share_of_the_connections() {
    let server =
        Server::with(ApiConfig { connections_max: 40, connections_per_user_max: 3, ..at_once() }).with_people();
    let [alice, bob] = ["alice", "bob"].map(token);
    let used = |token: &str| {
        let mut one = connect(server.address);
        assert_eq!(status(&mut one, "/v1/users/me", token), Some(200));
        one
    };
    let mut of_bob = used(&bob);
    let mut of_alice: Vec<TcpStream> = (0..5).map(|_| used(&alice)).collect();
    assert!(of_alice.drain(..2).all(|mut one| is_closed(&mut one)));
    assert_eq!(status(&mut of_bob, "/v1/users/me", &bob), Some(200));
    // Connections with a request are not closed: a further one is refused.
    for one in &mut of_alice {
        begin_request(one, &alice);
    }
    let mut further = connect(server.address);
    let deadline = std::time::Instant::now() + PATIENCE;
    while status(&mut further, "/v1/users/me", &alice) != Some(429) {
        // The server may not have begun to read one of the requests, whose connection it then closed.
        assert!(std::time::Instant::now() < deadline, "never refused");
        of_alice.push(std::mem::replace(&mut further, connect(server.address)));
        begin_request(of_alice.last_mut().unwrap(), &alice);
    }
    assert_eq!(status(&mut of_bob, "/v1/users/me", &bob), Some(200));
    assert_eq!(status(&mut connect(server.address), "/v1/users/alice", API_KEY), Some(200));
}

/// Sends a request whose body does not end yet.
fn begin_request(stream: &mut TcpStream, credential: &str) {
    let head = format!(
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {credential}\r\nContent-Length: 100\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).unwrap();
}

#[test]
fn an_app_server_is_served_while_users_keep_all_connections_busy() {
    let server = Server::with(ApiConfig { connections_max: 4, connections_per_user_max: 4, ..at_once() }).with_people();
    let alice = token("alice");
    let mut busy = Vec::new();
    // Until a user's token finds no room, not even by closing an idle connection.
    let refused = loop {
        let mut one = connect(server.address);
        match status(&mut one, "/v1/users/me", &alice) {
            Some(503) => break true,
            _ => begin_request(&mut one, &alice),
        }
        busy.push(one);
        assert!(busy.len() < 1_000);
    };
    assert!(refused);
    for _ in 0..3 {
        let mut app = connect(server.address);
        let head = ask(&mut app, "/v1/users/alice", API_KEY).unwrap();
        assert!(head.starts_with("HTTP/1.1 200") && head.to_lowercase().contains("connection: close"), "{head}");
        // A key that can be guessed is not tried out where nobody counts failures.
        for key in ["a-second-key", "another-key-of-the-app"] {
            assert_eq!(status(&mut connect(server.address), "/v1/users/alice", key), Some(503));
        }
    }
}

//! When connections run out, idle connections without an accepted credential are closed for new ones, and no others.

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
    ApiConfig { unauthenticated_idle_min: Duration::ZERO, ..ApiConfig::default() }
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
    let server =
        Server::with(ApiConfig { connections_max: 9, connections_per_address_max: 9, ..at_once() }).with_people();
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
        let head = ask(&mut connect(server.address), "/v1/users/nobody", API_KEY).unwrap();
        assert!(head.starts_with("HTTP/1.1 503") && head.contains("retry-after: "), "{head}");
    }
    assert!(known.iter_mut().all(|stream| status(stream, "/v1/users/nobody", API_KEY) == Some(404)));
    drop(known.pop());
    // The place is free once the server has seen that the connection closed.
    let mut next = connect(server.address);
    while status(&mut next, "/v1/users/nobody", API_KEY) != Some(404) {
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

/// A connection that a load balancer makes for a client, with a header of PROXY protocol 2 for TCP over IPv4.
fn connect_for(balancer: SocketAddr, client: Ipv4Addr) -> TcpStream {
    let mut stream = connect(balancer);
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    header.extend(client.octets());
    header.extend([127, 0, 0, 1, 0x12, 0x34, 0, 80]);
    stream.write_all(&header).unwrap();
    stream
}

#[test]
fn the_per_address_limit_counts_clients_behind_a_load_balancer() {
    let config = ApiConfig { connections_max: 20, connections_per_address_max: 5, ..at_once() };
    let mut server = Server::with(config);
    let proxies = Some(Arc::new(TrustedProxies::new(vec!["127.0.0.0/8".parse().unwrap()])));
    let balanced = server.listen(ListenerConfig { proxies, ..ListenerConfig::open(LOCAL) }, server.service.clone());
    let [greedy, modest] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    let mut quiet = connect_for(balanced, modest);
    assert_eq!(status(&mut quiet, "/healthz", ""), Some(200));
    let mut crowd: Vec<TcpStream> = (0..15)
        .map(|_| {
            let mut one = connect_for(balanced, greedy);
            assert_eq!(status(&mut one, "/healthz", ""), Some(200));
            one
        })
        .collect();
    assert!(crowd.iter_mut().take(10).all(is_closed));
    assert_eq!(status(&mut quiet, "/healthz", ""), Some(200), "an older connection of another address was sent away");
    // When all connections of an address are authenticated, a further one gets health only; other addresses are served.
    for one in crowd.iter_mut().skip(10) {
        assert_eq!(status(one, "/v1/users/nobody", API_KEY), Some(404));
    }
    assert_eq!(status(&mut connect_for(balanced, greedy), "/v1/users/nobody", API_KEY), Some(503));
    assert_eq!(status(&mut connect_for(balanced, greedy), "/healthz", ""), Some(200));
    assert_eq!(status(&mut connect_for(balanced, modest), "/v1/users/nobody", API_KEY), Some(404));
}

//! TLS in the poll loop: sessions, renewed certificates, unfinished handshakes.

use crate::devices::*;
use crate::support::*;
use rustls::{ClientConfig, HandshakeKind, client::Resumption};
use std::{
    fs,
    io::{Read, Write},
    sync::Arc,
    time::Duration,
};
use tidings_api::listener::{Listener, ListenerConfig};
use tidings_client::wire::{parse_response_head, put_upgrade};
use tidings_gateway::SessionConfig;
use tidings_listen::tls::{ReloadOutcome, alpn, server_config};
use tidings_protocol::{
    frames::{ClientFrame, Send, ServerFrame},
    http::ConversationKind,
    miop::Frame,
    ws::{Data, OpCode, put_client_frame, take_frame},
};
use tidings_testkit::MemoryStore;

/// Enough messages to fill the kernel's buffers for long, and those of rustls repeatedly.
const BIG: usize = 60_000;
/// The bytes that hyper reads first.
const HTTP_FIRST_READ_BYTES: usize = 8_192;
/// How many of them belong to the bind.
const BIND_BYTES_READ: usize = 20;

fn chat(device: &mut Device<Secure>, reference: u64, text: &str) {
    let send = ClientFrame::Send(Send {
        reference: Some(reference),
        conversation: Some("g".into()),
        to: None,
        message: message(text),
    });
    device.write(&Frame::Chat { json: &serde_json::to_vec(&send).unwrap() });
}

/// The texts of the next `count` entries.
fn texts(device: &mut Device<Secure>, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.len() < count {
        device.expect(|frame| {
            let Frame::Chat { json } = frame else { return };
            if let ServerFrame::Messages { entries, .. } = serde_json::from_slice(json).unwrap() {
                texts.extend(entries.iter().map(text_of));
            }
        });
    }
    texts
}

#[test]
fn a_device_speaks_miop_over_tls() {
    let server = Server::start();
    server.users(&["ann", "ben"]);
    server.group("g", &["ann", "ben"]);
    let identity = Identity::new();
    let client = identity.renew();
    let listener = RunningListener::open(&server, tls_listener_config(&identity.load(), alpn::MIOP));

    // The users are on different shards, so that one of the two connections moves after its bind.
    let mut ann = Device::bound(connect_securely(listener.address, &client).unwrap(), "ann");
    let mut ben = Device::bound(connect_securely(listener.address, &client).unwrap(), "ben");
    ann.is_alive();
    chat(&mut ann, 1, "hello");
    assert_eq!(texts(&mut ben, 1), ["hello"]);

    ben.write(&Frame::Unbind { reason: None });
    assert_eq!(ben.next(|frame| format!("{frame:?}")).unwrap(), None, "ended by a close_notify, or reading would fail");
}

#[test]
fn a_bind_sent_with_the_tls_handshake_is_answered_at_once() {
    let server = Server::start();
    server.users(&["ann", "ben"]);
    let identity = Identity::new();
    let client = identity.renew();
    let listener = RunningListener::open(&server, tls_listener_config(&identity.load(), alpn::MIOP));
    for user in ["ann", "ben"] {
        let name = "localhost".try_into().unwrap();
        let session = rustls::ClientConnection::new(client.clone(), name).unwrap();
        let mut device = Device::new(rustls::StreamOwned::new(session, connect(listener.address)));
        // Bind and heartbeat are written together with the end of the handshake; the heartbeat must move along to the user's shard.
        let mut first = Vec::new();
        let token = token(user);
        let bind = tidings_protocol::miop::Bind { version: 1, token: &token, device_id: "d1", ..Default::default() };
        Frame::Bind(bind).put(&mut first);
        Frame::Heartbeat { interval_s: None }.put(&mut first);
        device.stream.conn.writer().write_all(&first).unwrap();
        device.expect(|frame| assert!(matches!(frame, Frame::Bound(_)), "{frame:?}"));
        device.expect(|frame| assert!(matches!(frame, Frame::Heartbeat { .. }), "{frame:?}"));
    }
}

#[test]
fn large_frames_pass_both_ways_with_a_slow_reader() {
    let config = SessionConfig { session_buffer_bytes: 64 << 20, ..session_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["ann", "ben"]);
    server.group("g", &["ann", "ben"]);
    let identity = Identity::new();
    let client = identity.renew();
    let listener = RunningListener::open(&server, tls_listener_config(&identity.load(), alpn::MIOP));
    let mut ann = Device::bound(connect_securely(listener.address, &client).unwrap(), "ann");
    let mut ben = Device::bound(connect_securely(listener.address, &client).unwrap(), "ben");

    // Far more than the kernel buffers while ben does not read.
    const COUNT: usize = 300;
    let text = |n: usize| format!("{n}:{}", "x".repeat(BIG));
    for n in 0..COUNT {
        chat(&mut ann, n as u64, &text(n));
        // Ann reads her own copy, so that she is no slow reader.
        assert_eq!(texts(&mut ann, 1), [text(n)]);
    }
    for (n, got) in texts(&mut ben, COUNT).into_iter().enumerate() {
        assert!(got == text(n), "message {n} begins with {:?}", &got[..20]);
    }
    ben.is_alive();
}

#[test]
fn a_websocket_session_works_over_tls() {
    let server = Server::start();
    server.users(&["ann", "ben"]);
    server.conversation(ConversationKind::Group, "g", &["ann", "ben"]);
    let identity = Identity::new();
    let client = identity.renew();
    let tls = server_config(identity.load(), alpn::HTTP).unwrap();
    let guard = server.runtime.enter();
    let listener =
        Listener::bind(ListenerConfig { tls: Some(tls), ..ListenerConfig::open(LOCAL) }, server.service.clone());
    let listener = listener.unwrap();
    let address = listener.address();
    let stop = listener.start();
    drop(guard);

    for user in ["ann", "ben"] {
        let mut stream = connect_securely(address, &client).unwrap();
        // Upgrade and bind are in one record, and the first read of the HTTP listener ends within the bind: the rest is
        // decrypted already, and no event of the socket will announce it to the shard.
        let mut request = Vec::new();
        put_upgrade(&mut request, "/v1/connect");
        request.truncate(request.len() - 2);
        let left = HTTP_FIRST_READ_BYTES - BIND_BYTES_READ - request.len() - "x: \r\n\r\n".len();
        write!(request, "x: {}\r\n\r\n", "x".repeat(left)).unwrap();
        let bind = serde_json::to_vec(&bind_frame(&token(user), "d1", None)).unwrap();
        put_client_frame(&mut request, OpCode::Data(Data::Text), &bind, [1, 2, 3, 4]);
        stream.write_all(&request).unwrap();
        let mut buffer = Vec::new();
        let mut next = |stream: &mut Secure| {
            let mut part = [0; 4_096];
            let count = stream.read(&mut part).unwrap();
            assert_ne!(count, 0, "the connection ended");
            buffer.extend_from_slice(&part[..count]);
            let mut frames = Vec::new();
            if buffer.starts_with(b"HTTP") {
                let Some(head) = parse_response_head(&buffer).unwrap() else { return frames };
                assert_eq!(head.status, 101);
                buffer.drain(..head.body_start);
            }
            while let Some(frame) = take_frame(&mut buffer, false, 1 << 24).unwrap() {
                frames.push(serde_json::from_slice::<ServerFrame>(&buffer[frame.payload.clone()]).unwrap());
                buffer.drain(..frame.payload.end);
            }
            frames
        };
        let mut seen = Vec::new();
        while seen.is_empty() {
            seen.extend(next(&mut stream));
        }
        assert!(matches!(seen[0], ServerFrame::Bound(_)), "{seen:?}");
        server.say("ann", "g", user);
        while !seen.iter().any(|frame| matches!(frame, ServerFrame::Messages { .. })) {
            seen.extend(next(&mut stream));
        }
    }
    assert!(server.wait(stop.finish(PATIENCE)));
}

#[test]
fn a_new_certificate_is_served_to_new_connections_only() {
    let server = Server::start();
    server.users(&["ann"]);
    let identity = Identity::new();
    let old = identity.renew();
    let certificates = identity.load();
    let listener = RunningListener::open(&server, tls_listener_config(&certificates, alpn::MIOP));
    let mut lives_on = Device::bound(connect_securely(listener.address, &old).unwrap(), "ann");

    fs::write(identity.certificate_file(), "-----BEGIN CERTIFICATE-----\nnonsense").unwrap();
    assert!(matches!(certificates.reload_if_changed(), ReloadOutcome::Failed(_)));
    connect_securely(listener.address, &old).expect("a bad file leaves the old certificate");

    let new = identity.renew();
    assert!(matches!(certificates.reload_if_changed(), ReloadOutcome::Reloaded));
    connect_securely(listener.address, &new).expect("who trusts the new one comes in");
    // A new client without a ticket: resumption would need no certificate.
    let mut old = ClientConfig::clone(&old);
    old.resumption = Resumption::disabled();
    connect_securely(listener.address, &Arc::new(old)).expect_err("who trusts the old one alone does not");
    lives_on.is_alive();
}

#[test]
fn a_returning_client_resumes_tls_and_a_foreign_protocol_is_refused() {
    let server = Server::start();
    server.users(&["ann"]);
    let identity = Identity::new();
    let client = identity.renew();
    let listener = RunningListener::open(&server, tls_listener_config(&identity.load(), alpn::MIOP));

    let first = Device::bound(connect_securely(listener.address, &client).unwrap(), "ann");
    assert_eq!(first.stream.conn.handshake_kind(), Some(HandshakeKind::Full));
    drop(first);
    let again = connect_securely(listener.address, &client).unwrap();
    assert_eq!(again.conn.handshake_kind(), Some(HandshakeKind::Resumed));

    let asks = |protocol: &[u8]| {
        let mut config = ClientConfig::clone(&client);
        config.alpn_protocols = vec![protocol.to_vec()];
        connect_securely(listener.address, &Arc::new(config))
    };
    assert_eq!(asks(b"miop/1").unwrap().conn.alpn_protocol(), Some(&b"miop/1"[..]));
    assert!(asks(b"http/1.1").is_err());
}

#[test]
fn an_unfinished_handshake_is_closed_in_time() {
    let config = SessionConfig { bind_timeout: Duration::from_millis(200), ..session_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    let identity = Identity::new();
    identity.renew();
    let listener = RunningListener::open(&server, tls_listener_config(&identity.load(), alpn::MIOP));

    let mut silent = connect(listener.address);
    let mut slow = connect(listener.address);
    // The header of a handshake record of 512 bytes, without its payload.
    slow.write_all(&[22, 3, 1, 2, 0]).unwrap();
    let mut garbage = connect(listener.address);
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    for stream in [&mut silent, &mut slow, &mut garbage] {
        // At most an alert comes, then the end.
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.is_empty() || said[0] == 21, "{said:?}");
    }
    drop((silent, slow, garbage));
    until("all are gone", || server.session_server.connections() == 0);
}

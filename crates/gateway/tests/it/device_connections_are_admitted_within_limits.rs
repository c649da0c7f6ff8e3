//! Admission of device connections: the rate, the limits, and load balancers that send PROXY headers.

use crate::devices::*;
use crate::support::*;
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};
use tidings_api::listener::{Listener, ListenerConfig};
use tidings_gateway::{SessionConfig, miop_listener::MiopListenerConfig};
use tidings_listen::{Admission, Descriptors, admission::AdmissionConfig, proxy::TrustedProxies, tls::alpn};
use tidings_protocol::{error::ErrorCode, miop::Frame};
use tidings_testkit::MemoryStore;

fn open(admission: AdmissionConfig) -> MiopListenerConfig {
    MiopListenerConfig { admission: Arc::new(Admission::new(admission)), ..MiopListenerConfig::open(vec![LOCAL]) }
}

#[test]
fn connections_above_the_rate_wait_and_are_all_accepted() {
    let server = Server::start();
    server.users(&["ann"]);
    let listener =
        RunningListener::open(&server, open(AdmissionConfig { rate: 400, burst: 16, ..AdmissionConfig::default() }));
    // The kernel has connected all of them long before the rate admits them.
    let mut crowd: Vec<_> = (0..100).map(|_| Device::new(connect(listener.address))).collect();
    crowd.iter_mut().for_each(|device| device.write(&Frame::Heartbeat { interval_s: None }));
    for device in &mut crowd {
        // Each connection is read, though only to be told to bind first.
        device.expect(|frame| {
            let Frame::Error(error) = frame else { panic!("{frame:?}") };
            assert_eq!(error.code, ErrorCode::NotBound.as_str());
        });
    }
}

#[test]
fn unbound_devices_hold_up_others_until_the_bind_timeout() {
    let admission = || open(AdmissionConfig { unbound_max: 3, ..AdmissionConfig::default() });
    let server = Server::start();
    server.users(&["ann"]);
    let listener = RunningListener::open(&server, admission());
    let mut silent: Vec<_> = (0..8).map(|_| connect(listener.address)).collect();
    let mut late = Device::new(connect(listener.address));
    late.bind("ann");
    until("three are let in", || server.session_server.unbound() == 3);
    let pauses = &server.engine.metrics.accept_pauses;
    let before = pauses.get();
    until("the listener has looked whether there is room", || pauses.get() > before + 1);
    assert_eq!((server.session_server.unbound(), server.online("ann")), (3, 0));
    silent.clear();
    late.expect(|frame| assert!(matches!(frame, Frame::Bound(_)), "{frame:?}"));

    let config = SessionConfig { bind_timeout: Duration::from_millis(200), ..session_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["ann"]);
    let listener = RunningListener::open(&server, admission());
    // They send nothing: three at a time run into the bind time-out, close when told to, and make room.
    let silent = |mut stream: TcpStream| std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
    let silent: Vec<_> = (0..8).map(|_| silent(connect(listener.address))).collect();
    let mut is_bound = false;
    while !is_bound {
        let mut late = Device::new(connect(listener.address));
        late.bind("ann");
        is_bound = late.expect(|frame| match frame {
            Frame::Bound(_) => true,
            // This thread may be stopped for longer than the time-out between connect and bind.
            Frame::Error(error) if error.code == ErrorCode::BindTimeout.as_str() => false,
            other => panic!("{other:?}"),
        });
    }
    silent.into_iter().for_each(|thread| drop(thread.join()));
}

fn is_told_to_come_back(stream: TcpStream) {
    let mut device = Device::new(stream);
    device.expect(|frame| {
        let Frame::Error(error) = frame else { panic!("{frame:?}") };
        assert_eq!((error.code, error.retry, error.fatal), (ErrorCode::QueueFull.as_str(), true, true));
        assert!((1_000..10_000).contains(&error.retry_after_ms.unwrap()));
    });
    assert_eq!(device.next(|_| ()).unwrap(), None);
}

#[test]
fn above_the_limit_a_device_is_told_when_to_reconnect() {
    let config = SessionConfig { connections_max: 1, ..session_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["ann"]);
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    let mut first = Device::bound(connect(listener.address), "ann");
    is_told_to_come_back(connect(listener.address));
    first.is_alive();

    // A WebSocket is refused over HTTP, before its upgrade.
    let mut browser = connect(server.address);
    browser
        .write_all(b"GET /v1/connect HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n")
        .unwrap();
    browser.write_all(b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n").unwrap();
    let mut answer = String::new();
    browser.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: "), "{answer}");

    drop(first);
    until("there is room again", || server.session_server.has_room());
    Device::bound(connect(listener.address), "ann");
}

#[test]
fn reserved_descriptors_are_not_given_to_devices() {
    let server = Server::start();
    let config =
        MiopListenerConfig { descriptors: Arc::new(Descriptors::new(1, 0)), ..MiopListenerConfig::open(vec![LOCAL]) };
    let descriptors = config.descriptors.clone();
    let listener = RunningListener::open(&server, config);
    is_told_to_come_back(connect(listener.address));
    assert_eq!(descriptors.refused(), 1);
    assert_eq!(server.engine.metrics.descriptor_refusals.get(), 1);
}

/// A PROXY header from 192.0.2.1:56324 to 198.51.100.2:443.
const HEADER: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb";

fn behind(network: &str) -> Option<Arc<TrustedProxies>> {
    Some(Arc::new(TrustedProxies::new(vec![network.parse().unwrap()])))
}

#[test]
fn the_proxy_header_names_the_client() {
    let server = Server::start();
    server.users(&["ann"]);
    let identity = Identity::new();
    let client = identity.renew();
    let config = MiopListenerConfig { proxies: behind("127.0.0.0/8"), ..MiopListenerConfig::open(vec![LOCAL]) };
    let plain = RunningListener::open(&server, config.clone());
    let listen = tls_listener_config(&identity.load(), alpn::MIOP).listen;
    let secure = RunningListener::open(&server, MiopListenerConfig { listen, ..config });

    let mut stream = connect(plain.address);
    stream.write_all(HEADER).unwrap();
    Device::bound(stream, "ann").is_alive();
    let mut stream = connect(secure.address);
    stream.write_all(HEADER).unwrap();
    Device::bound(secure_over(stream, &client).unwrap(), "ann").is_alive();
}

#[test]
fn a_proxy_header_may_come_byte_by_byte_and_must_be_complete() {
    let server = Server::start();
    server.users(&["ann"]);
    let config = MiopListenerConfig { proxies: behind("127.0.0.0/8"), ..MiopListenerConfig::open(vec![LOCAL]) };
    let listener = RunningListener::open(&server, config);
    for cut in 1..HEADER.len() {
        let mut stream = connect(listener.address);
        stream.write_all(&HEADER[..cut]).unwrap();
        // Cut here, the connection is closed without an answer and never adopted.
        let ended = stream.try_clone().unwrap();
        ended.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "cut at {cut}");

        let mut stream = connect(listener.address);
        stream.write_all(&HEADER[..cut]).unwrap();
        stream.write_all(&HEADER[cut..]).unwrap();
        Device::bound(stream, "ann");
    }
    let mut bare = Device::new(connect(listener.address));
    bare.bind("ann");
    assert!(!matches!(bare.next(|_| ()), Ok(Some(()))), "a connection without a header was let in");
}

#[test]
fn a_connection_from_an_untrusted_address_is_closed() {
    let server = Server::start();
    let config = MiopListenerConfig { proxies: behind("10.0.0.0/8"), ..MiopListenerConfig::open(vec![LOCAL]) };
    let listener = RunningListener::open(&server, config);
    assert_eq!(connect(listener.address).read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(server.session_server.connections(), 0);
}

#[test]
fn http_behind_a_load_balancer_begins_with_a_proxy_header() {
    let server = Server::start();
    let guard = server.runtime.enter();
    let config = ListenerConfig { proxies: behind("127.0.0.0/8"), ..ListenerConfig::open(LOCAL) };
    let listener = Listener::bind(config, server.service.clone()).unwrap();
    let address = listener.address();
    let stop = listener.start();
    drop(guard);
    let answer = |head: &[u8]| {
        let mut stream = connect(address);
        let mut said = Vec::new();
        let _ = stream.write_all(&[head, b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"].concat());
        let _ = stream.read_to_end(&mut said);
        said
    };
    assert!(answer(HEADER).starts_with(b"HTTP/1.1 200"));
    assert_eq!(answer(b""), b"");
    assert!(server.wait(stop.finish(PATIENCE)));
}

//! What sessions do not read is in memory within one budget, of which a user has a share, whatever their connections speak.

use crate::devices::*;
use crate::support::*;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};
use tidings_client::session::Session;
use tidings_domain::metrics::Metrics;
use tidings_gateway::{SessionConfig, miop_listener::MiopListenerConfig};
use tidings_listen::{OutboundBudget, OutboundBudgetConfig};
use tidings_protocol::{
    frames::{Attention, Bind, ClientFrame, ServerFrame},
    http::HistoryQuery,
    limits::HISTORY_PAGE_BYTES_MAX,
    miop::{self, Frame, VERSION},
};
use tidings_testkit::MemoryStore;

const SHARE: usize = 3 * HISTORY_PAGE_BYTES_MAX;
/// The bound of one session. Higher than the share, so that sessions are closed for that.
const SESSION_BYTES_MAX: usize = 8 * HISTORY_PAGE_BYTES_MAX;

fn server(budget: &Arc<OutboundBudget>) -> Server {
    let server = Server::with(sessions(budget), Arc::new(MemoryStore::default()));
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let body = "x".repeat(60_000);
    for _ in 0..18 {
        server.say("bob", "g", &body);
    }
    server
}

fn sessions(budget: &Arc<OutboundBudget>) -> SessionConfig {
    let closing_timeout = Duration::from_millis(50);
    let (outbound_budget, session_buffer_bytes) = (budget.clone(), SESSION_BYTES_MAX);
    SessionConfig { outbound_budget, session_buffer_bytes, closing_timeout, ..session_config() }
}

fn budget() -> Arc<OutboundBudget> {
    OutboundBudget::new(OutboundBudgetConfig { bytes_max: 64 * HISTORY_PAGE_BYTES_MAX, user_bytes_max: SHARE })
}

const ASK: &str = r#"{"t":"history","ref":1,"conversation":"g","limit":500}"#;

/// Has sessions that read nothing ask for pages until many have been closed. `open` opens the session with this number, and answers
/// with what asks on it; asking on a session that was closed fails.
fn check(
    server: &Server,
    metrics: &Metrics,
    budget: &OutboundBudget,
    open: impl Fn(usize) -> Box<dyn FnMut() -> bool>,
) {
    let mut asking = Vec::new();
    let (mut opened, mut most) = (0, 0);
    while budget.closed() < 12 {
        if asking.len() < 6 {
            opened += 1;
            assert!(opened < 1_000, "sessions end for another reason");
            asking.push(open(opened));
        }
        asking.retain_mut(|ask| ask());
        most = most.max(budget.held());
    }
    // The only session of a user that keeps bytes is left its own bound, and the page with which it crosses that.
    let most_of_one = SESSION_BYTES_MAX + 2 * HISTORY_PAGE_BYTES_MAX;
    until("the memory of closed sessions is returned", || budget.held() <= most_of_one);
    println!(
        "{most} bytes at most, {} now, {SHARE} for a user; {} sessions were closed",
        budget.held(),
        budget.closed()
    );
    assert!(metrics.slow_readers_closed.get() > 0);
    // Another user's session, which reads, is served.
    let mut bob = server.open("bob", "phone");
    let query = HistoryQuery { limit: Some(500), ..HistoryQuery::default() };
    for _ in 0..20 {
        bob.write(&ClientFrame::History { reference: Some(1), conversation: "g".into(), query: query.clone() })
            .unwrap();
        let page = bob.next_where(PATIENCE, |frame| matches!(frame, ServerFrame::History { .. })).unwrap();
        assert!(page.is_some());
    }
    drop(asking);
    until("all memory is returned", || budget.held() == 0);
}

#[test]
fn websockets_of_a_user_that_read_nothing_hold_a_share() {
    let budget = budget();
    let server = server(&budget);
    check(&server, &server.engine.metrics, &budget, |number| {
        let mut session = Session::connect(server.address).unwrap();
        let kind = format!("kind-{number}");
        let bind = Bind {
            token: token("alice"),
            device_id: kind.clone(),
            device_kind: kind,
            app_version: None,
            cursor: None,
            push: false,
            attention: Attention::Foreground,
            compact: false,
        };
        session.write(&ClientFrame::Bind(bind)).unwrap();
        assert!(matches!(next(&mut session), ServerFrame::Bound(_)));
        Box::new(move || session.write_text(ASK.as_bytes()).is_ok())
    });
}

#[test]
fn devices_of_a_user_that_read_nothing_hold_a_share() {
    let budget = budget();
    let server = server(&budget);
    let listener = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    check(&server, &server.engine.metrics, &budget, |number| Box::new(ask_as_device(listener.address, number)));
}

#[test]
fn devices_behind_a_gateway_that_read_nothing_hold_a_share() {
    let (at_core, at_gateway) = (OutboundBudget::new(OutboundBudgetConfig::default()), budget());
    let server = server(&at_core);
    let config = sessions(&at_gateway);
    let relay = RunningRelay::open(&server, config);
    let open = |number| Box::new(ask_as_device(relay.address, number)) as Box<dyn FnMut() -> bool>;
    check(&server, &relay.metrics, &at_gateway, open);
}

fn ask_as_device(address: SocketAddr, number: usize) -> impl FnMut() -> bool {
    let mut device = Device::new(connect(address));
    // A user binds 120 new devices at once, and on a busy machine more sessions may come and go.
    let (token, kind) = (token("alice"), format!("kind-{}", number % 100));
    let bind = miop::Bind {
        version: VERSION,
        token: &token,
        device_id: &kind,
        device_kind: Some(&kind),
        ..miop::Bind::default()
    };
    device.write(&Frame::Bind(bind));
    device.expect(|frame| assert!(matches!(frame, Frame::Bound(_)), "{frame:?}"));
    move || device.stream.write_all(&Frame::Chat { json: ASK.as_bytes() }.to_bytes()).is_ok()
}

#[test]
fn event_streams_of_a_user_that_read_nothing_hold_a_share() {
    let budget = budget();
    let server = server(&budget);
    check(&server, &server.engine.metrics, &budget, |number| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let path = format!("/v1/stream?device_id=d{number}&device_kind=kind{number}");
        let token = token("alice");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n").unwrap();
        let mut read = String::new();
        let field = |read: &str, name: &str| {
            let rest = read.split(&format!("\"{name}\":\"")).nth(1)?;
            rest.split_once('"').map(|(value, _)| value.to_owned())
        };
        while field(&read, "secret").is_none() {
            let mut part = [0; 4_096];
            let count = stream.read(&mut part).unwrap();
            assert!(count > 0, "{read}");
            read.push_str(&String::from_utf8_lossy(&part[..count]));
        }
        let (id, secret) = (field(&read, "stream").unwrap(), field(&read, "secret").unwrap());
        let mut http = tidings_client::http::HttpClient::new(server.address, secret);
        let mut posted = 0;
        Box::new(move || {
            let _open = &stream;
            posted += 1;
            let path = format!("/v1/stream/{id}?number={posted}");
            http.exchange_text("POST", &path, "application/x-ndjson", ASK.as_bytes()).is_ok_and(|a| a.status == 202)
        })
    });
}

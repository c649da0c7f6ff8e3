//! `/v1/connect`: the handshake is checked, then the gateway gets the socket with all bytes that were read.

use crate::support::*;
use tidings_client::session::Session;
use tidings_protocol::{frames::ServerFrame, http::SendRequest};

#[test]
fn a_message_over_http_reaches_a_bound_session() {
    let server = Server::start().with_people();
    let mut session = Session::open(server.address, &token("bob"), "d1", None).unwrap();
    let request: SendRequest =
        serde_json::from_str(r#"{"conversation":"g","from":"alice","body":{"text":"hello"}}"#).unwrap();
    let receipt = server.app().send(&request).unwrap();
    let frame = session.next_where(PATIENCE, |frame| matches!(frame, ServerFrame::Messages { .. }));
    let Some(ServerFrame::Messages { entries, .. }) = frame.unwrap() else { panic!("nothing came") };
    assert_eq!((entries[0].seq, entries[0].body.get()), (receipt.seq, r#"{"text":"hello"}"#));
    let online = expect_status(&mut server.app(), "POST", "/v1/presence/query", r#"{"users":["bob"]}"#, 200);
    assert!(online.contains(r#""online":true"#), "{online}");
}

#[test]
fn requests_that_are_no_handshake_are_refused() {
    let server = Server::start();
    let mut app = server.app();
    check_refused(&mut app, "GET", "/v1/connect", "", "malformed", "Upgrade");
    check_refused(&mut app, "POST", "/v1/connect", "{}", "method_not_allowed", "GET");
    server.engine.begin_drain();
    assert!(Session::connect(server.address).is_err());
}

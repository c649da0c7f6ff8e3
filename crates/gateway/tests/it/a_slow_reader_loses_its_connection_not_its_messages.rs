//! A client that does not read costs a bounded buffer, then its connection, and never a message.

use crate::support::*;
use std::sync::Arc;
use tidings_client::ClientError;
use tidings_gateway::SessionConfig;
use tidings_protocol::{
    frames::{ClientFrame, ServerFrame},
    http::HistoryQuery,
};
use tidings_testkit::MemoryStore;

const BODY_BYTES: usize = 30_000;

#[test]
fn a_slow_reader_loses_its_connection_not_its_messages() {
    let config = SessionConfig { session_buffer_bytes: 256 * 1024, ..session_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["alice", "bob", "carol"]);
    server.group("g", &["alice", "bob", "carol"]);
    let mut slow = server.open("bob", "phone");
    let mut quick = server.open("carol", "phone");
    let body = "x".repeat(BODY_BYTES);
    let mut sent = 0;
    // The kernel's buffers hold some megabytes first.
    while server.engine.metrics.slow_readers_closed.get() == 0 {
        server.say("alice", "g", &format!("{sent} {body}"));
        assert!(text_of(&entries(&mut quick, 1)[0]).starts_with(&format!("{sent} ")));
        sent += 1;
        assert!(sent < 5_000, "the slow reader was never let go");
    }
    until("the slow session is no more", || server.online("bob") == 0);
    assert_eq!(server.online("carol"), 1);
    server.say("alice", "g", "after");
    sent += 1;
    entries(&mut quick, 1);

    // Frames that had reached the kernel arrive intact; the close frame follows them.
    let mut inbox = Inbox::default();
    let mut refusal = None;
    let close = loop {
        match slow.next(PATIENCE) {
            Ok(Some(ServerFrame::Messages { entries, .. })) => inbox.take(&entries),
            Ok(Some(ServerFrame::Error { code, .. })) => refusal = Some(code.as_str()),
            Ok(Some(ServerFrame::Conversation { .. })) => {}
            Ok(other) => panic!("{other:?}"),
            Err(ClientError::Closed { code, .. }) => break code,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((refusal, close), (Some("slow_reader"), 4008));
    println!("closed after {sent} messages of {BODY_BYTES} bytes, of which {} were read", inbox.count());

    let mut again = server.resume("bob", "phone", slow.cursor.as_ref().unwrap());
    for range in bound(&again).resume.ranges.clone() {
        let mut next_seq = range.from_seq;
        while next_seq <= range.to_seq {
            let query =
                HistoryQuery { from_seq: Some(next_seq), to_seq: Some(range.to_seq), ..HistoryQuery::default() };
            again.write(&ClientFrame::History { reference: None, conversation: "g".into(), query }).unwrap();
            let Some(ServerFrame::History { page, .. }) =
                again.next_where(PATIENCE, |f| matches!(f, ServerFrame::History { .. })).unwrap()
            else {
                panic!("no page")
            };
            inbox.take(&page.entries);
            next_seq += page.entries.len() as u64;
        }
    }
    let mut again = server.resume("bob", "laptop", slow.cursor.as_ref().unwrap());
    inbox.take(&entries(&mut again, sent - inbox.count()));
    assert_eq!(inbox.0["g"].last().unwrap(), "after");
}

#[test]
fn unread_answers_close_the_session() {
    let config = SessionConfig { session_buffer_bytes: 64 * 1024, ..session_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["alice"]);
    let mut session = server.open("alice", "phone");
    let ping = br#"{"t":"ping"}"#;
    // The server stops reading from a closed session: a write error here means the end, too.
    let mut written = 0_u64;
    while server.engine.metrics.slow_readers_closed.get() == 0 && session.write_text(ping).is_ok() {
        written += 1;
        assert!(written < 20_000_000, "the session was never let go");
    }
    until("the session is no more", || server.online("alice") == 0);
}

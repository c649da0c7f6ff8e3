//! A session that follows `next` or `previous` until it is absent gets every entry once, and the cursors of HTTP and of
//! sessions are interchangeable.

use crate::support::*;
use tidings_client::{http::HttpClient, session::Session};
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    http::{HistoryPage, HistoryQuery},
};

#[track_caller]
fn page(session: &mut Session, query: HistoryQuery) -> HistoryPage {
    session.write(&ClientFrame::History { reference: Some(9), conversation: "g".into(), query }).unwrap();
    loop {
        match next(session) {
            ServerFrame::History { reference: Some(9), page, .. } => return page,
            ServerFrame::Messages { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn at(cursor: Option<String>, limit: usize) -> HistoryQuery {
    HistoryQuery { cursor, limit: Some(limit), ..HistoryQuery::default() }
}

fn seqs(page: &HistoryPage) -> Vec<u64> {
    page.entries.iter().map(|entry| entry.seq).collect()
}

#[test]
fn pages_in_both_directions_have_every_entry_once_while_messages_come() {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    for _ in 0..12 {
        server.say("bob", "g", "before");
    }
    let mut session = server.open("alice", "phone");
    for limit in [1, 4, 5, 100] {
        let mut now = page(&mut session, at(None, limit));
        let newest = now.conversation_last_seq;
        let mut all = seqs(&now);
        while let Some(cursor) = now.previous {
            server.say("bob", "g", "meanwhile");
            now = page(&mut session, at(Some(cursor), limit));
            all.splice(0..0, seqs(&now));
        }
        assert_eq!(all, (1..=newest).collect::<Vec<_>>(), "backward by {limit}");

        let mut now =
            page(&mut session, HistoryQuery { from_seq: Some(1), limit: Some(limit), ..HistoryQuery::default() });
        server.say("bob", "g", "meanwhile");
        let mut all = seqs(&now);
        while let Some(cursor) = now.next {
            now = page(&mut session, at(Some(cursor), limit));
            all.extend(seqs(&now));
        }
        // Messages that came after the last page are not part of it.
        let newest = if limit == 100 { now.conversation_last_seq } else { newest_of(&server) };
        assert_eq!(all, (1..=newest).collect::<Vec<_>>(), "forward by {limit}");
    }
}

fn newest_of(server: &Server) -> u64 {
    let mut http = HttpClient::new(server.address, token("alice"));
    http.history("g", &at(None, 1)).unwrap().conversation_last_seq
}

#[test]
fn cursors_of_http_and_sessions_are_interchangeable() {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    for _ in 0..6 {
        server.say("bob", "g", "hello");
    }
    let mut session = server.open("alice", "phone");
    let mut http = HttpClient::new(server.address, token("alice"));
    let last = page(&mut session, at(None, 2));
    let before = http.history("g", &at(last.previous.clone(), 2)).unwrap();
    let again = page(&mut session, at(before.next, 2));
    assert_eq!(seqs(&again), seqs(&last));

    session
        .write(&ClientFrame::History { reference: Some(3), conversation: "g".into(), query: at(Some("51".into()), 2) })
        .unwrap();
    let ServerFrame::Error { reference: Some(3), code: ErrorCode::CursorInvalid, .. } = next(&mut session) else {
        panic!("a cursor of nobody was taken")
    };
}

//! A session may edit, recall and end more messages, one after another, than it may have requests under way; what it
//! changes without waiting for answers is changed in its order.

use crate::support::*;
use std::sync::Arc;
use tidings_client::session::Session;
use tidings_domain::model::Actor;
use tidings_gateway::SessionConfig;
use tidings_protocol::{frames::ServerFrame, http::HistoryQuery};
use tidings_testkit::MemoryStore;

const REQUESTS: u8 = 2;

/// Writes a frame with this `ref` and returns the `seq` in its answer; 0 if the answer is `ok`.
#[track_caller]
fn ask(session: &mut Session, reference: u64, rest: &str) -> u64 {
    session.write_text(format!(r#"{{"ref":{reference},"conversation":"g",{rest}}}"#).as_bytes()).unwrap();
    let answer = session.next_where(PATIENCE, |frame| {
        matches!(frame, ServerFrame::Sent { .. } | ServerFrame::Ok { .. } | ServerFrame::Error { .. })
    });
    match answer.unwrap().unwrap() {
        ServerFrame::Sent { results } => {
            assert_eq!(results[0].reference, Some(reference));
            results[0].receipt.seq
        }
        ServerFrame::Ok { reference: answered } => {
            assert_eq!(answered, reference);
            0
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_change_that_was_submitted_is_no_longer_under_way() {
    let config = SessionConfig { session_requests: REQUESTS, ..session_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["alice"]);
    server.group("g", &["alice"]);
    let mut alice = server.open("alice", "phone");
    let rounds = u64::from(REQUESTS) + 3;
    for round in 0..rounds {
        let message = ask(&mut alice, 10 * round, r#""t":"send","body":"m""#);
        let changes = [
            format!(r#""t":"edit","seq":{message},"body":"n""#),
            format!(r#""t":"react","seq":{message},"key":"x""#),
            format!(r#""t":"recall","seq":{message}"#),
        ];
        for (number, change) in (1..).zip(&changes) {
            ask(&mut alice, 10 * round + number, change);
        }
        let stream = ask(&mut alice, 10 * round + 7, r#""t":"stream_begin","body":{"text":""}"#);
        ask(&mut alice, 10 * round + 8, &format!(r#""t":"stream_end","seq":{stream}"#));
    }
    assert_eq!(ask(&mut alice, 1_000, r#""t":"read","seq":1"#), 0);
}

/// A client need not wait for the answer to an edit before it sends the next.
#[test]
fn of_changes_in_one_go_the_last_one_stays() {
    let server = Server::start();
    server.users(&["alice"]);
    server.group("g", &["alice"]);
    let mut alice = server.open("alice", "phone");
    let message = ask(&mut alice, 1, r#""t":"send","body":"m""#);
    for round in 0..40 {
        let changes = [
            format!(r#"{{"t":"edit","ref":2,"conversation":"g","seq":{message},"body":"first"}}"#),
            format!(r#"{{"t":"edit","ref":3,"conversation":"g","seq":{message},"body":"last {round}"}}"#),
            format!(r#"{{"t":"react","ref":4,"conversation":"g","seq":{message},"key":"x"}}"#),
            format!(r#"{{"t":"react","ref":5,"conversation":"g","seq":{message},"key":"x","remove":true}}"#),
            r#"{"t":"preferences","ref":6,"conversation":"g","pinned":true}"#.to_owned(),
            r#"{"t":"preferences","ref":7,"conversation":"g","pinned":false}"#.to_owned(),
        ];
        for change in &changes {
            alice.write_text(change.as_bytes()).unwrap();
        }
        let mut answered = 0;
        while answered < changes.len() {
            match any_next(&mut alice) {
                ServerFrame::Sent { results } => answered += results.len(),
                ServerFrame::Ok { .. } => answered += 1,
                error @ ServerFrame::Error { .. } => panic!("{error:?}"),
                _ => {}
            }
        }
        let user = server.engine.directory.require_user("alice").unwrap();
        let query = HistoryQuery { from_seq: Some(message), limit: Some(1), ..HistoryQuery::default() };
        let page = server.engine.history(&Actor::User(user.clone()), "g", &query).unwrap();
        let message = &page.entries[0];
        assert_eq!(message.body.get(), format!("\"last {round}\""));
        assert_eq!(message.reactions, [], "round {round}");
        let group = server.engine.directory.require_conversation("g").unwrap();
        assert_eq!(server.engine.list_view(&user, &group).unwrap().pinned_at, None, "round {round}");
    }
}

//! Over sessions, too, an id stands for one request: a retry answers with the first result on every node, and another request is
//! refused.

use crate::support::*;
use serde_json::{Value, json};
use std::sync::Arc;
use tidings_client::session::Session;
use tidings_protocol::{error::ErrorCode, frames::ServerFrame};
use tidings_testkit::{LocalBus, MemoryStore};

/// The `seq` of what a frame did, and whether that was done before; or why it was refused.
fn ask(session: &mut Session, mut frame: Value) -> Result<(u64, bool), ErrorCode> {
    frame["ref"] = json!(7);
    session.write_text(frame.to_string().as_bytes()).unwrap();
    loop {
        match next(session) {
            ServerFrame::Sent { results } => return Ok((results[0].receipt.seq, results[0].receipt.duplicate)),
            ServerFrame::Error { reference: Some(7), code, .. } => return Err(code),
            _ => {}
        }
    }
}

#[test]
fn a_retry_on_another_node_answers_and_another_request_is_refused() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let nodes: Vec<Server> = ["a", "b"].iter().map(|name| Server::node(name, &store, &bus)).collect();
    let all_known = |server: &Server| server.engine.cluster.as_ref().unwrap().nodes.all().len() == 2;
    until("the nodes know each other", || nodes.iter().all(all_known));
    nodes[0].users(&["alice", "bob"]);
    nodes[0].group("g", &["alice", "bob"]);
    let mut sessions: Vec<Session> =
        nodes.iter().zip(["phone", "laptop"]).map(|(node, device)| node.open("alice", device)).collect();
    let g = |mut frame: Value| {
        frame["conversation"] = json!("g");
        frame
    };
    let requests = [
        g(json!({"t": "send", "client_msg_id": "s", "body": {"a": 1}})),
        g(json!({"t": "stream_begin", "client_msg_id": "b", "body": {"text": ""}})),
        g(json!({"t": "edit", "client_msg_id": "e", "seq": 1, "body": 2})),
        g(json!({"t": "recall", "client_msg_id": "r", "seq": 1})),
    ];
    for (seq, request) in (1..).zip(&requests) {
        assert_eq!(ask(&mut sessions[0], request.clone()), Ok((seq, false)), "{request}");
        for session in &mut sessions {
            assert_eq!(ask(session, request.clone()), Ok((seq, true)), "{request}");
        }
        let others = [
            json!({"t": "send", "body": "another"}),
            json!({"t": "stream_begin", "body": {"text": "another"}}),
            json!({"t": "edit", "seq": 1, "body": "another"}),
            json!({"t": "recall", "seq": 2}),
        ];
        for mut other in others.map(g) {
            other["client_msg_id"] = request["client_msg_id"].clone();
            for session in &mut sessions {
                let refused = ask(session, other.clone());
                assert_eq!(refused, Err(ErrorCode::ClientMsgIdReused), "{other} after {request}");
            }
        }
    }
    // Retries of one who has left, and of one who never was a member.
    nodes[1].change_members("g", &[], &["alice"]);
    let mut stranger = nodes[0].open("alice", "phone");
    assert_eq!(ask(&mut stranger, requests[0].clone()), Ok((1, true)));
    assert_eq!(
        ask(&mut stranger, g(json!({"t": "send", "client_msg_id": "n", "body": 1}))),
        Err(ErrorCode::NotAMember)
    );
}

//! A full queue refuses sends before the commit: no refused send is stored, every accepted one is.

use crate::support::*;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Instant,
};
use tidings_domain::model::Actor;
use tidings_engine::config::EngineConfig;
use tidings_protocol::{error::ErrorCode, http::*};

/// Sends while a commit is held up. Checks how many sends are accepted and stored, and that `names` refuses the others.
fn check(config: EngineConfig, accepted_at_least: usize, accepted_at_most: usize, names: &str) {
    let store = Arc::new(Troubled::default());
    let world = World::new(config, store.clone());
    // Each user sends once, so that the queue is full before the share of one sender is.
    let members: Vec<String> = (0..60).map(|n| format!("u{n}")).collect();
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    world.users(&members);
    world.conversation(ConversationKind::Group, "g", &members);
    let before = store.close_gate();
    let send = |text: String| {
        let engine = world.engine.clone();
        Box::pin(async move { engine.send(&Actor::App, message(&format!("u{text}"), "g", &text)).await })
    };
    // A send is accepted or refused when it is first polled; an accepted one is then pending until its commit.
    let first_poll = |send: Pin<&mut dyn Future<Output = _>>| send.poll(&mut Context::from_waker(Waker::noop()));
    let mut first = send("0".into());
    assert!(first_poll(first.as_mut()).is_pending());
    let (mut texts, mut sends, mut refused) = (vec!["0".to_owned()], vec![first], 0);
    store.wait_for_commit();
    // One commit is at the gate; from here on only queues take sends.
    for n in 1..60 {
        let mut sent = send(n.to_string());
        match first_poll(sent.as_mut()) {
            Poll::Ready(answer) => {
                let refusal = answer.unwrap_err();
                assert_eq!(refusal.code, ErrorCode::QueueFull, "{refusal}");
                assert!(refusal.retry_after_ms.is_some_and(|ms| ms > 0) && refusal.detail.contains(names), "{refusal}");
                refused += 1;
            }
            Poll::Pending => {
                assert_eq!(refused, 0, "accepted after a refusal although nothing was freed");
                texts.push(n.to_string());
                sends.push(sent);
            }
        }
    }
    assert!((accepted_at_least..=accepted_at_most).contains(&texts.len()), "{} accepted", texts.len());
    drop(before);
    let mut seqs: Vec<u64> = sends.into_iter().map(|send| world.wait(send).unwrap().seq).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=texts.len() as u64).collect::<Vec<_>>());
    let query = HistoryQuery { limit: Some(500), ..HistoryQuery::default() };
    let page = world.engine.history(&Actor::App, "g", &query).unwrap();
    let mut stored: Vec<String> = page.entries.iter().map(|e| e.client_msg_id.clone().unwrap()).collect();
    let by_number = |text: &String| text.parse::<u32>().unwrap();
    stored.sort_by_key(by_number);
    texts.sort_by_key(by_number);
    assert_eq!(stored, texts, "exactly the accepted sends");
    // A refused sender tries again until it is accepted: stage 1 may still hold some slots.
    let deadline = Instant::now() + PATIENCE;
    let receipt = loop {
        world.take_fanouts();
        match world.wait(world.engine.send(&Actor::App, message("u59", "g", "59"))) {
            Ok(receipt) => break receipt,
            Err(refusal) => assert!(refusal.code == ErrorCode::QueueFull && Instant::now() < deadline, "{refusal}"),
        }
    };
    assert_eq!((receipt.seq, receipt.duplicate), (seqs.len() as u64 + 1, false));
}

#[test]
fn a_full_commit_queue_refuses_sends() {
    let config = EngineConfig { commit_queue: 8, lane_queue: 1_000, ..EngineConfig::default() };
    check(config, 9, 9, "the group commit queue is full");
}

#[test]
fn a_full_lane_refuses_sends() {
    let config = EngineConfig { commit_queue: 1_000, lane_queue: 12, ..EngineConfig::default() };
    check(config, 12, 12, "the group lane is full");
}

#[test]
fn a_full_lane_does_not_refuse_sends_of_other_lanes() {
    let config = EngineConfig { lane_queue: 4, shard_queue: 1, ..EngineConfig::default() };
    let world = World::new(config, Arc::new(Troubled::default()));
    world.users(&["alice", "bob"]);
    world.conversation(ConversationKind::Group, "g", &["alice", "bob"]);
    world.conversation(ConversationKind::Official, "news", &["alice", "bob"]);
    // No shard takes anything: the group lane fills behind its fan-outs.
    let mut stored = 0;
    let refusal = loop {
        match world.wait(world.engine.send(&Actor::App, message("alice", "g", &stored.to_string()))) {
            Ok(receipt) => {
                stored += 1;
                assert_eq!(receipt.seq, stored);
            }
            Err(refusal) => break refusal,
        }
        assert!(stored < 1_000, "the lane never filled");
    };
    assert_eq!(refusal.code, ErrorCode::QueueFull);
    assert!(refusal.detail.contains("group"), "{refusal}");
    for (id, text) in [("alice~bob", "d"), ("news", "n")] {
        assert_eq!(world.wait(world.engine.send(&Actor::App, message("alice", id, text))).unwrap().seq, 1);
    }
    assert_eq!(world.engine.conversation_details(&Actor::App, "g").unwrap().last_seq, stored);
}

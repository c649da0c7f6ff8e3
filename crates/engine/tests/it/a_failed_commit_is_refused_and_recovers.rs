//! While the disk is full, sends are refused with a clear error and reads go on. The node recovers by itself.

use crate::support::*;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::model::Actor;
use tidings_engine::config::EngineConfig;
use tidings_protocol::{error::ErrorCode, http::*};

#[test]
fn a_failed_commit_is_refused_and_recovers() {
    let store = Arc::new(Troubled::default());
    let world = World::new(EngineConfig::default(), store.clone());
    let engine = &world.engine;
    world.users(&["alice", "bob"]);
    world.conversation(ConversationKind::Group, "g", &["alice", "bob"]);
    let send = |text: &str| world.wait(engine.send(&Actor::App, message("alice", "g", text)));
    assert_eq!(send("before").unwrap().seq, 1);
    // Popups are read from the store by a thread of their own.
    engine.popups.flush().unwrap();
    assert_eq!(engine.readiness(), Ok(()));

    // For good, since the node tries the store by itself, too.
    store.fail(usize::MAX);
    for attempt in 1..=2 {
        let refusal = send("lost?").unwrap_err();
        assert_eq!(refusal.code, ErrorCode::StoreUnavailable);
        assert!(refusal.detail.contains("disk is full") && refusal.retry_after_ms.is_some(), "{refusal}");
        assert_eq!(engine.metrics.commit_failures.get(), attempt);
        assert!(engine.readiness().is_err_and(|why| why.contains("commits have failed")));
    }
    // Other changes fail in the same way; reads go on.
    let change =
        ChangeMembers { remove: vec!["bob".into()], ..ChangeMembers { add: vec![], remove: vec![], role: None } };
    let refusal = world.wait(engine.change_members(&Actor::App, "g", change)).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::StoreUnavailable);
    let page = engine.history(&Actor::User(world.user("bob")), "g", &HistoryQuery::default()).unwrap();
    assert_eq!((page.entries.len(), page.last_seq), (1, 1));

    store.fail(0);
    // The disk has room again: the same sends succeed, once, without a hole.
    let retried = send("lost?").unwrap();
    assert_eq!((retried.seq, retried.duplicate), (2, false));
    assert_eq!(engine.readiness(), Ok(()));
    assert!(send("lost?").unwrap().duplicate);
    assert_eq!(engine.conversation_details(&Actor::App, "g").unwrap().member_count, 2);
}

#[test]
fn all_proposals_of_a_failed_batch_are_refused_and_none_is_stored() {
    let store = Arc::new(Troubled::default());
    let world = World::new(EngineConfig::default(), store.clone());
    world.users(&["alice", "bob"]);
    world.conversation(ConversationKind::Group, "g", &["alice", "bob"]);
    let gate = store.close_gate();
    let batch: Vec<SendRequest> = (0..100).map(|n| message("alice", "g", &n.to_string())).collect();
    let engine = world.engine.clone();
    let sent = world.spawn(async move { engine.send_batch(&Actor::App, batch).await });
    store.wait_for_commit();
    // The hundred are spread over some commits, of which the first fails.
    store.fail(1);
    drop(gate);
    let results = world.wait(sent).unwrap().unwrap();
    let stored: Vec<u64> = results.iter().filter_map(|r| r.as_ref().ok()).map(|r| r.seq).collect();
    let refused = results.iter().filter_map(|r| r.as_ref().err()).collect::<Vec<_>>();
    assert!(!refused.is_empty() && refused.iter().all(|r| r.code == ErrorCode::StoreUnavailable));
    assert_eq!(stored, (1..=stored.len() as u64).collect::<Vec<_>>());
    assert_eq!(world.engine.conversation_details(&Actor::App, "g").unwrap().last_seq, stored.len() as u64);
}

#[test]
fn proposals_are_refused_while_the_store_does_not_answer() {
    let store = Arc::new(Troubled::default());
    let config = EngineConfig { commit_time_max: Duration::from_millis(1), ..EngineConfig::default() };
    let world = World::new(config, store.clone());
    world.users(&["alice", "bob"]);
    world.conversation(ConversationKind::Group, "g", &["alice", "bob"]);
    world.engine.popups.flush().unwrap();
    let gate = store.close_gate();
    let engine = world.engine.clone();
    let first = world.spawn(async move { engine.send(&Actor::App, message("alice", "g", "first")).await });
    store.wait_for_commit();
    let deadline = Instant::now() + PATIENCE;
    while world.engine.readiness().is_ok() {
        assert!(Instant::now() < deadline, "the node is ready although the commit does not end");
        std::thread::yield_now();
    }
    let refusal = world.wait(world.engine.send(&Actor::App, message("alice", "g", "second"))).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::StoreUnavailable);
    assert!(refusal.detail.contains("has not answered") && refusal.retry_after_ms.is_some(), "{refusal}");
    drop(gate);
    assert_eq!(world.wait(first).unwrap().unwrap().seq, 1, "the first send is committed after all");
    assert_eq!(world.wait(world.engine.send(&Actor::App, message("alice", "g", "third"))).unwrap().seq, 2);
    assert_eq!(world.engine.readiness(), Ok(()));
}

#[test]
fn an_idle_node_becomes_ready_again_when_its_store_recovers() {
    let store = Arc::new(Troubled::default());
    let world = World::new(EngineConfig::default(), store.clone());
    world.users(&["alice", "bob"]);
    world.conversation(ConversationKind::Group, "g", &["alice", "bob"]);
    store.fail(usize::MAX);
    world.wait(world.engine.send(&Actor::App, message("alice", "g", "refused"))).unwrap_err();
    assert!(world.engine.readiness().is_err());
    store.fail(0);
    let deadline = Instant::now() + PATIENCE;
    while world.engine.readiness().is_err() {
        assert!(Instant::now() < deadline, "a node that is not ready gets no sends, and never becomes ready again");
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
    assert_eq!(world.engine.conversation_details(&Actor::App, "g").unwrap().last_seq, 0);
}

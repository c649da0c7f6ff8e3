//! A send to a new user opens a direct conversation first; a send that is refused at once opens none.

use crate::support::*;
use std::{sync::Arc, time::Instant};
use tidings_domain::model::Actor;
use tidings_engine::{config::EngineConfig, engine::send::SendTarget, shards::SessionReply};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    ids::direct_id,
};
use tidings_testkit::MemoryStore;

const NOBODY_WAITS: SessionReply = SessionReply { shard: 0, session: 0, reference: None };

fn with_people(config: EngineConfig) -> World {
    let world = World::new(config, Arc::new(MemoryStore::default()));
    world.users(&["alice", "bob", "carol"]);
    world
}

fn to(user: &str) -> SendRequest {
    SendRequest {
        conversation: None,
        to: Some(user.into()),
        from: None,
        client_msg_id: None,
        ..message("alice", "", "hello")
    }
}

/// Sends through a session.
fn submit(world: &World, user: &str) -> Result<(), Refusal> {
    let (.., content) = to(user).into_parts();
    world.engine.submit(&Actor::User(world.user("alice")), SendTarget::User(user), content, NOBODY_WAITS)
}

fn has_direct(world: &World, id: &str) -> bool {
    world.engine.directory.conversation_by_id(id).unwrap().is_some()
}

#[test]
fn a_send_to_a_draining_server_opens_no_conversation() {
    let world = with_people(EngineConfig::default());
    world.engine.begin_drain();
    let sent = world.wait(world.engine.send(&Actor::User(world.user("alice")), to("bob")));
    assert_eq!(sent.unwrap_err().code, ErrorCode::Draining);
    assert_eq!(submit(&world, "bob").unwrap_err().code, ErrorCode::Draining);
    assert!(!has_direct(&world, "alice~bob"));
}

#[test]
fn a_rate_limited_send_opens_no_conversation() {
    const BURST: usize = 4;
    let config = EngineConfig { sends_per_second: 1, sends_burst: BURST as u32, ..EngineConfig::default() };
    let world = with_people(config);
    let others: Vec<String> = (0..50).map(|n| format!("user{n}")).collect();
    world.users(&others.iter().map(String::as_str).collect::<Vec<_>>());
    let (alice, begun) = (world.user("alice"), Instant::now());
    let mut refused = Vec::new();
    for other in &others {
        refused.extend(world.wait(world.engine.send(&Actor::User(alice.clone()), to(other))).err());
    }
    let opened = others.iter().filter(|other| has_direct(&world, &direct_id("alice", other))).count();
    // The message and the opening of its conversation are one.
    let most = BURST + begun.elapsed().as_secs() as usize + 1;
    assert!((1..=most).contains(&opened), "{opened} were opened");
    assert!(refused.iter().all(|refusal| refusal.code == ErrorCode::RateLimited), "{refused:?}");
    // A session's send, which would have to open one first.
    let begun = Instant::now();
    let submitted = (0..50).filter(|_| submit(&world, "carol").is_ok()).count();
    let most = 1 + begun.elapsed().as_secs() as usize;
    assert!(submitted <= most, "{submitted} of 50 were let through");
    // The app's own sends have no such limit.
    for other in ["bob", "carol"] {
        let from_app = SendRequest { from: Some("alice".into()), ..to(other) };
        world.wait(world.engine.send(&Actor::App, from_app)).unwrap();
    }
}

/// The conversations in the lists of these users.
fn listed(world: &World, users: [&str; 2]) -> Vec<String> {
    let list = |user| world.engine.conversations(&world.user(user), None, None, 0).unwrap().conversations;
    users.into_iter().flat_map(list).map(|line| line.id).collect()
}

#[test]
fn a_first_message_that_is_not_stored_leaves_no_trace_and_the_next_one_opens() {
    let world = with_people(EngineConfig::default());
    let alice = Actor::User(world.user("alice"));
    let say = |request| world.wait(world.engine.send(&alice, request)).map(|receipt: SendReceipt| receipt.seq);
    let refused = |request: SendRequest| {
        let code = say(request.clone()).unwrap_err().code;
        let from_app = SendRequest { from: Some("alice".into()), ..request.clone() };
        let as_app = world.wait(world.engine.send_batch(&Actor::App, vec![from_app])).unwrap();
        assert_eq!(as_app[0].as_ref().unwrap_err().code, code);
        let body = serde_json::value::to_raw_value(&serde_json::json!({ "text": "" })).unwrap();
        let grown = match request.body.get().len() {
            ..100 => SendRequest { body, ..request },
            _ => request,
        };
        assert_eq!(world.wait(world.engine.begin_stream(&alice, grown)).unwrap_err().code, code);
        assert!(!has_direct(&world, "alice~carol"), "{code:?}");
        assert_eq!(listed(&world, ["alice", "carol"]), ["alice~bob"], "{code:?}");
        code
    };
    assert_eq!(say(SendRequest { client_msg_id: Some("1".into()), ..to("bob") }), Ok(1));
    let large = serde_json::value::to_raw_value(&"x".repeat(70_000)).unwrap();
    assert_eq!(refused(SendRequest { body: large, ..to("carol") }), ErrorCode::LimitExceeded);
    assert_eq!(refused(SendRequest { reply_to: Some(7), ..to("carol") }), ErrorCode::NotFound);
    assert_eq!(refused(SendRequest { reply_to: Some(0), ..to("carol") }), ErrorCode::InvalidField);
    // The first one that is stored, with those behind it that came before its commit.
    let batch = [Some(3), None, Some(1), None].map(|reply_to| SendRequest { reply_to, ..to("carol") });
    let results = world.wait(world.engine.send_batch(&alice, batch.to_vec())).unwrap();
    let seqs: Vec<_> = results.into_iter().map(|result| result.map(|sent| sent.seq).map_err(|no| no.code)).collect();
    assert_eq!(seqs, [Err(ErrorCode::NotFound), Ok(1), Ok(2), Ok(3)]);
    assert_eq!(listed(&world, ["bob", "carol"]), ["alice~bob", "alice~carol"]);
}

#[test]
fn messages_that_open_the_same_conversation_at_once_stay_in_order() {
    let world = with_people(EngineConfig::default());
    let texts: Vec<String> = (0..50).map(|n| format!("\"{n}\"")).collect();
    for text in &texts {
        let body = serde_json::value::RawValue::from_string(text.clone()).unwrap();
        let (.., content) = SendRequest { body, ..to("bob") }.into_parts();
        let sender = Actor::User(world.user("alice"));
        world.engine.submit(&sender, SendTarget::User("bob"), content, NOBODY_WAITS).unwrap();
    }
    world.wait(world.engine.flush());
    let page = world.engine.history(&Actor::App, "alice~bob", &HistoryQuery { limit: Some(100), ..Default::default() });
    let read: Vec<_> = page.unwrap().entries.iter().map(|entry| entry.body.get().to_owned()).collect();
    assert_eq!(read, texts);
}

//! A send to a new user opens a direct conversation first; a send that is refused at once opens none.

use crate::support::*;
use std::{sync::Arc, time::Instant};
use tidings_domain::model::Actor;
use tidings_engine::{
    config::EngineConfig,
    engine::send::{SendTarget, SessionReply, SubmitOutcome},
};
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
fn submit(world: &World, user: &str) -> Result<SubmitOutcome, Refusal> {
    let (.., content) = to(user).into_parts();
    world.engine.submit(&world.user("alice"), SendTarget::User(user), content, NOBODY_WAITS)
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
    // Opening a conversation costs as much as the message in it.
    let most = (BURST + begun.elapsed().as_secs() as usize + 1).div_ceil(2);
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

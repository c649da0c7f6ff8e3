//! While one of two users blocks the other, neither writes to the other, and the blocked one does not learn of the other's presence.
//! In groups a block changes nothing but notifications.

use crate::support::*;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tidings_domain::{gates::Gate, model::Actor};
use tidings_engine::config::EngineConfig;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    limits::BLOCKS_MAX,
};
use tidings_testkit::{LocalBus, MemoryStore};

fn world() -> World {
    let world = World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, Arc::new(MemoryStore::default()));
    world.users(&["ann", "ben", "cat"]);
    world.conversation(ConversationKind::Group, "g", &["ann", "ben", "cat"]);
    world
}

fn block(world: &World, user: &str, other: &str, blocked: bool) {
    world.wait(world.engine.set_block(&Actor::App, &world.user(user), other, blocked)).unwrap();
    world.settle();
}

fn direct(from: &str, to: &str, text: &str) -> SendRequest {
    SendRequest { conversation: None, to: Some(to.into()), ..message(from, "", text) }
}

fn as_user(world: &World, user: &str) -> Actor {
    Actor::User(world.user(user))
}

fn code<T>(result: Result<T, Refusal>) -> Option<ErrorCode> {
    result.err().map(|refusal| refusal.code)
}

#[test]
fn neither_writes_to_the_other_while_one_blocks() {
    let world = world();
    let engine = &world.engine;
    world.wait(engine.send(&Actor::App, direct("ann", "ben", "one"))).unwrap();
    let from_ben = world.wait(engine.send(&Actor::App, direct("ben", "ann", "two"))).unwrap();
    block(&world, "ann", "ben", true);
    // A list brings many conversations into memory at once.
    engine.conversations(&world.user("ben"), None, None, 0).unwrap();
    for (user, other, says) in
        [("ben", "ann", "this user cannot be reached"), ("ann", "ben", "you block this user: end the block first")]
    {
        for actor in [Actor::App, as_user(&world, user)] {
            let refusal = world.wait(engine.send(&actor, direct(user, other, "no"))).unwrap_err();
            assert_eq!((refusal.code, refusal.detail.as_str()), (ErrorCode::Blocked, says));
            let body = || serde_json::value::to_raw_value(&json!({ "text": "" })).unwrap();
            let grows = SendRequest { body: body(), ..direct(user, other, "grows") };
            assert_eq!(code(world.wait(engine.begin_stream(&actor, grows))), Some(ErrorCode::Blocked));
            let edit = serde_json::from_value(json!({ "body": 1, "from": user })).unwrap();
            let edited = world.wait(engine.edit_message(&actor, "ann~ben", if user == "ann" { 1 } else { 2 }, edit));
            assert_eq!(code(edited), Some(ErrorCode::Blocked), "{user}");
            let reacted = world.wait(engine.react(&actor, Some(user.into()), "ann~ben", 1, "+", true));
            assert_eq!(code(reacted), Some(ErrorCode::Blocked));
        }
        assert_eq!(code(engine.typing(&world.user(user), "ann~ben")), Some(ErrorCode::Blocked));
        let receipts = engine.conversation_receipts(&as_user(&world, user), "ann~ben");
        assert_eq!(code(receipts), Some(ErrorCode::Forbidden), "no receipts are shown");
        world.wait(engine.send(&as_user(&world, user), message(user, "g", &format!("{user}-in-g")))).unwrap();
    }
    // What was written before may be taken back; history stays; a retry is answered.
    world.wait(engine.recall_message(&as_user(&world, "ben"), "ann~ben", from_ben.seq, None, None)).unwrap();
    assert_eq!(engine.history(&as_user(&world, "ben"), "ann~ben", &HistoryQuery::default()).unwrap().entries.len(), 3);
    let again = world.wait(engine.send(&Actor::App, direct("ann", "ben", "one"))).unwrap();
    assert!(again.duplicate);
    block(&world, "ann", "ben", false);
    world.wait(engine.send(&Actor::App, direct("ben", "ann", "again"))).unwrap();
}

#[test]
fn a_blocked_user_opens_no_conversation_with_who_blocks_and_adds_nobody_who_does() {
    let world = world();
    let engine = &world.engine;
    block(&world, "ann", "ben", true);
    let first = world.wait(engine.send(&as_user(&world, "ben"), direct("ben", "ann", "hello")));
    assert_eq!(code(first), Some(ErrorCode::Blocked));
    let new = serde_json::from_value(json!({ "kind": "direct", "members": ["ben", "ann"] })).unwrap();
    assert_eq!(code(world.wait(engine.create_conversation(&as_user(&world, "ben"), new))), Some(ErrorCode::Blocked));
    let group = json!({ "kind": "group", "id": "h", "members": ["ann"] });
    let group = || serde_json::from_value(group.clone()).unwrap();
    assert_eq!(
        code(world.wait(engine.create_conversation(&as_user(&world, "ben"), group()))),
        Some(ErrorCode::Blocked)
    );
    assert!(engine.conversation_details(&Actor::App, "ann~ben").is_err());
    world.wait(engine.send(&as_user(&world, "cat"), direct("cat", "ann", "hello"))).unwrap();
    block(&world, "ann", "ben", false);
    world.wait(engine.send(&as_user(&world, "ben"), direct("ben", "ann", "hello"))).unwrap();
}

#[test]
fn a_blocked_user_does_not_see_the_presence_of_who_blocks() {
    let world = world();
    world.wait(world.engine.send(&Actor::App, direct("ann", "ben", "one"))).unwrap();
    let watch = |user: &str, other: &str, group: Option<&str>, session| {
        world.engine.watch_presence(&world.user(user), group, &[other.to_owned()], (0, session), Some(1))
    };
    for (session, group) in [(1, None), (2, Some("g"))] {
        watch("ben", "ann", group, session).unwrap();
        watch("ann", "ben", group, 10 + session).unwrap();
        watch("cat", "ann", Some("g"), 20 + session).unwrap();
    }
    assert_eq!(world.engine.presence.watches(), 6);
    block(&world, "ann", "ben", true);
    // Those of the blocked user end.
    until(|| world.engine.presence.watches() == 4);
    for (session, group) in [(1, None), (2, Some("g"))] {
        assert_eq!(code(watch("ben", "ann", group, session)), Some(ErrorCode::Forbidden));
        watch("ann", "ben", group, 10 + session).unwrap();
    }
    block(&world, "ann", "ben", false);
    watch("ben", "ann", None, 1).unwrap();
}

#[test]
fn mentions_by_a_blocked_user_are_neither_listed_nor_counted() {
    let world = world();
    let mention =
        |from: &str, to: &str| SendRequest { mentions: vec![to.into()], ..message(from, "g", &format!("{from}-{to}")) };
    for (from, to) in [("ben", "ann"), ("cat", "ann"), ("ben", "cat")] {
        world.wait(world.engine.send(&Actor::App, mention(from, to))).unwrap();
    }
    let by = |user: &str| -> Vec<String> {
        let page = world.engine.mentions(&world.user(user), None, 0).unwrap();
        page.entries.into_iter().filter_map(|entry| entry.from).collect()
    };
    let counted = |user: &str| {
        let total = world.engine.unread_total(&world.user(user)).unwrap();
        (total.unread, total.mentions)
    };
    assert_eq!((counted("ann"), counted("cat")), ((3, 2), (2, 1)));
    block(&world, "ann", "ben", true);
    assert_eq!((by("ann"), by("cat")), (vec!["cat".to_owned()], vec!["ben".to_owned()]));
    assert_eq!((counted("ann"), counted("cat")), ((3, 1), (2, 1)));
    block(&world, "ann", "ben", false);
    assert_eq!(by("ann"), ["cat", "ben"]);
    assert_eq!(counted("ann"), (3, 2));
}

#[test]
fn the_list_is_the_users_own_bounded_and_paged() {
    let world = world();
    let ann = world.user("ann");
    assert_eq!(code(world.wait(world.engine.set_block(&Actor::App, &ann, "ann", true))), Some(ErrorCode::InvalidField));
    assert_eq!(code(world.wait(world.engine.set_block(&Actor::App, &ann, "nobody", true))), Some(ErrorCode::NotFound));
    block(&world, "ann", "cat", true);
    block(&world, "ann", "ben", true);
    block(&world, "ann", "ben", true);
    let page = world.engine.blocks(&world.user("ann"), None, 1).unwrap();
    assert_eq!(page.users, [BlockedUser { user: "ben".into(), at: NOON }]);
    let rest = world.engine.blocks(&ann, page.next.as_deref(), 1).unwrap();
    assert_eq!(rest.users, [BlockedUser { user: "cat".into(), at: NOON }]);
    assert_eq!(world.engine.blocks(&world.user("ben"), None, 0).unwrap(), BlockPage { users: vec![], next: None });
    assert_eq!(BLOCKS_MAX, 10_000);
    // A user pays for it as for a send.
    let config = EngineConfig { sends_per_second: 1, sends_burst: 3, ..EngineConfig::default() };
    let slow = World::new(config, Arc::new(MemoryStore::default()));
    slow.users(&["ann", "ben"]);
    let actor = as_user(&slow, "ann");
    let tries = (0..1_000).map(|n| slow.wait(slow.engine.set_block(&actor, &slow.user("ann"), "ben", n % 2 == 0)));
    assert!(tries.into_iter().any(|result| code(result) == Some(ErrorCode::RateLimited)));
}

#[test]
fn a_block_is_known_on_every_node() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let node = |name: &str| World::node_on(name, &store, store.clone(), Arc::new(bus.clone()), Duration::from_secs(60));
    let (here, there) = (node("a"), node("b"));
    until(|| [&here, &there].iter().all(|node| node.engine.gates.is_open(Gate::UserSafety)));
    here.users(&["ann", "ben"]);
    // Both have the conversation in memory.
    look_around(&here.engine);
    here.wait(here.engine.send(&Actor::App, direct("ann", "ben", "one"))).unwrap();
    let try_there = |text: &str| code(there.wait(there.engine.send(&Actor::App, direct("ben", "ann", text))));
    assert_eq!(try_there("two"), None);
    block(&here, "ann", "ben", true);
    until(|| try_there(&format!("n{}", rand::random::<u64>())) == Some(ErrorCode::Blocked));
    block(&here, "ann", "ben", false);
    until(|| try_there(&format!("n{}", rand::random::<u64>())).is_none());
}

#[track_caller]
fn until(holds: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(std::time::Instant::now() < end, "it never holds");
        std::thread::yield_now();
    }
}

/// Who may write to whom by the document alone: whoever neither blocks the other nor is blocked. `BLOCKS_SEED` replays a run.
#[test]
fn random_blocks_agree_with_a_slow_evaluator() {
    const PEOPLE: [&str; 4] = ["ann", "ben", "cat", "dan"];
    let seed = std::env::var("BLOCKS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("BLOCKS_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let world = World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, Arc::new(MemoryStore::default()));
    world.users(&PEOPLE);
    let mut blocks: BTreeSet<(&str, &str)> = BTreeSet::new();
    for number in 0..600 {
        let (user, other) = (*PEOPLE.choose(&mut random).unwrap(), *PEOPLE.choose(&mut random).unwrap());
        if user == other {
            continue;
        }
        if random.random_bool(0.3) {
            let blocked = random.random_bool(0.5);
            block(&world, user, other, blocked);
            if blocked {
                blocks.insert((user, other))
            } else {
                blocks.remove(&(user, other))
            };
            continue;
        }
        let sent = world.wait(world.engine.send(&Actor::App, direct(user, other, &format!("m{number}"))));
        let may = !blocks.contains(&(user, other)) && !blocks.contains(&(other, user));
        assert_eq!(code(sent), (!may).then_some(ErrorCode::Blocked), "{user} to {other}: {blocks:?}");
        let shown: Vec<String> =
            world.engine.blocks(&world.user(user), None, 0).unwrap().users.into_iter().map(|b| b.user).collect();
        let expected: Vec<&str> = PEOPLE.into_iter().filter(|other| blocks.contains(&(user, *other))).collect();
        assert_eq!(shown, expected);
        world.take_fanouts();
    }
}

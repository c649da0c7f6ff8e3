//! A user is erased: the job survives whoever works on it, the feed tells it, a legal hold refuses or stops it, and the id is free.

use crate::support::*;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tidings_domain::{erasure::Person, model::Actor, store::Store};
use tidings_engine::{config::EngineConfig, engine::erasure::leftovers::leftovers};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const DAY_MS: u64 = 86_400_000;

fn world_on(store: Arc<dyn Store>) -> World {
    let config = EngineConfig { shards: 1, events_keep: Duration::from_millis(DAY_MS), ..EngineConfig::default() };
    World::new(config, store)
}

fn peopled(store: Arc<dyn Store>) -> World {
    let world = world_on(store);
    world.users(&["ann", "ben", "cat"]);
    world.conversation(ConversationKind::Group, "g", &["ann", "ben"]);
    world.conversation(ConversationKind::Group, "held", &["ben", "cat"]);
    say(&world, message("ann", "g", "hello"));
    say(&world, SendRequest { mentions: vec!["ann".into()], ..message("ben", "g", "to-ann") });
    say(&world, SendRequest { conversation: None, to: Some("ben".into()), ..message("ann", "", "in-private") });
    world.wait(world.engine.react(&Actor::App, Some("ann".into()), "g", 2, "+", true)).unwrap();
    world.settle();
    world
}

fn say(world: &World, request: SendRequest) -> u64 {
    world.wait(world.engine.send(&Actor::App, request)).unwrap().seq
}

fn work(world: &World) {
    while world.engine.work_on_erasures(&|_| Ok(0)).unwrap() {}
    world.settle();
}

fn code<T>(result: Result<T, Refusal>) -> Option<ErrorCode> {
    result.err().map(|refusal| refusal.code)
}

fn events(world: &World, types: &str) -> Vec<Value> {
    world.settle();
    let query = EventsQuery { types: Some(types.into()), limit: Some(1_000), ..EventsQuery::default() };
    let request = world.engine.events_request(&query).unwrap();
    let page = serde_json::to_value(world.engine.read_events(&request).unwrap().page).unwrap();
    page["events"].as_array().unwrap().clone()
}

fn embedded(folder: &tempfile::TempDir) -> Arc<dyn Store> {
    let options = EmbeddedOptions { event_log: true, ..EmbeddedOptions::new(folder.path().join("data")) };
    let store = EmbeddedStore::open(options).unwrap();
    store.open_gates().unwrap();
    Arc::new(store)
}

fn erased_everywhere(world: &World) {
    let engine = &world.engine;
    let begun = engine.erase_user("ann", ErasedMessages::Remove, "op").unwrap();
    assert_eq!((begun.state, begun.user.as_deref()), (ErasureState::Running, Some("ann")));
    world.settle();
    assert_eq!(code(world.wait(engine.send(&Actor::App, message("ann", "g", "more")))), Some(ErrorCode::UserSuspended));
    assert!(!leftovers(&*engine.store, "ann").unwrap().is_clean());
    work(world);

    let done = engine.erasure("ann").unwrap();
    assert_eq!((done.state, done.recalled, &done.id), (ErasureState::Done, 2, &begun.id), "{done:?}");
    let left = leftovers(&*engine.store, "ann").unwrap();
    assert!(left.is_clean() && left.id_kept_for_feed, "{left:?}");
    // The id is nobody's; the alias is suspended for good.
    assert_eq!(code(engine.user_profile("ann", true)), Some(ErrorCode::NotFound));
    assert_eq!(code(engine.history(&Actor::App, "ann~ben", &HistoryQuery::default())), Some(ErrorCode::NotFound));
    let direct = tidings_protocol::ids::direct_id("ben", &done.alias);
    for (conversation, from) in [("g", [Some(&*done.alias), Some("ben")]), (&*direct, [Some(&*done.alias), None])] {
        let history = engine.history(&Actor::App, conversation, &HistoryQuery::default()).unwrap();
        let senders: Vec<_> =
            history.entries.iter().filter(|e| e.kind.name() == "message").map(|e| e.from.clone()).collect();
        assert_eq!(senders.iter().map(Option::as_deref).collect::<Vec<_>>(), &from[..senders.len()]);
        let shown = serde_json::to_string(&history).unwrap();
        assert!(!shown.contains("\"ann\"") && !shown.contains("hello") && !shown.contains("in-private"), "{shown}");
    }
    // Again: the first erasure is answered.
    assert_eq!(engine.erase_user("ann", ErasedMessages::Keep, "op").unwrap(), done);

    // The feed tells it, and nothing else of the user.
    let told = events(world, "user_erased");
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["data"], json!({"user": "ann", "alias": done.alias, "messages": "remove", "erasure": done.id}));
    assert!(events(world, "entry.").iter().all(|event| !event.to_string().contains("\"ann\"")));
    // Once the feed keeps the event no more, the id is forgotten.
    world.clock.set(NOON + 2 * DAY_MS);
    work(world);
    let forgotten = engine.erasure("ann").unwrap();
    assert_eq!((forgotten.user, forgotten.state), (None, ErasureState::Done));
    assert!(events(world, "user_erased").is_empty());
    assert_eq!(engine.erasures(None, 0).unwrap().erasures.len(), 1);

    // The id is free: who gets it is another user, without anything of the former one.
    world.users(&["ann"]);
    let anew = engine.user_profile("ann", true).unwrap();
    assert!(anew.suspension.is_none() && anew.created_at == NOON + 2 * DAY_MS);
    say(world, SendRequest { conversation: None, to: Some("ben".into()), ..message("ann", "", "hello-again") });
    let history = engine.history(&Actor::App, "ann~ben", &HistoryQuery::default()).unwrap();
    assert_eq!(history.entries.len(), 1);
}

#[test]
fn a_user_is_erased_from_a_store_in_memory() {
    erased_everywhere(&peopled(Arc::new(MemoryStore::shared())));
}

#[test]
fn a_user_is_erased_from_a_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    erased_everywhere(&peopled(embedded(&folder)));
}

#[test]
fn an_erasure_goes_on_wherever_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let world = peopled(embedded(&folder));
    world.engine.erase_user("ann", ErasedMessages::Keep, "op").unwrap();
    drop(world);
    let mut parts = 0;
    loop {
        // Each part in a process of its own.
        let world = world_on(embedded(&folder));
        parts += 1;
        if !world.engine.work_on_erasures(&|_| Ok(0)).unwrap() {
            assert!(leftovers(&*world.engine.store, "ann").unwrap().is_clean());
            let history = world.engine.history(&Actor::App, "g", &HistoryQuery::default()).unwrap();
            assert!(serde_json::to_string(&history).unwrap().contains("hello"), "messages are kept");
            break;
        }
    }
    assert!(parts > 5, "{parts}");
}

#[test]
fn a_legal_hold_refuses_an_erasure_and_stops_one_that_runs() {
    let world = peopled(Arc::new(MemoryStore::shared()));
    let engine = &world.engine;
    let hold = |id: &str| world.wait(engine.set_legal_hold(id, SetLegalHold { name: "case 1".into() }, "judge"));
    hold("held").unwrap();
    let refusal = engine.erase_user("cat", ErasedMessages::Remove, "op").unwrap_err();
    assert_eq!(refusal.code, ErrorCode::LegalHold);
    assert!(refusal.detail.contains("held") && refusal.detail.contains("case 1"), "{refusal}");
    assert_eq!(engine.legal_holds(None, 0).unwrap().legal_holds.len(), 1);
    assert_eq!(code(engine.legal_hold("g")), Some(ErrorCode::NotFound));

    // The user who has left is kept, too.
    let leave = ChangeMembers { add: vec![], remove: vec!["cat".into()], role: None };
    world.wait(engine.change_members(&Actor::App, "held", leave)).unwrap();
    assert_eq!(code(engine.erase_user("cat", ErasedMessages::Remove, "op")), Some(ErrorCode::LegalHold));
    world.wait(engine.lift_legal_hold("held")).unwrap();
    assert_eq!(code(engine.erase_user("nobody", ErasedMessages::Remove, "op")), Some(ErrorCode::NotFound));

    // A hold that comes later stops the erasure at the conversation; others go on.
    engine.erase_user("ann", ErasedMessages::Remove, "op").unwrap();
    hold("g").unwrap();
    engine.erase_user("cat", ErasedMessages::Remove, "op").unwrap();
    work(&world);
    let held = engine.erasure("ann").unwrap();
    assert_eq!((held.state, held.held_by.as_deref()), (ErasureState::Held, Some("g")));
    assert_eq!(engine.erasure("cat").unwrap().state, ErasureState::Done);
    let history = engine.history(&Actor::App, "g", &HistoryQuery::default()).unwrap();
    assert!(serde_json::to_string(&history).unwrap().contains("hello"));
    world.wait(engine.lift_legal_hold("g")).unwrap();
    work(&world);
    assert_eq!(engine.erasure("ann").unwrap().state, ErasureState::Done);
    assert!(leftovers(&*engine.store, "ann").unwrap().is_clean());
}

#[test]
fn an_erasure_that_fails_lets_the_others_go_on() {
    // Whichever of the two is first.
    for (stuck, other) in [("ann", "cat"), ("cat", "ann")] {
        let world = peopled(Arc::new(MemoryStore::shared()));
        let engine = &world.engine;
        let no = world.user(stuck).no;
        for user in [stuck, other] {
            engine.erase_user(user, ErasedMessages::Remove, "op").unwrap();
        }
        world.settle();
        let away = Refusal::new(ErrorCode::StoreUnavailable, "away");
        let redact = |person: &Person| if person.no == no { Err(away.clone()) } else { Ok(0) };
        let failed = loop {
            match engine.work_on_erasures(&redact) {
                Ok(true) => {}
                outcome => break code(outcome),
            }
        };
        assert_eq!(failed, Some(ErrorCode::StoreUnavailable));
        assert_eq!(engine.erasure(other).unwrap().state, ErasureState::Done);
        let waits = engine.erasure(stuck).unwrap();
        assert_eq!((waits.state, waits.last_error.as_deref()), (ErasureState::Running, Some("store_unavailable")));
        work(&world);
        assert_eq!(engine.erasure(stuck).unwrap().state, ErasureState::Done);
    }
}

//! A conversation keeps its messages for a time of its own, gives up its newest one where asked, and keeps all under a legal hold.

use crate::support::*;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    model::{Actor, ConversationKind},
    store::Retention,
};
use tidings_engine::config::EngineConfig;
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_store::{EmbeddedOptions, EmbeddedStore};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn update(world: &World, actor: &Actor, id: &str, retention: Value) -> Result<ConversationDetails, ErrorCode> {
    let update = serde_json::from_value(json!({ "retention": retention })).unwrap();
    world.wait(world.engine.update_conversation(actor, id, update)).map_err(|refusal| refusal.code)
}

/// The kinds and bodies that are left.
fn left(world: &World, id: &str) -> Vec<(String, String)> {
    let entries = world.engine.history(&Actor::App, id, &HistoryQuery::default()).unwrap().entries;
    let shown = |entry: &tidings_protocol::entry::Entry| (entry.kind.name().to_owned(), entry.body.get().to_owned());
    entries.iter().filter(|entry| entry.kind.name() != "conversation_change").map(shown).collect()
}

#[test]
fn by_age_with_the_newest_where_asked_and_never_in_a_legal_hold() {
    let folder = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { disk_reserve_bytes: 0, ..EmbeddedOptions::new(folder.path()) };
    let store = Arc::new(EmbeddedStore::open(options).unwrap());
    let world = World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, store);
    world.users(&["ada", "ben"]);
    for room in ["plain", "short", "held"] {
        world.conversation(ConversationKind::Group, room, &["ada", "ben"]);
    }
    let short = json!({ "keep_days": 3, "removes_newest": true });
    let details = update(&world, &Actor::App, "short", short).unwrap();
    assert_eq!(details.retention, Some(ConversationRetention { keep_days: Some(3), removes_newest: true }));
    update(&world, &Actor::App, "held", json!({ "keep_days": 1 })).unwrap();
    let ada = Actor::User(world.user("ada"));
    assert_eq!(update(&world, &ada, "plain", json!({ "keep_days": 1 })), Err(ErrorCode::Forbidden));
    assert_eq!(update(&world, &Actor::App, "plain", json!({ "keep_days": 0 })), Err(ErrorCode::InvalidField));
    assert_eq!(update(&world, &Actor::App, "plain", json!({ "keep_days": 36_501 })), Err(ErrorCode::LimitExceeded));
    let hold = SetLegalHold { name: "case 4711".into() };
    world.wait(world.engine.set_legal_hold("held", hold, "op")).unwrap();
    let send =
        |room: &str, text: &str| drop(world.wait(world.engine.send(&Actor::App, message("ada", room, text))).unwrap());
    for room in ["plain", "short", "held"] {
        send(room, "one");
        send(room, "two");
    }
    world.clock.advance(DAY * 6);
    send("plain", "three");
    send("held", "three");
    world.take_fanouts();
    let text = |text: &str| ("message".to_owned(), format!("{text:?}"));
    let all = [text("one"), text("two"), text("three")];

    // Without a limit for all: only what the conversation says.
    assert!(world.engine.remove_old(Retention::default()).unwrap() > 0);
    assert_eq!(left(&world, "short"), [("message".into(), "null".into()), ("recall".into(), "null".into())]);
    world.engine.remove_old(Retention::default()).unwrap();
    assert_eq!(left(&world, "short"), [("recall".into(), "null".into())]);
    assert_eq!((left(&world, "plain"), left(&world, "held")), (all.to_vec(), all.to_vec()));
    let of_all = Retention { age_max: Some(DAY * 5), bytes_max: None };
    world.engine.remove_old(of_all).unwrap();
    assert_eq!((left(&world, "plain"), left(&world, "held")), (vec![text("three")], all.to_vec()));
    world.wait(world.engine.lift_legal_hold("held")).unwrap();
    world.engine.remove_old(of_all).unwrap();
    assert_eq!(left(&world, "held"), [text("three")]);
    // Without a time of its own it keeps as all do.
    assert_eq!(update(&world, &Actor::App, "short", json!({})).unwrap().retention, None);
}

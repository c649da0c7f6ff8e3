//! What an export of a person has is compared with a slow second evaluator: every row and entry of the store, looked at by what erasures
//! go by.

use crate::support::*;
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    chat_rows::number_in,
    erasure::{Fate, Person, fate_of_row},
    model::{Actor, ConversationNo, EntryKind},
    scheduled::header_in,
    store::{End, RowSpace, Store},
};
use tidings_engine::{access::Caller, config::EngineConfig};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

type Archive = BTreeMap<&'static str, String>;

fn export(world: &World, user: &str, received: bool) -> Result<Archive, Refusal> {
    let mut export = world.engine.export_user(user, received)?;
    let mut archive = Archive::new();
    loop {
        let part = export.next(&world.engine)?;
        archive.entry(part.file).or_default().push_str(&String::from_utf8(part.bytes).unwrap());
        if !part.has_more {
            archive.retain(|_, text| !text.is_empty());
            return Ok(archive);
        }
    }
}

fn records(archive: &Archive, file: &str) -> Vec<Value> {
    archive.get(file).map_or("", String::as_str).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A user in many conversations, some of which the user has left, who does what users do.
fn peopled(store: Arc<dyn Store>) -> World {
    let world = World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, store);
    world.users(&["ann", "ben", "cat", "anna"]);
    let engine = &world.engine;
    let say = |request: SendRequest| world.wait(engine.send(&Actor::App, request)).unwrap().seq;
    for at in 0..450 {
        let group = format!("g{at}");
        world.conversation(ConversationKind::Group, &group, &["ann", "ben", "anna"]);
        say(message("ben", &group, &format!("secret-of-ben-{at}")));
        if at % 90 == 0 {
            say(message("ann", &group, &format!("own-{at}")));
            world.wait(engine.react(&Actor::App, Some("ann".into()), &group, 1, "+", true)).unwrap();
            world.wait(engine.react(&Actor::App, Some("anna".into()), &group, 1, "-", true)).unwrap();
        }
    }
    say(SendRequest { mentions: vec!["ann".into()], ..message("ben", "g1", "to-ann") });
    let edit = serde_json::from_str(r#"{"from":"ann","body":{"text":"own-edited"}}"#).unwrap();
    world.wait(engine.edit_message(&Actor::App, "g90", 2, edit)).unwrap();
    say(SendRequest { conversation: None, to: Some("ben".into()), ..message("ann", "", "own-in-private") });
    let leave = |user: &str| ChangeMembers { add: vec![], remove: vec![user.into()], role: None };
    world.wait(engine.change_members(&Actor::App, "g180", leave("ann"))).unwrap();
    let ann = world.user("ann");
    world.wait(engine.set_block(&Actor::App, &ann, "cat", true)).unwrap();
    let patch = UpdatePreferences { title: Some(Some("own-title".into())), ..UpdatePreferences::default() };
    world.wait(engine.set_preferences(&ann, "g0", patch)).unwrap();
    let report = NewReport { reason: ReportReason::Spam, text: Some("own-report".into()), user: None };
    world.wait(engine.report_message(&Actor::User(ann.clone()), "g3", 1, report)).unwrap();
    let later = ScheduleMessage { send_at: NOON + 86_400_000, message: message("ann", "g2", "own-later") };
    engine.schedule_message(&Caller::APP, later).unwrap();
    world.settle();
    world
}

fn is_whole(world: &World) {
    let archive = export(world, "ann", false).unwrap();
    let everything: String = archive.values().map(String::as_str).collect();
    for own in ["own-0", "own-90", "own-180", "own-edited", "own-in-private", "own-title", "own-report", "own-later"] {
        assert!(everything.contains(own), "{own}");
    }
    assert!(!everything.contains("secret-of-ben"));

    // The same by a pass over everything.
    let (store, no) = (&world.engine.store, world.user("ann").no);
    let person = Person { no, id: "ann".into(), alias: "x".into() };
    let mut entries = Vec::new();
    for conversation in (1..=store.last_numbers().unwrap().conversations).map(ConversationNo) {
        let Some(details) = store.conversation(conversation).unwrap() else { continue };
        for entry in store.entries(conversation, 1, u64::MAX, usize::MAX >> 1, End::Oldest).unwrap() {
            if entry.content.sender.as_ref().is_some_and(|sender| sender.no == no) {
                entries.push((details.id.clone(), entry.seq));
            }
        }
    }
    let mut exported: Vec<_> = records(&archive, "messages.ndjson")
        .iter()
        .filter(|record| record["kind"] != "former_version")
        .map(|record| (record["conversation"].as_str().unwrap().to_owned(), record["seq"].as_u64().unwrap()))
        .collect();
    entries.sort();
    exported.sort();
    assert_eq!(exported, entries);
    assert_eq!(records(&archive, "conversations.ndjson").len(), 450);

    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    for (key, row) in store.rows(RowSpace::Chat, &[], &[0xFF], usize::MAX >> 1).unwrap() {
        if fate_of_row(&person, &key, &row) == Fate::Keep {
            continue;
        }
        let file = match ChatRowKind::of(&key).unwrap() {
            ChatRowKind::Preferences => "conversation_settings.ndjson",
            ChatRowKind::Reactions => "reactions.ndjson",
            ChatRowKind::Mention => "mentions.ndjson",
            ChatRowKind::Block => "blocks.ndjson",
            ChatRowKind::Report if number_in(&key, 0) == Some(0) => "reports.ndjson",
            ChatRowKind::ScheduledMessage if header_in(&key).is_some() => "scheduled_messages.ndjson",
            ChatRowKind::UserSettings | ChatRowKind::Report | ChatRowKind::ScheduledMessage => continue,
            other => panic!("{other:?}"),
        };
        *rows.entry(file).or_default() += 1;
    }
    for (file, count) in &rows {
        assert_eq!(records(&archive, file).len(), *count, "{file}");
    }
    assert_eq!(rows.len(), 6, "{rows:?}");
    let index: Value = serde_json::from_str(&archive["index.json"]).unwrap();
    for file in index["files"].as_array().unwrap() {
        let name = file["file"].as_str().unwrap();
        assert_eq!(records(&archive, name).len() as u64, file["records"].as_u64().unwrap(), "{name}");
        assert!(archive["README.txt"].contains(name));
    }

    // With what others wrote: what the user may read now, and no more.
    let received = records(&export(world, "ann", true).unwrap(), "received.ndjson");
    assert!(received.iter().any(|entry| entry["conversation"] == "g0"));
    assert!(received.iter().all(|entry| entry["conversation"] != "g180"));
    let messages = received.iter().filter(|entry| entry["kind"] == EntryKind::Message.name()).count();
    assert_eq!(messages, 450, "one of ben's in each group but the one that was left, and the mention");
    // Anna's archive has nothing of Ann, whose id hers begins with.
    let of_anna = export(world, "anna", false).unwrap();
    assert!(of_anna.values().all(|text| !text.contains("own-")), "{of_anna:?}");
    assert_eq!(records(&of_anna, "reactions.ndjson").len(), 5);
}

#[test]
fn an_export_has_every_row_and_entry_of_a_person_in_memory() {
    is_whole(&peopled(Arc::new(MemoryStore::shared())));
}

#[test]
fn an_export_has_every_row_and_entry_of_a_person_in_a_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(EmbeddedOptions::new(folder.path().join("data"))).unwrap();
    store.open_gates().unwrap();
    is_whole(&peopled(Arc::new(store)));
}

#[test]
fn few_exports_are_made_at_a_time_and_none_of_a_user_who_is_not_there() {
    let world = World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, Arc::new(MemoryStore::shared()));
    world.users(&["ann", "ben"]);
    let code = |result: Result<Archive, Refusal>| result.err().map(|refusal| refusal.code);
    assert_eq!(code(export(&world, "nobody", false)), Some(ErrorCode::NotFound));
    let begun: Vec<_> = (0..2).map(|_| world.engine.export_user("ann", false).unwrap()).collect();
    let refusal = export(&world, "ben", false).unwrap_err();
    assert_eq!((refusal.code, refusal.retry_after_ms.is_some()), (ErrorCode::QueueFull, true));
    drop(begun);
    export(&world, "ben", false).unwrap();
    world.engine.erase_user("ann", ErasedMessages::Remove, "op").unwrap();
    assert_eq!(code(export(&world, "ann", false)), Some(ErrorCode::Conflict));
    while world.engine.work_on_erasures(&|_| Ok(0)).unwrap() {}
    assert_eq!(code(export(&world, "ann", false)), Some(ErrorCode::NotFound));
}

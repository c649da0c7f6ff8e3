//! A conversation is deleted: nothing of it is left, whoever works on the job; nobody reads or writes it meanwhile, and what its clients
//! have numbered is not numbered again.

use crate::support::*;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    chat_rows::UserSettings,
    model::Actor,
    store::{RowSpace, Store},
};
use tidings_engine::{
    access::Caller,
    config::EngineConfig,
    engine::erasure::leftovers::{leftovers, leftovers_of_conversation},
};
use tidings_protocol::{
    cursor::{Cursor, LANES},
    error::{ErrorCode, Refusal},
    http::*,
};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn world_on(store: Arc<dyn Store>) -> World {
    World::new(EngineConfig { shards: 1, events_keep: DAY, ..EngineConfig::default() }, store)
}

fn say(world: &World, request: SendRequest) -> Result<u64, Refusal> {
    world.wait(world.engine.send(&Actor::App, request)).map(|receipt| receipt.seq)
}

fn to(from: &str, to: &str, text: &str) -> SendRequest {
    SendRequest { conversation: None, to: Some(to.into()), ..message(from, "", text) }
}

/// A group, a direct conversation and an account, with what belongs to messages and members.
fn peopled(store: Arc<dyn Store>) -> World {
    let world = world_on(store);
    world.users(&["ann", "ben", "cat"]);
    let engine = &world.engine;
    world.conversation(ConversationKind::Group, "g", &["ann", "ben"]);
    world.conversation(ConversationKind::Group, "other", &["ann", "ben"]);
    world.conversation(ConversationKind::Official, "news", &["ann", "ben"]);
    for (conversation, text) in [("g", "secret-of-g"), ("other", "stays"), ("news", "secret-of-news")] {
        say(&world, SendRequest { mentions: vec!["ben".into()], ..message("ann", conversation, text) }).unwrap();
        world.wait(engine.react(&Actor::App, Some("ben".into()), conversation, 1, "👍", true)).unwrap();
        let ben = world.user("ben");
        let patch = UpdatePreferences { title: Some(Some("title".into())), ..UpdatePreferences::default() };
        world.wait(engine.set_preferences(&ben, conversation, patch)).unwrap();
    }
    say(&world, to("ann", "ben", "secret-in-private")).unwrap();
    say(&world, SendRequest { reply_to: Some(1), ..message("ben", "g", "secret-answer") }).unwrap();
    let edit = serde_json::from_str(r#"{"from":"ann","body":{"text":"secret-edit"}}"#).unwrap();
    world.wait(engine.edit_message(&Actor::App, "g", 1, edit)).unwrap();
    let ben = Actor::User(world.user("ben"));
    for conversation in ["g", "other", "ann~ben"] {
        let report = NewReport { reason: ReportReason::Spam, text: Some("secret-report".into()), user: None };
        world.wait(engine.report_message(&ben, conversation, 1, report)).unwrap();
    }
    for request in
        [message("ann", "g", "secret-later"), to("ann", "ben", "secret-later-too"), message("ann", "other", "l")]
    {
        engine.schedule_message(&Caller::APP, ScheduleMessage { send_at: NOON + 1_000_000, message: request }).unwrap();
    }
    world.settle();
    world
}

fn work(world: &World) {
    while world.engine.work_on_erasures(&|_| Ok(0)).unwrap() {}
    world.settle();
}

fn code<T>(result: Result<T, Refusal>) -> Option<ErrorCode> {
    result.err().map(|refusal| refusal.code)
}

fn open_reports(world: &World, user: &str) -> u32 {
    let key = tidings_domain::chat_rows::settings_key(world.user(user).no);
    let row = world.engine.store.row(RowSpace::Chat, &key).unwrap();
    UserSettings::decode(row.as_deref()).unwrap().reports
}

fn lists(world: &World, user: &str) -> Vec<(String, u64)> {
    let page = world.engine.conversations(&world.user(user), None, None, 50).unwrap();
    page.conversations.into_iter().map(|line| (line.id, line.unread)).collect()
}

fn deleted_everywhere(world: &World) {
    let engine = &world.engine;
    assert_eq!(open_reports(world, "ben"), 3);
    for id in ["g", "ann~ben", "news"] {
        let begun = engine.delete_conversation(id, "op").unwrap();
        assert_eq!((begun.state, begun.conversation.as_deref(), begun.user), (ErasureState::Running, Some(id), None));
        world.settle();
        // Nobody reads or writes it, by whichever way.
        assert_eq!(code(engine.history(&Actor::App, id, &HistoryQuery::default())), Some(ErrorCode::NotFound), "{id}");
        assert_eq!(code(say(world, message("ann", id, "more"))), Some(ErrorCode::ConversationDeleted), "{id}");
        assert_eq!(engine.delete_conversation(id, "op").unwrap().id, begun.id);
    }
    // Before anything of it is removed: neither do those who come back see anything of it.
    let start = Cursor { epoch: engine.store.epoch(), positions: [0; LANES] }.to_string();
    for user in ["ann", "ben"] {
        let user = &world.user(user);
        let seen = [
            format!("{:?}", engine.sync(user, Some(&start)).unwrap()),
            format!("{:?}", engine.conversations(user, None, None, 50).unwrap()),
            format!("{:?}", engine.unread_total(user).unwrap()),
            format!("{:?}", engine.mentions(user, None, 50).unwrap()),
        ];
        for what in &seen {
            assert!(!what.contains("\"g\"") && !what.contains("ann~ben") && !what.contains("\"news\""), "{what}");
        }
    }
    let reports = engine.reports(&ReportsQuery::default()).unwrap().reports;
    assert_eq!(reports.iter().map(|report| &*report.conversation).collect::<Vec<_>>(), ["other"]);
    assert_eq!(code(say(world, to("ben", "ann", "more"))), Some(ErrorCode::ConversationDeleted));
    work(world);

    for id in ["g", "ann~ben", "news"] {
        let done = engine.erasure(id).unwrap();
        assert_eq!(done.state, ErasureState::Done, "{done:?}");
        let left = leftovers_of_conversation(&*engine.store, id).unwrap();
        assert!(left.is_clean(), "{left:?}");
    }
    assert!(!leftovers_of_conversation(&*engine.store, "other").unwrap().is_clean());
    // What others have stays, and what counted the conversation counts it no more.
    assert_eq!(open_reports(world, "ben"), 1);
    assert_eq!(lists(world, "ben"), [("other".to_owned(), 1)]);
    assert_eq!(lists(world, "ann"), [("other".to_owned(), 0)]);
    let later = engine.scheduled_messages(&Caller::APP, Some("ann"), None, 0).unwrap();
    assert_eq!(later.scheduled_messages.len(), 1);
    let mentions = engine.mentions(&world.user("ben"), None, 10).unwrap();
    assert_eq!(mentions.entries.len(), 1);
    let all = engine.list_all_conversations(&ConversationListQuery::default()).unwrap();
    let all: Vec<_> = all.conversations.into_iter().map(|details| details.id).collect();
    assert_eq!(all, ["ann~ben", "other"]);
    let query = EventsQuery { types: Some("conversation_deleted".into()), limit: Some(100), ..EventsQuery::default() };
    let events = engine.read_events(&engine.events_request(&query).unwrap()).unwrap().page;
    let told = serde_json::to_value(events).unwrap();
    let ids = |event: &Value| event["data"]["conversation"].as_str().unwrap().to_owned();
    let mut told: Vec<_> = told["events"].as_array().unwrap().iter().map(ids).collect();
    told.sort();
    assert_eq!(told, ["ann~ben", "g", "news"]);

    // The id of a group is not given again. A direct conversation goes on behind what its clients know, also for a retry.
    let again = serde_json::from_str(r#"{"id":"g","kind":"group"}"#).unwrap();
    assert_eq!(code(world.wait(engine.create_conversation(&Actor::App, again))), Some(ErrorCode::Conflict));
    assert_eq!(code(engine.delete_conversation("erased-c1", "op")), Some(ErrorCode::NotFound));
    let first = say(world, to("ann", "ben", "secret-in-private")).unwrap();
    assert!(first > 2, "{first}: 1 was the message, 2 the end");
    let history = engine.history(&Actor::User(world.user("ben")), "ann~ben", &HistoryQuery::default()).unwrap();
    assert_eq!(history.entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [first]);
    assert_eq!(lists(world, "ben")[0], ("ann~ben".to_owned(), 1));
    // It can be deleted again, and its users erased.
    engine.delete_conversation("ann~ben", "op").unwrap();
    engine.erase_user("ann", ErasedMessages::Remove, "op").unwrap();
    work(world);
    assert!(leftovers(&*engine.store, "ann").unwrap().is_clean());
    assert!(leftovers_of_conversation(&*engine.store, "g").unwrap().is_clean());
}

#[test]
fn conversations_are_deleted_from_a_store_in_memory() {
    deleted_everywhere(&peopled(Arc::new(MemoryStore::shared())));
}

fn embedded(folder: &tempfile::TempDir) -> Arc<dyn Store> {
    let options = EmbeddedOptions { event_log: true, ..EmbeddedOptions::new(folder.path().join("data")) };
    let store = EmbeddedStore::open(options).unwrap();
    store.open_gates().unwrap();
    Arc::new(store)
}

#[test]
fn conversations_are_deleted_from_a_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let world = peopled(embedded(&folder));
    deleted_everywhere(&world);
    drop(world);
    let report = tidings_store::check::check(&folder.path().join("data"), tidings_popups::check_popups).unwrap();
    assert!(report.is_sound(), "{report}");
}

#[test]
fn a_deletion_goes_on_wherever_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let world = peopled(embedded(&folder));
    for id in ["g", "ann~ben"] {
        world.engine.delete_conversation(id, "op").unwrap();
    }
    drop(world);
    let mut parts = 0;
    loop {
        // Each part in a process of its own.
        let world = world_on(embedded(&folder));
        parts += 1;
        if !world.engine.work_on_erasures(&|_| Ok(0)).unwrap() {
            for id in ["g", "ann~ben"] {
                let left = leftovers_of_conversation(&*world.engine.store, id).unwrap();
                assert!(left.is_clean(), "{left:?}");
            }
            break;
        }
    }
    assert!(parts > 10, "{parts}");
}

#[test]
fn a_hold_or_an_import_refuses_a_deletion() {
    let world = peopled(Arc::new(MemoryStore::shared()));
    let engine = &world.engine;
    let hold = SetLegalHold { name: "case 1".into() };
    world.wait(engine.set_legal_hold("g", hold, "judge")).unwrap();
    let refusal = engine.delete_conversation("g", "op").unwrap_err();
    assert_eq!(refusal.code, ErrorCode::LegalHold);
    assert!(refusal.detail.contains("case 1"), "{refusal}");
    world.wait(engine.lift_legal_hold("g")).unwrap();
    assert_eq!(code(engine.delete_conversation("nothing", "op")), Some(ErrorCode::NotFound));
    engine.delete_conversation("g", "op").unwrap();
    work(&world);
    assert!(leftovers_of_conversation(&*engine.store, "g").unwrap().is_clean());
}

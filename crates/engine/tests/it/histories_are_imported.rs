//! The history of another system comes in as it was, once, and nobody is notified of it; an export is an import elsewhere.

use crate::support::*;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tidings_domain::{
    commit_log::{CommitLog, NodeInfo},
    model::Actor,
    store::Retention,
};
use tidings_engine::{
    config::EngineConfig, delivery::Step, engine::send::SendTarget, imports::Import, shards::SessionReply,
};
use tidings_protocol::{
    entry::EntryKind,
    error::{ErrorCode, Refusal},
    http::*,
};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::{LocalBus, MemoryStore};

/// A summer of 2009.
const THEN: u64 = 1_245_000_000_000;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const SESSION: SessionReply = SessionReply { shard: 0, session: 0, reference: None };

fn world() -> World {
    World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, Arc::new(MemoryStore::default()))
}

fn import_text(world: &World, text: &str) -> Result<ImportResult, Refusal> {
    world.wait(async {
        let mut import = Import::new(world.engine.clone())?;
        for line in text.lines() {
            import.line(line.as_bytes()).await?;
        }
        import.end().await
    })
}

fn text_of(records: &[Value]) -> String {
    records.iter().map(|record| format!("{record}\n")).collect()
}

pub(crate) fn import(world: &World, records: &[Value]) -> ImportResult {
    let result = import_text(world, &text_of(records)).unwrap();
    world.settle();
    result
}

fn users(ids: &[&str]) -> Vec<Value> {
    ids.iter().map(|id| json!({ "type": "user", "id": id, "name": format!("{id}'s name") })).collect()
}

fn message_at(id: &str, from: &str, at: u64) -> Value {
    json!({ "type": "message", "conversation": "g", "id": id, "from": from, "at": at, "body": { "text": id } })
}

/// A group of Ada, Ben and Cem with four messages, one of which answers another and one of which has reactions; and what Ada and
/// Ben say to each other. Cem has read nothing, Ben up to the second message, and of Ada nothing is said.
fn history() -> Vec<Value> {
    let mut records = users(&["ada", "ben", "cem", "gone"]);
    records.extend([
        json!({ "type": "conversation", "id": "g", "kind": "group", "name": "Group", "history": "all" }),
        json!({ "type": "member", "conversation": "g", "user": "ada", "role": "owner" }),
        json!({ "type": "member", "conversation": "g", "user": "ben" }),
        json!({ "type": "member", "conversation": "g", "user": "cem" }),
        message_at("1", "ada", THEN),
        json!({ "type": "message", "conversation": "g", "id": "2", "from": "gone", "at": THEN + 5, "content_type": "image",
            "body": { "url": "x" }, "mentions": ["ben"], "edited_at": THEN + 6,
            "reactions": [{ "key": "👍", "users": ["cem", "ada"] }, { "key": "🎉", "users": ["gone"] }] }),
        json!({ "type": "message", "conversation": "g", "id": "3", "from": "ben", "at": THEN + 9, "body": 3, "reply_to": "1" }),
        message_at("4", "ada", THEN + 9),
        json!({ "type": "conversation", "kind": "direct", "direct": ["ben", "ada"] }),
        json!({ "type": "message", "direct": ["ada", "ben"], "id": "1", "from": "ben", "at": THEN + 2, "body": "hi", "silent": true }),
        json!({ "type": "read", "conversation": "g", "user": "ben", "message": "2" }),
        json!({ "type": "read", "conversation": "g", "user": "cem", "message": null }),
        json!({ "type": "finish", "conversation": "g" }),
        json!({ "type": "finish", "direct": ["ada", "ben"] }),
    ]);
    records
}

/// What the server shows: the messages of each conversation and the unread count of each user in it.
fn shown(world: &World) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for id in ["g", "ada~ben"] {
        let page = world.engine.history(&Actor::App, id, &HistoryQuery::default()).unwrap();
        let messages: Vec<_> = page.entries.into_iter().filter(|entry| entry.kind == EntryKind::Message).collect();
        all.insert(id.to_owned(), serde_json::to_value(messages).unwrap());
    }
    for user in ["ada", "ben", "cem"] {
        let user = world.user(user);
        let page = world.engine.conversations(&user, None, None, 10).unwrap();
        let unread: BTreeMap<_, _> = page.conversations.iter().map(|line| (line.id.clone(), line.unread)).collect();
        all.insert(user.id.clone(), json!(unread));
    }
    all
}

fn exported(world: &World, conversation: Option<&str>) -> String {
    let query = HistoryExportQuery { conversation: conversation.map(str::to_owned) };
    let mut export = world.engine.export(&query).unwrap();
    let mut text = Vec::new();
    loop {
        let (page, more) = export.next(&world.engine).unwrap();
        text.extend(page);
        if !more {
            return String::from_utf8(text).unwrap();
        }
    }
}

fn counts(result: ImportResult) -> [u64; 6] {
    let ImportResult { conversations, members, messages, duplicates, reads, finished, .. } = result;
    [conversations, members, messages, duplicates, reads, finished]
}

#[test]
fn a_history_is_shown_as_it_was_and_a_second_import_changes_nothing() {
    let world = world();
    assert_eq!(counts(import(&world, &history())), [2, 3, 5, 0, 2, 2]);
    let first = shown(&world);
    let messages = first["g"].as_array().unwrap();
    let of = |name: &str| messages.iter().map(|message| message[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("at"), [THEN, THEN + 5, THEN + 9, THEN + 9]);
    assert_eq!(of("from"), ["ada", "gone", "ben", "ada"]);
    assert_eq!(of("client_msg_id"), ["import:1", "import:2", "import:3", "import:4"]);
    assert_eq!((&messages[1]["type"], &messages[1]["edited_at"]), (&json!("image"), &json!(THEN + 6)));
    assert_eq!(messages[1]["reactions"][0], json!({ "key": "👍", "count": 2, "users": ["ada", "cem"] }));
    assert_eq!(messages[2]["reply_to"]["seq"], 1);
    assert_eq!(first["ada"], json!({ "g": 0, "ada~ben": 0 }), "of whom no record says anything, has read all");
    assert_eq!((&first["ben"]["g"], &first["cem"]["g"]), (&json!(1), &json!(4)));
    let name = world.engine.user_profile("gone", false).unwrap().name;
    assert_eq!(name.as_deref(), Some("gone's name"));
    assert_eq!(counts(import(&world, &history())), [0, 0, 0, 5, 2, 0]);
    assert_eq!(shown(&world), first);
}

#[test]
fn an_export_is_an_import_elsewhere() {
    let (one, other, third) = (world(), world(), world());
    import(&one, &history());
    let text = exported(&one, None);
    import_text(&other, &text).unwrap();
    other.settle();
    assert_eq!(shown(&other), shown(&one));
    assert_eq!(exported(&other, None), text);
    // One conversation brings the users whom it names.
    import_text(&third, &exported(&one, Some("g"))).unwrap();
    third.settle();
    assert_eq!(third.engine.history(&Actor::App, "g", &HistoryQuery::default()).unwrap().entries.len(), 5);
    assert!(third.engine.directory.require_conversation("ada~ben").is_err());
}

#[test]
fn what_was_sent_here_is_exported_too_without_what_was_taken_back() {
    let (one, other) = (world(), world());
    import(&one, &history());
    for text in ["a", "b", "c"] {
        one.wait(one.engine.send(&Actor::App, SendRequest { client_msg_id: None, ..message("ben", "g", text) }))
            .unwrap();
    }
    one.wait(one.engine.recall_message(&Actor::App, "g", 7, None, None)).unwrap();
    import_text(&other, &exported(&one, None)).unwrap();
    other.settle();
    let bodies = |world: &World| {
        let all = shown(world);
        let messages = all["g"].as_array().unwrap().iter().filter(|message| message.get("recalled").is_none());
        messages.map(|message| (message["body"].clone(), message["at"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(bodies(&other), bodies(&one));
    assert_eq!(bodies(&other).len(), 6);
}

/// The record `finish` is left out.
fn unfinished() -> Vec<Value> {
    history().into_iter().filter(|record| record["type"] != "finish").collect()
}

#[test]
fn nobody_writes_into_a_conversation_that_is_importing_in_any_way() {
    let world = world();
    import(&world, &unfinished());
    let (app, ada) = (Actor::App, Actor::User(world.user("ada")));
    let by = |user: &str| SendRequest { client_msg_id: None, ..message(user, "g", "now") };
    let to_ben = SendRequest { conversation: None, to: Some("ben".into()), ..by("ada") };
    let growing =
        || SendRequest { body: serde_json::value::to_raw_value(&json!({ "text": "" })).unwrap(), ..by("ada") };
    let e = &world.engine;
    let edit = || EditMessage {
        from: Some("ada".into()),
        client_msg_id: None,
        content_type: None,
        body: serde_json::value::to_raw_value("2").unwrap(),
        mentions: vec![],
        if_version: None,
    };
    let change = |add: &[&str], remove: &[&str]| ChangeMembers {
        add: add.iter().map(|id| (*id).into()).collect(),
        remove: remove.iter().map(|id| (*id).into()).collect(),
        role: None,
    };
    let named = UpdateConversation { name: Some("Other".into()), ..UpdateConversation::default() };
    let refused: Vec<(&str, Result<(), Refusal>)> = vec![
        ("send of the app", world.wait(e.send(&app, by("ada"))).map(drop)),
        ("send as the conversation", world.wait(e.send(&app, SendRequest { from: None, ..by("ada") })).map(drop)),
        ("send of a user", world.wait(e.send(&ada, by("ada"))).map(drop)),
        ("direct send", world.wait(e.send(&ada, to_ben)).map(drop)),
        ("batch", world.wait(e.send_batch(&app, vec![by("ben")])).unwrap().remove(0).map(drop)),
        ("session", e.submit(&ada, SendTarget::Conversation("g"), by("ada").into_parts().3, SESSION)),
        ("growing message", world.wait(e.begin_stream(&ada, growing())).map(drop)),
        ("edit", world.wait(e.edit_message(&app, "g", 1, edit())).map(drop)),
        ("recall", world.wait(e.recall_message(&app, "g", 1, None, None)).map(drop)),
        ("reaction", world.wait(e.react(&ada, None, "g", 1, "+1", true)).map(drop)),
        ("pin", world.wait(e.pin(&app, None, "g", 1, true)).map(drop)),
        ("joining", world.wait(e.change_members(&app, "g", change(&["gone"], &[]))).map(drop)),
        ("leaving", world.wait(e.change_members(&ada, "g", change(&[], &["ada"]))).map(drop)),
        ("name", world.wait(e.update_conversation(&ada, "g", named)).map(drop)),
    ];
    for (way, result) in refused {
        assert_eq!(result.map_err(|refusal| refusal.code), Err(ErrorCode::ConversationImporting), "{way}");
    }
    assert!(e.conversation_details(&app, "g").unwrap().importing);
    // Members read it, and nothing counts as unread.
    assert_eq!(e.history(&ada, "g", &HistoryQuery::default()).unwrap().entries.len(), 4);
    let all = shown(&world);
    assert_eq!((&all["ben"]["g"], &all["cem"]["g"]), (&json!(0), &json!(0)));
    assert_eq!(e.unread_total(&world.user("cem")).unwrap().unread, 0);
    import(&world, &[json!({ "type": "finish", "conversation": "g" })]);
    assert!(!e.conversation_details(&app, "g").unwrap().importing);
    let sent = world.wait(e.send(&ada, by("ada"))).unwrap();
    assert_eq!((sent.seq, sent.at), (6, NOON));
}

#[test]
fn no_session_is_handed_imported_messages() {
    let world = world();
    import(&world, &history());
    world.wait(world.engine.send(&Actor::App, message("ada", "g", "live"))).unwrap();
    let mut handed = Vec::new();
    while handed.last().is_none_or(|last| *last != 6) {
        let fanout = world.receivers[0].lanes[1].recv_timeout(PATIENCE).unwrap();
        for step in &fanout.steps {
            if let Step::Block { first_seq, block, .. } = step {
                handed.extend(*first_seq..first_seq + u64::from(block.entries));
            }
        }
    }
    // The end of the import, and what was sent since; in one block, or each in its own.
    assert_eq!(handed, [5, 6]);
    assert!(world.engine.store.outbox(0, 10).unwrap().iter().all(|item| item.seq == 6));
}

#[test]
fn a_damaged_line_is_named_and_what_came_before_it_is_kept() {
    let world = world();
    let all = history();
    for (bad, code, why) in [
        (r#"{"type":"message","conversation":"g""#, ErrorCode::Malformed, "line 10: body: is not JSON"),
        (r#"{"type":"massage"}"#, ErrorCode::InvalidField, "line 10: type: "),
        (r#"{"type":"message","conversation":"g","id":"9","at":1,"body":1}"#, ErrorCode::InvalidField, "line 10: at: "),
        (
            r#"{"type":"message","conversation":"g","id":"9","at":4102444800000,"body":1}"#,
            ErrorCode::InvalidField,
            "line 10: at: ",
        ),
        (
            r#"{"type":"message","conversation":"g","id":"9","from":"eve","at":1245000000000,"body":1}"#,
            ErrorCode::NotFound,
            "line 10: no user",
        ),
        (
            r#"{"type":"message","conversation":"h","id":"9","at":1245000000000,"body":1}"#,
            ErrorCode::NotFound,
            "line 10: no conversation",
        ),
        (
            r#"{"type":"message","conversation":"g","id":"9","at":1245000000000,"body":1,"reply_to":"99"}"#,
            ErrorCode::NotFound,
            "line 10: reply_to",
        ),
        (r#"{"type":"read","conversation":"g","user":"ben","message":"99"}"#, ErrorCode::NotFound, "line 10: "),
        (r#"{"type":"read","conversation":"g","user":"gone","message":"1"}"#, ErrorCode::NotAMember, "line 10: "),
        (r#"{"type":"user","id":"a b"}"#, ErrorCode::InvalidField, "line 10: id: "),
    ] {
        let text = format!("{}{bad}\n{}", text_of(&all[..9]), text_of(&all[9..]));
        let refusal = import_text(&world, &text).unwrap_err();
        assert!(refusal.code == code && refusal.detail.starts_with(why), "{bad}: {refusal}");
        let kept = world.engine.history(&Actor::App, "g", &HistoryQuery::default()).unwrap().entries;
        assert_eq!(kept.len(), 1, "{bad}");
    }
    // The file is mended, and sent as a whole.
    assert_eq!(counts(import(&world, &all)), [1, 0, 4, 1, 2, 2]);
    let (whole, fresh) = (shown(&world), crate::histories_are_imported::world());
    import(&fresh, &all);
    assert_eq!(whole, shown(&fresh));
}

#[test]
fn a_failed_commit_leaves_no_message_out_of_the_order() {
    let store = Arc::new(Troubled::default());
    // Each message is a batch of its own, so that one fails and the next may not.
    let world = World::new(EngineConfig { shards: 1, commit_batch: 1, ..EngineConfig::default() }, store.clone());
    let mut records = users(&["ada"]);
    records.push(json!({ "type": "conversation", "id": "g", "kind": "group" }));
    records.extend((0..20).map(|n| message_at(&format!("m{n}"), "ada", THEN + n)));
    let text = text_of(&records);
    import_text(&world, &text_of(&records[..5])).unwrap();
    store.fail(1);
    assert_eq!(import_text(&world, &text).unwrap_err().code, ErrorCode::StoreUnavailable);
    let mut result = import_text(&world, &text);
    while result.as_ref().is_err_and(|refusal| refusal.code == ErrorCode::StoreUnavailable) {
        result = import_text(&world, &text);
    }
    result.unwrap();
    world.settle();
    let page = world.engine.history(&Actor::App, "g", &HistoryQuery::default()).unwrap();
    assert!(page.entries.iter().map(|entry| entry.at).eq((0..20).map(|n| THEN + n)));
}

#[test]
fn a_delta_follows_before_the_end_or_after_a_record_that_opens_the_conversation_again() {
    let world = world();
    import(&world, &unfinished());
    import(&world, &[message_at("5", "ben", THEN + 10)]);
    import(&world, &[json!({ "type": "finish", "conversation": "g" })]);
    let more = message_at("6", "ben", THEN + 11);
    let refusal = import_text(&world, &text_of(std::slice::from_ref(&more))).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Conflict);
    assert!(refusal.detail.starts_with("line 1: conversation \"g\" is not importing"), "{refusal}");
    let delta = [
        json!({ "type": "reopen", "conversation": "g" }),
        message_at("5", "ben", THEN + 10),
        more,
        message_at("7", "ben", THEN + 3),
        json!({ "type": "read", "conversation": "g", "user": "ben", "message": "6" }),
        json!({ "type": "finish", "conversation": "g" }),
    ];
    let result = import(&world, &delta);
    assert_eq!((counts(result), result.times_moved), ([0, 0, 2, 1, 1, 1], 1));
    assert_eq!(counts(import(&world, &delta)), [0, 0, 0, 3, 1, 1]);
    let all = shown(&world);
    let times: Vec<_> =
        all["g"].as_array().unwrap().iter().map(|message| message["at"].as_u64().unwrap() - THEN).collect();
    assert_eq!(times, [0, 5, 9, 9, 10, 11, 11], "times do not go back");
}

#[test]
fn retention_counts_from_the_import() {
    let folder = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { disk_reserve_bytes: 0, ..EmbeddedOptions::new(folder.path()) };
    let store = Arc::new(EmbeddedStore::open(options).unwrap());
    let world = World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, store.clone());
    import(&world, &history());
    let retention = Retention { age_max: Some(DAY * 30), bytes_max: None };
    world.clock.advance(DAY * 20);
    assert_eq!(world.engine.remove_old(retention).unwrap(), 0);
    world.clock.advance(DAY * 20);
    world.wait(world.engine.send(&Actor::App, message("ada", "g", "live"))).unwrap();
    world.take_fanouts();
    // All of the group but the newest, and of the direct conversation all but the end of the import.
    assert_eq!(world.engine.remove_old(retention).unwrap(), 6);
    let report = store.check(tidings_popups::check_popups).unwrap();
    assert!(report.is_sound(), "{report}");
}

#[test]
fn one_import_runs_at_a_time() {
    let world = world();
    let running = Import::new(world.engine.clone()).unwrap();
    let refusal = Import::new(world.engine.clone()).err().unwrap();
    assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::QueueFull, Some(5_000)));
    drop(running);
    assert!(Import::new(world.engine.clone()).is_ok());
}

#[test]
fn beside_a_node_of_the_version_before_nothing_is_imported() {
    let store = Arc::new(MemoryStore::shared_with_closed_gates());
    let former = NodeInfo { name: "former".into(), boot_id: 1, ..NodeInfo::default() };
    store.heartbeat(&former, LONG_LEASE.as_millis() as u64, &[], true).unwrap();
    let bus = Arc::new(LocalBus::default());
    let world = World::node_on("new", &store, store.clone(), bus, LONG_LEASE);
    let refusal = Import::new(world.engine.clone()).err().unwrap();
    assert_eq!(refusal.code, ErrorCode::NotYetEnabled);
    assert!(refusal.detail.contains("history_import"), "{refusal}");
}

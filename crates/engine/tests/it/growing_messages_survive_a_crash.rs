//! The text of a message that grows is stored within a second, and whoever began it and goes away leaves what there is.

use crate::support::*;
use serde_json::value::RawValue;
use std::{sync::Arc, time::Duration};
use tidings_domain::{model::*, store::*};
use tidings_engine::{config::EngineConfig, streams::StreamsConfig};
use tidings_protocol::{
    entry::{Entry, StreamMark},
    error::ErrorCode,
    http::*,
};
use tidings_testkit::MemoryStore;

/// A second: by then the text is stored.
const DURABLE_WITHIN_MS: u64 = 1_000;

fn world(store: Arc<dyn Store>) -> World {
    World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, store)
}

fn with_group(world: World) -> World {
    world.users(&["ada", "ben"]);
    world.conversation(ConversationKind::Group, "g", &["ada", "ben"]);
    world
}

fn json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.into()).unwrap()
}

fn begin(world: &World, id: &str) -> u64 {
    let request = SendRequest { body: json(r#"{"text":"","model":"m"}"#), ..message("ada", "g", id) };
    world.wait(world.engine.begin_stream(&Actor::App, request)).unwrap().seq
}

fn append(world: &World, seq: u64, offset: u64, text: &str) -> Result<u64, ErrorCode> {
    match world.engine.append_to_stream(&Actor::App, "g", seq, offset, text) {
        Ok(Some(offset)) => Ok(offset),
        Ok(None) => Err(world.engine.why_no_stream(&Actor::App, "g", seq).code),
        Err(refusal) => Err(refusal.code),
    }
}

fn body(text: &str) -> String {
    format!(r#"{{"text":{text:?},"model":"m"}}"#)
}

/// The message's body in the store.
fn stored(store: &dyn Store, seq: u64) -> String {
    store.entries(ConversationNo(1), seq, seq, 1, End::Oldest).unwrap()[0].content.body.to_string()
}

fn entry(world: &World, seq: u64) -> Entry {
    world.engine.entry(&Actor::App, "g", seq).unwrap()
}

/// Moves the clock on, and does what is due then.
fn pass(world: &World, now_ms: &mut u64, ms: u64) {
    *now_ms += ms;
    world.clock.set(*now_ms);
    world.engine.settle_streams();
    world.take_fanouts();
}

#[test]
fn the_text_is_stored_within_a_second_and_read_at_once() {
    let store = Arc::new(MemoryStore::default());
    let world = with_group(world(store.clone()));
    let mut now = NOON;
    let seq = begin(&world, "1");
    let commits = world.engine.metrics.commits.get();
    for (n, text) in ["a", "é", "\"c"].iter().enumerate() {
        let offset = [0, 1, 3][n];
        assert_eq!(append(&world, seq, offset, text), Ok(offset + text.len() as u64));
    }
    assert_eq!(world.engine.metrics.commits.get(), commits, "no chunk waits for the disk");
    assert_eq!((stored(&*store, seq), entry(&world, seq).body.get()), (body(""), &*body("aé\"c")));
    assert_eq!(entry(&world, seq).stream, Some(StreamMark::Open));
    pass(&world, &mut now, DURABLE_WITHIN_MS);
    assert_eq!(stored(&*store, seq), body("aé\"c"));
    assert_eq!(store.head(ConversationNo(1)).unwrap().last_seq, seq, "a checkpoint is no entry");
    let commits = world.engine.metrics.commits.get();
    pass(&world, &mut now, 5 * DURABLE_WITHIN_MS);
    assert_eq!(world.engine.metrics.commits.get(), commits, "what has not grown is not stored again");
    append(&world, seq, 5, "d").unwrap();
    let receipt = world.wait(world.engine.end_stream(&Actor::App, "g", seq, None)).unwrap();
    assert_eq!((receipt.seq, receipt.version, receipt.duplicate), (seq + 1, 2, false));
    for seq in [seq, seq + 1] {
        assert_eq!((stored(&*store, seq), entry(&world, seq).stream), (body("aé\"cd"), None));
    }
    assert_eq!(entry(&world, seq).edited_at, None, "a message that grew is not shown as edited");
    let other = world.wait(world.engine.end_stream(&Actor::App, "g", seq, Some(json("1"))));
    assert_eq!(other.unwrap_err().code, ErrorCode::StreamEnded, "another end");
    let again = world.wait(world.engine.end_stream(&Actor::App, "g", seq, None)).unwrap();
    assert_eq!((again.seq, again.duplicate, stored(&*store, seq)), (seq + 1, true, body("aé\"cd")));
    assert_eq!(append(&world, seq, 6, "e"), Err(ErrorCode::StreamEnded));
}

#[test]
fn chunks_are_appended_once_and_without_a_gap() {
    let store = Arc::new(MemoryStore::default());
    let world = with_group(world(store));
    let seq = begin(&world, "1");
    for (offset, text, expected) in [
        (0, "abc", Ok(3)),
        (0, "abc", Ok(3)),
        (1, "bc", Ok(3)),
        (2, "cde", Ok(5)),
        (3, "", Ok(5)),
        (6, "f", Err(ErrorCode::Conflict)),
        (3, "x", Err(ErrorCode::Conflict)),
        (3, "dex", Ok(6)),
        (6, "é", Ok(8)),
        (7, "x", Err(ErrorCode::Conflict)),
    ] {
        assert_eq!(append(&world, seq, offset, text), expected, "{offset} {text:?}");
    }
    let refusal = world.engine.append_to_stream(&Actor::App, "g", seq, 99, "x").unwrap_err();
    assert!(refusal.detail.contains("8 bytes"), "it names the offset that fits: {refusal}");
    let room = 64 * 1024 - body("abcdexé").len();
    assert_eq!(append(&world, seq, 8, &"x".repeat(room + 1)), Err(ErrorCode::LimitExceeded));
    assert_eq!(append(&world, seq, 8, &"x".repeat(room)), Ok(8 + room as u64));
    assert_eq!(entry(&world, seq).body.get().len(), 64 * 1024);
    let user = |id: &str| Actor::User(world.user(id));
    assert_eq!(world.engine.append_to_stream(&user("ada"), "g", seq, 0, "").unwrap_err().code, ErrorCode::Forbidden);
    let request = SendRequest { body: json(r#"{"text":"a"}"#), from: None, ..message("ada", "g", "2") };
    let own = world.wait(world.engine.begin_stream(&user("ben"), request)).unwrap().seq;
    for (actor, expected) in [(user("ben"), Ok(Some(2))), (user("ada"), Err(())), (Actor::App, Err(()))] {
        let answer = world.engine.append_to_stream(&actor, "g", own, 1, "b").map_err(|refusal| {
            assert_eq!(refusal.code, ErrorCode::Forbidden);
        });
        assert_eq!(answer, expected);
    }
}

#[test]
fn a_message_whose_beginner_is_silent_is_interrupted() {
    let store = Arc::new(MemoryStore::default());
    let world = with_group(world(store.clone()));
    let (mut now, timeout) = (NOON, StreamsConfig::default().timeout.as_millis() as u64);
    let seq = begin(&world, "1");
    append(&world, seq, 0, "half").unwrap();
    pass(&world, &mut now, timeout - 1);
    assert_eq!(append(&world, seq, 4, ""), Ok(4), "an empty chunk keeps it open");
    pass(&world, &mut now, timeout - 1);
    assert_eq!(entry(&world, seq).stream, Some(StreamMark::Open));
    pass(&world, &mut now, 1);
    for seq in [seq, seq + 1] {
        assert_eq!(entry(&world, seq).stream, Some(StreamMark::Interrupted));
        assert_eq!(stored(&*store, seq), body("half"));
    }
    assert_eq!(entry(&world, seq + 1).from.as_deref(), Some("ada"));
    assert_eq!(append(&world, seq, 4, "more"), Err(ErrorCode::StreamEnded));
    let late = world.wait(world.engine.end_stream(&Actor::App, "g", seq, None)).unwrap_err();
    assert_eq!(late.code, ErrorCode::StreamEnded);
    let edit = EditMessage {
        from: None,
        client_msg_id: None,
        content_type: None,
        body: json("\"whole\""),
        mentions: vec![],
        if_version: None,
    };
    world.wait(world.engine.edit_message(&Actor::App, "g", seq, edit)).unwrap();
    assert_eq!(entry(&world, seq).stream, None, "an edit makes it whole");
}

#[test]
fn after_a_crash_the_message_has_what_was_there_a_second_before() {
    let inner = Arc::new(MemoryStore::default());
    let troubled = Arc::new(Troubled::on(inner.clone()));
    let before = with_group(world(troubled.clone()));
    let mut now = NOON;
    let seq = begin(&before, "1");
    append(&before, seq, 0, "stored ").unwrap();
    pass(&before, &mut now, DURABLE_WITHIN_MS);
    append(&before, seq, 7, "lost").unwrap();
    // From here on nothing of this process reaches the disk.
    troubled.fail(usize::MAX);
    let after = world(inner.clone());
    after.engine.settle_streams();
    assert_eq!(entry(&after, seq).stream, Some(StreamMark::Interrupted));
    assert_eq!((stored(&*inner, seq), stored(&*inner, seq + 1)), (body("stored "), body("stored ")));
    assert_eq!(append(&after, seq, 7, "lost"), Err(ErrorCode::StreamEnded));
    let retry = SendRequest { body: json(r#"{"text":"","model":"m"}"#), ..message("ada", "g", "1") };
    let retry = after.wait(after.engine.begin_stream(&Actor::App, retry)).unwrap();
    assert_eq!((retry.seq, retry.duplicate), (seq, true));
    let key = tidings_domain::chat_rows::stream_key(ConversationNo(1), seq);
    assert_eq!(inner.row(RowSpace::Chat, &key).unwrap(), None, "it is not looked for again");
}

#[test]
fn a_stop_ends_what_grows_and_keeps_all_of_it() {
    let store = Arc::new(MemoryStore::default());
    let world = with_group(world(store.clone()));
    let seq = begin(&world, "1");
    append(&world, seq, 0, "to the last chunk").unwrap();
    drop(world);
    assert_eq!(stored(&*store, seq), body("to the last chunk"));
    let ended = &store.entries(ConversationNo(1), seq, seq, 1, End::Oldest).unwrap()[0];
    assert_eq!(ended.content.message_details().stream, StreamState::Interrupted);
}

#[test]
fn a_checkpoint_or_an_end_that_fails_is_made_again() {
    let troubled = Arc::new(Troubled::default());
    let world = with_group(world(troubled.clone()));
    let mut now = NOON;
    let seq = begin(&world, "1");
    append(&world, seq, 0, "text").unwrap();
    troubled.fail(1);
    pass(&world, &mut now, DURABLE_WITHIN_MS);
    assert_eq!(stored(&*troubled, seq), body(""));
    pass(&world, &mut now, 0);
    assert_eq!(stored(&*troubled, seq), body("text"));
    troubled.fail(1);
    let refusal = world.wait(world.engine.end_stream(&Actor::App, "g", seq, None)).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::StoreUnavailable);
    assert_eq!(append(&world, seq, 4, "!"), Ok(5), "it goes on");
    let receipt = world.wait(world.engine.end_stream(&Actor::App, "g", seq, None)).unwrap();
    assert_eq!((receipt.duplicate, stored(&*troubled, seq)), (false, body("text!")));
}

#[test]
fn a_recall_ends_what_grows() {
    let store = Arc::new(MemoryStore::default());
    let world = with_group(world(store.clone()));
    let mut now = NOON;
    let seq = begin(&world, "1");
    append(&world, seq, 0, "secret").unwrap();
    world.wait(world.engine.recall_message(&Actor::App, "g", seq, None, None)).unwrap();
    pass(&world, &mut now, DURABLE_WITHIN_MS);
    assert_eq!((stored(&*store, seq), entry(&world, seq).body.get()), ("null".into(), "null"));
    assert_eq!(append(&world, seq, 6, "more"), Err(ErrorCode::MessageRecalled));
    assert_eq!(entry(&world, seq).stream, None);
}

#[test]
fn what_grows_at_once_is_bounded_and_refused_before_it_is_stored() {
    let streams = StreamsConfig {
        open_max: 4,
        open_per_user_max: 1,
        open_per_conversation_max: 3,
        bytes_max: 200,
        timeout: Duration::from_secs(60),
        appends_per_second: 0,
    };
    let store = Arc::new(MemoryStore::default());
    let world = with_group(World::new(EngineConfig { shards: 1, streams, ..EngineConfig::default() }, store.clone()));
    world.conversation(ConversationKind::Group, "h", &["ada", "ben"]);
    let try_begin = |actor: &Actor, group: &str, id: &str| {
        let from = if actor.user().is_some() { None } else { Some("ada".into()) };
        let request = SendRequest { body: json(r#"{"text":""}"#), from, ..message("ada", group, id) };
        world.wait(world.engine.begin_stream(actor, request)).map(|receipt| receipt.seq).map_err(|refusal| refusal.code)
    };
    let ben = Actor::User(world.user("ben"));
    assert_eq!(try_begin(&ben, "g", "1"), Ok(1));
    assert_eq!(try_begin(&ben, "h", "2"), Err(ErrorCode::QueueFull), "one of a user");
    assert_eq!((try_begin(&Actor::App, "g", "3"), try_begin(&Actor::App, "g", "4")), (Ok(2), Ok(3)));
    assert_eq!(try_begin(&Actor::App, "g", "5"), Err(ErrorCode::QueueFull), "three of a conversation");
    assert_eq!(try_begin(&Actor::App, "h", "6"), Ok(1));
    assert_eq!(try_begin(&Actor::App, "h", "7"), Err(ErrorCode::QueueFull), "four in all");
    assert_eq!(store.head(ConversationNo(1)).unwrap().last_seq, 3, "nothing was stored");
    assert_eq!(append(&world, 2, 0, &"x".repeat(200)), Err(ErrorCode::QueueFull));
    assert_eq!(append(&world, 2, 0, &"x".repeat(100)), Ok(100));
    assert_eq!(append(&world, 3, 0, &"x".repeat(100)), Err(ErrorCode::QueueFull));
    // An end makes room.
    world.wait(world.engine.end_stream(&Actor::App, "g", 2, None)).unwrap();
    assert_eq!(append(&world, 3, 0, &"x".repeat(100)), Ok(100));
    assert_eq!(try_begin(&Actor::App, "g", "3"), Ok(2), "a retry finds the first result");
    assert_eq!(try_begin(&Actor::App, "h", "7"), Ok(2));
    for body in ["\"text\"", "{}", r#"{"text":5}"#] {
        let request = SendRequest { body: json(body), ..message("ada", "g", "9") };
        let refusal = world.wait(world.engine.begin_stream(&Actor::App, request)).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidField, "{body}");
    }
}

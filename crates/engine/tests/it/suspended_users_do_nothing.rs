//! What an app server does in the name of a suspended user is refused, what grows in the user's name ends, and nothing of the user is
//! lost. The feed of events says who suspended whom, and why.

use crate::support::*;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tidings_domain::model::Actor;
use tidings_engine::config::EngineConfig;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
};
use tidings_testkit::MemoryStore;

fn world() -> World {
    let config = EngineConfig { shards: 1, events_keep: Duration::from_secs(86_400), ..EngineConfig::default() };
    let world = World::new(config, Arc::new(MemoryStore::shared()));
    world.users(&["ann", "ben", "news"]);
    world.conversation(ConversationKind::Group, "g", &["ann", "ben"]);
    world.wait(world.engine.send(&Actor::App, message("ann", "g", "before"))).unwrap();
    world
}

fn suspend(world: &World, user: &str, until: Option<u64>) {
    let suspend = Suspend { until, reason: Some("spam".into()) };
    world.wait(world.engine.suspend(user, suspend, "mod")).unwrap();
    world.settle();
}

fn raw(json: &Value) -> Box<serde_json::value::RawValue> {
    serde_json::value::to_raw_value(json).unwrap()
}

fn check_refused<T>(what: &str, result: Result<T, Refusal>) {
    assert_eq!(result.err().map(|refusal| refusal.code), Some(ErrorCode::UserSuspended), "{what}");
}

#[test]
fn everything_in_the_name_of_a_suspended_user_is_refused_until_that_ends() {
    let world = world();
    let engine = &world.engine;
    let retried = || SendRequest { client_msg_id: Some("one".into()), ..message("ann", "g", "first") };
    let first = world.wait(engine.send(&Actor::App, retried())).unwrap();
    let body = raw(&json!({ "text": "" }));
    let grows =
        world.wait(engine.begin_stream(&Actor::App, SendRequest { body, ..message("ann", "g", "grows") })).unwrap();
    engine.append_to_stream(&Actor::App, "g", grows.seq, 0, "so far").unwrap();
    suspend(&world, "ann", Some(NOON + 1_000));

    let (ann, to_ben) = (Some("ann".to_owned()), SendRequest { to: Some("ben".into()), ..message("ann", "g", "x") });
    let to_ben = SendRequest { conversation: None, ..to_ben };
    check_refused("a send", world.wait(engine.send(&Actor::App, message("ann", "g", "x"))));
    check_refused("a first message", world.wait(engine.send(&Actor::App, to_ben)));
    check_refused("a message that grows", world.wait(engine.begin_stream(&Actor::App, message("ann", "g", "x"))));
    let batch = world.wait(engine.send_batch(&Actor::App, vec![message("ann", "g", "x"), message("ben", "g", "y")]));
    let mut batch = batch.unwrap();
    assert!(batch.pop().unwrap().is_ok(), "others go on");
    check_refused("a batch", batch.pop().unwrap());
    check_refused("a reaction", world.wait(engine.react(&Actor::App, ann.clone(), "g", 1, "+", true)));
    check_refused("a recall", world.wait(engine.recall_message(&Actor::App, "g", 1, ann.clone(), None)));
    check_refused("a pin", world.wait(engine.pin(&Actor::App, ann.clone(), "g", 1, true)));
    check_refused("typing", engine.typing(&world.user("ann"), "g"));
    let again = world.wait(engine.send(&Actor::App, retried())).unwrap();
    assert_eq!((again.seq, again.duplicate), (first.seq, true), "a retry is answered");

    engine.settle_streams();
    let appended = engine.append_to_stream(&Actor::App, "g", grows.seq, 6, "more");
    assert!(!matches!(appended, Ok(Some(_))), "what grew is ended: {appended:?}");
    let history = engine.history(&Actor::App, "g", &HistoryQuery::default()).unwrap();
    let grown = history.entries.iter().find(|entry| entry.seq == grows.seq).unwrap();
    assert_eq!(serde_json::to_value(&grown.body).unwrap(), json!({ "text": "so far" }));

    world.clock.set(NOON + 1_000);
    world.wait(engine.send(&Actor::App, message("ann", "g", "back"))).unwrap();
    suspend(&world, "ann", None);
    world.clock.set(NOON + 1_000_000_000);
    check_refused("a send", world.wait(engine.send(&Actor::App, message("ann", "g", "x"))));
    world.wait(engine.unsuspend("ann", Unsuspend::default(), "mod")).unwrap();
    world.wait(engine.send(&Actor::App, message("ann", "g", "again"))).unwrap();
}

#[test]
fn a_bulk_send_of_a_suspended_account_sends_nothing() {
    let world = world();
    world.conversation(ConversationKind::Official, "news", &["ann", "ben"]);
    suspend(&world, "news", None);
    let to = BulkTarget { users: Some(vec!["ben".into()]), ..BulkTarget::default() };
    let message = serde_json::from_str(r#"{"body":{"text":"sale"}}"#).unwrap();
    let new = CreateBulkSend { client_bulk_id: None, account: "news".into(), to, message };
    let (accepted, _) = world.engine.create_bulk_send(new).unwrap();
    while world.wait(world.engine.work_on_bulk_sends()).unwrap() {}
    let done = world.engine.bulk_send(accepted.id).unwrap();
    assert_eq!((done.status, done.sent, done.failed), (BulkStatus::Done, 0, 1));
    assert!(done.last_error.unwrap().starts_with("user_suspended"));
}

#[test]
fn who_suspended_whom_and_why_is_in_the_feed_and_in_the_profile() {
    let world = world();
    let now = EventsQuery { after: Some("now".into()), types: Some("suspension".into()), ..EventsQuery::default() };
    let request = world.engine.events_request(&now).unwrap();
    suspend(&world, "ann", Some(NOON + 5));
    let profile = |private| world.engine.user_profile("ann", private).unwrap().suspension;
    let view = SuspensionView { until: Some(NOON + 5), reason: "spam".into(), by: "mod".into(), at: NOON };
    assert_eq!((profile(true), profile(false)), (Some(view), None));
    let why = Unsuspend { reason: Some("a mistake".into()) };
    world.wait(world.engine.unsuspend("ann", why, "boss")).unwrap();
    world.settle();
    assert_eq!(profile(true), None);
    world.settle();
    let page = serde_json::to_value(world.engine.read_events(&request).unwrap().page).unwrap();
    let data: Vec<&Value> = page["events"].as_array().unwrap().iter().map(|event| &event["data"]).collect();
    let suspended = json!({ "user": "ann", "suspended": true, "until": NOON + 5, "reason": "spam", "by": "mod" });
    let lifted = json!({ "user": "ann", "suspended": false, "reason": "a mistake", "by": "boss" });
    assert_eq!(data, [&suspended, &lifted]);
}

#[test]
fn a_suspension_in_the_past_or_of_nobody_is_refused() {
    let world = world();
    let suspend = |user, until, reason: &str| {
        let suspend = Suspend { until, reason: Some(reason.into()) };
        world.wait(world.engine.suspend(user, suspend, "mod")).unwrap_err().code
    };
    assert_eq!(suspend("ann", Some(NOON), ""), ErrorCode::InvalidField);
    assert_eq!(suspend("ann", None, &"x".repeat(513)), ErrorCode::LimitExceeded);
    assert_eq!(suspend("nobody", None, ""), ErrorCode::NotFound);
}

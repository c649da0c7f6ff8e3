//! A send to some followers of an official account: who gets the message, that nobody gets it twice, and how it ends.

use crate::support::*;
use serde_json::value::RawValue;
use std::sync::Arc;
use tidings_domain::{
    model::{Actor, ConversationKind},
    store::Store,
};
use tidings_engine::config::EngineConfig;
use tidings_popups::parse_segment;
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_testkit::MemoryStore;

fn world(store: Arc<dyn Store>) -> World {
    World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, store)
}

/// An account with a user of its own, an owner, and so many followers; every third lives in Bern.
fn with_followers(world: World, count: usize) -> World {
    let bern = r#"{"city":"Bern"}"#;
    let mut users = vec![user("news", None), user("boss", Some(bern)), user("stranger", Some(bern))];
    users.extend((0..count).map(|n| user(&follower(n), n.is_multiple_of(3).then_some(bern))));
    world.wait(world.engine.upsert_users(users)).unwrap();
    let followers: Vec<String> = (0..count).map(follower).collect();
    let mut members = vec!["boss"];
    members.extend(followers.iter().map(String::as_str));
    world.conversation(ConversationKind::Official, "news", &members);
    world
}

fn follower(n: usize) -> String {
    format!("f{n:03}")
}

fn user(id: &str, attributes: Option<&str>) -> UserUpsert {
    let attributes = attributes.map(|text| serde_json::from_str(text).unwrap());
    UserUpsert { id: id.into(), attributes, ..UserUpsert::default() }
}

fn to_users(users: &[&str]) -> BulkTarget {
    BulkTarget { users: Some(users.iter().map(|user| (*user).to_owned()).collect()), ..BulkTarget::default() }
}

fn to_bern() -> BulkTarget {
    let rule = r#"{"attribute":"user.city","op":"eq","value":"Bern"}"#;
    BulkTarget { rule: Some(RawValue::from_string(rule.into()).unwrap()), ..BulkTarget::default() }
}

fn new(id: &str, to: BulkTarget) -> CreateBulkSend {
    let message = serde_json::from_str(r#"{"body":{"text":"sale"}}"#).unwrap();
    CreateBulkSend { client_bulk_id: Some(id.into()), account: "news".into(), to, message }
}

/// Works until nothing can be done at once.
fn work(world: &World) {
    while world.wait(world.engine.work_on_bulk_sends()).unwrap() {
        world.take_fanouts();
    }
    world.take_fanouts();
}

/// How many messages a user has in the conversation with the account.
fn received(world: &World, user: &str) -> usize {
    let id = if user < "news" { format!("{user}~news") } else { format!("news~{user}") };
    let history = world.engine.history(&Actor::App, &id, &HistoryQuery::default());
    history.map_or(0, |page| page.entries.iter().filter(|entry| entry.from.as_deref() == Some("news")).count())
}

fn receivers(world: &World, count: usize) -> Vec<usize> {
    let all = (0..count).map(|n| (n, received(world, &follower(n))));
    all.flat_map(|(n, messages)| vec![n; messages]).collect()
}

#[test]
fn listed_followers_get_the_message_once_and_others_do_not() {
    let world = with_followers(world(Arc::new(MemoryStore::default())), 5);
    let send = new("1", to_users(&["f001", "stranger", "nobody", "f003", "f001", "boss"]));
    let (accepted, is_retry) = world.engine.create_bulk_send(send.clone()).unwrap();
    assert_eq!((accepted.status, accepted.sent, is_retry), (BulkStatus::Running, 0, false));
    work(&world);
    assert_eq!(receivers(&world, 5), [1, 3]);
    assert_eq!([received(&world, "stranger"), received(&world, "boss")], [0, 0]);
    let done = world.engine.bulk_send(accepted.id).unwrap();
    assert_eq!((done.status, done.examined, done.failed), (BulkStatus::Done, 6, 0));
    assert_eq!(world.engine.create_bulk_send(send).unwrap(), (done, true), "a retry answers with the first");
    work(&world);
    assert_eq!(receivers(&world, 5), [1, 3]);
}

#[test]
fn a_rule_and_a_segment_choose_among_the_followers() {
    let world = with_followers(world(Arc::new(MemoryStore::default())), 7);
    world.engine.popups.flush().unwrap();
    world.engine.popups.put_segment("vip", parse_segment(b"f002\nf004\nstranger\n").unwrap()).unwrap();
    world.engine.create_bulk_send(new("bern", to_bern())).unwrap();
    let vip = BulkTarget { segment: Some("vip".into()), ..BulkTarget::default() };
    world.engine.create_bulk_send(new("vip", vip)).unwrap();
    work(&world);
    assert_eq!(receivers(&world, 7), [0, 2, 3, 4, 6]);
    let all = world.engine.bulk_sends(None, 1).unwrap();
    assert_eq!((all.bulk_sends[0].client_bulk_id.as_deref(), all.next), (Some("vip"), Some(2)));
    let rest = world.engine.bulk_sends(all.next, 1).unwrap();
    assert_eq!((rest.bulk_sends[0].client_bulk_id.as_deref(), rest.next), (Some("bern"), None));
    assert!([&all, &rest].iter().all(|page| page.bulk_sends[0].status == BulkStatus::Done));
}

#[test]
fn a_cancelled_send_reaches_nobody_whose_turn_had_not_come() {
    let world = with_followers(world(Arc::new(MemoryStore::default())), 250);
    let followers: Vec<String> = (0..250).map(follower).collect();
    let all = to_users(&followers.iter().map(String::as_str).collect::<Vec<_>>());
    let (send, _) = world.engine.create_bulk_send(new("1", all)).unwrap();
    assert!(world.wait(world.engine.work_on_bulk_sends()).unwrap(), "one round does not reach all");
    let cancelled = world.engine.cancel_bulk_send(send.id).unwrap();
    assert_eq!((cancelled.status, cancelled.sent), (BulkStatus::Cancelled, 100));
    work(&world);
    assert_eq!(receivers(&world, 250), (0..100).collect::<Vec<_>>());
    assert_eq!(world.engine.cancel_bulk_send(send.id).unwrap(), cancelled);
}

#[test]
fn after_a_crash_each_follower_has_the_message_once() {
    let inner = Arc::new(MemoryStore::default());
    let troubled = Arc::new(Troubled::on(inner.clone()));
    let before = with_followers(world(troubled.clone()), 150);
    let followers: Vec<String> = (0..150).map(follower).collect();
    let all = to_users(&followers.iter().map(String::as_str).collect::<Vec<_>>());
    let (send, _) = before.engine.create_bulk_send(new("1", all)).unwrap();
    // The messages of the first round are sent, and that they are is not recorded.
    troubled.fail_rows(usize::MAX);
    before.wait(before.engine.work_on_bulk_sends()).unwrap_err();
    before.take_fanouts();
    assert_eq!(receivers(&before, 150).len(), 100);
    let after = world(inner);
    work(&after);
    assert_eq!(receivers(&after, 150), (0..150).collect::<Vec<_>>());
    let done = after.engine.bulk_send(send.id).unwrap();
    assert_eq!((done.status, done.examined, done.sent), (BulkStatus::Done, 150, 150));
}

#[test]
fn what_cannot_be_sent_is_refused_with_the_field() {
    let world = with_followers(world(Arc::new(MemoryStore::default())), 1);
    world.engine.popups.flush().unwrap();
    world.conversation(ConversationKind::Group, "g", &["boss"]);
    world.conversation(ConversationKind::Official, "mute", &["boss"]);
    let some = || to_users(&["f000"]);
    let many = BulkTarget { users: Some(vec!["f000".into(); 10_001]), ..BulkTarget::default() };
    let segment = BulkTarget { segment: Some("unknown".into()), ..BulkTarget::default() };
    let rule = BulkTarget { rule: Some(RawValue::from_string("{\"is\":1}".into()).unwrap()), ..BulkTarget::default() };
    let both = BulkTarget { segment: Some("vip".into()), ..some() };
    let mut with_id = new("1", some());
    with_id.message.client_msg_id = Some("own".into());
    let cases = [
        (CreateBulkSend { account: "g".into(), ..new("1", some()) }, ErrorCode::Conflict, "account"),
        (CreateBulkSend { account: "mute".into(), ..new("1", some()) }, ErrorCode::Conflict, "user \"mute\""),
        (CreateBulkSend { account: "none".into(), ..new("1", some()) }, ErrorCode::NotFound, "none"),
        (new("1", many), ErrorCode::LimitExceeded, "to.users"),
        (new("1", segment), ErrorCode::NotFound, "unknown"),
        (new("1", rule), ErrorCode::InvalidField, "to.rule"),
        (new("1", both), ErrorCode::InvalidField, "to: "),
        (new("1", BulkTarget::default()), ErrorCode::InvalidField, "to: "),
        (new("a b", some()), ErrorCode::InvalidField, "client_bulk_id"),
        (with_id, ErrorCode::InvalidField, "message"),
    ];
    for (send, code, word) in cases {
        let refusal = world.engine.create_bulk_send(send).unwrap_err();
        assert_eq!(refusal.code, code, "{refusal}");
        assert!(refusal.detail.contains(word), "{refusal}");
    }
    assert!(world.engine.bulk_sends(None, 0).unwrap().bulk_sends.is_empty());
    assert_eq!(world.engine.cancel_bulk_send(7).unwrap_err().code, ErrorCode::NotFound);
}

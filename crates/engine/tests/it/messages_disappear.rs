//! Messages disappear after a time or once they are read: once, not before, whoever leads, whatever fails and however the clock jumps.
//! `EXPIRING_MESSAGES` says how many, `EXPIRING_SEED` replays a run.

use crate::{histories_are_imported::import, support::*};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::{model::Actor, store::Store};
use tidings_engine::{access::Caller, config::EngineConfig};
use tidings_protocol::{
    entry::{Entry, ExpiresAt},
    error::{ErrorCode, Refusal},
    http::*,
};
use tidings_testkit::MemoryStore;

fn world_on(store: Arc<dyn Store>) -> World {
    let events_keep = std::time::Duration::from_secs(86_400);
    World::new(EngineConfig { shards: 1, events_keep, ..EngineConfig::default() }, store)
}

fn peopled() -> World {
    let world = world_on(Arc::new(MemoryStore::shared()));
    world.users(&["ann", "ben", "cat"]);
    world.conversation(ConversationKind::Group, "g", &["ann", "ben", "cat"]);
    world
}

fn after(after_s: u32) -> Option<Expires> {
    Some(Expires { after_s: Some(after_s), after_read_s: None })
}

fn after_read(after_read_s: u32) -> Option<Expires> {
    Some(Expires { after_s: None, after_read_s: Some(after_read_s) })
}

fn send(world: &World, from: &str, text: &str, expires: Option<Expires>) -> u64 {
    let request = SendRequest { expires, client_msg_id: None, ..message(from, "g", text) };
    world.wait(world.engine.send(&Actor::App, request)).unwrap().seq
}

fn work(world: &World) {
    while world.wait(world.engine.work_on_due_messages()).unwrap() {}
    world.settle();
    world.take_fanouts();
}

fn work_at(world: &World, at: u64) {
    world.clock.set(at);
    work(world);
}

fn entry(world: &World, conversation: &str, seq: u64) -> Entry {
    world.engine.entry(&Actor::App, conversation, seq).unwrap()
}

fn is_gone(world: &World, seq: u64) -> bool {
    let entry = entry(world, "g", seq);
    let expired = entry.recalled.as_ref().is_some_and(|recalled| recalled.expired);
    assert_eq!(entry.body.get() == "null", expired);
    expired
}

fn read(world: &World, user: &str, seq: u64) {
    world.wait(world.engine.mark_read(&world.user(user), "g", seq)).unwrap();
    world.settle();
}

fn code<T>(result: Result<T, Refusal>) -> Option<ErrorCode> {
    result.err().map(|refusal| refusal.code)
}

fn update(world: &World, id: &str, fields: Value) -> ConversationDetails {
    let update = serde_json::from_value(fields).unwrap();
    world.wait(world.engine.update_conversation(&Actor::App, id, update)).unwrap()
}

#[test]
fn a_message_goes_when_its_time_is_over_and_everybody_learns_of_it() {
    let world = peopled();
    let seq = send(&world, "ann", "short", after(60));
    let answer = SendRequest { reply_to: Some(seq), client_msg_id: None, ..message("ben", "g", "answer") };
    let answer = world.wait(world.engine.send(&Actor::App, answer)).unwrap().seq;
    assert_eq!(entry(&world, "g", seq).expires, Some(ExpiresAt { at: NOON + 60_000, after_read_s: None }));
    let edit = serde_json::from_value(json!({"body": "edited"})).unwrap();
    world.wait(world.engine.edit_message(&Actor::App, "g", seq, edit)).unwrap();
    work_at(&world, NOON + 59_999);
    assert!(!is_gone(&world, seq), "nothing goes before its time, and an edit leaves the time");
    work_at(&world, NOON + 60_000);
    assert!(is_gone(&world, seq));
    let preview = entry(&world, "g", answer).reply_to.unwrap();
    assert!(preview.recalled && preview.body.is_none());
    let history = world.engine.history(&Actor::User(world.user("ben")), "g", &HistoryQuery::default()).unwrap();
    let recalls: Vec<&Entry> = history.entries.iter().filter(|entry| entry.kind.name() == "recall").collect();
    assert_eq!((recalls.len(), recalls[0].target, recalls[0].expired, &recalls[0].from), (1, Some(seq), true, &None));
    // The feed says why.
    let query = EventsQuery { types: Some("entry.recall".into()), ..EventsQuery::default() };
    let request = world.engine.events_request(&query).unwrap();
    let page = serde_json::to_value(world.engine.read_events(&request).unwrap().page).unwrap();
    assert_eq!(page["events"].as_array().unwrap().len(), 1);
    let event = &page["events"][0];
    assert_eq!((&event["data"]["target"], &event["data"]["expired"]), (&json!(seq), &json!(true)));
    // Once, also when the clock goes back and forth.
    for at in [NOON, NOON + 120_000, NOON + 30_000, NOON + 200_000] {
        work_at(&world, at);
    }
    let history = world.engine.history(&Actor::App, "g", &HistoryQuery::default()).unwrap();
    assert_eq!(history.entries.iter().filter(|entry| entry.kind.name() == "recall").count(), 1);
}

#[test]
fn a_message_goes_once_all_others_have_read_it_or_at_the_latest() {
    let world = peopled();
    let first = send(&world, "ann", "one", after_read(10));
    let bounded = Some(Expires { after_s: Some(60), after_read_s: Some(10) });
    let second = send(&world, "ann", "two", bounded);
    work(&world);
    read(&world, "ben", second);
    work_at(&world, NOON + 20_000);
    assert!(!is_gone(&world, first), "cat has not read it");
    read(&world, "cat", first);
    work(&world);
    work_at(&world, NOON + 29_999);
    assert!(!is_gone(&world, first));
    work_at(&world, NOON + 30_000);
    assert!(is_gone(&world, first));
    assert!(!is_gone(&world, second));
    work_at(&world, NOON + 60_000);
    assert!(is_gone(&world, second), "nobody waits longer than the longest time");

    // Who has left need not read; who sends no receipts has never read.
    let third = send(&world, "ann", "three", after_read(0));
    read(&world, "ben", third);
    work(&world);
    assert!(!is_gone(&world, third));
    let leave = ChangeMembers { add: vec![], remove: vec!["cat".into()], role: None };
    world.wait(world.engine.change_members(&Actor::App, "g", leave)).unwrap();
    world.settle();
    work(&world);
    assert!(is_gone(&world, third));
    world.wait(world.engine.set_receipts("ben", false)).unwrap();
    let fourth = send(&world, "ann", "four", after_read(0));
    read(&world, "ben", fourth);
    work(&world);
    assert!(!is_gone(&world, fourth));
}

#[test]
fn what_waits_to_be_read_outlasts_a_restart_and_reads_before_it_was_watched_count() {
    let store = Arc::new(MemoryStore::shared());
    let world = world_on(store.clone());
    world.users(&["ann", "ben", "cat"]);
    world.conversation(ConversationKind::Group, "g", &["ann", "ben"]);
    let seq = send(&world, "ann", "one", after_read(0));
    read(&world, "ben", seq);
    // The leader learns of the message after it was read.
    work(&world);
    assert!(is_gone(&world, seq));
    let seq = send(&world, "ann", "two", after_read(5));
    work(&world);
    drop(world);
    let world = world_on(store.clone());
    read(&world, "ben", seq);
    work_at(&world, NOON + 1_000);
    drop(world);
    let world = world_on(store);
    work_at(&world, NOON + 5_999);
    assert!(!is_gone(&world, seq));
    work_at(&world, NOON + 6_000);
    assert!(is_gone(&world, seq));
}

#[test]
fn a_conversations_own_time_holds_for_all_and_a_sender_may_only_choose_an_earlier_one() {
    let world = peopled();
    let details = update(&world, "g", json!({"expires": {"after_s": 60}}));
    assert_eq!(details.expires, after(60));
    let default = send(&world, "ann", "one", None);
    let shorter = send(&world, "ann", "two", after(10));
    let longer = send(&world, "ann", "three", after(600));
    work_at(&world, NOON + 10_000);
    assert_eq!([default, shorter, longer].map(|seq| is_gone(&world, seq)), [false, true, false]);
    update(&world, "g", json!({"expires": {}}));
    let stays = send(&world, "ann", "four", None);
    work_at(&world, NOON + 60_000);
    assert_eq!([default, longer, stays].map(|seq| is_gone(&world, seq)), [true, true, false]);
    assert_eq!(world.engine.conversation_details(&Actor::App, "g").unwrap().expires, None);
    // A direct conversation begins without, and gets it from an app server.
    let new = json!({"kind": "direct", "members": ["ann", "ben"], "expires": {"after_s": 60}});
    let new: CreateConversation = serde_json::from_value(new).unwrap();
    assert_eq!(code(world.wait(world.engine.create_conversation(&Actor::App, new))), Some(ErrorCode::InvalidField));
    world.conversation(ConversationKind::Direct, "", &["ann", "ben"]);
    assert_eq!(update(&world, "ann~ben", json!({"expires": {"after_s": 60}})).expires, after(60));
    // Members do not change it.
    let change = serde_json::from_value(json!({"expires": {"after_s": 5}})).unwrap();
    let refused = world.wait(world.engine.update_conversation(&Actor::User(world.user("ben")), "g", change));
    assert_eq!(code(refused), Some(ErrorCode::Forbidden));
}

#[test]
fn times_are_bounded_and_say_what_to_do() {
    let world = peopled();
    world.conversation(ConversationKind::Official, "o", &["ann"]);
    let refused = |conversation: &str, expires: Value| {
        let request = SendRequest {
            expires: Some(serde_json::from_value(expires).unwrap()),
            client_msg_id: None,
            ..message("ann", conversation, "x")
        };
        code(world.wait(world.engine.send(&Actor::App, request)))
    };
    assert_eq!(refused("g", json!({})), Some(ErrorCode::InvalidField));
    assert_eq!(refused("g", json!({"after_s": 0})), Some(ErrorCode::InvalidField));
    assert_eq!(refused("g", json!({"after_s": 31_536_001})), Some(ErrorCode::LimitExceeded));
    assert_eq!(refused("g", json!({"after_read_s": 604_801})), Some(ErrorCode::LimitExceeded));
    assert_eq!(refused("o", json!({"after_read_s": 1})), Some(ErrorCode::InvalidField));
    assert_eq!(refused("o", json!({"after_s": 31_536_000})), None);
    assert_eq!(refused("g", json!({"after_s": 1, "after_read_s": 604_800})), None);
}

/// All members are looked at whenever one reads on.
#[test]
fn in_a_large_group_nobody_waits_for_all_to_read() {
    let world = peopled();
    let ids: Vec<String> = (0..500).map(|n| format!("m{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    world.users(&ids);
    world.conversation(ConversationKind::Group, "large", &ids);
    // Otherwise receipts end at the same size, and refuse it.
    update(&world, "large", json!({"receipts": "counts"}));
    let to_large = |expires| {
        let request = SendRequest { expires, client_msg_id: None, ..message("m0", "large", "x") };
        code(world.wait(world.engine.send(&Actor::App, request)))
    };
    assert_eq!(to_large(after_read(0)), None, "500 are not too many");
    let add = |id: &str| ChangeMembers { add: vec![id.into()], remove: vec![], role: None };
    world.wait(world.engine.change_members(&Actor::App, "large", add("ann"))).unwrap();
    world.settle();
    assert_eq!(to_large(after_read(0)), Some(ErrorCode::LimitExceeded));
    assert_eq!(to_large(after(60)), None);
}

#[test]
fn a_legal_hold_keeps_what_would_disappear_until_it_is_lifted() {
    let world = peopled();
    let seq = send(&world, "ann", "evidence", after(60));
    let hold = SetLegalHold { name: "case 4711".into() };
    world.wait(world.engine.set_legal_hold("g", hold, "op")).unwrap();
    work_at(&world, NOON + 120_000);
    work_at(&world, NOON + 240_000);
    assert!(!is_gone(&world, seq));
    world.wait(world.engine.lift_legal_hold("g")).unwrap();
    work_at(&world, NOON + 300_000);
    assert!(is_gone(&world, seq));
}

/// In an import that takes days messages come whose time is over, more than go in one round.
#[test]
fn messages_of_an_import_go_once_it_is_finished_and_hold_up_nobody() {
    let world = peopled();
    let mut records = vec![json!({"type": "conversation", "id": "old", "kind": "group"})];
    records.push(json!({"type": "member", "conversation": "old", "user": "ann", "role": "owner"}));
    records.extend((0..1_200).map(|n| {
        json!({"type": "message", "conversation": "old", "id": format!("{n}"), "from": "ann", "at": 1_500_000_000_000_u64 + n, "body": n, "expires": {"after_s": 60}})
    }));
    import(&world, &records);
    let seq = send(&world, "ann", "soon", after(90));
    work_at(&world, NOON + 91_000);
    assert!(is_gone(&world, seq), "the import holds it up");
    let gone = |seq| entry(&world, "old", seq).recalled.is_some();
    assert!((1..=1_200).all(|seq| !gone(seq)));
    import(&world, &[json!({"type": "finish", "conversation": "old"})]);
    work_at(&world, NOON + 240_000);
    assert!((1..=1_200).all(gone));
}

#[test]
fn scheduled_messages_batches_and_growing_ones_disappear_too() {
    let world = peopled();
    let engine = &world.engine;
    let request = || SendRequest { expires: after(60), client_msg_id: None, ..message("ann", "g", "x") };
    let scheduled = ScheduleMessage { send_at: NOON + 30_000, message: request() };
    let scheduled = engine.schedule_message(&Caller::APP, scheduled).unwrap();
    assert_eq!(scheduled.message.expires, after(60));
    let batch = world.wait(engine.send_batch(&Actor::App, vec![request(), request()])).unwrap();
    let body = serde_json::value::to_raw_value(&json!({"text": "x"})).unwrap();
    let grows = world.wait(engine.begin_stream(&Actor::App, SendRequest { body, ..request() })).unwrap().seq;
    let seqs: Vec<u64> = batch.into_iter().map(|receipt| receipt.unwrap().seq).chain([grows]).collect();
    work_at(&world, NOON + 30_000);
    let sent = engine.history(&Actor::App, "g", &HistoryQuery::default()).unwrap().entries.pop().unwrap();
    assert_eq!(sent.expires.map(|expires| expires.at), Some(NOON + 90_000));
    work_at(&world, NOON + 60_000);
    assert!(seqs.iter().all(|seq| is_gone(&world, *seq)));
    assert!(!is_gone(&world, sent.seq), "a scheduled message has its time from when it is sent");
    work_at(&world, NOON + 90_000);
    assert!(is_gone(&world, sent.seq));
}

#[test]
fn each_goes_once_at_its_time_over_crashes_and_jumps_of_the_clock() {
    let of_variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (count, seed) = (of_variable("EXPIRING_MESSAGES").unwrap_or(300), of_variable("EXPIRING_SEED"));
    let seed = seed.unwrap_or_else(rand::random);
    println!("EXPIRING_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let memory = Arc::new(MemoryStore::shared());
    let troubled = Arc::new(Troubled::on(memory));
    let mut world = world_on(troubled.clone());
    world.users(&["ann", "ben"]);
    world.conversation(ConversationKind::Group, "g", &["ann", "ben"]);
    let mut times = BTreeMap::new();
    for n in 0..count {
        let after_s = random.random_range(1..60);
        // Every third one goes once it is read, which some are.
        let expires = Some(Expires { after_s: Some(after_s), after_read_s: (n % 3 == 0).then_some(3_600) });
        let seq = send(&world, "ann", &n.to_string(), expires);
        times.insert(seq, NOON + u64::from(after_s) * 1_000);
    }
    world.take_fanouts();
    let (mut now, mut crashes, mut lost) = (NOON, 0, 0);
    let mut gone = BTreeMap::new();
    while now < NOON + 70_000 {
        now = match random.random_range(0..20) {
            0 => now.saturating_sub(random.random_range(0..30_000)).max(NOON),
            1 => now + random.random_range(0..20_000),
            _ => now + random.random_range(0..1_000),
        };
        world.clock.set(now);
        match random.random_range(0..6) {
            0 => {
                drop(world);
                world = world_on(troubled.clone());
                world.clock.set(now);
                crashes += 1;
            }
            1 => {
                // What has gone is still in the index: it is found again.
                troubled.fail_rows(1);
                let _ = world.wait(world.engine.work_on_due_messages());
                troubled.fail_rows(0);
                lost += 1;
            }
            2 => read(&world, "ben", random.random_range(1..=count)),
            _ => {}
        }
        work(&world);
        for (seq, time) in times.iter().filter(|(seq, _)| !gone.contains_key(*seq)).collect::<Vec<_>>() {
            let is_gone = is_gone(&world, *seq);
            assert_eq!(is_gone, *time <= now, "message {seq} at {now}, whose time is {time}");
            if is_gone {
                gone.insert(*seq, now);
            }
        }
    }
    let mut recalls = BTreeMap::<u64, u64>::new();
    let mut from = 1;
    loop {
        let query = HistoryQuery { from_seq: Some(from), limit: Some(200), ..HistoryQuery::default() };
        let page = world.engine.history(&Actor::App, "g", &query).unwrap();
        let Some(last) = page.entries.last().map(|entry| entry.seq) else { break };
        page.entries.iter().filter_map(|entry| entry.target).for_each(|seq| *recalls.entry(seq).or_default() += 1);
        from = last + 1;
    }
    assert!(recalls.values().all(|times| *times == 1) && recalls.len() as u64 == count);
    assert!(crashes > 0 && lost > 0);
    println!(
        "{count} messages, {crashes} restarts, {lost} lost removals: each once, in the first round after its time"
    );
}

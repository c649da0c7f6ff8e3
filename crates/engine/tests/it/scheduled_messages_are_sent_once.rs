//! Messages for a later time are sent once, not before their time and with it, whoever leads, whatever fails and however the clock jumps.
//! `SCHEDULED_MESSAGES` says how many, `SCHEDULED_SEED` replays a run.

use crate::support::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::{model::Actor, store::Store};
use tidings_engine::{access::Caller, config::EngineConfig};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
};
use tidings_testkit::MemoryStore;

fn world_on(store: Arc<dyn Store>) -> World {
    let events_keep = std::time::Duration::from_secs(86_400);
    World::new(EngineConfig { shards: 1, events_keep, ..EngineConfig::default() }, store)
}

fn peopled(store: Arc<dyn Store>) -> World {
    let world = world_on(store);
    world.users(&["ann", "ben", "cat"]);
    world.conversation(ConversationKind::Group, "g", &["ann", "ben"]);
    world
}

fn user(world: &World, id: &str) -> Caller {
    Caller::from(&Actor::User(world.user(id)))
}

fn at(send_at: u64, message: SendRequest) -> ScheduleMessage {
    ScheduleMessage { send_at, message: SendRequest { client_msg_id: None, ..message } }
}

fn send_due(world: &World) {
    while world.wait(world.engine.send_scheduled()).unwrap() {}
    world.settle();
}

fn bodies(world: &World, conversation: &str) -> Vec<(String, u64)> {
    let history = world.engine.history(&Actor::App, conversation, &HistoryQuery::default()).unwrap();
    let messages = history.entries.into_iter().filter(|entry| entry.kind.name() == "message");
    messages
        .map(|entry| (serde_json::to_value(&entry.body).unwrap().as_str().unwrap_or_default().to_owned(), entry.at))
        .collect()
}

fn code<T>(result: Result<T, Refusal>) -> Option<ErrorCode> {
    result.err().map(|refusal| refusal.code)
}

#[test]
fn a_message_is_listed_changed_and_cancelled_until_its_time() {
    let world = peopled(Arc::new(MemoryStore::shared()));
    let (engine, ann) = (&world.engine, user(&world, "ann"));
    let own = SendRequest { from: None, ..message("ann", "g", "one") };
    let first = engine.schedule_message(&ann, at(NOON + 1_000, own.clone())).unwrap();
    let second = engine.schedule_message(&Caller::APP, at(NOON + 2_000, message("ann", "g", "two"))).unwrap();
    let third = engine.schedule_message(&ann, at(NOON + 3_000, own.clone())).unwrap();
    let list = |caller: &Caller, from: Option<&str>| {
        let page = engine.scheduled_messages(caller, from, None, 0).unwrap();
        page.scheduled_messages.iter().map(|message| message.id).collect::<Vec<_>>()
    };
    assert_eq!(list(&ann, None), [first.id, second.id, third.id]);
    assert_eq!(list(&Caller::APP, Some("ann")), list(&ann, None));
    let page = engine.scheduled_messages(&ann, None, Some(first.id), 1).unwrap();
    assert_eq!((page.scheduled_messages[0].id, page.next), (second.id, Some(second.id)));
    // Others' are hidden.
    let ben = user(&world, "ben");
    assert!(list(&ben, None).is_empty());
    assert_eq!(code(engine.scheduled_message(&ben, None, first.id)), Some(ErrorCode::NotFound));
    assert_eq!(code(engine.scheduled_message(&ben, Some("ann"), first.id)), Some(ErrorCode::Forbidden));
    assert_eq!(code(engine.cancel_scheduled_message(&ben, None, first.id)), Some(ErrorCode::NotFound));

    let update = serde_json::from_value(json!({"body": "changed", "send_at": NOON + 1_500})).unwrap();
    let changed = engine.update_scheduled_message(&ann, None, first.id, update).unwrap();
    assert_eq!((changed.send_at, changed.message.body.get()), (NOON + 1_500, "\"changed\""));
    engine.cancel_scheduled_message(&ann, None, third.id).unwrap();
    assert_eq!(code(engine.cancel_scheduled_message(&ann, None, third.id)), Some(ErrorCode::NotFound));

    world.clock.set(NOON + 1_499);
    send_due(&world);
    assert!(bodies(&world, "g").is_empty(), "nothing is sent before its time");
    world.clock.set(NOON + 1_500);
    assert_eq!(code(engine.cancel_scheduled_message(&ann, None, first.id)), Some(ErrorCode::Conflict));
    send_due(&world);
    assert_eq!(bodies(&world, "g"), [("changed".into(), NOON + 1_500)]);
    world.clock.set(NOON + 5_000);
    send_due(&world);
    assert_eq!(bodies(&world, "g").iter().map(|(body, _)| &**body).collect::<Vec<_>>(), ["changed", "two"]);
    assert!(list(&ann, None).is_empty());
}

#[test]
fn what_a_sender_may_not_do_any_more_is_kept_with_the_reason() {
    let world = peopled(Arc::new(MemoryStore::shared()));
    let (engine, ben) = (&world.engine, user(&world, "ben"));
    let own = |text: &str| SendRequest { from: None, ..message("ben", "g", text) };
    let direct = SendRequest { conversation: None, to: Some("cat".into()), ..own("private") };
    let kept = engine.schedule_message(&ben, at(NOON + 1_000, own("too late"))).unwrap();
    engine.schedule_message(&ben, at(NOON + 1_000, direct)).unwrap();
    let leave = ChangeMembers { add: vec![], remove: vec!["ben".into()], role: None };
    world.wait(engine.change_members(&Actor::App, "g", leave)).unwrap();
    world.clock.set(NOON + 1_000);
    send_due(&world);
    let list = engine.scheduled_messages(&ben, None, None, 0).unwrap().scheduled_messages;
    assert_eq!(list.len(), 1);
    let failed = list[0].failed.as_ref().unwrap();
    assert_eq!((list[0].id, &*failed.code, failed.at), (kept.id, "not_a_member", NOON + 1_000));
    assert_eq!(bodies(&world, "ben~cat").len(), 1);
    // The feed has it as well.
    world.wait(world.engine.add_feed_notes(true)).unwrap();
    world.settle();
    let query = EventsQuery { types: Some("scheduled_failed".into()), ..EventsQuery::default() };
    let request = engine.events_request(&query).unwrap();
    let page = serde_json::to_value(engine.read_events(&request).unwrap().page).unwrap();
    let event = &page["events"][0];
    assert_eq!(
        (&event["subject"], &event["data"]["id"], &event["data"]["code"]),
        (&json!("ben"), &json!(kept.id), &json!("not_a_member"))
    );
    // Another time is another try.
    let back = ChangeMembers { add: vec!["ben".into()], remove: vec![], role: None };
    world.wait(engine.change_members(&Actor::App, "g", back)).unwrap();
    let update = UpdateScheduledMessage { send_at: Some(NOON + 2_000), ..UpdateScheduledMessage::default() };
    assert!(engine.update_scheduled_message(&ben, None, kept.id, update).unwrap().failed.is_none());
    world.clock.set(NOON + 2_000);
    send_due(&world);
    assert_eq!(bodies(&world, "g"), [("too late".into(), NOON + 2_000)]);
    // A stranger schedules nothing, nor does anybody for the past.
    let stranger = user(&world, "cat");
    let refused = |send_at, caller: &Caller| code(engine.schedule_message(caller, at(send_at, own("x"))));
    assert_eq!(refused(NOON + 3_000, &stranger), Some(ErrorCode::NotAMember));
    assert_eq!(refused(NOON, &ben), Some(ErrorCode::InvalidField));
    // What is scheduled in an erased user's name goes with the user.
    engine.schedule_message(&ben, at(NOON + 9_000, own("never"))).unwrap();
    engine.erase_user("ben", ErasedMessages::Remove, "op").unwrap();
    while engine.work_on_erasures(&|_| Ok(0)).unwrap() {}
    world.clock.set(NOON + 9_000);
    send_due(&world);
    assert!(bodies(&world, "g").iter().all(|(body, _)| body != "never"));
}

#[test]
fn a_sender_has_so_many_and_a_retry_schedules_nothing_new() {
    let world = peopled(Arc::new(MemoryStore::shared()));
    let (engine, ann) = (&world.engine, user(&world, "ann"));
    let own = |id: Option<&str>, text: &str| ScheduleMessage {
        send_at: NOON + 1_000,
        message: SendRequest { client_msg_id: id.map(str::to_owned), from: None, ..message("ann", "g", text) },
    };
    let first = engine.schedule_message(&ann, own(Some("mine"), "a")).unwrap();
    assert_eq!(engine.schedule_message(&ann, own(Some("mine"), "a")).unwrap().id, first.id);
    let others: [fn(&mut SendRequest); 6] = [
        |message| message.body = serde_json::value::to_raw_value("b").unwrap(),
        |message| message.content_type = "other".into(),
        |message| message.mentions = vec!["ben".into()],
        |message| message.silent = true,
        |message| message.skip_push = true,
        |message| message.expires = Some(Expires { after_s: Some(60), after_read_s: None }),
    ];
    for change in others {
        let mut other = own(Some("mine"), "a");
        change(&mut other.message);
        assert_eq!(code(engine.schedule_message(&ann, other)), Some(ErrorCode::ClientMsgIdReused));
    }
    for n in 1..100 {
        engine.schedule_message(&ann, own(None, &n.to_string())).unwrap();
    }
    assert_eq!(code(engine.schedule_message(&ann, own(None, "more"))), Some(ErrorCode::LimitExceeded));
    engine.cancel_scheduled_message(&ann, None, first.id).unwrap();
    engine.schedule_message(&ann, own(None, "room again")).unwrap();
}

/// As many as are sent together wait for slow mode: others' go at their time, and these one by one.
#[test]
fn messages_that_have_to_wait_hold_up_nobody_elses() {
    let world = peopled(Arc::new(MemoryStore::shared()));
    let engine = &world.engine;
    let slow = serde_json::from_value(json!({ "slow_mode_s": 60 })).unwrap();
    world.wait(engine.update_conversation(&Actor::App, "g", slow)).unwrap();
    let (ann, ben) = (user(&world, "ann"), user(&world, "ben"));
    let own = |from: &str, text: &str| SendRequest { from: None, ..message(from, "g", text) };
    for _ in 0..100 {
        engine.schedule_message(&ben, at(NOON + 1_000, own("ben", "ben's"))).unwrap();
    }
    let direct = SendRequest { conversation: None, to: Some("cat".into()), ..own("ann", "ann's") };
    engine.schedule_message(&ann, at(NOON + 2_000, direct)).unwrap();
    world.clock.set(NOON + 2_000);
    send_due(&world);
    assert_eq!((bodies(&world, "g").len(), bodies(&world, "ann~cat").len()), (1, 1));
    world.clock.set(NOON + 2_000 + 61_000);
    send_due(&world);
    assert_eq!(bodies(&world, "g").len(), 2);
    // What waits can be cancelled, and changed; what has no pause left may be under way.
    let waiting: Vec<u64> = engine
        .scheduled_messages(&ben, None, None, 0)
        .unwrap()
        .scheduled_messages
        .iter()
        .map(|message| message.id)
        .collect();
    engine.cancel_scheduled_message(&ben, None, waiting[0]).unwrap();
    let update = UpdateScheduledMessage { send_at: Some(NOON + 900_000), ..UpdateScheduledMessage::default() };
    engine.update_scheduled_message(&ben, None, waiting[1], update).unwrap();
    world.clock.set(NOON + 2_000 + 61_000 + 60_000);
    assert_eq!(code(engine.cancel_scheduled_message(&ben, None, waiting[2])), Some(ErrorCode::Conflict));
    send_due(&world);
    assert_eq!(engine.scheduled_messages(&ben, None, None, 0).unwrap().scheduled_messages.len(), 96);
}

#[test]
fn each_is_sent_once_at_its_time_over_crashes_and_jumps_of_the_clock() {
    let of_variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (count, seed) = (of_variable("SCHEDULED_MESSAGES").unwrap_or(300), of_variable("SCHEDULED_SEED"));
    let seed = seed.unwrap_or_else(rand::random);
    println!("SCHEDULED_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let memory = Arc::new(MemoryStore::shared());
    let troubled = Arc::new(Troubled::on(memory.clone()));
    let mut world = world_on(troubled.clone());
    let senders: Vec<String> = (0..count.div_ceil(100)).map(|n| format!("u{n}")).collect();
    world.users(&senders.iter().map(String::as_str).collect::<Vec<_>>());
    for room in ["r0", "r1", "r2"] {
        world.conversation(ConversationKind::Group, room, &senders.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let mut times = BTreeMap::new();
    let mut now = NOON;
    for n in 0..count {
        let send_at = NOON + random.random_range(0..60_000);
        let request = message(&senders[(n / 100) as usize], &format!("r{}", n % 3), &format!("m{n}"));
        world.engine.schedule_message(&Caller::APP, at(send_at, request)).unwrap();
        times.insert(format!("m{n}"), send_at);
    }
    // The first time at which each could have been sent.
    let mut could: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut crashes, mut lost) = (0, 0);
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
                // What was sent is not removed: it is sent again under the same id.
                troubled.fail_rows(1);
                let _ = world.wait(world.engine.send_scheduled());
                troubled.fail_rows(0);
                lost += 1;
            }
            _ => {}
        }
        send_due(&world);
        world.take_fanouts();
        for (text, send_at) in times.iter().filter(|(_, send_at)| **send_at <= now) {
            could.entry(text).or_insert_with(|| now.max(*send_at));
        }
    }
    let mut sent = BTreeMap::new();
    for room in ["r0", "r1", "r2"] {
        let mut from = 1;
        loop {
            let query = HistoryQuery { from_seq: Some(from), limit: Some(200), ..HistoryQuery::default() };
            let page = world.engine.history(&Actor::App, room, &query).unwrap();
            let Some(last) = page.entries.last().map(|entry| entry.seq) else { break };
            for entry in page.entries.into_iter().filter(|entry| entry.kind.name() == "message") {
                let text = serde_json::to_value(&entry.body).unwrap().as_str().unwrap().to_owned();
                assert!(sent.insert(text.clone(), entry.at).is_none(), "{text} was sent twice");
                assert!(entry.at >= times[&text], "{text} was sent {} ms too early", times[&text] - entry.at);
            }
            from = last + 1;
        }
    }
    assert_eq!(sent.len() as u64, count, "each was sent");
    // In the round in which it was first due; a room's time never goes back, so that a jump of the clock shows there.
    let newest = could.values().copied().max().unwrap();
    assert!(sent.values().all(|at| *at <= newest));
    assert!(crashes > 0 && lost > 0);
    println!(
        "{count} messages, {crashes} restarts, {lost} lost removals: each once, in the first round after its time"
    );
}

//! Pushes, notifications and what popups do come into the feed of events, whatever stops in between.

use crate::provider_world::*;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    chat_rows::feed_notes_from,
    model::Actor,
    providers::ProviderAnswer,
    push_store::{PushChange, PushKey, PushStore},
    store::{RowChange, RowSpace, RowStore, Term},
};
use tidings_popups::{EventCursor, Precondition, QuestionBody};
use tidings_protocol::http::*;
use tidings_push::PushReports;
use tidings_testkit::MemoryStore;

fn setup(store: &Arc<MemoryStore>, events_also: &[EventType]) -> Setup {
    Setup { store: store.clone(), events_also: events_also.to_vec(), ..Setup::default() }
}

/// What the feed has of these types, as (id, type, subject, data), in its order.
fn feed(world: &World, types: &str) -> Vec<(String, String, String, Value)> {
    let engine = &world.engine;
    // Callers are answered before the node knows of a commit.
    let deadline = Instant::now() + PATIENCE;
    while engine.directory.current() < engine.store.last_position() {
        assert!(Instant::now() < deadline, "the node does not know what was committed");
        std::thread::yield_now();
    }
    let mut found = Vec::new();
    let mut after = None;
    loop {
        // Pages of one event: those of one commit are cut apart.
        let query = EventsQuery { after, types: Some(types.into()), limit: Some(1), ..EventsQuery::default() };
        let page = engine.read_events(&engine.events_request(&query).unwrap()).unwrap().page;
        for event in &page.events {
            let event = serde_json::to_value(event).unwrap();
            let text = |name: &str| event[name].as_str().unwrap().to_owned();
            assert!(event["time"].is_string());
            found.push((text("id"), text("type"), text("subject"), event["data"].clone()));
        }
        if !page.more {
            return found;
        }
        after = Some(page.next);
    }
}

async fn add_all(world: &World) {
    while world.engine.add_feed_notes(true).await.unwrap() {}
}

/// A push that is acknowledged, a message that is notified, a popup that is shown and clicked, and an event of the app's own.
async fn something_happens(world: &World) -> u64 {
    let phone = world.bind("ben", "phone");
    let push = world
        .push(
            json!({ "to": { "users": ["ben"] }, "type": "offer", "body": 1, "ttl_s": 3_600, "client_push_id": "p-1" }),
        )
        .await;
    let mut reports = PushReports::default();
    reports.add_acknowledged(phone, &[push]);
    world.engine.push.report(reports);
    world.engine.push.settle().unwrap();
    world.unbind("ben", phone);
    world.say("hello").await;
    world.until_recorded("ben", 1).await;
    let popups = &world.engine.popups;
    let spec = json!({ "state": "live", "placements": ["home"], "variants": [{ "id": "a", "content": {} }] });
    popups.put("welcome", spec.to_string().as_bytes(), None, Precondition::None).unwrap();
    let question = QuestionBody::read(br#"{"user": "ben", "placement": "home"}"#).unwrap();
    let decision = popups.decide(&question.for_user("ben")).await.unwrap();
    let decision = decision.exposure.unwrap().decision.to_string();
    let events = json!([
        { "id": "e-1", "type": "click", "decision": decision },
        { "id": "e-2", "type": "custom", "user": "ben", "name": "bought", "properties": { "price": 7 } },
        { "id": "\"".repeat(64), "type": "custom", "user": "ben", "name": "\"".repeat(64),
            "properties": { "a": "x".repeat(1_010), "b": "y".repeat(1_010) } },
    ]);
    let reported = popups.report_events(&Actor::App, serde_json::from_value(events).unwrap()).await.unwrap();
    assert_eq!(reported.accepted, 3);
    let popups = popups.clone();
    tokio::task::spawn_blocking(move || popups.flush().unwrap()).await.unwrap();
    // The state of a push that nobody has still to get is stored at its end.
    world.clock.advance(Duration::from_secs(3_601));
    let ended = async {
        while world.engine.push.status(push).unwrap().ended_at.is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("the push has ended");
    push
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_before_a_crash_comes_into_the_feed_once_the_server_is_back() {
    let store = Arc::new(MemoryStore::shared());
    let world = world(setup(&store, &EventType::OPTIONAL)).with_room(&["ada", "ben"]).await;
    let push = something_happens(&world).await;
    assert_eq!(feed(&world, "push,notification,popup."), []);
    world.stop();
    // Whatever the settings are by now: what waits was wanted.
    let world = crate::provider_world::world(setup(&store, &[EventType::Push]));
    add_all(&world).await;
    let found = feed(&world, "push,notification,popup.");
    let of = |kind: &str| found.iter().filter(|event| event.1 == kind).map(|event| event.3.clone()).collect::<Vec<_>>();

    let status = world.engine.push.status(push).unwrap();
    let states: Vec<Value> = of("push").iter().map(|push| push["state"].clone()).collect();
    assert_eq!(states, ["running", "completed"], "{found:#?}");
    assert_eq!(status.state, PushState::Completed);
    let last = of("push").pop().unwrap();
    let of_status = json!({ "push": push, "state": "completed", "client_push_id": "p-1", "content_type": "offer", "targets": 1,
        "accepted_at": status.accepted_at, "started_at": status.started_at, "ended_at": status.ended_at });
    assert_eq!(last, of_status);

    let notified = of("notification");
    assert!(notified.iter().all(|event| event["conversation"] == "room" && event["seq"] == 1), "{notified:?}");
    let accepted = notified.iter().filter(|event| event["outcome"] == "accepted").collect::<Vec<_>>();
    assert_eq!(accepted.len(), 1, "{notified:?}");
    assert_eq!(accepted[0]["channel"], "fcm");
    assert_eq!(accepted[0]["users"], json!([{ "user": "ben", "device_id": "phone" }]));

    assert_eq!(
        of("popup.exposure"),
        [json!({ "user": "ben", "popup": "welcome", "variant": "a", "outcome": "shown" })]
    );
    let exported = serde_json::to_value(world.exported()).unwrap();
    let exported = exported.as_array().unwrap();
    let by_id = |events: &[Value]| -> BTreeMap<String, Value> {
        events.iter().map(|event| (event["id"].as_str().unwrap().to_owned(), event.clone())).collect()
    };
    assert_eq!((by_id(&of("popup.event")), exported.len()), (by_id(exported), 3));
    let ids: std::collections::BTreeSet<&String> = found.iter().map(|event| &event.0).collect();
    assert_eq!(ids.len(), found.len(), "each has an id of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_note_that_is_committed_twice_has_the_same_id_both_times() {
    let store = Arc::new(MemoryStore::shared());
    let world = world(setup(&store, &EventType::OPTIONAL)).with_room(&["ada", "ben"]).await;
    something_happens(&world).await;
    let spaces = [(RowSpace::Chat, feed_notes_from(0)), (RowSpace::Popups, tidings_popups::feed_notes_from(0))];
    let rows = spaces.map(|(space, (from, to))| (space, store.rows(space, &from, &to, 1_000).unwrap()));
    let pushes = store.push_rows(&PushKey::Notes((0, 0)), &PushKey::Notes((u64::MAX, u64::MAX)), 1_000).unwrap();
    assert!(rows.iter().all(|(_, rows)| !rows.is_empty()) && !pushes.is_empty());
    add_all(&world).await;
    let once = feed(&world, "push,notification,popup.");
    // The leader ended between the commit and the end of the rows.
    for (space, rows) in rows {
        let changes = rows.into_iter().map(|(key, row)| RowChange { key, value: Some(row) }).collect();
        store.write_rows(Term::ALONE, space, changes).unwrap();
    }
    store.write_push(Term::ALONE, &pushes.into_iter().map(PushChange::Put).collect::<Vec<_>>()).unwrap();
    add_all(&world).await;
    let twice = feed(&world, "push,notification,popup.");
    assert_eq!(twice[..once.len()], once);
    assert_eq!(twice[once.len()..], once);
    add_all(&world).await;
    assert_eq!(feed(&world, "push,notification,popup.").len(), twice.len(), "the rows are gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_settings_do_not_name_writes_nothing() {
    let store = Arc::new(MemoryStore::shared());
    let world = world(setup(&store, &[EventType::PopupEvent])).with_room(&["ada", "ben"]).await;
    something_happens(&world).await;
    add_all(&world).await;
    let kinds: Vec<String> = feed(&world, "push,notification,popup.").into_iter().map(|event| event.1).collect();
    assert_eq!(kinds, ["popup.event"; 3]);
}

impl World {
    fn exported(&self) -> Vec<ExportedEvent> {
        let mut cursor = EventCursor::new(None, None, None);
        self.engine.popups.export_events(&mut cursor).unwrap().0
    }

    /// Waits until it is recorded what became of notifying the user of a message.
    async fn until_recorded(&self, user: &str, seq: u64) {
        let recorded = async {
            loop {
                let found = self.notifications.message_notifications("room", seq, user).unwrap();
                if found.outcome == NotificationOutcome::Accepted {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, recorded).await.expect("the notification is recorded");
    }
}

/// In the same commit as the registration: nothing waits in between.
#[tokio::test(flavor = "multi_thread")]
async fn devices_are_in_the_feed_as_their_tokens_come_and_go() {
    let store = Arc::new(MemoryStore::shared());
    let gone = ProviderAnswer::TokenGone { since: None };
    let setup = Setup { answers: vec![gone], ..setup(&store, &[EventType::Device]) };
    let world = world(setup).with_users_in_room(&["ada", "ben", "cyd"]).await;
    for (user, device, token) in [
        ("ben", "phone", Some(fcm("t-1"))),
        // The same once more, as at each start of an app.
        ("ben", "phone", Some(fcm("t-1"))),
        ("ben", "phone", Some(fcm("t-2"))),
        ("ben", "tablet", Some(fcm("t-3"))),
        // Somebody else uses the phone from now on.
        ("cyd", "phone", Some(fcm("t-2"))),
        ("cyd", "phone", None),
        ("cyd", "phone", None),
    ] {
        world.register(user, device, token).await.unwrap();
    }
    let is = |user: &str, device: &str, registered: bool| {
        let mut event = json!({ "user": user, "device_id": device, "registered": registered });
        if registered {
            event["provider"] = json!("fcm");
        }
        (user.to_owned(), event)
    };
    let mut expected = vec![
        is("ben", "phone", true),
        is("ben", "phone", true),
        is("ben", "tablet", true),
        is("ben", "phone", false),
        is("cyd", "phone", true),
        is("cyd", "phone", false),
    ];
    let found = || -> Vec<(String, Value)> {
        feed(&world, "device").into_iter().map(|(_, _, subject, data)| (subject, data)).collect()
    };
    assert_eq!(found(), expected);
    // The provider says that the app is gone from the tablet.
    world.say("hello").await;
    expected.push(is("ben", "tablet", false));
    world.until_counted("token_gone", 1).await;
    assert_eq!(found(), expected);
    let ids: std::collections::BTreeSet<String> = feed(&world, "device").into_iter().map(|event| event.0).collect();
    assert_eq!(ids.len(), expected.len(), "each has an id of its own");
}

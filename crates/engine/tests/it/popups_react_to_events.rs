//! Popups react to what users did: conditions on events, re-eligibility, snoozes and delays after events; on all devices,
//! after restarts and crashes, with the right time to ask again and the right part of the configuration in explanations.

use crate::popup_support;
use crate::popup_support::{DAY, HOUR, SECOND, custom, event, read_event, start};
use crate::support::*;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tidings_domain::{clock::Clock, model::Actor};
use tidings_popups::{PopupsConfig, Precondition, UserKey};
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_testkit::MemoryStore;

fn world() -> World {
    start(PopupsConfig::default(), Arc::new(MemoryStore::default()))
}

/// What explains why the popup is not shown: its outcome, field and time.
fn why(world: &World, user: &str, popup: &str) -> (ExplainedOutcome, String, Option<u64>) {
    let explained = world.explain(user, json!({})).popups.into_iter().find(|one| one.popup == popup).unwrap();
    (explained.outcome, explained.field.unwrap_or_default(), explained.not_before)
}

fn retry_after(world: &World, user: &str) -> Option<u64> {
    let decision = world.decide_with(user, json!({})).unwrap();
    assert!(decision.exposure.is_none(), "a popup is shown");
    decision.retry_after_ms
}

#[test]
fn a_popup_is_never_shown_again_after_a_conversion_and_a_week_after_a_dismissal() {
    let world = world();
    world.put_popup("sale", json!({"after": {"conversion": "never", "dismiss": "7d", "click": "90m"}}));
    let first = world.decide("ada").unwrap();
    assert!(world.decide("ada").is_some(), "no event, no pause");
    world.report(vec![event("1", &first, PopupEventKind::Dismiss)]).unwrap();
    let at = world.clock.now_ms();
    assert_eq!(retry_after(&world, "ada"), Some(7 * DAY));
    assert_eq!(why(&world, "ada", "sale"), (ExplainedOutcome::NotYet, "after.dismiss".into(), Some(at + 7 * DAY)));
    assert!(world.decide("ben").is_some(), "another user");
    world.clock.set(at + 7 * DAY);
    assert!(world.decide("ada").is_some());
    let pressed = read_event(json!({"id": "2", "decision": first, "type": "button", "button": "go"}));
    let refused = world.report(vec![pressed]).unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidField, "the popup has no such button");
    world.report(vec![event("2", &first, PopupEventKind::Click)]).unwrap();
    assert_eq!(retry_after(&world, "ada"), Some(90 * 60 * SECOND));
    world.report(vec![event("3", &first, PopupEventKind::Conversion)]).unwrap();
    assert_eq!(retry_after(&world, "ada"), None);
    assert_eq!(why(&world, "ada", "sale"), (ExplainedOutcome::No, "after.conversion".into(), None));
}

#[test]
fn a_popup_is_shown_two_hours_after_one_event_unless_another_followed() {
    let world = world();
    let audience = json!({"all": [
        {"event": {"name": "cart", "before_s": 7200, "within_s": 86400}},
        {"not": {"event": {"name": "purchase", "since_event": "cart"}}}]});
    world.put_popup("forgotten", json!({"audience": audience}));
    assert_eq!(retry_after(&world, "ada"), None);
    assert_eq!(why(&world, "ada", "forgotten"), (ExplainedOutcome::No, "audience.all[0]".into(), None));
    // A purchase before the cart is none since then.
    world.report(vec![custom("0", "ada", "purchase")]).unwrap();
    world.clock.advance(Duration::from_millis(SECOND));
    world.report(vec![custom("1", "ada", "cart"), custom("1", "ben", "cart")]).unwrap();
    let at = world.clock.now_ms();
    assert_eq!(retry_after(&world, "ada"), Some(2 * HOUR));
    assert_eq!(
        why(&world, "ada", "forgotten"),
        (ExplainedOutcome::NotYet, "audience.all[0]".into(), Some(at + 2 * HOUR))
    );
    world.clock.set(at + HOUR);
    world.report(vec![custom("2", "ben", "purchase")]).unwrap();
    assert_eq!(retry_after(&world, "ben"), None);
    assert_eq!(why(&world, "ben", "forgotten").1, "audience.all[0]", "the first condition in the order of the text");
    world.clock.set(at + 2 * HOUR - 1);
    assert_eq!(retry_after(&world, "ada"), Some(1));
    world.clock.set(at + 2 * HOUR);
    assert!(world.decide("ada").is_some());
    assert_eq!(why(&world, "ben", "forgotten").1, "audience.all[1].not");
    world.clock.set(at + DAY);
    assert_eq!(retry_after(&world, "ada"), None, "the cart is too old");
}

#[test]
fn a_condition_that_ends_before_the_caps_allow_the_popup_is_explained() {
    let world = world();
    let caps = json!({"gap_s": 3600});
    world.put_popup("hint", json!({"audience": {"event": {"name": "lost", "within_s": 600}}, "caps": caps}));
    world.report(vec![custom("1", "ada", "lost")]).unwrap();
    assert!(world.decide("ada").is_some());
    assert_eq!(retry_after(&world, "ada"), None);
    assert_eq!(why(&world, "ada", "hint"), (ExplainedOutcome::No, "audience".into(), None));
}

#[test]
fn a_snooze_keeps_one_popup_from_one_user_until_it_is_over() {
    let world = world();
    world.put_popup("tip", json!({}));
    let decision = world.decide("ada").unwrap();
    let snooze = |id: &str, part: &str, value: u64| {
        read_event(json!({"id": id, "decision": decision, "type": "snooze", part: value}))
    };
    world.report(vec![snooze("1", "for_s", 3600)]).unwrap();
    let at = world.clock.now_ms();
    assert_eq!(retry_after(&world, "ada"), Some(HOUR));
    assert_eq!(why(&world, "ada", "tip"), (ExplainedOutcome::NotYet, "snooze".into(), Some(at + HOUR)));
    assert!(world.decide("ben").is_some());
    // The last word counts: shorter, longer, or none.
    world.report(vec![snooze("2", "until", at + 60 * SECOND)]).unwrap();
    assert_eq!(retry_after(&world, "ada"), Some(60 * SECOND));
    world.report(vec![snooze("3", "for_s", 0)]).unwrap();
    assert!(world.decide("ada").is_some());
    let exported = world.export(None, None, Some("tip"));
    // Events of one millisecond are in any order.
    let mut until: Vec<u64> = exported.iter().map(|event| event.until.unwrap()).collect();
    until.sort_unstable();
    assert_eq!(until, [at, at + 60 * SECOND, at + HOUR]);
}

#[test]
fn a_popup_with_a_delay_is_shown_once_for_each_report_of_its_event() {
    let world = world();
    world.put_popup("help", json!({"trigger": {"event": "stuck", "delay_s": 300}}));
    assert_eq!(why(&world, "ada", "help"), (ExplainedOutcome::No, "trigger.event".into(), None));
    for round in 0..2 {
        world.report(vec![custom(&format!("e{round}"), "ada", "stuck")]).unwrap();
        let at = world.clock.now_ms();
        assert_eq!(retry_after(&world, "ada"), Some(300 * SECOND));
        assert_eq!(
            why(&world, "ada", "help"),
            (ExplainedOutcome::NotYet, "trigger.delay_s".into(), Some(at + 300 * SECOND))
        );
        world.clock.advance(Duration::from_millis(300 * SECOND));
        let of_event = world.decide_with("ada", json!({"event": {"name": "stuck"}})).unwrap();
        assert!(of_event.exposure.is_none(), "it is for page views");
        assert!(world.decide("ada").is_some());
        assert_eq!(retry_after(&world, "ada"), None, "once for a report");
    }
}

#[test]
fn conditions_name_other_popups_and_count_events() {
    let world = world();
    world.put_popup("first", json!({"caps": {"total": 1}, "priority": 1}));
    let clicked = json!({"popup_event": {"popup": "first", "type": "click", "times_gte": 2}});
    world.put_popup("second", json!({"audience": clicked}));
    let decision = world.decide("ada").unwrap();
    for (id, expected) in [("1", None), ("2", Some("second"))] {
        world.report(vec![event(id, &decision, PopupEventKind::Click)]).unwrap();
        // A repeated report is no second click.
        assert_eq!(world.report(vec![event(id, &decision, PopupEventKind::Click)]).unwrap().duplicates, 1);
        assert_eq!(world.explain("ada", json!({})).chosen.as_deref(), expected);
    }
    let refused = world.engine.popups.remove("first", Precondition::None).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict, "second names it");
    let unknown = popup_support::spec(json!({"audience": {"popup_event": {"popup": "gone", "type": "click"}}}));
    let refused =
        world.engine.popups.put("third", unknown.to_string().as_bytes(), None, Precondition::None).unwrap_err();
    assert_eq!((refused.code, &*refused.detail), (ErrorCode::InvalidField, "audience: unknown popup \"gone\""));
}

#[test]
fn impressions_are_remembered_once_a_popup_looks_at_them() {
    let world = world();
    world.put_popup("seen", json!({"after": {"impression": "1d"}}));
    let decision = world.decide("ada").unwrap();
    assert!(world.decide("ada").is_some(), "an exposure is no impression");
    world.report(vec![event("1", &decision, PopupEventKind::Impression)]).unwrap();
    assert_eq!(retry_after(&world, "ada"), Some(DAY));
}

#[test]
fn marks_outlive_evictions_restarts_and_crashes() {
    let store = Arc::new(MemoryStore::default());
    let config = PopupsConfig { users_max: 1, ..PopupsConfig::default() };
    let world = start(config.clone(), store.clone());
    world.put_popup("sale", json!({"after": {"conversion": "never"}}));
    let decision = world.decide("ada").unwrap();
    world.engine.popups.flush().unwrap();
    world.report(vec![event("1", &decision, PopupEventKind::Conversion), custom("2", "ada", "x")]).unwrap();
    // What is stored now is all that a crash leaves; the first engine is not stopped.
    let crashed = start(config.clone(), store.clone());
    assert_eq!(why(&crashed, "ada", "sale").1, "after.conversion");
    for n in 0..10_000 {
        let name = format!("u{n}");
        if UserKey::of(&name).0 % 64 == UserKey::of("ada").0 % 64 {
            world.explain(&name, json!({}));
        }
    }
    assert_eq!(why(&world, "ada", "sale").1, "after.conversion", "read from the store again");
    drop((world, crashed));
    assert_eq!(why(&start(config, store), "ada", "sale").1, "after.conversion", "after a restart");
}

#[test]
fn of_too_many_custom_events_the_oldest_is_forgotten() {
    let world = world();
    for n in 0..65 {
        world.put_popup(&format!("p{n}"), json!({"audience": {"event": {"name": format!("e{n}")}}}));
        world.report(vec![custom(&format!("{n}"), "ada", &format!("e{n}"))]).unwrap();
        world.clock.advance(Duration::from_millis(1));
    }
    let holds = |popup: &str| why(&world, "ada", popup).0 != ExplainedOutcome::No;
    assert_eq!((holds("p0"), holds("p1"), holds("p64")), (false, true, true));
    // One that happens again is not the oldest any more.
    world.report(vec![custom("again", "ada", "e1"), custom("new", "ada", "e0")]).unwrap();
    assert_eq!((holds("p0"), holds("p1"), holds("p2")), (true, true, false));
    world.clock.advance(Duration::from_millis(400 * DAY));
    world.report(vec![custom("later", "ada", "e9")]).unwrap();
    assert_eq!((holds("p0"), holds("p9")), (false, true), "after 13 months without the event");
}

#[test]
fn wrong_events_are_refused_by_field() {
    let world = world();
    world.put_popup("sale", json!({}));
    let decision = world.decide("ada").unwrap();
    world.users(&["ada"]);
    let ada = Actor::User(world.user("ada"));
    let refused = |actor: &Actor, event: Value, detail: &str| {
        let refusal =
            world.wait(world.engine.popups.report_events(actor, vec![read_event(event.clone())])).unwrap_err();
        assert!(refusal.detail.starts_with(detail), "{event}: {}", refusal.detail);
    };
    let app = |event: Value, detail: &str| refused(&Actor::App, event, detail);
    app(json!({"id": "1", "type": "custom", "user": "ada"}), "events[0].name: is missing");
    app(json!({"id": "1", "type": "custom", "name": "x"}), "events[0].user: is missing");
    app(json!({"id": "1", "type": "custom", "name": "", "user": "ada"}), "events[0].name: must have");
    app(json!({"id": "1", "type": "custom", "name": "x", "user": ""}), "events[0].user");
    app(
        json!({"id": "1", "type": "custom", "name": "x", "user": "ada", "decision": decision}),
        "events[0].decision: is for",
    );
    app(json!({"id": "1", "type": "click", "decision": decision, "name": "x"}), "events[0].name: is only allowed");
    app(json!({"id": "1", "type": "click"}), "events[0].decision: is missing");
    app(json!({"id": "1", "type": "click", "decision": decision, "for_s": 5}), "events[0].for_s: is for snooze");
    app(json!({"id": "1", "type": "snooze", "decision": decision}), "events[0].until: give either");
    app(
        json!({"id": "1", "type": "snooze", "decision": decision, "until": 1, "for_s": 1}),
        "events[0].for_s: cannot be combined",
    );
    app(
        json!({"id": "1", "type": "snooze", "decision": decision, "for_s": u64::MAX}),
        "events[0].for_s: must be at most",
    );
    app(json!({"id": "1", "type": "snooze", "decision": decision, "until": u64::MAX}), "events[0].until: is more than");
    app(
        json!({"id": "1", "type": "custom", "name": "x", "user": "ada", "properties": {"a": {}}}),
        "events[0].properties.a: ",
    );
    let long = json!({"id": "1", "type": "custom", "name": "x", "user": "ada", "properties": {"a": ["y".repeat(1_000), "y".repeat(1_000), "y".repeat(100)]}});
    app(long, "events[0].properties (bytes)");
    refused(&ada, json!({"id": "1", "type": "custom", "name": "x", "user": "ben"}), "events[0].user: is another user");
    let own = read_event(json!({"id": "1", "type": "custom", "name": "x", "properties": {"n": 1}}));
    assert_eq!(world.wait(world.engine.popups.report_events(&ada, vec![own])).unwrap().accepted, 1);
    let of_app = |id: &str, name: &str| read_event(json!({"id": id, "type": "custom", "name": name, "user": "ada"}));
    assert_eq!(world.report(vec![of_app("1", "x")]).unwrap().duplicates, 1, "known by its id");
    assert_eq!(world.report(vec![of_app("2", "message_missed")]).unwrap().accepted, 1);
    let exported = world.export(None, None, None);
    let mut told: Vec<_> = exported.iter().map(|event| (event.user.as_str(), event.name.as_deref().unwrap())).collect();
    told.sort_unstable();
    assert_eq!(told, [("ada", "message_missed"), ("ada", "x")]);
    let properties = exported.iter().find_map(|event| event.properties.as_ref()).unwrap();
    assert_eq!(properties["n"], json!(1));
}

#[test]
fn wrong_reactions_of_a_popup_are_refused_by_field() {
    let world = world();
    let refused = |parts: Value, detail: &str| {
        let spec = popup_support::spec(parts).to_string();
        let refusal = world.engine.popups.put("p", spec.as_bytes(), None, Precondition::None).unwrap_err();
        assert!(refusal.detail.starts_with(detail), "{}", refusal.detail);
    };
    refused(json!({"after": {"click": "soon"}}), "after.click: must be never or a duration");
    refused(json!({"after": {"click": "0d"}}), "after.click: must be");
    refused(json!({"after": {"dismiss": "9999999d"}}), "after.dismiss: must be");
    refused(json!({"after": {"dismiss": "-1d"}}), "after.dismiss: must be");
    refused(json!({"after": {"press": "1d"}}), "after.press");
    refused(json!({"trigger": {"event": "x", "delay_s": 0}}), "trigger.delay_s: must be from 1");
    let condition = json!({"attribute": "a", "op": "exists"});
    refused(json!({"trigger": {"event": "x", "delay_s": 1, "where": condition}}), "trigger.where: the properties");
    refused(
        json!({"trigger": {"event": "x", "where": {"event": {"name": "y"}}}}),
        "trigger.where.event: a condition on an event",
    );
    refused(json!({"audience": {"all": [{"event": {}}]}}), "audience.all[0].event.name: is missing");
    refused(json!({"audience": {"event": {"name": "x", "within_s": 0}}}), "audience.event.within_s: must be");
    refused(
        json!({"audience": {"event": {"name": "x", "within_s": 5, "before_s": 5}}}),
        "audience.event.before_s: must be below",
    );
    refused(json!({"audience": {"event": {"name": "x", "times_gte": 0}}}), "audience.event.times_gte: must be");
    refused(json!({"audience": {"event": {"name": "x", "since": "y"}}}), "audience.event: unknown name");
    refused(json!({"audience": {"popup_event": {"type": "press"}}}), "audience.popup_event.type: unknown type");
}

#[test]
fn a_journey_pushes_through_the_push_service_once() {
    let store = Arc::new(MemoryStore::default());
    let world = start(PopupsConfig::default(), store.clone());
    world.users(&["ada"]);
    let spec = json!({"state": "live", "entry": {"event": "x"}, "steps": [
        {"id": "wait", "type": "wait", "for": "1h"},
        {"id": "told", "type": "push", "push": {"type": "offer", "body": {"text": "half price"},
            "fallback": {"after_s": 30, "template": {"title": "Offer", "body": "half price"}}}}]});
    world.engine.popups.put_journey("start", spec.to_string().as_bytes(), None, Precondition::None).unwrap();
    world.report(vec![custom("1", "ada", "x")]).unwrap();
    world.clock.advance(Duration::from_millis(HOUR));
    let step = || world.explain("ada", json!({})).journeys[0].step.clone();
    while step() != "end" {
        world.engine.popups.flush().unwrap();
    }
    assert_eq!(world.engine.metrics.pushes_accepted.get(), 1);
    let push = world.engine.push.status(1).unwrap();
    assert_eq!((push.push, push.fallback.map(|fallback| fallback.after_s)), (1, Some(30)));
    assert!(world.engine.push.status(2).is_err(), "one push");
}

#[test]
fn windows_and_days_go_by_the_users_own_time_zone() {
    let world = world();
    let card = |id: &str, zone: Option<&str>| {
        let time_zone = zone.map(str::to_owned);
        let upsert = UserUpsert { id: id.into(), time_zone, ..UserUpsert::default() };
        world.wait(world.engine.upsert_users(vec![upsert])).unwrap();
    };
    card("ada", Some("Asia/Tokyo"));
    card("ben", Some("America/New_York"));
    card("cyd", None);
    world.put_popup("evening", json!({"time_zone": "user", "windows": [{"from": "18:00", "to": "22:00"}]}));
    // It is noon in UTC, which is the settings' zone: 21:00 in Tokyo, 7:00 in New York.
    assert!(world.decide("ada").is_some());
    assert_eq!(retry_after(&world, "ben"), Some(11 * HOUR));
    assert_eq!(retry_after(&world, "cyd"), Some(6 * HOUR));
    assert_eq!(retry_after(&world, "somebody-without-a-card"), Some(6 * HOUR));
    assert_eq!(why(&world, "ben", "evening").1, "windows");
    world.put_popup("evening", json!({"state": "paused"}));
    world.put_popup("daily", json!({"time_zone": "user", "caps": {"per_day": 1}}));
    for user in ["ada", "ben", "cyd"] {
        assert!(world.decide(user).is_some());
    }
    let midnights = ["ada", "ben", "cyd"].map(|user| retry_after(&world, user).unwrap() / HOUR);
    assert_eq!(midnights, [3, 17, 12]);
    // Another zone on the day of the last exposure does not begin a day anew.
    card("ada", Some("America/New_York"));
    assert_eq!(retry_after(&world, "ada"), Some(17 * HOUR));
    card("ben", Some("Asia/Tokyo"));
    assert_eq!(retry_after(&world, "ben"), Some(3 * HOUR));
}

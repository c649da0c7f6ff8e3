//! The notification policy is kept in versions, followed by every node, and explained for messages that were not sent.

use crate::fake_shard::Shard;

use crate::support::*;
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::function::Function;
use tidings_engine::config::EngineConfig;
use tidings_notifications::internal_channels::InternalChannelsConfig;
use tidings_popups::Precondition;
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_testkit::{LocalBus, MemoryStore};

const ALWAYS: Precondition = Precondition::None;

fn put(world: &World, policy: &Value, precondition: Precondition) -> Result<StoredNotificationPolicy, ErrorCode> {
    let put = world.notifications.policies.put(policy.to_string().as_bytes(), Some("anna"), precondition);
    put.map_err(|refusal| refusal.code)
}

fn one_rule(id: &str) -> Value {
    json!({"rules": [{"id": id, "channels": [{"channel": "session"}, {"channel": "webhook", "after_s": 60}]}]})
}

fn rule_ids(policy: &NotificationPolicy) -> Vec<&str> {
    policy.rules.iter().map(|rule| rule.id.as_str()).collect()
}

fn current_rule(world: &World) -> String {
    world.notifications.policies.current().rules[0].id.to_string()
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} has not come true");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_write_is_a_version_and_a_removal_brings_the_default_back() {
    let store = Arc::new(MemoryStore::default());
    let world = World::new(EngineConfig::default(), store.clone());
    let policies = &world.notifications.policies;
    let default = policies.get().unwrap();
    assert_eq!((default.version, rule_ids(&default.policy)), (0, vec!["default"]));
    assert_eq!(put(&world, &one_rule("a"), Precondition::Version(1)).unwrap_err(), ErrorCode::Conflict);
    let first = put(&world, &one_rule("a"), Precondition::Absent).unwrap();
    assert_eq!((first.version, first.updated_at, first.updated_by.as_deref()), (1, Some(NOON), Some("anna")));
    assert_eq!(put(&world, &one_rule("b"), Precondition::Absent).unwrap_err(), ErrorCode::Conflict);
    assert_eq!(put(&world, &one_rule("b"), Precondition::Version(1)).unwrap().version, 2);
    assert_eq!((current_rule(&world).as_str(), policies.current().version), ("b", 2));
    assert_eq!(put(&world, &json!({"rules": [{"id": ""}]}), ALWAYS).unwrap_err(), ErrorCode::InvalidField);
    let unknown = json!({"rules": [{"id": "c", "when": {"segment": "nobody"}}]});
    let refusal = || policies.put(unknown.to_string().as_bytes(), None, ALWAYS).unwrap_err();
    // A node that has just begun to lead reads the segments first.
    eventually("the segments are read", || refusal().code == ErrorCode::InvalidField);
    assert_eq!(refusal().detail, "rules[0].when: unknown segment \"nobody\"");
    assert_eq!(current_rule(&world), "b", "a refused policy changes nothing");

    let removed = policies.remove(None, Precondition::Version(2)).unwrap();
    assert_eq!((removed.version, removed.removed, rule_ids(&removed.policy)), (3, true, vec!["default"]));
    assert_eq!(current_rule(&world), "default");
    let versions = policies.versions().unwrap().versions;
    let seen: Vec<_> = versions.iter().map(|one| (one.version, one.removed, rule_ids(&one.policy)[0])).collect();
    assert_eq!(seen, [(3, true, "default"), (2, false, "b"), (1, false, "a")]);

    // Fifty are kept; a long one spans many rows.
    let mut long = one_rule("long");
    long["rules"][0]["channels"][1] = json!({"channel": "providers", "templates": (0..40).map(|n| {
        (format!("de-{n:04}"), json!({"title": "t".repeat(500), "body": "b".repeat(500)}))
    }).collect::<serde_json::Map<_, _>>()});
    (0..52).for_each(|_| drop(put(&world, &long, ALWAYS).unwrap()));
    let kept: Vec<u32> = policies.versions().unwrap().versions.iter().map(|one| one.version).collect();
    assert_eq!(kept, (6..=55).rev().collect::<Vec<_>>());
    world.stop();

    // A restart reads it.
    let world = World::new(EngineConfig::default(), store);
    assert_eq!((current_rule(&world).as_str(), world.notifications.policies.current().version), ("long", 55));
    world.stop();
}

#[test]
fn every_node_follows_the_policy_and_only_the_leader_writes_it() {
    let (store, bus) = (Arc::new(MemoryStore::default()), LocalBus::default());
    let lease = LONG_LEASE;
    let nodes = ["a", "b"].map(|name| World::node(name, &store, store.clone(), &bus, lease));
    let leads = || nodes.iter().position(|node| node.engine.leads(Function::Push));
    eventually("a leader", || leads().is_some());
    let leader = leads().unwrap();
    let (leader, other) = (&nodes[leader], &nodes[1 - leader]);
    assert_eq!(put(other, &one_rule("x"), ALWAYS).unwrap_err(), ErrorCode::NodeUnavailable);
    for id in ["one", "two"] {
        // The leader reads the catalog of segments first.
        eventually("a write", || put(leader, &one_rule(id), ALWAYS).is_ok());
        assert_eq!(current_rule(leader), id);
        eventually("the other node", || current_rule(other) == id);
    }
    leader.notifications.policies.remove(None, ALWAYS).unwrap();
    eventually("the other node", || current_rule(other) == "default");
    nodes.iter().for_each(|node| node.stop());
}

#[test]
fn a_policy_of_a_newer_program_leaves_the_former_one_in_force() {
    use tidings_domain::{chat_rows::*, leadership::Term, store::*};
    let store = Arc::new(MemoryStore::default());
    let world = World::new(EngineConfig::default(), store.clone());
    put(&world, &one_rule("mine"), ALWAYS).unwrap();
    let newer = json!({"version": 2, "updated_at": 1, "policy": {"rules": [], "pigeons": true}}).to_string();
    let head = json!({"version": 2, "oldest": 1}).to_string();
    let rows = [(policy_version_key(2, 0), newer), (policy_head_key(), head)];
    let changes = rows.map(|(key, value)| RowChange { key, value: Some(value.into_bytes()) });
    store.write_rows(Term::ALONE, RowSpace::Chat, changes.into()).unwrap();
    assert!(world.notifications.policies.refresh().is_err());
    assert_eq!(current_rule(&world), "mine");
    world.stop();
}

#[test]
fn a_message_that_was_not_sent_is_explained_by_rules_and_states() {
    let internal_channels = InternalChannelsConfig { device_push: true, ..InternalChannelsConfig::default() };
    let config = EngineConfig { shards: 1, ..EngineConfig::default() };
    let parts = with_internal_channels(internal_channels);
    let mut shard = Shard::of(World::with(config, Arc::new(MemoryStore::default()), parts));
    shard.world.users(&["ada", "ben", "cleo"]);
    shard.bind("ben/phone-1");
    let world = &shard.world;
    world.conversation(ConversationKind::Group, "house", &["ada", "ben"]);
    let policy = json!({"time_zone": "UTC", "rules": [
        {"id": "direct", "for": {"kinds": ["direct"]}},
        {"id": "orders", "for": {"types": ["order"]}, "channels": [{"channel": "popup", "event": "missed", "after_s": 5}]},
        {"id": "mentions", "when": {"all": [{"attribute": "mention", "op": "eq", "value": true},
            {"attribute": "user.plan", "op": "eq", "value": "gold"}]}},
        {"id": "rest", "channels": [{"channel": "session"}, {"channel": "providers"}, {"channel": "device_push", "after_s": 7_200, "on_success": "continue",
            "when": {"time_of_day": {"from": "13:00", "to": "15:00"}}}, {"channel": "popup", "event": "missed",
            "when": {"time_of_day": {"from": "13:00", "to": "15:00"}}}, {"channel": "webhook"}]}]});
    put(world, &policy, ALWAYS).unwrap();
    let ask = |user: &str, more: Value| {
        let mut ask = json!({"user": user, "conversation": "house", "from": "ada", "body": {"text": "hello"}});
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.notifications.explain_notifications(&serde_json::from_value(ask).unwrap()).unwrap()
    };
    let found = ask("ben", json!({"mentions": ["ben"]}));
    let passed: Vec<_> = found.passed_over.iter().map(|one| (one.rule.as_str(), one.because.as_str())).collect();
    assert_eq!(passed, [("direct", "for.kinds"), ("orders", "for.types"), ("mentions", "when.all[1]")]);
    assert_eq!((found.rule.as_deref(), found.policy_version, found.at), (Some("rest"), 1, NOON));
    let told = |found: &NotificationExplanation| -> Vec<(String, bool)> {
        let word = |channel: &ExplainedChannel| match (&channel.outcome, &channel.because) {
            (Some(outcome), _) => json!(outcome).as_str().unwrap().to_owned(),
            (None, Some(because)) => because.clone(),
            (None, None) => String::new(),
        };
        found
            .channels
            .iter()
            .map(|channel| (format!("{} {}", channel.channel.name(), word(channel)), channel.taken))
            .collect()
    };
    let expected = [
        ("session no_device", false),
        ("providers not_set_up", false),
        ("device_push ", true),
        ("popup rules[3].channels[3].when", false),
        ("webhook not_set_up", false),
    ];
    assert_eq!(told(&found), expected.map(|(channel, taken)| (channel.to_owned(), taken)));
    assert_eq!(found.channels[2].devices, ["phone-1"]);
    assert_eq!(found.channels[2].at, NOON + 7_200_000, "its condition is looked at when it is due");
    assert_eq!(found.channels[3].detail, "the condition rules[3].channels[3].when does not hold");

    // What the person wants decides about the channels that disturb, at the time at which they are due.
    let preferences = NotificationPreferences { snooze_until: Some(NOON + 3_600_000), ..Default::default() };
    world.wait(world.notifications.set_notification_preferences("ben", preferences)).unwrap();
    let snoozing = ask("ben", json!({}));
    assert_eq!(told(&snoozing)[1], ("providers snoozed".into(), false));
    assert_eq!(snoozing.channels[1].until, Some(NOON + 3_600_000));
    assert_eq!(
        snoozing.channels[1].detail,
        "ben had snoozed notifications until 2026-03-01 13:00:00 UTC, so no notification was sent"
    );
    assert_eq!(told(&snoozing)[2], ("device_push ".into(), true), "an hour after the end");
    let off = NotificationPreferences { off: vec![PolicyChannel::DevicePush], ..Default::default() };
    world.wait(world.notifications.set_notification_preferences("ben", off)).unwrap();
    assert_eq!(told(&ask("ben", json!({})))[2], ("device_push channel_off".into(), false));

    for (user, more, outcome) in [
        ("cleo", json!({}), NotificationOutcome::NotAMember),
        ("ada", json!({}), NotificationOutcome::Sender),
        ("ben", json!({"silent": true}), NotificationOutcome::NotPushed),
        ("ben", json!({"skip_push": true}), NotificationOutcome::NotPushed),
    ] {
        let found = ask(user, more);
        assert_eq!(found.outcome, Some(outcome));
        assert!(found.channels.iter().all(|channel| !channel.taken), "{found:?}");
    }
    assert_eq!(ask("ben", json!({"type": "order"})).rule.as_deref(), Some("orders"));
    let unknown =
        |ask: Value| world.notifications.explain_notifications(&serde_json::from_value(ask).unwrap()).unwrap_err().code;
    assert_eq!(unknown(json!({"user": "ben", "conversation": "nowhere"})), ErrorCode::NotFound);
    assert_eq!(unknown(json!({"user": "nobody", "conversation": "house"})), ErrorCode::NotFound);
    assert_eq!(unknown(json!({"user": "ben", "to": "ben"})), ErrorCode::InvalidField);
    assert_eq!(unknown(json!({"user": "ben"})), ErrorCode::InvalidField);
    world.stop();
}

#[test]
fn every_policy_in_the_documentation_is_accepted() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/notifications.md")).unwrap();
    let blocks: Vec<&str> = page.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let world = World::new(EngineConfig::default(), Arc::new(MemoryStore::default()));
    let mut policies = 0;
    for block in blocks {
        let json: Value = serde_json::from_str(block).unwrap_or_else(|error| panic!("{error}: {block}"));
        if json.get("seq").is_some() {
            // The body of a push to devices.
            let mut fields: Vec<&String> = json.as_object().unwrap().keys().collect();
            fields.sort_unstable();
            assert_eq!(fields, ["badge", "body", "conversation", "seq", "title"]);
        } else if json.get("rules").is_some() {
            put(&world, &json, ALWAYS).unwrap_or_else(|code| panic!("{code:?}: {block}"));
            policies += 1;
        } else if json.get("policy_version").is_some() {
            serde_json::from_value::<NotificationExplanation>(json).unwrap();
        } else {
            serde_json::from_value::<NotificationPreferences>(json).unwrap();
        }
    }
    assert!(policies >= 2, "{policies} policies");
    world.stop();
}

//! A notification policy that is wrong is refused with the path of the wrong part; one at the limits is not.

use serde_json::{Value, json};
use tidings_notifications::policy::{CompiledPolicy, check};
use tidings_protocol::{
    error::Refusal,
    http::{NotificationPolicy, PolicyChannel},
    json,
};

fn read(policy: &Value) -> Result<CompiledPolicy, Refusal> {
    let checked = check(json::read::<NotificationPolicy>(policy.to_string().as_bytes())?)?;
    Ok(CompiledPolicy::compile(&checked, 1, &|_| None))
}

/// A policy with one rule that has these channels.
fn with_channels(channels: Value) -> Value {
    json!({"rules": [{"id": "a", "channels": channels}]})
}

#[track_caller]
fn refused(policy: Value, detail: &str) {
    let refusal = read(&policy).err().unwrap_or_else(|| panic!("{policy} is accepted"));
    assert!(refusal.detail.starts_with(detail), "{policy}\n  expected {detail}\n  got      {}", refusal.detail);
}

#[test]
fn each_wrong_part_is_named() {
    refused(json!({}), "rules");
    refused(json!({"rules": [], "x": 1}), "x: ");
    refused(json!({"rules": [], "time_zone": "Europe/Wien"}), "time_zone: ");
    let one = |rule: Value| json!({"rules": [rule]});
    refused(one(json!({"channels": []})), "rules[0].id: ");
    refused(one(json!({"id": ""})), "rules[0].id: must have 1 to 64 bytes");
    refused(one(json!({"id": "x".repeat(65)})), "rules[0].id: must have 1 to 64 bytes");
    refused(one(json!({"id": "a\nb"})), "rules[0].id: control");
    refused(json!({"rules": [{"id": "a"}, {"id": "a"}]}), "rules[1].id: \"a\" appears twice");
    refused(one(json!({"id": "a", "for": {"kinds": ["room"]}})), "rules[0].for.kinds[0]");
    refused(one(json!({"id": "a", "for": {"kinds": ["group", "group"]}})), "rules[0].for.kinds[1]: appears twice");
    refused(one(json!({"id": "a", "for": {"types": [""]}})), "rules[0].for.types[0]: ");
    refused(one(json!({"id": "a", "for": {"kind": []}})), "rules[0].for.kind: ");
    refused(one(json!({"id": "a", "ack_timeout_ms": 99})), "rules[0].ack_timeout_ms: must be from 100 to 600000");
    refused(one(json!({"id": "a", "ack_timeout_ms": 600_001})), "rules[0].ack_timeout_ms: must be");
    refused(
        one(json!({"id": "a", "when": {"attribute": "kind", "op": "eq", "value": 1}})),
        "rules[0].when.attribute: messages have no attribute \"kind\"",
    );
    refused(
        one(json!({"id": "a", "when": {"all": [{"attribute": "sender", "op": "is", "value": 1}]}})),
        "rules[0].when.all[0].op: unknown operator",
    );
    refused(one(json!({"id": "a", "when": {"quiet": {}}})), "rules[0].when: unknown name \"quiet\"");
    let at = |time: Value| one(json!({"id": "a", "when": {"time_of_day": time}}));
    refused(at(json!({"from": "22:00"})), "rules[0].when.time_of_day.to: is missing");
    refused(at(json!({"from": "24:00", "to": "07:00"})), "rules[0].when.time_of_day.from: must be HH:MM");
    refused(at(json!({"from": "22:00", "to": "22:00"})), "rules[0].when.time_of_day.to: must differ");
    refused(at(json!({"from": "22:00", "to": "07:00", "days": ["monday"]})), "rules[0].when.time_of_day.days: ");
    refused(at(json!({"from": "22:00", "to": "07:00", "days": ["mon", "mon"]})), "rules[0].when.time_of_day.days: ");
    refused(at(json!({"from": "22:00", "to": "07:00", "time_zone": "Mars"})), "rules[0].when.time_of_day.time_zone: ");
    refused(at(json!({"from": "22:00", "to": "07:00", "zone": 1})), "rules[0].when.time_of_day: unknown name \"zone\"");
}

#[test]
fn each_wrong_field_of_a_channel_is_named() {
    let step = |step: Value| with_channels(json!([{"channel": "session"}, step]));
    refused(step(json!({"channel": "mail"})), "rules[0].channels[1].channel");
    refused(step(json!({})), "rules[0].channels[1].channel");
    refused(step(json!({"channel": "session"})), "rules[0].channels[1].channel: session can only be the first channel");
    refused(
        with_channels(json!([{"channel": "session", "after_s": 5}])),
        "rules[0].channels[0].after_s: the channel session does not take it",
    );
    refused(step(json!({"channel": "providers", "after_s": -1})), "rules[0].channels[1].after_s");
    refused(
        step(json!({"channel": "providers", "after_s": 2_592_001})),
        "rules[0].channels[1].after_s: must be at most 2592000",
    );
    refused(
        step(json!({"channel": "providers", "after_s": 5, "expires_s": 5})),
        "rules[0].channels[1].expires_s: must be above after_s, 5",
    );
    refused(step(json!({"channel": "providers", "expires_s": 0})), "rules[0].channels[1].expires_s: must be above");
    refused(step(json!({"channel": "webhook", "when": {"any": 1}})), "rules[0].channels[1].when.any: ");
    refused(step(json!({"channel": "providers", "providers": []})), "rules[0].channels[1].providers: names none");
    refused(
        step(json!({"channel": "providers", "providers": ["apns", "apns"]})),
        "rules[0].channels[1].providers[1]: appears twice",
    );
    refused(step(json!({"channel": "providers", "providers": ["pigeon"]})), "rules[0].channels[1].providers[0]");
    refused(
        step(json!({"channel": "webhook", "providers": ["apns"]})),
        "rules[0].channels[1].providers: the channel webhook does not take it",
    );
    refused(
        step(json!({"channel": "webhook", "badge": true})),
        "rules[0].channels[1].badge: the channel webhook does not take it",
    );
    refused(step(json!({"channel": "popup"})), "rules[0].channels[1].event: is missing");
    refused(
        step(json!({"channel": "providers", "event": "x"})),
        "rules[0].channels[1].event: the channel providers does not take it",
    );
    refused(
        step(json!({"channel": "device_push", "sound": "x"})),
        "rules[0].channels[1].sound: the channel device_push does not take it",
    );
    refused(step(json!({"channel": "providers", "sound": "x".repeat(65)})), "rules[0].channels[1].sound: must have");
    refused(step(json!({"channel": "providers", "priority": "low"})), "rules[0].channels[1].priority");
    refused(step(json!({"channel": "providers", "collapse": "all"})), "rules[0].channels[1].collapse");
    refused(step(json!({"channel": "providers", "on_success": "go"})), "rules[0].channels[1].on_success");
    let template = |template: Value| step(json!({"channel": "providers", "template": template}));
    refused(template(json!({"title": "x"})), "rules[0].channels[1].template.body");
    refused(template(json!({"title": "", "body": ""})), "rules[0].channels[1].template: title and body are both empty");
    refused(
        template(json!({"title": "{sendr}", "body": ""})),
        "rules[0].channels[1].template.title: unknown {sendr}; expected one of {sender}, ",
    );
    refused(
        template(json!({"title": "x", "body": "a {text} {user.name}"})),
        "rules[0].channels[1].template.body: unknown {user.name}",
    );
    refused(template(json!({"title": "x".repeat(1_025), "body": ""})), "rules[0].channels[1].template.title (bytes)");
    refused(
        template(json!({"title": "x", "body": "", "image": "http://a.example/x.png"})),
        "rules[0].channels[1].template.image: must begin with https://",
    );
    let templates = |templates: Value| step(json!({"channel": "providers", "templates": templates}));
    refused(templates(json!({"de_AT": {"title": "x", "body": "y"}})), "rules[0].channels[1].templates.de_AT: ");
    refused(
        templates(json!({"DE": {"title": "x", "body": "y"}, "de": {"title": "x", "body": "y"}})),
        "rules[0].channels[1].templates.de: the language appears twice",
    );
    refused(
        templates(json!({"de": {"title": "{x}", "body": "y"}})),
        "rules[0].channels[1].templates.de.title: unknown {x}",
    );
}

#[test]
fn what_is_at_a_limit_is_accepted_and_what_is_above_is_refused() {
    let rules = |count: usize| json!({"rules": (0..count).map(|at| json!({"id": at.to_string()})).collect::<Vec<_>>()});
    assert_eq!(read(&rules(100)).unwrap().rules.len(), 100);
    refused(rules(101), "rules");
    let channels = |count: usize| with_channels(json!(vec![json!({"channel": "webhook"}); count]));
    assert_eq!(read(&channels(10)).unwrap().rules[0].channels.len(), 10);
    refused(channels(11), "rules[0].channels");
    let types = |count: usize| json!({"rules": [{"id": "a", "for": {"types": vec!["x"; count]}}]});
    read(&types(100)).unwrap();
    refused(types(101), "rules[0].for.types");
    let template = json!({"title": "x".repeat(1_024), "body": "braces { } {} {0 stay"});
    read(&with_channels(
        json!([{"channel": "providers", "sound": "", "after_s": 2_591_999, "expires_s": 2_592_000, "template": template}]),
    ))
    .unwrap();
}

#[test]
fn the_template_of_a_language_is_the_closest_one() {
    let text = |title: &str| json!({"title": title, "body": ""});
    let policy = with_channels(json!([{"channel": "providers", "template": text("any"),
        "templates": {"de": text("de"), "de-AT": text("at"), "zh-Hant": text("hant")}}, {"channel": "device_push"}]));
    let compiled = read(&policy).unwrap();
    let title = |language: Option<&str>| compiled.rules[0].channels[0].shown.template(language).unwrap().title.clone();
    for (language, expected) in [
        (Some("de-AT"), "at"),
        (Some("DE-at"), "at"),
        (Some("de-AT-1996"), "at"),
        (Some("de-CH"), "de"),
        (Some("de"), "de"),
        (Some("zh-Hant-TW"), "hant"),
        (Some("zh"), "any"),
        (Some("den"), "any"),
        (None, "any"),
    ] {
        assert_eq!(title(language), expected, "{language:?}");
    }
    assert!(compiled.rules[0].channels[1].shown.template(Some("de")).is_none(), "the templates of the settings");
}

#[test]
fn clients_have_the_longest_time_of_the_rules_that_may_decide() {
    use tidings_domain::model::ConversationKind::*;
    let when = json!({"attribute": "mention", "op": "eq", "value": true});
    let compiled = read(&json!({"rules": [
        {"id": "direct", "for": {"kinds": ["direct"]}, "ack_timeout_ms": 2_000},
        {"id": "mention", "when": when, "ack_timeout_ms": 9_000},
        {"id": "order", "for": {"types": ["order"]}, "ack_timeout_ms": 1_000},
        {"id": "rest"}]}))
    .unwrap();
    assert_eq!(compiled.ack_timeout_ms(Direct, 5_000), 2_000);
    assert_eq!(compiled.ack_timeout_ms(Group, 5_000), 9_000, "it may mention the person");
    assert_eq!(compiled.ack_timeout_ms(Official, 20_000), 20_000, "that of the settings");
    let none = read(&json!({"rules": []})).unwrap();
    assert_eq!(none.ack_timeout_ms(Group, 5_000), 5_000);
}

#[test]
fn the_default_policy_says_what_the_settings_say() {
    use tidings_notifications::channel_plan::{ChannelPlan, PlannedChannel};
    let document = |plan: &ChannelPlan, providers, webhook| {
        let policy = CompiledPolicy::default_document(plan, providers, webhook);
        let json = serde_json::to_value(&policy).unwrap();
        check(policy).unwrap();
        json["rules"][0]["channels"].clone()
    };
    let session = json!({"channel": "session"});
    let [providers, webhook] =
        ["providers", "webhook"].map(|channel| json!({"channel": channel, "on_success": "continue"}));
    let at_once = ChannelPlan::default();
    assert_eq!(document(&at_once, true, true), json!([session, providers, webhook]));
    assert_eq!(document(&at_once, false, true), json!([session, webhook]));
    assert_eq!(document(&at_once, false, false), json!([session]));
    let planned = |channel, after_ms, stops_others| PlannedChannel { channel, after_ms, stops_others };
    let days = 30 * 24 * 60 * 60;
    let plan = ChannelPlan {
        channels: vec![
            planned(PolicyChannel::Providers, 0, true),
            planned(PolicyChannel::Webhook, days * 1_000, false),
        ],
    };
    let later = json!({"channel": "webhook", "after_s": days, "on_success": "continue"});
    assert_eq!(document(&plan, true, true), json!([session, {"channel": "providers", "on_success": "stop"}, later]));
}

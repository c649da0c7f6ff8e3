//! For every reason that can keep a popup from being shown: the explanation names the reason and agrees with the decision.

use crate::popup_support::*;
use crate::support::*;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};
use tidings_popups::{PopupsConfig, Precondition, parse_segment};
use tidings_protocol::http::ExplainedOutcome::{self, *};
use tidings_testkit::MemoryStore;

struct Case {
    /// The parts of the popup that differ from the default.
    parts: Value,
    settings: Value,
    /// A question that was asked an hour before.
    before: Option<Value>,
    question: Value,
    outcome: ExplainedOutcome,
    field: Option<&'static str>,
    /// Hours from now.
    not_before: Option<u64>,
}

fn case(parts: Value, outcome: ExplainedOutcome, field: impl Into<Option<&'static str>>) -> Case {
    let (settings, question) = (json!({}), json!({"session": "s"}));
    Case { parts, settings, before: None, question, outcome, field: field.into(), not_before: None }
}

impl Case {
    fn settings(self, settings: Value) -> Case {
        Case { settings, ..self }
    }

    fn ask(self, question: Value) -> Case {
        Case { question, ..self }
    }

    /// The same question was answered with the popup an hour ago.
    fn again(self) -> Case {
        Case { before: Some(self.question.clone()), ..self }
    }

    fn in_hours(self, hours: u64) -> Case {
        Case { not_before: Some(hours), ..self }
    }

    fn check(&self) {
        let world = start(PopupsConfig::default(), Arc::new(MemoryStore::default()));
        world.engine.popups.put_segment("s", parse_segment(b"ben").unwrap()).unwrap();
        world.put_popup("p", self.parts.clone());
        // A second popup, paused, which the explanation must mention too.
        world.put_popup("other", json!({"state": "paused", "priority": 5}));
        world.set_popup_settings(self.settings.clone());
        if let Some(before) = &self.before {
            world.clock.set(NOON - HOUR);
            assert!(world.decide_with("ann", before.clone()).unwrap().exposure.is_some(), "{}", self.parts);
        }
        world.clock.set(NOON);
        let explanation = world.explain("ann", self.question.clone());
        assert_eq!(world.explain("ann", self.question.clone()).chosen, explanation.chosen, "it changes nothing");
        let ids: Vec<&str> = explanation.popups.iter().map(|popup| popup.popup.as_str()).collect();
        assert_eq!(ids, ["other", "p"], "all are there, in their order");
        let popup = &explanation.popups[1];
        let not_before = self.not_before.map(|hours| NOON + hours * HOUR);
        assert_eq!(
            (popup.outcome, popup.field.as_deref(), popup.not_before),
            (self.outcome, self.field, not_before),
            "{} {:?}",
            self.parts,
            popup.detail
        );
        assert_eq!(popup.variant.as_deref(), Some("a"));
        let decided = world.decide_with("ann", self.question.clone()).unwrap();
        assert_eq!(decided.exposure.as_ref().map(|exposure| &*exposure.popup), explanation.chosen.as_deref());
        assert_eq!(explanation.chosen.is_some(), self.outcome == Chosen);
        assert_eq!(decided.retry_after_ms, explanation.next_at.map(|at| at - NOON));
        assert_eq!(explanation.next_at, not_before);
    }
}

fn cases() -> Vec<Case> {
    let caps = |caps: Value| json!({"caps": caps});
    let home = |caps: Value| json!({"placements": {"home": caps}});
    let event = |properties: Value| json!({"event": {"name": "bought", "properties": properties}});
    let trigger = || {
        json!({"trigger": {"event": "bought", "where": {"all": [
        {"attribute": "price", "op": "gt", "value": 5}, {"attribute": "paid", "op": "eq", "value": true}]}}})
    };
    let audience = || {
        json!({"audience": {"all": [
        {"attribute": "a", "op": "eq", "value": 1},
        {"any": [{"segment": "s"}, {"attribute": "b", "op": "exists"}]},
        {"not": {"attribute": "user.c", "op": "absent"}}]}})
    };
    // The time is noon on a Sunday.
    let windows = |from: &str, to: &str| json!({"windows": [{"from": from, "to": to}]});
    let mut cases = vec![
        case(json!({}), Chosen, None),
        case(json!({"state": "draft"}), No, "state"),
        case(json!({"state": "paused"}), No, "state"),
        case(json!({"state": "ended"}), No, "state"),
        case(json!({"ends_at": NOON}), No, "ends_at"),
        case(json!({"starts_at": NOON + 5 * HOUR}), NotYet, "starts_at").in_hours(5),
        case(json!({"state": "scheduled", "starts_at": NOON}), Chosen, None),
        case(windows("13:00", "14:00"), NotYet, "windows").in_hours(1),
        case(windows("11:00", "12:00"), NotYet, "windows").in_hours(23),
        case(trigger(), No, "trigger.event"),
        case(trigger(), No, "trigger.event").ask(json!({"event": {"name": "left"}})),
        case(json!({}), No, "trigger").ask(event(json!({}))),
        case(trigger(), No, "trigger.where.all[0]").ask(event(json!({"price": 5}))),
        case(trigger(), No, "trigger.where.all[1]").ask(event(json!({"price": 6}))),
        case(trigger(), Chosen, None).ask(event(json!({"price": 6, "paid": true}))),
        case(audience(), No, "audience.all[0]"),
        case(audience(), No, "audience.all[1].any").ask(json!({"attributes": {"a": 1}})),
        case(audience(), No, "audience.all[2].not").ask(json!({"attributes": {"a": 1, "b": "x"}})),
        case(json!({"audience": {"segment": "s"}}), No, "audience"),
        case(json!({"audience": {"unread_direct": {"older_than_s": 600}}}), No, "audience"),
        case(json!({"control_percent": 100}), Control, "control_percent"),
        case(json!({}), No, "holdout_percent").settings(json!({"holdout_percent": 100})),
        case(json!({"state": "draft", "test_users": ["ann"]}), Chosen, "test_users"),
        case(json!({"test_users": ["ann"]}), Chosen, "test_users").settings(json!({"holdout_percent": 100})),
    ];
    // What keeps a popup now is named, also where its time will be over by then.
    let gap = |times: Value| {
        let mut parts = json!({"caps": {"gap_s": 7_200}});
        parts.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
        parts
    };
    cases.push(case(gap(json!({"ends_at": NOON + HOUR / 2})), No, "caps.gap_s").again());
    cases.push(case(gap(windows("10:00", "12:30")), NotYet, "caps.gap_s").again().in_hours(22));
    for (cap, hours) in [("per_session", Some(23)), ("per_day", Some(12)), ("total", None), ("gap_s", Some(1))] {
        let one = json!({cap: if cap == "gap_s" { 7_200 } else { 1 }});
        let levels = [
            (caps(one.clone()), json!({}), ["caps.per_session", "caps.per_day", "caps.total", "caps.gap_s"]),
            (
                json!({}),
                home(one.clone()),
                [
                    "settings.placements.caps.per_session",
                    "settings.placements.caps.per_day",
                    "settings.placements.caps.total",
                    "settings.placements.caps.gap_s",
                ],
            ),
            (
                json!({}),
                caps(one),
                ["settings.caps.per_session", "settings.caps.per_day", "settings.caps.total", "settings.caps.gap_s"],
            ),
        ];
        for (parts, settings, fields) in levels {
            let field = fields.into_iter().find(|field| field.ends_with(cap)).unwrap();
            let outcome = if hours.is_some() { NotYet } else { No };
            let kept = case(parts.clone(), outcome, field).settings(settings.clone()).again();
            cases.push(Case { not_before: hours, ..kept });
            if cap == "per_session" {
                cases.push(case(parts, No, field).settings(settings).ask(json!({})));
            }
        }
    }
    cases
}

#[test]
fn an_explanation_names_each_reason_and_agrees_with_the_decision() {
    let cases = cases();
    cases.iter().for_each(Case::check);
    let fields: BTreeSet<_> = cases.iter().filter_map(|case| case.field).collect();
    assert_eq!(fields.len(), 27, "{fields:?}");
}

#[test]
fn popups_after_the_chosen_one_are_explained_as_outranked() {
    let world = start(PopupsConfig::default(), Arc::new(MemoryStore::default()));
    world.put_popup("b", json!({}));
    world.put_popup("a", json!({"priority": -1}));
    world.put_popup("c", json!({"control_percent": 100, "priority": 9}));
    let explanation = world.explain("ann", json!({}));
    let told: Vec<_> = explanation.popups.iter().map(|popup| (popup.popup.as_str(), popup.outcome)).collect();
    assert_eq!(told, [("c", Control), ("b", Chosen), ("a", Outranked)]);
    // The detail of the chosen popup differs from that of the popups behind it.
    let details: Vec<_> = explanation.popups.iter().map(|popup| popup.detail.as_deref().unwrap_or_default()).collect();
    assert_eq!(details[1], "it can be shown, and none that can comes before it");
    assert_eq!(details[2], "it could be shown, but another one comes before it");
    assert_eq!(explanation.chosen.as_deref(), Some("b"));
    // The explanation counted nothing.
    assert_eq!(world.counts("c"), [0; 4]);
    assert!(world.decide("ann").is_some());
    assert_eq!(world.counts("c"), [0, 1, 0, 0]);
    assert_eq!(world.counts("b"), [1, 0, 0, 0]);
}

#[test]
fn a_placement_without_popups_has_an_empty_explanation() {
    let world = start(PopupsConfig::default(), Arc::new(MemoryStore::default()));
    let explanation = world.explain("ann", json!({"placement": "nowhere"}));
    assert_eq!((explanation.chosen, explanation.next_at, explanation.popups.len()), (None, None, 0));
    assert!(world.decide_with("ann", json!({"placement": "nowhere"})).unwrap().retry_after_ms.is_none());
}

#[test]
fn a_cap_is_named_for_a_step_at_which_the_user_stands() {
    let world = start(PopupsConfig::default(), Arc::new(MemoryStore::default()));
    world.put_popup("stand", json!({"journey": "start", "caps": {"gap_s": 86_400}}));
    let steps = json!([{"id": "one", "type": "popup", "popup": "stand"}, {"id": "two", "type": "popup", "popup": "stand", "within": "1h"}]);
    let journey = json!({"state": "live", "entry": {"event": "came"}, "steps": steps}).to_string();
    world.engine.popups.put_journey("start", journey.as_bytes(), None, Precondition::None).unwrap();
    world.report(vec![custom("1", "ann", "came")]).unwrap();
    assert!(world.decide("ann").is_some());
    let explained = world.explain("ann", json!({})).popups.remove(0);
    assert_eq!((explained.outcome, explained.field.as_deref()), (No, Some("caps.gap_s")), "{:?}", explained.detail);
}

#[test]
fn a_full_table_of_sessions_is_told_from_a_cap_that_is_used_up() {
    let world = start(PopupsConfig::default(), Arc::new(MemoryStore::default()));
    world.put_popup("p", json!({"caps": {"per_session": 1}}));
    for session in 0..64 {
        assert!(world.decide_with("ann", json!({"session": session.to_string()})).unwrap().exposure.is_some());
    }
    let detail = |session: &str| {
        let explained = world.explain("ann", json!({"session": session})).popups.remove(0);
        assert_eq!(explained.field.as_deref(), Some("caps.per_session"));
        explained.detail.unwrap()
    };
    assert_eq!(detail("7"), "the user was shown it as often as that allows");
    assert_eq!(detail("another"), "the user has 64 live sessions, and there is no room for another one's counter");
}

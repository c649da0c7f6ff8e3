//! A member reports a message once; moderators list, read and close reports, and see a message as it is now.

use crate::support::*;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tidings_domain::model::Actor;
use tidings_engine::config::EngineConfig;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    limits::REPORTS_OPEN_MAX,
};
use tidings_testkit::MemoryStore;

fn world() -> World {
    let config = EngineConfig { shards: 1, events_keep: Duration::from_secs(86_400), ..EngineConfig::default() };
    let world = World::new(config, Arc::new(MemoryStore::shared()));
    world.users(&["ann", "ben", "cat", "dan"]);
    world.conversation(ConversationKind::Group, "g", &["ann", "ben", "cat"]);
    for text in ["one", "two", "three"] {
        world.wait(world.engine.send(&Actor::App, message("ann", "g", text))).unwrap();
    }
    world
}

fn as_user(world: &World, user: &str) -> Actor {
    Actor::User(world.user(user))
}

fn new(reason: ReportReason) -> NewReport {
    NewReport { reason, text: Some("look".into()), user: None }
}

fn report(world: &World, user: &str, seq: u64, reason: ReportReason) -> Result<ReportReceipt, Refusal> {
    world.wait(world.engine.report_message(&as_user(world, user), "g", seq, new(reason)))
}

fn code<T>(result: Result<T, Refusal>) -> Option<ErrorCode> {
    result.err().map(|refusal| refusal.code)
}

fn listed(world: &World, query: &ReportsQuery) -> Vec<String> {
    world
        .engine
        .reports(query)
        .unwrap()
        .reports
        .iter()
        .map(|report| format!("{} {}", report.reporter, report.seq))
        .collect()
}

fn update(state: ReportState, if_state: Option<ReportState>) -> UpdateReport {
    UpdateReport { state, note: Some("seen".into()), if_state }
}

#[test]
fn a_member_reports_what_the_member_may_read_and_once() {
    let world = world();
    let first = report(&world, "ben", 1, ReportReason::Spam).unwrap();
    assert!(!first.duplicate);
    let again = report(&world, "ben", 1, ReportReason::Hate).unwrap();
    assert_eq!(again, ReportReceipt { report: first.report.clone(), duplicate: true });
    assert_eq!(code(report(&world, "dan", 1, ReportReason::Spam)), Some(ErrorCode::NotAMember));
    assert_eq!(code(report(&world, "ann", 1, ReportReason::Spam)), Some(ErrorCode::InvalidField), "the own message");
    assert_eq!(code(report(&world, "ben", 9, ReportReason::Spam)), Some(ErrorCode::NotFound));
    let long = NewReport { text: Some("x".repeat(1_025)), ..new(ReportReason::Other) };
    let long = world.wait(world.engine.report_message(&as_user(&world, "ben"), "g", 2, long));
    assert_eq!(code(long), Some(ErrorCode::LimitExceeded));
    let app = world.wait(world.engine.report_message(&Actor::App, "g", 2, new(ReportReason::Other)));
    assert_eq!(code(app), Some(ErrorCode::InvalidField), "in nobody's name");
    let named = NewReport { user: Some("cat".into()), ..new(ReportReason::Other) };
    world.wait(world.engine.report_message(&Actor::App, "g", 2, named)).unwrap();
    assert_eq!(listed(&world, &ReportsQuery::default()), ["ben 1", "cat 2"]);
}

#[test]
fn moderators_list_by_filter_and_page_and_the_faster_one_decides() {
    let world = world();
    let ids: Vec<String> = [("ben", 1), ("cat", 1), ("ben", 2), ("cat", 3)]
        .iter()
        .enumerate()
        .map(|(n, (user, seq))| {
            world.clock.set(NOON + n as u64);
            let reason = if n % 2 == 0 { ReportReason::Spam } else { ReportReason::Hate };
            report(&world, user, *seq, reason).unwrap().report
        })
        .collect();
    let all = ReportsQuery::default();
    assert_eq!(listed(&world, &all), ["ben 1", "cat 1", "ben 2", "cat 3"]);
    let spam = ReportsQuery { reason: Some(ReportReason::Spam), ..all.clone() };
    assert_eq!(listed(&world, &spam), ["ben 1", "ben 2"]);
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let query = ReportsQuery { limit: Some(1), after, ..spam.clone() };
        paged.extend(listed(&world, &query));
        after = world.engine.reports(&query).unwrap().next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(paged, ["ben 1", "ben 2"]);
    let of = |reported: &str| ReportsQuery { reported: Some(reported.into()), ..all.clone() };
    assert_eq!((listed(&world, &of("ann")).len(), listed(&world, &of("ben")).len()), (4, 0));
    let elsewhere = ReportsQuery { conversation: Some("h".into()), ..all.clone() };
    assert_eq!(code(world.engine.reports(&elsewhere)), Some(ErrorCode::NotFound));

    let set = |id: &str, update| world.wait(world.engine.update_report(id, update, "mod"));
    set(&ids[0], update(ReportState::InReview, Some(ReportState::Open))).unwrap();
    assert_eq!(code(set(&ids[0], update(ReportState::InReview, Some(ReportState::Open)))), Some(ErrorCode::Conflict));
    set(&ids[0], update(ReportState::Resolved, Some(ReportState::InReview))).unwrap();
    set(&ids[1], update(ReportState::Dismissed, None)).unwrap();
    assert_eq!(code(set("7-7-7", update(ReportState::Open, None))), Some(ErrorCode::NotFound));
    assert_eq!(code(set("x", update(ReportState::Open, None))), Some(ErrorCode::NotFound));
    let in_state = |state| ReportsQuery { state: Some(state), ..all.clone() };
    assert_eq!(listed(&world, &all), ["ben 2", "cat 3"]);
    assert_eq!(listed(&world, &in_state(ReportState::Resolved)), ["ben 1"]);
    assert_eq!(listed(&world, &in_state(ReportState::Dismissed)), ["cat 1"]);
    let read = world.engine.report(&ids[0]).unwrap();
    assert_eq!((read.report.by.as_deref(), read.report.note.as_deref()), (Some("mod"), Some("seen")));
    assert_eq!(read.context.len(), 3);
}

#[test]
fn a_report_has_no_copy_of_a_message_that_is_recalled() {
    let world = world();
    let id = report(&world, "ben", 2, ReportReason::Spam).unwrap().report;
    let body = |id: &str| {
        let report = world.engine.report(id).unwrap().report;
        (report.reported, serde_json::to_value(report.message.unwrap()).unwrap()["body"].clone())
    };
    assert_eq!(body(&id), (Some("ann".into()), json!("two")));
    world.wait(world.engine.recall_message(&as_user(&world, "ann"), "g", 2, None, None)).unwrap();
    assert_eq!(body(&id), (Some("ann".into()), Value::Null));
}

#[test]
fn a_user_has_so_many_open_reports_and_pays_for_each() {
    let world = world();
    for n in 0..u64::from(REPORTS_OPEN_MAX) {
        let seq = world.wait(world.engine.send(&Actor::App, message("ann", "g", &format!("m{n}")))).unwrap().seq;
        report(&world, "ben", seq, ReportReason::Spam).unwrap();
    }
    assert_eq!(code(report(&world, "ben", 1, ReportReason::Spam)), Some(ErrorCode::LimitExceeded));
    let id = world.engine.reports(&ReportsQuery::default()).unwrap().reports[0].id.clone();
    world.wait(world.engine.update_report(&id, update(ReportState::Dismissed, None), "mod")).unwrap();
    report(&world, "ben", 1, ReportReason::Spam).unwrap();
    report(&world, "cat", 1, ReportReason::Spam).unwrap();
}

/// A row holds what a report has, however it is written: control characters take six bytes each there, quotes two.
#[test]
fn words_of_a_report_fit_a_row() {
    let world = world();
    let say = |text: String| {
        let new = NewReport { reason: ReportReason::Other, text: Some(text), user: Some("ben".into()) };
        code(world.wait(world.engine.report_message(&Actor::App, "g", 2, new)))
    };
    assert_eq!(say("\u{1}".into()), Some(ErrorCode::InvalidField));
    assert_eq!(say("\"".repeat(513)), Some(ErrorCode::LimitExceeded));
    assert_eq!(say("x".repeat(1_025)), Some(ErrorCode::LimitExceeded));
    assert_eq!(say(format!("line\n{}", "\"".repeat(500))), None);
}

#[test]
fn reports_and_what_becomes_of_them_are_in_the_feed() {
    let world = world();
    let query = EventsQuery { after: Some("now".into()), types: Some("report".into()), ..EventsQuery::default() };
    let request = world.engine.events_request(&query).unwrap();
    let id = report(&world, "ben", 2, ReportReason::Spam).unwrap().report;
    report(&world, "ben", 2, ReportReason::Spam).unwrap();
    let events = || {
        world.settle();
        let page = serde_json::to_value(world.engine.read_events(&request).unwrap().page).unwrap();
        page["events"].as_array().unwrap().clone()
    };
    let first = events();
    assert_eq!((first.len(), &first[0]["subject"], &first[0]["data"]["id"]), (1, &json!("g"), &json!(id)));
    assert_eq!(first[0]["data"]["message"]["body"], json!("two"));
    world.wait(world.engine.update_report(&id, update(ReportState::Resolved, None), "boss")).unwrap();
    let all = events();
    assert_eq!((all.len(), &all[1]["data"]["state"], &all[1]["data"]["by"]), (2, &json!("resolved"), &json!("boss")));
}

//! What one user reports by token is limited in number and bytes; app servers are not limited.

use crate::popup_support::{custom, read_event, start};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tidings_domain::{model::Actor, user_limiter::PerMinute};
use tidings_engine::engine::popup_questions::PopupCaller;
use tidings_popups::PopupsConfig;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{PopupEvent, PopupEventsAccepted},
};
use tidings_testkit::MemoryStore;

use crate::support::World;

fn world() -> World {
    let config = PopupsConfig { events_per_user: PerMinute { count: 60, burst: 10 }, ..PopupsConfig::default() };
    let world = start(config, Arc::new(MemoryStore::default()));
    world.users(&["ada", "bob"]);
    world
}

/// Reports as the user does on a session; over HTTP it is the same call.
fn report(world: &World, user: &str, events: Vec<PopupEvent>) -> Result<PopupEventsAccepted, Refusal> {
    let actor = Actor::User(world.user(user));
    world.wait(world.engine.report_popup_events(PopupCaller { actor: &actor, session: Some(1) }, events))
}

fn events(user: &str, prefix: &str, count: usize) -> Vec<PopupEvent> {
    (0..count).map(|at| custom(&format!("{prefix}{at}"), user, "seen")).collect()
}

#[test]
fn a_user_who_reports_too_many_is_refused_and_others_are_not() {
    let world = world();
    assert_eq!(report(&world, "ada", events("ada", "a", 10)).unwrap().accepted, 10);
    let refusal = report(&world, "ada", events("ada", "b", 1)).unwrap_err();
    assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::RateLimited, Some(1_000)));
    assert_eq!(refusal.detail, "events: the user reports too many: 60 a minute, and 10 at once, are the limit");
    assert_eq!(report(&world, "bob", events("bob", "a", 10)).unwrap().accepted, 10);

    world.clock.advance(Duration::from_secs(1));
    assert_eq!(report(&world, "ada", events("ada", "b", 1)).unwrap().accepted, 1);
    assert_eq!(report(&world, "ada", events("ada", "c", 11)).unwrap_err().code, ErrorCode::LimitExceeded);
    assert_eq!(world.export(None, None, None).len(), 21, "what was refused is not stored");
}

#[test]
fn properties_count_by_their_size() {
    let world = world();
    let large = |id: &str| {
        let properties = json!({"text": "x".repeat(1_000), "more": "x".repeat(1_000)});
        read_event(json!({"id": id, "type": "custom", "user": "ada", "name": "seen", "properties": properties}))
    };
    let accepted = (0..10).take_while(|at| report(&world, "ada", vec![large(&at.to_string())]).is_ok()).count();
    assert_eq!(accepted, 5, "2,000 bytes of properties count as one event more");
}

#[test]
fn an_app_server_reports_without_a_limit() {
    let world = world();
    assert_eq!(world.report(events("ada", "a", 500)).unwrap().accepted, 500);
}

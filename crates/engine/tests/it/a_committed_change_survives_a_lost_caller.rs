//! A caller hangs up while its change is being committed: the change is made, and no cache serves the
//! old state afterwards.

use crate::support::*;
use std::sync::Arc;
use tidings_domain::model::Actor;
use tidings_engine::{
    Engine,
    config::EngineConfig,
    shards::{Control, Signal},
};
use tidings_protocol::{error::ErrorCode, http::*};

/// A room of Alice and Bob, on a store whose commits can be held up.
fn world() -> (World, Arc<Troubled>) {
    let store = Arc::new(Troubled::default());
    let world = World::new(EngineConfig::default(), store.clone());
    world.users(&["alice", "bob", "cleo"]);
    world.conversation(ConversationKind::Group, "g", &["alice", "bob"]);
    (world, store)
}

/// Begins a change, aborts the caller during the commit, then lets the store finish the commit.
fn hang_up<F: Future + Send + 'static>(world: &World, store: &Troubled, change: impl FnOnce(Arc<Engine>) -> F)
where
    F::Output: Send + 'static,
{
    let gate = store.close_gate();
    let caller = world.spawn(change(world.engine.clone()));
    store.wait_for_commit();
    caller.abort();
    assert!(world.wait(caller).is_err_and(|gone| gone.is_cancelled()));
    drop(gate);
    world.wait(world.engine.flush());
}

fn members(add: &[&str], remove: &[&str]) -> ChangeMembers {
    let owned = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
    ChangeMembers { add: owned(add), remove: owned(remove), role: None }
}

#[test]
fn membership_changes_are_visible_after_the_caller_has_gone() {
    let (world, store) = world();
    let engine = &world.engine;
    let says = |user: &str, id: &str| {
        let request = SendRequest { from: None, ..message(user, "g", id) };
        world.wait(engine.send(&Actor::User(world.user(user)), request)).map_err(|refusal| refusal.code)
    };
    // Both answers are cached now.
    assert!(says("bob", "hi").is_ok());
    assert_eq!(says("cleo", "hi"), Err(ErrorCode::NotAMember));
    hang_up(&world, &store, |engine| async move {
        engine.change_members(&Actor::App, "g", members(&["cleo"], &["bob"])).await
    });
    assert_eq!(says("bob", "and more"), Err(ErrorCode::NotAMember));
    assert!(says("bob", "hi").unwrap().duplicate, "a retry of what is stored");
    let read = engine.history(&Actor::User(world.user("bob")), "g", &HistoryQuery::default());
    assert_eq!(read.unwrap_err().code, ErrorCode::NotAMember);
    assert!(says("cleo", "hi").is_ok());
}

#[test]
fn changed_cards_are_visible_after_the_caller_has_gone() {
    let (world, store) = world();
    assert_eq!(world.engine.user_profile("bob", true).unwrap().name, None);
    hang_up(&world, &store, |engine| async move {
        let bob = UserUpsert { id: "bob".into(), name: Some("Bob".into()), ..UserUpsert::default() };
        engine.upsert_users(vec![bob]).await
    });
    assert_eq!(world.engine.user_profile("bob", true).unwrap().name.as_deref(), Some("Bob"));

    let window = DailyWindow { start: "22:00".into(), end: "07:00".into(), time_zone: "Asia/Tokyo".into() };
    let asked = window.clone();
    hang_up(&world, &store, |engine| async move { engine.set_do_not_disturb("bob", Some(asked)).await });
    assert_eq!(world.engine.user_profile("bob", true).unwrap().do_not_disturb, Some(window));

    hang_up(&world, &store, |engine| async move {
        let update = UpdateConversation { name: Some("Room".into()), ..UpdateConversation::default() };
        engine.update_conversation(&Actor::App, "g", update).await
    });
    assert_eq!(world.engine.conversation_details(&Actor::App, "g").unwrap().name.as_deref(), Some("Room"));
}

#[test]
fn a_read_mark_reaches_the_users_sessions_after_the_caller_has_gone() {
    let (world, store) = world();
    let bob = world.user("bob");
    world.wait(world.engine.send(&Actor::App, message("alice", "g", "hi"))).unwrap();
    let reader = bob.clone();
    hang_up(&world, &store, |engine| async move { engine.mark_read(&reader, "g", 1).await });
    match world.receivers[0].control.recv_timeout(PATIENCE).unwrap() {
        Control::Signal { user, signal: Signal::Read { conversation, seq } } => {
            let g = world.engine.directory.require_conversation("g").unwrap().no;
            assert_eq!((user, conversation, seq), (bob.no, g, 1));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.engine.conversations(&bob, None, None, 0).unwrap().conversations[0].unread, 0);
}

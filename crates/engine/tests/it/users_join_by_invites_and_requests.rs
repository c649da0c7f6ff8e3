//! Users become members by the token of an invite, or by a request that the owner or an admin answers.

use crate::support::*;
use serde_json::{Value, json};
use std::sync::Arc;
use tidings_domain::{
    chat_rows,
    joining::invites_key,
    model::{Actor, Role},
    store::{RowSpace, RowStore as _, Store as _},
};
use tidings_engine::config::EngineConfig;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
};
use tidings_testkit::MemoryStore;

/// Olga owns the group, Adam is its admin, Mia a member; Zoe and Yan are not in it.
fn world() -> (World, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::default());
    let world = World::new(EngineConfig { sends_per_second: 0, ..EngineConfig::default() }, store.clone());
    world.users(&["olga", "adam", "mia", "zoe", "yan"]);
    world.conversation(ConversationKind::Group, "g", &["olga", "adam", "mia"]);
    let admin = ChangeMembers { add: vec!["adam".into()], remove: vec![], role: Some(Role::Admin) };
    world.wait(world.engine.change_members(&Actor::App, "g", admin)).unwrap();
    (world, store)
}

fn actor(world: &World, user: &str) -> Actor {
    if user == "app" { Actor::App } else { Actor::User(world.user(user)) }
}

fn code<T>(result: Result<T, Refusal>) -> Result<(), ErrorCode> {
    result.map(drop).map_err(|refusal| refusal.code)
}

fn invite(world: &World, who: &str, expires_at: Option<u64>, uses_max: Option<u32>) -> Result<MadeInvite, Refusal> {
    let new = NewInvite { expires_at, uses_max, by: None };
    world.wait(world.engine.create_invite(&actor(world, who), "g", new))
}

fn join(world: &World, who: &str, token: &str) -> Result<(), ErrorCode> {
    let request = JoinByInvite { token: token.into(), user: None };
    code(world.wait(world.engine.join_by_invite(&actor(world, who), request)))
}

fn newest(world: &World) -> Value {
    let page = world.engine.history(&Actor::App, "g", &HistoryQuery::default()).unwrap();
    serde_json::from_str(page.entries.last().unwrap().body.get()).unwrap()
}

fn leave(world: &World, who: &str) {
    let change = ChangeMembers { add: vec![], remove: vec![who.into()], role: None };
    world.wait(world.engine.change_members(&Actor::App, "g", change)).unwrap();
}

fn ban(world: &World, who: &str, until: Option<u64>) {
    let ban = Restrict { kind: RestrictionKind::Ban, until, reason: None, by: None };
    world.wait(world.engine.restrict(&Actor::App, "g", who, ban)).unwrap();
}

#[test]
fn an_invite_lets_users_in_until_it_ends_is_used_up_or_is_revoked() {
    let (world, store) = world();
    for who in ["mia", "zoe"] {
        let expected = if who == "mia" { ErrorCode::Forbidden } else { ErrorCode::NotAMember };
        assert_eq!(code(invite(&world, who, None, None)), Err(expected));
        assert_eq!(code(world.engine.invites(&actor(&world, who), "g")), Err(expected));
    }
    let made = invite(&world, "adam", Some(NOON + 1_000), Some(1)).unwrap();
    let row = store.row(RowSpace::Chat, &invites_key(store.conversation_no("g").unwrap().unwrap())).unwrap().unwrap();
    assert!(!String::from_utf8(row).unwrap().contains(&made.token[40..]), "the token is not stored");
    for wrong in [
        "",
        "invite_",
        "x",
        &made.token[..made.token.len() - 1],
        &format!("{}0", made.token),
        &made.token.replace("invite_00", "invite_0é"),
    ] {
        assert_eq!(join(&world, "zoe", wrong), Err(ErrorCode::NotFound), "{wrong}");
    }
    assert_eq!(join(&world, "mia", &made.token), Ok(()), "a member stays one");
    assert_eq!(join(&world, "zoe", &made.token), Ok(()));
    let notice = newest(&world);
    assert_eq!(
        (&notice["added"], &notice["by"], &notice["invite"]),
        (&json!(["zoe"]), &json!("zoe"), &json!(made.invite.id))
    );
    assert_eq!(join(&world, "yan", &made.token), Err(ErrorCode::NotFound), "it is used up");
    let made = invite(&world, "olga", Some(NOON + 1_000), None).unwrap();
    ban(&world, "yan", Some(NOON + 500));
    assert_eq!(join(&world, "yan", &made.token), Err(ErrorCode::Banned));
    world.clock.set(NOON + 999);
    assert_eq!(join(&world, "yan", &made.token), Ok(()));
    leave(&world, "yan");
    world.clock.set(NOON + 1_000);
    assert_eq!(join(&world, "yan", &made.token), Err(ErrorCode::NotFound), "it has ended");
    let made = invite(&world, "app", None, None).unwrap();
    let listed = world.engine.invites(&actor(&world, "adam"), "g").unwrap();
    assert!(listed.invites.iter().eq([&made.invite]), "those that hold");
    world.wait(world.engine.revoke_invite(&actor(&world, "adam"), "g", &made.invite.id)).unwrap();
    assert_eq!(join(&world, "yan", &made.token), Err(ErrorCode::NotFound));
    assert_eq!(
        code(world.wait(world.engine.revoke_invite(&Actor::App, "g", &made.invite.id))),
        Err(ErrorCode::NotFound)
    );
    assert_eq!(code(invite(&world, "adam", Some(NOON), None)), Err(ErrorCode::InvalidField));
    assert_eq!(code(invite(&world, "adam", None, Some(0))), Err(ErrorCode::InvalidField));
}

#[test]
fn users_who_join_at_once_use_an_invite_no_more_often_than_it_says() {
    let (world, _) = world();
    let ids: Vec<String> = (0..30).map(|n| format!("u{n}")).collect();
    world.users(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    let made = invite(&world, "adam", None, Some(7)).unwrap();
    let joining: Vec<_> = ids
        .iter()
        .map(|user| {
            let (engine, actor) = (world.engine.clone(), actor(&world, user));
            let request = JoinByInvite { token: made.token.clone(), user: None };
            world.spawn(async move { engine.join_by_invite(&actor, request).await.is_ok() })
        })
        .collect();
    let joined = joining.into_iter().map(|join| world.wait(join).unwrap()).filter(|joined| *joined).count();
    assert_eq!(joined, 7);
    assert_eq!(world.engine.conversation_details(&Actor::App, "g").unwrap().member_count, 10);
}

#[test]
fn invites_of_a_conversation_are_bounded_and_fit_their_row() {
    let store = Arc::new(MemoryStore::default());
    let world = World::new(EngineConfig { sends_per_second: 0, ..EngineConfig::default() }, store.clone());
    // Each quote takes two bytes in a row.
    let owner = "\"".repeat(64);
    world.users(&[&owner]);
    world.conversation(ConversationKind::Group, "g", &[&owner]);
    let longest = || invite(&world, &owner, Some(u64::MAX), Some(u32::MAX));
    let made: Vec<_> = (0..8).map(|_| longest().unwrap()).collect();
    assert_eq!(code(longest()), Err(ErrorCode::LimitExceeded));
    let row = store.row(RowSpace::Chat, &invites_key(store.conversation_no("g").unwrap().unwrap())).unwrap();
    assert!(row.unwrap().len() + 8 * 10 <= tidings_domain::store::ROW_BYTES_MAX);
    world.wait(world.engine.revoke_invite(&Actor::App, "g", &made[7].invite.id)).unwrap();
    assert!(longest().is_ok());
}

fn ask(world: &World, who: &str, id: &str) -> Result<(), ErrorCode> {
    let request = AskToJoin { text: Some("me?".into()), user: None };
    code(world.wait(world.engine.ask_to_join(&actor(world, who), id, request)))
}

fn approve(world: &World, who: &str, user: &str) -> Result<(), ErrorCode> {
    code(world.wait(world.engine.approve_request(&actor(world, who), "g", user)))
}

fn refuse(world: &World, who: &str, user: &str) -> Result<(), ErrorCode> {
    let request = RefuseRequest { reason: Some("only for the house".into()) };
    code(world.wait(world.engine.refuse_request(&actor(world, who), "g", user, request)))
}

fn waiting(world: &World) -> Vec<String> {
    let page = world.engine.join_requests(&actor(world, "adam"), "g", (None, 0)).unwrap();
    page.requests.into_iter().map(|request| request.user).collect()
}

fn take_requests(world: &World, id: &str) {
    let update = UpdateConversation { join_requests: Some(true), ..UpdateConversation::default() };
    world.wait(world.engine.update_conversation(&Actor::App, id, update)).unwrap();
}

#[test]
fn a_request_waits_until_the_owner_or_an_admin_answers_it() {
    let (world, _) = world();
    assert_eq!(ask(&world, "zoe", "g"), Err(ErrorCode::Forbidden), "the group takes no requests");
    take_requests(&world, "g");
    assert_eq!(ask(&world, "mia", "g"), Err(ErrorCode::Conflict), "a member");
    for who in ["zoe", "yan", "zoe"] {
        assert_eq!(ask(&world, who, "g"), Ok(()));
    }
    assert_eq!(waiting(&world), ["zoe", "yan"]);
    for (who, expected) in [("mia", ErrorCode::Forbidden), ("zoe", ErrorCode::NotAMember)] {
        assert_eq!(approve(&world, who, "zoe"), Err(expected));
        assert_eq!(refuse(&world, who, "yan"), Err(expected));
        assert_eq!(code(world.engine.join_requests(&actor(&world, who), "g", (None, 0))), Err(expected));
    }
    assert_eq!(approve(&world, "adam", "zoe"), Ok(()));
    let notice = newest(&world);
    assert_eq!((&notice["added"], &notice["by"], &notice["approved"]), (&json!(["zoe"]), &json!("adam"), &json!(true)));
    assert_eq!(approve(&world, "adam", "zoe"), Err(ErrorCode::NotFound));
    assert_eq!(refuse(&world, "olga", "yan"), Ok(()));
    let answer = world.engine.join_request(&actor(&world, "yan"), "g", "yan").unwrap();
    assert_eq!((answer.state, answer.reason.as_deref()), (JoinRequestState::Refused, Some("only for the house")));
    assert_eq!(code(world.engine.join_request(&actor(&world, "zoe"), "g", "yan")), Err(ErrorCode::Forbidden));
    // The user asks again, withdraws, asks once more, and is banned meanwhile.
    assert_eq!((ask(&world, "yan", "g"), refuse(&world, "yan", "yan")), (Ok(()), Ok(())));
    assert_eq!(code(world.engine.join_request(&actor(&world, "yan"), "g", "yan")), Err(ErrorCode::NotFound));
    assert_eq!(ask(&world, "yan", "g"), Ok(()));
    ban(&world, "yan", None);
    assert_eq!(approve(&world, "adam", "yan"), Err(ErrorCode::Banned));
    assert_eq!(ask(&world, "yan", "g"), Err(ErrorCode::Banned));
    assert_eq!(refuse(&world, "adam", "yan"), Ok(()));
    assert_eq!(waiting(&world), Vec::<String>::new());
    // Whom somebody has added meanwhile waits no more.
    leave(&world, "zoe");
    assert_eq!(ask(&world, "zoe", "g"), Ok(()));
    let change = ChangeMembers { add: vec!["zoe".into()], remove: vec![], role: None };
    world.wait(world.engine.change_members(&actor(&world, "adam"), "g", change)).unwrap();
    assert_eq!(waiting(&world), Vec::<String>::new());
    assert_eq!(approve(&world, "adam", "zoe"), Ok(()), "which changes nothing");
}

#[test]
fn requests_of_a_user_are_bounded() {
    let (world, store) = world();
    for n in 0..=20 {
        let id = format!("g{n}");
        world.conversation(ConversationKind::Group, &id, &["olga"]);
        take_requests(&world, &id);
        assert_eq!(ask(&world, "zoe", &id), if n < 20 { Ok(()) } else { Err(ErrorCode::LimitExceeded) }, "{n}");
    }
    let request = RefuseRequest::default();
    world.wait(world.engine.refuse_request(&actor(&world, "olga"), "g3", "zoe", request)).unwrap();
    assert_eq!(ask(&world, "zoe", "g20"), Ok(()));
    let key = tidings_domain::joining::waiting_of_key(world.user("zoe").no);
    let waiting: u64 = chat_rows::decode(store.row(RowSpace::Chat, &key).unwrap().as_deref()).unwrap();
    assert_eq!(waiting, 20);
}

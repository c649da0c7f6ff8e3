//! Which role may change which members, the notices of changes, and what removed members can no longer do.

use crate::support::*;
use serde_json::{Value, json};
use std::sync::Arc;
use tidings_domain::model::Actor;
use tidings_engine::config::EngineConfig;
use tidings_protocol::{entry::EntryKind, error::ErrorCode, http::*, limits::MEMBERS_BATCH_MAX};
use tidings_testkit::MemoryStore;

/// Olga owns the group and the account, Adam is their admin, Mia and Max are members.
fn world() -> World {
    let world = World::new(EngineConfig::default(), Arc::new(MemoryStore::default()));
    world.users(&["olga", "adam", "mia", "max", "zoe"]);
    for (kind, id) in [(ConversationKind::Group, "g"), (ConversationKind::Official, "news")] {
        world.conversation(kind, id, &["olga", "mia", "max"]);
        change(&world, None, id, &["adam"], &[], Some(Role::Admin)).unwrap();
    }
    world
}

/// Changes members as a user, or as the app server.
fn change(
    world: &World,
    user: Option<&str>,
    id: &str,
    add: &[&str],
    remove: &[&str],
    role: Option<Role>,
) -> Result<MembersChanged, ErrorCode> {
    let owned = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
    let change = ChangeMembers { add: owned(add), remove: owned(remove), role };
    let actor = user.map_or(Actor::App, |user| Actor::User(world.user(user)));
    world.wait(world.engine.change_members(&actor, id, change)).map_err(|refusal| refusal.code)
}

fn newest(world: &World, id: &str) -> (EntryKind, Value) {
    let page = world.engine.history(&Actor::App, id, &HistoryQuery::default()).unwrap();
    let entry = page.entries.last().unwrap();
    assert!(entry.silent, "nobody's unread count rises by it");
    (entry.kind, serde_json::from_str(entry.body.get()).unwrap())
}

#[test]
fn each_role_may_make_only_its_changes() {
    const DONE: Option<ErrorCode> = None;
    const FORBIDDEN: Option<ErrorCode> = Some(ErrorCode::Forbidden);
    const OUTSIDE: Option<ErrorCode> = Some(ErrorCode::NotAMember);
    let admin = Some(Role::Admin);
    type Case<'a> = (&'a str, &'a str, &'a [&'a str], &'a [&'a str], Option<Role>, Option<ErrorCode>);
    let cases: &[Case] = &[
        ("mia", "g", &["zoe"], &[], None, FORBIDDEN),
        ("mia", "g", &[], &["max"], None, FORBIDDEN),
        ("mia", "g", &[], &["mia"], None, DONE),
        ("zoe", "g", &["zoe"], &[], None, OUTSIDE),
        ("zoe", "g", &[], &["mia"], None, OUTSIDE),
        ("adam", "g", &["zoe"], &["max"], None, DONE),
        ("adam", "g", &["zoe"], &[], admin, FORBIDDEN),
        ("adam", "g", &[], &["olga"], None, FORBIDDEN),
        ("adam", "g", &["adam"], &[], Some(Role::Owner), FORBIDDEN),
        ("olga", "g", &["mia"], &[], admin, DONE),
        ("olga", "g", &[], &["adam"], None, DONE),
        ("zoe", "news", &["zoe"], &[], None, DONE),
        ("zoe", "news", &["zoe"], &[], admin, OUTSIDE),
        ("mia", "news", &[], &["mia"], None, DONE),
        ("mia", "news", &["zoe"], &[], None, FORBIDDEN),
    ];
    for (user, id, add, remove, role, expected) in cases {
        let result = change(&world(), Some(user), id, add, remove, *role);
        assert_eq!(result.err(), *expected, "{user} in {id}: add {add:?}, remove {remove:?}, {role:?}");
    }
}

#[test]
fn a_notice_names_only_members_who_really_changed() {
    let world = world();
    let changed = change(&world, Some("adam"), "g", &["zoe", "mia", "zoe"], &["max"], None).unwrap();
    assert_eq!(changed, MembersChanged { added: 1, removed: 1, changed: 0, member_count: 4 });
    let (kind, body) = newest(&world, "g");
    assert_eq!(kind, EntryKind::MemberChange);
    let expected = json!({
        "added": ["zoe"], "added_count": 1, "removed": ["max"], "removed_count": 1,
        "changed": [], "changed_count": 0, "role": null, "by": "adam",
    });
    assert_eq!(body, expected);

    change(&world, None, "g", &["mia", "zoe"], &[], Some(Role::Admin)).unwrap();
    let (_, body) = newest(&world, "g");
    assert_eq!((&body["changed"], &body["added"], &body["by"]), (&json!(["mia", "zoe"]), &json!([]), &Value::Null));
}

#[test]
fn a_request_that_changes_nothing_leaves_no_notice() {
    let world = world();
    let before = world.engine.conversation_details(&Actor::App, "g").unwrap();
    let changed = change(&world, None, "g", &["mia", "adam"], &["zoe"], None).unwrap();
    assert_eq!(changed, MembersChanged { added: 0, removed: 0, changed: 0, member_count: 4 });
    let update = UpdateConversation::default();
    world.wait(world.engine.update_conversation(&Actor::App, "g", update)).unwrap();
    assert_eq!(world.engine.conversation_details(&Actor::App, "g").unwrap(), before);
    let olga = world.user("olga");
    let page = world.engine.members(&Actor::User(olga), "g", None, 0).unwrap();
    let adam = page.members.iter().find(|member| member.user == "adam").unwrap();
    assert_eq!(adam.role, Role::Admin, "added again without a role, he keeps his");
}

#[test]
fn a_notice_counts_all_new_members_and_names_the_first_twenty() {
    let world = world();
    let ids: Vec<String> = (0..1_000).map(|n| format!("u{n:04}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    world.users(&ids);
    assert_eq!(change(&world, None, "g", &ids, &[], None).unwrap().added, 1_000);
    let (_, body) = newest(&world, "g");
    assert_eq!((&body["added"], &body["added_count"]), (&json!(&ids[..20]), &json!(1_000)));
}

#[test]
fn an_impossible_change_is_refused_with_its_own_code() {
    let world = world();
    assert_eq!(change(&world, None, "g", &["mia"], &["mia"], None), Err(ErrorCode::InvalidField));
    assert_eq!(change(&world, None, "g", &["nobody"], &[], None), Err(ErrorCode::NotFound));
    let many = vec!["mia"; MEMBERS_BATCH_MAX + 1];
    assert_eq!(change(&world, None, "g", &many, &[], None), Err(ErrorCode::LimitExceeded));
    let direct = |name: Option<&str>, members: &[&str]| {
        let new = CreateConversation {
            id: None,
            kind: ConversationKind::Direct,
            name: name.map(str::to_owned),
            avatar: None,
            attributes: None,
            owner: None,
            members: members.iter().map(|id| (*id).to_owned()).collect(),
            receipts: None,
            history: None,
            mention_all: None,
            blocks: None,
            reactions: None,
            posting: None,
            slow_mode_s: None,
            join_requests: None,
            expires: None,
        };
        world.wait(world.engine.create_conversation(&Actor::App, new)).map_err(|refusal| refusal.code)
    };
    assert_eq!(direct(Some("us"), &["mia", "max"]), Err(ErrorCode::InvalidField));
    assert_eq!(direct(None, &["mia"]), Err(ErrorCode::InvalidField));
    let (card, created) = direct(None, &["mia", "max"]).unwrap();
    assert!(created && card.id == "max~mia");
    assert!(!direct(None, &["max", "mia"]).unwrap().1);
    assert_eq!(change(&world, None, "max~mia", &["zoe"], &[], None), Err(ErrorCode::Conflict));
}

#[test]
fn a_removed_member_can_neither_read_nor_send() {
    let world = world();
    let engine = &world.engine;
    let mia = world.user("mia");
    let actor = Actor::User(mia.clone());
    world.wait(engine.send(&Actor::App, message("olga", "g", "before"))).unwrap();
    let from = engine.sync(&mia, None).unwrap().cursor;
    change(&world, Some("adam"), "g", &[], &["mia"], None).unwrap();
    world.wait(engine.send(&Actor::App, message("olga", "g", "secret"))).unwrap();

    let closed = [
        engine.history(&actor, "g", &HistoryQuery::default()).err(),
        engine.conversation_details(&actor, "g").err(),
        engine.members(&actor, "g", None, 0).err(),
        engine.typing(&mia, "g").err(),
        world.wait(engine.mark_read(&mia, "g", 1)).err(),
        world.wait(engine.set_mute(&mia, "g", Mute { muted: true, until: None })).err(),
        world.wait(engine.update_conversation(&actor, "g", UpdateConversation::default())).err(),
        world.wait(engine.send(&actor, SendRequest { from: None, ..message("mia", "g", "hi") })).err(),
        change(&world, Some("mia"), "g", &["mia"], &[], None)
            .err()
            .map(|code| tidings_protocol::error::Refusal::new(code, "")),
    ];
    for (at, refusal) in closed.into_iter().enumerate() {
        assert_eq!(refusal.map(|refusal| refusal.code), Some(ErrorCode::NotAMember), "the {at}th");
    }
    let sync = engine.sync(&mia, Some(&from)).unwrap();
    assert!(sync.resume.complete && sync.entries.is_empty());
    assert!(engine.conversations(&mia, None, None, 0).unwrap().conversations.iter().all(|c| c.id != "g"));

    // A returned member may read all history: entries from the time away are missed, and not unread.
    change(&world, Some("adam"), "g", &["mia"], &[], None).unwrap();
    let sync = engine.sync(&mia, Some(&from)).unwrap();
    let kinds: Vec<_> = sync.entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [EntryKind::MemberChange, EntryKind::Message, EntryKind::MemberChange]);
    assert_eq!(engine.history(&actor, "g", &HistoryQuery::default()).unwrap().entries.len(), 5);
    let list = engine.conversations(&mia, None, None, 0).unwrap();
    assert_eq!(list.conversations.iter().find(|c| c.id == "g").unwrap().unread, 0);
}

fn roles(world: &World, id: &str) -> String {
    let page = world.engine.members(&Actor::App, id, None, 0).unwrap();
    let role = |member: &MemberView| format!("{}:{}", member.user, json!(member.role).as_str().unwrap());
    page.members.iter().map(role).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_last_owner_who_leaves_is_followed_by_the_longest_standing_admin_or_member() {
    let world = world();
    change(&world, None, "g", &["max"], &[], Some(Role::Admin)).unwrap();
    change(&world, Some("olga"), "g", &[], &["olga"], None).unwrap();
    // All joined at the same moment of the tests' clock: the user who was made first stands longest.
    assert_eq!(roles(&world, "g"), "adam:owner mia:member max:admin");
    let (kind, body) = newest(&world, "g");
    assert_eq!((kind, &body["owner"], &body["removed"]), (EntryKind::MemberChange, &json!("adam"), &json!(["olga"])));
    assert!(change(&world, Some("adam"), "g", &["max"], &[], Some(Role::Member)).is_ok(), "who can appoint");
    // An owner who stays, or is named in the same change, is enough.
    change(&world, Some("adam"), "g", &["max"], &[], Some(Role::Owner)).unwrap();
    change(&world, Some("adam"), "g", &[], &["adam"], None).unwrap();
    assert_eq!((roles(&world, "g").as_str(), newest(&world, "g").1.get("owner")), ("mia:member max:owner", None));
    change(&world, None, "g", &["zoe"], &["max"], Some(Role::Owner)).unwrap();
    assert_eq!(roles(&world, "g"), "mia:member zoe:owner");
    // App servers that remove the owner leave somebody, too; and the last member leaves nobody.
    world.clock.set(NOON + 1_000);
    change(&world, None, "g", &["adam"], &[], None).unwrap();
    change(&world, None, "g", &[], &["zoe"], None).unwrap();
    assert_eq!(roles(&world, "g"), "adam:member mia:owner");
    change(&world, None, "g", &[], &["adam", "mia"], None).unwrap();
    assert_eq!(roles(&world, "g"), "");
    // Who owns an account is its operator's choice.
    change(&world, Some("olga"), "news", &[], &["olga"], None).unwrap();
    assert_eq!(roles(&world, "news"), "adam:admin mia:member max:member");
}

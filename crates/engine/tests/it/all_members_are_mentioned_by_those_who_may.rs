//! Who may mention all members of a conversation, and in whose list of mentions such a message is.

use crate::support::*;
use std::sync::Arc;
use tidings_domain::{model::*, store::*};
use tidings_engine::config::EngineConfig;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
};
use tidings_testkit::MemoryStore;

/// Ada is the owner, ben an admin, cyd a member.
fn world() -> World {
    let world = World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, Arc::new(MemoryStore::default()));
    world.users(&["ada", "ben", "cyd", "dan"]);
    world.conversation(ConversationKind::Group, "g", &["ada", "ben", "cyd"]);
    members(&world, "g", ChangeMembers { add: vec!["ben".into()], remove: vec![], role: Some(Role::Admin) });
    world
}

fn members(world: &World, conversation: &str, change: ChangeMembers) {
    world.wait(world.engine.change_members(&Actor::App, conversation, change)).unwrap();
    world.take_fanouts();
}

fn add(world: &World, conversation: &str, user: &str) {
    members(world, conversation, ChangeMembers { add: vec![user.into()], remove: vec![], role: None });
}

fn set(world: &World, update: UpdateConversation) -> ConversationDetails {
    world.wait(world.engine.update_conversation(&Actor::App, "g", update)).unwrap()
}

fn may(world: &World, mention_all: MentionAll) {
    let card = set(world, UpdateConversation { mention_all: Some(mention_all), ..UpdateConversation::default() });
    assert_eq!(card.mention_all, mention_all);
}

fn all(from: &str, conversation: &str, text: &str) -> SendRequest {
    SendRequest { mentions: vec!["@all".into()], ..message(from, conversation, text) }
}

/// Sends with the user's own token, or by the app server in the user's name.
fn send(world: &World, by_app: bool, request: SendRequest) -> Result<u64, Refusal> {
    let actor = match by_app {
        true => Actor::App,
        false => Actor::User(world.user(request.from.as_deref().unwrap())),
    };
    let sent = world.wait(world.engine.send(&actor, request)).map(|receipt| receipt.seq);
    world.take_fanouts();
    sent
}

fn edit(world: &World, user: &str, seq: u64, mentions: &[&str]) -> Result<u32, Refusal> {
    let edit = EditMessage {
        from: None,
        client_msg_id: None,
        content_type: None,
        body: serde_json::value::to_raw_value("other").unwrap(),
        mentions: mentions.iter().map(|id| (*id).to_owned()).collect(),
        if_version: None,
    };
    let edited = world.wait(world.engine.edit_message(&Actor::User(world.user(user)), "g", seq, edit));
    world.take_fanouts();
    edited.map(|receipt| receipt.version)
}

/// The bodies of the messages that mention a user, read in pages of two.
fn mentions(world: &World, user: &str) -> Vec<String> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = world.engine.mentions(&world.user(user), after.as_deref(), 2).unwrap();
        found.extend(page.entries.iter().map(|entry| entry.body.get().trim_matches('"').to_owned()));
        match page.next {
            Some(next) => after = Some(next),
            None => return found,
        }
    }
}

#[test]
fn who_may_is_the_conversations_setting_and_app_servers_always_may() {
    let world = world();
    let refused = |result: Result<u64, Refusal>| result.map(drop).map_err(|refusal| refusal.code);
    let allowed = |users: [&str; 3], round: &str| -> Vec<String> {
        let sent = users.iter().filter(|user| {
            let sent = refused(send(&world, false, all(user, "g", &format!("{round}-{user}"))));
            assert!(matches!(sent, Ok(()) | Err(ErrorCode::Forbidden)), "{sent:?}");
            assert_eq!(refused(send(&world, true, all(user, "g", &format!("{round}-{user}-app")))), Ok(()));
            assert_eq!(refused(send(&world, false, message(user, "g", &format!("{round}-{user}-plain")))), Ok(()));
            sent.is_ok()
        });
        sent.map(|user| (*user).to_owned()).collect()
    };
    let users = ["ada", "ben", "cyd"];
    let card = world.engine.conversation_details(&Actor::App, "g").unwrap();
    assert_eq!(card.mention_all, MentionAll::Admins);
    assert_eq!(allowed(users, "default"), ["ada", "ben"]);
    may(&world, MentionAll::Members);
    assert_eq!(allowed(users, "members"), users);
    may(&world, MentionAll::Nobody);
    assert_eq!(allowed(users, "nobody"), [""; 0]);
    may(&world, MentionAll::Admins);
    assert_eq!(allowed(users, "admins"), ["ada", "ben"]);
    let why = send(&world, false, all("cyd", "g", "why")).unwrap_err();
    assert_eq!(why.detail, "mentions: only the owner and admins may mention @all here");
    let stranger = send(&world, false, all("dan", "g", "s")).unwrap_err();
    assert_eq!(stranger.code, ErrorCode::NotAMember);
    // A member, who is not one of the admins, cannot change who may.
    let update = UpdateConversation { mention_all: Some(MentionAll::Members), ..UpdateConversation::default() };
    let cyd = Actor::User(world.user("cyd"));
    let changed = world.wait(world.engine.update_conversation(&cyd, "g", update));
    assert_eq!(changed.unwrap_err().code, ErrorCode::Forbidden);
}

#[test]
fn both_users_of_a_direct_conversation_may_and_nothing_is_set_there() {
    let world = world();
    let request = SendRequest { conversation: None, to: Some("dan".into()), ..all("cyd", "", "hi") };
    assert_eq!(send(&world, false, request).unwrap(), 1);
    assert_eq!((mentions(&world, "dan"), mentions(&world, "cyd")), (vec!["hi".into()], vec![]));
    let update = UpdateConversation { mention_all: Some(MentionAll::Nobody), ..UpdateConversation::default() };
    let refusal = world.wait(world.engine.update_conversation(&Actor::App, "cyd~dan", update)).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::InvalidField);
}

#[test]
fn an_edit_adds_the_mention_of_all_by_the_same_right_and_may_keep_it() {
    let world = world();
    may(&world, MentionAll::Members);
    let seq = send(&world, false, all("cyd", "g", "all")).unwrap();
    may(&world, MentionAll::Admins);
    assert_eq!(edit(&world, "cyd", seq, &["@all"]).unwrap(), 2, "it was there before");
    assert_eq!(edit(&world, "cyd", seq, &["ada"]).unwrap(), 3);
    assert_eq!(edit(&world, "cyd", seq, &["@all"]).unwrap_err().code, ErrorCode::Forbidden);
    assert_eq!(edit(&world, "ada", seq, &["@all"]).unwrap(), 4, "the owner may");
}

#[test]
fn the_list_has_what_is_still_there_for_whoever_may_read_it() {
    let world = world();
    for (text, from) in [("one", "ada"), ("two", "ben"), ("three", "ada")] {
        world.clock.advance(std::time::Duration::from_millis(1));
        send(&world, false, all(from, "g", text)).unwrap();
    }
    let named = SendRequest { mentions: vec!["cyd".into(), "@all".into()], ..message("ada", "g", "named") };
    let named = send(&world, false, named).unwrap();
    assert_eq!(mentions(&world, "cyd"), ["named", "three", "two", "one"], "each once, the newest first");
    assert_eq!(mentions(&world, "ben"), ["named", "three", "one"], "not the own one");
    assert_eq!(mentions(&world, "ada"), ["two"]);
    assert_eq!(mentions(&world, "dan"), [""; 0], "no member");

    // Who joins later is shown what the conversation shows.
    add(&world, "g", "dan");
    send(&world, false, all("ada", "g", "after")).unwrap();
    assert_eq!(mentions(&world, "dan"), ["after", "named", "three", "two", "one"]);
    let history = |history| drop(set(&world, UpdateConversation { history, ..UpdateConversation::default() }));
    history(Some(HistoryVisibility::Join));
    assert_eq!(mentions(&world, "dan"), ["after"]);
    // The two before are the notice of the joining and "named".
    history(Some(HistoryVisibility::Last(1)));
    assert_eq!(mentions(&world, "dan"), ["after", "named"]);

    // Ben clears up to "two"; "three" no longer mentions all, and "one" is recalled.
    let clear = UpdatePreferences { clear_to_seq: Some(named - 2), ..UpdatePreferences::default() };
    world.wait(world.engine.set_preferences(&world.user("ben"), "g", clear)).unwrap();
    assert_eq!(mentions(&world, "ben"), ["after", "named", "three"]);
    edit(&world, "ada", named - 1, &[]).unwrap();
    assert_eq!(mentions(&world, "ben"), ["after", "named"]);
    world.wait(world.engine.recall_message(&Actor::App, "g", named - 3, None, None)).unwrap();
    assert_eq!(mentions(&world, "cyd"), ["after", "named", "two"]);
    edit(&world, "ada", named, &["cyd"]).unwrap();
    assert_eq!((mentions(&world, "ben"), mentions(&world, "cyd")[1].as_str()), (vec!["after".into()], "other"));

    members(&world, "g", ChangeMembers { add: vec![], remove: vec!["cyd".into()], role: None });
    assert_eq!(mentions(&world, "cyd"), [""; 0]);
}

#[test]
fn one_row_stands_for_all_members_and_pages_merge_many_conversations() {
    let world = world();
    let rows = |kind: u8| world.engine.store.rows(RowSpace::Chat, &[kind], &[kind + 1], 10_000).unwrap().len();
    let many: Vec<UserUpsert> = (0..500).map(|n| UserUpsert { id: format!("u{n}"), ..UserUpsert::default() }).collect();
    let ids = many.iter().map(|user| user.id.clone()).collect();
    world.wait(world.engine.upsert_users(many)).unwrap();
    members(&world, "g", ChangeMembers { add: ids, remove: vec![], role: None });
    send(&world, true, all("ada", "g", "to-five-hundred")).unwrap();
    assert_eq!((rows(b'A'), rows(b'm')), (1, 0));
    assert_eq!(mentions(&world, "u499"), ["to-five-hundred"]);

    // More conversations than are opened at once, a few of which mention; the times go round.
    let rooms: Vec<String> = (0..1_100).map(|n| format!("room{n}")).collect();
    for room in &rooms {
        world.conversation(ConversationKind::Group, room, &["ada", "dan"]);
    }
    let mut expected = Vec::new();
    for turn in 0..60 {
        let n = turn * 37 % rooms.len();
        world.clock.advance(std::time::Duration::from_millis(turn as u64 % 3));
        let text = format!("{turn}");
        let seq = send(&world, true, all("ada", &rooms[n], &text)).unwrap();
        let no = world.engine.store.conversation_no(&rooms[n]).unwrap().unwrap();
        let at = world.engine.store.entries(no, seq, seq, 1, End::Newest).unwrap()[0].at;
        expected.push((std::cmp::Reverse(at), no.0, std::cmp::Reverse(seq), text));
        // What is active later, and mentions nobody, is in the way of no mention.
        send(&world, true, message("ada", &rooms[rooms.len() - 1 - n], &format!("plain-{turn}"))).unwrap();
    }
    expected.sort_unstable();
    let expected: Vec<String> = expected.into_iter().map(|(.., text)| text).collect();
    assert_eq!(mentions(&world, "dan"), expected);
}

#[test]
fn a_mention_that_an_edit_adds_is_text_for_list_count_and_notification() {
    let world = world();
    let request = SendRequest { mentions: vec!["ben".into()], ..message("ada", "g", "hello") };
    let seq = send(&world, false, request).unwrap();
    let check = |mentions: &[&str], mentioned: &[&str]| {
        let entry = world.engine.entry(&Actor::App, "g", seq).unwrap();
        assert_eq!(entry.mentions, mentions);
        for user in ["ben", "cyd"] {
            let person = world.user(user);
            let card = world.engine.directory.require_conversation("g").unwrap();
            let (listed, counted) = (
                world.engine.mentions(&person, None, 0).unwrap().entries.len(),
                world.engine.list_view(&person, &card).unwrap().mentions,
            );
            let stored = world.engine.store.entries(card.no, seq, seq, 1, End::Oldest).unwrap().remove(0);
            // The facts of notifications.
            let told = stored.content.mentions_all() || stored.content.mentioned_ids().any(|id| id == user);
            let expected = mentioned.contains(&user);
            assert_eq!((listed, counted, told), (usize::from(expected), u64::from(expected), expected), "{user}");
        }
    };
    check(&["ben"], &["ben"]);
    edit(&world, "ada", seq, &["ben", "cyd"]).unwrap();
    check(&["ben", "cyd"], &["ben"]);
    edit(&world, "ada", seq, &["@all"]).unwrap();
    check(&["@all"], &[]);
    edit(&world, "ada", seq, &["ben"]).unwrap();
    check(&["ben"], &[]);
}

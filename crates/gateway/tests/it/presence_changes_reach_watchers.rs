//! Presence changes are sent to users who watch and may see them, and the time last seen is stored.

use crate::support::*;
use std::sync::Arc;
use tidings_client::{session::Session, token::sign_scoped};
use tidings_domain::store::Store;
use tidings_protocol::{
    error::ErrorCode,
    frames::{Attention, ClientFrame, PresenceChange, ServerFrame},
    limits::WATCHED_USERS_MAX,
};
use tidings_testkit::MemoryStore;

fn watch(session: &mut Session, conversation: Option<&str>, users: &[&str]) {
    let users = users.iter().map(|user| (*user).to_owned()).collect();
    let conversation = conversation.map(str::to_owned);
    session.write(&ClientFrame::WatchPresence { reference: Some(1), conversation, users }).unwrap();
}

/// A session whose user has been announced online: whoever watches the user from now on gets the state once.
fn open_announced(server: &Server, user: &str, device: &str) -> Session {
    let session = server.open(user, device);
    server.engine.settle_presence();
    session
}

/// The next presence changes; other frames are skipped.
#[track_caller]
fn news(session: &mut Session) -> Vec<PresenceChange> {
    loop {
        if let ServerFrame::Presence { changes, .. } = next(session) {
            return changes;
        }
    }
}

#[track_caller]
fn refused(session: &mut Session) -> ErrorCode {
    loop {
        if let ServerFrame::Error { code, .. } = next(session) {
            return code;
        }
    }
}

#[test]
fn a_watcher_sees_a_user_come_and_go() {
    let server = Server::start();
    server.users(&["ann", "bob", "cyd"]);
    let mut cyd = server.open("cyd", "phone");
    let mut ann = server.open("ann", "phone");
    server.say("ann", "ann~bob", "hello");
    server.say("cyd", "bob~cyd", "hello");
    for session in [&mut ann, &mut cyd] {
        entries(session, 1);
    }
    watch(&mut ann, None, &["bob"]);
    let now = news(&mut ann);
    assert_eq!(now, [PresenceChange { user: "bob".into(), online: false, active: false, last_seen: None }]);

    let bob = server.open("bob", "laptop");
    let came = news(&mut ann);
    assert_eq!((came.len(), came[0].online, came[0].last_seen), (1, true, None));
    drop(bob);
    let went = news(&mut ann);
    assert_eq!((went.len(), went[0].online, went[0].last_seen.is_some()), (1, false, true));

    // After `unwatch_presence` no more changes come.
    ann.write(&ClientFrame::UnwatchPresence { reference: Some(2), users: vec![] }).unwrap();
    assert!(matches!(next(&mut ann), ServerFrame::Ok { reference: 2 }));
    watch(&mut cyd, None, &["bob"]);
    assert!(!news(&mut cyd)[0].online);
    let _bob = server.open("bob", "laptop");
    assert!(news(&mut cyd)[0].online, "told to who still watches");
    assert!(frames_until_pong(&mut ann).is_empty());
}

#[test]
fn a_watcher_sees_whether_somebody_looks() {
    let server = Server::start();
    server.users(&["ann", "bob"]);
    let mut ann = server.open("ann", "phone");
    server.say("ann", "ann~bob", "hello");
    entries(&mut ann, 1);
    let mut phone = open_announced(&server, "bob", "phone");
    watch(&mut ann, None, &["bob"]);
    let online = |active| vec![PresenceChange { user: "bob".into(), online: true, active, last_seen: None }];
    assert_eq!(news(&mut ann), online(true));
    phone.write(&ClientFrame::Attention { reference: None, state: Attention::Background }).unwrap();
    assert_eq!(news(&mut ann), online(false));
    let laptop = server.open("bob", "laptop");
    assert_eq!(news(&mut ann), online(true));
    drop(laptop);
    assert_eq!(news(&mut ann), online(false), "the phone is still there");
    phone.write(&ClientFrame::Attention { reference: None, state: Attention::Foreground }).unwrap();
    assert_eq!(news(&mut ann), online(true));
}

/// A page that is drawn anew ends its watches and begins them again in one go.
#[test]
fn a_watch_that_follows_an_unwatch_at_once_stays() {
    let server = Server::start();
    server.users(&["ann", "bob"]);
    let mut ann = server.open("ann", "phone");
    server.say("ann", "ann~bob", "hello");
    entries(&mut ann, 1);
    for round in 0..500 {
        watch(&mut ann, None, &["bob"]);
        let users = if round % 2 == 0 { vec!["bob".into()] } else { vec![] };
        ann.write(&ClientFrame::UnwatchPresence { reference: Some(2), users }).unwrap();
        watch(&mut ann, None, &["bob"]);
        for _ in 0..3 {
            assert!(matches!(next(&mut ann), ServerFrame::Presence { .. } | ServerFrame::Ok { reference: 2 }));
        }
        assert_eq!(server.engine.presence.watches(), 1, "round {round}");
    }
}

#[test]
fn only_users_who_share_a_conversation_may_watch_each_other() {
    let server = Server::start();
    server.users(&["ann", "bob", "cyd", "dan"]);
    server.group("g", &["ann", "bob"]);
    let mut ann = server.open("ann", "phone");
    for (conversation, user, expected) in [
        (None, "bob", Some(ErrorCode::Forbidden)),
        (Some("g"), "bob", None),
        (Some("g"), "cyd", Some(ErrorCode::Forbidden)),
        (None, "nobody", Some(ErrorCode::NotFound)),
        (None, "ann", None),
    ] {
        watch(&mut ann, conversation, &[user]);
        match expected {
            None => assert_eq!(news(&mut ann)[0].user, user),
            Some(code) => assert_eq!(refused(&mut ann), code, "{user}"),
        }
    }
    let mut dan = server.open("dan", "phone");
    watch(&mut dan, Some("g"), &["bob"]);
    assert_eq!(refused(&mut dan), ErrorCode::NotAMember);
    let many = vec!["bob"; WATCHED_USERS_MAX + 1];
    watch(&mut ann, Some("g"), &many);
    assert_eq!(refused(&mut ann), ErrorCode::LimitExceeded);
}

#[test]
fn last_seen_survives_a_restart() {
    let store = Arc::new(MemoryStore::default());
    let server = Server::with(session_config(), store.clone());
    server.users(&["ann"]);
    let ann = server.engine.directory.user_no("ann").unwrap().unwrap();
    let session = server.open("ann", "phone");
    assert_eq!(store.last_seen(ann).unwrap(), None);
    drop(session);
    drop(server);
    let seen = store.last_seen(ann).unwrap();
    assert!(seen.is_some());
    let server = Server::with(session_config(), store);
    assert_eq!(server.engine.presence_of(&["ann".to_owned()]).unwrap()[0].last_seen, seen);
}

/// Of a watch by a group: whoever leaves watches no member any more, and is watched by none.
#[test]
fn a_watch_ends_with_the_membership_on_which_it_rests() {
    let server = Server::start();
    server.users(&["ann", "bob", "cyd"]);
    server.group("g", &["ann", "bob", "cyd"]);
    let [mut ann, mut bob] = ["ann", "bob"].map(|user| open_announced(&server, user, "phone"));
    for (session, other) in [(&mut ann, "bob"), (&mut bob, "ann")] {
        watch(session, Some("g"), &[other, "cyd"]);
        assert_eq!(news(session).len(), 2);
    }
    assert_eq!(server.engine.presence.watches(), 4);
    server.change_members("g", &[], &["bob"]);
    until("the watches end", || server.engine.presence.watches() == 1);
    let cyd = server.open("cyd", "phone");
    assert_eq!(news(&mut ann)[0].user, "cyd", "who is still a member watches members");
    let told = frames_until_pong(&mut bob);
    assert!(!told.iter().any(|frame| matches!(frame, ServerFrame::Presence { .. })), "{told:?}");
    watch(&mut bob, Some("g"), &["cyd"]);
    assert_eq!(refused(&mut bob), ErrorCode::NotAMember);

    // A direct conversation is a reason of its own.
    server.say("ann", "ann~cyd", "hello");
    watch(&mut ann, None, &["cyd"]);
    assert!(news(&mut ann)[0].online);
    server.change_members("g", &[], &["cyd"]);
    drop(cyd);
    assert!(!news(&mut ann)[0].online);
}

#[test]
fn a_session_refreshed_to_a_token_without_presence_stops_watching() {
    let server = Server::start();
    server.users(&["ann", "bob"]);
    let mut ann = server.open("ann", "phone");
    server.say("ann", "ann~bob", "hello");
    entries(&mut ann, 1);
    watch(&mut ann, None, &["bob"]);
    assert!(!news(&mut ann)[0].online);
    let refresh = |session: &mut Session, scope: &str| {
        let token = sign_scoped(TOKEN_KEY, "ann", FOREVER, scope);
        let frame = serde_json::json!({"t": "refresh", "ref": 2, "token": token}).to_string();
        session.write_text(frame.as_bytes()).unwrap();
        while !matches!(next(session), ServerFrame::Ok { reference: 2 }) {}
    };
    refresh(&mut ann, "read send");
    let bob = open_announced(&server, "bob", "laptop");
    until("the session watches nobody any more", || server.engine.presence.watches() == 0);
    assert!(!frames_until_pong(&mut ann).iter().any(|frame| matches!(frame, ServerFrame::Presence { .. })));
    watch(&mut ann, None, &["bob"]);
    assert_eq!(refused(&mut ann), ErrorCode::Forbidden);
    refresh(&mut ann, "read presence");
    watch(&mut ann, None, &["bob"]);
    assert!(news(&mut ann)[0].online);
    drop(bob);
    assert!(!news(&mut ann)[0].online);
}

#[test]
fn a_watcher_is_told_of_another_name_and_of_nothing_else() {
    let server = Server::start();
    server.users(&["ann", "bob", "cyd"]);
    let mut ann = server.open("ann", "phone");
    let mut cyd = server.open("cyd", "phone");
    server.say("ann", "ann~bob", "hello");
    entries(&mut ann, 1);
    watch(&mut ann, None, &["bob"]);
    news(&mut ann);
    let put = |user: &str| {
        let body = format!(r#"{{"users":[{user}]}}"#);
        assert_eq!(server.app().exchange("PUT", "/v1/users", body.as_bytes()).unwrap().status, 200);
    };
    put(r#"{"id":"bob","attributes":{"plan":"gold"}}"#);
    put(r#"{"id":"cyd","name":"Cyd"}"#);
    put(r#"{"id":"bob","name":"Robert"}"#);
    put(r#"{"id":"bob","avatar":"https://x/b.png"}"#);
    let mut told = || loop {
        if let ServerFrame::User { user } = next(&mut ann) {
            return user;
        }
    };
    // Changes that come together are told as one.
    let first = told();
    assert_eq!((first.id.as_str(), first.name.as_deref()), ("bob", Some("Robert")));
    if first.avatar.is_none() {
        assert_eq!(told().avatar.as_deref(), Some("https://x/b.png"));
    }
    put(r#"{"id":"bob","name":"Robert"}"#);
    put(r#"{"id":"bob","name":"Bob"}"#);
    assert_eq!(told().name.as_deref(), Some("Bob"), "the same name again is no change");
    let frames = frames_until_pong(&mut cyd);
    assert!(!frames.iter().any(|frame| matches!(frame, ServerFrame::User { .. })), "{frames:?}");
}

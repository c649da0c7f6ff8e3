//! Every operation by which a user has others told of something takes a send from the user's rate, whichever it is; app servers
//! are not limited, and what a user sets for itself is free.

use crate::support::*;
use std::sync::Arc;
use tidings_domain::model::Actor;
use tidings_engine::{config::EngineConfig, engine::send::SendTarget, shards::SessionReply};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
};
use tidings_testkit::MemoryStore;

const BURST: u64 = 3;
/// Far more than pass in a second.
const TRIES: u64 = 1_000;
const NOBODY_WAITS: SessionReply = SessionReply { shard: 0, session: 0, reference: None };

/// An operation, the `n`th time.
type Operation = fn(&World, &Actor, u64) -> Result<(), Refusal>;

/// Ann owns the group `g` and the account `help`, whose agent she is, and is a member of `h`.
fn world() -> World {
    let config = EngineConfig { sends_per_second: 1, sends_burst: BURST as u32, ..EngineConfig::default() };
    let world = World::new(config, Arc::new(MemoryStore::default()));
    world.users(&["ann", "ben", "cleo", "help"]);
    world.conversation(ConversationKind::Group, "g", &["ann", "ben"]);
    world.conversation(ConversationKind::Group, "h", &["ben", "ann"]);
    world.conversation(ConversationKind::Official, "help", &["ann"]);
    world.conversation(ConversationKind::Official, "news", &["ben"]);
    let desk = UpdateDesk { add: vec!["ann".into()], open_to: Some(OpenTo::Anyone), ..UpdateDesk::default() };
    world.wait(world.engine.update_desk(&Actor::App, "help", desk)).unwrap();
    for request in [message("ann", "g", "one"), SendRequest { to: Some("help".into()), ..by("ben", None) }] {
        world.wait(world.engine.send(&Actor::App, request)).unwrap();
    }
    world
}

fn by(from: &str, conversation: Option<&str>) -> SendRequest {
    SendRequest { conversation: conversation.map(str::to_owned), client_msg_id: None, ..message(from, "", "hello") }
}

fn members(world: &World, actor: &Actor, id: &str, change: ChangeMembers) -> Result<(), Refusal> {
    world.wait(world.engine.change_members(actor, id, change)).map(drop)
}

/// Adds the user, or takes the user out.
fn in_or_out(user: &str, is_in: bool) -> ChangeMembers {
    let (add, remove) = if is_in { (vec![user.into()], vec![]) } else { (vec![], vec![user.into()]) };
    ChangeMembers { add, remove, role: None }
}

const TOLD: &[(&str, Operation)] = &[
    ("a send", |w, a, _| w.wait(w.engine.send(a, by("ann", Some("g")))).map(drop)),
    ("a first message", |w, a, n| {
        let with = format!("stranger-{n}");
        w.users(&[&with]);
        w.wait(w.engine.send(a, SendRequest { to: Some(with), ..by("ann", None) })).map(drop)
    }),
    ("a batch", |w, a, _| {
        let mut results = w.wait(w.engine.send_batch(a, vec![by("ann", Some("g"))]))?;
        results.remove(0).map(drop)
    }),
    ("a session's send", |w, a, _| {
        let (.., content) = by("ann", Some("g")).into_parts();
        match a {
            Actor::User(_) => w.engine.submit(a, SendTarget::Conversation("g"), content, NOBODY_WAITS),
            Actor::App => Ok(()),
        }
    }),
    ("a message that grows", |w, a, _| {
        let body = serde_json::value::RawValue::from_string(r#"{"text":""}"#.into()).unwrap();
        let begun = w.wait(w.engine.begin_stream(a, SendRequest { body, ..by("ann", Some("g")) }))?;
        w.wait(w.engine.recall_message(&Actor::App, "g", begun.seq, None, None)).map(drop)
    }),
    ("the end of one", |w, a, n| {
        if n == 0 {
            let body = serde_json::value::RawValue::from_string(r#"{"text":""}"#.into()).unwrap();
            let begun = w.wait(w.engine.begin_stream(a, SendRequest { body, ..by("ann", Some("g")) })).unwrap();
            assert_eq!(begun.seq, 2);
        }
        w.wait(w.engine.end_stream(a, "g", 2, None)).map(drop)
    }),
    ("an edit", |w, a, _| {
        let body = serde_json::value::to_raw_value("two").unwrap();
        let (from, client_msg_id, content_type, mentions, if_version) = Default::default();
        let edit = EditMessage { from, client_msg_id, content_type, body, mentions, if_version };
        w.wait(w.engine.edit_message(a, "g", 1, edit)).map(drop)
    }),
    ("a recall", |w, a, _| w.wait(w.engine.recall_message(a, "g", 1, None, None)).map(drop)),
    ("a reaction", |w, a, n| {
        let user = Some("ann".to_owned()).filter(|_| a.user().is_none());
        w.wait(w.engine.react(a, user, "g", 1, "+", n % 2 == 0)).map(drop)
    }),
    ("a pin", |w, a, n| w.wait(w.engine.pin(a, None, "g", 1, n % 2 == 0)).map(drop)),
    ("a name", |w, a, n| {
        let update = UpdateConversation { name: Some(format!("{n}")), ..UpdateConversation::default() };
        w.wait(w.engine.update_conversation(a, "g", update)).map(drop)
    }),
    ("a role", |w, a, n| {
        let role = Some(if n % 2 == 0 { Role::Admin } else { Role::Member });
        members(w, a, "g", ChangeMembers { add: vec!["ben".into()], remove: vec![], role })
    }),
    ("a member", |w, a, n| members(w, a, "g", in_or_out("cleo", n % 2 == 0))),
    ("to leave", |w, a, _| {
        members(w, &Actor::App, "h", in_or_out("ann", true)).unwrap();
        members(w, a, "h", in_or_out("ann", false))
    }),
    ("to follow", |w, a, n| members(w, a, "news", in_or_out("ann", n % 2 == 0))),
    ("a desk", |w, a, n| {
        let open_to = Some(if n % 2 == 0 { OpenTo::Nobody } else { OpenTo::Anyone });
        w.wait(w.engine.update_desk(a, "help", UpdateDesk { open_to, ..UpdateDesk::default() })).map(drop)
    }),
    ("an assignment", |w, a, n| {
        let assigned_to = (n % 2 == 0).then(|| "ann".to_owned());
        w.wait(w.engine.assign(a, "ben~help", Assign { assigned_to, if_assigned_to: None })).map(drop)
    }),
    ("a report", |w, a, n| {
        if n == 0 {
            w.wait(w.engine.send(&Actor::App, message("ben", "g", "reported"))).unwrap();
        }
        let user = Some("ann".to_owned()).filter(|_| a.user().is_none());
        let report = NewReport { reason: ReportReason::Spam, text: None, user };
        w.wait(w.engine.report_message(a, "g", 2, report)).map(drop)
    }),
    ("a block", |w, a, n| w.wait(w.engine.set_block(a, &w.user("ann"), "ben", n % 2 == 0))),
    ("a group", |w, a, n| {
        let owner = Some("ann".to_owned());
        let (name, avatar, attributes, members, receipts, history, mention_all) = Default::default();
        let (id, kind) = (Some(format!("new-{n}")), ConversationKind::Group);
        let new = CreateConversation {
            blocks: None,
            id,
            kind,
            name,
            avatar,
            attributes,
            owner,
            members,
            receipts,
            history,
            mention_all,
            reactions: None,
            posting: None,
            slow_mode_s: None,
            join_requests: None,
            expires: None,
        };
        w.wait(w.engine.create_conversation(a, new)).map(drop)
    }),
];

const UNTOLD: &[(&str, Operation)] = &[
    ("a read mark", |w, _, n| w.wait(w.engine.mark_read(&w.user("ann"), "g", n)).map(drop)),
    ("a mute", |w, _, n| {
        let mute = Mute { muted: n % 2 == 0, until: None };
        w.wait(w.engine.set_mute(&w.user("ann"), "g", mute))
    }),
    ("a preference", |w, _, n| {
        let update = UpdatePreferences { pinned: Some(n % 2 == 0), ..UpdatePreferences::default() };
        w.wait(w.engine.set_preferences(&w.user("ann"), "g", update)).map(drop)
    }),
];

#[test]
fn every_operation_that_others_are_told_of_is_limited_for_users_alone() {
    for (name, operation) in TOLD {
        let world = world();
        for n in 0..3 * BURST {
            operation(&world, &Actor::App, n).unwrap_or_else(|refusal| panic!("{name} by the app server: {refusal}"));
        }
        let world = self::world();
        let ann = Actor::User(world.user("ann"));
        let refused = (0..TRIES).find_map(|n| operation(&world, &ann, n).err());
        let refusal = refused.unwrap_or_else(|| panic!("{name} {TRIES} times"));
        assert_eq!(refusal.code, ErrorCode::RateLimited, "{name}: {refusal}");
        assert!(refusal.retry_after_ms.is_some(), "{name}");
    }
}

#[test]
fn what_a_user_keeps_for_itself_takes_no_send() {
    let world = world();
    let ann = Actor::User(world.user("ann"));
    for (name, operation) in UNTOLD {
        for n in 0..3 * BURST {
            operation(&world, &ann, n).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
        }
    }
    for _ in 0..BURST {
        world.wait(world.engine.send(&ann, by("ann", Some("g")))).unwrap();
    }
}

//! Who is muted and banned by whom, and until when; announce-only groups and slow mode; and who owns a group that owners leave.

use crate::support::*;
use serde_json::{Value, json, value::RawValue};
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::model::Actor;
use tidings_engine::{config::EngineConfig, engine::send::SendTarget, shards::SessionReply};
use tidings_protocol::{
    entry::EntryKind,
    error::{ErrorCode, Refusal},
    http::{RestrictionKind::*, *},
};
use tidings_testkit::MemoryStore;

const SESSION: SessionReply = SessionReply { shard: 0, session: 0, reference: None };
const HOUR: u64 = 3_600_000;

/// Olga owns the group and the account, Adam and Anna are their admins, Mia and Max members; Zoe is neither.
fn world() -> World {
    let config = EngineConfig { sends_per_second: 0, ..EngineConfig::default() };
    let world = World::new(config, Arc::new(MemoryStore::default()));
    world.users(&["olga", "adam", "anna", "mia", "max", "zoe"]);
    for (kind, id) in [(ConversationKind::Group, "g"), (ConversationKind::Official, "news")] {
        world.conversation(kind, id, &["olga", "adam", "anna", "mia", "max"]);
        role(&world, id, &["adam", "anna"], Role::Admin);
    }
    world
}

fn actor(world: &World, user: &str) -> Actor {
    if user == "app" { Actor::App } else { Actor::User(world.user(user)) }
}

fn role(world: &World, id: &str, users: &[&str], role: Role) {
    let add = users.iter().map(|user| (*user).into()).collect();
    let change = ChangeMembers { add, remove: vec![], role: Some(role) };
    world.wait(world.engine.change_members(&Actor::App, id, change)).unwrap();
}

fn add(world: &World, by: &str, id: &str, user: &str) -> Result<(), ErrorCode> {
    let change = ChangeMembers { add: vec![user.into()], remove: vec![], role: None };
    code(world.wait(world.engine.change_members(&actor(world, by), id, change)))
}

fn leave(world: &World, id: &str, user: &str) {
    let change = ChangeMembers { add: vec![], remove: vec![user.into()], role: None };
    world.wait(world.engine.change_members(&actor(world, user), id, change)).unwrap();
}

fn code<T>(result: Result<T, Refusal>) -> Result<(), ErrorCode> {
    result.map(drop).map_err(|refusal| refusal.code)
}

fn restrict(world: &World, by: &str, user: &str, kind: RestrictionKind, until: Option<u64>) -> Result<(), ErrorCode> {
    let request = Restrict { kind, until, reason: Some("off topic".into()), by: None };
    let done = code(world.wait(world.engine.restrict(&actor(world, by), "g", user, request)));
    world.settle();
    done
}

fn lift(world: &World, by: &str, user: &str, kind: RestrictionKind) -> Result<(), ErrorCode> {
    let done = code(world.wait(world.engine.lift_restriction(&actor(world, by), "g", user, kind)));
    world.settle();
    done
}

fn newest(world: &World) -> Value {
    let page = world.engine.history(&Actor::App, "g", &HistoryQuery::default()).unwrap();
    let entry = page.entries.last().unwrap();
    assert_eq!((entry.kind, entry.silent), (EntryKind::MemberChange, true));
    serde_json::from_str(entry.body.get()).unwrap()
}

fn by(user: &str) -> SendRequest {
    SendRequest { client_msg_id: None, ..message(user, "g", "hello") }
}

fn json_text(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.into()).unwrap()
}

/// The ways of writing: as whom, and what. Messages 1 and 2 are there: of the writer, and a growing one of the writer.
type Way = fn(&World, &Actor, &str, u64) -> Result<(), Refusal>;

const WRITING: &[(&str, Way)] = &[
    ("send", |w, a, u, _| w.wait(w.engine.send(a, by(u))).map(drop)),
    ("batch", |w, a, u, _| w.wait(w.engine.send_batch(a, vec![by(u)]))?.remove(0).map(drop)),
    ("mention of all", |w, a, u, _| {
        w.wait(w.engine.send(a, SendRequest { mentions: vec!["@all".into()], ..by(u) })).map(drop)
    }),
    ("answer", |w, a, u, own| w.wait(w.engine.send(a, SendRequest { reply_to: Some(own), ..by(u) })).map(drop)),
    ("session", |w, a, u, _| match a {
        Actor::User(_) => w.engine.submit(a, SendTarget::Conversation("g"), by(u).into_parts().3, SESSION),
        Actor::App => w.wait(w.engine.send(a, by(u))).map(drop),
    }),
    ("beginning of a growing message", |w, a, u, _| {
        w.wait(w.engine.begin_stream(a, SendRequest { body: json_text(r#"{"text":""}"#), ..by(u) })).map(drop)
    }),
    ("edit", |w, a, u, own| {
        let from = matches!(a, Actor::App).then(|| u.to_owned());
        let (client_msg_id, content_type, mentions, if_version) = Default::default();
        let edit = EditMessage { from, client_msg_id, content_type, body: json_text("2"), mentions, if_version };
        w.wait(w.engine.edit_message(a, "g", own, edit)).map(drop)
    }),
    ("reaction", |w, a, u, own| w.wait(w.engine.react(a, Some(u.to_owned()), "g", own, "+1", true)).map(drop)),
];

/// Only sessions and callers of their own do these.
const WRITING_OF_USERS: &[(&str, Way)] = &[
    ("typing", |w, a, _, _| w.engine.typing(a.user().unwrap(), "g")),
    ("chunk", |w, a, _, own| w.engine.append_to_stream(a, "g", own + 1, 0, "x").map(drop)),
    ("end", |w, a, _, own| w.wait(w.engine.end_stream(a, "g", own + 1, None)).map(drop)),
];

const TAKING_BACK: &[(&str, Way)] = &[
    ("reading", |w, a, _, _| w.engine.history(a, "g", &HistoryQuery::default()).map(drop)),
    ("reaction taken back", |w, a, _, own| w.wait(w.engine.react(a, None, "g", own, "+1", false)).map(drop)),
    ("read mark", |w, a, _, own| w.wait(w.engine.mark_read(a.user().unwrap(), "g", own)).map(drop)),
    ("recall", |w, a, _, own| w.wait(w.engine.recall_message(a, "g", own, None, None)).map(drop)),
];

/// A message of the user, and one that grows.
fn messages_of(world: &World, user: &str) -> u64 {
    let actor = actor(world, user);
    let own = world.wait(world.engine.send(&actor, by(user))).unwrap().seq;
    let grows = SendRequest { body: json_text(r#"{"text":""}"#), ..by(user) };
    assert_eq!(world.wait(world.engine.begin_stream(&actor, grows)).unwrap().seq, own + 1);
    own
}

#[test]
fn a_muted_member_reads_takes_back_and_writes_nothing_in_any_way() {
    let world = world();
    let (own, mia) = (messages_of(&world, "mia"), actor(&world, "mia"));
    restrict(&world, "adam", "mia", Mute, Some(NOON + HOUR)).unwrap();
    let muted = |name: &str, result: Result<(), Refusal>| {
        let refusal = result.expect_err(name);
        let why = format!(
            "user \"mia\" is muted in the conversation until {} (milliseconds since 1970 UTC): off topic",
            NOON + HOUR
        );
        assert_eq!(
            (refusal.code, refusal.detail, refusal.retry_after_ms),
            (ErrorCode::Muted, why, Some(HOUR)),
            "{name}"
        );
    };
    for (name, write) in WRITING {
        muted(name, write(&world, &mia, "mia", own));
        muted(name, write(&world, &Actor::App, "mia", own));
    }
    for (name, write) in WRITING_OF_USERS {
        muted(name, write(&world, &mia, "mia", own));
    }
    restrict(&world, "olga", "adam", Mute, None).unwrap();
    let pin = world.wait(world.engine.pin(&actor(&world, "adam"), None, "g", own, true));
    assert_eq!(code(pin), Err(ErrorCode::Muted), "an admin as well");
    for (name, take_back) in TAKING_BACK {
        take_back(&world, &mia, "mia", own).expect(name);
    }
    leave(&world, "g", "mia");
    add(&world, "olga", "g", "mia").unwrap();
    muted("after joining again", world.wait(world.engine.send(&mia, by("mia"))).map(drop));
}

#[test]
fn a_mute_ends_when_its_time_is_over_and_while_a_send_is_under_way() {
    let world = world();
    let mia = actor(&world, "mia");
    restrict(&world, "adam", "mia", Mute, Some(NOON + 1_000)).unwrap();
    let send = |id: &str| {
        let request = SendRequest { client_msg_id: Some(id.into()), ..by("mia") };
        code(world.wait(world.engine.send(&mia, request)))
    };
    let muted = |who: &str| {
        let page = world.engine.members(&actor(&world, who), "g", None, 0).unwrap();
        page.members.into_iter().filter(|member| member.muted).map(|member| member.user).collect::<Vec<_>>()
    };
    world.clock.set(NOON + 999);
    assert_eq!((send("a"), muted("max")), (Err(ErrorCode::Muted), vec!["mia".to_owned()]));
    world.clock.set(NOON + 1_000);
    assert_eq!((send("a"), muted("max")), (Ok(()), vec![]), "the same request is accepted now");
    // What was stored before a mute is answered as before, also during it.
    restrict(&world, "adam", "mia", Mute, None).unwrap();
    assert_eq!((send("a"), send("b")), (Ok(()), Err(ErrorCode::Muted)));
    lift(&world, "anna", "mia", Mute).unwrap();
    assert_eq!(send("b"), Ok(()));
}

#[test]
fn a_banned_user_is_removed_and_kept_out_until_the_ban_ends() {
    let world = world();
    let mia = actor(&world, "mia");
    restrict(&world, "adam", "mia", Ban, Some(NOON + 1_000)).unwrap();
    let expected = json!({
        "added": [], "added_count": 0, "removed": ["mia"], "removed_count": 1, "changed": [], "changed_count": 0, "role": null,
        "by": "adam", "banned": ["mia"], "until": NOON + 1_000, "reason": "off topic",
    });
    assert_eq!(newest(&world), expected);
    assert_eq!(code(world.engine.history(&mia, "g", &HistoryQuery::default())), Err(ErrorCode::NotAMember));
    for who in ["adam", "olga", "app"] {
        assert_eq!(add(&world, who, "g", "mia"), Err(ErrorCode::Banned), "{who}");
    }
    world.clock.set(NOON + 1_000);
    assert_eq!(add(&world, "adam", "g", "mia"), Ok(()));
    // A user who is no member; and a follower, who would follow again.
    restrict(&world, "adam", "zoe", Ban, None).unwrap();
    assert_eq!(add(&world, "app", "g", "zoe"), Err(ErrorCode::Banned));
    lift(&world, "adam", "zoe", Ban).unwrap();
    let lifted = newest(&world);
    assert_eq!((&lifted["unbanned"], &lifted["by"], lifted.get("reason")), (&json!(["zoe"]), &json!("adam"), None));
    assert_eq!(add(&world, "app", "g", "zoe"), Ok(()));
    let ban = Restrict { kind: Ban, until: None, reason: None, by: Some("olga".into()) };
    world.wait(world.engine.restrict(&Actor::App, "news", "max", ban)).unwrap();
    assert_eq!(add(&world, "max", "news", "max"), Err(ErrorCode::Banned));
    let listed = world.engine.restrictions(&actor(&world, "adam"), "news", None, (None, 0)).unwrap();
    assert_eq!(listed.restrictions.len(), 1);
    assert_eq!((listed.restrictions[0].user.as_str(), listed.restrictions[0].by.as_deref()), ("max", Some("olga")));
}

#[test]
fn each_role_restricts_only_those_below_it() {
    const ROLES: [(&str, u8); 5] = [("olga", 3), ("adam", 2), ("mia", 1), ("zoe", 0), ("app", 4)];
    let targets = [("olga", 3), ("anna", 2), ("max", 1)];
    for (who, rank) in ROLES {
        for (target, target_rank) in targets {
            for kind in [Mute, Ban] {
                let world = world();
                let expected = match rank {
                    0 => Err(ErrorCode::NotAMember),
                    1 => Err(ErrorCode::Forbidden),
                    _ if target_rank >= rank => Err(ErrorCode::Forbidden),
                    _ => Ok(()),
                };
                assert_eq!(restrict(&world, who, target, kind, None), expected, "{who} {kind:?} {target}");
                assert_eq!(lift(&world, who, target, kind), expected, "{who} lifts {kind:?} of {target}");
            }
        }
        let listed = code(world().engine.restrictions(&actor(&world(), who), "g", None, (None, 0)));
        assert_eq!(listed.is_ok(), rank >= 2, "{who}");
    }
    let world = world();
    assert_eq!(restrict(&world, "adam", "adam", Mute, None), Err(ErrorCode::Forbidden), "nobody oneself");
    assert_eq!(restrict(&world, "adam", "zoe", Mute, None), Err(ErrorCode::NotAMember));
    assert_eq!(restrict(&world, "adam", "nobody", Ban, None), Err(ErrorCode::NotFound));
    assert_eq!(restrict(&world, "adam", "mia", Ban, Some(NOON)), Err(ErrorCode::InvalidField), "in the past");
    let direct = Restrict { kind: Mute, until: None, reason: None, by: None };
    world.conversation(ConversationKind::Direct, "", &["mia", "max"]);
    assert_eq!(
        code(world.wait(world.engine.restrict(&Actor::App, "max~mia", "mia", direct))),
        Err(ErrorCode::Conflict)
    );
}

#[test]
fn an_admin_lists_those_who_are_restricted_now() {
    let world = world();
    for (user, kind, until) in [("mia", Mute, Some(NOON + 5)), ("max", Ban, None), ("zoe", Ban, Some(NOON + HOUR))] {
        restrict(&world, "adam", user, kind, until).unwrap();
    }
    let list = |kind, after: Option<&str>, limit| {
        let page = world.engine.restrictions(&actor(&world, "anna"), "g", kind, (after, limit)).unwrap();
        let found =
            page.restrictions.iter().map(|found| format!("{} {:?}", found.user, found.kind)).collect::<Vec<_>>();
        (found.join(", "), page.next)
    };
    assert_eq!(list(None, None, 0).0, "mia Mute, max Ban, zoe Ban");
    assert_eq!(list(Some(Ban), None, 2), ("max Ban".into(), Some("max".into())));
    assert_eq!(list(Some(Ban), Some("max"), 2), ("zoe Ban".into(), None));
    world.clock.set(NOON + 5);
    assert_eq!(list(None, None, 0).0, "max Ban, zoe Ban");
}

fn update(world: &World, who: &str, update: UpdateConversation) -> Result<ConversationDetails, ErrorCode> {
    world.wait(world.engine.update_conversation(&actor(world, who), "g", update)).map_err(|refusal| refusal.code)
}

fn settings(posting: Option<Posting>, slow_mode_s: Option<u32>) -> UpdateConversation {
    UpdateConversation { posting, slow_mode_s, ..UpdateConversation::default() }
}

#[test]
fn in_an_announce_only_group_owner_and_admins_send_and_members_react() {
    let world = world();
    let (own, mia) = (messages_of(&world, "mia"), actor(&world, "mia"));
    assert_eq!(update(&world, "mia", settings(Some(Posting::Admins), None)), Err(ErrorCode::Forbidden));
    let details = update(&world, "adam", settings(Some(Posting::Admins), None)).unwrap();
    assert_eq!(details.posting, Posting::Admins);
    let page = world.engine.history(&mia, "g", &HistoryQuery::default()).unwrap();
    let notice: Value = serde_json::from_str(page.entries.last().unwrap().body.get()).unwrap();
    assert_eq!((&notice["posting"], &notice["by"]), (&json!("admins"), &json!("adam")));
    for (name, write) in WRITING.iter().chain(WRITING_OF_USERS) {
        let expected = if *name == "reaction" { Ok(()) } else { Err(ErrorCode::Forbidden) };
        assert_eq!(code(write(&world, &mia, "mia", own)), expected, "{name}");
    }
    for (name, write) in WRITING {
        assert_eq!(code(write(&world, &Actor::App, "mia", own)), Ok(()), "{name} by the app server");
    }
    for who in ["olga", "adam"] {
        assert_eq!(code(world.wait(world.engine.send(&actor(&world, who), by(who)))), Ok(()));
    }
    // Unless told otherwise.
    let none = UpdateConversation { reactions: Some(AllowedReactions::Only(vec![])), ..UpdateConversation::default() };
    update(&world, "adam", none).unwrap();
    assert_eq!(code(world.wait(world.engine.react(&mia, None, "g", own, "+2", true))), Err(ErrorCode::InvalidField));
    update(&world, "adam", settings(Some(Posting::Members), None)).unwrap();
    assert_eq!(code(world.wait(world.engine.send(&mia, by("mia")))), Ok(()));
}

#[test]
fn in_slow_mode_a_member_waits_and_is_told_for_how_long() {
    let world = world();
    assert_eq!(update(&world, "adam", settings(None, Some(86_401))), Err(ErrorCode::LimitExceeded));
    assert_eq!(update(&world, "adam", settings(None, Some(30))).unwrap().slow_mode_s, 30);
    let send = |who: &str, id: &str| {
        let request = SendRequest { client_msg_id: Some(id.into()), ..by(who) };
        let sent = world.wait(world.engine.send(&actor(&world, who), request));
        sent.map(|sent| sent.duplicate).map_err(|refusal| (refusal.code, refusal.retry_after_ms))
    };
    assert_eq!(send("mia", "a"), Ok(false));
    world.clock.set(NOON + 10_000);
    assert_eq!(send("mia", "b"), Err((ErrorCode::RateLimited, Some(20_000))));
    assert_eq!(send("mia", "a"), Ok(true), "a retry is no new message");
    let grows = SendRequest { body: json_text(r#"{"text":""}"#), ..by("mia") };
    let begun = world.wait(world.engine.begin_stream(&actor(&world, "mia"), grows));
    assert_eq!(code(begun), Err(ErrorCode::RateLimited), "a message that grows is one");
    assert_eq!(send("max", "a"), Ok(false), "others have turns of their own");
    for who in ["olga", "adam", "olga", "adam"] {
        assert_eq!(send(who, &rand::random::<u64>().to_string()), Ok(false), "{who} is exempt");
    }
    assert_eq!(code(world.wait(world.engine.send(&Actor::App, by("mia")))), Ok(()), "an app server is exempt");
    world.clock.set(NOON + 30_000);
    assert_eq!(send("mia", "b"), Ok(false));
    assert_eq!(update(&world, "adam", settings(None, Some(0))).unwrap().slow_mode_s, 0);
    assert_eq!(send("mia", "c"), Ok(false));
}

fn owners(world: &World) -> Vec<String> {
    let page = world.engine.members(&Actor::App, "g", None, 0).unwrap();
    page.members.into_iter().filter(|member| member.role == Role::Owner).map(|member| member.user).collect()
}

#[test]
fn an_owner_hands_the_group_over_in_one_change() {
    let world = world();
    let hand_over = |who: &str, to: &str, from: Option<&str>| {
        let request = HandOver { to: to.into(), from: from.map(str::to_owned) };
        code(world.wait(world.engine.hand_over(&actor(&world, who), "g", request)))
    };
    for who in ["adam", "mia"] {
        assert_eq!(hand_over(who, "max", None), Err(ErrorCode::Forbidden), "{who}");
    }
    assert_eq!(hand_over("zoe", "max", None), Err(ErrorCode::NotAMember));
    assert_eq!(hand_over("olga", "zoe", None), Err(ErrorCode::InvalidField), "no member");
    assert_eq!(hand_over("olga", "olga", None), Err(ErrorCode::InvalidField));
    assert_eq!(hand_over("olga", "mia", None), Ok(()));
    assert_eq!(owners(&world), ["mia"]);
    let notice = newest(&world);
    assert_eq!(
        (&notice["owner"], &notice["changed"], &notice["by"]),
        (&json!("mia"), &json!(["olga", "mia"]), &json!("olga"))
    );
    assert_eq!(hand_over("olga", "mia", None), Err(ErrorCode::Forbidden), "an admin now");
    assert_eq!(hand_over("app", "max", Some("adam")), Err(ErrorCode::Forbidden), "no owner");
    assert_eq!(hand_over("app", "max", Some("mia")), Ok(()));
    assert_eq!(owners(&world), ["max"]);
    assert_eq!(hand_over("app", "mia", None), Ok(()));
    assert_eq!(owners(&world), ["mia", "max"]);
}

#[test]
fn owners_who_leave_at_once_leave_the_group_with_one() {
    for _ in 0..50 {
        let world = world();
        role(&world, "g", &["adam", "mia"], Role::Owner);
        let leaving = ["olga", "adam", "mia"].map(|user| {
            let (engine, actor) = (world.engine.clone(), actor(&world, user));
            let change = ChangeMembers { add: vec![], remove: vec![user.into()], role: None };
            world.spawn(async move { engine.change_members(&actor, "g", change).await })
        });
        for left in leaving {
            world.wait(left).unwrap().unwrap();
        }
        assert_eq!(owners(&world), ["anna"]);
    }
}

#[test]
fn an_owner_who_gives_up_the_role_is_followed_as_one_who_leaves() {
    let world = world();
    let change = ChangeMembers { add: vec!["olga".into()], remove: vec![], role: Some(Role::Member) };
    world.wait(world.engine.change_members(&actor(&world, "olga"), "g", change)).unwrap();
    assert_eq!(owners(&world), ["adam"]);
}

/// The rules as the documents have them, in plain words and maps.
#[derive(Default)]
struct Evaluator {
    /// 3 owner, 2 admin, 1 member; absent: no member.
    ranks: BTreeMap<&'static str, u8>,
    /// Until when.
    mutes: BTreeMap<&'static str, u64>,
    bans: BTreeMap<&'static str, u64>,
    only_admins: bool,
    slow_s: u64,
    last: BTreeMap<&'static str, u64>,
}

impl Evaluator {
    fn send(&mut self, user: &'static str, now: u64) -> Result<(), ErrorCode> {
        let Some(rank) = self.ranks.get(user) else { return Err(ErrorCode::NotAMember) };
        if self.mutes.get(user).is_some_and(|until| now < *until) {
            return Err(ErrorCode::Muted);
        }
        if *rank >= 2 {
            return Ok(());
        }
        if self.only_admins {
            return Err(ErrorCode::Forbidden);
        }
        if self.slow_s > 0 {
            if self.last.get(user).is_some_and(|last| now < last + self.slow_s * 1_000) {
                return Err(ErrorCode::RateLimited);
            }
            self.last.insert(user, now);
        }
        Ok(())
    }

    fn restrict(
        &mut self,
        by: &'static str,
        user: &'static str,
        kind: RestrictionKind,
        until: Option<u64>,
    ) -> Result<(), ErrorCode> {
        let Some(own) = self.ranks.get(by) else { return Err(ErrorCode::NotAMember) };
        let rank = self.ranks.get(user);
        if *own < 2 || rank.is_some_and(|rank| rank >= own) {
            return Err(ErrorCode::Forbidden);
        }
        match (kind, until) {
            (Mute, Some(_)) if rank.is_none() => return Err(ErrorCode::NotAMember),
            (Mute, Some(until)) => drop(self.mutes.insert(user, until)),
            (Mute, None) => drop(self.mutes.remove(user)),
            (Ban, Some(until)) => {
                self.bans.insert(user, until);
                self.ranks.remove(user);
            }
            (Ban, None) => drop(self.bans.remove(user)),
        }
        Ok(())
    }

    fn add(&mut self, by: &'static str, user: &'static str, now: u64) -> Result<(), ErrorCode> {
        match self.ranks.get(by) {
            None => Err(ErrorCode::NotAMember),
            Some(1) => Err(ErrorCode::Forbidden),
            Some(_) if self.ranks.contains_key(user) => Ok(()),
            Some(_) if self.bans.get(user).is_some_and(|until| now < *until) => Err(ErrorCode::Banned),
            Some(_) => {
                self.ranks.insert(user, 1);
                Ok(())
            }
        }
    }
}

#[test]
fn random_histories_of_rights_match_a_slow_evaluator() {
    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
    const USERS: [&str; 6] = ["olga", "adam", "anna", "mia", "max", "zoe"];
    let mut outcomes = BTreeMap::<String, u32>::new();
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let world = world();
        let mut expected = Evaluator::default();
        expected.ranks.extend([("olga", 3), ("adam", 2), ("anna", 2), ("mia", 1), ("max", 1)]);
        let mut now = NOON;
        for step in 0..150 {
            now += random.random_range(0..3_000);
            world.clock.set(now);
            let (who, user) = (USERS[random.random_range(0..6)], USERS[random.random_range(0..6)]);
            let until = now + random.random_range(1..20_000);
            let kind = if random.random_bool(0.6) { Mute } else { Ban };
            let (what, found, expected) = match random.random_range(0..10) {
                0..5 => {
                    let sent = code(world.wait(world.engine.send(&actor(&world, who), by(who))));
                    (format!("{who} sends"), sent, expected.send(who, now))
                }
                5 => (
                    format!("{who} restricts {user}: {kind:?}"),
                    restrict(&world, who, user, kind, Some(until)),
                    expected.restrict(who, user, kind, Some(until)),
                ),
                6 => (
                    format!("{who} lifts {kind:?} of {user}"),
                    lift(&world, who, user, kind),
                    expected.restrict(who, user, kind, None),
                ),
                7 | 8 => (format!("{who} adds {user}"), add(&world, who, "g", user), expected.add(who, user, now)),
                _ => {
                    let (only_admins, slow_s) = (random.random_bool(0.3), random.random_range(0..6));
                    let posting = if only_admins { Posting::Admins } else { Posting::Members };
                    let changed = update(&world, who, settings(Some(posting), Some(slow_s as u32))).map(drop);
                    let may = match expected.ranks.get(who) {
                        None => Err(ErrorCode::NotAMember),
                        Some(1) => Err(ErrorCode::Forbidden),
                        Some(_) => {
                            (expected.only_admins, expected.slow_s) = (only_admins, slow_s);
                            Ok(())
                        }
                    };
                    (format!("{who} sets"), changed, may)
                }
            };
            assert_eq!(found, expected, "seed {seed}, step {step}: {what}");
            *outcomes.entry(format!("{found:?}")).or_default() += 1;
        }
    }
    println!("{outcomes:?}");
}

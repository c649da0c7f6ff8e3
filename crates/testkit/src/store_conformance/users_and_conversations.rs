//! Users, conversations and memberships.

use super::{appends::asking, *};

pub(super) const CHECKS: &[Check] = &[
    ("an upsert keeps the fields that it does not name", upsert),
    ("creating a conversation twice answers with the first", create_twice),
    ("a conversation of another kind under the same id is refused", kind_differs),
    ("a conversation with unknown members is refused", unknown_members),
    ("members are added, removed, and change role", members_change),
    ("an heir owns the conversation that others leave", heir),
    ("a member named twice is one member", named_twice),
    ("members beyond the limit are refused", members_limit),
    ("members are listed in pages", member_pages),
    ("a notice is appended only if members changed", members_notice),
    ("an update keeps the fields that it does not name, and appends its notice", update),
    ("a change whose notice is refused changes nothing", refused_notice),
    ("a read mark moves forward only, and not past the head", mark_read),
    ("a mute is stored", mute),
    ("do-not-disturb is set and ended", do_not_disturb),
    ("a user's language and time zone are set, kept and removed", locale),
    ("tokens are revoked for good", revoke),
    ("a user's conversations are listed with and without direct ones", conversations_of),
    ("a member who joins again starts at the head", rejoin),
    ("ids are listed by how they begin, in their order", ids),
];

fn patch(id: &str, name: Option<&str>, avatar: Option<&str>, attributes: Option<&str>) -> UserPatch {
    let [name, avatar, attributes] = [name, avatar, attributes].map(|field| field.map(str::to_owned));
    UserPatch { id: id.into(), name, avatar, attributes, ..UserPatch::default() }
}

fn upsert(store: &dyn Store) {
    let first = [patch("a", Some("Ann"), Some("a.png"), Some("{\"x\":1}")), patch("b", None, None, None)];
    let outcome = commit(store, Proposal::PutUsers(first.to_vec()));
    assert_eq!(outcome, Outcome::Users { created: 2, updated: 0 });
    let second =
        [patch("a", None, Some("b.png"), None), patch("c", None, None, None), patch("c", Some("C"), None, None)];
    let outcome = commit_at(store, Proposal::PutUsers(second.to_vec()), NOON + 5);
    assert_eq!(outcome, Outcome::Users { created: 1, updated: 2 });
    let no = store.user_no("a").unwrap().unwrap();
    let user = store.user(no).unwrap().unwrap();
    assert_eq!((user.no, user.id.as_str(), user.name.as_deref()), (no, "a", Some("Ann")));
    assert_eq!((user.avatar.as_deref(), user.attributes()), (Some("b.png"), Some("{\"x\":1}")));
    assert_eq!(user.created_at, NOON);
    let named = store.user(store.user_no("c").unwrap().unwrap()).unwrap().unwrap();
    assert_eq!(named.name.as_deref(), Some("C"));
    // The longest key of the embedded engine has 65,535 bytes, with one that tells its kind; PostgreSQL has no NUL.
    for unknown in ["d", "", "a\0", &"a".repeat(130), &"a".repeat(65_534), &"a".repeat(65_535), &"é".repeat(50_000)] {
        assert_eq!(store.user_no(unknown).unwrap(), None);
        assert_eq!(store.conversation_no(unknown).unwrap(), None);
    }
    assert_eq!(store.user(UserNo(99)).unwrap(), None);
}

fn create_twice(store: &dyn Store) {
    let users = users(store, 3);
    let no = group(store, "g", &users[..2]);
    let first = store.conversation(no).unwrap().unwrap();
    assert_eq!((first.id.as_str(), first.member_count, first.created_at), ("g", 2, NOON));
    let other =
        NewConversation { name: Some("other".into()), ..new_conversation("g", ConversationKind::Group, &users) };
    let batch = [Proposal::CreateConversation(other.clone()), Proposal::CreateConversation(other)];
    for outcome in store.commit(&batch, NOON + 1).unwrap() {
        assert_eq!(outcome, Outcome::Conversation { conversation: first.clone(), created: false });
    }
    assert_eq!(store.conversation_no("g").unwrap(), Some(no));
    assert_eq!(store.conversation_no("h").unwrap(), None);
    assert_eq!(store.head(no).unwrap(), Head { first_seq: 1, ..Head::default() });
    let direct = create(store, "u1~u2", ConversationKind::Direct, &users[..2]);
    assert_eq!(store.conversation(direct).unwrap().unwrap().pair, Some((users[0], users[1])));
}

fn kind_differs(store: &dyn Store) {
    let users = users(store, 2);
    group(store, "g", &users);
    let official = new_conversation("g", ConversationKind::Official, &users);
    assert_eq!(commit(store, Proposal::CreateConversation(official)), Outcome::Rejected(Rejection::KindDiffers));
}

fn unknown_members(store: &dyn Store) {
    let users = users(store, 1);
    for unknown in [UserNo(0), UserNo(2)] {
        let new = new_conversation("g", ConversationKind::Group, &[users[0], unknown]);
        let outcome = commit(store, Proposal::CreateConversation(new));
        assert_eq!(outcome, Outcome::Rejected(Rejection::NoSuchUser(unknown)));
    }
    assert_eq!(store.conversation_no("g").unwrap(), None);
}

fn change(conversation: ConversationNo, add: &[(UserNo, Role)], remove: &[UserNo], members_max: u64) -> Proposal {
    let (add, remove) = (add.to_vec(), remove.to_vec());
    Proposal::ChangeMembers { heir: None, act: None, conversation, add, remove, members_max, notice: None }
}

fn changed(added: &[UserNo], removed: &[UserNo], changed: &[UserNo], member_count: u64) -> Outcome {
    let (added, removed, changed) = (added.to_vec(), removed.to_vec(), changed.to_vec());
    Outcome::MembersChanged { added, removed, changed, member_count, notice: None }
}

fn members_change(store: &dyn Store) {
    let u = users(store, 4);
    let room = group(store, "g", &u[..2]);
    let add = [(u[0], Role::Admin), (u[1], Role::Member), (u[2], Role::Owner)];
    assert_eq!(commit(store, change(room, &add, &[], 10)), changed(&[u[2]], &[], &[u[0]], 3));
    assert_eq!(commit(store, change(room, &[], &[u[1], u[3]], 10)), changed(&[], &[u[1]], &[], 2));
    assert_eq!(commit(store, change(room, &[(u[3], Role::Member)], &[u[2]], 2)), changed(&[u[3]], &[u[2]], &[], 2));
    let unknown = change(room, &[(UserNo(9), Role::Member)], &[], 10);
    assert_eq!(commit(store, unknown), Outcome::Rejected(Rejection::NoSuchUser(UserNo(9))));
    let nowhere = change(ConversationNo(9), &[], &[], 10);
    assert_eq!(commit(store, nowhere), Outcome::Rejected(Rejection::NoSuchConversation));
    let members = store.members(room, None, 10).unwrap();
    let roles: Vec<_> = members.iter().map(|(user, m)| (*user, m.role)).collect();
    assert_eq!(roles, [(u[0], Role::Admin), (u[3], Role::Member)]);
    assert_eq!(store.conversation(room).unwrap().unwrap().member_count, 2);
    assert_eq!(store.membership(room, u[2]).unwrap(), None);
    assert_eq!(store.conversations_of(u[2], true, 10).unwrap(), []);
}

fn heir(store: &dyn Store) {
    let u = users(store, 4);
    let room = group(store, "g", &u[..3]);
    commit(store, change(room, &[(u[0], Role::Owner)], &[], 10));
    let leave = |user: UserNo, heir| match change(room, &[], &[user], 10) {
        Proposal::ChangeMembers { conversation, add, remove, members_max, notice, .. } => {
            Proposal::ChangeMembers { conversation, add, remove, heir: Some(heir), act: None, members_max, notice }
        }
        other => other,
    };
    for gone in [u[0], u[3]] {
        assert_eq!(commit(store, leave(u[0], gone)), Outcome::Rejected(Rejection::NotAMember), "{gone:?}");
    }
    assert_eq!(store.membership(room, u[0]).unwrap().unwrap().role, Role::Owner, "nothing was changed");
    let before = store.membership(room, u[2]).unwrap().unwrap();
    assert_eq!(commit(store, leave(u[0], u[2])), changed(&[], &[u[0]], &[u[2]], 2));
    let after = store.membership(room, u[2]).unwrap().unwrap();
    assert_eq!(after, Membership { role: Role::Owner, ..before });
    assert_eq!(commit(store, leave(u[1], u[2])), changed(&[], &[u[1]], &[], 1), "an owner already");
}

fn named_twice(store: &dyn Store) {
    let u = users(store, 2);
    let twice = NewConversation {
        members: vec![(u[0], Role::Member), (u[0], Role::Owner)],
        ..new_conversation("g", ConversationKind::Group, &[])
    };
    let Outcome::Conversation { conversation, .. } = commit(store, Proposal::CreateConversation(twice)) else {
        panic!("not created")
    };
    assert_eq!(conversation.member_count, 1);
    assert_eq!(store.membership(conversation.no, u[0]).unwrap().unwrap().role, Role::Owner);
    let add = [(u[1], Role::Admin), (u[1], Role::Member), (u[0], Role::Member), (u[0], Role::Owner)];
    let outcome = commit(store, change(conversation.no, &add, &[], 10));
    assert_eq!(outcome, changed(&[u[1]], &[], &[], 2));
    assert_eq!(store.membership(conversation.no, u[1]).unwrap().unwrap().role, Role::Member);
}

fn members_limit(store: &dyn Store) {
    let u = users(store, 4);
    let room = group(store, "g", &u[..2]);
    let add = [(u[2], Role::Member), (u[3], Role::Member)];
    let refused = Outcome::Rejected(Rejection::TooManyMembers { limit: 3, would_be: 4 });
    assert_eq!(commit(store, change(room, &add, &[], 3)), refused);
    assert_eq!(store.members(room, None, 10).unwrap().len(), 2, "a refused change changes no member");
    assert_eq!(commit(store, change(room, &add[..1], &[], 3)), changed(&[u[2]], &[], &[], 3));
    // Below a lowered limit, members may still leave and change role.
    assert_eq!(commit(store, change(room, &[(u[0], Role::Owner)], &[u[1]], 1)), changed(&[], &[u[1]], &[u[0]], 2));
}

fn member_pages(store: &dyn Store) {
    let u = users(store, 25);
    let room = group(store, "g", &u);
    let other = group(store, "h", &u[3..5]);
    let mut found = Vec::new();
    loop {
        let page = store.members(room, found.last().copied(), 10).unwrap();
        assert!(page.len() <= 10);
        if page.is_empty() {
            break;
        }
        found.extend(page.into_iter().map(|(user, _)| user));
    }
    assert_eq!(found, u);
    assert_eq!(store.members(other, None, 10).unwrap().len(), 2);
    assert_eq!(store.members(room, None, 0).unwrap(), []);
}

fn members_notice(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u[..1]);
    let add = |role| Proposal::ChangeMembers {
        heir: None,
        act: None,
        conversation: room,
        add: vec![(u[1], role)],
        remove: vec![],
        members_max: 10,
        notice: Some(notice(EntryKind::MemberChange)),
    };
    let noticed: Vec<_> = [Role::Member, Role::Member, Role::Admin]
        .map(|role| match commit(store, add(role)) {
            Outcome::MembersChanged { notice, .. } => notice.map(|appended| appended.seq),
            other => panic!("{other:?}"),
        })
        .to_vec();
    assert_eq!(noticed, [Some(1), None, Some(2)]);
    let member = store.membership(room, u[1]).unwrap().unwrap();
    assert_eq!((member.joined_seq, member.read_seq), (0, 0), "a member's own joining notice comes after the join");
    assert_eq!(store.entries(room, 1, 1, 1, End::Oldest).unwrap()[0].content, notice(EntryKind::MemberChange));
}

fn update(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    let update = |conversation, name: Option<&str>, avatar: Option<&str>, notice| Proposal::UpdateConversation {
        conversation,
        name: name.map(str::to_owned),
        avatar: avatar.map(str::to_owned),
        attributes: None,
        settings: ConversationSettings::default(),
        notice,
    };
    let noticed = commit(store, update(room, None, Some("g.png"), Some(notice(EntryKind::ConversationChange))));
    assert_eq!(appended(&noticed).seq, 1);
    assert_eq!(commit(store, update(room, Some("new"), None, None)), Outcome::Done);
    let details = store.conversation(room).unwrap().unwrap();
    assert_eq!((details.name.as_deref(), details.avatar.as_deref()), (Some("new"), Some("g.png")));
    assert_eq!((details.member_count, store.head(room).unwrap().last_seq), (1, 1));
    let nowhere = commit(store, update(ConversationNo(9), None, None, None));
    assert_eq!(nowhere, Outcome::Rejected(Rejection::NoSuchConversation));
}

fn refused_notice(store: &dyn Store) {
    let u = users(store, 3);
    let room = group(store, "g", &u[..2]);
    commit(store, append(room, asking("1", message(u[0], "used"))));
    let before = (store.conversation(room).unwrap(), store.members(room, None, 10).unwrap());
    let notice = || Some(asking("2", message(u[0], "used")));
    let update = Proposal::UpdateConversation {
        conversation: room,
        name: Some("new".into()),
        avatar: None,
        attributes: None,
        settings: ConversationSettings::default(),
        notice: notice(),
    };
    let change = Proposal::ChangeMembers {
        heir: None,
        act: None,
        conversation: room,
        add: vec![(u[0], Role::Owner), (u[2], Role::Member)],
        remove: vec![u[1]],
        members_max: 10,
        notice: notice(),
    };
    // In batches of their own, and before a send that is stored.
    for batch in [vec![update.clone()], vec![change.clone()], vec![update, change, append(room, message(u[0], "next"))]]
    {
        let outcomes = store.commit(&batch, NOON).unwrap();
        let refused = outcomes.iter().filter(|outcome| !matches!(outcome, Outcome::Appended(_)));
        refused.for_each(|outcome| assert_eq!(*outcome, Outcome::Rejected(Rejection::ClientMsgIdReused)));
        assert_eq!((store.conversation(room).unwrap(), store.members(room, None, 10).unwrap()), before);
    }
    assert_eq!(store.head(room).unwrap().last_seq, 2, "the send alone is stored");
    assert_eq!(store.conversations_of(u[2], true, 10).unwrap(), []);
}

fn mark_read(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u[..1]);
    fill(store, room, u[0], 5);
    let mark = |user, seq| Proposal::MarkRead { conversation: room, user, seq };
    for (asked, seq, before) in [(3, 3, 0), (2, 3, 3), (3, 3, 3), (4, 4, 3), (99, 5, 4), (0, 5, 5)] {
        assert_eq!(commit(store, mark(u[0], asked)), Outcome::Read { seq, before });
        assert_eq!(store.membership(room, u[0]).unwrap().unwrap().read_seq, seq);
    }
    let batch = [append(room, message(u[0], "six")), mark(u[0], 6)];
    assert_eq!(
        store.commit(&batch, NOON).unwrap()[1],
        Outcome::Read { seq: 6, before: 5 },
        "an entry of the same batch can be marked as read"
    );
    assert_eq!(commit(store, mark(u[1], 1)), Outcome::Rejected(Rejection::NotAMember));
}

fn mute(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u[..1]);
    for mute in [MuteState::Until(NOON + 5), MuteState::Forever, MuteState::Off] {
        assert_eq!(commit(store, Proposal::SetMute { conversation: room, user: u[0], mute }), Outcome::Done);
        assert_eq!(store.membership(room, u[0]).unwrap().unwrap().mute, mute);
    }
    let stranger = Proposal::SetMute { conversation: room, user: u[1], mute: MuteState::Forever };
    assert_eq!(commit(store, stranger), Outcome::Rejected(Rejection::NotAMember));
}

fn do_not_disturb(store: &dyn Store) {
    let u = users(store, 1);
    let window = DailyWindow { start: "22:00".into(), end: "07:30".into(), time_zone: "Europe/Berlin".into() };
    for window in [Some(window), None] {
        let set = Proposal::SetDoNotDisturb { user: u[0], window: window.clone() };
        assert_eq!(commit(store, set), Outcome::Done);
        assert_eq!(store.user(u[0]).unwrap().unwrap().do_not_disturb(), window.as_ref());
    }
    let unknown = Proposal::SetDoNotDisturb { user: UserNo(5), window: None };
    assert_eq!(commit(store, unknown), Outcome::Rejected(Rejection::NoSuchUser(UserNo(5))));
}

fn locale(store: &dyn Store) {
    let u = users(store, 2);
    let put = |language: Option<&str>, time_zone: Option<&str>, name: Option<&str>| {
        let [language, time_zone, name] = [language, time_zone, name].map(|text| text.map(str::to_owned));
        commit(
            store,
            Proposal::PutUsers(vec![UserPatch { id: "u1".into(), language, time_zone, name, ..UserPatch::default() }]),
        );
        let user = store.user(u[0]).unwrap().unwrap();
        (user.language().map(str::to_owned), user.time_zone().map(str::to_owned))
    };
    let known = |language: &str, time_zone: &str| {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        (some(language), some(time_zone))
    };
    assert_eq!(put(Some("de-AT"), None, None), known("de-AT", ""));
    assert_eq!(put(None, Some("Europe/Vienna"), None), known("de-AT", "Europe/Vienna"));
    // Other changes of the details, and of the user's settings, keep them.
    assert_eq!(put(None, None, Some("Ada")), known("de-AT", "Europe/Vienna"));
    let window = DailyWindow { start: "22:00".into(), end: "07:30".into(), time_zone: "UTC".into() };
    commit(store, Proposal::SetDoNotDisturb { user: u[0], window: Some(window.clone()) });
    commit(store, Proposal::SetReceipts { user: u[0], send: false });
    let user = store.user(u[0]).unwrap().unwrap();
    assert_eq!((user.language(), user.do_not_disturb()), (Some("de-AT"), Some(&window)));
    assert_eq!(put(Some(""), None, None), known("", "Europe/Vienna"));
    assert_eq!(put(None, Some(""), None), known("", ""));
    assert_eq!(store.user(u[1]).unwrap().unwrap().locale(), None);
}

fn revoke(store: &dyn Store) {
    let u = users(store, 2);
    let revoked_at = |user: UserNo| store.user(user).unwrap().unwrap().revoked_at;
    assert_eq!(revoked_at(u[0]), 0);
    let revoke = |before| Proposal::Revoke { user: u[0], before, reason: "lost".into() };
    assert_eq!(commit(store, revoke(NOON)), Outcome::Done);
    assert_eq!(revoked_at(u[0]), NOON);
    // An earlier time, from a clock that is behind, changes nothing; of two in one batch the later time counts.
    assert_eq!(commit(store, revoke(NOON - 1)), Outcome::Done);
    assert_eq!(revoked_at(u[0]), NOON);
    store.commit(&[revoke(NOON + 7), revoke(NOON + 5)], NOON).unwrap();
    assert_eq!(revoked_at(u[0]), NOON + 7);
    // A change of the user's profile keeps the time of revocation.
    let patch =
        UserPatch { id: store.user(u[0]).unwrap().unwrap().id, name: Some("Ada".into()), ..UserPatch::default() };
    commit(store, Proposal::PutUsers(vec![patch]));
    assert_eq!((revoked_at(u[0]), revoked_at(u[1])), (NOON + 7, 0));
    let unknown = Proposal::Revoke { user: UserNo(5), before: NOON, reason: String::new() };
    assert_eq!(commit(store, unknown), Outcome::Rejected(Rejection::NoSuchUser(UserNo(5))));
}

fn conversations_of(store: &dyn Store) {
    use ConversationKind::*;
    let u = users(store, 3);
    let made: Vec<_> = [("a", Group), ("u1~u2", Direct), ("b", Official), ("u1~u3", Direct), ("c", Group)]
        .into_iter()
        .map(|(id, kind)| UserConversation {
            conversation: create(store, id, kind, &[u[0], u[if id == "u1~u3" { 2 } else { 1 }]]),
            kind,
        })
        .collect();
    let listed = |user, direct, limit| {
        let mut found = store.conversations_of(user, direct, limit).unwrap();
        found.sort_by_key(|place| place.conversation);
        found
    };
    let mut all = made.clone();
    all.sort_by_key(|place| place.conversation);
    assert_eq!(listed(u[0], true, 100), all);
    let shared: Vec<_> = all.iter().filter(|place| place.kind != Direct).cloned().collect();
    assert_eq!(listed(u[0], false, 100), shared);
    assert_eq!(listed(u[2], true, 100), [made[3].clone()]);
    assert_eq!(listed(u[2], false, 100), []);
    assert_eq!(listed(u[0], true, 2).len(), 2);
}

fn rejoin(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    commit(store, Proposal::SetMute { conversation: room, user: u[1], mute: MuteState::Forever });
    fill(store, room, u[0], 4);
    let batch = [change(room, &[], &[u[1]], 10), change(room, &[(u[1], Role::Admin)], &[], 10)];
    store.commit(&batch, NOON + 7).unwrap();
    let member = store.membership(room, u[1]).unwrap().unwrap();
    let mute = MuteState::Forever;
    let expected =
        Membership { role: Role::Admin, joined_at: NOON + 7, joined_seq: 4, read_seq: 4, mute, restricted: false };
    assert_eq!(member, expected);
    assert_eq!(store.conversations_of(u[1], true, 9).unwrap().len(), 1);
}

fn ids(store: &dyn Store) {
    let all = ["ab", "a", "b", "aé", "a-1", "\u{10ffff}x", "Ab"];
    let patches = all.map(|id| UserPatch { id: id.into(), ..UserPatch::default() });
    commit(store, Proposal::PutUsers(patches.into()));
    let list = |prefix: &str, after: &str, limit| -> Vec<String> {
        let found = store.ids(NamedKind::User, prefix, after, limit).unwrap();
        assert!(found.iter().all(|(id, no)| store.user_no(id).unwrap() == Some(UserNo(*no))));
        found.into_iter().map(|(id, _)| id).collect()
    };
    assert_eq!(list("a", "", 10), ["a", "a-1", "ab", "aé"]);
    assert_eq!(list("a", "a-1", 1), ["ab"]);
    assert_eq!(list("a", "0", 2), ["a", "a-1"]);
    assert_eq!(list("a", "b", 10), [""; 0]);
    assert_eq!(list("", "", 10), ["Ab", "a", "a-1", "ab", "aé", "b", "\u{10ffff}x"]);
    assert_eq!(list("x", "", 10), [""; 0]);
    let (nul, long) = ("a\0", "a".repeat(70_000));
    for no_id in [nul, &long] {
        assert_eq!((list(no_id, "", 10), list("", no_id, 10)), (vec![], vec![]));
    }
    let users = [store.user_no("a").unwrap().unwrap()];
    let rooms = ["g2", "g1", "h"].map(|id| (id.to_owned(), group(store, id, &users).0));
    let found = store.ids(NamedKind::Conversation, "g", "", 10).unwrap();
    assert_eq!(found, [rooms[1].clone(), rooms[0].clone()]);
}

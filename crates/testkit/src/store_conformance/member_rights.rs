//! Mutes and bans, slow mode, and owners who step down.

use super::*;
use tidings_domain::restrictions::{Restriction, RestrictionKind, Restrictions, restrictions_key};

pub(super) const CHECKS: &[Check] = &[
    ("a mute goes with the member, and stays when the member leaves and joins again", mute),
    ("a banned user does not become a member while the ban holds", ban),
    ("a restriction that changes nothing has no notice", nothing_changes),
    ("in slow mode a sender's next message waits, and a retry does not", slow_mode),
    ("an owner steps down for an heir, and nobody else does", step_down),
];

fn act(conversation: ConversationNo, remove: &[UserNo], act: MemberAct) -> Proposal {
    let (act, notice) = (Some(Box::new(act)), Some(message(UserNo(1), "notice")));
    let notice = notice.map(|notice| NewEntry { kind: EntryKind::MemberChange, client_msg_id: None, ..notice });
    Proposal::ChangeMembers {
        conversation,
        add: vec![],
        remove: remove.to_vec(),
        heir: None,
        act,
        members_max: 9,
        notice,
    }
}

fn add(conversation: ConversationNo, user: UserNo) -> Proposal {
    let add = vec![(user, Role::Member)];
    Proposal::ChangeMembers { conversation, add, remove: vec![], heir: None, act: None, members_max: 9, notice: None }
}

fn until(until: Option<u64>) -> Restriction {
    Restriction { at: NOON, until, by: Some("u1".into()), reason: Some("off topic".into()) }
}

fn restrict(user: UserNo, kind: RestrictionKind, restriction: Option<Restriction>) -> MemberAct {
    MemberAct::Restrict { user, kind, restriction }
}

fn stored(store: &dyn Store, room: ConversationNo, user: UserNo) -> Restrictions {
    Restrictions::decode(store.row(RowSpace::Chat, &restrictions_key(room, user)).unwrap().as_deref()).unwrap()
}

/// Who has changed, who is gone, and the `seq` of the notice.
fn changed(outcome: Outcome) -> (Vec<UserNo>, Vec<UserNo>, Option<u64>) {
    match outcome {
        Outcome::MembersChanged { changed, removed, notice, .. } => (changed, removed, notice.map(|notice| notice.seq)),
        other => panic!("{other:?}"),
    }
}

fn mute(store: &dyn Store) {
    let u = users(store, 3);
    let room = group(store, "g", &u[..2]);
    let mute = restrict(u[1], RestrictionKind::Mute, Some(until(Some(NOON + 60_000))));
    assert_eq!(changed(commit(store, act(room, &[], mute.clone()))), (vec![u[1]], vec![], Some(1)));
    let restricted = || store.membership(room, u[1]).unwrap().map(|member| (member.role, member.restricted));
    assert_eq!(restricted(), Some((Role::Member, true)));
    assert_eq!(stored(store, room, u[1]).mute, Some(until(Some(NOON + 60_000))));
    let listed = store.members(room, None, 9).unwrap();
    assert_eq!(listed.iter().map(|(_, member)| member.restricted).collect::<Vec<_>>(), [false, true]);
    let states = store.conversation_states(u[1], ConversationFilter::All, 9).unwrap();
    assert!(states[0].membership.restricted);
    let leave = Proposal::ChangeMembers {
        conversation: room,
        add: vec![],
        remove: vec![u[1]],
        heir: None,
        act: None,
        members_max: 9,
        notice: None,
    };
    store.commit(&[leave, add(room, u[1])], NOON).unwrap();
    assert_eq!(restricted(), Some((Role::Member, true)), "a muted member who joins again is muted");
    let stranger = restrict(u[2], RestrictionKind::Mute, Some(until(None)));
    assert_eq!(commit(store, act(room, &[], stranger)), Outcome::Rejected(Rejection::NotAMember));
    let lift = restrict(u[1], RestrictionKind::Mute, None);
    assert_eq!(changed(commit(store, act(room, &[], lift))), (vec![u[1]], vec![], Some(2)));
    assert_eq!((restricted(), stored(store, room, u[1])), (Some((Role::Member, false)), Restrictions::default()));
}

fn ban(store: &dyn Store) {
    let u = users(store, 3);
    let room = group(store, "g", &u[..2]);
    let ban = |user, end| restrict(user, RestrictionKind::Ban, Some(until(end)));
    assert_eq!(
        changed(commit(store, act(room, &[u[1]], ban(u[1], Some(NOON + 5_000))))),
        (vec![], vec![u[1]], Some(1))
    );
    let banned = Outcome::Rejected(Rejection::Banned(u[1], Some(NOON + 5_000)));
    assert_eq!(commit(store, add(room, u[1])), banned);
    // Whoever is added with a banned user is not added either.
    let both = Proposal::ChangeMembers {
        conversation: room,
        add: vec![(u[1], Role::Owner), (u[2], Role::Member)],
        remove: vec![],
        heir: None,
        act: None,
        members_max: 9,
        notice: None,
    };
    assert_eq!(commit(store, both), banned);
    assert_eq!(store.membership(room, u[2]).unwrap(), None);
    assert_eq!(commit_at(store, add(room, u[1]), NOON + 4_999), banned);
    commit_at(store, add(room, u[1]), NOON + 5_000);
    assert!(store.membership(room, u[1]).unwrap().is_some(), "the ban has ended");
    // A ban of a user who is no member, for good, and its end.
    assert_eq!(changed(commit(store, act(room, &[], ban(u[2], None)))), (vec![u[2]], vec![], Some(2)));
    assert_eq!(commit_at(store, add(room, u[2]), NOON * 2), Outcome::Rejected(Rejection::Banned(u[2], None)));
    let batch = [act(room, &[], restrict(u[2], RestrictionKind::Ban, None)), add(room, u[2])];
    store.commit(&batch, NOON).unwrap();
    assert!(store.membership(room, u[2]).unwrap().is_some());
}

fn nothing_changes(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    let lift = restrict(u[1], RestrictionKind::Mute, None);
    assert_eq!(changed(commit(store, act(room, &[], lift.clone()))), (vec![], vec![], None));
    let mute = restrict(u[1], RestrictionKind::Mute, Some(until(Some(NOON + 1))));
    assert_eq!(changed(commit(store, act(room, &[], mute.clone()))).2, Some(1));
    assert_eq!(changed(commit(store, act(room, &[], mute))), (vec![], vec![], None));
    // To lift one that has ended changes nothing, and it is forgotten with the next change.
    assert_eq!(changed(commit_at(store, act(room, &[], lift), NOON + 1)), (vec![], vec![], None));
    let ban = act(room, &[], restrict(u[1], RestrictionKind::Ban, Some(until(None))));
    assert_eq!(changed(commit_at(store, ban, NOON + 1)), (vec![u[1]], vec![], Some(2)));
    assert_eq!(stored(store, room, u[1]), Restrictions { ban: Some(until(None)), mute: None });
}

fn slow_mode(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    let slow = |user, id: &str| {
        let entry = message(user, id);
        let request = EntryRequest { slow_mode_ms: Some(10_000), ..entry.request.clone() };
        append(room, NewEntry { request, ..entry })
    };
    let too_soon = |retry_after_ms| Outcome::Rejected(Rejection::TooSoon { retry_after_ms });
    let first = appended(&commit(store, slow(u[0], "a")));
    assert_eq!(commit_at(store, slow(u[0], "b"), NOON + 4_000), too_soon(6_000));
    assert_eq!(appended(&commit_at(store, slow(u[0], "a"), NOON + 4_000)), Appended { duplicate: true, ..first });
    // Others have turns of their own, and a batch is decided in its order.
    let batch = [slow(u[1], "c"), slow(u[1], "d"), append(room, message(u[0], "free"))];
    let outcomes = store.commit(&batch, NOON + 4_000).unwrap();
    assert_eq!((appended(&outcomes[0]).seq, &outcomes[1], appended(&outcomes[2]).seq), (2, &too_soon(10_000), 3));
    assert_eq!(commit_at(store, slow(u[0], "b"), NOON + 9_999), too_soon(1));
    assert_eq!(appended(&commit_at(store, slow(u[0], "b"), NOON + 10_000)).seq, 4);
    let earlier = appended(&commit_at(store, slow(u[0], "e"), NOON - 60_000));
    assert_eq!(earlier.seq, 5, "a clock that was far ahead keeps nobody out");
}

fn step_down(store: &dyn Store) {
    let u = users(store, 3);
    let room = group(store, "g", &u);
    let hand_over = |from: UserNo, to: UserNo| Proposal::ChangeMembers {
        conversation: room,
        add: vec![],
        remove: vec![],
        heir: Some(to),
        act: Some(Box::new(MemberAct::StepDown(from))),
        members_max: 9,
        notice: None,
    };
    let roles = || store.members(room, None, 9).unwrap().into_iter().map(|(_, member)| member.role).collect::<Vec<_>>();
    assert_eq!(commit(store, hand_over(u[0], u[1])), Outcome::Rejected(Rejection::NotTheOwner));
    let owner = Proposal::ChangeMembers {
        conversation: room,
        add: vec![(u[0], Role::Owner)],
        remove: vec![],
        heir: None,
        act: None,
        members_max: 9,
        notice: None,
    };
    commit(store, owner);
    assert_eq!(commit(store, hand_over(u[0], UserNo(9))), Outcome::Rejected(Rejection::NotAMember));
    assert_eq!(changed(commit(store, hand_over(u[0], u[1]))).0, [u[1], u[0]]);
    assert_eq!(roles(), [Role::Admin, Role::Owner, Role::Member]);
}

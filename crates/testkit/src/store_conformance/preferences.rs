//! What members set for conversations of their lists.

use super::*;
use tidings_domain::chat_rows::{Preferences, preferences_key};

pub(super) const CHECKS: &[Check] = &[
    ("a preference changes what it names and leaves the rest", fields),
    ("what is cleared stays cleared, and reaches no further than the newest entry", cleared),
    ("preferences belong to one member and one conversation", apart),
    ("what a membership leaves is kept for the next one", kept),
];

fn patch() -> PreferencesPatch {
    PreferencesPatch::default()
}

fn set(store: &dyn Store, conversation: ConversationNo, user: UserNo, patch: PreferencesPatch) -> Outcome {
    commit(store, Proposal::SetPreferences { conversation, user, patch })
}

fn preferences(store: &dyn Store, conversation: ConversationNo, user: UserNo) -> Preferences {
    let row = store.row(RowSpace::Chat, &preferences_key(user, conversation)).unwrap();
    Preferences::decode(row.as_deref()).unwrap()
}

fn fields(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    fill(store, room, u[0], 3);
    let all = PreferencesPatch {
        pinned: Some(true),
        archived: Some(true),
        hidden: Some(true),
        title: Some(Some("Mine".into())),
        marked_unread: Some(true),
        clear_to_seq: None,
    };
    assert_eq!(set(store, room, u[0], all.clone()), Outcome::Preferences { moved: true });
    let expected = Preferences {
        archived: true,
        cleared_seq: 0,
        hidden_at: Some(3),
        left_seq: None,
        left_with_mute: 0,
        marked_unread: true,
        pinned_at: NOON,
        title: Some("Mine".into()),
    };
    assert_eq!(preferences(store, room, u[0]), expected);
    assert_eq!(set(store, room, u[0], patch()), Outcome::Preferences { moved: false });
    // A second pin keeps the time of the first.
    let again = Proposal::SetPreferences { conversation: room, user: u[0], patch: all };
    assert_eq!(commit_at(store, again, NOON + 9), Outcome::Preferences { moved: false });
    set(store, room, u[0], PreferencesPatch { archived: Some(false), title: Some(None), ..patch() });
    assert_eq!(preferences(store, room, u[0]), Preferences { archived: false, title: None, ..expected });
    let off = PreferencesPatch { pinned: Some(false), hidden: Some(false), marked_unread: Some(false), ..patch() };
    set(store, room, u[0], off);
    assert_eq!(store.row(RowSpace::Chat, &preferences_key(u[0], room)).unwrap(), None, "defaults need no row");
}

fn cleared(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    fill(store, room, u[0], 3);
    for (clear, expected, moved) in [(2, 2, true), (1, 2, false), (99, 3, true)] {
        let clear = PreferencesPatch { clear_to_seq: Some(clear), ..patch() };
        assert_eq!(set(store, room, u[0], clear), Outcome::Preferences { moved });
        assert_eq!(preferences(store, room, u[0]).cleared_seq, expected);
    }
    // An entry of the same batch counts.
    let clear = PreferencesPatch { clear_to_seq: Some(4), ..patch() };
    let clear = Proposal::SetPreferences { conversation: room, user: u[0], patch: clear };
    store.commit(&[append(room, message(u[0], "four")), clear], NOON).unwrap();
    assert_eq!(preferences(store, room, u[0]).cleared_seq, 4);
}

fn apart(store: &dyn Store) {
    let u = users(store, 3);
    let rooms = ["g", "h"].map(|id| group(store, id, &u[..2]));
    set(store, rooms[0], u[0], PreferencesPatch { pinned: Some(true), ..patch() });
    for (room, user) in [(rooms[0], u[1]), (rooms[1], u[0])] {
        assert_eq!(preferences(store, room, user), Preferences::default());
    }
    let (from, to) = (preferences_key(u[0], ConversationNo(0)), preferences_key(u[0], ConversationNo(u64::MAX)));
    assert_eq!(store.rows(RowSpace::Chat, &from, &to, 9).unwrap().len(), 1, "a user's preferences are one range");
    assert_eq!(set(store, rooms[0], u[2], patch()), Outcome::Rejected(Rejection::NotAMember));
}

fn kept(store: &dyn Store) {
    let u = users(store, 3);
    let (room, news) = (group(store, "g", &u), create(store, "o", ConversationKind::Official, &u));
    let change = |conversation, add: &[UserNo], remove: &[UserNo], notice| Proposal::ChangeMembers {
        heir: None,
        act: None,
        conversation,
        add: add.iter().map(|user| (*user, Role::Member)).collect(),
        remove: remove.to_vec(),
        members_max: 10,
        notice,
    };
    let told = || Some(super::notice(EntryKind::MemberChange));
    let mute_of = |conversation| store.membership(conversation, u[0]).unwrap().unwrap().mute;
    fill(store, room, u[1], 2);
    fill(store, news, u[1], 2);
    set(store, room, u[0], PreferencesPatch { pinned: Some(true), ..patch() });
    for (conversation, mute) in [(room, MuteState::Until(NOON + 7)), (news, MuteState::Forever)] {
        commit(store, Proposal::SetMute { conversation, user: u[0], mute });
    }
    commit(store, change(room, &[], &u[..2], told()));
    commit(store, change(news, &[], &u[..1], None));
    let left = preferences(store, room, u[0]);
    let expected =
        Preferences { left_seq: Some(3), left_with_mute: NOON + 7, pinned_at: NOON, ..Preferences::default() };
    assert_eq!(left, expected, "the notice of the leave is the last that the member was handed");
    assert_eq!(preferences(store, news, u[0]).left_seq, Some(2), "there is none in an account");
    assert_eq!(preferences(store, room, u[1]), Preferences { left_seq: Some(3), ..Preferences::default() });
    assert_eq!(preferences(store, room, u[2]), Preferences::default(), "a member stays");
    commit(store, change(room, &u[..1], &[], told()));
    commit(store, change(news, &u[..1], &[], None));
    assert_eq!((mute_of(room), mute_of(news)), (MuteState::Until(NOON + 7), MuteState::Forever));
    // Two leaves in one batch: the last one counts.
    let unmute = Proposal::SetMute { conversation: room, user: u[0], mute: MuteState::Off };
    let batch = [
        change(room, &[], &u[..1], told()),
        change(room, &u[..1], &[], told()),
        unmute,
        change(room, &[], &u[..1], told()),
        change(room, &u[..1], &[], told()),
    ];
    store.commit(&batch, NOON).unwrap();
    assert_eq!(mute_of(room), MuteState::Off);
    assert_eq!(preferences(store, room, u[0]).left_seq, Some(7));
}

//! What members set for conversations of their lists.

use super::*;
use tidings_domain::chat_rows::{Preferences, preferences_key};

pub(super) const CHECKS: &[Check] = &[
    ("a preference changes what it names and leaves the rest", fields),
    ("what is cleared stays cleared, and reaches no further than the newest entry", cleared),
    ("preferences belong to one member and one conversation", apart),
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

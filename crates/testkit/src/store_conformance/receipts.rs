//! Stored positions, the setting of read receipts, and a conversation's settings.

use super::*;
use tidings_domain::chat_rows::{block_key, decode_stored, number_in, stored_key};
use tidings_domain::stored_id::StoredId;
use tidings_protocol::http::{KindPreferences, NotificationPreferences, PolicyChannel};

pub(super) const CHECKS: &[Check] = &[
    ("stored positions move forward in each lane, and never back", stored),
    ("a user's read receipts are turned off and on", receipts_off),
    ("a user's preferences about channels are set and removed", notification_preferences),
    ("a user is suspended until that is lifted", suspension),
    ("users block each other, as many as are allowed", blocks),
    ("messages are reported once by each user, and listed by their state", reports),
    ("a conversation keeps its settings", settings),
    ("what nodes count on channels is kept by hour, node and channel, the newest row of each", notification_counts),
    ("when API keys were used is kept by key, the newest row of each", api_key_uses),
];

fn stored(store: &dyn Store) {
    let u = users(store, 2);
    let positions = |user| decode_stored(store.row(RowSpace::Chat, &stored_key(user)).unwrap().as_deref()).unwrap();
    let set = |told: &[(UserNo, [Position; LANES])]| match commit(store, Proposal::SetStored(told.to_vec())) {
        Outcome::Stored(moved) => moved,
        other => panic!("{other:?}"),
    };
    assert_eq!(positions(u[0]), [0; LANES]);
    let moved = set(&[(u[0], [5, 0, 2]), (u[1], [0, 0, 0])]);
    assert_eq!(moved, [StoredMove { user: u[0], before: [0; LANES], now: [5, 0, 2] }]);
    // Each lane for itself; a user who is named twice in one proposal, too.
    let moved = set(&[(u[0], [4, 7, 2]), (u[0], [6, 1, 1])]);
    let expected = [([5, 0, 2], [5, 7, 2]), ([5, 7, 2], [6, 7, 2])];
    assert_eq!(moved, expected.map(|(before, now)| StoredMove { user: u[0], before, now }));
    assert_eq!((positions(u[0]), positions(u[1])), ([6, 7, 2], [0; LANES]));
    let batch = [Proposal::SetStored(vec![(u[1], [1, 2, 3])]), Proposal::SetStored(vec![(u[1], [3, 2, 1])])];
    store.commit(&batch, NOON).unwrap();
    assert_eq!(positions(u[1]), [3, 2, 3]);
    assert_eq!(set(&[(u[1], [3, 2, 3])]), []);
}

fn receipts_off(store: &dyn Store) {
    let u = users(store, 2);
    let is_off = |user| store.user(user).unwrap().unwrap().receipts_off;
    for send in [false, false, true, true, false] {
        assert_eq!(commit(store, Proposal::SetReceipts { user: u[0], send }), Outcome::Done);
        assert_eq!((is_off(u[0]), is_off(u[1])), (!send, false));
        for (user, id) in [(u[0], "u1"), (u[1], "u2")] {
            let found = store.user_with_id(StoredId::parse(id).unwrap()).unwrap();
            assert_eq!(found, store.user(user).unwrap());
        }
    }
    // A change of the user's profile keeps the setting.
    commit(store, Proposal::PutUsers(vec![UserPatch { id: "u1".into(), ..UserPatch::default() }]));
    assert!(is_off(u[0]));
    let unknown = Proposal::SetReceipts { user: UserNo(5), send: false };
    assert_eq!(commit(store, unknown), Outcome::Rejected(Rejection::NoSuchUser(UserNo(5))));
}

fn suspension(store: &dyn Store) {
    let u = users(store, 2);
    let of = |user| store.user(user).unwrap().unwrap().suspension().cloned();
    let set = |user, suspended, until: Option<u64>, reason: &str| Proposal::SetSuspension {
        user,
        suspended,
        until,
        reason: reason.into(),
        by: "mod".into(),
    };
    let expected = |until, reason: &str, at| Some(Suspension { until, reason: reason.into(), by: "mod".into(), at });
    assert_eq!(commit_at(store, set(u[0], true, Some(NOON + 9), "spam"), NOON), Outcome::Done);
    assert_eq!((of(u[0]), of(u[1])), (expected(Some(NOON + 9), "spam", NOON), None));
    // What else is set for the user stays, and leaves the suspension alone.
    commit(store, Proposal::SetReceipts { user: u[0], send: false });
    commit(store, Proposal::PutUsers(vec![UserPatch { id: "u1".into(), ..UserPatch::default() }]));
    assert_eq!(commit_at(store, set(u[0], true, None, "more spam"), NOON + 1), Outcome::Done);
    let user = store.user(u[0]).unwrap().unwrap();
    assert_eq!((of(u[0]), user.receipts_off), (expected(None, "more spam", NOON + 1), true));
    for _ in 0..2 {
        assert_eq!(commit(store, set(u[0], false, None, "a mistake")), Outcome::Done);
        assert_eq!(of(u[0]), None);
    }
    let unknown = commit(store, set(UserNo(5), true, None, ""));
    assert_eq!(unknown, Outcome::Rejected(Rejection::NoSuchUser(UserNo(5))));
}

fn blocks(store: &dyn Store) {
    let u = users(store, 4);
    let blocked = |user| {
        let rows = store.rows(RowSpace::Chat, &block_key(user, UserNo(0)), &block_key(user, UserNo(u64::MAX)), 9);
        let others: Vec<UserNo> = rows.unwrap().iter().map(|(key, _)| UserNo(number_in(key, 1).unwrap())).collect();
        (others.len() as u32 == store.user(user).unwrap().unwrap().blocks).then_some(others).unwrap()
    };
    let set = |user, other, blocked| commit(store, Proposal::SetBlock { user, other, blocked, blocks_max: 2 });
    let moved = |moved| Outcome::Block { moved };
    assert_eq!(set(u[0], u[1], false), moved(false));
    assert_eq!(set(u[0], u[2], true), moved(true));
    assert_eq!(set(u[0], u[1], true), moved(true));
    assert_eq!(set(u[0], u[1], true), moved(false));
    assert_eq!(set(u[0], u[3], true), Outcome::Rejected(Rejection::TooManyBlocks { limit: 2 }));
    assert_eq!(set(u[1], u[0], true), moved(true));
    assert_eq!((blocked(u[0]), blocked(u[1]), blocked(u[2])), (vec![u[1], u[2]], vec![u[0]], vec![]));
    assert_eq!(set(u[0], u[1], false), moved(true));
    assert_eq!(set(u[0], u[1], false), moved(false));
    assert_eq!(set(u[0], u[3], true), moved(true));
    assert_eq!(blocked(u[0]), [u[2], u[3]]);
    let unknown = set(UserNo(9), u[0], true);
    assert_eq!(unknown, Outcome::Rejected(Rejection::NoSuchUser(UserNo(9))));
}

fn reports(store: &dyn Store) {
    use tidings_domain::reports::{ReportKey, StoredReport, place_in, places_begin, places_end};
    use tidings_protocol::http::{ReportReason, ReportState};
    let u = users(store, 3);
    let room = group(store, "g", &u);
    let key = |seq, reporter| ReportKey { conversation: room, seq, reporter };
    let report = |report, reason, at| {
        let proposal =
            Proposal::Report { report, reason, text: Some("look".into()), reported: Some(u[0]), open_max: 2 };
        commit_at(store, proposal, at)
    };
    let set = |report, expected, state, at| {
        let (note, by) = (Some("why".to_owned()), "mod".to_owned());
        commit_at(store, Proposal::SetReport { report, expected, state, note, by }, at)
    };
    let listed = |state| -> Vec<(u64, ReportKey)> {
        let rows = store.rows(RowSpace::Chat, &places_begin(state), &places_end(state), 9).unwrap();
        rows.iter().map(|(key, _)| place_in(key).unwrap()).collect()
    };
    let stored = |key: ReportKey| -> StoredReport {
        serde_json::from_slice(&store.row(RowSpace::Chat, &key.row()).unwrap().unwrap()).unwrap()
    };
    let moved = |moved| Outcome::Report { moved };
    assert_eq!(report(key(1, u[1]), ReportReason::Spam, NOON), moved(true));
    assert_eq!(report(key(1, u[1]), ReportReason::Hate, NOON + 1), moved(false), "the first report stays");
    assert_eq!(report(key(1, u[2]), ReportReason::Other, NOON + 2), moved(true));
    assert_eq!(report(key(2, u[1]), ReportReason::Hate, NOON + 3), moved(true));
    assert_eq!(
        report(key(3, u[1]), ReportReason::Hate, NOON + 4),
        Outcome::Rejected(Rejection::TooManyReports { limit: 2 })
    );
    assert_eq!(listed(ReportState::Open), [(NOON, key(1, u[1])), (NOON + 2, key(1, u[2])), (NOON + 3, key(2, u[1]))]);
    assert_eq!(stored(key(1, u[1])).reason, ReportReason::Spam);
    assert_eq!(set(key(1, u[1]), Some(ReportState::Open), ReportState::InReview, NOON + 5), moved(true));
    assert_eq!(
        set(key(1, u[1]), Some(ReportState::Open), ReportState::Resolved, NOON + 6),
        Outcome::Rejected(Rejection::ReportIs(ReportState::InReview))
    );
    assert_eq!(
        report(key(3, u[1]), ReportReason::Hate, NOON + 6),
        Outcome::Rejected(Rejection::TooManyReports { limit: 2 }),
        "what is in review is not done"
    );
    assert_eq!(set(key(1, u[1]), None, ReportState::Resolved, NOON + 7), moved(true));
    assert_eq!(listed(ReportState::Resolved), [(NOON, key(1, u[1]))]);
    assert_eq!(listed(ReportState::InReview), []);
    let changed = stored(key(1, u[1])).changed.unwrap();
    assert_eq!((changed.by.as_str(), changed.note.as_deref(), changed.at), ("mod", Some("why"), NOON + 7));
    assert_eq!(report(key(3, u[1]), ReportReason::Hate, NOON + 8), moved(true), "one of the user's is done");
    assert_eq!(set(key(2, u[1]), None, ReportState::Dismissed, NOON + 9), moved(true));
    assert_eq!(listed(ReportState::Dismissed), [(NOON + 3, key(2, u[1]))]);
    assert_eq!(set(key(2, u[1]), None, ReportState::Open, NOON + 10), moved(true));
    assert_eq!(set(key(9, u[1]), None, ReportState::Open, NOON), Outcome::Rejected(Rejection::NoSuchReport));
}

fn notification_preferences(store: &dyn Store) {
    let u = users(store, 2);
    let of = |user| store.user(user).unwrap().unwrap().notifications().cloned();
    let set = |user, preferences: &NotificationPreferences| {
        commit(store, Proposal::SetNotificationPreferences { user, preferences: Box::new(preferences.clone()) })
    };
    let group = Some(KindPreferences { off: vec![PolicyChannel::Providers], only_mentions: true });
    let preferences = NotificationPreferences {
        off: vec![PolicyChannel::Popup],
        group,
        snooze_until: Some(NOON),
        ..Default::default()
    };
    assert_eq!(set(u[0], &preferences), Outcome::Done);
    assert_eq!((of(u[0]), of(u[1])), (Some(preferences.clone()), None));
    // Each setting of a user leaves the others alone.
    commit(store, Proposal::SetReceipts { user: u[0], send: false });
    assert_eq!(of(u[0]), Some(preferences));
    assert_eq!(set(u[0], &NotificationPreferences::default()), Outcome::Done);
    let user = store.user(u[0]).unwrap().unwrap();
    assert_eq!((user.notifications(), user.receipts_off), (None, true));
    let unknown = set(UserNo(5), &NotificationPreferences::default());
    assert_eq!(unknown, Outcome::Rejected(Rejection::NoSuchUser(UserNo(5))));
}

fn settings(store: &dyn Store) {
    let u = users(store, 3);
    let members = ConversationSettings {
        receipts: Some(ReceiptsMode::Members),
        history: Some(HistoryVisibility::Last(5)),
        mention_all: Some(MentionAll::Members),
        reactions: Some(AllowedReactions::Only(vec!["+1".into()])),
        blocks: Some(BlocksMode::Hide),
        posting: Some(Posting::Admins),
        slow_mode_s: Some(30),
        expires: Some(Expiry { after_s: 60, after_read_s: Some(5) }),
        retention: Some(OwnRetention { keep_days: 30, removes_newest: true }),
        join_requests: Some(true),
        importing: Some(false),
        deleted: Some(false),
    };
    let new = NewConversation { settings: members.clone(), ..new_conversation("g", ConversationKind::Group, &u[..2]) };
    let Outcome::Conversation { conversation, created: true } = commit(store, Proposal::CreateConversation(new)) else {
        panic!("it is new");
    };
    assert_eq!(conversation.settings, members);
    let room = conversation.no;
    let update = |name: Option<&str>, settings| Proposal::UpdateConversation {
        conversation: room,
        name: name.map(str::to_owned),
        avatar: None,
        attributes: None,
        settings,
        notice: None,
    };
    let add = Proposal::ChangeMembers {
        heir: None,
        act: None,
        conversation: room,
        add: vec![(u[2], Role::Member)],
        remove: vec![],
        members_max: 9,
        notice: None,
    };
    commit(store, update(Some("new"), ConversationSettings::default()));
    commit(store, add);
    let details = store.conversation(room).unwrap().unwrap();
    assert_eq!((details.settings, details.member_count), (members.clone(), 3), "what is not given stays");
    let none = ConversationSettings { receipts: Some(ReceiptsMode::None), ..members };
    commit(store, update(None, ConversationSettings { receipts: none.receipts, ..ConversationSettings::default() }));
    let details = store.conversation(room).unwrap().unwrap();
    assert_eq!((details.settings, details.name.as_deref()), (none.clone(), Some("new")));
    assert_eq!(store.conversations(&[room]).unwrap()[0].as_ref().map(|details| details.settings.clone()), Some(none));
}

fn api_key_uses(store: &dyn Store) {
    use tidings_domain::chat_rows::{api_key_use_key, decode};
    let used = |key| decode::<u64>(store.row(RowSpace::Chat, &api_key_use_key(key)).unwrap().as_deref()).unwrap();
    assert_eq!(commit(store, Proposal::SetApiKeyUse(vec![(7, NOON), (u64::MAX, NOON)])), Outcome::Done);
    let batch = [Proposal::SetApiKeyUse(vec![(7, NOON + 60_000)]), Proposal::SetApiKeyUse(vec![(8, NOON + 1)])];
    assert_eq!(store.commit(&batch, NOON).unwrap(), [Outcome::Done, Outcome::Done]);
    assert_eq!([7, 8, 9, u64::MAX].map(used), [NOON + 60_000, NOON + 1, 0, NOON]);
}

fn notification_counts(store: &dyn Store) {
    use tidings_domain::chat_rows::notification_counts_of;
    use tidings_protocol::http::Channel;
    let row = |text: &str| text.as_bytes().to_vec();
    let counts = vec![(1, u64::MAX, Channel::Fcm, row("a")), (2, 7, Channel::Fcm, row("b"))];
    assert_eq!(commit(store, Proposal::SetNotificationCounts(counts)), Outcome::Done);
    let batch = [
        Proposal::SetNotificationCounts(vec![(2, 7, Channel::Fcm, row("c"))]),
        Proposal::SetNotificationCounts(vec![(2, 8, Channel::Fcm, row("d")), (3, 7, Channel::Popup, row("e"))]),
    ];
    assert_eq!(store.commit(&batch, NOON).unwrap(), [Outcome::Done, Outcome::Done]);
    let rows = |first, last| {
        let (from, to) = notification_counts_of(first, last);
        let rows = store.rows(RowSpace::Chat, &from, &to, 100).unwrap();
        rows.into_iter().map(|(_, row)| String::from_utf8(row).unwrap()).collect::<Vec<_>>().concat()
    };
    assert_eq!(
        (rows(0, u64::MAX), rows(1, 1), rows(2, 2), rows(2, 3)),
        ("acde".into(), "a".into(), "cd".into(), "cde".into())
    );
}

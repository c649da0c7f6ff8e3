//! Random proposals, with the store closed and opened now and then, on the store under test and on a shadow model in plain
//! maps. Every outcome and every read must be the same. A failing run is printed with the seed that replays it.
// Slow: left out by `make test-quick`.

use crate::support;
use crate::support::NOON;
use proptest::prelude::*;
use tidings_domain::{
    commit_log::LogRecord,
    desks::{DeskPatch, OpenTo},
    joining::{Invite, JoinRequest, RefusedRequest},
    model::*,
    push_tokens::TokenDigest,
    request_digest::RequestHasher,
    restrictions::{Restriction, RestrictionKind},
    store::*,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{NotificationPreferences, PushToken},
};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const USERS: u64 = 6;
const ROOMS: u64 = 5;

#[derive(Debug, Clone)]
enum Step {
    Commit(Vec<Proposal>, u64),
    Reopen,
}

/// A number from one below the first user's to one beyond the last user's.
fn user() -> impl Strategy<Value = UserNo> {
    (0..=USERS + 1).prop_map(UserNo)
}

fn room() -> impl Strategy<Value = ConversationNo> {
    (0..=ROOMS + 1).prop_map(ConversationNo)
}

/// Mostly the first room or the first one of the account, so that the same messages are changed again and again.
fn busy_room() -> impl Strategy<Value = ConversationNo> {
    prop_oneof![3 => Just(ConversationNo(1)), 2 => Just(ROOMS_OF_ACCOUNT[0]), 1 => room()]
}

/// An account, and the rooms that are its conversations.
const ACCOUNT: ConversationNo = ConversationNo(3);
const ROOMS_OF_ACCOUNT: [ConversationNo; 2] = [ConversationNo(2), ConversationNo(5)];

fn sender(no: u64) -> Sender {
    Sender { no: UserNo(no), id: format!("u{no}") }
}

fn set_desk() -> impl Strategy<Value = Proposal> {
    let users = || prop::collection::vec(1..=USERS, 0..3);
    let open_to = prop::option::of(prop_oneof![Just(OpenTo::Anyone), Just(OpenTo::Nobody)]);
    (users(), users(), users(), open_to, prop::option::of(any::<bool>()), 0..9u8).prop_map(
        |(add, remove, forget, open_to, shows_agents, id)| {
            let numbers = |users: Vec<u64>| users.into_iter().map(UserNo).collect();
            let (remove, forget) = (numbers(remove), numbers(forget));
            let patch = DeskPatch { open_to, shows_agents, add: add.into_iter().map(sender).collect(), remove, forget };
            let id = if id == 0 { "u1".into() } else { "shop".into() };
            Proposal::SetDesk { account: ACCOUNT, id, patch, agents_max: 3, adopts_user: shows_agents == Some(true) }
        },
    )
}

fn assign() -> impl Strategy<Value = Proposal> {
    let room = prop_oneof![2 => Just(ROOMS_OF_ACCOUNT[0]), 1 => Just(ROOMS_OF_ACCOUNT[1])];
    let expected = prop::option::of(prop::option::of((1..=USERS).prop_map(UserNo)));
    (room, prop::option::of(1..=USERS), expected, entry()).prop_map(|(conversation, to, expected, entry)| {
        let entry = NewEntry { kind: EntryKind::Assignment, client_msg_id: None, details: None, ..entry };
        Proposal::Assign { conversation, account: ACCOUNT, to: to.map(sender), expected, entry }
    })
}

/// The proposal, whose entry names the account if it is in one of the account's rooms. Some entries are of agents.
fn in_rooms_of_account(mut proposal: Proposal) -> Proposal {
    let (conversation, entry) = match &mut proposal {
        Proposal::Append { conversation, entry }
        | Proposal::ChangeMessage { conversation, entry, .. }
        | Proposal::Assign { conversation, entry, .. }
        | Proposal::UpdateConversation { conversation, notice: Some(entry), .. }
        | Proposal::ChangeMembers { conversation, notice: Some(entry), .. } => (*conversation, entry),
        _ => return proposal,
    };
    if ROOMS_OF_ACCOUNT.contains(&conversation) {
        let agent = (entry.body.len() % 2 == 0).then(|| sender(1 + entry.body.len() as u64 / 2 % USERS));
        let entry_is_offer = entry.kind == EntryKind::Message && entry.body.len() % 3 == 0;
        entry.details_mut().desk = Some(EntryDesk { account: ACCOUNT, agent, for_customer: entry_is_offer });
    }
    proposal
}

fn text() -> impl Strategy<Value = Option<String>> {
    prop::option::of("[a-z🙂]{0,3}")
}

fn members(count: usize) -> impl Strategy<Value = Vec<(UserNo, Role)>> {
    let role = prop_oneof![Just(Role::Member), Just(Role::Admin), Just(Role::Owner)];
    prop::collection::vec((user(), role), 0..count)
}

fn entry() -> impl Strategy<Value = NewEntry> {
    let sender = prop::option::of(1..=3u64);
    let id = prop::option::weighted(0.9, 0..25u32);
    let body = prop_oneof![8 => 0..300usize, 1 => 2_400..3_200usize, 1 => 3_000..10_000usize];
    let mentions = prop_oneof![8 => 0..3usize, 1 => Just(100)];
    let reply_to = prop::option::weighted(0.2, 0..9u64);
    let all = (sender, id, body, mentions, any::<[bool; 2]>(), 0..8u8, reply_to);
    all.prop_map(|(sender, id, body, mentions, flags, kind, reply_to)| NewEntry {
        kind: if kind == 0 { EntryKind::MemberChange } else { EntryKind::Message },
        sender: sender.map(|no| Sender { no: UserNo(no), id: format!("u{no}") }),
        client_msg_id: id.map(|id| format!("id-{id}")),
        content_type: "text".into(),
        body: format!("\"{:é>body$}\"", id.unwrap_or(0)).into(),
        mentions: (0..mentions).map(|n| format!("someone-with-a-long-name-{n:030}")).collect(),
        silent: flags[0] && kind < 4,
        skip_push: flags[1] && kind < 4,
        details: details(kind, reply_to),
        request: request(kind, flags),
    })
}

/// Some ids stand for other requests than before, and some entries may only be retries.
fn request(kind: u8, flags: [bool; 2]) -> EntryRequest {
    let digest = flags[0].then(|| RequestHasher::new(if kind.is_multiple_of(4) { "a" } else { "b" }).digest());
    let refusal = (kind == 1 && flags[1]).then(|| Box::new(Refusal::new(ErrorCode::Forbidden, "not any more")));
    // A batch of nothing but entries has another way through PostgreSQL, unless one is in slow mode.
    let slow_mode_ms = (kind == 2 && flags[0]).then_some(4_000);
    EntryRequest { digest, refusal, slow_mode_ms, import: None }
}

/// Some messages answer another one, and some grow.
fn details(kind: u8, reply_to: Option<u64>) -> Option<Box<EntryDetails>> {
    if kind == 0 || (kind < 5 && reply_to.is_none()) {
        return None;
    }
    let stream = if kind < 5 { StreamState::Whole } else { StreamState::Open { node: 7 } };
    // Those that answer the same message disappear alike.
    let expires = reply_to.map(|seq| Expiry { after_s: 60 + seq as u32, after_read_s: (kind > 2).then_some(5) });
    let reply_to = reply_to.filter(|seq| *seq != 0).map(AnsweredMessage::at);
    Some(MessageDetails { reply_to, stream, expires, ..MessageDetails::NONE }.into())
}

/// An edit, an end or a recall of one of the first messages, so that the same one is changed again and again.
fn change_message() -> impl Strategy<Value = Proposal> {
    let edit =
        (prop::option::of(1..4u32), any::<bool>(), 1..6usize).prop_map(|(if_version, keep_replaced, edits_max)| {
            MessageChange::Edit { if_version, keep_replaced, edits_max }
        });
    let end = any::<bool>().prop_map(|interrupted| MessageChange::EndStream { interrupted });
    let pin = (any::<bool>(), 1..3usize).prop_map(|(pinned, pins_max)| MessageChange::Pin { pinned, pins_max });
    let change =
        prop_oneof![3 => edit, 1 => Just(MessageChange::Recall), 1 => Just(MessageChange::Expire), 2 => pin, 3 => end];
    (busy_room(), 0..6u64, change, entry()).prop_map(|(conversation, target, change, entry)| {
        let (kind, body) = match change {
            MessageChange::Edit { .. } | MessageChange::EndStream { .. } => (EntryKind::Edit, entry.body),
            MessageChange::Recall | MessageChange::Expire => (EntryKind::Recall, "null".into()),
            MessageChange::Pin { .. } => (EntryKind::Pins, "null".into()),
        };
        let entry = NewEntry { kind, body, silent: true, skip_push: true, details: None, ..entry };
        Proposal::ChangeMessage { conversation, target, change, entry }
    })
}

fn reaction() -> impl Strategy<Value = Proposal> {
    (
        busy_room(),
        0..6u64,
        1..=USERS,
        "[ab👍]",
        prop::bool::weighted(0.7),
        1..3usize,
        prop_oneof![Just(0), Just(5_000u64)],
    )
        .prop_map(|(conversation, target, user, key, add, keys_max, interval_ms)| Proposal::React {
            conversation,
            target,
            user: Sender { no: UserNo(user), id: format!("u{user}") },
            key,
            add,
            keys_max,
            interval_ms,
        })
}

fn preferences() -> impl Strategy<Value = PreferencesPatch> {
    let flag = || prop::option::weighted(0.3, any::<bool>());
    let title = prop::option::weighted(0.3, text());
    (flag(), flag(), flag(), flag(), title, prop::option::weighted(0.3, 0..9u64)).prop_map(
        |(pinned, archived, hidden, marked_unread, title, clear_to_seq)| PreferencesPatch {
            pinned,
            archived,
            hidden,
            title,
            marked_unread,
            clear_to_seq,
        },
    )
}

fn settings(set: bool) -> ConversationSettings {
    ConversationSettings {
        receipts: set.then_some(ReceiptsMode::Counts),
        history: set.then_some(HistoryVisibility::Last(3)),
        mention_all: set.then_some(MentionAll::Nobody),
        reactions: set.then(|| AllowedReactions::Only(vec!["👍".into()])),
        blocks: None,
        posting: set.then_some(Posting::Admins),
        slow_mode_s: set.then_some(30),
        join_requests: set.then_some(true),
        expires: set.then_some(Expiry { after_s: 60, after_read_s: None }),
        retention: set.then_some(OwnRetention { keep_days: 9, removes_newest: false }),
        importing: None,
        deleted: None,
    }
}

fn new_conversation() -> impl Strategy<Value = NewConversation> {
    let kind = prop_oneof![
        4 => Just(ConversationKind::Group),
        1 => Just(ConversationKind::Official),
        1 => Just(ConversationKind::Direct)
    ];
    (1..=ROOMS, kind, text(), members(5)).prop_map(|(id, kind, name, members)| NewConversation {
        id: format!("room-{id}"),
        kind,
        pair: (kind == ConversationKind::Direct).then_some((UserNo(1), UserNo(2))),
        name,
        avatar: None,
        attributes: None,
        members,
        settings: settings(kind == ConversationKind::Group),
    })
}

fn notification_key() -> impl Strategy<Value = NotificationKey> {
    (0..3usize, 0..6u64).prop_map(|(table, id)| NotificationKey { table: NotificationTable::ALL[table], id })
}

fn dead() -> impl Strategy<Value = Vec<StoredNotification>> {
    let one = (notification_key(), 1..9u32).prop_map(|(key, attempts)| StoredNotification {
        key,
        failed_at: NOON,
        attempts,
        last_error: "refused".into(),
        event: "{}".into(),
    });
    prop::collection::vec(one, 0..3)
}

fn proposal() -> impl Strategy<Value = Proposal> {
    let one_of = |word: &'static str| prop::option::of(prop_oneof![Just(word.to_owned()), Just(String::new())]);
    let patch = (1..=USERS, text(), text(), text(), one_of("de-AT"), one_of("Europe/Vienna")).prop_map(
        |(id, name, avatar, attributes, language, time_zone)| UserPatch {
            id: format!("u{id}"),
            name,
            avatar,
            attributes,
            language,
            time_zone,
        },
    );
    let mute = prop_oneof![Just(MuteState::Off), Just(MuteState::Forever), (1..99u64).prop_map(MuteState::Until)];
    let window = prop::option::of(Just(DailyWindow {
        start: "22:00".into(),
        end: "06:00".into(),
        time_zone: "Asia/Tokyo".into(),
    }));
    prop_oneof![
        12 => (busy_room(), entry()).prop_map(|(conversation, entry)| Proposal::Append { conversation, entry }),
        5 => change_message(),
        4 => reaction(),
        1 => room().prop_map(|conversation| Proposal::TellReactions { conversation }),
        3 => (busy_room(), 0..6u64, entry()).prop_map(|(conversation, target, entry)| {
            Proposal::CheckpointStream { conversation, target, body: entry.body }
        }),
        3 => prop::collection::vec(patch, 0..5).prop_map(Proposal::PutUsers),
        4 => new_conversation().prop_map(Proposal::CreateConversation),
        1 => (room(), text(), text(), prop::option::of(entry()), any::<bool>()).prop_map(
            |(conversation, name, avatar, notice, set)| {
                let settings = settings(set);
                Proposal::UpdateConversation { conversation, name, avatar, attributes: None, settings, notice }
            }
        ),
        2 => prop::collection::vec((user(), any::<[u8; LANES]>().prop_map(|told| told.map(u64::from))), 0..4)
            .prop_map(Proposal::SetStored),
        1 => (user(), any::<bool>()).prop_map(|(user, send)| Proposal::SetReceipts { user, send }),
        1 => (user(), prop::option::of(1..9u64)).prop_map(|(user, snooze_until)| {
            let preferences = Box::new(NotificationPreferences { snooze_until, ..NotificationPreferences::default() });
            Proposal::SetNotificationPreferences { user, preferences }
        }),
        3 => (room(), user(), preferences())
            .prop_map(|(conversation, user, patch)| Proposal::SetPreferences { conversation, user, patch }),
        6 => (room(), members(4), prop::collection::vec(user(), 0..3), prop::option::weighted(0.2, user()), act(), 2..8u64, prop::option::of(entry()))
            .prop_map(|(conversation, add, remove, heir, act, members_max, notice)| {
                Proposal::ChangeMembers { conversation, add, remove, heir, act, members_max, notice }
            }),
        3 => (room(), user(), 0..20u64)
            .prop_map(|(conversation, user, seq)| Proposal::MarkRead { conversation, user, seq }),
        2 => (room(), user(), mute)
            .prop_map(|(conversation, user, mute)| Proposal::SetMute { conversation, user, mute }),
        1 => (user(), window).prop_map(|(user, window)| Proposal::SetDoNotDisturb { user, window }),
        2 => (0..60u64, dead()).prop_map(|(through, dead)| Proposal::AdvanceOutbox { through, dead }),
        1 => prop::collection::vec(notification_key(), 0..3).prop_map(|keys| Proposal::DeleteStoredNotifications { keys }),
        4 => set_desk(),
        4 => assign(),
        5 => set_push_token(),
    ]
    .prop_map(in_rooms_of_account)
}

/// What becomes of one member: mutes and bans for a few seconds, or for good.
fn act() -> impl Strategy<Value = Option<Box<MemberAct>>> {
    let until = prop::option::of((0..20_000u64).prop_map(|later| NOON + later));
    let restriction = until.prop_map(|until| Restriction { at: NOON, until, by: None, reason: None });
    let kind = prop_oneof![Just(RestrictionKind::Mute), Just(RestrictionKind::Ban)];
    let restrict = (user(), kind, prop::option::weighted(0.7, restriction))
        .prop_map(|(user, kind, restriction)| MemberAct::Restrict { user, kind, restriction });
    let until = prop::option::of((0..20_000u64).prop_map(|later| NOON + later));
    let invite = (0..3u64, until, prop::option::of(1..3u32)).prop_map(|(number, expires_at, uses_max)| {
        let invite = Invite { number, digest: "d".into(), at: NOON, by: None, expires_at, uses_max, uses: 0 };
        MemberAct::Invite { invite, invites_max: 3 }
    });
    let ask = user().prop_map(|user| MemberAct::Ask {
        user,
        request: JoinRequest { at: NOON, text: None, refused: None },
        waiting_max: (2, 2),
    });
    let decline = (user(), any::<bool>()).prop_map(|(user, refuses)| MemberAct::Decline {
        user,
        refused: refuses.then_some(RefusedRequest { at: NOON, by: None, reason: None }),
    });
    let act = prop_oneof![
        3 => restrict,
        1 => user().prop_map(MemberAct::StepDown),
        1 => invite,
        1 => (0..3u64).prop_map(MemberAct::RevokeInvite),
        2 => (user(), 0..3u64).prop_map(|(user, invite)| MemberAct::JoinByInvite { user, invite }),
        3 => ask,
        1 => user().prop_map(MemberAct::Approve),
        1 => decline,
    ];
    prop::option::weighted(0.6, act.prop_map(Box::new))
}

/// Few users, devices and tokens, so that what the proposal expects is often what is there.
fn set_push_token() -> impl Strategy<Value = Proposal> {
    let token = || {
        prop::option::of((0..2u8, any::<bool>()).prop_map(|(token, is_fcm)| {
            let token = format!("0{token}");
            if is_fcm { PushToken::Fcm { token } } else { PushToken::Apns { token } }
        }))
    };
    let device = || (prop_oneof![Just(UserNo(1)), Just(UserNo(2)), user()], prop_oneof!["d", "e"]);
    let additions = prop::option::of(0..4_u64);
    let parts = (device(), token(), token(), prop::option::of(device()), additions);
    parts.prop_map(|((user, device), token, former, owner, additions)| Proposal::SetPushToken {
        user,
        device,
        token,
        former: former.as_ref().map(TokenDigest::of),
        owner,
        additions,
        notes: vec![],
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        9 => (prop::collection::vec(proposal(), 1..8), 0..20_000u64)
            .prop_map(|(batch, later)| Step::Commit(batch, NOON + later)),
        1 => Just(Step::Reopen),
    ]
}

/// Limits `AdvanceOutbox` to positions that exist: no consumer is done with an entry before it is appended.
fn limit_to_existing(batch: Vec<Proposal>, last: Position) -> Vec<Proposal> {
    let bounded = |proposal| match proposal {
        Proposal::AdvanceOutbox { through, dead } => Proposal::AdvanceOutbox { through: through.min(last), dead },
        other => other,
    };
    batch.into_iter().map(bounded).collect()
}

fn sorted(mut conversations: Vec<UserConversation>) -> Vec<UserConversation> {
    conversations.sort_by_key(|listed| listed.conversation);
    conversations
}

/// Asserts that every read of the two stores is the same.
fn compare(store: &dyn Store, model: &dyn Store) {
    assert_eq!(store.last_position(), model.last_position());
    assert_eq!(store.outbox_position().unwrap(), model.outbox_position().unwrap());
    for (after, limit) in [(0, 1_000), (3, 4), (40, 9)] {
        assert_eq!(store.outbox(after, limit).unwrap(), model.outbox(after, limit).unwrap());
    }
    for (table, (after, limit)) in
        NotificationTable::ALL.into_iter().flat_map(|table| [(None, 100), (Some(2), 2)].map(|page| (table, page)))
    {
        let [found, expected] = [store, model].map(|store| store.stored_notifications(table, after, limit).unwrap());
        assert_eq!(found, expected);
    }
    let chat_rows = [store, model].map(|s| s.rows(RowSpace::Chat, &[], &[255], 10_000).unwrap());
    assert_eq!(chat_rows[0], chat_rows[1]);
    for user in (0..=USERS + 1).map(UserNo) {
        let id = format!("u{}", user.0);
        assert_eq!(store.user_no(&id).unwrap(), model.user_no(&id).unwrap());
        assert_eq!(store.user(user).unwrap(), model.user(user).unwrap());
        for direct in [true, false] {
            let listed = [store, model].map(|s| sorted(s.conversations_of(user, direct, 100).unwrap()));
            assert_eq!(listed[0], listed[1]);
        }
    }
    for room in (0..=ROOMS + 1).map(ConversationNo) {
        let id = format!("room-{}", room.0);
        assert_eq!(store.conversation_no(&id).unwrap(), model.conversation_no(&id).unwrap());
        assert_eq!(store.conversation(room).unwrap(), model.conversation(room).unwrap());
        let head = model.head(room).unwrap();
        assert_eq!(store.head(room).unwrap(), head);
        for (after, limit) in [(None, 100), (Some(UserNo(2)), 2)] {
            assert_eq!(store.members(room, after, limit).unwrap(), model.members(room, after, limit).unwrap());
        }
        for user in (0..=USERS + 1).map(UserNo) {
            assert_eq!(store.membership(room, user).unwrap(), model.membership(room, user).unwrap());
        }
        for end in [End::Oldest, End::Newest] {
            for (from, to, limit) in [(0, u64::MAX, 1_000), (2, 9, 3), (head.last_seq, head.last_seq, 1)] {
                let entries = [store, model].map(|s| s.entries(room, from, to, limit, end).unwrap());
                assert_eq!(entries[0], entries[1]);
            }
        }
        for at in [0, NOON, NOON + 5_000, NOON + 10_000, head.last_at, head.last_at + 1] {
            assert_eq!(store.seq_at(room, at).unwrap(), model.seq_at(room, at).unwrap());
        }
    }
}

/// The whole commit log behind a position, read in chunks of `limit`.
fn read_back(store: &dyn Store, mut after: Position, limit: usize) -> (Position, Vec<LogRecord>) {
    let mut all = Vec::new();
    loop {
        let page = store.log_after(after, limit).unwrap();
        assert_eq!(page.span.after, after);
        if page.span.through == after {
            return (after, all);
        }
        assert!(page.records.iter().all(|record| (after + 1..=page.span.through).contains(&record.position)));
        after = page.span.through;
        // A database takes the times of changes from its own clock.
        all.extend(page.records.into_iter().map(|record| {
            assert_eq!(record.change.is_some(), record.changed_at > 0);
            LogRecord { changed_at: 0, ..record }
        }));
    }
}

/// Whether every read of the commit log is that of the model.
fn has_the_log_of(store: &dyn Store, model: &MemoryStore) -> bool {
    let reads = [(0, 1_000), (0, 3), (5, 7), (model.last_position(), 10)];
    reads.into_iter().all(|(after, limit)| read_back(store, after, limit) == read_back(model, after, limit))
}

/// Runs the steps on the store that `open` opens, and compares it with the model after each reopening and at the end.
fn agree(steps: Vec<Step>, model: &MemoryStore, open: impl Fn() -> Box<dyn Store>) -> Result<(), TestCaseError> {
    let mut store = Some(open());
    for step in steps {
        match step {
            Step::Commit(batch, now) => {
                let batch = limit_to_existing(batch, model.last_position());
                let open = store.as_ref().unwrap();
                prop_assert_eq!(open.commit(&batch, now).unwrap(), model.commit(&batch, now).unwrap());
            }
            Step::Reopen => {
                drop(store.take());
                store = Some(open());
                compare(store.as_deref().unwrap(), model);
            }
        }
    }
    compare(store.as_deref().unwrap(), model);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_embedded_store_agrees_with_the_shadow_model(steps in prop::collection::vec(step(), 1..24)) {
        let folder = support::scratch();
        let model = MemoryStore::with_events();
        let open = || {
            let options = EmbeddedOptions { event_log: true, ..support::options(folder.path()) };
            let store = EmbeddedStore::open(options).unwrap();
            store.open_gates().unwrap();
            store
        };
        agree(steps, &model, || Box::new(open()))?;
        prop_assert!(has_the_log_of(&open(), &model));
        let report = support::open(folder.path()).check(tidings_popups::check_popups).unwrap();
        prop_assert!(report.is_sound(), "{}", report);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 100, ..ProptestConfig::default() })]

    #[test]
    fn the_store_on_postgresql_agrees_with_the_shadow_model(steps in prop::collection::vec(step(), 1..24)) {
        let server = support::postgres::PostgresServer::shared();
        let url = server.database();
        let model = MemoryStore::shared();
        agree(steps, &model, || Box::new(support::postgres::open_at(&url)))?;
        prop_assert!(has_the_log_of(&support::postgres::open_at(&url), &model));
    }
}

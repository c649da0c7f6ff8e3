#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use tidings_domain::commit_log::NodeDetails;

fn ada() -> User {
    let window = DailyWindow { start: "22:00".into(), end: "07:00".into(), time_zone: "UTC".into() };
    let row = UserRow {
        id: "ada".into(),
        name: Some("Ada".into()),
        avatar: None,
        attributes: None,
        created_at: 7,
        window: Some((window.start, window.end, window.time_zone)),
    };
    row.user(UserNo(3), None)
}

#[test]
fn user_rows_of_older_programs_are_read_and_newer_ones_are_read_by_them() {
    let locale = Locale { language: Some("de-AT".into()), time_zone: Some("Europe/Vienna".into()) };
    let mut with_locale = ada();
    with_locale.change_extras(|extras| extras.locale = Some(Box::new(locale)));
    for user in [ada(), with_locale.clone()] {
        assert_eq!(decode_user(UserNo(3), &encode_user(&user)).unwrap(), user);
    }
    // A program from before languages wrote and reads the row alone.
    assert_eq!(decode_user(UserNo(3), &encode(&UserRow::of(&with_locale))).unwrap(), ada());
    assert_eq!(decode::<UserRow>(&encode_user(&with_locale)).unwrap().user(UserNo(3), None), ada());
    // What a later program adds is passed over.
    let row = [encode(&UserRow::of(&ada())), br#"{"language":"de","calendar":"x"}"#.to_vec()].concat();
    assert_eq!(decode_user(UserNo(3), &row).unwrap().language(), Some("de"));
    let damaged = [encode(&UserRow::of(&ada())), b"{".to_vec()].concat();
    assert!(decode_user(UserNo(3), &damaged).is_err() && decode_user(UserNo(3), &[]).is_err());
}

#[test]
fn a_record_of_a_node_is_read_by_programs_before_gates_and_after_them() {
    let details = NodeDetails { wire_version: 9, ..NodeDetails::of_this_program() };
    let node = NodeInfo { name: "a".into(), boot_id: 7, details, ..NodeInfo::default() };
    assert_eq!(decode_node(&encode_node(&node)).unwrap(), node);
    // A program from before gates wrote and reads the record alone.
    let former = NodeInfo { details: NodeDetails::default(), ..node.clone() };
    assert_eq!(decode_node(&encode(&node)).unwrap(), former);
    assert_eq!(decode::<NodeInfo>(&encode_node(&node)).unwrap(), former);
    let later = [encode(&node), br#"{"gates":["x"],"later":1}"#.to_vec()].concat();
    assert_eq!(decode_node(&later).unwrap().details.gates, ["x"]);
    assert_eq!(decode_node(&[encode(&node), b"{".to_vec()].concat()).unwrap(), former);
}

#[test]
fn settings_of_a_later_version_allow_no_more_than_is_known() {
    let conversation = Conversation {
        no: ConversationNo(7),
        id: "g".into(),
        kind: ConversationKind::Group,
        pair: None,
        name: None,
        avatar: None,
        attributes: None,
        created_at: 1,
        member_count: 2,
        settings: ConversationSettings::default(),
        blocks: PairBlocks::default(),
    };
    let settings = |text: &str| {
        let row = [encode(&ConversationRow::of(&conversation)), text.as_bytes().to_vec()].concat();
        decode_conversation(ConversationNo(7), &row).map(|conversation| conversation.settings)
    };
    let later = r#"{"receipts":"later","history":{"later":1},"mention_all":"later","reactions":{"later":[]},"blocks":"later","posting":"later","later":1}"#;
    let cautious = ConversationSettings {
        receipts: Some(ReceiptsMode::None),
        history: Some(HistoryVisibility::Join),
        mention_all: Some(MentionAll::Nobody),
        reactions: Some(AllowedReactions::Only(vec![])),
        blocks: Some(BlocksMode::Hide),
        posting: Some(Posting::Admins),
        slow_mode_s: None,
        join_requests: None,
        expires: None,
        retention: None,
        importing: None,
        deleted: None,
    };
    assert_eq!(settings(later).unwrap(), cautious);
    let known = ConversationSettings { history: Some(HistoryVisibility::Last(3)), ..ConversationSettings::default() };
    assert_eq!(settings(r#"{"history":{"last":3}}"#).unwrap(), known);
    assert!(settings("{").is_err());
    for (role, expected) in [
        (0, (Role::Member, false)),
        (1, (Role::Admin, false)),
        (2, (Role::Owner, false)),
        (3, (Role::Member, false)),
        (0x11, (Role::Admin, true)),
    ] {
        let row = MembershipRow { role, joined_at: 1, joined_seq: 1, read_seq: 1, muted_until: 0 };
        let membership = row.membership();
        assert_eq!((membership.role, membership.restricted), expected);
    }
}

#[test]
fn a_change_of_a_kind_of_a_later_version_is_no_damage() {
    for (kind, name) in [(Change::KINDS - 1, false), (Change::KINDS, true), (200, true), (70_000, true)] {
        let mut row = vec![ROW_VERSION];
        row.extend(postcard::to_stdvec(&kind).unwrap());
        assert_eq!(decode_change(&row).ok(), name.then_some(Change::Opaque), "{kind}");
    }
    assert_eq!(decode_change(&[ROW_VERSION + 1, 0xff]).unwrap(), Change::Opaque);
    let last = Change::Erased { user: UserNo(3), erasure: vec![1, 2] };
    let row = encode(&last);
    assert_eq!(decode_change(&row).unwrap(), last);
    assert_eq!(postcard::take_from_bytes::<u32>(&row[1..]).unwrap().0, Change::KINDS - 1, "all kinds are counted");
    for damaged in [&row[..row.len() - 1], &[], &[ROW_VERSION]] {
        assert!(decode_change(damaged).is_err());
    }
}

fn later_entry() -> impl Strategy<Value = NewEntry> {
    let ids = (any::<Option<u64>>(), prop::option::of("[a-z]{1,9}"), prop::collection::vec("[a-z]{1,9}", 0..40));
    let texts = (".{0,40}", ".{0,4000}", prop::option::of(".{0,4000}"));
    (9..=u8::MAX, ids, texts, any::<bool>()).prop_map(|(number, (sender, id, mentions), texts, silent)| {
        let (content_type, body, details) = texts;
        let kind = EntryKind::of_number(number);
        NewEntry {
            kind,
            sender: sender.map(|no| Sender { no: UserNo(no), id: "ada".into() }),
            client_msg_id: id,
            content_type,
            body: body.into(),
            mentions,
            silent,
            skip_push: !silent,
            details: details.map(|text| Box::new(EntryDetails::parse(kind, text.as_bytes()).unwrap())),
            request: EntryRequest::default(),
        }
    })
}

proptest! {
    /// In both stores' forms, and between nodes.
    #[test]
    fn an_entry_of_a_kind_of_a_later_version_comes_back_as_it_was(entry in later_entry()) {
        let stored = StoredEntry { seq: 3, position: 8, at: 9, content: entry.clone() };
        let content = encode_content(&entry);
        prop_assert_eq!(&decode_content(3, 8, 9, &content).unwrap(), &stored);
        let (row, parts) = encode_entry(&entry, 9, 8);
        prop_assert_eq!(&decode_entry(3, &row, |_| Ok(parts.concat())).unwrap(), &stored);
        let sent = postcard::to_stdvec(&stored).unwrap();
        prop_assert_eq!(&postcard::from_bytes::<StoredEntry>(&sent).unwrap(), &stored);
        // A row that was cut is damaged, whatever its kind: but for the text of its details, which nothing bounds.
        let bare = encode_content(&NewEntry { details: None, ..entry });
        for end in [0, 1, bare.len() / 2, bare.len() - 1] {
            prop_assert!(decode_content(3, 8, 9, &bare[..end]).is_err());
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(version in 0..4u8, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let row = [&[version], &bytes[..]].concat();
        let _ = (decode_change(&row), decode_node(&row), decode_content(1, 1, 1, &row), decode_user(UserNo(1), &row));
        let _ = (decode_entry(1, &row, |_| Ok(bytes.clone())), decode_conversation(ConversationNo(1), &row));
        if version > ROW_VERSION {
            prop_assert_eq!(decode_content(3, 8, 9, &row).unwrap().content, NewEntry::opaque());
            prop_assert_eq!(decode_change(&row).unwrap(), Change::Opaque);
        }
    }
}

//! Unit tests of `src/cluster/wire.rs`.

use super::*;
use proptest::prelude::*;

fn committed() -> BusMessage {
    let content = NewEntry {
        kind: EntryKind::Message,
        sender: Some(Sender { no: UserNo(7), id: "alice".into() }),
        client_msg_id: Some("1".into()),
        content_type: "text".into(),
        body: r#"{"text":"héllo"}"#.into(),
        mentions: vec!["bob".into()],
        silent: false,
        skip_push: true,
        details: None,
        request: EntryRequest::default(),
    };
    let entry = Some(StoredEntry { seq: 3, position: 12, at: 1_772_366_400_000, content });
    let kinds = [ConversationKind::Direct, ConversationKind::Group, ConversationKind::Official];
    let conversation =
        |kind| ConversationRef { no: ConversationNo(9), id: "g".into(), kind, pair: Some((UserNo(7), UserNo(8))) };
    let left = Change::Members {
        conversation: ConversationNo(9),
        joined: vec![],
        left: vec![UserNo(8)],
        changed: vec![UserNo(7)],
    };
    let items = vec![
        WireItem { conversation: Some(1), entry, change: None },
        WireItem { conversation: Some(0), entry: None, change: Some(left) },
        WireItem { conversation: None, entry: None, change: Some(Change::Users(vec!["alice".into()])) },
    ];
    let conversations = kinds.map(conversation).to_vec();
    BusMessage::Committed(WireBatch { after: 11, through: 14, conversations, items })
}

#[test]
fn a_message_is_decoded_as_it_was_encoded() {
    let hello = BusMessage::Hello { name: "a".into(), boot_id: u64::MAX };
    for message in [committed(), hello, BusMessage::Presence(vec![1, 2, 3])] {
        assert_eq!(BusMessage::decode(&message.encode()), Some(message));
    }
}

#[test]
fn kinds_of_a_later_version_are_sent_on_and_changes_whose_content_is_lost_are_not() {
    let BusMessage::Committed(batch) = committed() else { return };
    let with = |number, change| {
        let mut batch = batch.clone();
        batch.items.iter_mut().filter_map(|item| item.entry.as_mut()).for_each(|entry| {
            entry.content.kind = EntryKind::of_number(number);
            entry.content.details = Some(Box::new(KindDetails::Opaque(r#"{"votes":1}"#.into()).into()));
        });
        batch.items[1].change = change;
        BusMessage::Committed(batch)
    };
    for number in [9, 128, 255] {
        let message = with(number, None);
        assert_eq!(BusMessage::decode(&message.encode()), Some(message));
    }
    assert_eq!(BusMessage::decode(&with(9, Some(Change::Opaque)).encode()), None);
}

#[test]
fn a_message_of_another_version_is_not_decoded() {
    let mut bytes = committed().encode().to_vec();
    bytes[0] += 1;
    assert_eq!(BusMessage::decode(&bytes), None);
    assert_eq!(BusMessage::decode(&[]), None);
}

proptest! {
    #[test]
    fn decoding_survives_arbitrary_and_truncated_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0..300usize) {
        let _ = BusMessage::decode(&[&[WIRE_VERSION][..], &bytes].concat());
        let whole = committed().encode();
        let cut = cut.min(whole.len());
        prop_assert_eq!(BusMessage::decode(&whole[..cut]).is_some(), cut == whole.len());
    }
}

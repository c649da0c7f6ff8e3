//! Unit tests of `src/visibility.rs`.

use super::*;

fn entry(kind: EntryKind, details: EntryDetails) -> StoredEntry {
    let content = NewEntry {
        kind,
        sender: None,
        client_msg_id: None,
        content_type: "text".into(),
        body: r#"{"text":"x"}"#.into(),
        mentions: vec!["ada".into()],
        silent: false,
        skip_push: false,
        details: Some(Box::new(details)),
        request: EntryRequest::default(),
    };
    StoredEntry { seq: 9, position: 9, at: 9, content }
}

#[test]
fn what_an_entry_tells_of_a_hidden_message_is_left_out() {
    let view = View { first_seq: 5, ..View::WHOLE };
    let shown = |kind, of_kind| {
        let details = EntryDetails::from(of_kind);
        view.show(&entry(kind, details)).map(|shown| shown.entry().clone())
    };
    for (target, body) in [(4, "null"), (5, r#"{"text":"x"}"#)] {
        let edit = EditDetails { target, version: 2, ..EditDetails::default() };
        let edit = shown(EntryKind::Edit, KindDetails::Edit(edit));
        assert_eq!(edit.map(|edit| edit.content.body), Some(body.into()));
    }
    let of = |seq| (seq, vec![ReactionCount { key: "+1".into(), count: 1, newest: vec![] }]);
    let reactions = shown(EntryKind::Reactions, KindDetails::Reactions(vec![of(4), of(5)]));
    assert_eq!(reactions.map(|entry| entry.content.reaction_changes().to_vec()), Some(vec![of(5)]));
    let message = entry(EntryKind::Message, EntryDetails::of(EntryKind::Message));
    assert!(View { first_seq: 10, ..view }.show(&message).is_none());
}

#[test]
fn of_an_entry_of_a_later_version_a_reader_learns_that_it_is_there() {
    let details = KindDetails::Opaque(r#"{"votes":1}"#.into());
    let entry = entry(EntryKind::Opaque(200), details.into());
    let shown = View::WHOLE.show(&entry).map(|shown| shown.entry().clone());
    assert_eq!(shown, Some(StoredEntry { content: NewEntry::opaque(), ..entry.clone() }));
    assert!(View { first_seq: 10, ..View::WHOLE }.show(&entry).is_none());
    let mut json = Vec::new();
    let Some(shown) = View::WHOLE.show(&entry) else { return };
    crate::entry_view::encode_entry(&mut json, "c", &shown);
    let expected = r#"{"conversation":"c","seq":9,"kind":"opaque","at":9,"type":"opaque","body":null,"silent":true}"#;
    assert_eq!(String::from_utf8_lossy(&json), expected);
}

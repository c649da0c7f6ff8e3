//! The steps by which a person is erased.

use super::*;
use tidings_domain::{
    chat_rows::{block_key, decode, preferences_key, settings_key},
    erasure::{
        DeletedConversation, EraseStep, ErasureStage, LegalHold, Person, StoredErasure, erasure_key, legal_hold_key,
    },
};
use tidings_protocol::http::ErasedMessages;

pub(super) const CHECKS: &[Check] = &[
    ("an_erased_person_leaves_an_alias", alias_stays),
    ("entries_of_an_erased_person_are_under_the_alias", entries),
    ("an_erasure_begins_once", begins_once),
    ("a_legal_hold_is_set_and_lifted", legal_hold),
    ("a_deleted_conversation_keeps_its_numbers", deleted_conversation),
];

fn person(no: UserNo) -> Person {
    Person { no, id: "u1".into(), alias: format!("erased-{}", no.0) }
}

fn erase(store: &dyn Store, step: EraseStep) -> Outcome {
    commit(store, Proposal::Erase(Box::new(step)))
}

fn job(no: UserNo) -> StoredErasure {
    StoredErasure {
        id: Some("u1".into()),
        no,
        conversation: None,
        alias: format!("erased-{}", no.0),
        messages: ErasedMessages::Keep,
        by: "op".into(),
        at: NOON,
        ended_at: None,
        stage: ErasureStage::Leaving,
        cursor: String::new(),
        recalled: 0,
        changed: 0,
        held: None,
        last_error: None,
    }
}

fn begins_once(store: &dyn Store) {
    let u = users(store, 2);
    let key = erasure_key("u1");
    let begin =
        |row: StoredErasure| EraseStep::Begin { user: row.no, key: key.clone(), row: row.encode(), by: "op".into() };
    let stored = || StoredErasure::decode(&store.row(RowSpace::Chat, &key).unwrap().unwrap()).unwrap();
    assert_eq!(erase(store, begin(job(u[0]))), Outcome::Done);
    assert!(store.user(u[0]).unwrap().unwrap().suspension_at(NOON).is_some());
    // While it runs, another request changes nothing; once it is done, it begins anew.
    erase(store, begin(StoredErasure { changed: 1, ..job(u[0]) }));
    assert_eq!(stored(), job(u[0]));
    let row =
        RowChange { key: key.clone(), value: Some(StoredErasure { stage: ErasureStage::Done, ..job(u[0]) }.encode()) };
    store.write_rows(Term::ALONE, RowSpace::Chat, vec![row]).unwrap();
    erase(store, begin(StoredErasure { changed: 1, ..job(u[1]) }));
    assert_eq!(stored(), StoredErasure { changed: 1, ..job(u[1]) });
    let unknown = erase(store, begin(job(UserNo(9))));
    assert_eq!(unknown, Outcome::Rejected(Rejection::NoSuchUser(UserNo(9))));
}

fn alias_stays(store: &dyn Store) {
    let u = users(store, 2);
    let named =
        UserPatch { id: "u1".into(), name: Some("One".into()), language: Some("de".into()), ..UserPatch::default() };
    commit(store, Proposal::PutUsers(vec![named]));
    commit(store, Proposal::SetLastSeen(vec![(u[0], 5)]));
    commit(store, Proposal::Revoke { user: u[0], before: 9, reason: String::new() });
    commit(store, Proposal::SetReceipts { user: u[0], send: false });
    commit(store, Proposal::SetBlock { user: u[0], other: u[1], blocked: true, blocks_max: 9 });
    let new = new_conversation("u1~u2", ConversationKind::Direct, &u);
    let Outcome::Conversation { conversation, .. } = commit(store, Proposal::CreateConversation(new)) else { panic!() };
    let patch = PreferencesPatch { pinned: Some(true), ..PreferencesPatch::default() };
    commit(store, Proposal::SetPreferences { conversation: conversation.no, user: u[0], patch });
    let keys =
        vec![settings_key(u[0]), block_key(u[0], u[1]), preferences_key(u[0], conversation.no), b"none".to_vec()];
    assert_eq!(erase(store, EraseStep::Rows { person: person(u[0]), keys: keys.clone() }), Outcome::Done);
    assert!(store.rows_of(RowSpace::Chat, &keys).unwrap().iter().all(Option::is_none));
    for _ in 0..2 {
        erase(store, EraseStep::Profile { person: person(u[0]), key: erasure_key("u1") });
        erase(store, EraseStep::Rename { conversation: conversation.no, id: "erased-1~u2".into() });
    }
    let left = store.user(u[0]).unwrap().unwrap();
    let name = left.name.as_deref();
    assert_eq!((left.no, &*left.id, name, left.locale(), left.blocks), (u[0], "erased-1", None, None, 0));
    assert_eq!((left.revoked_at, left.receipts_off, store.last_seen(u[0]).unwrap()), (0, false, None));
    assert_eq!((store.user_no("u1").unwrap(), store.user_no("erased-1").unwrap()), (None, Some(u[0])));
    assert_eq!(store.conversation_no("u1~u2").unwrap(), None);
    assert_eq!(store.conversation_no("erased-1~u2").unwrap(), Some(conversation.no));
    assert_eq!(
        store.conversation(conversation.no).unwrap().unwrap(),
        Conversation { id: "erased-1~u2".into(), ..conversation }
    );
    // The id is free: a user with it is another one, also within a batch.
    let again = || Proposal::PutUsers(vec![UserPatch { id: "u2".into(), ..UserPatch::default() }]);
    let other = Person { no: u[1], id: "u2".into(), alias: "erased-2".into() };
    let step = EraseStep::Profile { person: other, key: erasure_key("u2") };
    let outcomes = store.commit(&[Proposal::Erase(Box::new(step)), again()], NOON).unwrap();
    assert_eq!(outcomes[1], Outcome::Users { created: 1, updated: 0 });
    let anew = store.user_no("u2").unwrap().unwrap();
    assert!(anew > u[1] && store.user(anew).unwrap().unwrap().id == "u2");
    let unknown = EraseStep::Profile { person: person(UserNo(99)), key: erasure_key("x") };
    assert_eq!(erase(store, unknown), Outcome::Rejected(Rejection::NoSuchUser(UserNo(99))));
}

fn entries(store: &dyn Store) {
    let u = users(store, 2);
    let room = group(store, "g", &u);
    let own = message(u[0], "mine");
    let others = NewEntry { mentions: vec!["u1".into(), "u11".into()], ..message(u[1], "other") };
    for entry in [own.clone(), others] {
        commit(store, Proposal::Append { conversation: room, entry });
    }
    let react = Proposal::React {
        conversation: room,
        target: 2,
        user: Sender { no: u[0], id: "u1".into() },
        key: "x".into(),
        add: true,
        keys_max: 9,
        interval_ms: 0,
    };
    commit(store, react);
    for _ in 0..2 {
        erase(store, EraseStep::Entries { person: person(u[0]), conversation: room, seqs: vec![1, 2, 3, 4, 99] });
    }
    erase(store, EraseStep::Profile { person: person(u[0]), key: erasure_key("u1") });
    let read = store.entries(room, 1, 9, 9, End::Oldest).unwrap();
    let sender_of = |at: usize| read[at].content.sender.as_ref().unwrap().id.clone();
    assert_eq!((sender_of(0), read[0].content.client_msg_id.clone()), ("erased-1".into(), None));
    assert_eq!(read[0].content.body, own.body);
    assert_eq!((sender_of(1), read[1].content.mentions.clone()), ("u2".into(), vec!["u11".to_owned()]));
    assert!(read.iter().all(|entry| !format!("{entry:?}").contains("\"u1\"")), "{read:?}");
    let is_stored = |at: usize, id| store.are_stored(&[(room, u[at], id)]).unwrap()[0];
    assert_eq!((is_stored(0, "mine"), is_stored(1, "other")), (false, true));
}

fn deleted_conversation(store: &dyn Store) {
    let u = users(store, 2);
    let (room, other) = (group(store, "g", &u), group(store, "other", &u));
    for conversation in [room, other] {
        // A body in parts, and a send under the same id in both.
        let entry = NewEntry { body: format!("{:?}", "long ".repeat(4_000)).into(), ..message(u[0], "same") };
        commit(store, Proposal::Append { conversation, entry });
        let entry = NewEntry { mentions: vec!["u1".into()], ..message(u[1], "second") };
        commit(store, Proposal::Append { conversation, entry });
        let patch = PreferencesPatch { title: Some(Some("mine".into())), ..PreferencesPatch::default() };
        commit(store, Proposal::SetPreferences { conversation, user: u[0], patch });
    }
    let before = store.head(room).unwrap();
    let gone = DeletedConversation::of(room, "g", "erased-c1");
    let keys: Vec<_> = store.rows(RowSpace::Chat, &[], &[0xFF], 999).unwrap().into_iter().map(|(key, _)| key).collect();
    for _ in 0..2 {
        assert_eq!(erase(store, EraseStep::Blank { conversation: room, seqs: vec![1, 2, 99] }), Outcome::Done);
        assert_eq!(erase(store, EraseStep::RowsIn { conversation: gone.clone(), keys: keys.clone() }), Outcome::Done);
        assert_eq!(
            erase(store, EraseStep::Details { conversation: gone.clone(), key: erasure_key("x") }),
            Outcome::Done
        );
    }
    for entry in store.entries(room, 1, 9, 9, End::Oldest).unwrap() {
        assert!(entry.content.sender.is_none() && entry.content.is_recalled(), "{entry:?}");
        assert_eq!((&*entry.content.body, &entry.content.client_msg_id), (NO_BODY, &None));
    }
    assert_eq!(store.head(room).unwrap(), before);
    assert_eq!(store.entries(other, 1, 9, 9, End::Oldest).unwrap()[1].content.mentions, ["u1"]);
    let requests = [(room, u[0], "same"), (room, u[1], "second"), (other, u[0], "same"), (other, u[1], "second")];
    assert_eq!(store.stored_seqs(&requests).unwrap(), [None, None, Some(1), Some(2)]);
    let set = |conversation| store.row(RowSpace::Chat, &preferences_key(u[0], conversation)).unwrap().is_some();
    assert_eq!((set(room), set(other)), (false, true));
    assert_eq!((store.conversation_no("g").unwrap(), store.conversation_no("erased-c1").unwrap()), (None, Some(room)));
    let details = store.conversation(room).unwrap().unwrap();
    assert!(details.is_deleted() && details.name.is_none());
    // What is stored afterwards is numbered behind it.
    let Outcome::Appended(next) = commit(store, Proposal::Append { conversation: room, entry: message(u[0], "same") })
    else {
        panic!()
    };
    assert_eq!((next.seq, next.duplicate), (3, false));
}

fn legal_hold(store: &dyn Store) {
    let u = users(store, 1);
    let room = group(store, "g", &u);
    let hold = LegalHold { name: "case 1".into(), by: "op".into(), at: NOON };
    let set = |conversation, hold| commit(store, Proposal::SetLegalHold { conversation, hold });
    assert_eq!(set(room, Some(hold.clone())), Outcome::Done);
    let row = store.row(RowSpace::Chat, &legal_hold_key(room)).unwrap();
    assert_eq!(decode::<Option<LegalHold>>(row.as_deref()).unwrap(), Some(hold));
    assert_eq!(set(room, None), Outcome::Done);
    assert_eq!(store.row(RowSpace::Chat, &legal_hold_key(room)).unwrap(), None);
    assert_eq!(set(ConversationNo(99), None), Outcome::Rejected(Rejection::NoSuchConversation));
}

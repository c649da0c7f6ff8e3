//! Faults that are planted in the engine's rows are found and named; without them the store is sound.

use crate::support::*;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;
use tidings_domain::{desks::DeskPatch, leadership::Term, model::*, push_tokens::*, store::*};
use tidings_protocol::http::PushToken;
use tidings_store::check::check;

/// The engine's key spaces.
struct Rows {
    meta: Keyspace,
    timeline: Keyspace,
    bodies: Keyspace,
    dedupe: Keyspace,
}

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_be_bytes()).collect()
}

fn meta_key(kind: u8, of: &[u64]) -> Vec<u8> {
    [vec![kind], numbers(of)].concat()
}

fn dedupe_key(client_msg_id: &str) -> Vec<u8> {
    [&[1], &numbers(&[1, 1])[..], client_msg_id.as_bytes()].concat()
}

/// A room of five messages, the fourth with a large body.
fn populated(folder: &Path) {
    let store = open(folder);
    let room = populate(&store);
    say(&store, room, ["a", "b", "c"], NOON);
    let large = NewEntry { body: format!("\"{:a>9000}\"", 1).into(), ..message("d") };
    store.commit(&[Proposal::Append { conversation: room, entry: large }], NOON).unwrap();
    say(&store, room, ["e"], NOON + 1);
}

/// Plants a fault as if after a crash, and expects that the check names each of `named` and nothing else.
fn finds(plant: impl FnOnce(&Rows), named: &[&str]) {
    finds_in(populated, plant, named);
}

/// The same in a store that `populate` fills.
fn finds_in(populate: impl FnOnce(&Path), plant: impl FnOnce(&Rows), named: &[&str]) {
    let folder = scratch();
    populate(folder.path());
    // With the marker of a clean shutdown, the changed journals would be refused.
    std::fs::remove_file(folder.path().join("closed")).unwrap();
    {
        let database = Database::builder(folder.path().join("store")).open().unwrap();
        let open = |name: &str| database.keyspace(name, KeyspaceCreateOptions::default).unwrap();
        let rows =
            Rows { meta: open("meta"), timeline: open("timeline"), bodies: open("bodies"), dedupe: open("dedupe") };
        plant(&rows);
        database.persist(PersistMode::SyncAll).unwrap();
    }
    let report = check(folder.path(), tidings_popups::check_popups).unwrap();
    assert_eq!(report.fault_count as usize, named.len(), "{report}");
    for named in named {
        assert!(report.faults.iter().any(|fault| fault.contains(named)), "{named:?} is not in\n{report}");
    }
}

#[test]
fn a_sound_store_has_no_faults() {
    finds(|_| {}, &[]);
}

#[test]
fn a_missing_entry_is_found_as_a_hole() {
    let third = numbers(&[1, 3]);
    finds(
        |rows| rows.timeline.remove(third).unwrap(),
        &[
            "conversation 1: entry 4 stands where entry 3 is due",
            "a dedupe entry names an entry that does not exist",
            "5 dedupe entries for 4 entries",
        ],
    );
}

#[test]
fn a_missing_first_entry_is_found_as_a_hole() {
    finds(
        |rows| {
            rows.timeline.remove(numbers(&[1, 1])).unwrap();
            rows.dedupe.remove(dedupe_key("a")).unwrap();
        },
        &["conversation 1: entry 2 stands where entry 1 is due"],
    );
}

#[test]
fn a_missing_newest_entry_is_found_by_its_dedupe_entry() {
    let named = &["a dedupe entry names an entry that does not exist", "5 dedupe"];
    finds(|rows| rows.timeline.remove(numbers(&[1, 5])).unwrap(), named);
}

#[test]
fn a_missing_or_different_dedupe_entry_is_found() {
    finds(|rows| rows.dedupe.remove(dedupe_key("b")).unwrap(), &["entry 2 and its dedupe entry differ", "4 dedupe"]);
    let other = numbers(&[1, 3, NOON, 3]);
    finds(|rows| rows.dedupe.insert(dedupe_key("b"), other).unwrap(), &["entry 2 and its dedupe entry differ"]);
}

#[test]
fn a_missing_part_of_a_body_is_found() {
    let part = [&numbers(&[1, 4])[..], &1u16.to_be_bytes()].concat();
    finds(|rows| rows.bodies.remove(part).unwrap(), &["entry 4: part 1 of its body is missing", "dedupe", "stands"]);
}

#[test]
fn garbled_rows_are_found() {
    finds(
        |rows| rows.meta.insert(meta_key(b'U', &[2]), [1, 0xFF]).unwrap(),
        &["user Some(2)", "the id of user \"u2\""],
    );
    finds(|rows| rows.meta.insert(meta_key(b'm', &[1, 2]), [9]).unwrap(), &["member Some(2) of Some(1)"]);
}

#[test]
fn a_missing_membership_or_index_entry_is_found() {
    let member = meta_key(b'm', &[1, 3]);
    finds(
        |rows| rows.meta.remove(member).unwrap(),
        &[
            "counts 3 members and has 2",
            "users' lists name 3 conversations",
            "the list of user Some(3) names conversation Some(1) without a membership",
        ],
    );
    let listed = [&meta_key(b'r', &[3])[..], &[1], &numbers(&[1])].concat();
    finds(|rows| rows.meta.remove(listed).unwrap(), &["users' lists name 2 conversations"]);
}

#[test]
fn an_id_that_names_another_number_is_found() {
    let named = |kind: u8, id: &str| [&[kind], id.as_bytes()].concat();
    finds(|rows| rows.meta.insert(named(b'u', "u2"), numbers(&[3])).unwrap(), &["the id of user \"u2\""]);
    finds(|rows| rows.meta.insert(named(b'c', "h"), numbers(&[1])).unwrap(), &["the id of conversation \"h\""]);
}

#[test]
fn a_body_part_without_an_entry_is_found() {
    let part = [&numbers(&[1, 5])[..], &0u16.to_be_bytes()].concat();
    finds(|rows| rows.bodies.insert(part, b"{}").unwrap(), &["4 parts of bodies, and entries name 3"]);
}

#[test]
fn a_read_mark_beyond_the_end_is_found() {
    // A member since 0 who has read up to 9, not muted.
    finds(
        |rows| rows.meta.insert(meta_key(b'm', &[1, 2]), [1, 0, 0, 0, 9, 0]).unwrap(),
        &["user 2 has read beyond the last entry 5"],
    );
}

#[test]
fn a_check_creates_no_store() {
    let folder = scratch();
    assert!(check(&folder.path().join("none"), tidings_popups::check_popups).is_err());
    assert!(!folder.path().join("none").exists());
}

#[test]
fn an_entry_beyond_the_last_position_is_found() {
    finds(|rows| rows.meta.insert("n", numbers(&[3, 1, 4])).unwrap(), &["entry 5 is beyond the last position"]);
}

/// The populated room, where message 1 was edited (entry 6) and recalled (7), and 2 has a reaction (told by 8) and a pin (9).
fn changed(folder: &Path) {
    populated(folder);
    let store = open(folder);
    let conversation = ConversationNo(1);
    let entry = |kind| NewEntry { kind, client_msg_id: None, body: "null".into(), silent: true, ..message("") };
    let change = |target, change, entry| Proposal::ChangeMessage { conversation, target, change, entry };
    let edit = MessageChange::Edit { if_version: None, keep_replaced: true, edits_max: 9 };
    let user = Sender { no: UserNo(1), id: "ann".into() };
    let steps = [
        change(1, edit, NewEntry { body: "2".into(), ..entry(EntryKind::Edit) }),
        change(1, MessageChange::Recall, entry(EntryKind::Recall)),
        Proposal::React { conversation, target: 2, user, key: "+1".into(), add: true, keys_max: 9, interval_ms: 0 },
        change(2, MessageChange::Pin { pinned: true, pins_max: 9 }, entry(EntryKind::Pins)),
    ];
    let outcomes = store.commit(&steps, NOON + 2).unwrap();
    assert!(outcomes.iter().all(|outcome| !matches!(outcome, Outcome::Rejected(_))), "{outcomes:?}");
}

fn chat_key(kind: u8, of: &[u64]) -> Vec<u8> {
    [vec![b'a', kind], numbers(of)].concat()
}

#[test]
fn a_store_with_changed_messages_has_no_faults() {
    finds_in(changed, |_| {}, &[]);
}

#[test]
fn reactions_that_no_user_gave_are_found() {
    let plant = |rows: &Rows| rows.meta.remove(chat_key(b'r', &[1, 2, 1])).unwrap();
    finds_in(changed, plant, &["message 2 counts 1 reactions, and users gave 0"]);
}

#[test]
fn a_list_of_pins_that_differs_from_the_messages_is_found() {
    let key = chat_key(b'P', &[1]);
    finds_in(changed, |rows| rows.meta.remove(key.clone()).unwrap(), &["is not in the list of pinned messages"]);
    finds_in(changed, |rows| rows.meta.insert(key.clone(), "[2,3]").unwrap(), &["message 3 is in the list"]);
}

#[test]
fn a_body_that_a_recall_should_have_removed_is_found() {
    // The entry of the edit gets the details and the body back that it had before the recall.
    let plant = |rows: &Rows| {
        let before = scratch();
        populated(before.path());
        let edit = MessageChange::Edit { if_version: None, keep_replaced: true, edits_max: 9 };
        let entry = NewEntry { kind: EntryKind::Edit, client_msg_id: None, body: "2".into(), ..message("") };
        let change = Proposal::ChangeMessage { conversation: ConversationNo(1), target: 1, change: edit, entry };
        open(before.path()).commit(&[change], NOON + 2).unwrap();
        let database = Database::builder(before.path().join("store")).open().unwrap();
        let timeline = database.keyspace("timeline", KeyspaceCreateOptions::default).unwrap();
        let row = timeline.get(numbers(&[1, 6])).unwrap().unwrap();
        rows.timeline.insert(numbers(&[1, 6]), row).unwrap();
    };
    finds_in(changed, plant, &["message 1 was recalled, and a body of it is still there"]);
}

/// The populated room, where messages 6 to 8 mention all members. The index does not know 6, which is of a former version.
fn mentioning(folder: &Path) {
    populated(folder);
    let store = open(folder);
    for (id, at) in [("f", 1), ("g", 2), ("h", 2)] {
        let entry = NewEntry { mentions: vec!["@all".into()], ..message(id) };
        store.commit(&[Proposal::Append { conversation: ConversationNo(1), entry }], NOON + at).unwrap();
    }
    let key = numbers(&[1, !(NOON + 1), !6]);
    let change = RowChange { key: [b"A", &key[..]].concat(), value: None };
    store.write_rows(Term::ALONE, RowSpace::Chat, vec![change]).unwrap();
}

#[test]
fn an_index_of_mentions_that_differs_from_the_messages_is_found() {
    finds_in(mentioning, |_| {}, &[]);
    let [seventh, eighth, ninth] = [7, 8, 9].map(|seq| chat_key(b'A', &[1, !(NOON + 2), !seq]));
    finds_in(mentioning, |rows| rows.meta.remove(eighth).unwrap(), &["message 8 mentions all members, and is not in"]);
    let plant = |rows: &Rows| rows.meta.insert(ninth.clone(), "").unwrap();
    finds_in(mentioning, plant, &["conversation 1: the index names 9"]);
    let other_time = chat_key(b'A', &[1, !(NOON + 9), !7]);
    let plant = |rows: &Rows| {
        rows.meta.remove(seventh.clone()).unwrap();
        rows.meta.insert(other_time.clone(), "").unwrap();
    };
    finds_in(mentioning, plant, &["conversation 1: the index names 7"]);
}

/// The populated room, and conversation 3 of account 2 with a message; its agent is user 1, who has the conversation.
fn answered(folder: &Path) {
    populated(folder);
    let store = open(folder);
    let user = Sender { no: UserNo(1), id: "ann".into() };
    let create = |id: &str, kind, pair, members: &[UserNo]| {
        Proposal::CreateConversation(NewConversation {
            id: id.into(),
            kind,
            pair,
            name: None,
            avatar: None,
            attributes: None,
            members: members.iter().map(|user| (*user, Role::Member)).collect(),
            settings: ConversationSettings::default(),
        })
    };
    let patch = DeskPatch { add: vec![user.clone()], ..DeskPatch::default() };
    let (account, conversation) = (ConversationNo(2), ConversationNo(3));
    let set_desk = Proposal::SetDesk { account, id: "shop".into(), patch, agents_max: 9, adopts_user: false };
    let steps = [create("shop", ConversationKind::Official, None, &[user.no]), set_desk];
    store.commit(&steps, NOON + 2).unwrap();
    let shop = store.user_no("shop").unwrap().unwrap();
    let details = |kind| Some(Box::new(EntryDetails { desk: Some(EntryDesk::of(account)), ..EntryDetails::of(kind) }));
    let said = NewEntry { details: details(EntryKind::Message), ..message("s") };
    let kind = EntryKind::Assignment;
    let notice = NewEntry { kind, client_msg_id: None, details: details(kind), ..message("") };
    let steps = [
        create("ann~shop", ConversationKind::Direct, Some((user.no, shop)), &[user.no, shop]),
        Proposal::Append { conversation, entry: said },
        Proposal::Assign { conversation, account, to: Some(user), expected: None, entry: notice },
    ];
    let outcomes = store.commit(&steps, NOON + 2).unwrap();
    assert!(outcomes.iter().all(|outcome| !matches!(outcome, Outcome::Rejected(_))), "{outcomes:?}");
}

#[test]
fn a_list_of_an_account_that_differs_from_its_conversations_is_found() {
    finds_in(answered, |_| {}, &[]);
    let unassign = |rows: &Rows| rows.meta.remove(chat_key(b'a', &[3])).unwrap();
    finds_in(answered, unassign, &["conversation 3 has entries of account 2, and is not in its list"]);
    let stale = chat_key(b'i', &[2, 0, !1, 3]);
    let stay = |rows: &Rows| rows.meta.insert(stale.clone(), "").unwrap();
    finds_in(answered, stay, &["conversation 3 is not in the list of account 2"]);
    let stray = chat_key(b'i', &[2, 0, 7, 1]);
    let plant = |rows: &Rows| rows.meta.insert(stray.clone(), "").unwrap();
    finds_in(answered, plant, &["conversation 1 is in the list of an account, and has no entry of one"]);
}

/// A store in which the first user's phone is reached by a provider.
fn with_push_token(folder: &Path) {
    let store = open(folder);
    populate(&store);
    let (user, device, token) = (UserNo(1), "phone".to_owned(), Some(push_token()));
    let proposal =
        Proposal::SetPushToken { user, device, token, former: None, owner: None, additions: None, notes: vec![] };
    assert_eq!(store.commit(&[proposal], NOON).unwrap(), [Outcome::Done]);
}

fn push_token() -> PushToken {
    PushToken::Fcm { token: "t".into() }
}

#[test]
fn a_push_token_and_its_device_that_disagree_are_found() {
    let in_meta = |key: Vec<u8>| [&b"a"[..], &key].concat();
    let token = || in_meta(token_key(TokenDigest::of(&push_token())));
    let device = || in_meta(device_key(UserNo(1), "phone"));
    let finds = |plant: &dyn Fn(&Rows), named: &[&str]| finds_in(with_push_token, plant, named);
    finds(&|_| {}, &[]);
    finds(&|rows| rows.meta.remove(token()).unwrap(), &["user 1: the push token of device \"phone\" is not there"]);
    finds(&|rows| rows.meta.remove(device()).unwrap(), &["user 1: device \"phone\" does not know of its push token"]);
    finds(&|rows| rows.meta.insert(device(), [1, 2]).unwrap(), &["with the digest of its push token", "does not know"]);
    finds(&|rows| rows.meta.insert(token(), b"{}").unwrap(), &["a push token cannot be read", "is not there"]);
    let other = in_meta(token_key(TokenDigest::of(&PushToken::Fcm { token: "other".into() })));
    let row = RegisteredToken { user: 9, device: "d".into(), registered_at: NOON, token: push_token() }.encode();
    finds(&|rows| rows.meta.insert(other.clone(), row.clone()).unwrap(), &["a push token is not the one of its key"]);
    let named =
        &["of user 9, who does not exist", "user 9: device \"d\" does not know", "of device \"phone\" is not there"];
    finds(&|rows| rows.meta.insert(token(), row.clone()).unwrap(), named);
}

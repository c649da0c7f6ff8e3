//! The rules over rows in plain maps. That both stores follow them with their own rows is shown by the random histories of
//! `crates/store/tests`.
#![allow(clippy::unwrap_used)]

use super::*;
use std::collections::{HashMap, HashSet};

const NOW: u64 = 1_000;
const ANN: UserNo = UserNo(1);
const BEN: UserNo = UserNo(2);
const CLEO: UserNo = UserNo(3);
const ROOM: ConversationNo = ConversationNo(1);
const OTHER_ROOM: ConversationNo = ConversationNo(2);

#[derive(Default)]
struct Rows {
    first_results: HashMap<(ConversationNo, UserNo, String), FirstResult>,
    just_left: HashSet<(ConversationNo, UserNo)>,
    heads: HashMap<ConversationNo, Head>,
    entries: HashMap<(ConversationNo, u64), StoredEntry>,
    chat_rows: HashMap<Vec<u8>, Vec<u8>>,
    position: Position,
    users: Vec<User>,
    user_nos: HashMap<String, UserNo>,
    conversations: HashMap<ConversationNo, Conversation>,
    conversation_nos: HashMap<String, ConversationNo>,
    memberships: HashMap<(ConversationNo, UserNo), Membership>,
}

impl StagedRows<'_> for Rows {
    type SendKey = (ConversationNo, UserNo, String);

    fn send_key(&self, conversation: ConversationNo, author: UserNo, client_msg_id: &str) -> Self::SendKey {
        (conversation, author, client_msg_id.to_owned())
    }
    fn first_result(&self, key: &Self::SendKey) -> StoreResult<Option<FirstResult>> {
        Ok(self.first_results.get(key).copied())
    }
    fn has_just_left(&self, conversation: ConversationNo, user: UserNo) -> bool {
        self.just_left.contains(&(conversation, user))
    }
    fn head(&self, conversation: ConversationNo) -> StoreResult<Option<Head>> {
        Ok(self.heads.get(&conversation).copied())
    }
    fn next_position(&mut self) -> Position {
        self.position += 1;
        self.position
    }
    fn append(
        &mut self,
        entry: Cow<'_, NewEntry>,
        appended: Appended,
        head: Head,
        send: Option<Self::SendKey>,
    ) -> StoreResult<()> {
        let Appended { conversation, seq, at, position, .. } = appended;
        let first = FirstResult { appended: Appended { duplicate: true, ..appended }, request: entry.request.digest };
        self.entries.insert((conversation, seq), StoredEntry { seq, position, at, content: entry.into_owned() });
        self.heads.insert(appended.conversation, head);
        self.first_results.extend(send.map(|send| (send, first)));
        Ok(())
    }
    fn entry(&self, conversation: ConversationNo, seq: u64) -> StoreResult<Option<StoredEntry>> {
        Ok(self.entries.get(&(conversation, seq)).cloned())
    }
    fn put_entry(&mut self, conversation: ConversationNo, entry: StoredEntry) -> StoreResult<()> {
        self.entries.insert((conversation, entry.seq), entry);
        Ok(())
    }
    fn chat_row(&self, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        Ok(self.chat_rows.get(key).cloned())
    }
    fn put_chat_row(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        match value {
            Some(value) => drop(self.chat_rows.insert(key, value)),
            None => drop(self.chat_rows.remove(&key)),
        }
    }
    fn is_user(&self, no: UserNo) -> StoreResult<bool> {
        Ok(self.user_nos.values().any(|known| *known == no))
    }
    fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>> {
        Ok(self.user_nos.get(id).copied())
    }
    fn user(&self, no: UserNo) -> StoreResult<Option<User>> {
        Ok(self.users.iter().find(|user| user.no == no).cloned())
    }
    fn new_user_no(&mut self, id: &str) -> UserNo {
        let no = UserNo(self.user_nos.len() as u64 + 1);
        self.user_nos.insert(id.to_owned(), no);
        no
    }
    fn put_user(&mut self, user: User) {
        self.users.retain(|known| known.no != user.no);
        self.users.push(user);
    }
    fn put_revoked(&mut self, user: User) {
        self.put_user(user);
    }
    fn put_last_seen(&mut self, _: UserNo, _: u64) {}
    fn conversation_no(&self, id: &str) -> StoreResult<Option<ConversationNo>> {
        Ok(self.conversation_nos.get(id).copied())
    }
    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>> {
        Ok(self.conversations.get(&no).cloned())
    }
    fn new_conversation_no(&mut self, id: &str) -> ConversationNo {
        let no = ConversationNo(self.conversation_nos.len() as u64 + 1);
        self.conversation_nos.insert(id.to_owned(), no);
        no
    }
    fn create_conversation(&mut self, conversation: Conversation) {
        self.heads.insert(conversation.no, Head { first_seq: 1, ..Head::default() });
        self.put_conversation(conversation);
    }
    fn put_conversation(&mut self, conversation: Conversation) {
        self.conversations.insert(conversation.no, conversation);
    }
    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        Ok(self.memberships.get(&(conversation, user)).cloned())
    }
    fn add_member(&mut self, conversation: &Conversation, user: UserNo, membership: Membership) {
        self.just_left.remove(&(conversation.no, user));
        self.put_membership(conversation.no, user, membership);
    }
    fn put_membership(&mut self, conversation: ConversationNo, user: UserNo, membership: Membership) {
        self.memberships.insert((conversation, user), membership);
    }
    fn remove_member(&mut self, conversation: &Conversation, user: UserNo) {
        self.just_left.insert((conversation.no, user));
        self.memberships.remove(&(conversation.no, user));
    }
    fn forget_send(&mut self, _: ConversationNo, _: UserNo, _: &str) -> StoreResult<()> {
        Ok(())
    }
    fn rename_conversation(&mut self, _: &str, _: Conversation) {}
    fn erase_user(&mut self, _: &str, _: User) {}
    fn advance_outbox(&mut self, _: Position, _: &[StoredNotification]) -> StoreResult<()> {
        Ok(())
    }
    fn delete_notifications(&mut self, _: &[NotificationKey]) {}
}

impl Rows {
    /// Ann, Ben and Cleo, and two rooms of Ann and Ben.
    fn with_two_rooms() -> Rows {
        let mut rows = Rows::default();
        let patch = |id: &str| UserPatch { id: id.into(), ..UserPatch::default() };
        let users = Proposal::PutUsers(["ann", "ben", "cleo"].map(patch).into());
        assert_eq!(rows.decide(users), Outcome::Users { created: 3, updated: 0 });
        for id in ["room", "other-room"] {
            rows.decide(Proposal::CreateConversation(room(id, &[(ANN, Role::Owner), (BEN, Role::Member)])));
        }
        rows
    }

    fn decide(&mut self, proposal: Proposal) -> Outcome {
        decide(self, &proposal, NOW).unwrap()
    }

    /// Sends as this user; answers the entry's `seq`, position and whether it was there before.
    fn send(
        &mut self,
        conversation: ConversationNo,
        sender: UserNo,
        id: &str,
    ) -> Result<(u64, Position, bool), Rejection> {
        let entry = entry(sender, id);
        match self.decide(Proposal::Append { conversation, entry }) {
            Outcome::Appended(appended) => Ok((appended.seq, appended.position, appended.duplicate)),
            Outcome::Rejected(rejection) => Err(rejection),
            other => panic!("{other:?}"),
        }
    }

    fn change_members(&mut self, add: &[(UserNo, Role)], remove: &[UserNo], members_max: u64) -> Outcome {
        let notice = Some(entry(BEN, "notice"));
        let (add, remove) = (add.to_vec(), remove.to_vec());
        self.decide(Proposal::ChangeMembers {
            heir: None,
            act: None,
            conversation: ROOM,
            add,
            remove,
            members_max,
            notice,
        })
    }
}

fn room(id: &str, members: &[(UserNo, Role)]) -> NewConversation {
    let (kind, members) = (ConversationKind::Group, members.to_vec());
    NewConversation {
        id: id.into(),
        kind,
        pair: None,
        name: None,
        avatar: None,
        attributes: None,
        members,
        settings: ConversationSettings::default(),
    }
}

fn entry(sender: UserNo, id: &str) -> NewEntry {
    NewEntry {
        kind: EntryKind::Message,
        sender: Some(Sender { no: sender, id: format!("user-{}", sender.0) }),
        client_msg_id: Some(id.into()),
        content_type: "text".into(),
        body: "{}".into(),
        mentions: vec![],
        silent: false,
        skip_push: false,
        details: None,
        request: EntryRequest::default(),
    }
}

#[test]
fn a_retry_answers_with_the_first_result_and_takes_no_position() {
    let mut rows = Rows::with_two_rooms();
    assert_eq!(rows.send(ROOM, ANN, "a"), Ok((1, 1, false)));
    assert_eq!(rows.send(ROOM, ANN, "a"), Ok((1, 1, true)));
    assert_eq!(rows.send(ConversationNo(9), ANN, "b"), Err(Rejection::NoSuchConversation));
    assert_eq!(rows.send(OTHER_ROOM, ANN, "a"), Ok((1, 2, false)), "the id in another conversation");
    assert_eq!(rows.send(OTHER_ROOM, BEN, "a"), Ok((2, 3, false)), "another sender's id");
    assert_eq!(rows.send(ROOM, BEN, "b"), Ok((2, 4, false)));
}

#[test]
fn the_time_of_entries_never_decreases() {
    let mut rows = Rows::with_two_rooms();
    let times = [NOW, NOW - 1, NOW + 1].map(|now_ms| {
        let append = Proposal::Append { conversation: ROOM, entry: entry(ANN, &now_ms.to_string()) };
        match decide(&mut rows, &append, now_ms).unwrap() {
            Outcome::Appended(appended) => appended.at,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(times, [NOW, NOW, NOW + 1]);
}

#[test]
fn a_member_who_has_just_left_cannot_send_but_is_named_in_the_notice() {
    let mut rows = Rows::with_two_rooms();
    assert_eq!(rows.send(ROOM, BEN, "a"), Ok((1, 1, false)));
    let Outcome::MembersChanged { removed, notice, .. } = rows.change_members(&[], &[BEN], 10) else { panic!() };
    assert_eq!((removed, notice.map(|notice| notice.seq)), (vec![BEN], Some(2)));
    assert_eq!(rows.send(ROOM, BEN, "b"), Err(Rejection::NotAMember));
    assert_eq!(rows.send(ROOM, BEN, "a"), Ok((1, 1, true)), "a retry of what was stored before");
    assert_eq!(rows.send(OTHER_ROOM, BEN, "b"), Ok((1, 3, false)));
    rows.decide(Proposal::ChangeMembers {
        heir: None,
        act: None,
        conversation: ROOM,
        add: vec![(BEN, Role::Member)],
        remove: vec![],
        members_max: 10,
        notice: None,
    });
    assert_eq!(rows.send(ROOM, BEN, "c"), Ok((3, 4, false)));
}

#[test]
fn members_are_counted_and_a_full_room_still_lets_members_go() {
    let mut rows = Rows::with_two_rooms();
    let too_many = Rejection::TooManyMembers { limit: 2, would_be: 3 };
    assert_eq!(rows.change_members(&[(CLEO, Role::Member)], &[], 2), Outcome::Rejected(too_many));
    let unknown = UserNo(4);
    let no_such_user = Outcome::Rejected(Rejection::NoSuchUser(unknown));
    assert_eq!(rows.change_members(&[(unknown, Role::Member)], &[], 10), no_such_user);
    let changes = |outcome: Outcome| match outcome {
        Outcome::MembersChanged { added, removed, changed, member_count, .. } => {
            (added, removed, changed, member_count)
        }
        other => panic!("{other:?}"),
    };
    // Who is named twice gets the role named last.
    let add = [(CLEO, Role::Member), (BEN, Role::Admin), (CLEO, Role::Admin)];
    assert_eq!(changes(rows.change_members(&add, &[], 3)), (vec![CLEO], vec![], vec![BEN], 3));
    assert_eq!(rows.memberships[&(ROOM, CLEO)].role, Role::Admin);
    assert_eq!(changes(rows.change_members(&[], &[CLEO, CLEO, unknown], 1)), (vec![], vec![CLEO], vec![], 2));
    assert_eq!(rows.conversations[&ROOM].member_count, 2);
    let Outcome::MembersChanged { notice, .. } = rows.change_members(&[], &[CLEO], 1) else { panic!() };
    assert_eq!(notice, None, "nothing has changed");
}

#[test]
fn a_read_mark_moves_forward_and_never_past_the_head() {
    let mut rows = Rows::with_two_rooms();
    for id in ["a", "b", "c"] {
        rows.send(ROOM, ANN, id).unwrap();
    }
    for (seq, expected) in [(2, (2, 0)), (1, (2, 2)), (9, (3, 2))] {
        let outcome = rows.decide(Proposal::MarkRead { conversation: ROOM, user: BEN, seq });
        assert_eq!(outcome, Outcome::Read { seq: expected.0, before: expected.1 });
    }
    let outcome = rows.decide(Proposal::MarkRead { conversation: ROOM, user: CLEO, seq: 1 });
    assert_eq!(outcome, Outcome::Rejected(Rejection::NotAMember));
}

#[test]
fn an_id_names_one_conversation_of_one_kind() {
    let mut rows = Rows::with_two_rooms();
    let new = room("room", &[(CLEO, Role::Owner)]);
    let Outcome::Conversation { conversation, created: false } = rows.decide(Proposal::CreateConversation(new.clone()))
    else {
        panic!()
    };
    assert_eq!((conversation.no, conversation.member_count), (ROOM, 2));
    let official = NewConversation { kind: ConversationKind::Official, ..new };
    let outcome = rows.decide(Proposal::CreateConversation(official));
    assert_eq!(outcome, Outcome::Rejected(Rejection::KindDiffers));
}

#[test]
fn a_time_of_revocation_never_goes_back() {
    let mut rows = Rows::with_two_rooms();
    for (before, expected) in [(5, 5), (3, 5), (7, 7)] {
        rows.decide(Proposal::Revoke { user: ANN, before, reason: String::new() });
        assert_eq!(rows.user(ANN).unwrap().unwrap().revoked_at, expected);
    }
}

#[test]
fn a_number_without_a_row_fails_the_batch() {
    let mut rows = Rows::with_two_rooms();
    rows.users.clear();
    let patch = UserPatch { id: "ann".into(), ..UserPatch::default() };
    let error = decide(&mut rows, &Proposal::PutUsers(vec![patch]), NOW).unwrap_err();
    assert_eq!(error.to_string(), "the store is damaged: user ann has a number and no row");
}

//! Accounts that answer: their agents, the assignment of their conversations, and the index of these.

use super::*;
use std::cell::Cell;
use tidings_domain::{chat_rows, desks::*};

pub(super) const CHECKS: &[Check] = &[
    ("an account has a user of its own", own_user),
    ("agents come and go", agents),
    ("a conversation is assigned to one of two agents", assigned),
    ("the index follows entries and assignments, also within a batch", index),
    ("what is for the customer alone lists no conversation, and moves a listed one", for_customer),
    ("entries of removed agents are refused", removed),
    ("agents have client message ids of their own", ids),
];

const AGENTS_MAX: u32 = 3;

fn user(no: UserNo) -> Sender {
    Sender { no, id: format!("u{}", no.0) }
}

fn set_desk(account: ConversationNo, patch: DeskPatch) -> Proposal {
    Proposal::SetDesk { account, id: "shop".into(), patch, agents_max: AGENTS_MAX, adopts_user: false }
}

fn adding(users: &[UserNo]) -> DeskPatch {
    DeskPatch { add: users.iter().map(|no| user(*no)).collect(), ..DeskPatch::default() }
}

fn removing(no: UserNo) -> DeskPatch {
    DeskPatch { remove: vec![no], ..DeskPatch::default() }
}

/// An account with two agents, and a conversation of it.
struct Shop {
    users: Vec<UserNo>,
    account: ConversationNo,
    room: ConversationNo,
    own: Sender,
}

impl Shop {
    fn on(store: &dyn Store) -> Shop {
        let users = users(store, 5);
        let account = create(store, "shop", ConversationKind::Official, &users[..1]);
        let Outcome::Desk(desk) = commit(store, set_desk(account, adding(&users[1..3]))) else { panic!("no desk") };
        let own = desk.user;
        let room = create(store, "shop~u1", ConversationKind::Direct, &[own.no, users[0]]);
        Shop { users, account, room, own }
    }

    fn details(&self, kind: EntryKind, agent: Option<Sender>) -> Option<Box<EntryDetails>> {
        let desk = Some(EntryDesk { agent, ..EntryDesk::of(self.account) });
        Some(Box::new(EntryDetails { desk, ..EntryDetails::of(kind) }))
    }

    fn of_customer(&self, id: &str) -> NewEntry {
        NewEntry { details: self.details(EntryKind::Message, None), ..message(self.users[0], id) }
    }

    fn of_agent(&self, agent: UserNo, id: &str) -> NewEntry {
        let sender = Some(self.own.clone());
        NewEntry { sender, details: self.details(EntryKind::Message, Some(user(agent))), ..message(agent, id) }
    }

    fn assign(&self, to: Option<UserNo>, expected: Option<Option<UserNo>>) -> Proposal {
        let kind = EntryKind::Assignment;
        let entry = NewEntry { details: self.details(kind, None), ..notice(kind) };
        let to = to.map(user);
        Proposal::Assign { conversation: self.room, account: self.account, to, expected, entry }
    }

    /// The conversations of a part of the index, the newest first.
    fn part(&self, store: &dyn Store, whose: Whose) -> Vec<(Position, ConversationNo)> {
        let key = |newest, no| index_key(self.account, whose, newest, ConversationNo(no));
        let rows = store.rows(RowSpace::Chat, &key(Position::MAX, 0), &key(0, u64::MAX), 100).unwrap();
        rows.iter().map(|(key, _)| indexed(key).unwrap()).collect()
    }
}

fn own_user(store: &dyn Store) {
    let u = users(store, 2);
    let account = create(store, "shop", ConversationKind::Official, &u[..1]);
    let of_user = |adopts_user| {
        let patch = DeskPatch::default();
        Proposal::SetDesk { account, id: "u2".into(), patch, agents_max: AGENTS_MAX, adopts_user }
    };
    assert_eq!(commit(store, of_user(false)), Outcome::Rejected(Rejection::UserExists("u2".into())));
    let other = create(store, "u2", ConversationKind::Official, &u[..1]);
    let Proposal::SetDesk { id, patch, .. } = of_user(true) else { return };
    let adopted = Proposal::SetDesk { account: other, id, patch, agents_max: AGENTS_MAX, adopts_user: true };
    let Outcome::Desk(desk) = commit(store, adopted) else { panic!("no desk") };
    assert_eq!(desk.user, user(u[1]));
    let nowhere = set_desk(ConversationNo(99), DeskPatch::default());
    assert_eq!(commit(store, nowhere), Outcome::Rejected(Rejection::NoSuchConversation));
    let Outcome::Desk(desk) = commit(store, set_desk(account, adding(&[u[1]]))) else { panic!("no desk") };
    let own = store.user_no("shop").unwrap().unwrap();
    let expected = Desk {
        user: Sender { no: own, id: "shop".into() },
        open_to: OpenTo::Followers,
        shows_agents: false,
        agents: 1,
    };
    assert_eq!(desk, expected);
    assert_eq!(store.user(own).unwrap().map(|user| user.id), Some("shop".into()));
    let patch = DeskPatch { open_to: Some(OpenTo::Anyone), shows_agents: Some(true), ..DeskPatch::default() };
    let expected = Desk { open_to: OpenTo::Anyone, shows_agents: true, ..desk };
    assert_eq!(commit(store, set_desk(account, patch)), Outcome::Desk(expected.clone()));
    let row = store.row(RowSpace::Chat, &desk_key(account)).unwrap();
    assert_eq!(chat_rows::decode::<Option<Desk>>(row.as_deref()).unwrap(), Some(expected));
}

fn agents(store: &dyn Store) {
    let shop = Shop::on(store);
    let (u, account) = (&shop.users, shop.account);
    let count = |patch| match commit(store, set_desk(account, patch)) {
        Outcome::Desk(desk) => Ok(desk.agents),
        Outcome::Rejected(rejection) => Err(rejection),
        other => panic!("{other:?}"),
    };
    assert_eq!(count(adding(&[u[1], u[3], u[3]])), Ok(3), "one is new");
    assert_eq!(count(adding(&[u[4]])), Err(Rejection::TooManyAgents { limit: 3, would_be: 4 }));
    assert_eq!(count(removing(u[3])), Ok(2));
    assert_eq!(count(removing(u[3])), Ok(2), "removed already");
    assert_eq!(count(adding(&[u[3]])), Err(Rejection::AgentLeaves("u4".into())));
    let forget = |no| DeskPatch { forget: vec![no], ..DeskPatch::default() };
    assert_eq!(count(forget(u[1])), Ok(2), "only who was removed is forgotten");
    assert_eq!(count(forget(u[3])), Ok(2));
    assert_eq!(count(adding(&[u[3]])), Ok(3));
}

fn assigned(store: &dyn Store) {
    let shop = Shop::on(store);
    let (first, second) = (shop.users[1], shop.users[2]);
    commit(store, append(shop.room, shop.of_customer("a")));
    let Outcome::Assigned { told: Some((appended, entry)) } = commit(store, shop.assign(Some(first), Some(None)))
    else {
        panic!("not assigned")
    };
    let assigned = KindDetails::Assignment { to: Some(user(first)) };
    assert_eq!((appended.seq, &entry.details.as_ref().unwrap().of_kind), (2, &assigned));
    let again = commit(store, shop.assign(Some(first), Some(None)));
    assert_eq!(again, Outcome::Assigned { told: None }, "a retry");
    let late = commit(store, shop.assign(Some(second), Some(None)));
    assert_eq!(late, Outcome::Rejected(Rejection::AssignedTo(Some("u2".into()))));
    let stranger = commit(store, shop.assign(Some(shop.users[4]), None));
    assert_eq!(stranger, Outcome::Rejected(Rejection::NotAnAgent("u5".into())));
    assert!(matches!(commit(store, shop.assign(Some(second), None)), Outcome::Assigned { told: Some(_) }));
    assert!(matches!(commit(store, shop.assign(None, Some(Some(second)))), Outcome::Assigned { told: Some(_) }));
    let late = commit(store, shop.assign(None, Some(Some(second))));
    assert_eq!(late, Outcome::Assigned { told: None }, "nobody has it already");
    assert_eq!(store.head(shop.room).unwrap().last_seq, 4);
    let row = store.row(RowSpace::Chat, &assignment_key(shop.room)).unwrap();
    let unassigned = Assignment { account: shop.account, agent: None };
    assert_eq!(chat_rows::decode::<Option<Assignment>>(row.as_deref()).unwrap(), Some(unassigned));
}

/// A conversation with its number in the index.
fn newest(store: &dyn Store, room: ConversationNo) -> (u64, ConversationNo) {
    let Head { last_position, last_at, .. } = store.head(room).unwrap();
    (if store.orders() == Orders::ONE { last_position } else { last_at }, room)
}

fn index(store: &dyn Store) {
    let shop = Shop::on(store);
    let (agent, own) = (shop.users[1], shop.own.no);
    let other = create(store, "shop~u5", ConversationKind::Direct, &[own, shop.users[4]]);
    assert_eq!(shop.part(store, Whose::Anyones), [], "nothing was said yet");
    let said = |id: &str| append(shop.room, shop.of_customer(id));
    // The second message and the assignment move what the first one has just put into the index.
    let batch = [said("a"), append(other, shop.of_customer("x")), said("b"), shop.assign(Some(agent), None)];
    store.commit(&batch, NOON).unwrap();
    let newest = |room| newest(store, room);
    let sorted = |mut part: Vec<_>| {
        part.sort_unstable();
        part
    };
    // In a store of several orders both have the same number.
    assert_eq!(sorted(shop.part(store, Whose::Anyones)), sorted(vec![newest(shop.room), newest(other)]));
    let time = Cell::new(NOON);
    let commit = |store: &dyn Store, proposal| {
        time.set(time.get() + 1);
        commit_at(store, proposal, time.get())
    };
    assert_eq!(shop.part(store, Whose::Agents(agent)), [newest(shop.room)]);
    assert_eq!(shop.part(store, Whose::Nobodys), [newest(other)]);
    commit(store, append(other, shop.of_agent(agent, "y")));
    assert_eq!(shop.part(store, Whose::Anyones), [newest(other), newest(shop.room)]);
    commit(store, shop.assign(None, None));
    assert_eq!(shop.part(store, Whose::Anyones), [newest(shop.room), newest(other)]);
    assert_eq!(shop.part(store, Whose::Nobodys), [newest(shop.room), newest(other)]);
    assert_eq!(shop.part(store, Whose::Agents(agent)), []);
    let react = |key: &str| Proposal::React {
        conversation: shop.room,
        target: 1,
        user: user(shop.users[0]),
        key: key.into(),
        add: true,
        keys_max: 9,
        interval_ms: 1_000,
    };
    commit(store, append(other, shop.of_customer("z")));
    commit(store, react("+1"));
    assert_eq!(shop.part(store, Whose::Anyones)[0], newest(shop.room), "moved by the entry of the reaction");
    let recall = Proposal::ChangeMessage {
        conversation: shop.room,
        target: 1,
        change: MessageChange::Recall,
        entry: NewEntry { body: "null".into(), ..notice(EntryKind::Recall) },
    };
    commit(store, append(other, shop.of_customer("zz")));
    commit(store, recall);
    assert_eq!(shop.part(store, Whose::Nobodys), [newest(shop.room), newest(other)]);
    commit(store, append(other, shop.of_customer("zz")));
    assert_eq!(shop.part(store, Whose::Nobodys)[0], newest(shop.room), "a retry moves nothing");
}

fn for_customer(store: &dyn Store) {
    let shop = Shop::on(store);
    let offer = |id: &str| {
        let mut entry = shop.of_customer(id);
        (entry.sender, entry.client_msg_id) = (Some(shop.own.clone()), Some(id.to_owned()));
        entry.details_mut().desk.as_mut().unwrap().for_customer = true;
        append(shop.room, entry)
    };
    let edit = |target| Proposal::ChangeMessage {
        conversation: shop.room,
        target,
        change: MessageChange::Edit { if_version: None, edits_max: 9, keep_replaced: false },
        // From a node that does not know yet that the account answers.
        entry: NewEntry { client_msg_id: None, ..NewEntry { kind: EntryKind::Edit, ..message(shop.users[0], "e") } },
    };
    let newest = || newest(store, shop.room);
    commit(store, offer("a"));
    let edited = commit(store, edit(1));
    assert!(matches!(edited, Outcome::MessageChanged { .. }), "{edited:?}");
    assert_eq!(shop.part(store, Whose::Anyones), [], "nobody has answered yet");
    commit(store, append(shop.room, shop.of_customer("b")));
    assert_eq!(shop.part(store, Whose::Anyones), [newest()]);
    commit(store, offer("c"));
    assert_eq!(shop.part(store, Whose::Nobodys), [newest()]);
    commit(store, edit(1));
    assert_eq!(shop.part(store, Whose::Anyones), [newest()], "one line");
    let plain = NewEntry { details: None, ..shop.of_customer("d") };
    let early = create(store, "shop~u5", ConversationKind::Direct, &[shop.own.no, shop.users[4]]);
    commit_at(store, append(early, plain), NOON + 1);
    commit_at(store, append(early, shop.of_customer("e")), NOON + 1);
    let edit = match edit(1) {
        Proposal::ChangeMessage { target, change, entry, .. } => {
            Proposal::ChangeMessage { conversation: early, target, change, entry }
        }
        other => other,
    };
    commit_at(store, edit, NOON + 1);
    let newest_early = self::newest(store, early);
    assert_eq!(
        shop.part(store, Whose::Anyones),
        [newest_early, newest()],
        "of a message from before the account had agents"
    );
}

fn removed(store: &dyn Store) {
    let shop = Shop::on(store);
    let agent = shop.users[1];
    commit(store, append(shop.room, shop.of_agent(agent, "a")));
    commit(store, set_desk(shop.account, removing(agent)));
    let refused = Outcome::Rejected(Rejection::NotAMember);
    assert_eq!(commit(store, append(shop.room, shop.of_agent(agent, "b"))), refused);
    assert!(appended(&commit(store, append(shop.room, shop.of_agent(agent, "a")))).duplicate, "stored before");
    let stranger = shop.of_agent(shop.users[4], "c");
    assert_eq!(commit(store, append(shop.room, stranger)), refused);
    assert!(!appended(&commit(store, append(shop.room, shop.of_agent(shop.users[2], "d")))).duplicate);
}

fn ids(store: &dyn Store) {
    let shop = Shop::on(store);
    let send = |agent| appended(&commit(store, append(shop.room, shop.of_agent(agent, "1"))));
    let (first, second) = (send(shop.users[1]), send(shop.users[2]));
    assert_eq!((first.seq, second.seq, second.duplicate), (1, 2, false));
    let again = send(shop.users[1]);
    assert_eq!((again.seq, again.duplicate), (1, true));
}

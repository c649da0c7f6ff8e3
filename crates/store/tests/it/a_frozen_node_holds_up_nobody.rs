//! A node is frozen at each answer that it waits for, with its connections open: a stopped process, a machine that is moved.
//! What others do meanwhile is done, though the frozen node does not go on. When it goes on, both agree.

use crate::support::{freezable_link::FreezableLink, postgres::*, *};
use crossbeam_channel::bounded;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tidings_domain::{commit_log::*, function::Function, model::*, store::*};
use tidings_store::{PostgresOptions, PostgresStore};

/// Others that take longer wait for the frozen node. Nothing else can end such a wait: the database's limits are much longer.
const PATIENCE: Duration = Duration::from_secs(300);

/// The node that is frozen, at an answer between [`FrozenNode::begin`] and [`FrozenNode::end`].
struct FrozenNode<'a> {
    link: &'a FreezableLink,
    options: PostgresOptions,
    round: u64,
}

impl FrozenNode<'_> {
    fn open(&self) -> PostgresStore {
        PostgresStore::open(self.options.clone()).unwrap()
    }

    fn begin(&self) {
        self.link.freeze_after(self.round);
    }

    fn end(&self) {
        self.link.thaw();
    }
}

/// Freezes a node while it does `frozen`, at its first answer, its second one, and so on to the last; in each round `others`
/// must be done while it stays frozen. Answers the number of rounds.
fn check(
    options: impl Fn(&str) -> PostgresOptions,
    prepare: impl Fn(&str),
    frozen: impl Fn(&FrozenNode<'_>) + Sync,
    others: impl Fn(&str, u64) + Send + Sync + 'static,
) -> u64 {
    let server = PostgresServer::shared();
    let link = FreezableLink::to(server.folder());
    let others = Arc::new(others);
    for round in 0.. {
        // A database for each round: a new node has no prepared statements, and so the same answers in the same order.
        let url = server.database();
        prepare(&url);
        let node = FrozenNode { link: &link, options: options(&link.url(&url)), round };
        let ended = AtomicBool::new(false);
        let was_frozen = std::thread::scope(|scope| {
            scope.spawn(|| {
                scopeguard::defer! { ended.store(true, Ordering::Release) }
                frozen(&node);
            });
            let was_frozen = link.wait_until_frozen(|| ended.load(Ordering::Acquire));
            if was_frozen {
                let (done, is_done) = bounded(1);
                let (others, url) = (others.clone(), url.clone());
                std::thread::spawn(move || {
                    others(&url, round);
                    let _ = done.send(());
                });
                let waited = is_done.recv_timeout(PATIENCE);
                link.thaw();
                assert!(waited.is_ok(), "a node frozen at its answer {round} holds up others");
            }
            was_frozen
        });
        if !was_frozen {
            assert!(round > 0, "the node was never frozen");
            return round;
        }
    }
    unreachable!()
}

fn users(ids: &[&str]) -> Proposal {
    Proposal::PutUsers(ids.iter().map(|id| UserPatch { id: (*id).into(), ..UserPatch::default() }).collect())
}

fn new_conversation(id: &str, kind: ConversationKind, members: &[u64]) -> NewConversation {
    NewConversation {
        id: id.into(),
        kind,
        pair: (kind == ConversationKind::Direct).then(|| (UserNo(members[0]), UserNo(members[1]))),
        name: None,
        avatar: None,
        attributes: None,
        members: members.iter().map(|no| (UserNo(*no), Role::Member)).collect(),
        settings: ConversationSettings::default(),
    }
}

fn open_direct(id: &str, client_msg_id: &str) -> Proposal {
    let new = Box::new(new_conversation(id, ConversationKind::Direct, &[1, 2]));
    Proposal::OpenDirect { new, entry: message(client_msg_id) }
}

fn add_member(conversation: ConversationNo, user: UserNo) -> Proposal {
    let (add, notice) = (vec![(user, Role::Member)], Some(message(&format!("joined-{}", user.0))));
    Proposal::ChangeMembers { conversation, add, remove: vec![], heir: None, act: None, members_max: 100, notice }
}

/// A room of three users, and two users more.
fn populated(url: &str) {
    let store = open_at(url);
    populate(&store);
    store.commit(&[users(&["u4", "u5"])], NOON).unwrap();
}

fn room(store: &dyn Store) -> ConversationNo {
    store.conversation_no("g").unwrap().unwrap()
}

fn user(store: &dyn Store, id: &str) -> UserNo {
    store.user_no(id).unwrap().unwrap()
}

#[test]
fn while_it_creates_users_and_opens_conversations() {
    let rounds = check(
        options_at,
        populated,
        |node| {
            let store = node.open();
            // Statements that are prepared already have no answers of their own.
            store
                .commit(&[users(&["before"]), open_direct("u2~u3", "before"), append(room(&store), "a")], NOON)
                .unwrap();
            node.begin();
            let batch = [
                users(&["both-a", "mine", "both-b"]),
                Proposal::CreateConversation(new_conversation("both", ConversationKind::Group, &[1, 2, 3])),
                open_direct("u1~u2", "mine"),
                append(room(&store), "mine too"),
            ];
            let outcomes = store.commit(&batch, NOON).unwrap();
            node.end();
            let numbers: BTreeSet<_> = ["u5", "both-a", "mine", "both-b", "theirs"]
                .iter()
                .filter_map(|id| store.user_no(id).unwrap())
                .collect();
            assert!(numbers.len() >= 4, "{numbers:?}");
            // Whoever was first, the numbers are those that all nodes see.
            let Outcome::Conversation { conversation, .. } = &outcomes[1] else { panic!("{:?}", outcomes[1]) };
            assert_eq!(store.conversation_no("both").unwrap(), Some(conversation.no));
            assert!(outcomes.iter().all(|outcome| !matches!(outcome, Outcome::Rejected(_))), "{outcomes:?}");
        },
        |url, _| {
            let store = open_at(url);
            let batch = [
                users(&["both-b", "theirs", "both-a"]),
                Proposal::CreateConversation(new_conversation("both", ConversationKind::Group, &[1, 2, 3])),
                open_direct("u1~u2", "theirs"),
                open_direct("u1~u3", "theirs too"),
                append(room(&store), "and theirs"),
            ];
            let outcomes = store.commit(&batch, NOON).unwrap();
            assert!(outcomes.iter().all(|outcome| !matches!(outcome, Outcome::Rejected(_))), "{outcomes:?}");
        },
    );
    println!("frozen at {rounds} answers");
}

#[test]
fn while_it_changes_a_conversation_that_others_change_too() {
    let rounds = check(
        options_at,
        populated,
        |node| {
            let store = node.open();
            let room = room(&store);
            let before = [users(&["u1"]), append(room, "before"), add_member(room, UserNo(1))];
            store.commit(&before, NOON).unwrap();
            node.begin();
            let read = Proposal::MarkRead { conversation: room, user: UserNo(1), seq: u64::MAX };
            let batch = [
                users(&["u1"]),
                append(room, "mine"),
                add_member(room, user(&store, "u4")),
                read,
                append(room, "shared"),
            ];
            let outcomes = store.commit(&batch, NOON).unwrap();
            node.end();
            assert!(outcomes.iter().all(|outcome| !matches!(outcome, Outcome::Rejected(_))), "{outcomes:?}");
            let ids = stored_ids(&store, room);
            assert_eq!(ids.iter().filter(|id| *id == "shared").count(), 1, "{ids:?}");
            assert_eq!(store.head(room).unwrap().last_seq, ids.len() as u64);
            let members = store.conversation(room).unwrap().unwrap().member_count;
            assert_eq!(members as usize, store.members(room, None, 100).unwrap().len());
        },
        |url, _| {
            let store = open_at(url);
            let room = room(&store);
            let mute = Proposal::SetMute { conversation: room, user: UserNo(1), mute: MuteState::Forever };
            let profile = UserPatch { id: "u1".into(), name: Some("Ann".into()), ..UserPatch::default() };
            for batch in [
                vec![append(room, "shared")],
                vec![append(room, "theirs"), add_member(room, user(&store, "u5")), mute],
                vec![Proposal::PutUsers(vec![profile])],
            ] {
                let outcomes = store.commit(&batch, NOON).unwrap();
                assert!(outcomes.iter().all(|outcome| !matches!(outcome, Outcome::Rejected(_))), "{outcomes:?}");
            }
        },
    );
    println!("frozen at {rounds} answers");
}

#[test]
fn while_it_takes_its_locks_first_for_longer_than_the_databases_limit() {
    // The others change what the node was decided over, so that from its second attempt on it takes its locks first.
    let limit = Duration::from_millis(100);
    let rounds = check(
        |url| PostgresOptions { idle_in_transaction_timeout: limit, ..options_at(url) },
        populated,
        |node| {
            let store = node.open();
            let rival = open_at(&node.options.url);
            let room = room(&store);
            let read = |seq| Proposal::MarkRead { conversation: room, user: UserNo(1), seq };
            // A node whose rows were changed between its load and its commit.
            let changed = (0..1_000).any(|n| {
                std::thread::scope(|scope| {
                    scope.spawn(|| rival.commit(&[append(room, &format!("rival-{n}")), read(1)], NOON).unwrap());
                    let before = store.statements();
                    let is_stored = store.commit(&[append(room, &format!("mine-{n}")), read(2)], NOON).is_ok();
                    // Its usual statements, and those of a second attempt.
                    is_stored && store.statements() - before > 6
                })
            });
            assert!(changed, "the nodes never met");
            // On a busy machine the limit may end a connection that waits for nobody; an answer that was lost is known after
            // a retry.
            let commit = |batch: &[Proposal]| {
                let mut left = 100;
                loop {
                    match store.commit(batch, NOON) {
                        Ok(outcomes) => return outcomes,
                        Err(error) => assert!(left > 0, "{error:?}"),
                    }
                    left -= 1;
                }
            };
            node.begin();
            let outcome = commit(&[append(room, "last"), read(3)]).remove(0);
            node.end();
            assert!(matches!(outcome, Outcome::Appended(_)), "{outcome:?}");
            assert_eq!(stored_ids(&store, room).iter().filter(|id| *id == "last").count(), 1);
        },
        |url, _| {
            let store = open_at(url);
            let room = room(&store);
            let read = Proposal::MarkRead { conversation: room, user: UserNo(1), seq: u64::MAX };
            store.commit(&[append(room, "theirs"), read], NOON).unwrap();
        },
    );
    println!("frozen at {rounds} answers");
}

#[test]
fn while_it_starts() {
    let rounds = check(
        options_at,
        |_| {},
        |node| {
            node.begin();
            let store = node.open();
            populate(&store);
            node.end();
            assert_eq!(store.epoch(), open_at(&node.options.url).epoch(), "one history");
        },
        |url, _| {
            let store = open_at(url);
            populate(&store);
            store.commit(&[append(room(&store), "theirs")], NOON).unwrap();
        },
    );
    println!("frozen at {rounds} answers");
}

#[test]
fn while_it_removes_old_messages() {
    let two_days = Retention { age_max: Some(Duration::from_millis(2 * DAY)), bytes_max: None };
    let rounds = check(
        options_at,
        |url| {
            let store = open_at(url);
            let room = populate(&store);
            for day in 0..5 {
                say(&store, room, (0..3).map(|n| format!("{day}-{n}")), NOON + day * DAY);
            }
        },
        move |node| {
            let store = node.open();
            node.begin();
            store.retain(two_days, NOON + 4 * DAY).unwrap();
            node.end();
            let ids = stored_ids(&store, room(&store));
            assert!(!ids.iter().any(|id| id.starts_with("0-")), "{ids:?}");
        },
        move |url, _| {
            let store = open_at(url);
            let room = room(&store);
            // A partition that is there, one that is not, and those that go.
            say(&store, room, ["today"], NOON + 4 * DAY);
            say(&store, room, ["tomorrow"], NOON + 6 * DAY);
            store.retain(two_days, NOON + 4 * DAY).unwrap();
            assert!(store.entries(room, 0, u64::MAX, 100, End::Oldest).unwrap().len() >= 8);
        },
    );
    println!("frozen at {rounds} answers");
}

#[test]
fn while_it_renews_its_lease_and_writes_as_the_leader() {
    fn node(name: &str, boot_id: u64) -> NodeInfo {
        NodeInfo { name: name.into(), boot_id, ..NodeInfo::default() }
    }
    let row = |key: &str| vec![RowChange { key: key.as_bytes().to_vec(), value: Some(b"value".to_vec()) }];
    let rounds = check(
        options_at,
        populated,
        move |frozen| {
            let store = frozen.open();
            frozen.begin();
            let view = store.heartbeat(&node("mine", 1), 1, &Function::ALL, true).unwrap();
            // Its lease is over at once: whether it still leads depends on when it goes on.
            let term = view.leader(Function::Push).map_or(Term::ALONE, |leader| leader.term);
            let _ = store.write_rows(term, RowSpace::Popups, row("key"));
            let _ = store.prune(0).unwrap();
            let _ = store.release_lease(1);
        },
        move |url, _| {
            let store = open_at(url);
            let deadline = std::time::Instant::now() + PATIENCE;
            let term = loop {
                let view = store.heartbeat(&node("theirs", 2), 60_000, &Function::ALL, true).unwrap();
                if let Some(leader) = view.leader(Function::Push).filter(|leader| leader.boot_id == 2) {
                    break leader.term;
                }
                assert!(std::time::Instant::now() < deadline, "the lease does not end");
            };
            store.write_rows(term, RowSpace::Popups, row("key")).unwrap();
            store.prune(0).unwrap();
        },
    );
    println!("frozen at {rounds} answers");
}

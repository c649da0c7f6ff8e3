//! Reads are served by a standby, and nobody notices: each answer is as new as the primary's, and a standby that is behind,
//! silent, gone, promoted or of another history costs a reader at most a moment.

use crate::support::{cuttable_link::CuttableLink, postgres::*, *};
use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};
use tidings_domain::{model::*, store::*};
use tidings_store::{PostgresOpenError, PostgresOptions, PostgresStore};

/// Far more than anything here takes.
const LONG: Duration = Duration::from_secs(120);

/// Makes a server's log longer without a commit that the store knows of.
const LENGTHEN_LOG: &str = "SELECT pg_logical_emit_message(true, 'test', repeat('x', 4000000))";

fn primary() -> PostgresServer {
    PostgresServer::start(&["fsync=off", "full_page_writes=off"])
}

fn name_of(url: &str) -> &str {
    url.rsplit('/').next().unwrap()
}

/// A node on the database `url` that reads from these.
fn node(url: &str, standbys: &[String]) -> PostgresStore {
    PostgresStore::open(PostgresOptions { read_urls: standbys.to_vec(), ..options_at(url) }).unwrap()
}

fn count(store: &PostgresStore, outcome: StandbyOutcome) -> u64 {
    store.stats().standby_reads.of(outcome)
}

/// Reads until a read has come to this outcome.
fn read_until(store: &PostgresStore, room: ConversationNo, outcome: StandbyOutcome) {
    let (before, deadline) = (count(store, outcome), Instant::now() + LONG);
    while count(store, outcome) == before {
        assert!(Instant::now() < deadline, "no read comes to {outcome:?}: {:?}", store.stats());
        stored_ids(store, room);
    }
}

/// A primary with a standby, a database, and a node that reads from the standby: `u1` to `u3` in a room.
struct Pair {
    node: PostgresStore,
    room: ConversationNo,
    url: String,
    standby_url: String,
    standby: PostgresServer,
    primary: PostgresServer,
}

impl Pair {
    fn new() -> Pair {
        let primary = primary();
        let standby = primary.standby(&["fsync=off"]);
        let url = primary.database();
        // The database has its tables, and the standby has them, before a node looks for them there.
        drop(open_at(&url));
        primary.wait_for_replay(&standby);
        let standby_url = standby.url(name_of(&url));
        let node = node(&url, std::slice::from_ref(&standby_url));
        let room = populate(&node);
        say(&node, room, ["a"], NOON);
        read_until(&node, room, StandbyOutcome::Served);
        Pair { node, room, url, standby_url, standby, primary }
    }

    fn replay(&self, does: &str) {
        self.standby.sql(&self.standby.url("postgres"), &format!("SELECT pg_wal_replay_{does}()"));
    }
}

#[test]
fn what_costs_most_is_read_from_the_standby() {
    let pair = Pair::new();
    let Pair { node, room, .. } = &pair;
    let reader = UserNo(1);
    let head = node.head(*room).unwrap();
    let tail = Tail {
        conversation: *room,
        floor_seq: 1,
        newest_seq: head.last_seq,
        newest_position: head.last_position,
        after: 0,
        until: head.last_position,
    };
    let reads: [(&str, &dyn Fn()); 8] = [
        ("entries", &|| assert_eq!(node.entries(*room, 1, 9, 9, End::Newest).unwrap().len(), 1)),
        ("pages", &|| {
            let page = PageRequest { conversation: *room, from_seq: 1, to_seq: 9, limit: 9 };
            assert_eq!(node.pages(&[page], 1_000).unwrap()[0].len(), 1);
        }),
        ("missed", &|| {
            let query = MissedQuery { entries_max: 9, bytes_max: 1_000, ranges: false };
            assert_eq!(node.missed(&[tail], query).unwrap().entries.len(), 1);
        }),
        ("states", &|| {
            assert_eq!(node.conversation_states(reader, ConversationFilter::All, 9).unwrap().len(), 1);
        }),
        ("heads", &|| assert_eq!(node.heads(&[*room]).unwrap(), [head])),
        ("members", &|| assert_eq!(node.members(*room, None, 9).unwrap().len(), 3)),
        ("ids", &|| assert_eq!(node.ids(NamedKind::User, "u", "", 9).unwrap().len(), 3)),
        ("feed", &|| assert!(!node.log_after(0, 100).unwrap().records.is_empty())),
    ];
    for (name, read) in reads {
        // A standby on a busy machine may be behind for a moment.
        let (before, deadline) = (count(node, StandbyOutcome::Served), Instant::now() + LONG);
        while count(node, StandbyOutcome::Served) == before {
            assert!(Instant::now() < deadline, "{name} is not read from the standby");
            read();
        }
    }
    // What follows each read there.
    let readers = "SELECT count(*) > 0 FROM pg_stat_activity WHERE query = 'SELECT position FROM counters'";
    assert_eq!(pair.standby.sql(&pair.standby_url, readers), "t", "the standby has executed them");
    // On the primary a read costs the question how far the log is.
    read_until(node, *room, StandbyOutcome::Served);
    let (began, statements, served) = (Instant::now(), node.statements(), count(node, StandbyOutcome::Served));
    for _ in 0..50 {
        stored_ids(node, *room);
    }
    let served = count(node, StandbyOutcome::Served) - served;
    // A look at the counts costs a statement, as do a mark a second and a new connection.
    let others = 10 + 2 * began.elapsed().as_secs();
    assert!(node.statements() - statements <= served + 2 * (50 - served) + others);
    assert!(served > 0);
}

#[test]
fn a_reader_who_just_wrote_reads_it_while_the_standby_stands_still() {
    let pair = Pair::new();
    let Pair { node: writer, room, .. } = &pair;
    let other = node(&pair.url, std::slice::from_ref(&pair.standby_url));
    read_until(&other, *room, StandbyOutcome::Served);
    pair.replay("pause");
    say(writer, *room, ["b"], NOON);
    assert_eq!(stored_ids(writer, *room), ["a", "b"]);
    assert_eq!(stored_ids(&other, *room), ["a", "b"], "also on a node that has not heard of it");
    pair.replay("resume");
    for node in [writer, &other] {
        read_until(node, *room, StandbyOutcome::Served);
        assert_eq!(stored_ids(node, *room), ["a", "b"]);
    }
}

#[test]
fn a_commit_that_the_primary_has_not_confirmed_is_not_shown() {
    let pair = Pair::new();
    let Pair { node, room, primary, .. } = &pair;
    let set = |names: &str| {
        primary.sql(&pair.url, &format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
        primary.sql(&pair.url, "SELECT pg_reload_conf()");
    };
    // Commits wait for another standby, which is away.
    set("another");
    let (acknowledged, is_over) = (AtomicU64::new(1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let waiting_for_nobody = scopeguard::guard((), |()| {
            is_over.store(true, Ordering::Release);
            set("");
        });
        let writer = scope.spawn(|| {
            // The first ones may be committed before the setting counts.
            while !is_over.load(Ordering::Acquire) {
                say(node, *room, [acknowledged.load(Ordering::Acquire).to_string()], NOON);
                acknowledged.fetch_add(1, Ordering::AcqRel);
            }
        });
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT'";
        let (deadline, shown) = (Instant::now() + LONG, "SELECT count(*) FROM tidings.entries");
        let confirmed = loop {
            assert!(Instant::now() < deadline, "the standby shows no commit that waits");
            let confirmed = acknowledged.load(Ordering::Acquire);
            if primary.sql(&pair.url, waiting) == "1"
                && pair.standby.sql(&pair.standby_url, shown) == (confirmed + 1).to_string()
            {
                break confirmed;
            }
        };
        let served = || count(node, StandbyOutcome::Served);
        let before = served();
        let read: Vec<u64> = (0..20).map(|_| stored_ids(node, *room).len() as u64).collect();
        let since = served() - before;
        // Before anything is judged: the writer waits.
        drop(waiting_for_nobody);
        writer.join().unwrap();
        assert_eq!((read, since), (vec![confirmed; 20], 0));
        assert_eq!(stored_ids(node, *room).len() as u64, confirmed + 1);
    });
    read_until(node, *room, StandbyOutcome::Served);
}

#[test]
fn no_read_fails_while_standbys_are_killed_and_come_back() {
    let pair = Pair::new();
    let Pair { node, room, standby, .. } = &pair;
    let (acknowledged, is_over) = (AtomicU64::new(1), AtomicBool::new(false));
    // Held while the standby is to catch up: on a busy machine it never does with one who writes all the time.
    let writing = parking_lot::Mutex::new(());
    std::thread::scope(|scope| {
        scopeguard::defer! { is_over.store(true, Ordering::Release) }
        scope.spawn(|| {
            for n in 0_u64.. {
                let _turn = writing.lock();
                if is_over.load(Ordering::Acquire) {
                    return;
                }
                say(node, *room, [n.to_string()], NOON);
                acknowledged.fetch_add(1, Ordering::AcqRel);
            }
        });
        for _ in 0..3 {
            scope.spawn(|| {
                let mut seen = 0;
                while !is_over.load(Ordering::Acquire) {
                    let least = acknowledged.load(Ordering::Acquire).max(seen);
                    let page = node.entries(*room, 1, u64::MAX, 2, End::Newest).expect("a read failed");
                    seen = page.last().unwrap().seq;
                    assert!(seen >= least, "read {seen}, and {least} was acknowledged or read before");
                }
            });
        }
        for _ in 0..3 {
            standby.kill();
            read_until(node, *room, StandbyOutcome::Away);
            standby.launch();
            let _paused = writing.lock();
            read_until(node, *room, StandbyOutcome::Served);
        }
    });
}

#[test]
fn a_node_starts_without_its_standby_and_uses_it_once_it_is_there() {
    let pair = Pair::new();
    pair.standby.stop();
    let node = node(&pair.url, std::slice::from_ref(&pair.standby_url));
    assert_eq!(stored_ids(&node, pair.room), ["a"]);
    assert_eq!(count(&node, StandbyOutcome::Served), 0);
    pair.standby.launch();
    read_until(&node, pair.room, StandbyOutcome::Served);
}

#[test]
fn another_database_is_refused_and_a_primary_is_not_read_from() {
    let server = PostgresServer::shared();
    let (url, other) = (server.database(), server.database());
    drop(open_at(&other));
    let opened = PostgresStore::open(PostgresOptions { read_urls: vec![url.clone(), other], ..options_at(&url) });
    let error = opened.err().expect("it was not refused");
    assert!(matches!(error, PostgresOpenError::Standby { place: 2, .. }), "{error}");
    // As after a failover, until the settings are changed.
    let node = node(&url, std::slice::from_ref(&url));
    let room = populate(&node);
    say(&node, room, ["a"], NOON);
    read_until(&node, room, StandbyOutcome::Away);
    assert_eq!(stored_ids(&node, room), ["a"]);
    assert_eq!(count(&node, StandbyOutcome::Served), 0);
}

#[test]
fn a_standby_with_another_history_gives_no_answers() {
    let pair = Pair::new();
    let Pair { node: on_primary, room, url, standby_url, standby: fork, .. } = &pair;
    fork.promote();
    // It goes on by itself: its log is longer than the primary's, and its commits have the same positions.
    say(&open_at(standby_url), *room, ["lost"], NOON);
    fork.sql(standby_url, LENGTHEN_LOG);
    let standby_of_fork = fork.standby(&["fsync=off"]);
    say(on_primary, *room, ["b"], NOON);
    let served = count(on_primary, StandbyOutcome::Served);
    for _ in 0..50 {
        assert_eq!(stored_ids(on_primary, *room), ["a", "b"]);
    }
    assert_eq!(count(on_primary, StandbyOutcome::Served), served);

    // Of the same installation, in recovery, and ahead.
    let of_fork_url = standby_of_fork.url(name_of(url));
    let node = node(url, std::slice::from_ref(&of_fork_url));
    let looked = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%FROM standby_marks%' AND application_name = 'tidings'";
    let deadline = Instant::now() + LONG;
    while standby_of_fork.sql(&of_fork_url, looked) == "0" {
        assert!(Instant::now() < deadline, "the node does not look at it");
    }
    for _ in 0..50 {
        assert_eq!(stored_ids(&node, *room), ["a", "b"]);
    }
    assert_eq!(count(&node, StandbyOutcome::Served), 0);
}

#[test]
fn the_standby_of_a_primary_that_was_replaced_gives_no_answers() {
    let pair = Pair::new();
    let (primary, room) = (&pair.primary, pair.room);
    let second = primary.standby(&["fsync=off"]);
    let urls = primary.url_with(&second, name_of(&pair.url));
    let node = node(&urls, std::slice::from_ref(&pair.standby_url));
    read_until(&node, room, StandbyOutcome::Served);
    // The first standby has what the second one lacks.
    second.stop();
    say(&pair.node, room, ["lost"], NOON);
    primary.sql(&pair.url, LENGTHEN_LOG);
    read_until(&node, room, StandbyOutcome::Served);
    assert_eq!(stored_ids(&node, room), ["a", "lost"]);
    primary.kill();
    second.launch();
    second.promote();
    let deadline = Instant::now() + LONG;
    let found = loop {
        match node.entries(room, 1, u64::MAX, usize::MAX, End::Oldest) {
            Ok(entries) => break entries.len(),
            Err(_) => assert!(Instant::now() < deadline, "the new primary is not found"),
        }
    };
    assert_eq!(found, 1);
    let served = count(&node, StandbyOutcome::Served);
    say(&node, room, ["b"], NOON);
    for _ in 0..50 {
        assert_eq!(stored_ids(&node, room), ["a", "b"]);
    }
    assert_eq!(count(&node, StandbyOutcome::Served), served);
}

#[test]
fn a_silent_standby_is_not_waited_for() {
    let pair = Pair::new();
    let link = CuttableLink::to(pair.standby.folder());
    let node = node(&pair.url, &[link.url(&pair.url)]);
    read_until(&node, pair.room, StandbyOutcome::Served);
    link.cut(true);
    let began = Instant::now();
    for _ in 0..200 {
        assert_eq!(stored_ids(&node, pair.room), ["a"]);
    }
    // If each read waited until the standby counts as silent, they would take minutes.
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    link.cut(false);
    read_until(&node, pair.room, StandbyOutcome::Served);
}

#[test]
fn a_read_that_the_standby_cancels_is_answered_by_the_primary() {
    let primary = primary();
    let standby = primary.standby(&["fsync=off", "hot_standby_feedback=off", "max_standby_streaming_delay=0"]);
    let url = primary.database();
    drop(open_at(&url));
    let standby_url = standby.url(name_of(&url));
    let node = node(&url, std::slice::from_ref(&standby_url));
    let room = populate(&node);
    for n in 0..20 {
        say(&node, room, (0..100).map(|m| format!("{n}-{m}")), NOON);
    }
    read_until(&node, room, StandbyOutcome::Served);
    let locks = "BEGIN; LOCK TABLE tidings.chapters IN ACCESS EXCLUSIVE MODE; COMMIT; ".repeat(50);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scopeguard::defer! { is_over.store(true, Ordering::Release) }
        // Each lock of a whole table, replayed, ends the reads of it. Many by each session: a busy machine starts few sessions.
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                primary.sql(&url, &locks);
            }
        });
        let deadline = Instant::now() + LONG;
        while count(&node, StandbyOutcome::Conflict) + count(&node, StandbyOutcome::Failed) == 0 {
            assert!(Instant::now() < deadline, "no read was cancelled");
            assert_eq!(stored_ids(&node, room).len(), 2_000);
        }
    });
    read_until(&node, room, StandbyOutcome::Served);
}

/// A xorshift generator: the test needs variety, not quality.
struct Random(u64);

impl Random {
    /// Of `SEED`, or of a seed that is printed.
    fn new() -> Random {
        let given = std::env::var("SEED").ok().map(|seed| seed.parse().unwrap());
        let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0) | 1);
        println!("SEED={seed}");
        Random(seed)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// The rooms, read one by one.
fn seen_by(store: &PostgresStore, rooms: &[ConversationNo]) -> Vec<(Head, Vec<StoredEntry>)> {
    let of = |room: &ConversationNo| {
        let head = store.head(*room).unwrap();
        (head, store.entries(*room, 1, head.last_seq, usize::MAX, End::Oldest).unwrap())
    };
    rooms.iter().map(of).collect()
}

#[test]
fn every_answer_is_that_of_the_primary_at_that_moment() {
    let pair = Pair::new();
    let (plain, other) = (open_at(&pair.url), node(&pair.url, std::slice::from_ref(&pair.standby_url)));
    let rooms: Vec<_> = (0..4).map(|n| group(&plain, &format!("room-{n}"))).collect();
    let nodes = [&pair.node, &other];
    let mut random = Random::new();
    let mut below = |bound| random.below(bound);
    let (mut is_paused, mut sent) = (false, 0);
    for _ in 0..400 {
        let (node, room) = (nodes[below(2)], below(rooms.len()));
        match below(8) {
            0..=2 => {
                for _ in 0..=below(3) {
                    sent += 1;
                    say(node, rooms[room], [format!("m{sent}")], NOON + sent);
                }
            }
            3 => {
                is_paused = below(2) == 0;
                pair.replay(if is_paused { "pause" } else { "resume" });
            }
            _ => {}
        }
        let expected = seen_by(&plain, &rooms);
        let heads: Vec<Head> = expected.iter().map(|(head, _)| *head).collect();
        assert_eq!(node.heads(&rooms).unwrap(), heads);
        let (head, entries) = &expected[room];
        let (from, to) = (1 + below(4) as u64, head.last_seq + 2);
        let page: Vec<_> = entries.iter().filter(|entry| entry.seq >= from).cloned().collect();
        assert_eq!(node.entries(rooms[room], from, to, usize::MAX, End::Newest).unwrap(), page);
        let request = PageRequest { conversation: rooms[room], from_seq: from, to_seq: to, limit: 1_000 };
        assert_eq!(node.pages(&[request], 1 << 20).unwrap(), [page]);
        let states = node.conversation_states(UserNo(2), ConversationFilter::All, 100).unwrap();
        let of = |no: &ConversationNo| states.iter().find(|state| state.conversation == *no).unwrap().head;
        assert_eq!(rooms.iter().map(of).collect::<Vec<_>>(), heads);
    }
    if is_paused {
        pair.replay("resume");
    }
    let total = |outcome| nodes.iter().map(|node| count(node, outcome)).sum::<u64>();
    println!("{:?}", nodes.map(|node| node.stats().standby_reads));
    assert!(total(StandbyOutcome::Served) > 0 && total(StandbyOutcome::Behind) > 0);
}

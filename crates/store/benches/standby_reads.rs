//! What reads cost the primary, without a standby and with one.
//!
//! ```text
//! cargo bench -p tidings-store --bench standby_reads --profile dev -- [READS] [COMMITS_PER_SECOND]
//! ```
//!
//! PostgreSQL with a standby on this machine, 200 conversations of 500 messages of 220 bytes. Four threads read: of ten reads nine
//! are pages of history (the newest 50 messages of a conversation), one is a resume of a user of 100 conversations with 400 missed
//! messages (three reads). One thread commits messages meanwhile. The clock is that of the servers' processes.
#![allow(clippy::unwrap_used)]

mod messages;
#[path = "../tests/it/support/postgres.rs"]
#[allow(dead_code)]
mod postgres;
#[path = "../tests/it/support/server_cpu.rs"]
mod server_cpu;

use messages::{NOW, group, message};
use postgres::{PostgresServer, options_at};
use server_cpu::cpu_ms;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};
use tidings_domain::{model::*, store::*};
use tidings_store::{PostgresOptions, PostgresStore};

const CONVERSATIONS: u64 = 200;
const MESSAGES: u64 = 500;
const READERS: u64 = 4;

fn populate(store: &PostgresStore) {
    let user = |n: u64| UserPatch { id: format!("u{n}"), ..UserPatch::default() };
    store.commit(&[Proposal::PutUsers((1..=2).map(user).collect())], NOW).unwrap();
    for n in 0..CONVERSATIONS {
        store.commit(&[group(n, 1..=2 - n % 2)], NOW).unwrap();
    }
    for n in 0..MESSAGES {
        let batch: Vec<_> =
            (0..CONVERSATIONS).map(|no| message(ConversationNo(no + 1), n * CONVERSATIONS + no)).collect();
        store.commit(&batch, NOW).unwrap();
    }
}

fn history(store: &PostgresStore, n: u64) {
    let room = ConversationNo(n.wrapping_mul(7_919) % CONVERSATIONS + 1);
    assert_eq!(store.entries(room, 1, u64::MAX, 50, End::Newest).unwrap().len(), 50);
}

fn resume(store: &PostgresStore) {
    let states = store.conversation_states(UserNo(2), ConversationFilter::All, 1_000).unwrap();
    let tail = |state: &ConversationState| Tail {
        conversation: state.conversation,
        floor_seq: state.head.last_seq - 3,
        newest_seq: state.head.last_seq,
        newest_position: state.head.last_position,
        after: 0,
        until: state.head.last_position,
    };
    let tails: Vec<_> = states.iter().map(tail).collect();
    let query = MissedQuery { entries_max: 800, bytes_max: 1 << 20, ranges: true };
    assert_eq!(store.missed(&tails, query).unwrap().entries.len(), tails.len() * 4);
    store.heads(&tails.iter().map(|tail| tail.conversation).collect::<Vec<_>>()).unwrap();
}

fn run(name: &str, store: &PostgresStore, servers: [&PostgresServer; 2], reads: u64, commits_per_s: u64) -> u64 {
    let before = servers.map(cpu_ms);
    let (began, is_over, committed, next) =
        (Instant::now(), AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut took: Vec<Duration> = std::thread::scope(|scope| {
        if commits_per_s > 0 {
            scope.spawn(|| {
                for n in 0_u64.. {
                    if is_over.load(Ordering::Acquire) {
                        break;
                    }
                    let salt = began.elapsed().as_nanos() as u64;
                    store.commit(&[message(ConversationNo(n % CONVERSATIONS + 1), salt ^ n << 40)], NOW).unwrap();
                    committed.fetch_add(1, Ordering::Relaxed);
                    let due = Duration::from_micros((n + 1) * 1_000_000 / commits_per_s);
                    std::thread::sleep(due.saturating_sub(began.elapsed()));
                }
            });
        }
        let reader = || {
            let mut took = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= reads {
                    return took;
                }
                let read_began = Instant::now();
                if n % 10 == 0 {
                    resume(store)
                } else {
                    history(store, n)
                }
                took.push(read_began.elapsed());
            }
        };
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(reader)).collect();
        let took = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        is_over.store(true, Ordering::Release);
        took
    });
    took.sort_unstable();
    let [median, slow] = [took.len() / 2, took.len() * 99 / 100].map(|place| took[place].as_micros());
    let [primary, standby] = [0, 1].map(|place| cpu_ms(servers[place]) - before[place]);
    println!(
        "{name}: {reads} reads in {:.1} s (median {median} µs, p99 {slow} µs), {} commits; CPU of the primary {primary} ms, of \
         the standby {standby} ms; {:?}",
        began.elapsed().as_secs_f64(),
        committed.load(Ordering::Relaxed),
        StandbyOutcome::ALL.map(|outcome| (outcome.name(), store.stats().standby_reads.of(outcome))),
    );
    primary
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let reads = arguments.next().map_or(20_000, |reads| reads.parse().unwrap());
    let commits_per_s = arguments.next().map_or(100, |commits| commits.parse().unwrap());
    let primary = PostgresServer::start(&[]);
    let url = primary.database();
    let open = |read_urls: &[String]| {
        PostgresStore::open(PostgresOptions { read_urls: read_urls.to_vec(), connections: 16, ..options_at(&url) })
            .unwrap()
    };
    populate(&open(&[]));
    for sql in ["VACUUM ANALYZE", "CHECKPOINT"] {
        primary.sql(&url, sql);
    }
    let standby = primary.standby(&[]);
    let standby_url = standby.url(url.rsplit('/').next().unwrap());
    let with_standby = open(&[standby_url]);
    while with_standby.stats().standby_reads.of(StandbyOutcome::Served) == 0 {
        history(&with_standby, 0);
    }
    let servers = [&primary, &standby];
    let without = run("without a standby", &open(&[]), servers, reads, commits_per_s);
    let with = run("with a standby", &with_standby, servers, reads, commits_per_s);
    println!("the primary's CPU time with a standby: {} % of that without", with * 100 / without.max(1));
}

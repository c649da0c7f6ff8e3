//! What several orders in one database change: messages and commits a second, and PostgreSQL's CPU for each message.
//!
//! ```text
//! cargo bench -p tidings-store --bench orders --profile dev -- [SECONDS] [MESSAGES]
//! ```
//!
//! Nodes commit messages of 220 bytes in 1,000 conversations, each as many as it can. A node has MESSAGES under way: one batch of them in
//! a database of one order, and a batch of each order otherwise, as the engine has them. The log is on a RAM disk, and each flush of it
//! takes so much longer (`commit_delay`) as a disk, or a standby that is waited for. The clock is that of the server's processes.
#![allow(clippy::unwrap_used)]

mod messages;
#[path = "../tests/it/support/postgres.rs"]
#[allow(dead_code)]
mod postgres;
#[path = "../tests/it/support/server_cpu.rs"]
mod server_cpu;

use messages::{NOW, group, message};
use postgres::{PostgresServer, open_at};
use server_cpu::cpu_ms;
use std::time::{Duration, Instant};
use tidings_domain::{model::*, store::*};
use tidings_store::PostgresStore;

const DELAYS_US: [u32; 3] = [0, 2_000, 10_000];
const NODES: [usize; 2] = [1, 4];
const ORDERS: [u16; 3] = [1, 4, 16];
const CONVERSATIONS: u64 = 1_000;

/// The conversations of each order.
fn populate(store: &PostgresStore) -> Vec<Vec<ConversationNo>> {
    store.commit(&[Proposal::PutUsers(vec![UserPatch { id: "u1".into(), ..UserPatch::default() }])], NOW).unwrap();
    let orders = store.orders();
    let mut batch: Vec<Proposal> = (0..CONVERSATIONS).map(|n| group(n, [1])).collect();
    batch.sort_by_key(|proposal| orders.of(proposal));
    let mut of_order = vec![Vec::new(); usize::from(orders.count())];
    for outcome in store.commit(&batch, NOW).unwrap() {
        let Outcome::Conversation { conversation, .. } = outcome else { panic!("{outcome:?}") };
        of_order[usize::from(orders.of_conversation(conversation.no))].push(conversation.no);
    }
    of_order
}

/// Commits batches in one order until the end; answers how many.
fn commit(store: &PostgresStore, rooms: &[ConversationNo], batch: u64, worker: u64, end: Instant) -> u64 {
    let mut n = worker << 40;
    let mut commits = 0;
    while Instant::now() < end {
        let proposals: Vec<_> = (n..n + batch).map(|n| message(rooms[(n * 7) as usize % rooms.len()], n)).collect();
        n += batch;
        store.commit_in_order(&proposals, NOW).unwrap();
        commits += 1;
    }
    commits
}

fn run(server: &PostgresServer, nodes: usize, orders: u16, under_way: u64, time: Duration) {
    let url = server.database_in_orders(orders);
    let stores: Vec<PostgresStore> = (0..nodes).map(|_| open_at(&url)).collect();
    let rooms = &populate(&stores[0]);
    let batch = (under_way / u64::from(orders)).max(1);
    let (before, began) = (cpu_ms(server), Instant::now());
    let commits: u64 = std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for store in &stores {
            for of_order in rooms {
                let worker = workers.len() as u64 + 1;
                workers.push(scope.spawn(move || commit(store, of_order, batch, worker, began + time)));
            }
        }
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let (took, cpu) = (began.elapsed().as_secs_f64(), (cpu_ms(server) - before) as f64 / 1_000.0);
    let messages = (commits * batch) as f64;
    println!(
        "{nodes:>6} {orders:>7} {batch:>7} {:>11.0} {:>11.0} {:>14.0} {:>12.2}",
        messages / took,
        commits as f64 / took,
        cpu * 1e6 / messages,
        cpu / took,
    );
}

fn main() {
    // `cargo bench` and `cargo test` add flags of their own.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let testing = std::env::args().any(|argument| argument == "--test");
    let mut number = |usual: u64| arguments.next().map_or(usual, |text| text.parse().expect("a number"));
    let (seconds, under_way) = (number(if testing { 1 } else { 5 }), number(64));
    for delay in if testing { &DELAYS_US[..1] } else { &DELAYS_US } {
        let delay_setting = format!("commit_delay={delay}");
        let settings =
            ["synchronous_commit=on", "commit_siblings=0", "max_connections=300", "max_wal_size=8GB", &delay_setting];
        let server = PostgresServer::start(&settings);
        println!("\neach flush {} ms longer, {under_way} messages of each node under way", f64::from(*delay) / 1e3);
        println!(" nodes  orders   batch  messages/s   commits/s  CPU/message us  cores busy");
        for nodes in if testing { &NODES[..1] } else { &NODES } {
            for orders in if testing { &ORDERS[..2] } else { &ORDERS } {
                run(&server, *nodes, *orders, under_way, Duration::from_secs(seconds));
            }
        }
    }
}

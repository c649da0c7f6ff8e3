//! How fast the embedded store commits and opens.
//!
//! ```text
//! cargo bench -p tidings-store --bench commit -- [MESSAGES] [FOLDER]
//! ```
//!
//! Messages of 220 bytes, each with its dedupe entry, over 1,000 conversations, by one committer
//! with a real fsync per batch. Each batch size starts with an empty folder.
//!
//! Then two stores take turns with small batches, so that what the disk does meanwhile meets both: one writes over zeros, the
//! other one was opened anew, so that its journal grows with each batch.
#![allow(clippy::unwrap_used)]

mod messages;

use hdrhistogram::Histogram;
use messages::{BODY_BYTES, NOW, group};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tidings_domain::{model::*, store::*};
use tidings_store::{EmbeddedOptions, EmbeddedStore};

const BATCH_SIZES: [u64; 2] = [64, 512];
const CONVERSATIONS: u64 = 1_000;

fn populate(store: &EmbeddedStore) {
    let user = UserPatch { id: "u1".into(), ..UserPatch::default() };
    store.commit(&[Proposal::PutUsers(vec![user])], NOW).unwrap();
    store.commit(&(0..CONVERSATIONS).map(|n| group(n, [1])).collect::<Vec<_>>(), NOW).unwrap();
}

fn message(n: u64) -> Proposal {
    messages::message(ConversationNo(n % CONVERSATIONS + 1), n)
}

fn run(folder: &Path, messages: u64, batch_size: u64) {
    let options = EmbeddedOptions { outbox: true, ..EmbeddedOptions::new(folder) };
    let store = EmbeddedStore::open(options.clone()).unwrap();
    populate(&store);
    let mut commits = Histogram::<u64>::new(3).unwrap();
    // Proposals are made outside the measured time.
    let mut busy = Duration::ZERO;
    for first in (0..messages).step_by(batch_size as usize) {
        let batch: Vec<_> = (first..messages.min(first + batch_size)).map(message).collect();
        let start = Instant::now();
        store.commit(&batch, NOW).unwrap();
        let took = start.elapsed();
        busy += took;
        commits.record(took.as_micros() as u64).unwrap();
        // A consumer of the outbox that keeps up.
        if first / batch_size % 64 == 63 {
            let through = store.last_position();
            store.commit(&[Proposal::AdvanceOutbox { through, dead: vec![] }], NOW).unwrap();
        }
    }
    let disk_mib = store.stats().disk_bytes as f64 / 1_048_576.0;
    drop(store);
    let start = Instant::now();
    let store = EmbeddedStore::open(options).unwrap();
    let opened = start.elapsed();
    assert_eq!(store.last_position(), messages);
    let ms = |micros: u64| micros as f64 / 1_000.0;
    println!(
        "{batch_size:>6} {:>10.0} {:>8.2} {:>8.2} {:>8.2} {:>10.0} {:>9.0}",
        messages as f64 / busy.as_secs_f64(),
        ms(commits.value_at_quantile(0.5)),
        ms(commits.value_at_quantile(0.99)),
        ms(commits.max()),
        disk_mib,
        opened.as_secs_f64() * 1_000.0,
    );
}

/// Batches of each store that takes turns, and the messages of each: together less than a memtable, for the engine begins another
/// journal with each.
const TURNS: u64 = 3_000;
const TURN_MESSAGES: u64 = 6;

fn take_turns(parent: &Path, turns: u64) {
    let folders = [(); 2].map(|()| tempfile::tempdir_in(parent).unwrap());
    let mut stores = folders.each_ref().map(|folder| {
        let store = EmbeddedStore::open(EmbeddedOptions::new(folder.path())).unwrap();
        populate(&store);
        Some(store)
    });
    // Closed before it is opened: a folder is one store's.
    stores[1] = None;
    stores[1] = Some(EmbeddedStore::open(EmbeddedOptions::new(folders[1].path())).unwrap());
    let mut commits = [(); 2].map(|()| Histogram::<u64>::new(3).unwrap());
    for turn in 0..turns {
        let batch: Vec<_> = (turn * TURN_MESSAGES..(turn + 1) * TURN_MESSAGES).map(message).collect();
        for at in [turn % 2, (turn + 1) % 2].map(|at| at as usize) {
            let start = Instant::now();
            stores[at].as_ref().unwrap().commit(&batch, NOW).unwrap();
            commits[at].record(start.elapsed().as_micros() as u64).unwrap();
        }
    }
    println!("\n{turns} batches of {TURN_MESSAGES} messages each, in turns");
    println!("                    mean ms   p50 ms   p90 ms   p99 ms   max ms");
    for (name, commits) in ["over zeros", "a journal that grows"].iter().zip(&commits) {
        let ms = |micros: u64| micros as f64 / 1_000.0;
        println!(
            "{name:>20} {:>6.2} {:>8.2} {:>8.2} {:>8.2} {:>8.2}",
            commits.mean() / 1_000.0,
            ms(commits.value_at_quantile(0.5)),
            ms(commits.value_at_quantile(0.9)),
            ms(commits.value_at_quantile(0.99)),
            ms(commits.max()),
        );
    }
}

fn main() {
    // `cargo bench` and `cargo test` add flags of their own.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let testing = std::env::args().any(|argument| argument == "--test");
    let messages = match arguments.next() {
        Some(count) => count.replace(['_', ','], "").parse().expect("the number of messages"),
        None if testing => 2_000,
        None => 200_000,
    };
    let parent = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    println!("{messages} messages of {BODY_BYTES} bytes with dedupe entries, one fsync per batch");
    println!(" batch      msg/s   p50 ms   p99 ms   max ms   disk MiB   open ms");
    for batch_size in BATCH_SIZES {
        let folder = tempfile::tempdir_in(&parent).unwrap();
        run(folder.path(), messages, batch_size);
    }
    take_turns(&parent, if testing { 100 } else { TURNS });
}

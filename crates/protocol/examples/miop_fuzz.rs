//! `cargo run --release -p tidings-protocol --example miop_fuzz -- [EXECUTIONS] [SEED]`
//! `cargo run --release -p tidings-protocol --example miop_fuzz -- replay HEX`
//!
//! Looks for bytes on which the MIOP decoder panics, that it decodes differently in parts than as a whole, does not
//! encode back, or decodes differently than a reference decoder that was written from the text's
//! tables. The inputs are mutated vectors, drawn from a seed alone: the same seed gives the same run,
//! and a finding prints its seed, its number and its bytes.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::time::{Instant, SystemTime, UNIX_EPOCH};
use support::{bytes_of_hex, fuzz};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [replay, hex] = &arguments[..]
        && replay == "replay"
    {
        return replay_one(&bytes_of_hex(hex));
    }
    let mut numbers = arguments.iter().map(|argument| argument.parse::<u64>().expect("a number"));
    let executions = numbers.next().unwrap_or(10_000_000);
    let seed =
        numbers.next().unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
    println!("seed {seed}, {executions} executions");
    let started = Instant::now();
    let outcome = fuzz::run(seed, executions, |done| {
        if done > 0 {
            println!("{done} after {:.1} s", started.elapsed().as_secs_f64());
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    for (name, count) in &outcome.seen {
        println!("{count:>10} {name}");
    }
    println!("{} inputs kept for going a way of their own, digest {:016x}", outcome.corpus, outcome.digest);
    for name in fuzz::MUST_BE_SEEN {
        assert!(executions < 100_000 || outcome.seen.contains_key(name), "the run never came upon: {name}");
    }
    println!("{executions} executions in {seconds:.1} s, {:.0}/s: no finding", executions as f64 / seconds);
}

fn replay_one(bytes: &[u8]) {
    println!("{:?}", support::read(bytes, usize::MAX));
    for limit in [100, 16 * 1024, 192 * 1024] {
        for cut in 0..=bytes.len() {
            fuzz::check(bytes, limit, cut);
        }
    }
    println!("{} bytes, every limit, every cut: no finding", bytes.len());
}

//! The tables of a comparison, and its figures as JSON.

use super::{BrokersArgs, Figures, compared::Compared};
use crate::{broadcast::Summary, latency::Percentiles, report::outcome_json, worker_protocol::Outcome};
use serde_json::{Value, json};

/// A server with its version, and its figures round by round.
pub(super) struct ServerRounds<'a> {
    pub(super) server: &'a Compared,
    pub(super) version: &'a str,
    pub(super) rounds: &'a [Figures],
}

/// The median of a figure over the rounds, and its lowest and highest value.
fn median(rounds: &[Figures], figure: impl Fn(&Figures) -> f64) -> (f64, f64, f64) {
    spread(rounds.iter().map(figure).collect())
}

/// The median of some values, of which there is one at least, the lowest and the highest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// The median of a figure that a server of others does not tell.
fn median_if_known(rounds: &[Figures], figure: impl Fn(&Figures) -> Option<f64>, decimals: usize) -> String {
    let values: Option<Vec<f64>> = rounds.iter().map(figure).collect();
    values.map_or("-".into(), |values| format!("{:.decimals$}", spread(values).0))
}

pub(super) fn print_all(args: &BrokersArgs, servers: &[ServerRounds<'_>], bare: &[Vec<f64>]) {
    println!("servers, medians of {} rounds (lowest to highest)", args.rounds);
    for ServerRounds { server, version, .. } in servers {
        println!("  {:<15} {version:<9} {}", server.name(), server.settings());
    }
    print_group(args, servers);
    print_ladder(args, servers, bare);
    print_idle(args, servers);
}

fn print_group(args: &BrokersArgs, servers: &[ServerRounds<'_>]) {
    println!("a group of {}, {} bytes, at most {} messages under way", args.members, args.body_bytes, args.window);
    println!(
        "  server            messages/s                 p50 ms   p99 ms  CPU ms/message  lost  doubled  reordered  altered"
    );
    for ServerRounds { server, rounds, .. } in servers {
        let (rate, low, high) = median(rounds, |figures| figures.group.messages_per_second());
        let of = |figure: fn(&Percentiles) -> f64| median(rounds, |figures| figure(&figures.group.latency)).0;
        let cpu =
            |figures: &Figures| Some(1e3 * figures.group.server_cpu_seconds? / figures.group.committed.max(1) as f64);
        let sum = |count: fn(&Outcome) -> u64| -> u64 { rounds.iter().map(|figures| count(&figures.group)).sum() };
        println!(
            "  {:<15} {rate:>8.0}  {:<16} {:>8.1} {:>8.1}  {:>14}  {:>4}  {:>7}  {:>9}  {:>7}",
            server.name(),
            format!("({low:.0} to {high:.0})"),
            of(|latency| latency.p50),
            of(|latency| latency.p99),
            median_if_known(rounds, cpu, 3),
            sum(|outcome| outcome.lost),
            sum(|outcome| outcome.doubled),
            sum(|outcome| outcome.out_of_order),
            sum(|outcome| outcome.altered),
        );
    }
}

fn print_ladder(args: &BrokersArgs, servers: &[ServerRounds<'_>], bare: &[Vec<f64>]) {
    println!("one message at a time: ms to the last receiver");
    let line = |name: &str, figures: Vec<f64>| {
        let figures: Vec<String> = figures.iter().map(|figure| format!("{figure:>9.2}")).collect();
        println!("  {name:<15} {}", figures.join(" "));
    };
    line("receivers", args.ladder.iter().map(|members| *members as f64).collect());
    for ServerRounds { server, rounds, .. } in servers {
        let at = |step: usize| median(rounds, |figures| Summary::of(&figures.broadcasts[step]).median).0;
        line(server.name(), (0..args.ladder.len()).map(at).collect());
    }
    line("bare loop", bare.iter().map(|rounds| spread(rounds.clone()).0).collect());
}

fn print_idle(args: &BrokersArgs, servers: &[ServerRounds<'_>]) {
    println!("{} connections that do nothing     KiB each   connected/s", args.idle);
    for ServerRounds { server, rounds, .. } in servers {
        let kib = median_if_known(rounds, |figures| Some(figures.idle.bytes_each? / 1024.0), 2);
        let per_second = median(rounds, |figures| figures.idle.per_second).0;
        println!("  {:<30} {kib:>10}  {per_second:>12.0}", server.name());
    }
}

pub(super) fn json_of(ServerRounds { server, version, rounds }: &ServerRounds<'_>) -> Value {
    let rounds: Vec<Value> = (rounds.iter())
        .map(|Figures { group, broadcasts, idle }| {
            json!({
                "group": outcome_json(group),
                "broadcasts": broadcasts.iter().map(|outcome| Summary::of(outcome).json()).collect::<Vec<_>>(),
                "idle": { "connected_per_second": idle.per_second, "bytes_each": idle.bytes_each },
            })
        })
        .collect();
    json!({ "server": server.name(), "version": version, "settings": server.settings(), "rounds": rounds })
}

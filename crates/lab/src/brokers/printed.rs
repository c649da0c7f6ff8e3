//! The tables of a comparison, and its figures as JSON.

use super::{BrokersArgs, Figures, compared::Compared};
use crate::{
    latency::Percentiles,
    result::{RunResult, Summary, Table},
    worker_protocol::Outcome,
};
use serde_json::{Value, json};

/// A server with its version, and its figures round by round.
pub(super) struct ServerRounds<'a> {
    pub(super) server: &'a Compared,
    pub(super) version: &'a str,
    pub(super) rounds: &'a [Figures],
}

/// A figure over the rounds.
fn over(rounds: &[Figures], figure: impl Fn(&Figures) -> f64) -> Summary {
    Summary::of(&rounds.iter().map(figure).collect::<Vec<_>>())
}

/// The median of a figure that a server of others does not tell.
fn median_if_known(rounds: &[Figures], figure: impl Fn(&Figures) -> Option<f64>, decimals: usize) -> String {
    let values: Option<Vec<f64>> = rounds.iter().map(figure).collect();
    values.map_or("-".into(), |values| format!("{:.decimals$}", Summary::of(&values).median))
}

pub(super) fn tell_all(result: &mut RunResult, args: &BrokersArgs, servers: &[ServerRounds<'_>], bare: &[Vec<f64>]) {
    let about = |ServerRounds { server, version, .. }: &ServerRounds<'_>| {
        (server.name().to_owned(), format!("{version:<9} {}", server.settings()))
    };
    let title = format!("servers, medians of {} rounds (lowest to highest)", args.rounds);
    result.lines(&title, servers.iter().map(about).collect(), &[]);
    let BrokersArgs { members, body_bytes, window, .. } = args;
    result.note("a group", format!("of {members}, {body_bytes} bytes, at most {window} messages under way"));
    result.table(group_table(servers));
    result.note("one message", "at a time: ms to the last receiver");
    result.table(ladder_table(args, servers, bare));
    result.note("idle", format!("{} connections that do nothing", args.idle));
    result.table(idle_table(servers));
}

fn group_table(servers: &[ServerRounds<'_>]) -> Table {
    let mut table = Table::of("server|messages/s||p50 ms|p99 ms|CPU ms/message|lost|doubled|reordered|altered");
    for ServerRounds { server, rounds, .. } in servers {
        let Summary { median: rate, best: low, worst: high } =
            over(rounds, |figures| figures.group.messages_per_second());
        let of = |figure: fn(&Percentiles) -> f64| over(rounds, |figures| figure(&figures.group.latency)).median;
        let cpu =
            |figures: &Figures| Some(1e3 * figures.group.server_cpu_seconds? / figures.group.committed.max(1) as f64);
        let sum = |count: fn(&Outcome) -> u64| -> u64 { rounds.iter().map(|figures| count(&figures.group)).sum() };
        let faults = [
            sum(|outcome| outcome.lost),
            sum(|outcome| outcome.doubled),
            sum(|outcome| outcome.out_of_order),
            sum(|outcome| outcome.altered),
        ];
        let cells = [
            format!("{rate:.0}"),
            format!("({low:.0} to {high:.0})"),
            format!("{:.1}", of(|latency| latency.p50)),
            format!("{:.1}", of(|latency| latency.p99)),
            median_if_known(rounds, cpu, 3),
        ];
        table.row(server.name(), cells.into_iter().chain(faults.map(|count| count.to_string())));
    }
    table
}

fn ladder_table(args: &BrokersArgs, servers: &[ServerRounds<'_>], bare: &[Vec<f64>]) -> Table {
    let receivers = args.ladder.iter().map(usize::to_string);
    let columns = ["receivers".to_owned()].into_iter().chain(receivers).collect();
    let mut table = Table { columns, rows: Vec::new() };
    let mut row = |name: &str, figures: &mut dyn Iterator<Item = f64>| {
        table.row(name, figures.map(|figure| format!("{figure:.2}")));
    };
    for ServerRounds { server, rounds, .. } in servers {
        let at = |step: usize| over(rounds, |figures| Summary::of(&figures.broadcasts[step].rounds).median).median;
        row(server.name(), &mut (0..args.ladder.len()).map(at));
    }
    row("bare loop", &mut bare.iter().map(|rounds| Summary::of(rounds).median));
    table
}

fn idle_table(servers: &[ServerRounds<'_>]) -> Table {
    let mut table = Table::of("server|KiB each|connected/s");
    for ServerRounds { server, rounds, .. } in servers {
        let kib = median_if_known(rounds, |figures| Some(figures.idle.bytes_each? / 1024.0), 2);
        let per_second = over(rounds, |figures| figures.idle.per_second).median;
        table.row(server.name(), [kib, format!("{per_second:.0}")]);
    }
    table
}

/// All rounds of a server: every one of its loads is held to what loads are held to.
pub(super) fn record(result: &mut RunResult, ServerRounds { server, version, rounds }: &ServerRounds<'_>) -> Value {
    let mut record = |outcome: &Outcome| {
        for problem in &outcome.problems {
            result.problem(format!("{}: {problem}", server.name()));
        }
        result.record_unprinted(outcome.measured(&outcome.title))
    };
    let rounds: Vec<Value> = (rounds.iter())
        .map(|Figures { group, broadcasts, idle }| {
            broadcasts.iter().for_each(|outcome| drop(record(outcome)));
            json!({
                "group": record(group),
                "broadcasts": broadcasts.iter().map(|outcome| Summary::of(&outcome.rounds).json()).collect::<Vec<_>>(),
                "idle": { "connected_per_second": idle.per_second, "bytes_each": idle.bytes_each },
            })
        })
        .collect();
    json!({ "server": server.name(), "version": version, "settings": server.settings(), "rounds": rounds })
}

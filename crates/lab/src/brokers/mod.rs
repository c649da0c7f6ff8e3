//! `bench brokers`: a group, broadcasts and idle connections on Tidings and on servers that others wrote, in one run. Every
//! delivery is verified on all of them.
//!
//! - [`wire`]: as much of MQTT and NATS as the load takes;
//! - [`client`]: the load client for them. Tidings has its own, the one of `bench group`, which also compares every entry's
//!   fields, and reads JSON.

mod client;
mod wire;

use crate::{
    Finished, LabError, Verdict,
    broadcast::{Summary, run_bare},
    group::{GroupFixture, GroupSpec},
    latency::Percentiles,
    load_client::{LoadClient, Participants},
    mix::share::MixShare,
    options::{SendProtocol, TargetArgs, parse_duration},
    process,
    report::outcome_json,
    server::Target,
    setup,
    topology::broker::{Broker, BrokerKind},
    worker_protocol::{LoadModel, Outcome},
};
use clap::{Args, ValueEnum};
use client::{BrokerClient, Plan};
use serde_json::{Value, json};
use std::time::Duration;
use wire::Protocol;

#[derive(Debug, Clone, Args)]
pub struct BrokersArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// The servers, in the order of the first round
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ComparedServer::Tidings, ComparedServer::Nats, ComparedServer::Mosquitto])]
    pub servers: Vec<ComparedServer>,
    /// Members online of the group
    #[arg(long, default_value_t = 300)]
    pub members: usize,
    /// How long the group is flooded
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Messages to the group between publisher and last receiver
    #[arg(long, default_value_t = 1000)]
    pub window: usize,
    /// Connections that send
    #[arg(long, default_value_t = 32)]
    pub senders: usize,
    #[arg(long, default_value_t = 200)]
    pub body_bytes: usize,
    /// Receivers of one message at a time
    #[arg(long, value_delimiter = ',', default_values_t = [300, 1000, 3000])]
    pub ladder: Vec<usize>,
    /// Messages at each step of the ladder
    #[arg(long, default_value_t = 20)]
    pub broadcasts: usize,
    /// Connections that are opened and then do nothing
    #[arg(long, default_value_t = 2000)]
    pub idle: usize,
    /// The whole is repeated so many times, each time with another server first; medians are reported
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
}

/// A server under comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ComparedServer {
    /// This program: HTTP to WebSocket; every message is stored, with an fsync, before it is answered
    Tidings,
    /// nats-server: NATS core, which stores nothing
    Nats,
    /// mosquitto: MQTT 3.1.1 with QoS 0, which stores nothing
    Mosquitto,
}

impl ComparedServer {
    fn name(self) -> &'static str {
        match self {
            ComparedServer::Tidings => "tidings",
            ComparedServer::Nats => "nats-server",
            ComparedServer::Mosquitto => "mosquitto",
        }
    }

    fn broker(self) -> Option<(BrokerKind, Protocol)> {
        match self {
            ComparedServer::Tidings => None,
            ComparedServer::Nats => Some((BrokerKind::Nats, Protocol::Nats)),
            ComparedServer::Mosquitto => Some((BrokerKind::Mosquitto, Protocol::Mqtt)),
        }
    }

    fn version(self) -> Result<String, LabError> {
        self.broker().map_or_else(|| Ok(env!("CARGO_PKG_VERSION").to_owned()), |(kind, _)| kind.version())
    }

    fn settings(self) -> &'static str {
        self.broker().map_or("stored with an fsync before the answer; sends_per_second 0", |(kind, _)| kind.settings())
    }
}

/// The figures of one server in one round.
struct Figures {
    group: Outcome,
    /// By step of the ladder.
    broadcasts: Vec<Outcome>,
    idle: Idle,
}

/// Connections that were opened and do nothing.
#[derive(Debug, Clone, Copy)]
struct Idle {
    per_second: f64,
    bytes_each: f64,
}

const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &BrokersArgs) -> Result<Finished, LabError> {
    if args.target.url.is_some() {
        return Err(LabError::Usage("`bench brokers` starts its servers itself: it takes no --url".into()));
    }
    let least = [args.members, args.window, args.senders, args.broadcasts, args.idle, args.rounds, args.servers.len()];
    if least.contains(&0) || args.ladder.contains(&0) {
        return Err(LabError::Usage("every number must be at least 1".into()));
    }
    let versions = args.servers.iter().map(|server| server.version()).collect::<Result<Vec<_>, _>>()?;
    let mut rounds: Vec<Vec<Figures>> = args.servers.iter().map(|_| Vec::new()).collect();
    let mut bare: Vec<Vec<f64>> = args.ladder.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds {
        for turn in 0..args.servers.len() {
            let place = (round + turn) % args.servers.len();
            let server = args.servers[place];
            eprintln!("round {} of {}: {}", round + 1, args.rounds, server.name());
            rounds[place].push(match server.broker() {
                None => on_tidings(args)?,
                Some((kind, protocol)) => on_broker(kind, protocol, args)?,
            });
        }
        for (step, members) in args.ladder.iter().enumerate() {
            let model = LoadModel::Rounds { rounds: args.broadcasts, pause_ms: PAUSE.as_millis() as u64 };
            bare[step].push(Summary::of(&run_bare(&args.target, *members, model, args.body_bytes)?).median);
        }
    }
    let servers: Vec<_> = args.servers.iter().zip(&versions).zip(&rounds).collect();
    print_settings(args, &servers);
    print_group(args, &servers);
    print_ladder(args, &servers, &bare);
    print_idle(args, &servers);
    let mut verdict = Verdict::Passed;
    let value: Vec<Value> =
        servers.iter().map(|((server, version), rounds)| json_of(**server, version, rounds)).collect();
    for ((server, _), rounds) in &servers {
        for outcome in rounds.iter().flat_map(|figures| figures.broadcasts.iter().chain([&figures.group])) {
            for problem in &outcome.problems {
                println!("! {}: {problem}", server.name());
            }
            verdict = verdict.and(Verdict::of(outcome));
        }
    }
    let value = json!({
        "bench": "brokers", "members": args.members, "window": args.window, "body_bytes": args.body_bytes,
        "ladder": args.ladder, "idle": args.idle, "bare_ms": bare, "servers": value,
    });
    Ok(Finished { verdict, figures: value })
}

/// A new server for each part: none begins with the memory or the connections of the part before.
fn on_broker(kind: BrokerKind, protocol: Protocol, args: &BrokersArgs) -> Result<Figures, LabError> {
    let measure = |receivers: usize, senders: usize, plan: Plan| {
        let broker = Broker::start(kind)?;
        let core = args.target.client_core.unwrap_or_else(process::last_core);
        // Only the client keeps to its core: what is started while it does would, too.
        let (outcome, cpu) = process::run_on_core(core, || {
            let (mut client, _) =
                BrokerClient::open(protocol, broker.address(), (receivers, senders), args.target.patience)?;
            let cpu = process::cpu_seconds(broker.pid());
            Ok::<_, LabError>((client.run(plan, args.body_bytes)?, cpu))
        })??;
        let server_cpu_seconds = Some(process::cpu_seconds(broker.pid()) - cpu);
        let server_rss_bytes = Some(process::resident_bytes(broker.pid()));
        let title = format!("{}, {receivers} receivers", kind.program());
        Ok::<_, LabError>(Outcome { title, server_cpu_seconds, server_rss_bytes, ..outcome })
    };
    let flood = Plan::ClosedLoop { window: args.window, duration: args.duration };
    let one_by_one = Plan::Rounds { rounds: args.broadcasts, pause: PAUSE };
    let group = measure(args.members, args.senders, flood)?;
    let broadcasts = args.ladder.iter().map(|members| measure(*members, 1, one_by_one)).collect::<Result<_, _>>()?;
    let broker = Broker::start(kind)?;
    let before = process::resident_bytes(broker.pid());
    let core = args.target.client_core.unwrap_or_else(process::last_core);
    let open = || BrokerClient::open(protocol, broker.address(), (args.idle, 0), args.target.patience);
    let (_client, took) = process::run_on_core(core, open)??;
    let idle = Idle::of(args.idle, took.as_secs_f64(), (before, process::resident_bytes(broker.pid())));
    Ok(Figures { group, broadcasts, idle })
}

fn on_tidings(args: &BrokersArgs) -> Result<Figures, LabError> {
    let measure = |members: usize, senders: usize, model: LoadModel| {
        let target = Target::resolve(&args.target)?;
        let spec = GroupSpec {
            members,
            group_size: members,
            senders,
            via: SendProtocol::Http,
            low_priority: false,
            mix: MixShare::default(),
            receipts_interval: None,
        };
        let mut fixture = GroupFixture::set_up(&target, &args.target, &spec)?;
        let phase = fixture.phase(model, args.body_bytes, 1, 1);
        let outcome = fixture.load.run(&format!("tidings, {members} members"), phase)?;
        drop(fixture);
        match target.finish()? {
            Some(check) if !check.passed => {
                Err(LabError::Server(format!("left a folder with faults: {}", check.output)))
            }
            _ => Ok(outcome),
        }
    };
    let flood = LoadModel::ClosedLoop { window: args.window, duration_ms: args.duration.as_millis() as u64 };
    let one_by_one = LoadModel::Rounds { rounds: args.broadcasts, pause_ms: PAUSE.as_millis() as u64 };
    let group = measure(args.members, args.senders, flood)?;
    let steps = args.ladder.iter().map(|members| measure(*members, 1, one_by_one.clone()));
    let broadcasts = steps.collect::<Result<_, _>>()?;
    Ok(Figures { group, broadcasts, idle: idle_on_tidings(args)? })
}

/// Sessions over WebSocket of one user each, all members of one group.
fn idle_on_tidings(args: &BrokersArgs) -> Result<Idle, LabError> {
    let target = Target::resolve(&args.target)?;
    let tag = process::run_tag();
    let members = setup::numbered_ids(&format!("{tag}-m"), args.idle);
    let mut http = target.http();
    setup::create_users(&mut http, &members)?;
    let group = setup::create_group(&mut http, &format!("idle-{tag}"), &members)?;
    let pid = target.pid().unwrap_or(0);
    let before = process::resident_bytes(pid);
    let load = LoadClient::open(&target, &args.target, Participants::of_group(group, &members))?;
    let idle = Idle::of(args.idle, load.open_seconds, (before, process::resident_bytes(pid)));
    drop(load);
    target.finish()?;
    Ok(idle)
}

impl Idle {
    fn of(connections: usize, seconds: f64, (before, after): (u64, u64)) -> Self {
        Idle {
            per_second: connections as f64 / seconds.max(1e-9),
            bytes_each: after.saturating_sub(before) as f64 / connections as f64,
        }
    }
}

/// A server with its version, and its figures round by round.
type ServerRounds<'a> = ((&'a ComparedServer, &'a String), &'a Vec<Figures>);

/// The median of a figure over the rounds, and its lowest and highest value.
fn median(rounds: &[Figures], figure: impl Fn(&Figures) -> f64) -> (f64, f64, f64) {
    spread(rounds.iter().map(figure).collect())
}

/// The median of some values, of which there is one at least, the lowest and the highest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

fn print_settings(args: &BrokersArgs, servers: &[ServerRounds<'_>]) {
    println!("servers, medians of {} rounds (lowest to highest)", args.rounds);
    for ((server, version), _) in servers {
        println!("  {:<12} {version:<9} {}", server.name(), server.settings());
    }
}

fn print_group(args: &BrokersArgs, servers: &[ServerRounds<'_>]) {
    println!("a group of {}, {} bytes, at most {} messages under way", args.members, args.body_bytes, args.window);
    println!(
        "  server         messages/s                 p50 ms   p99 ms  CPU ms/message  lost  doubled  reordered  altered"
    );
    for ((server, _), rounds) in servers {
        let (rate, low, high) = median(rounds, |figures| figures.group.messages_per_second());
        let of = |figure: fn(&Percentiles) -> f64| median(rounds, |figures| figure(&figures.group.latency)).0;
        let cpu = |figures: &Figures| {
            1e3 * figures.group.server_cpu_seconds.unwrap_or_default() / figures.group.committed.max(1) as f64
        };
        let sum = |count: fn(&Outcome) -> u64| -> u64 { rounds.iter().map(|figures| count(&figures.group)).sum() };
        println!(
            "  {:<12} {rate:>8.0}  {:<16} {:>8.1} {:>8.1}  {:>14.3}  {:>4}  {:>7}  {:>9}  {:>7}",
            server.name(),
            format!("({low:.0} to {high:.0})"),
            of(|latency| latency.p50),
            of(|latency| latency.p99),
            median(rounds, cpu).0,
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
        println!("  {name:<12} {}", figures.join(" "));
    };
    line("receivers", args.ladder.iter().map(|members| *members as f64).collect());
    for ((server, _), rounds) in servers {
        let at = |step: usize| median(rounds, |figures| Summary::of(&figures.broadcasts[step]).median).0;
        line(server.name(), (0..args.ladder.len()).map(at).collect());
    }
    line("bare loop", bare.iter().map(|rounds| spread(rounds.clone()).0).collect());
}

fn print_idle(args: &BrokersArgs, servers: &[ServerRounds<'_>]) {
    println!("{} connections that do nothing     KiB each   connected/s", args.idle);
    for ((server, _), rounds) in servers {
        let kib = median(rounds, |figures| figures.idle.bytes_each / 1024.0).0;
        let per_second = median(rounds, |figures| figures.idle.per_second).0;
        println!("  {:<30} {kib:>10.2}  {per_second:>12.0}", server.name());
    }
}

fn json_of(server: ComparedServer, version: &str, rounds: &[Figures]) -> Value {
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

//! `bench brokers`: a group, broadcasts and idle connections on Tidings and on servers that others wrote, in one run. Every
//! delivery is verified on all of them.
//!
//! - [`compared`]: the servers, and the same load on each. Tidings has the load client of `bench group`, which also compares every
//!   entry's fields, and reads JSON; the others have that of `driver`;
//! - [`printed`]: tables of all rounds, and their figures.

mod compared;
mod printed;

use crate::{
    LabError,
    bare_load::BareLoad,
    driver::DriverArgs,
    options::{TargetArgs, parse_duration},
    result::{RunResult, Summary},
    worker_protocol::{LoadModel, Outcome},
};
use clap::{Args, ValueEnum};
use compared::Compared;
use printed::ServerRounds;
use serde_json::{Value, json};
use std::{
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

#[derive(Debug, Clone, Args)]
pub struct BrokersArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// The servers, in the order of the first round
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ComparedServer::Tidings, ComparedServer::Nats, ComparedServer::Mosquitto])]
    pub servers: Vec<ComparedServer>,
    /// One more server, which runs already at --url, spoken to as this file says
    #[command(flatten)]
    pub described: DriverArgs,
    /// This broker runs already, as `nats=HOST:PORT`: none is started, and its CPU and memory are not measured. May be repeated
    #[arg(long, value_name = "SERVER=HOST:PORT", value_parser = parse_running)]
    pub at: Vec<(ComparedServer, SocketAddr)>,
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
    /// mosquitto: MQTT 5 with QoS 0
    MosquittoMqtt5,
}

impl ComparedServer {
    fn name(self) -> &'static str {
        match self {
            ComparedServer::Tidings => "tidings",
            ComparedServer::Nats => "nats-server",
            ComparedServer::Mosquitto => "mosquitto",
            ComparedServer::MosquittoMqtt5 => "mosquitto-mqtt5",
        }
    }
}

/// Parses `nats=127.0.0.1:4222`: a broker, and where it runs.
fn parse_running(text: &str) -> Result<(ComparedServer, SocketAddr), String> {
    let (name, address) = text.split_once('=').ok_or("write it as SERVER=HOST:PORT, such as nats=127.0.0.1:4222")?;
    let server = ComparedServer::from_str(name, false).map_err(|_| {
        let brokers = [ComparedServer::Nats, ComparedServer::Mosquitto, ComparedServer::MosquittoMqtt5];
        let names = brokers.map(|one| one.to_possible_value().map_or(String::new(), |one| one.get_name().to_owned()));
        format!("no broker is named {name}; there are {}", names.join(", "))
    })?;
    let resolved = address.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    Ok((server, resolved.ok_or_else(|| format!("{address}: no such address, which is HOST:PORT"))?))
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
    /// Unknown of a server that is not the lab's own.
    bytes_each: Option<f64>,
}

impl Idle {
    /// `memory`: the server's resident bytes before and after.
    fn of(connections: usize, seconds: f64, memory: Option<(u64, u64)>) -> Self {
        Idle {
            per_second: connections as f64 / seconds.max(1e-9),
            bytes_each: memory.map(|(before, after)| after.saturating_sub(before) as f64 / connections as f64),
        }
    }
}

const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &BrokersArgs) -> Result<RunResult, LabError> {
    let least = [args.members, args.window, args.senders, args.broadcasts, args.idle, args.rounds];
    if least.contains(&0) || args.ladder.contains(&0) {
        return Err(LabError::Usage("every number must be at least 1".into()));
    }
    let compared = Compared::all(args)?;
    let versions = compared.iter().map(Compared::version).collect::<Result<Vec<_>, _>>()?;
    let mut rounds: Vec<Vec<Figures>> = compared.iter().map(|_| Vec::new()).collect();
    let mut bare: Vec<Vec<f64>> = args.ladder.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds {
        for turn in 0..compared.len() {
            let place = (round + turn) % compared.len();
            eprintln!("round {} of {}: {}", round + 1, args.rounds, compared[place].name());
            rounds[place].push(compared[place].measure(args)?);
        }
        for (step, members) in args.ladder.iter().enumerate() {
            let model = LoadModel::Rounds { rounds: args.broadcasts, pause_ms: PAUSE.as_millis() as u64 };
            let bare_outcome = BareLoad::rounds(*members, model, args.body_bytes).run(&args.target)?;
            bare[step].push(Summary::of(&bare_outcome.rounds).median);
        }
    }
    let servers: Vec<ServerRounds<'_>> = (compared.iter().zip(&versions).zip(&rounds))
        .map(|((server, version), rounds)| ServerRounds { server, version, rounds })
        .collect();
    let mut result = RunResult::of("brokers");
    printed::tell_all(&mut result, args, &servers, &bare);
    let figures: Vec<Value> = servers.iter().map(|server| printed::record(&mut result, server)).collect();
    result.set_all(json!({
        "members": args.members, "window": args.window, "body_bytes": args.body_bytes,
        "ladder": args.ladder, "idle": args.idle, "bare_ms": bare, "servers": figures,
    }));
    Ok(result)
}

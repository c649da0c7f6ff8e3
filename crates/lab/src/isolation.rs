//! `bench isolation`: the latency of direct messages during floods: of a group, of an official account, of one user, and
//! with full queues.

use crate::{
    LabError, interrupt,
    message_clients::{GroupSpec, MessageClients, PairSpec},
    offline_push::{self, OfflinePush, OfflinePushArgs},
    options::{TargetArgs, parse_duration},
    result::{Check, RunResult, Table},
    server::Target,
    worker_protocol::{LoadModel, Outcome, Phase},
};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::time::Duration;
use tidings_protocol::http::ConversationKind;

#[derive(Debug, Clone, Args)]
pub struct IsolationArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Direct messages a second
    #[arg(long, default_value_t = 200.0)]
    pub direct_rate: f64,
    #[arg(long, default_value_t = 50)]
    pub pairs: usize,
    /// Members online of the group and followers online of the official account that are flooded
    #[arg(long, default_value_t = 300)]
    pub members: usize,
    /// Of recipients, members and followers; not of the one user's
    #[command(flatten)]
    pub offline: OfflinePushArgs,
    /// Duration of each measurement: idle, and beside each flood
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Only these floods
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Flood::Group, Flood::Official, Flood::User, Flood::Full])]
    pub floods: Vec<Flood>,
    /// Flood at this part of the rate that each flood reaches alone, instead of as fast as it goes: 0.4 leaves a core to
    /// spare on a machine with two. The flood that fills queues is left out.
    #[arg(long, value_parser = parse_share)]
    pub share: Option<f64>,
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err("must be above 0 and no more than 1".to_owned()) }
}

/// Load beside the direct messages, by default as much as the server takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Flood {
    /// A group, from many senders
    Group,
    /// An official account
    Official,
    /// One user's direct messages to one other, so many at once that the user's share of the queue is used up
    User,
    /// A group, in batches of many senders and so many at once that the queues are full
    Full,
}

/// The flood begins this much before the direct messages, and ends as much later.
const MARGIN: Duration = Duration::from_secs(2);
/// How long a flood runs alone to measure the rate that it reaches.
const ALONE: Duration = Duration::from_secs(4);
const BODY_BYTES: usize = 200;
const SENDERS: usize = 32;
/// Messages between send and last receiver that keep a lane busy.
const BUSY_WINDOW: usize = 1_000;
/// Messages between send and last receiver that are more than all queues hold.
const FULL_WINDOW: usize = 40_000;
/// Messages in one request of the floods that fill queues.
const FULL_BATCH: usize = 500;

impl Flood {
    fn name(self) -> &'static str {
        match self {
            Flood::Group => "group",
            Flood::Official => "official account",
            Flood::User => "one user",
            Flood::Full => "queues full",
        }
    }
}

/// The conversations of a flood, with the load client that sends to them.
fn set_up(
    flood: Flood,
    target: &Target,
    args: &IsolationArgs,
    push: Option<&OfflinePush>,
) -> Result<MessageClients, LabError> {
    let members = args.members;
    let online = members - args.offline.offline_of(members)?;
    // Another load client measures: one that kept to the same core would delay it.
    let spec = GroupSpec { low_priority: true, ..GroupSpec::of(members, online, SENDERS) };
    let clients = match flood {
        Flood::Group | Flood::Full => MessageClients::group(target, &args.target, &spec)?,
        Flood::Official => {
            MessageClients::group(target, &args.target, &GroupSpec { kind: ConversationKind::Official, ..spec })?
        }
        Flood::User => {
            let spec = PairSpec { low_priority: true, ..PairSpec::of(1, SENDERS) };
            MessageClients::pairs(target, &args.target, &spec)?
        }
    };
    clients.watch(target, push)?;
    Ok(clients)
}

/// A closed loop: as much as the server takes.
fn unlimited_phase(clients: &MessageClients, flood: Flood, duration: Duration) -> Phase {
    let (window, batch) = match flood {
        Flood::Group | Flood::Official => (BUSY_WINDOW, 1),
        Flood::User | Flood::Full => (FULL_WINDOW, FULL_BATCH),
    };
    clients.phase(LoadModel::ClosedLoop { window, duration_ms: duration.as_millis() as u64 }, BODY_BYTES, batch, 1)
}

/// An open loop at a share of the rate that the flood reaches alone, one message per request.
fn phase_at_share(
    clients: &mut MessageClients,
    flood: Flood,
    share: f64,
    duration: Duration,
) -> Result<Phase, LabError> {
    let model = LoadModel::ClosedLoop { window: BUSY_WINDOW, duration_ms: ALONE.as_millis() as u64 };
    let alone = clients.phase(model, BODY_BYTES, 1, 1);
    let alone = clients.load.run(&format!("the flood alone: {}", flood.name()), alone)?;
    let per_second = share * alone.messages_per_second();
    let model = LoadModel::OpenLoop { per_second, duration_ms: duration.as_millis() as u64 };
    Ok(clients.phase(model, BODY_BYTES, 1, 1))
}

/// The outcomes of direct messages beside one flood, and of the flood.
struct FloodResult {
    flood: Flood,
    direct: Outcome,
    flooding: Outcome,
}

pub(crate) fn run(args: &IsolationArgs) -> Result<RunResult, LabError> {
    let pairs = PairSpec { offline: args.offline.offline_of(args.pairs)?, ..PairSpec::of(args.pairs, SENDERS) };
    let (target, push) = args.offline.start(&args.target)?;
    let mut direct_fixture = MessageClients::pairs(&target, &args.target, &pairs)?;
    direct_fixture.watch(&target, push.as_ref())?;
    let model = LoadModel::OpenLoop { per_second: args.direct_rate, duration_ms: args.duration.as_millis() as u64 };
    let phase = direct_fixture.phase(model, BODY_BYTES, 1, 1);
    let idle = direct_fixture.load.run("direct, nothing else", phase.clone())?;
    let mut parts = Vec::new();
    // The members online of these conversations keep their sessions until all others are told.
    let mut told_sources = Vec::new();
    for flood in args.floods.iter().filter(|flood| args.share.is_none() || **flood != Flood::Full) {
        if interrupt::requested() {
            break;
        }
        let mut source = set_up(*flood, &target, args, push.as_ref())?;
        let duration = args.duration + 2 * MARGIN;
        let flooding = match args.share {
            Some(share) => phase_at_share(&mut source, *flood, share, duration)?,
            None => unlimited_phase(&source, *flood, duration),
        };
        source.load.start_phase(flooding)?;
        std::thread::sleep(MARGIN);
        let direct = direct_fixture.load.run(&format!("direct, flood: {}", flood.name()), phase.clone())?;
        let flooding = source.load.finish_phase(&format!("the flood: {}", flood.name()))?;
        parts.push(FloodResult { flood: *flood, direct, flooding });
        if push.is_some() {
            told_sources.push(source);
        }
    }
    let mut result = RunResult::of("isolation");
    result.set("share", args.share);
    result.measure("idle", idle.measured("direct messages, nothing else"));
    let mut floods = Vec::new();
    for FloodResult { flood, direct, flooding } in &parts {
        // A user who sends little is never refused because of what others send.
        let refused = direct.refused;
        let answered = Check::of_server("answers", "no message is refused beside a flood", refused == 0);
        let direct_title = format!("direct messages, flood: {}", flood.name());
        let measured = direct.measured(&direct_title).check(answered.value(format!("refused {refused}")));
        floods.push(json!({
            "flood": flood.name(), "ratio": ratio(&idle, direct), "cores": cores(direct, Some(flooding)),
            "direct": result.record(measured),
            "flooding": result.record(flooding.measured(&format!("the flood: {}", flood.name())).may_be_late()),
        }));
    }
    result.set("floods", floods);
    offline_push::conclude(push.as_ref(), &target, args.target.patience, &mut result)?;
    drop((direct_fixture, told_sources));
    result.store_check(target.finish()?);
    result.table(table_of(&idle, &parts));
    Ok(result)
}

/// The ratio of the 99th percentiles of direct messages, beside a flood to idle.
fn ratio(idle: &Outcome, direct: &Outcome) -> f64 {
    direct.latency.p99 / idle.latency.p99.max(1e-3)
}

/// How many cores the server and its load clients kept busy, that of the flood included.
fn cores(direct: &Outcome, flooding: Option<&Outcome>) -> f64 {
    let clients = [Some(direct), flooding].into_iter().flatten();
    let clients: f64 = clients.map(|outcome| outcome.client_cpu_seconds / outcome.seconds.max(1e-9)).sum();
    clients + direct.server_cpu_seconds.unwrap_or_default() / direct.seconds.max(1e-9)
}

fn table_of(idle: &Outcome, parts: &[FloodResult]) -> Table {
    let mut table = Table::of("direct messages, ms|p50|p99|p100|p99 ratio|refused|cores|flood/s|refused of it");
    let row = |direct: &Outcome, flooding: Option<&Outcome>| {
        let latency = &direct.latency;
        let figures = [latency.p50, latency.p99, latency.max, ratio(idle, direct)].map(|figure| format!("{figure:.2}"));
        figures.into_iter().chain([direct.refused.to_string(), format!("{:.2}", cores(direct, flooding))])
    };
    table.row("nothing else", row(idle, None));
    for FloodResult { flood, direct, flooding } in parts {
        let of_flood =
            [format!("{:.0}", flooding.messages_per_second()), (flooding.refused + flooding.retried).to_string()];
        table.row(flood.name(), row(direct, Some(flooding)).chain(of_flood));
    }
    table
}

//! `bench isolation`: the latency of direct messages during floods: of a group, of an official account, of one user, and
//! with full queues. It is the scenario `isolation-full-queues` with other values.

use crate::{
    LabError,
    offline_push::OfflinePushArgs,
    options::{TargetArgs, duration_text, parse_duration, value_name},
    result::RunResult,
    scenario::{self, overrides::OverriddenScenario, overview},
};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::time::Duration;
use toml::{Table, Value};

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

/// The phase without a flood.
const IDLE: &str = "nothing else";

pub(crate) fn run(args: &IsolationArgs) -> Result<RunResult, LabError> {
    let [offline_pairs, offline] = [args.offline.offline_of(args.pairs)?, args.offline.offline_of(args.members)?];
    // In the order of the scenario.
    let floods = [Flood::Group, Flood::Official, Flood::User, Flood::Full].into_iter();
    let floods = floods.filter(|flood| args.floods.contains(flood) && (args.share.is_none() || *flood != Flood::Full));
    let floods: Vec<Flood> = floods.collect();
    let phase_of = |flood: &Flood| format!("flood: {}", flood.name());
    let phases: Vec<String> = [IDLE.to_owned()].into_iter().chain(floods.iter().map(phase_of)).collect();
    let mut scenario = OverriddenScenario::shipped("isolation-full-queues")?;
    scenario.only_phases(&phases.iter().map(String::as_str).collect::<Vec<_>>());
    let share = args.offline.offline_share;
    scenario
        .set("about", "Direct messages beside floods.")?
        .set("population.direct.pairs", args.pairs as i64)?
        .set_if("population.direct.offline_share", share.filter(|_| offline_pairs > 0))?
        .set_if("server.offline_via", share.map(|_| value_name(&args.offline.offline_via)))?;
    for (flood, population) in [(Flood::Group, "group"), (Flood::Official, "official")] {
        let is_used = floods.contains(&flood) || flood == Flood::Group && floods.contains(&Flood::Full);
        let used = |value: i64| is_used.then_some(value);
        let members = format!("population.{population}.members");
        let offline_share = format!("population.{population}.offline_share");
        scenario
            .set_if(&members, used(args.members as i64))?
            .set_if(&offline_share, share.filter(|_| is_used && offline > 0))?;
    }
    for phase in &phases {
        scenario
            .set(&format!("phase.{phase}.duration"), duration_text(args.duration))?
            .set(&format!("phase.{phase}.work.0.rate"), args.direct_rate)?;
        if let (Some(share), true) = (args.share, phase != IDLE) {
            let work = format!("phase.{phase}.work.1");
            let alone = Table::from_iter([("share".to_owned(), share.into()), ("each".to_owned(), ALONE.into())]);
            let rate = Table::from_iter([("share_of_max".to_owned(), Value::Table(alone))]);
            scenario
                .set(&format!("{work}.rate"), rate)?
                .set(&format!("{work}.window"), BUSY_WINDOW)?
                .set(&format!("{work}.batch"), 1)?;
        }
    }
    let (mut result, phases) = scenario::run_command(&scenario, &args.target)?.of_command("isolation");
    let works = |number: usize| phases[number]["works"].as_array().cloned().unwrap_or_default();
    let idle = works(0).into_iter().next().unwrap_or_default();
    let floods: Vec<_> = (floods.iter().enumerate())
        .filter_map(|(number, flood)| {
            let works = works(number + 1);
            let [direct, flooding] = &works[..] else { return None };
            Some(json!({
                "flood": flood.name(), "ratio": overview::ratio(&idle, direct), "cores": overview::cores(&works),
                "direct": direct, "flooding": flooding,
            }))
        })
        .collect();
    result.set_all(json!({ "share": args.share, "idle": idle, "floods": floods }));
    Ok(result)
}

/// How long a flood runs alone to measure the rate that it reaches.
const ALONE: &str = "4s";
/// Messages between send and last receiver that keep a lane busy.
const BUSY_WINDOW: i64 = 1_000;

//! `bench group`: one group with many members online. It is the scenario `group` with other values.

use crate::{
    LabError,
    offline_push::OfflinePushArgs,
    options::{Rate, SendProtocol, TargetArgs, duration_text, parse_duration, value_name},
    result::RunResult,
    scenario::{self, overrides::OverriddenScenario},
};
use clap::Args;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Clone, Args)]
pub struct GroupArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Members online
    #[arg(long, default_value_t = 300)]
    pub members: usize,
    /// Members in all, the rest offline
    #[arg(long, conflicts_with = "offline_share")]
    pub group_size: Option<usize>,
    #[command(flatten)]
    pub offline: OfflinePushArgs,
    /// Messages a second (open loop), or `max` (closed loop)
    #[arg(long, default_value = "1000")]
    pub rate: Rate,
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    #[arg(long, default_value_t = 200)]
    pub body_bytes: usize,
    /// HTTP connections that send, or sessions with `--via ws`
    #[arg(long, default_value_t = 32)]
    pub senders: usize,
    #[arg(long, value_enum, default_value_t = SendProtocol::Http)]
    pub via: SendProtocol,
    /// Unanswered sends per session
    #[arg(long, default_value_t = 64)]
    pub pipeline: usize,
    /// Messages in one HTTP request
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// With `--rate max`: messages between send and last receiver
    #[arg(long, default_value_t = 1000)]
    pub window: usize,
    /// Every member online says once in this interval what it has stored and read; 1s without a value
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "1s", value_parser = parse_duration)]
    pub receipts: Option<Duration>,
    /// Find the highest rate whose 99th percentile is within `--target-ms`
    #[arg(long)]
    pub search: bool,
    #[arg(long, default_value_t = 500.0)]
    pub target_ms: f64,
}

pub(crate) fn run(args: &GroupArgs) -> Result<RunResult, LabError> {
    let offline = args.offline.offline_of(args.members)?;
    let online = args.members - offline;
    let members = args.group_size.unwrap_or(args.members).max(args.members);
    let title = format!("group of {members}, {online} online, over {}{}", args.via, args.offline.suffix());
    let title = if args.search { title } else { format!("{title}, {}", args.rate) };
    let mut scenario = OverriddenScenario::shipped("group")?;
    let population = "population.group";
    scenario
        .set("about", &*title)?
        .set(&format!("{population}.members"), members as i64)?
        .set_if(&format!("{population}.online"), (offline == 0).then_some(online as i64))?
        .set_if(&format!("{population}.offline_share"), args.offline.offline_share.filter(|_| offline > 0))?
        .set(&format!("{population}.senders"), args.senders as i64)?
        .set(&format!("{population}.via"), value_name(&args.via))?
        .set(&format!("{population}.body_bytes"), args.body_bytes as i64)?
        .set(&format!("{population}.pipeline"), args.pipeline as i64)?
        .set_if(&format!("{population}.receipts"), args.receipts.map(duration_text))?
        .set_if("server.offline_via", (offline > 0).then(|| value_name(&args.offline.offline_via)))?
        .set("phase.0.warm_up", "0s")?
        .set("phase.0.duration", duration_text(args.duration))?
        .set("phase.0.work.0.name", "")?
        .set("phase.0.work.0.batch", args.batch as i64)?
        .set("phase.0.work.0.window", args.window as i64)?
        .set("phase.0.work.0.rate", rate_of(args))?
        .set("phase.0.name", title)?;
    let (mut result, phases) = scenario::run_command(&scenario, &args.target)?.of_command("group");
    let found = &phases[0];
    if args.search {
        let trial = |trial: &Value| json!({ "rate": trial["rate"], "met": trial["met"], "outcome": trial["works"][0] });
        let trials = found["trials"].as_array().into_iter().flatten().map(trial).collect::<Vec<_>>();
        result.set_all(json!({ "search": trials, "target_ms": args.target_ms }));
        if !found["rate"].is_null() {
            result.set("rate", &found["rate"]);
        }
    }
    if !found["works"][0].is_null() {
        result.set("outcome", &found["works"][0]);
    }
    result.set_all(json!({ "members": online, "group_size": args.group_size.unwrap_or(args.members) }));
    Ok(result)
}

/// The longest trial of a search; the rate that it finds is then proved at full length.
const TRIAL_DURATION: Duration = Duration::from_secs(5);

fn rate_of(args: &GroupArgs) -> toml::Value {
    if !args.search {
        return args.rate.into();
    }
    let from = match args.rate {
        Rate::PerSecond(rate) => rate,
        Rate::Max => 1000.0,
    };
    let mut highest = toml::Table::new();
    highest.insert("from".into(), from.into());
    highest.insert("each".into(), duration_text(args.duration.min(TRIAL_DURATION)).into());
    highest.insert("thresholds".into(), vec![format!("p99<={}", args.target_ms)].into());
    toml::Table::from_iter([("highest".to_owned(), highest.into())]).into()
}

//! `bench events`: a consumer's webhook that fails for some conversations, while a group is as busy as it can be. It is the scenario
//! `events` with other values.

use crate::{
    LabError,
    options::{TargetArgs, duration_text, parse_duration, parse_share},
    result::RunResult,
    scenario::{self, overrides::OverriddenScenario},
};
use clap::Args;
use serde_json::json;
use std::time::Duration;
use toml::{Table, Value};

#[derive(Debug, Clone, Args)]
pub struct EventsArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Direct conversations beside the group
    #[arg(long, default_value_t = 10_000)]
    pub conversations: usize,
    /// Of these, so many of which the webhook takes nothing
    #[arg(long, default_value = "5%", value_parser = parse_share)]
    pub failing: f64,
    /// Messages a second to them, in turn
    #[arg(long, default_value_t = 500)]
    pub rate: usize,
    /// Members of the group
    #[arg(long, default_value_t = 30)]
    pub members: usize,
    /// The group's rate, as a part of what it reaches beside the webhook
    #[arg(long, default_value = "70%", value_parser = parse_share)]
    pub share: f64,
    /// Duration of the measurement
    #[arg(long, default_value = "20s", value_parser = parse_duration)]
    pub duration: Duration,
}

/// Messages a second when every conversation is sent to once.
const ONCE_RATE: f64 = 1_000.0;

pub(crate) fn run(args: &EventsArgs) -> Result<RunResult, LabError> {
    let once = Duration::from_secs_f64(args.conversations as f64 / ONCE_RATE);
    let share = Table::from_iter([("share".to_owned(), Value::Float(args.share))]);
    let mut scenario = OverriddenScenario::shipped("events")?;
    scenario
        .set("server.events_fail", args.failing)?
        .set("population.pairs.pairs", args.conversations as i64)?
        .set("population.group.members", args.members as i64)?
        .set("phase.once each.duration", duration_text(once))?
        .set("phase.once each.work.0.rate", ONCE_RATE)?
        .set("phase.both.duration", duration_text(args.duration))?
        .set("phase.both.work.pairs.rate", args.rate as i64)?
        .set("phase.both.work.group.rate", Table::from_iter([("share_of_max".to_owned(), Value::Table(share))]))?;
    let (mut result, phases) = scenario::run_command(&scenario, &args.target)?.of_command("events");
    let both = &phases[2]["works"];
    result.set_all(json!({ "conversations": args.conversations, "group": both[1], "direct": both[0] }));
    Ok(result)
}

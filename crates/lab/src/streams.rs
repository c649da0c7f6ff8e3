//! `bench streams`: many messages that grow at once, each read by its members while it is written, beside plain messages. It is the
//! scenario `streams` with other values.

use crate::{
    LabError,
    options::{TargetArgs, duration_text, parse_duration},
    result::RunResult,
    scenario::{self, overrides::OverriddenScenario},
};
use clap::Args;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Clone, Args)]
pub struct StreamsArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Messages that grow at once, each in a group of its own
    #[arg(long, default_value_t = 1000)]
    pub streams: usize,
    /// Members who read each of them
    #[arg(long, default_value_t = 2)]
    pub readers: usize,
    /// Chunks a second of each (open loop)
    #[arg(long, default_value_t = 20.0)]
    pub rate: f64,
    #[arg(long, default_value_t = 20)]
    pub chunk_bytes: usize,
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Plain direct messages a second, alone and then beside the streams; 0: none
    #[arg(long, default_value_t = 200.0)]
    pub chat_rate: f64,
}

const ALONE: &str = "nothing else";
const BESIDE: &str = "beside the streams";

pub(crate) fn run(args: &StreamsArgs) -> Result<RunResult, LabError> {
    let title = format!(
        "{} streams with {} readers each, {} chunks of {} bytes a second each",
        args.streams, args.readers, args.rate, args.chunk_bytes
    );
    let has_chat = args.chat_rate > 0.0;
    let mut scenario = OverriddenScenario::shipped("streams")?;
    scenario
        .set("population.streams.streams", args.streams as i64)?
        .set("population.streams.readers", args.readers as i64)?
        .set("population.streams.chunk_bytes", args.chunk_bytes as i64)?
        .set(&format!("phase.{BESIDE}.duration"), duration_text(args.duration))?
        .set(&format!("phase.{BESIDE}.work.streams.rate"), args.rate)?
        .set(&format!("phase.{BESIDE}.work.streams.name"), title)?;
    if has_chat {
        scenario
            .set(&format!("phase.{ALONE}.duration"), duration_text(args.duration))?
            .set(&format!("phase.{ALONE}.work.0.rate"), args.chat_rate)?
            .set(&format!("phase.{BESIDE}.work.direct messages.rate"), args.chat_rate)?;
    } else {
        scenario.only_populations(&["streams"]);
    }
    let (mut result, phases) = scenario::run_command(&scenario, &args.target)?.of_command("streams");
    let works = |phase: usize, work: usize| &phases[phase]["works"][work];
    let (alone, outcome, beside) = match has_chat {
        true => (works(0, 0), works(1, 0), works(1, 1)),
        false => (&Value::Null, works(0, 0), &Value::Null),
    };
    result.set_all(json!({
        "rate": args.rate, "chunk_bytes": args.chunk_bytes, "balances": outcome["balances"],
        "outcome": outcome, "chat_alone": alone, "chat_beside": beside,
    }));
    Ok(result)
}

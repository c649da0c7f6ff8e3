//! `bench direct`: durable direct messages, each to a connected recipient. It is the first phase of the scenario `direct` with other
//! values.

use crate::{
    LabError,
    offline_push::{OfflinePushArgs, fake_hook::HookMode},
    options::{Rate, SendProtocol, TargetArgs, duration_text, parse_duration, value_name},
    result::RunResult,
    scenario::{self, overrides::OverriddenScenario},
};
use clap::Args;
use serde_json::json;
use std::time::Duration;

#[derive(Debug, Clone, Args)]
pub struct DirectArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[arg(long, value_enum, default_value_t = SendProtocol::Http)]
    pub via: SendProtocol,
    /// Conversations, each with a sender and a connected recipient
    #[arg(long, default_value_t = 200)]
    pub pairs: usize,
    /// Of recipients. In place of one who is offline another session of the sender receives the message
    #[command(flatten)]
    pub offline: OfflinePushArgs,
    /// The server asks a hook of the lab's own
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "allows", conflicts_with_all = ["offline_share", "url"])]
    pub hook: Option<HookMode>,
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Messages a second (open loop), or `max` (closed loop)
    #[arg(long, default_value = "max")]
    pub rate: Rate,
    /// HTTP connections that send
    #[arg(long, default_value_t = 256)]
    pub connections: usize,
    /// Unanswered sends per session
    #[arg(long, default_value_t = 64)]
    pub pipeline: usize,
    #[arg(long, default_value_t = 200)]
    pub body_bytes: usize,
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// With `--rate max`: messages between send and recipient
    #[arg(long, default_value_t = 8000)]
    pub window: usize,
}

pub(crate) fn run(args: &DirectArgs) -> Result<RunResult, LabError> {
    let offline = args.offline.offline_of(args.pairs)?;
    let asked = match args.hook {
        None => "",
        Some(HookMode::Allows) => ", each asked of a hook",
        Some(HookMode::Hangs) => ", beside a group of which a hook is asked that hangs",
    };
    let title = format!("direct messages between {} pairs over {}, {}", args.pairs, args.via, args.rate);
    let title = title + &args.offline.suffix() + asked;
    let mut scenario = OverriddenScenario::shipped("direct")?;
    scenario
        .only_first_phases(1)
        .set("about", &*title)?
        .set("population.pairs.pairs", args.pairs as i64)?
        .set("population.pairs.senders", args.connections as i64)?
        .set("population.pairs.via", value_name(&args.via))?
        .set("population.pairs.body_bytes", args.body_bytes as i64)?
        .set("population.pairs.pipeline", args.pipeline as i64)?
        .set_if("population.pairs.offline_share", args.offline.offline_share.filter(|_| offline > 0))?
        .set_if("server.offline_via", (offline > 0).then(|| value_name(&args.offline.offline_via)))?
        .set_if("server.hook", args.hook.as_ref().map(value_name))?
        .set("phase.0.duration", duration_text(args.duration))?
        .set("phase.0.work.0.name", "")?
        .set("phase.0.work.0.batch", args.batch as i64)?
        .set("phase.0.work.0.window", args.window as i64)?
        .set("phase.0.work.0.rate", args.rate)?
        .set("phase.0.name", title)?;
    let (mut result, phases) = scenario::run_command(&scenario, &args.target)?.of_command("direct");
    result.set_all(json!({ "via": args.via.to_string(), "pairs": args.pairs, "outcome": phases[0]["works"][0] }));
    Ok(result)
}

//! `bench broadcast`: one message to many online members, and the time to the last, compared with the bare server. It is the
//! scenario `broadcast` with other values.

use crate::{
    LabError,
    offline_push::OfflinePushArgs,
    options::{TargetArgs, duration_text, parse_duration, value_name},
    result::RunResult,
    scenario::{self, overrides::OverriddenScenario},
};
use clap::Args;
use serde_json::json;
use std::time::Duration;

#[derive(Debug, Clone, Args)]
pub struct BroadcastArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[arg(long, default_value_t = 10_000)]
    pub members: usize,
    #[command(flatten)]
    pub offline: OfflinePushArgs,
    #[arg(long, default_value_t = 20)]
    pub rounds: usize,
    #[arg(long, default_value_t = 200)]
    pub body_bytes: usize,
    /// Between the last receiver of one round and the next send
    #[arg(long, default_value = "200ms", value_parser = parse_duration)]
    pub pause: Duration,
}

pub(crate) fn run(args: &BroadcastArgs) -> Result<RunResult, LabError> {
    let offline = args.offline.offline_of(args.members)?;
    let online = args.members - offline;
    let title = format!("broadcast to {online} online, {} rounds{}", args.rounds, args.offline.suffix());
    let mut scenario = OverriddenScenario::shipped("broadcast")?;
    scenario
        .set("about", &*title)?
        .set("population.group.members", args.members as i64)?
        .set_if("population.group.offline_share", args.offline.offline_share.filter(|_| offline > 0))?
        .set("population.group.body_bytes", args.body_bytes as i64)?
        .set_if("server.offline_via", (offline > 0).then(|| value_name(&args.offline.offline_via)))?
        .set("phase.0.work.0.name", "")?
        .set("phase.0.work.0.rounds", args.rounds as i64)?
        .set("phase.0.work.0.pause", duration_text(args.pause))?
        .set("phase.0.name", title)?;
    let (mut result, mut phases) = scenario::run_command(&scenario, &args.target)?.of_command("broadcast");
    let mut outcome = phases[0]["works"][0].take();
    let compared = outcome.as_object_mut().and_then(|outcome| outcome.remove("beside_bare_loop"));
    result.set_all(json!({ "members": args.members, "online": online, "rounds": args.rounds, "outcome": outcome }));
    result.set_all(compared.unwrap_or_default());
    Ok(result)
}

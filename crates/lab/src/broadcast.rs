//! `bench broadcast`: one message to many online members, and the time to the last, compared with the bare server.

use crate::{
    LabError,
    bare_load::BareLoad,
    group::{GroupFixture, GroupSpec},
    mix::share::MixShare,
    offline_push::{self, OfflinePushArgs},
    options::{SendProtocol, TargetArgs, parse_duration},
    result::{Check, RunResult, Table},
    worker_protocol::{LoadModel, Outcome},
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
    if args.members == 0 || args.rounds == 0 {
        return Err(LabError::Usage("--members and --rounds must be at least 1".into()));
    }
    let online = args.members - args.offline.offline_of(args.members)?;
    let (target, push) = args.offline.start(&args.target)?;
    let spec = GroupSpec {
        members: online,
        group_size: args.members,
        senders: 1,
        via: SendProtocol::Http,
        low_priority: false,
        mix: MixShare::default(),
        receipts_interval: None,
    };
    let mut fixture = GroupFixture::set_up(&target, &args.target, &spec)?;
    if let Some(push) = &push {
        push.watch(&mut target.http(), &fixture.fresh_conversation(), &fixture.offline)?;
    }
    let model = LoadModel::Rounds { rounds: args.rounds, pause_ms: args.pause.as_millis() as u64 };
    let phase = fixture.phase(model.clone(), args.body_bytes, 1, 1);
    let title = format!("broadcast to {online} online, {} rounds{}", args.rounds, args.offline.suffix());
    let outcome = fixture.load.run(&title, phase)?;
    let mut result = RunResult::of("broadcast");
    result.set_all(json!({ "members": args.members, "online": online, "rounds": args.rounds }));
    let refused = outcome.refused;
    let answered =
        Check::of_server("answers", "no message is refused", refused == 0).value(format!("refused {refused}"));
    result.measure("outcome", outcome.measured(&title).check(answered));
    offline_push::conclude(push.as_ref(), &target, args.target.patience, &mut result)?;
    drop(fixture);
    result.store_check(target.finish()?);
    // Agents load from elsewhere; a loop on this machine would say nothing about the server's.
    let bare = if args.target.load_agents.agents.is_empty() {
        Some(BareLoad::rounds(online, model, args.body_bytes).run(&args.target)?)
    } else {
        None
    };
    let mut table = Table::of(&format!("time to the last of {online} receivers, ms|median|worst|best"));
    let mut row = |name: &str, summary: &Summary| {
        table.row(name, [summary.median, summary.worst, summary.best].map(|ms| format!("{ms:.1}")));
    };
    let (last, limit) = (Summary::of(&outcome), bare.as_ref().map(Summary::of));
    row("tidings", &last);
    let ratio = limit.as_ref().map(|limit| {
        row("bare loop", limit);
        last.median / limit.median
    });
    if let Some(ratio) = ratio {
        table.row("ratio of medians", [format!("{ratio:.2}")]);
    }
    result.table(table);
    let bare = bare.map(|bare| result.record_unprinted(bare.measured("a loop that only writes")));
    result.set_all(json!({
        "last_receiver_ms": last.json(), "bare_ms": limit.as_ref().map(Summary::json), "ratio": ratio, "bare": bare,
    }));
    Ok(result)
}

/// The times of all rounds to the last receiver, in milliseconds.
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) worst: f64,
    pub(crate) best: f64,
}

impl Summary {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let mut rounds = outcome.rounds.clone();
        rounds.sort_by(f64::total_cmp);
        let at = |index: usize| rounds.get(index).copied().unwrap_or(f64::NAN);
        Summary { median: at(rounds.len() / 2), worst: at(rounds.len().saturating_sub(1)), best: at(0) }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        json!({ "median": self.median, "worst": self.worst, "best": self.best })
    }
}

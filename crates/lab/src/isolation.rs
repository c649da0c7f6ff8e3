//! `bench isolation`: what a flood in the group lane does to direct messages.

use crate::{
    LabError, Verdict,
    args::{IsolationArgs, Via},
    direct::Pairs,
    group::{Shape, Stage},
    job::Pace,
    report::{self, outcome_json},
    server::Target,
};
use serde_json::json;
use std::time::Duration;

/// The flood runs this much longer than the direct messages, and begins before them.
const MARGIN: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &IsolationArgs) -> Result<Verdict, LabError> {
    let target = Target::find(&args.target)?;
    let mut pairs = Pairs::set(&target, &args.target, args.pairs, Via::Http, 32)?;
    let shape = Shape { members: args.members, group_size: args.members, senders: 32, via: Via::Http, yielding: true };
    let mut stage = Stage::set(&target, &args.target, &shape)?;
    let duration_ms = args.duration.as_millis() as u64;
    let pace = Pace::Rate { per_second: args.direct_rate, duration_ms };

    let phase = pairs.phase(pace.clone(), 200, 1, 1);
    let idle = pairs.load.run("direct, group lane idle", phase.clone())?;
    let flood = Pace::Window { window: 1000, duration_ms: duration_ms + 2 * MARGIN.as_millis() as u64 };
    let flood = stage.phase(flood, 200, 1, 1);
    stage.load.begin(flood)?;
    std::thread::sleep(MARGIN);
    let flooded = pairs.load.run("direct, group lane saturated", phase)?;
    let group = stage.load.finish("group flood")?;
    drop((pairs, stage));
    let check = target.finish()?;

    report::print("direct messages, group lane idle", &idle);
    report::print("direct messages, group lane saturated", &flooded);
    report::print("the flood", &group);
    report::print_check(&check);
    let ratio = flooded.latency.p99 / idle.latency.p99.max(1e-3);
    println!("direct p99: {:.2} ms idle, {:.2} ms flooded, ratio {ratio:.2}", idle.latency.p99, flooded.latency.p99);
    let mut verdict = Verdict::of(&idle).and(Verdict::of(&flooded)).and(Verdict::of(&group));
    if check.as_ref().is_some_and(|check| !check.passed) {
        verdict = Verdict::Failed;
    }
    let value = json!({
        "bench": "isolation", "ratio": ratio, "idle": outcome_json(&idle), "flooded": outcome_json(&flooded),
        "flood": outcome_json(&group), "check": check,
    });
    report::write_json(args.target.json.as_deref(), &value)?;
    Ok(verdict)
}

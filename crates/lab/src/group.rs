//! `bench group`: one group with many members online.

use crate::{
    LabError, Verdict,
    args::{GroupArgs, Rate, TargetArgs, Via},
    job::{Content, Outcome, Pace, Phase},
    load::{Crowd, Load},
    process,
    report::{self, outcome_json},
    server::Target,
    setup,
};
use serde_json::{Value, json};
use std::time::Duration;
use tidings_protocol::http::ConversationKind;

/// A group on a server, with a load client connected: what several benches load.
pub(crate) struct Stage {
    pub(crate) load: Load,
    pub(crate) conversation: String,
    /// Those who receive, and are there all the time.
    pub(crate) online: Vec<String>,
    senders: Vec<String>,
    /// Over several nodes: what one refuses for the moment is for the next.
    spread: bool,
}

/// What kind of group, and who sends.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) members: usize,
    pub(crate) group_size: usize,
    pub(crate) senders: usize,
    pub(crate) via: Via,
    /// See [`Crowd::yielding`].
    pub(crate) yielding: bool,
}

impl Stage {
    /// Makes the users and the group, and connects everyone.
    pub(crate) fn set(target: &Target, args: &TargetArgs, shape: &Shape) -> Result<Self, LabError> {
        Stage::set_as(ConversationKind::Group, target, args, shape)
    }

    /// The same with an official account in its place.
    pub(crate) fn set_as(
        kind: ConversationKind,
        target: &Target,
        args: &TargetArgs,
        shape: &Shape,
    ) -> Result<Self, LabError> {
        let tag = process::run_tag();
        let mut http = target.http();
        let mut members = setup::names(&format!("{tag}-m"), shape.group_size.max(shape.members));
        // Sessions that send are members of their own: what they receive is not part of the counts.
        let ws_senders = match shape.via {
            Via::Ws => setup::names(&format!("{tag}-s"), shape.senders),
            Via::Http => Vec::new(),
        };
        let online = members[..shape.members].to_vec();
        members.splice(0..0, ws_senders.iter().cloned());
        members.truncate(shape.group_size.max(shape.members + ws_senders.len()));
        setup::named_users(&mut http, &members)?;
        let conversation = setup::room(&mut http, kind, &format!("group-{tag}"), &members)?;
        let http_senders = if shape.via == Via::Http { shape.senders } else { 0 };
        let senders = match shape.via {
            Via::Http => online.iter().take(shape.senders.max(1)).cloned().collect(),
            Via::Ws => ws_senders.clone(),
        };
        let id = conversation.id.clone();
        let crowd =
            Crowd { http_senders, ws_senders, yielding: shape.yielding, ..Crowd::of_group(conversation, &online) };
        Ok(Stage {
            load: Load::open(target, args, crowd)?,
            conversation: id,
            online,
            senders,
            spread: target.addresses().len() > 1,
        })
    }

    pub(crate) fn phase(&self, pace: Pace, body_bytes: usize, batch: usize, pipeline: usize) -> Phase {
        Phase {
            // A closed loop waits its turn; an open one counts what was refused.
            retry: self.spread || matches!(pace, Pace::Window { .. } | Pace::All { .. }),
            pace,
            content: Content::Generated { body_bytes, senders: self.senders.clone() },
            batch,
            pipeline,
        }
    }
}

pub(crate) fn run(args: &GroupArgs) -> Result<Verdict, LabError> {
    if args.members == 0 || args.senders == 0 || args.batch == 0 || args.pipeline == 0 {
        return Err(LabError::Usage("--members, --senders, --batch and --pipeline must be at least 1".into()));
    }
    let target = Target::find(&args.target)?;
    let shape = Shape {
        members: args.members,
        group_size: args.group_size.unwrap_or(args.members),
        senders: args.senders,
        via: args.via,
        yielding: false,
    };
    let mut stage = Stage::set(&target, &args.target, &shape)?;
    let title =
        format!("group of {}, {} online, over {}", shape.group_size.max(shape.members), shape.members, args.via);
    let (mut verdict, mut value) = if args.search {
        search(args, &mut stage, &title)?
    } else {
        let outcome = once(args, &mut stage, &title, args.rate, args.duration)?;
        report::print(&format!("{title}, {}", args.rate), &outcome);
        (Verdict::of(&outcome), json!({ "bench": "group", "outcome": outcome_json(&outcome) }))
    };
    drop(stage);
    let check = target.finish()?;
    report::print_check(&check);
    if check.as_ref().is_some_and(|check| !check.passed) {
        verdict = Verdict::Failed;
    }
    value["check"] = json!(check);
    value["members"] = json!(shape.members);
    value["group_size"] = json!(shape.group_size);
    report::write_json(args.target.json.as_deref(), &value)?;
    Ok(verdict)
}

fn once(args: &GroupArgs, stage: &mut Stage, title: &str, rate: Rate, duration: Duration) -> Result<Outcome, LabError> {
    let duration_ms = duration.as_millis() as u64;
    let pace = match rate {
        Rate::Max => Pace::Window { window: args.window, duration_ms },
        Rate::PerSecond(per_second) => Pace::Rate { per_second, duration_ms },
    };
    let phase = stage.phase(pace, args.body_bytes, args.batch, args.pipeline);
    stage.load.run(title, phase)
}

/// Trials in a search are shorter than its last run.
const TRIAL: Duration = Duration::from_secs(5);
/// A search ends when the highest rate that met the target and the lowest that did not are this close.
const SEARCH_PRECISION: f64 = 1.05;

/// Doubles the rate until the target is missed, then bisects, then proves what it found at full length.
fn search(args: &GroupArgs, stage: &mut Stage, title: &str) -> Result<(Verdict, Value), LabError> {
    let mut rate = match args.rate {
        Rate::PerSecond(rate) => rate,
        Rate::Max => 1000.0,
    };
    let mut trials = Vec::new();
    let mut verdict = Verdict::Passed;
    let mut met: Option<f64> = None;
    let mut missed: Option<f64> = None;
    let meets = |outcome: &Outcome| outcome.latency.p99 <= args.target_ms && outcome.refused == 0;
    loop {
        let outcome = once(args, stage, title, Rate::PerSecond(rate), args.duration.min(TRIAL))?;
        let ok = meets(&outcome);
        println!(
            "  {:>9.0}/s  p99 {:>9.2} ms  max {:>9.2} ms  refused {}  client {:.0}%  {}",
            rate,
            outcome.latency.p99,
            outcome.latency.max,
            outcome.refused,
            100.0 * outcome.client_cpu_seconds / outcome.seconds,
            if ok { "met" } else { "missed" }
        );
        trials.push(json!({ "rate": rate, "met": ok, "outcome": outcome_json(&outcome) }));
        if !outcome.balances() {
            report::print(title, &outcome);
            verdict = Verdict::Failed;
            break;
        }
        if ok {
            met = Some(rate);
        } else {
            missed = Some(rate);
        }
        rate = match (met, missed) {
            (Some(met), None) => met * 2.0,
            (None, Some(missed)) if missed < 1.0 => break,
            (None, Some(missed)) => missed / 2.0,
            (Some(met), Some(missed)) if missed / met > SEARCH_PRECISION => (met * missed).sqrt(),
            _ => break,
        };
    }
    let mut value = json!({ "bench": "group", "search": trials, "target_ms": args.target_ms });
    // Long runs hold less than short ones; step down until one holds.
    let mut sustained = met.filter(|_| verdict == Verdict::Passed);
    while let Some(rate) = sustained {
        let outcome = once(args, stage, title, Rate::PerSecond(rate), args.duration)?;
        verdict = verdict.and(Verdict::of(&outcome));
        let ok = meets(&outcome);
        if ok || verdict == Verdict::Failed || rate < 1.0 {
            report::print(&format!("{title}, highest rate with p99 <= {} ms: {rate:.0}/s", args.target_ms), &outcome);
            value["rate"] = json!(rate);
            value["outcome"] = outcome_json(&outcome);
            break;
        }
        println!("  {rate:>9.0}/s  p99 {:>9.2} ms over {:.0} s  missed", outcome.latency.p99, outcome.seconds);
        // A trial that missed says nothing about the one that will be reported.
        verdict = Verdict::Passed;
        sustained = Some(rate * 0.93);
    }
    Ok((verdict, value))
}

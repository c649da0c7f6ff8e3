//! `bench isolation`: what floods do to direct messages: of a group, of an official account, of one user, and with the
//! queues full.

use crate::{
    LabError, Verdict,
    args::{Flood, IsolationArgs, Via},
    direct::Pairs,
    group::{Shape, Stage},
    job::{Outcome, Pace, Phase},
    load::Load,
    report::{self, outcome_json},
    server::Target,
};
use serde_json::json;
use std::time::Duration;
use tidings_protocol::http::ConversationKind;

/// The flood runs this much longer than the direct messages, and begins before them.
const MARGIN: Duration = Duration::from_secs(2);
/// How long a flood runs alone to show the rate that it reaches.
const ALONE: Duration = Duration::from_secs(4);
const BODY_BYTES: usize = 200;
const SENDERS: usize = 32;
/// Messages between send and last receiver: enough to keep a lane busy, and more than all queues hold.
const BUSY_WINDOW: usize = 1_000;
const FULL_WINDOW: usize = 40_000;
/// Messages of one call of the floods that fill queues.
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

/// Who floods, and who is flooded with it.
enum Source {
    Stage(Box<Stage>),
    Pairs(Box<Pairs>),
}

impl Source {
    fn set(flood: Flood, target: &Target, args: &IsolationArgs) -> Result<Source, LabError> {
        let (members, via) = (args.members, Via::Http);
        let shape = Shape { members, group_size: members, senders: SENDERS, via, yielding: true };
        Ok(match flood {
            Flood::Group | Flood::Full => Source::Stage(Box::new(Stage::set(target, &args.target, &shape)?)),
            Flood::Official => {
                Source::Stage(Box::new(Stage::set_as(ConversationKind::Official, target, &args.target, &shape)?))
            }
            Flood::User => Source::Pairs(Box::new(Pairs::set(target, &args.target, 1, via, SENDERS)?)),
        })
    }

    fn phase(&self, pace: Pace, batch: usize) -> Phase {
        match self {
            Source::Stage(stage) => stage.phase(pace, BODY_BYTES, batch, 1),
            Source::Pairs(pairs) => pairs.phase(pace, BODY_BYTES, batch, 1),
        }
    }

    /// As fast as it goes.
    fn unbounded(&self, flood: Flood, duration: Duration) -> Phase {
        let (window, batch) = match flood {
            Flood::Group | Flood::Official => (BUSY_WINDOW, 1),
            Flood::User | Flood::Full => (FULL_WINDOW, FULL_BATCH),
        };
        self.phase(Pace::Window { window, duration_ms: duration.as_millis() as u64 }, batch)
    }

    /// At a part of the rate that it reaches alone, message by message.
    fn bounded(&mut self, flood: Flood, share: f64, duration: Duration) -> Result<Phase, LabError> {
        let alone = self.phase(Pace::Window { window: BUSY_WINDOW, duration_ms: ALONE.as_millis() as u64 }, 1);
        let alone = self.load().run(&format!("the flood alone: {}", flood.name()), alone)?;
        let per_second = share * alone.messages_per_second();
        Ok(self.phase(Pace::Rate { per_second, duration_ms: duration.as_millis() as u64 }, 1))
    }

    fn load(&mut self) -> &mut Load {
        match self {
            Source::Stage(stage) => &mut stage.load,
            Source::Pairs(pairs) => &mut pairs.load,
        }
    }
}

/// Direct messages beside one flood.
struct Part {
    flood: Flood,
    direct: Outcome,
    flooding: Outcome,
}

pub(crate) fn run(args: &IsolationArgs) -> Result<Verdict, LabError> {
    let target = Target::find(&args.target)?;
    let mut pairs = Pairs::set(&target, &args.target, args.pairs, Via::Http, SENDERS)?;
    let pace = Pace::Rate { per_second: args.direct_rate, duration_ms: args.duration.as_millis() as u64 };
    let phase = pairs.phase(pace, BODY_BYTES, 1, 1);
    let idle = pairs.load.run("direct, nothing else", phase.clone())?;
    let mut parts = Vec::new();
    for flood in args.floods.iter().filter(|flood| args.share.is_none() || **flood != Flood::Full) {
        let mut source = Source::set(*flood, &target, args)?;
        let duration = args.duration + 2 * MARGIN;
        let flooding = match args.share {
            Some(share) => source.bounded(*flood, share, duration)?,
            None => source.unbounded(*flood, duration),
        };
        source.load().begin(flooding)?;
        std::thread::sleep(MARGIN);
        let direct = pairs.load.run(&format!("direct, flood: {}", flood.name()), phase.clone())?;
        let flooding = source.load().finish("the flood")?;
        parts.push(Part { flood: *flood, direct, flooding });
    }
    drop(pairs);
    let check = target.finish()?;

    report::print("direct messages, nothing else", &idle);
    for Part { flood, direct, flooding } in &parts {
        report::print(&format!("direct messages, flood: {}", flood.name()), direct);
        report::print(&format!("the flood: {}", flood.name()), flooding);
    }
    report::print_check(&check);
    print_table(&idle, &parts);
    let mut verdict = Verdict::of(&idle);
    for Part { direct, flooding, .. } in &parts {
        verdict = verdict.and(Verdict::of(direct)).and(Verdict::of(flooding));
        // Who sends a little is never refused for what another sends.
        if direct.refused > 0 {
            verdict = Verdict::Failed;
        }
    }
    if check.as_ref().is_some_and(|check| !check.passed) {
        verdict = Verdict::Failed;
    }
    let floods: Vec<_> = (parts.iter())
        .map(|Part { flood, direct, flooding }| {
            json!({
                "flood": flood.name(), "ratio": ratio(&idle, direct), "cores": cores(direct, Some(flooding)),
                "direct": outcome_json(direct), "flooding": outcome_json(flooding),
            })
        })
        .collect();
    let value = json!({ "bench": "isolation", "share": args.share, "idle": outcome_json(&idle), "floods": floods, "check": check });
    report::write_json(args.target.json.as_deref(), &value)?;
    Ok(verdict)
}

/// How many times as long the slowest hundredth of direct messages takes.
fn ratio(idle: &Outcome, direct: &Outcome) -> f64 {
    direct.latency.p99 / idle.latency.p99.max(1e-3)
}

/// How many cores the server and its clients kept busy, flood included.
fn cores(direct: &Outcome, flooding: Option<&Outcome>) -> f64 {
    let clients = [Some(direct), flooding].into_iter().flatten();
    let clients: f64 = clients.map(|outcome| outcome.client_cpu_seconds / outcome.seconds.max(1e-9)).sum();
    clients + direct.server_cpu_seconds.unwrap_or_default() / direct.seconds.max(1e-9)
}

fn print_table(idle: &Outcome, parts: &[Part]) {
    println!("direct messages, ms     p50       p99      p100   p99 ratio  refused  cores   flood/s  refused of it");
    let row = |name: &str, direct: &Outcome, flooding: Option<&Outcome>| {
        let latency = &direct.latency;
        let (p50, p99, max) = (latency.p50, latency.p99, latency.max);
        print!("  {name:<17}{p50:>8.2}  {p99:>8.2}  {max:>8.2}  {:>8.2}  {:>8}", ratio(idle, direct), direct.refused);
        print!("  {:>5.2}", cores(direct, flooding));
    };
    row("nothing else", idle, None);
    println!();
    for Part { flood, direct, flooding } in parts {
        row(flood.name(), direct, Some(flooding));
        println!("  {:>8.0}  {:>13}", flooding.messages_per_second(), flooding.refused + flooding.retried);
    }
}

//! `bench broadcast`: one message to many online members, time to the last, beside the bare loop.

use crate::{
    LabError, Verdict,
    args::{BroadcastArgs, Via},
    group::{Shape, Stage},
    job::{Content, Conversation, Outcome, Pace, Phase},
    load::{Crowd, Load},
    process,
    report::{self, outcome_json},
    server::Target,
    setup,
};
use serde_json::json;
use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

pub(crate) fn run(args: &BroadcastArgs) -> Result<Verdict, LabError> {
    if args.members == 0 || args.rounds == 0 {
        return Err(LabError::Usage("--members and --rounds must be at least 1".into()));
    }
    let target = Target::find(&args.target)?;
    let shape = Shape { members: args.members, group_size: args.members, senders: 1, via: Via::Http, yielding: false };
    let mut stage = Stage::set(&target, &args.target, &shape)?;
    let pace = Pace::Rounds { rounds: args.rounds, pause_ms: args.pause.as_millis() as u64 };
    let phase = stage.phase(pace.clone(), args.body_bytes, 1, 1);
    let outcome = stage.load.run("broadcast", phase)?;
    drop(stage);
    let check = target.finish()?;
    let bare = run_bare(args, pace)?;

    report::print(&format!("broadcast to {} online, {} rounds", args.members, args.rounds), &outcome);
    report::print_check(&check);
    let (last, limit) = (Summary::of(&outcome), Summary::of(&bare));
    println!("time to the last of {} receivers, ms    median     worst      best", args.members);
    println!("  tidings                            {:>9.1} {:>9.1} {:>9.1}", last.median, last.worst, last.best);
    println!("  bare loop                          {:>9.1} {:>9.1} {:>9.1}", limit.median, limit.worst, limit.best);
    println!("  ratio of medians                   {:>9.2}", last.median / limit.median);
    let mut verdict = Verdict::of(&outcome).and(Verdict::of(&bare));
    if outcome.refused > 0 || check.as_ref().is_some_and(|check| !check.passed) {
        verdict = Verdict::Failed;
    }
    let value = json!({
        "bench": "broadcast", "members": args.members, "rounds": args.rounds,
        "last_receiver_ms": last.json(), "bare_ms": limit.json(), "ratio": last.median / limit.median,
        "outcome": outcome_json(&outcome), "bare": outcome_json(&bare), "check": check,
    });
    report::write_json(args.target.json.as_deref(), &value)?;
    Ok(verdict)
}

fn run_bare(args: &BroadcastArgs, pace: Pace) -> Result<Outcome, LabError> {
    let conversation = format!("group-{}", process::run_tag());
    let mut child = Command::new(std::env::current_exe()?)
        .args(["bench", "bare-server", "--receivers", &args.members.to_string(), "--conversation", &conversation])
        .args(["--avoid-core", &args.target.client_core.unwrap_or_else(process::last_core).to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let result = match line.trim().parse() {
        Err(_) => Err(LabError::Server("bare loop did not say where it listens".into())),
        Ok(address) => {
            let online = setup::names(&format!("{conversation}-m"), args.members);
            let crowd =
                Crowd { http_senders: 1, ..Crowd::of_group(Conversation { id: conversation, base_seq: 0 }, &online) };
            Load::open_bare(address, child.id(), &args.target, crowd).and_then(|mut load| {
                let content = Content::Generated { body_bytes: args.body_bytes, senders: online[..1].to_vec() };
                load.run("bare loop", Phase { pace, content, batch: 1, pipeline: 1, retry: false })
            })
        }
    };
    // Its sender has hung up by now; a failed run may have left it waiting for receivers.
    let _ = child.kill();
    child.wait()?;
    result
}

struct Summary {
    median: f64,
    worst: f64,
    best: f64,
}

impl Summary {
    fn of(outcome: &Outcome) -> Self {
        let mut rounds = outcome.rounds.clone();
        rounds.sort_by(f64::total_cmp);
        let at = |index: usize| rounds.get(index).copied().unwrap_or(f64::NAN);
        Summary { median: at(rounds.len() / 2), worst: at(rounds.len().saturating_sub(1)), best: at(0) }
    }

    fn json(&self) -> serde_json::Value {
        json!({ "median": self.median, "worst": self.worst, "best": self.best })
    }
}

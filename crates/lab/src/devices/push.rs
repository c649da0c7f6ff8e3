//! `bench push`: from asking for a push to the last of many devices, with and without chat beside it.

use super::args::DevicePushArgs;
use super::{
    pushing::Round,
    show,
    stage::{Stage, check_verdict},
    tally::PUSHES_MAX,
};
use crate::{
    LabError, Verdict,
    args::Via,
    direct::Pairs,
    job::{Outcome, Pace},
    report::{self, outcome_json},
};
use serde_json::json;
use std::time::Instant;

/// HTTP connections that send the chat beside.
const CHAT_CONNECTIONS: usize = 16;

/// What direct messages came to, alone and beside the pushes.
type Chat = (Outcome, Outcome);

pub(crate) fn run(args: &DevicePushArgs) -> Result<Verdict, LabError> {
    if args.rounds == 0 || args.rounds > PUSHES_MAX {
        return Err(LabError::Usage(format!("--rounds must be 1 to {PUSHES_MAX}")));
    }
    let devices = &args.devices.or_usual(1_000);
    let mut stage = Stage::set(devices)?;
    let ramp = stage.connect(devices)?;
    let (server, clients) = (stage.cluster.cpu_seconds(), stage.fleet.cpu_seconds());
    let (mut rounds, chat) = match args.beside_chat {
        None => (push(&mut stage, args, Instant::now())?, None),
        Some(rate) => beside_chat(&mut stage, args, rate)?,
    };
    let (server, clients) = (stage.cluster.cpu_seconds() - server, stage.fleet.cpu_seconds() - clients);
    let end = stage.settle(args.devices.target.patience)?;
    rounds.iter_mut().for_each(|round| round.settle(&end));
    let check = stage.end()?;

    show::ramp(&format!("{} devices over {}", devices.devices, devices.via), &ramp);
    println!("pushes to all");
    rounds.iter().for_each(Round::print);
    println!("  CPU          server {server:.2} s  clients {clients:.2} s");
    println!("  ms             p50       p90       p99     p99.9    p99.99      p100");
    show::row("a device", &end.push);
    show::beats(&end);
    show::problems(&end);
    let mut verdict = ramp.verdict().and(check_verdict(&check));
    if end.altered > 0 || !end.beats_balance() {
        verdict = Verdict::Failed;
    }
    verdict = rounds.iter().map(Round::verdict).fold(verdict, Verdict::and);
    if let Some((alone, beside)) = &chat {
        report::print("direct messages, no push", alone);
        report::print("direct messages beside the pushes", beside);
        verdict = verdict.and(Verdict::of(alone)).and(Verdict::of(beside));
    }
    let chat = chat.map(|(alone, beside)| json!({ "alone": outcome_json(&alone), "beside": outcome_json(&beside) }));
    let value = json!({
        "bench": "push", "via": args.devices.via, "ramp": show::ramp_json(&ramp), "rounds": rounds,
        "device_ms": end.push.percentiles(), "server_cpu_seconds": server, "client_cpu_seconds": clients,
        "heartbeats": show::beats_json(&end), "chat": chat, "check": check,
    });
    report::write_json(args.devices.target.json.as_deref(), &value)?;
    Ok(verdict)
}

/// The asked number of rounds, and more while `until` has not come.
fn push(stage: &mut Stage, args: &DevicePushArgs, until: Instant) -> Result<Vec<Round>, LabError> {
    let mut rounds = Vec::new();
    while rounds.len() < args.rounds || (Instant::now() < until && rounds.len() < PUSHES_MAX) {
        let round = Round::run(stage, rounds.len(), args.devices.target.patience)?;
        let failed = round.verdict() == Verdict::Failed;
        rounds.push(round);
        if failed {
            break;
        }
        std::thread::sleep(args.pause);
    }
    Ok(rounds)
}

/// The same chat twice: alone, and with pushes to all for as long as it lasts.
fn beside_chat(stage: &mut Stage, args: &DevicePushArgs, rate: f64) -> Result<(Vec<Round>, Option<Chat>), LabError> {
    let target = &stage.cluster.target;
    let mut pairs = Pairs::set(target, &args.devices.target, args.pairs, Via::Http, CHAT_CONNECTIONS)?;
    let pace = Pace::Rate { per_second: rate, duration_ms: args.chat_duration.as_millis() as u64 };
    let phase = pairs.phase(pace, 200, 1, 1);
    let alone = pairs.load.run("direct, no push", phase.clone())?;
    pairs.load.begin(phase)?;
    let rounds = push(stage, args, Instant::now() + args.chat_duration)?;
    let beside = pairs.load.finish("direct beside pushes")?;
    Ok((rounds, Some((alone, beside))))
}

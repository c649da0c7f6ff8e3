//! `bench connect`: devices bind, stay, and cost something.

use super::args::ConnectArgs;
use super::{
    memory::PerConnection,
    pushing::Round,
    show,
    stage::{Stage, check_verdict},
    tally::Tally,
};
use crate::{LabError, Verdict, report};
use serde_json::json;
use std::time::{Duration, Instant};

/// Between two looks at the devices while they are held.
const LOOK: Duration = Duration::from_secs(1);
/// What binding left to be freed and written is done by then, before the devices are held and measured.
const REST: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &ConnectArgs) -> Result<Verdict, LabError> {
    let devices = &args.devices.or_usual(1_000);
    let mut stage = Stage::set(devices)?;
    if args.known {
        stage.connect(devices)?;
        stage = stage.anew(devices)?;
    }
    let ramp = stage.connect(devices)?;
    std::thread::sleep(REST.min(args.hold));
    let (server, clients) = (stage.cluster.cpu_seconds(), stage.fleet.cpu_seconds());
    let held = hold(&mut stage, args.hold, devices.target.patience)?;
    let (server, clients) = (stage.cluster.cpu_seconds() - server, stage.fleet.cpu_seconds() - clients);
    let after = stage.memory();
    let each = PerConnection::between(&stage.before, &after, ramp.tally.live);
    let mut push = args.push.then(|| Round::run(&mut stage, 0, devices.target.patience)).transpose()?;
    let end = stage.settle(devices.target.patience)?;
    push.iter_mut().for_each(|push| push.settle(&end));
    let later = stage.memory();
    let presence = stage.compare_presence()?;
    let before = stage.before.clone();
    let processes = (stage.cluster.processes().len(), stage.fleet.workers());
    let check = stage.end()?;

    let title = format!(
        "{} devices over {}, {} a second, {} server and {} client processes",
        devices.devices, devices.via, devices.rate, processes.0, processes.1
    );
    show::ramp(&title.replace("as fast as it goes a second", "as fast as it goes"), &ramp);
    show::memory(&before, &after, &each);
    println!("held for {:.0} s", args.hold.as_secs_f64());
    show::beats(&held);
    println!("  CPU          server {server:.2} s  clients {clients:.2} s");
    println!("  ms             p50       p90       p99     p99.9    p99.99      p100");
    show::row("echo", &held.beat);
    println!("  server memory at the end {:.1} MiB", later.server_bytes() as f64 / 1_048_576.0);
    push.iter().for_each(Round::print);
    show::problems(&end);
    presence.print();
    let verdict = ramp.verdict().and(held_verdict(&end)).and(presence.verdict()).and(check_verdict(&check));
    let verdict = push.iter().map(Round::verdict).fold(verdict, Verdict::and);
    let value = json!({
        "bench": "connect", "via": devices.via, "ramp": show::ramp_json(&ramp), "per_connection_bytes": each,
        "before": before, "after": after, "at_end": later, "hold_seconds": args.hold.as_secs_f64(),
        "hold": show::beats_json(&held), "hold_server_cpu_seconds": server, "hold_client_cpu_seconds": clients,
        "push": push,
        "presence": presence.json(), "check": check,
    });
    report::write_json(devices.target.json.as_deref(), &value)?;
    Ok(verdict)
}

/// Heartbeats for so long, then until the last is answered.
pub(crate) fn hold(stage: &mut Stage, hold: Duration, patience: Duration) -> Result<Tally, LabError> {
    let live = report::Live::start("holding");
    let until = Instant::now() + hold;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left.min(LOOK));
        let count = stage.fleet.count()?;
        live.say(format!(
            "{:.0} s left, {} bound, heartbeats {} sent, {} answered",
            left.as_secs_f64(),
            count.live,
            count.beats_sent,
            count.beats_answered
        ));
    }
    live.end();
    stage.settle(patience)
}

/// All stayed, and every heartbeat was answered.
pub(crate) fn held_verdict(held: &Tally) -> Verdict {
    let passed = held.live == held.devices && held.breaks.is_empty() && held.beats_balance() && held.altered == 0;
    if passed { Verdict::Passed } else { Verdict::Failed }
}

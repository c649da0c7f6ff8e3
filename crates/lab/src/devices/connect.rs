//! `bench connect`: binds devices, holds their connections, and measures rates and memory.

use super::args::ConnectArgs;
use super::{
    device_counts::DeviceCounts,
    fixture::{DeviceFixture, check_verdict},
    memory::BytesPerConnection,
    output,
    push_round::PushRound,
};
use crate::{
    Finished, LabError, Verdict,
    live::{LiveBlock, WorkLength},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The interval at which devices are counted while their connections are held.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// A rest after the ramp-up, in which the server frees and writes what binding left behind, before memory is measured.
const REST_BEFORE_HOLD: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &ConnectArgs) -> Result<Finished, LabError> {
    let devices = &args.devices.with_default_devices(1_000);
    let mut fixture = DeviceFixture::set_up(devices)?;
    if args.known {
        fixture.connect(devices)?;
        fixture = fixture.restart_server(devices)?;
    }
    let ramp_up = fixture.connect(devices)?;
    std::thread::sleep(REST_BEFORE_HOLD.min(args.hold));
    let (server, clients) = (fixture.server.cpu_seconds(), fixture.clients.cpu_seconds());
    let held = hold_connections(&mut fixture, args.hold, devices.target.patience)?;
    let (server, clients) = (fixture.server.cpu_seconds() - server, fixture.clients.cpu_seconds() - clients);
    let after = fixture.memory();
    let each = BytesPerConnection::between(&fixture.before, &after, ramp_up.counts.live);
    let mut push = args.push.then(|| PushRound::run(&mut fixture, 0, devices.target.patience)).transpose()?;
    let end = fixture.settle(devices.target.patience)?;
    push.iter_mut().for_each(|push| push.settle(&end));
    let later = fixture.memory();
    let presence = fixture.compare_presence()?;
    let before = fixture.before.clone();
    let processes = (fixture.server.processes().len(), fixture.clients.workers());
    let check = fixture.end()?;

    let title = format!(
        "{} devices over {}, {} a second, {} server and {} client processes",
        devices.devices, devices.via, devices.rate, processes.0, processes.1
    );
    output::print_ramp_up(&title.replace("as fast as it goes a second", "as fast as it goes"), &ramp_up);
    output::print_memory(&before, &after, &each);
    println!("held for {:.0} s", args.hold.as_secs_f64());
    output::print_heartbeats(&held);
    println!("  CPU          server {server:.2} s  clients {clients:.2} s");
    println!("  ms             p50       p90       p99     p99.9    p99.99      p100");
    output::print_latency("echo", &held.heartbeat);
    println!("  server memory at the end {:.1} MiB", later.server_bytes() as f64 / 1_048_576.0);
    push.iter().for_each(PushRound::print);
    output::print_problems(&end);
    presence.print();
    let verdict = ramp_up.verdict().and(held_verdict(&end)).and(presence.verdict()).and(check_verdict(&check));
    let verdict = push.iter().map(PushRound::verdict).fold(verdict, Verdict::and);
    let value = json!({
        "bench": "connect", "via": devices.via, "ramp": output::ramp_up_json("connecting", &ramp_up), "per_connection_bytes": each,
        "before": before, "after": after, "at_end": later, "hold_seconds": args.hold.as_secs_f64(),
        "hold": hold_json(&held, args.hold, server, after.server_bytes()), "hold_client_cpu_seconds": clients,
        "push": push,
        "presence": presence.json(), "check": check,
    });
    Ok(Finished { verdict, figures: value })
}

/// Holds the connections with heartbeats for so long, then waits until the last heartbeat is answered.
pub(crate) fn hold_connections(
    fixture: &mut DeviceFixture,
    hold: Duration,
    patience: Duration,
) -> Result<DeviceCounts, LabError> {
    let live = LiveBlock::begin("holding", WorkLength::Time(hold));
    let until = Instant::now() + hold;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left.min(COUNT_INTERVAL));
        let count = fixture.clients.count()?;
        live.note(format!(
            "{} bound, heartbeats {} sent, {} answered",
            count.live, count.heartbeats_sent, count.heartbeats_answered
        ));
    }
    drop(live);
    fixture.settle(patience)
}

/// The heartbeats while all were held, as a measured part: their echo is the latency.
fn hold_json(held: &DeviceCounts, hold: Duration, server_cpu_seconds: f64, server_bytes: u64) -> Value {
    let mut value = output::heartbeats_json(held);
    value["title"] = json!(format!("echo of {} devices", held.live));
    value["latency"] = json!(held.heartbeat.percentiles());
    value["answers"] = json!(held.heartbeats_answered);
    value["seconds"] = json!(hold.as_secs_f64());
    // A server that is not the lab's own tells neither.
    if server_bytes > 0 {
        value["server_cpu_seconds"] = json!(server_cpu_seconds);
        value["server_rss_bytes"] = json!(server_bytes);
    }
    value
}

/// Passed if all devices stayed connected and every heartbeat was answered.
pub(crate) fn held_verdict(held: &DeviceCounts) -> Verdict {
    let passed =
        held.live == held.devices && held.disconnects.is_empty() && held.heartbeats_balance() && held.altered == 0;
    if passed { Verdict::Passed } else { Verdict::Failed }
}

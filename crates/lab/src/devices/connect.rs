//! `bench connect`: binds devices, holds their connections, and measures rates and memory.

use super::args::ConnectArgs;
use super::{
    device_counts::DeviceCounts, fixture::DeviceFixture, memory::BytesPerConnection, output, push_round::PushRound,
};
use crate::{
    LabError,
    live::{LiveBlock, WorkLength},
    result::RunResult,
};
use serde_json::json;
use std::time::{Duration, Instant};

/// The interval at which devices are counted while their connections are held.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// A rest after the ramp-up, in which the server frees and writes what binding left behind, before memory is measured.
const REST_BEFORE_HOLD: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &ConnectArgs) -> Result<RunResult, LabError> {
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
    let mut result = RunResult::of("connect");
    let title = title.replace("as fast as it goes a second", "as fast as it goes");
    result.measure("ramp", ramp_up.measured(&title));
    output::tell_memory(&mut result, &before, &after, &each);
    let mut hold = json!({
        "latency": held.heartbeat.percentiles(), "answers": held.heartbeats_answered, "seconds": args.hold.as_secs_f64(),
        "client_cpu_seconds": clients,
    });
    // A server that is not the lab's own tells neither.
    if after.server_bytes() > 0 {
        (hold["server_cpu_seconds"], hold["server_rss_bytes"]) = (json!(server), json!(after.server_bytes()));
    }
    let title = format!("echo of {} devices, held for {:.0} s", held.live, args.hold.as_secs_f64());
    result.measure("hold", output::measured_devices(&title, &held, hold));
    result.note("at the end", format!("server memory {:.1} MiB", later.server_bytes() as f64 / 1_048_576.0));
    push.iter().for_each(|push| push.record(&mut result));
    end.problems.iter().for_each(|problem| result.problem(&**problem));
    for check in [output::check_connections(&end), output::check_heartbeats(&end), output::check_bodies(&end)] {
        result.check(check);
    }
    presence.record(&mut result);
    result.store_check(check);
    result.set_all(json!({
        "via": devices.via, "per_connection_bytes": each, "before": before, "after": after, "at_end": later,
        "hold_seconds": args.hold.as_secs_f64(), "hold_client_cpu_seconds": clients, "push": push,
    }));
    Ok(result)
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

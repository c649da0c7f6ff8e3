//! `bench storm`: everybody is gone at once and wants back at once, beside a loop that only accepts.

use super::args::{DeviceArgs, StormArgs};
use super::{
    bare_accept::BareAccept,
    fleet::Fleet,
    job::{DeviceCommand, OpenDevices, Via},
    show,
    stage::{Ramp, Stage, check_verdict},
};
use crate::{LabError, Verdict, process::monotonic_ns, report};
use serde_json::json;
use std::time::Duration;

/// Every worker has heard of the storm by then, and all begin it at one moment.
const NOTICE: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &StormArgs) -> Result<Verdict, LabError> {
    let devices = &args.devices.or_usual(10_000);
    let within_ms = devices.within.as_millis() as u64;
    let mut stage = Stage::set(devices)?;
    let first = stage.connect(devices)?;
    let mut storms = Vec::new();
    for _ in 0..args.rounds {
        let at_ns = monotonic_ns() + NOTICE.as_nanos() as u64;
        storms.push(stage.ramp("storm", &DeviceCommand::Storm { at_ns, within_ms })?);
    }
    let end = stage.settle(devices.target.patience)?;
    let presence = stage.compare_presence()?;
    let (doors, workers) = (stage.cluster.doors.len(), stage.fleet.workers());
    let check = stage.end()?;
    let bare = if args.no_bare { None } else { Some(bare(devices, args.rounds, (doors, workers))?) };

    show::ramp(&format!("{} devices over {}, first connect", devices.devices, devices.via), &first);
    for storm in &storms {
        show::ramp("all dropped and back at once", storm);
    }
    show::beats(&end);
    presence.print();
    let mut verdict = first.verdict().and(presence.verdict()).and(check_verdict(&check));
    verdict = storms.iter().map(Ramp::verdict).fold(verdict, Verdict::and);
    if !end.breaks.is_empty() || !end.beats_balance() {
        verdict = Verdict::Failed;
    }
    let median = |ramps: &[Ramp]| {
        let mut rates: Vec<f64> = ramps.iter().map(|ramp| ramp.tally.binds_per_second()).collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let rate = median(&storms);
    if let Some(bare) = &bare {
        bare.iter().for_each(|ramp| show::ramp("the same storm on a loop that only accepts", ramp));
        verdict = bare.iter().map(Ramp::verdict).fold(verdict, Verdict::and);
        let limit = median(bare);
        println!("median rate    {rate:.0}/s, bare loop {limit:.0}/s, ratio {:.2}", rate / limit);
    }
    let value = json!({
        "bench": "storm", "via": devices.via, "first": show::ramp_json(&first),
        "storms": storms.iter().map(show::ramp_json).collect::<Vec<_>>(),
        "bare": bare.as_ref().map(|ramps| ramps.iter().map(show::ramp_json).collect::<Vec<_>>()),
        "rate": rate, "ratio": bare.as_ref().map(|bare| rate / median(bare)),
        "heartbeats": show::beats_json(&end), "presence": presence.json(), "check": check,
    });
    report::write_json(devices.target.json.as_deref(), &value)?;
    Ok(verdict)
}

/// The same clients and as many processes on the other side, which do nothing but answer.
fn bare(devices: &DeviceArgs, rounds: usize, (doors, workers): (usize, usize)) -> Result<Vec<Ramp>, LabError> {
    let bare = BareAccept::start(doors)?;
    let plan = OpenDevices {
        doors: bare.doors.clone(),
        via: Via::Miop,
        token_key: "of-the-usual-length-but-nobody-looks-at-it".into(),
        tag: crate::process::run_tag(),
        count: devices.devices,
        bare: true,
        ..Stage::plan(devices)
    };
    let mut fleet = Fleet::open(&plan, workers)?;
    let within_ms = devices.within.as_millis() as u64;
    fleet.run("bare loop", &DeviceCommand::Connect { per_second: None, within_ms })?;
    let mut ramps = Vec::new();
    for _ in 0..rounds {
        let clients = fleet.cpu_seconds();
        let at_ns = monotonic_ns() + NOTICE.as_nanos() as u64;
        let tally = fleet.run("bare storm", &DeviceCommand::Storm { at_ns, within_ms })?;
        let client_cpu_seconds = fleet.cpu_seconds() - clients;
        ramps.push(Ramp { tally, server_cpu_seconds: 0.0, client_cpu_seconds });
    }
    Ok(ramps)
}

//! `bench storm`: reconnect storms, in which all devices disconnect and reconnect at once, compared with a loop that only
//! accepts.

use super::args::{DeviceArgs, StormArgs};
use super::{
    bare_accept::BareAccept,
    device_clients::DeviceClients,
    fixture::{DeviceFixture, RampUp},
    output,
    worker_protocol::{DeviceCommand, DeviceProtocol, DeviceWorkerConfig},
};
use crate::{
    LabError,
    options::AgentsArgs,
    process::monotonic_ns,
    result::{Check, RunResult, filled},
};
use serde_json::{Value, json};
use std::time::Duration;

/// The time from the command to the storm, in which the command reaches every worker, so that all start at once.
const START_DELAY: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &StormArgs) -> Result<RunResult, LabError> {
    let devices = &args.devices.with_default_devices(10_000);
    let within_ms = devices.within.as_millis() as u64;
    let mut fixture = DeviceFixture::set_up(devices)?;
    let first = fixture.connect(devices)?;
    let mut storms = Vec::new();
    for _ in 0..args.rounds {
        let at_ns = monotonic_ns() + START_DELAY.as_nanos() as u64;
        storms.push(fixture.ramp_up("storm", &DeviceCommand::Storm { at_ns, within_ms })?);
    }
    let end = fixture.settle(devices.target.patience)?;
    let presence = fixture.compare_presence()?;
    let (listeners, workers) = (fixture.server.listeners.len(), fixture.clients.workers());
    let check = fixture.end()?;
    // Agents load from elsewhere: a loop on this machine would say nothing about the server's.
    let has_agents = !devices.target.load_agents.agents.is_empty();
    let bare =
        if args.no_bare || has_agents { None } else { Some(run_baseline(devices, args.rounds, (listeners, workers))?) };

    let mut result = RunResult::of("storm");
    result
        .measure("first", first.measured(&format!("{} devices over {}, first connect", devices.devices, devices.via)));
    let figures = record_all(&mut result, "storm, all dropped and back at once", &storms);
    result.set("storms", figures);
    let heartbeats = output::measured_devices("heartbeats of all", &end, json!({}));
    let gone = Check::of_server("connections", "no device is disconnected", end.disconnects.is_empty());
    let gone = gone.value(filled("{disconnects}", &end));
    result.measure("heartbeats", heartbeats.check(gone).check(output::check_heartbeats(&end)));
    presence.record(&mut result);
    result.store_check(check);
    let median = |ramp_ups: &[RampUp]| {
        let mut rates: Vec<f64> = ramp_ups.iter().map(|ramp_up| ramp_up.counts.binds_per_second()).collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let rate = median(&storms);
    let ratio = bare.as_ref().map(|bare| rate / median(bare));
    let bare = bare.map(|bare| {
        let figures = record_all(&mut result, "the same storm on a loop that only accepts", &bare);
        let limit = median(&bare);
        result.note("median rate", format!("{rate:.0}/s, bare loop {limit:.0}/s, ratio {:.2}", rate / limit));
        figures
    });
    result.set_all(json!({ "via": devices.via, "bare": bare, "rate": rate, "ratio": ratio }));
    Ok(result)
}

fn record_all(result: &mut RunResult, title: &str, ramp_ups: &[RampUp]) -> Vec<Value> {
    let all = ramp_ups.iter().enumerate();
    all.map(|(number, ramp_up)| result.record(ramp_up.measured(&format!("{title}, {}", number + 1)))).collect()
}

/// Runs the same storms with the same clients on as many processes of the baseline.
fn run_baseline(
    devices: &DeviceArgs,
    rounds: usize,
    (listeners, workers): (usize, usize),
) -> Result<Vec<RampUp>, LabError> {
    let bare = BareAccept::start(listeners)?;
    let config = DeviceWorkerConfig {
        listeners: bare.listeners.clone(),
        via: DeviceProtocol::Miop,
        token_key: "of-the-usual-length-but-nobody-looks-at-it".into(),
        tag: crate::process::run_tag(),
        count: devices.devices,
        bare: true,
        ..DeviceFixture::worker_config(devices)
    };
    let mut clients = DeviceClients::open(&config, workers, &AgentsArgs::default())?;
    let within_ms = devices.within.as_millis() as u64;
    clients.run("bare loop", &DeviceCommand::Connect { per_second: None, within_ms })?;
    let mut ramp_ups = Vec::new();
    for _ in 0..rounds {
        let cpu_before = clients.cpu_seconds();
        let at_ns = monotonic_ns() + START_DELAY.as_nanos() as u64;
        let counts = clients.run("bare storm", &DeviceCommand::Storm { at_ns, within_ms })?;
        let client_cpu_seconds = clients.cpu_seconds() - cpu_before;
        ramp_ups.push(RampUp { counts, server_cpu_seconds: 0.0, client_cpu_seconds, ..RampUp::default() });
    }
    Ok(ramp_ups)
}

//! `bench storm`: reconnect storms, in which all devices disconnect and reconnect at once, compared with a loop that only
//! accepts.

use super::args::{DeviceArgs, StormArgs};
use super::{
    bare_accept::BareAccept,
    device_clients::DeviceClients,
    fixture::{DeviceFixture, RampUp, check_verdict},
    output,
    worker_protocol::{DeviceCommand, DeviceProtocol, DeviceWorkerConfig},
};
use crate::{Finished, LabError, Verdict, options::AgentsArgs, process::monotonic_ns};
use serde_json::json;
use std::time::Duration;

/// The time from the command to the storm, in which the command reaches every worker, so that all start at once.
const START_DELAY: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &StormArgs) -> Result<Finished, LabError> {
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

    output::print_ramp_up(&format!("{} devices over {}, first connect", devices.devices, devices.via), &first);
    for storm in &storms {
        output::print_ramp_up("all dropped and back at once", storm);
    }
    output::print_heartbeats(&end);
    presence.print();
    let mut verdict = first.verdict().and(presence.verdict()).and(check_verdict(&check));
    verdict = storms.iter().map(RampUp::verdict).fold(verdict, Verdict::and);
    if !end.disconnects.is_empty() || !end.heartbeats_balance() {
        verdict = Verdict::Failed;
    }
    let median = |ramp_ups: &[RampUp]| {
        let mut rates: Vec<f64> = ramp_ups.iter().map(|ramp_up| ramp_up.counts.binds_per_second()).collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let rate = median(&storms);
    if let Some(bare) = &bare {
        bare.iter().for_each(|ramp_up| output::print_ramp_up("the same storm on a loop that only accepts", ramp_up));
        verdict = bare.iter().map(RampUp::verdict).fold(verdict, Verdict::and);
        let limit = median(bare);
        println!("median rate    {rate:.0}/s, bare loop {limit:.0}/s, ratio {:.2}", rate / limit);
    }
    let value = json!({
        "bench": "storm", "via": devices.via, "first": output::ramp_up_json("first connect", &first),
        "storms": numbered("storm", &storms),
        "bare": bare.as_ref().map(|ramp_ups| numbered("bare loop", ramp_ups)),
        "rate": rate, "ratio": bare.as_ref().map(|bare| rate / median(bare)),
        "heartbeats": output::heartbeats_json(&end), "presence": presence.json(), "check": check,
    });
    Ok(Finished { verdict, figures: value })
}

fn numbered(title: &str, ramp_ups: &[RampUp]) -> Vec<serde_json::Value> {
    let all = ramp_ups.iter().enumerate();
    all.map(|(number, ramp_up)| output::ramp_up_json(&format!("{title} {}", number + 1), ramp_up)).collect()
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

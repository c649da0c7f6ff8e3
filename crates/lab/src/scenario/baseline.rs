//! What a work is compared with, as the limit of this machine: the loop that only writes for rounds of messages, loops that only
//! accept for devices that come back at one moment.

use super::{
    ceiling::Ceiling,
    plan::{
        Plan,
        phase::Work,
        population::{DeviceSpec, Members},
    },
    works::{
        devices::{START_DELAY, figures::RampUp, set::open_bare},
        model_of,
    },
};
use crate::{
    LabError,
    bare_load::BareLoad,
    devices::{bare_accept, worker_protocol::DeviceCommand},
    message_clients::GroupSpec,
    options::TargetArgs,
    process::monotonic_ns,
    result::{Check, RunResult, Summary, Table},
    worker_protocol::LoadModel,
};
use serde_json::{Value, json};

/// What is compared.
pub(super) enum Baseline<'a> {
    Rounds {
        receivers: usize,
        model: LoadModel,
        body_bytes: usize,
    },
    /// The lab must sustain so many times the load of the work.
    Ceiling {
        factor: f64,
        load: BareLoad,
    },
    /// On as many loops as the server has listeners.
    Storm {
        devices: &'a DeviceSpec,
        listeners: usize,
    },
}

impl<'a> Baseline<'a> {
    /// Of this work.
    pub(super) fn of(plan: &'a Plan, work: &Work) -> Self {
        let members = plan.populations.get(work.worker.name()).map(|population| &population.members);
        let model = model_of(&work.load);
        match members {
            Some(Members::Devices(devices)) => {
                Baseline::Storm { devices, listeners: plan.server.gateways.max(plan.server.listeners.len()).max(1) }
            }
            Some(Members::Conversation(GroupSpec { online, senders, .. }, texts)) => {
                let (members, body_bytes) = (*online, texts.body_bytes);
                match work.lab_sustains {
                    None => Baseline::Rounds { receivers: members, model, body_bytes },
                    Some(factor) => {
                        let model = model.times(factor);
                        Baseline::Ceiling { factor, load: BareLoad { members, senders: *senders, model, body_bytes } }
                    }
                }
            }
            // The plan refuses others.
            _ => Baseline::Rounds { receivers: 1, model, body_bytes: 1 },
        }
    }

    /// Runs the same on the loop, and returns both as figures. Agents load from elsewhere: a loop on this machine would say
    /// nothing about the server's.
    pub(super) fn compare(self, args: &TargetArgs, work: &Value, result: &mut RunResult) -> Result<Value, LabError> {
        let has_agents = !args.load_agents.agents.is_empty();
        match self {
            Baseline::Rounds { receivers, model, body_bytes } => {
                let bare = BareLoad::rounds(receivers, model, body_bytes);
                let bare = if has_agents { None } else { Some(bare.run(args)?) };
                let rounds: Vec<f64> =
                    work["rounds"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
                let (last, limit) = (Summary::of(&rounds), bare.as_ref().map(|bare| Summary::of(&bare.rounds)));
                let mut table = Table::of(&format!("time to the last of {receivers} receivers, ms|median|worst|best"));
                let mut row = |name: &str, summary: &Summary| {
                    table.row(name, [summary.median, summary.worst, summary.best].map(|ms| format!("{ms:.1}")));
                };
                row("tidings", &last);
                limit.iter().for_each(|limit| row("bare loop", limit));
                let ratio = limit.as_ref().map(|limit| last.median / limit.median);
                ratio.iter().for_each(|ratio| table.row("ratio of medians", [format!("{ratio:.2}")]));
                result.table(table);
                let bare = bare.map(|bare| result.record_unprinted(bare.measured("a loop that only writes")));
                Ok(json!({
                    "last_receiver_ms": last.json(), "bare_ms": limit.as_ref().map(Summary::json), "ratio": ratio,
                    "bare": bare,
                }))
            }
            Baseline::Ceiling { .. } | Baseline::Storm { .. } if has_agents => Ok(Value::Null),
            Baseline::Ceiling { factor, load } => {
                let due = match &load.model {
                    LoadModel::OpenLoop { profile } => Some(profile.first()),
                    _ => None,
                };
                let members = load.members as f64;
                let bare = load.run(args)?;
                let figure = |name: &str| work[name].as_f64().unwrap_or_default();
                let on_server = figure("committed") / figure("seconds").max(1e-9);
                let Ceiling { ratio, sustained } = Ceiling::of(factor, on_server, due, &bare);
                let figures = result.record(bare.measured("a loop that only writes"));
                let rate = bare.messages_per_second();
                let value =
                    format!("{ratio:.1} times: {rate:.0} messages/s, {:.0} verified deliveries/s", rate * members);
                let bound = format!("sustains {factor} times the load on a loop that only writes");
                result.check(Check::of_lab("the lab's ceiling", bound, sustained).value(value));
                Ok(json!({ "factor": factor, "ratio": ratio, "sustained": sustained, "bare": figures }))
            }
            Baseline::Storm { devices, listeners } => {
                let bare = bare_storm(args, devices, listeners)?;
                let title = format!("{}, on a loop that only accepts", work["title"].as_str().unwrap_or_default());
                let ratio = work["binds_per_second"].as_f64().map(|rate| rate / bare.counts.binds_per_second());
                let bare = result.record(bare.measured(&title));
                Ok(json!({ "bare": bare, "ratio": ratio }))
            }
        }
    }
}

/// The same storm with as many load clients.
fn bare_storm(args: &TargetArgs, devices: &DeviceSpec, listeners: usize) -> Result<RampUp, LabError> {
    let loops = bare_accept::start(listeners)?;
    let mut clients = open_bare(args, devices, loops.iter().map(|bare| bare.address).collect())?;
    let within_ms = devices.within.as_millis() as u64;
    clients.run("bare loop", &DeviceCommand::Connect { per_second: None, within_ms })?;
    let cpu_before = clients.cpu_seconds();
    let at_ns = monotonic_ns() + START_DELAY.as_nanos() as u64;
    let counts = clients.run("bare storm", &DeviceCommand::Storm { at_ns, within_ms })?;
    let client_cpu_seconds = clients.cpu_seconds() - cpu_before;
    Ok(RampUp { counts, client_cpu_seconds, ..RampUp::default() })
}

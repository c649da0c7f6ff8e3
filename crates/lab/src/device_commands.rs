//! `bench connect`, `storm`, `push`, `failover` and `exceptions`: devices that bind, stay, come back, are pushed to, lose their gateway
//! and violate the protocol. They are the scenarios of these names with other values.

use crate::{
    LabError,
    client_engine::device::DeviceProtocol,
    devices::{device_clients::DEVICES_PER_PROCESS, device_counts::PUSHES_MAX, invalid_frames::VECTORS},
    options::{Rate, TargetArgs, duration_text, parse_duration, parse_setting, value_name},
    result::{RunResult, Summary},
    scenario::{self, overrides::OverriddenScenario},
};
use clap::Args;
use serde_json::{Value, json};
use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

/// The devices of a run, their clients, and the server that they connect to.
#[derive(Debug, Clone, Args)]
pub struct DeviceArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// The number of devices; unless given, as many as the bench is usually run with
    #[arg(long)]
    pub devices: Option<usize>,
    #[arg(long, value_enum, default_value_t = DeviceProtocol::Miop)]
    pub via: DeviceProtocol,
    /// With --url: where devices connect
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub listeners: Vec<SocketAddr>,
    /// With --url and --via miops: the server's certificate in PEM, valid for `localhost`
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// Gateway processes of a server of the bench's own: a number, 0 for none, or `auto`
    #[arg(long, default_value = "auto")]
    pub gateways: Gateways,
    /// A cluster of so many nodes instead of one server, with PostgreSQL and a Redis Cluster of the bench's own
    #[arg(long, conflicts_with = "server_descriptors")]
    pub nodes: Option<usize>,
    /// Client processes; one per 18000 devices unless given
    #[arg(long)]
    pub clients: Option<usize>,
    /// Connects a second (open loop), or `max` (closed loop)
    #[arg(long, default_value = "max")]
    pub rate: Rate,
    /// Connections between begun and bound, per client process
    #[arg(long, default_value_t = 256)]
    pub under_way: usize,
    /// The heartbeat interval that devices ask for
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    pub heartbeat: Duration,
    /// All devices must be bound within this
    #[arg(long, default_value = "5m", value_parser = parse_duration)]
    pub within: Duration,
    /// Files that the bench's own server may open
    #[arg(long, value_name = "NUMBER")]
    pub server_descriptors: Option<u64>,
    /// A setting of the bench's own server and gateways, such as TIDINGS_LOG_LEVEL=debug; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub settings: Vec<(String, String)>,
}

/// The number of gateway processes of a server of the bench's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gateways {
    /// None while one process can hold all devices.
    Auto,
    Count(usize),
}

impl FromStr for Gateways {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Gateways::Auto),
            _ => text.parse().map(Gateways::Count).map_err(|_| "a number or `auto`".into()),
        }
    }
}

impl DeviceArgs {
    /// Their scenario, in which they are the population `devices`, with the server that they connect to.
    fn scenario(&self, name: &str, devices: usize, gateways: usize) -> Result<OverriddenScenario, LabError> {
        if self.clients.is_some() && !self.target.load_agents.agents.is_empty() {
            return Err(LabError::Usage("--clients: agents start as many load clients as they need".into()));
        }
        let is_own = self.target.url.is_none();
        if is_own && gateways > 0 && self.via == DeviceProtocol::Ws {
            let why = "gateways hold devices, not WebSockets: --gateways 0, or another --via";
            return Err(LabError::Usage(why.into()));
        }
        let mut scenario = OverriddenScenario::shipped(name)?;
        scenario
            .set("population.devices.devices", devices as i64)?
            .set("population.devices.under_way", self.under_way as i64)?;
        if is_own {
            scenario
                .set("server.gateways", gateways as i64)?
                .set_if("server.nodes", self.nodes.map(|nodes| nodes as i64))?
                .set_if("server.descriptors", self.server_descriptors.map(|most| most as i64))?;
            for (name, value) in &self.settings {
                scenario.set(&format!("server.settings.{name}"), value.as_str())?;
            }
        } else {
            let listeners = self.listeners.iter().map(|address| toml::Value::from(address.to_string()));
            scenario
                .set("server.listeners", listeners.collect::<Vec<_>>())?
                .set_if("server.certificate", self.certificate.as_ref().map(|file| file.display().to_string()))?;
        }
        Ok(scenario)
    }

    /// The same of devices that bind, which is their first phase.
    fn binding_scenario(&self, name: &str, devices: usize, gateways: usize) -> Result<OverriddenScenario, LabError> {
        let mut scenario = self.scenario(name, devices, gateways)?;
        scenario
            .set("population.devices.via", value_name(&self.via))?
            .set_if("population.devices.clients", self.clients.map(|clients| clients as i64))?
            .set("population.devices.heartbeat", duration_text(self.heartbeat))?
            .set("population.devices.within", duration_text(self.within))?
            .set("phase.0.work.0.rate", self.rate)?
            .set("phase.0.name", format!("{devices} devices over {}, {}", value_name(&self.via), self.rate))?;
        Ok(scenario)
    }

    fn gateways(&self, devices: usize) -> usize {
        match self.gateways {
            Gateways::Count(count) => count,
            Gateways::Auto if devices <= DEVICES_PER_PROCESS => 0,
            Gateways::Auto => devices.div_ceil(DEVICES_PER_PROCESS),
        }
    }
}

/// The figures of the first work of a phase, to which a run that ends early has not come.
fn take(phases: &mut Value, phase: usize) -> Value {
    phases.pointer_mut(&format!("/{phase}/works/0")).map(Value::take).unwrap_or_default()
}

#[derive(Debug, Clone, Args)]
pub struct ConnectArgs {
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// How long all are held after the last is bound
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub hold: Duration,
    /// Push to all at the end
    #[arg(long)]
    pub push: bool,
    /// With --gateways 0: the devices have bound before, to a server that was started anew since. What connections cost
    /// is then told apart from what it costs to get to know a device
    #[arg(long)]
    pub known: bool,
}

pub(crate) fn connect(args: &ConnectArgs) -> Result<RunResult, LabError> {
    let ConnectArgs { devices, hold, .. } = args;
    let count = devices.devices.unwrap_or(1_000);
    let mut scenario = devices.binding_scenario("connect", count, devices.gateways(count))?;
    scenario.set("phase.hold.duration", duration_text(*hold))?.set("population.devices.known", args.known)?;
    if !args.push {
        scenario.only_first_phases(2);
    }
    let (mut result, mut phases) = scenario::run_command(&scenario, &devices.target)?.of_command("connect");
    let [ramp, mut hold_figures, push] = [0, 1, 2].map(|phase| take(&mut phases, phase));
    let [each, before, after] = ["per_connection_bytes", "before", "after"].map(|name| hold_figures[name].take());
    result.set_all(json!({
        "via": devices.via, "per_connection_bytes": each, "before": before, "after": after,
        "hold_seconds": hold.as_secs_f64(), "hold_client_cpu_seconds": hold_figures["client_cpu_seconds"],
        "push": push["pushes"][0], "ramp": ramp, "hold": hold_figures,
    }));
    Ok(result)
}

#[derive(Debug, Clone, Args)]
pub struct StormArgs {
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// Storms, one after the other
    #[arg(long, default_value_t = 1)]
    pub rounds: usize,
    /// Without the loop that only accepts
    #[arg(long)]
    pub no_bare: bool,
}

pub(crate) fn storm(args: &StormArgs) -> Result<RunResult, LabError> {
    let devices = &args.devices;
    let count = devices.devices.unwrap_or(10_000);
    let mut scenario = devices.binding_scenario("storm", count, devices.gateways(count))?;
    scenario.set("phase.storm.work.0.beside_bare_loop", !args.no_bare)?.repeat_last_phase(args.rounds);
    let (mut result, mut phases) = scenario::run_command(&scenario, &devices.target)?.of_command("storm");
    let works = phases.as_array_mut().into_iter().flatten().map(|phase| phase["works"][0].take());
    let mut works: Vec<Value> = works.collect();
    let mut storms = works.split_off(1.min(works.len()));
    let bare: Vec<Value> = storms.iter_mut().map(|storm| storm["beside_bare_loop"]["bare"].take()).collect();
    let median = |works: &[Value]| {
        let rates: Vec<f64> = works.iter().filter_map(|work| work["binds_per_second"].as_f64()).collect();
        (!rates.is_empty()).then(|| Summary::of(&rates).median)
    };
    let (rate, limit) = (median(&storms), median(&bare));
    let ratio = rate.zip(limit).map(|(rate, limit)| rate / limit);
    if let (Some(rate), Some(limit), Some(ratio)) = (rate, limit, ratio) {
        result.note("median rate", format!("{rate:.0}/s, bare loop {limit:.0}/s, ratio {ratio:.2}"));
    }
    result.set_all(json!({
        "via": devices.via, "first": works.pop(), "storms": storms, "bare": limit.map(|_| bare), "rate": rate,
        "ratio": ratio,
    }));
    Ok(result)
}

#[derive(Debug, Clone, Args)]
pub struct DevicePushArgs {
    #[command(flatten)]
    pub devices: DeviceArgs,
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Between the last acknowledgement of one round and the next push
    #[arg(long, default_value = "200ms", value_parser = parse_duration)]
    pub pause: Duration,
    /// Direct messages a second, alone and then beside the pushes
    #[arg(long, value_name = "RATE")]
    pub beside_chat: Option<f64>,
    /// How long those are sent, each time
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub chat_duration: Duration,
    /// Their conversations
    #[arg(long, default_value_t = 50)]
    pub pairs: usize,
}

pub(crate) fn push(args: &DevicePushArgs) -> Result<RunResult, LabError> {
    if args.rounds == 0 || args.rounds > PUSHES_MAX {
        return Err(LabError::Usage(format!("--rounds must be 1 to {PUSHES_MAX}")));
    }
    let devices = &args.devices;
    let count = devices.devices.unwrap_or(1_000);
    let mut scenario = devices.binding_scenario("push", count, devices.gateways(count))?;
    match args.beside_chat {
        Some(rate) => {
            scenario.set("population.pairs.pairs", args.pairs as i64)?;
            for (phase, work) in [("chat alone", 0), ("pushes", 1)] {
                scenario
                    .set(&format!("phase.{phase}.duration"), duration_text(args.chat_duration))?
                    .set(&format!("phase.{phase}.work.{work}.rate"), rate)?;
            }
        }
        None => {
            scenario.without("pairs").set("phase.pushes.work.0.until_end", false)?;
        }
    }
    scenario
        .set("phase.pushes.work.0.rounds", args.rounds as i64)?
        .set("phase.pushes.work.0.pause", duration_text(args.pause))?;
    let (mut result, mut phases) = scenario::run_command(&scenario, &devices.target)?.of_command("push");
    let last = if args.beside_chat.is_some() { 2 } else { 1 };
    let chat = args.beside_chat.map(|_| json!({ "alone": phases[1]["works"][0], "beside": phases[2]["works"][1] }));
    let mut pushes = take(&mut phases, last);
    let rounds = pushes["pushes"].take();
    // Of the messages that are sent alone, too.
    let alone = chat.as_ref().and_then(|chat| chat["alone"]["server_cpu_seconds"].as_f64()).unwrap_or(0.0);
    let server_cpu_seconds = pushes["server_cpu_seconds"].as_f64().map(|seconds| seconds + alone);
    result.set_all(json!({
        "via": devices.via, "rounds": rounds, "device_ms": pushes["device_ms"],
        "server_cpu_seconds": server_cpu_seconds, "client_cpu_seconds": pushes["client_cpu_seconds"],
        "chat": chat, "ramp": phases[0]["works"][0], "heartbeats": pushes,
    }));
    Ok(result)
}

#[derive(Debug, Clone, Args)]
pub struct FailoverArgs {
    /// --devices are those on the gateway that is killed
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// Devices on the other gateways, which must not notice
    #[arg(long, default_value_t = 1_000)]
    pub bystanders: usize,
    /// Between two pushes
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub push_every: Duration,
    /// The killed gateway must be forgotten within this
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    pub lease: Duration,
}

/// Pushes before the gateway is killed.
const PUSHES_BEFORE: u32 = 3;

pub(crate) fn failover(args: &FailoverArgs) -> Result<RunResult, LabError> {
    let devices = &args.devices;
    if devices.target.url.is_some() || devices.via == DeviceProtocol::Ws {
        return Err(LabError::Usage("failover kills a gateway of its own: without --url, over miop or miops".into()));
    }
    let victims = devices.devices.unwrap_or(1_000);
    let all = victims + args.bystanders;
    let gateways = match devices.gateways {
        // The remaining gateways must have room for all devices.
        Gateways::Auto => 1 + all.div_ceil(DEVICES_PER_PROCESS),
        Gateways::Count(count) if count >= 2 => count,
        Gateways::Count(_) => return Err(LabError::Usage("failover needs --gateways 2 or more".into())),
    };
    let mut scenario = devices.binding_scenario("failover", all, gateways)?;
    scenario
        .set("population.devices.on_first_gateway", victims as i64)?
        .set("phase.0.name", format!("{victims} devices on the gateway to be killed, {} elsewhere", args.bystanders))?
        .set("phase.1.work.0.pause", duration_text(args.push_every))?
        .set("phase.1.work.0.forgotten_within", duration_text(args.lease))?
        .set("fault.0.at", duration_text(PUSHES_BEFORE * args.push_every))?;
    let (mut result, mut phases) = scenario::run_command(&scenario, &devices.target)?.of_command("failover");
    let after = take(&mut phases, 1);
    let names = [
        "bound_again_seconds",
        "ghosts_seconds",
        "pushes",
        "counts",
        "got",
        "failures",
        "broken",
        "bound_again_ms",
        "push_ms",
    ];
    names.into_iter().for_each(|name| result.set(name, &after[name]));
    result.set_all(json!({
        "devices": victims, "bystanders": args.bystanders, "gateways": gateways, "ramp": phases[0]["works"][0],
    }));
    Ok(result)
}

#[derive(Debug, Clone, Args)]
pub struct ExceptionsArgs {
    /// --devices are the sockets that never bind
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// Devices whose heartbeats stop
    #[arg(long, default_value_t = 1_000)]
    pub silent: usize,
    /// The limit of descriptors that one server of the bench's own gets
    #[arg(long, default_value_t = 1_024)]
    pub descriptors: u64,
    /// The protocol's test vectors
    #[arg(long, value_name = "FOLDER", default_value = VECTORS)]
    pub vectors: PathBuf,
}

pub(crate) fn exceptions(args: &ExceptionsArgs) -> Result<RunResult, LabError> {
    let devices = &args.devices;
    if devices.via != DeviceProtocol::Miop {
        return Err(LabError::Usage("exceptions speak plain MIOP: --via miop".into()));
    }
    let gateways = match devices.gateways {
        Gateways::Auto => 0,
        Gateways::Count(count) => count,
    };
    let mut scenario = devices.scenario("exceptions", devices.devices.unwrap_or(10_000), gateways)?;
    scenario
        .set("population.devices.silent", args.silent as i64)?
        .set("population.devices.descriptors", args.descriptors as i64)?
        .set("population.devices.vectors", args.vectors.display().to_string())?;
    let (mut result, phases) = scenario::run_command(&scenario, &devices.target)?.of_command("exceptions");
    result.set("steps", &phases[0]["works"][0]["steps"]);
    Ok(result)
}

//! The devices of a run with their users and load clients, and how the server is asked about them.

use crate::{
    LabError,
    client_engine::device::DeviceProtocol,
    devices::{
        device_clients::{DEVICES_PER_PROCESS, DeviceClients},
        device_counts::DeviceCounts,
        memory::Memory,
        worker_protocol::{DeviceCommand, DeviceWorkerConfig},
    },
    options::{AgentsArgs, TargetArgs},
    process::{self, ServerProcesses},
    scenario::{plan::population::DeviceSpec, works::Surroundings},
    setup,
};
use std::{net::SocketAddr, time::Duration};
use tidings_client::http::HttpClient;

/// A device gives up after so many consecutive failures, which takes minutes with the backoff between them.
const ATTEMPTS_MAX: u32 = 40;
/// The longest time of one attempt to bind; a SYN that was dropped is sent again after 1, 3 and 7 seconds.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(20);

/// Devices with their load clients.
pub(crate) struct DeviceSet {
    pub(crate) clients: DeviceClients,
    pub(crate) spec: DeviceSpec,
    pub(crate) tag: String,
    pub(crate) patience: Duration,
    address: SocketAddr,
    api_key: String,
}

impl DeviceSet {
    /// Creates the devices' users, and starts their load clients.
    pub(crate) fn open(around: &Surroundings<'_>, spec: &DeviceSpec) -> Result<Self, LabError> {
        let tag = process::run_tag();
        setup::create_numbered_users(&mut around.target.http(), &tag, spec.devices)?;
        DeviceSet::open_known(around, spec.clone(), tag)
    }

    fn open_known(around: &Surroundings<'_>, spec: DeviceSpec, tag: String) -> Result<Self, LabError> {
        let workers = spec.clients.unwrap_or(spec.devices.div_ceil(DEVICES_PER_PROCESS)).max(1);
        if spec.devices.div_ceil(workers) > DEVICES_PER_PROCESS {
            let why = format!("{} devices: one client process holds {DEVICES_PER_PROCESS}", spec.devices);
            return Err(LabError::Usage(why));
        }
        let config = worker_config(around, &spec, &tag)?;
        let clients = DeviceClients::open(&config, workers, &around.args.load_agents)?;
        let api_key = around.target.keys().0.to_owned();
        let (address, patience) = (around.target.address(), around.args.patience);
        Ok(DeviceSet { clients, spec, tag, patience, address, api_key })
    }

    /// The same devices with load clients of their own.
    pub(crate) fn reopen(self, around: &Surroundings<'_>) -> Result<Self, LabError> {
        let DeviceSet { clients, spec, tag, .. } = self;
        drop(clients);
        DeviceSet::open_known(around, spec, tag)
    }

    /// Binds every device, at a rate or as fast as it goes.
    pub(crate) fn connect(&self, per_second: Option<f64>) -> DeviceCommand {
        let per_second = per_second.map(|rate| rate / self.clients.workers() as f64);
        DeviceCommand::Connect { per_second, within_ms: self.spec.within.as_millis() as u64 }
    }

    /// Waits until every heartbeat that was sent is answered, and returns the counts.
    pub(crate) fn settle(&mut self) -> Result<DeviceCounts, LabError> {
        self.clients.run("settling", &DeviceCommand::Settle { within_ms: self.patience.as_millis() as u64 })
    }

    pub(crate) fn memory(&self, server: &ServerProcesses) -> Memory {
        Memory::now(server, &self.clients.pids())
    }

    pub(crate) fn http(&self) -> HttpClient {
        HttpClient::new(self.address, &self.api_key)
    }

    pub(crate) fn http_address(&self) -> SocketAddr {
        self.address
    }
}

/// The configuration that all load clients of these devices share.
pub(crate) fn worker_config(
    around: &Surroundings<'_>,
    spec: &DeviceSpec,
    tag: &str,
) -> Result<DeviceWorkerConfig, LabError> {
    Ok(DeviceWorkerConfig {
        listeners: around.addresses(spec.via)?,
        certificate: around.certificate.clone().filter(|_| spec.via == DeviceProtocol::Miops),
        token_key: around.target.keys().1.to_owned(),
        tag: tag.to_owned(),
        count: spec.devices,
        first_listener_devices: spec.on_first_gateway,
        ..anonymous_config(around.args, spec)
    })
}

/// The same without a server.
fn anonymous_config(args: &TargetArgs, spec: &DeviceSpec) -> DeviceWorkerConfig {
    DeviceWorkerConfig {
        via: spec.via,
        worker: (0, 1),
        source: (rand::random_range(16..=250), 0),
        heartbeat_s: spec.heartbeat.as_secs().max(1),
        connecting_max: spec.under_way,
        attempt_ms: ATTEMPT.as_millis() as u64,
        attempts_max: ATTEMPTS_MAX,
        core: args.client_core,
        ..DeviceWorkerConfig::default()
    }
}

/// The same number of devices on loops that only accept, which look at no token.
pub(crate) fn open_bare(
    args: &TargetArgs,
    spec: &DeviceSpec,
    listeners: Vec<SocketAddr>,
) -> Result<DeviceClients, LabError> {
    let config = DeviceWorkerConfig {
        listeners,
        via: DeviceProtocol::Miop,
        token_key: "of-the-usual-length-but-nobody-looks-at-it".into(),
        tag: process::run_tag(),
        count: spec.devices,
        bare: true,
        ..anonymous_config(args, spec)
    };
    let workers = spec.clients.unwrap_or(spec.devices.div_ceil(DEVICES_PER_PROCESS)).max(1);
    DeviceClients::open(&config, workers, &AgentsArgs::default())
}

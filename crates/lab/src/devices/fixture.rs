//! Set-up and end of every bench with devices: a server, users and client processes; the final checks.

use super::args::DeviceArgs;
use super::{
    device_clients::DeviceClients,
    device_counts::DeviceCounts,
    memory::Memory,
    server_under_test::{DEVICES_PER_PROCESS, ServerUnderTest},
    worker_protocol::{DeviceCommand, DeviceWorkerConfig},
};
use crate::{
    LabError,
    options::Rate,
    phase_part::AgentOutcome,
    process,
    result::{Check, RunResult},
    sampler::{Sampler, Samples, Watched},
    server::StoreCheck,
    setup,
};
use serde_json::{Value, json};
use std::time::Duration;
use tidings_protocol::http::{ComparePresence, PresenceComparison};

/// A device gives up after so many consecutive failures, which takes minutes with the backoff between them.
const ATTEMPTS_MAX: u32 = 40;
/// The longest time of one attempt to bind; a SYN that was dropped is sent again after 1, 3 and 7 seconds.
const ATTEMPT: Duration = Duration::from_secs(20);

/// A server under test, with the load clients of its devices.
pub(crate) struct DeviceFixture {
    pub(crate) server: ServerUnderTest,
    pub(crate) clients: DeviceClients,
    pub(crate) tag: String,
    pub(crate) before: Memory,
}

impl DeviceFixture {
    pub(crate) fn set_up(args: &DeviceArgs) -> Result<Self, LabError> {
        DeviceFixture::set_up_at(args, None)
    }

    /// The first `first_listener_devices` devices connect to the first listener, all others to the other listeners.
    pub(crate) fn set_up_with_first_listener_devices(
        args: &DeviceArgs,
        first_listener_devices: usize,
    ) -> Result<Self, LabError> {
        DeviceFixture::set_up_at(args, Some(first_listener_devices))
    }

    fn set_up_at(args: &DeviceArgs, first_listener_devices: Option<usize>) -> Result<Self, LabError> {
        if args.devices == 0 || args.under_way == 0 {
            return Err(LabError::Usage("--devices and --under-way must be at least 1".into()));
        }
        if args.clients.is_some() && !args.target.load_agents.agents.is_empty() {
            return Err(LabError::Usage("--clients: agents start as many load clients as they need".into()));
        }
        let workers = args.clients.unwrap_or(args.devices.div_ceil(DEVICES_PER_PROCESS)).max(1);
        if args.devices.div_ceil(workers) > DEVICES_PER_PROCESS {
            let why = format!("{} devices: one client process holds {DEVICES_PER_PROCESS}", args.devices);
            return Err(LabError::Usage(why));
        }
        let server = ServerUnderTest::resolve(args)?;
        let tag = process::run_tag();
        setup::create_numbered_users(&mut server.http(), &tag, args.devices)?;
        DeviceFixture::open(args, server, tag, workers, first_listener_devices)
    }

    fn open(
        args: &DeviceArgs,
        server: ServerUnderTest,
        tag: String,
        workers: usize,
        first_listener_devices: Option<usize>,
    ) -> Result<Self, LabError> {
        let config = DeviceWorkerConfig {
            listeners: server.listeners.clone(),
            certificate: server.certificate.clone(),
            token_key: server.target.keys().1.to_owned(),
            tag: tag.clone(),
            first: 0,
            count: args.devices,
            first_listener_devices,
            ..DeviceFixture::worker_config(args)
        };
        let clients = DeviceClients::open(&config, workers, &args.target.load_agents)?;
        let before = Memory::now(&server.processes(), &clients.pids());
        Ok(DeviceFixture { server, clients, tag, before })
    }

    /// Disconnects all devices, and restarts the server.
    pub(crate) fn restart_server(self, args: &DeviceArgs) -> Result<Self, LabError> {
        let DeviceFixture { mut server, clients, tag, .. } = self;
        let workers = clients.workers();
        drop(clients);
        server.restart(args.via)?;
        DeviceFixture::open(args, server, tag, workers, None)
    }

    /// The configuration that all workers of a run share, without their devices.
    pub(crate) fn worker_config(args: &DeviceArgs) -> DeviceWorkerConfig {
        DeviceWorkerConfig {
            listeners: Vec::new(),
            via: args.via,
            certificate: None,
            token_key: String::new(),
            tag: String::new(),
            first: 0,
            count: 0,
            source: (rand::random_range(16..=250), 0),
            heartbeat_s: args.heartbeat.as_secs().max(1),
            connecting_max: args.under_way,
            attempt_ms: ATTEMPT.as_millis() as u64,
            attempts_max: ATTEMPTS_MAX,
            first_listener_devices: None,
            bare: false,
            never_binds: false,
            core: args.target.client_core,
            clock_ahead_ns: 0,
        }
    }

    /// Binds every device.
    pub(crate) fn connect(&mut self, args: &DeviceArgs) -> Result<RampUp, LabError> {
        let per_second = match args.rate {
            Rate::Max => None,
            Rate::PerSecond(rate) => Some(rate / self.clients.workers() as f64),
        };
        self.ramp_up("connecting", &DeviceCommand::Connect { per_second, within_ms: args.within.as_millis() as u64 })
    }

    /// Runs a command that binds devices, and measures it.
    pub(crate) fn ramp_up(&mut self, title: &str, command: &DeviceCommand) -> Result<RampUp, LabError> {
        let (server_cpu, clients_cpu) = (self.server.cpu_seconds(), self.clients.cpu_seconds());
        let sampler = Sampler::start(Watched {
            server: self.server.processes().into_iter().map(|(_, pid)| pid).collect(),
            metrics_address: Some(self.server.target.address()),
            lab_pids: self.clients.pids(),
        });
        let counts = self.clients.run(title, command);
        let samples = sampler.finish();
        Ok(RampUp {
            server_cpu_seconds: self.server.cpu_seconds() - server_cpu,
            client_cpu_seconds: self.clients.cpu_seconds() - clients_cpu,
            counts: counts?,
            samples,
            agents: self.clients.agents(),
        })
    }

    pub(crate) fn memory(&self) -> Memory {
        Memory::now(&self.server.processes(), &self.clients.pids())
    }

    /// Waits until every heartbeat that was sent is answered, and returns the counts.
    pub(crate) fn settle(&mut self, patience: Duration) -> Result<DeviceCounts, LabError> {
        self.clients.run("settling", &DeviceCommand::Settle { within_ms: patience.as_millis() as u64 })
    }

    /// Has the server compare the sessions that it holds with those that are registered.
    pub(crate) fn compare_presence(&self) -> Result<PresenceCheck, LabError> {
        DeviceFixture::compare_presence_of(&self.server)
    }

    pub(crate) fn compare_presence_of(server: &ServerUnderTest) -> Result<PresenceCheck, LabError> {
        let request = ComparePresence { repair: false };
        Ok(PresenceCheck(server.http().post("/v1/admin/presence/compare", &request)?))
    }

    /// Stops the clients, and a server that the bench started.
    pub(crate) fn end(mut self) -> Result<Option<StoreCheck>, LabError> {
        if self.server.is_own() && !self.server.is_alive() {
            return Err(LabError::Server("did not survive the run".into()));
        }
        drop(self.clients);
        self.server.finish()
    }
}

/// A ramp-up: the devices that were bound, and the CPU time that it took.
#[derive(Debug, Clone, Default)]
pub(crate) struct RampUp {
    pub(crate) counts: DeviceCounts,
    pub(crate) server_cpu_seconds: f64,
    pub(crate) client_cpu_seconds: f64,
    pub(crate) samples: Samples,
    /// Where agents loaded: what each did.
    pub(crate) agents: Vec<AgentOutcome>,
}

/// The server's comparison of the sessions that it holds with those that are registered.
#[derive(Debug, Clone)]
pub(crate) struct PresenceCheck(PresenceComparison);

/// How many differences are printed; all are counted.
const DIFFERENCES_SHOWN: usize = 5;

impl PresenceCheck {
    fn differences(&self) -> u64 {
        self.0.ghosts + self.0.missing + self.0.wrong_node
    }

    pub(crate) fn record(&self, result: &mut RunResult) {
        let PresenceComparison { registered, held, ghosts, missing, wrong_node, .. } = &self.0;
        let differences = self.differences();
        let counts = format!(
            "registered {registered}  held {held}  ghosts {ghosts}  missing {missing}  wrong node {wrong_node}"
        );
        result.note("presence", format!("{differences} differences: {counts}"));
        for difference in self.0.differences.iter().take(DIFFERENCES_SHOWN) {
            result.problem(format!("{difference:?}"));
        }
        let agrees = differences == 0 && registered == held;
        let bound = "the sessions that the server holds are those that are registered";
        result.check(Check::of_server("presence", bound, agrees).value(counts));
        result.set("presence", self.json());
    }

    fn json(&self) -> Value {
        let PresenceComparison { registered, held, ghosts, missing, wrong_node, .. } = &self.0;
        json!({
            "differences": self.differences(), "registered": registered, "held": held, "ghosts": ghosts,
            "missing": missing, "wrong_node": wrong_node,
        })
    }
}

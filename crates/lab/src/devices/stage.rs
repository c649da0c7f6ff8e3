//! What every run with devices begins and ends with: a server, users, client processes; a check of what is left.

use super::args::DeviceArgs;
use super::{
    cluster::{Cluster, DEVICES_PER_PROCESS},
    fleet::Fleet,
    job::{DeviceCommand, OpenDevices},
    memory::Memory,
    tally::Tally,
};
use crate::{LabError, Verdict, args::Rate, process, report, server::Check, setup};
use serde_json::{Value, json};
use std::time::Duration;
use tidings_protocol::http::{ComparePresence, PresenceComparison};

/// A device that failed so often in a row gives up: with the waits between, that takes minutes.
const ATTEMPTS_MAX: u32 = 40;
/// Between begin and bound; a SYN that was dropped is sent again after 1, 3 and 7 seconds.
const ATTEMPT: Duration = Duration::from_secs(20);

pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) fleet: Fleet,
    pub(crate) tag: String,
    pub(crate) before: Memory,
}

impl Stage {
    pub(crate) fn set(args: &DeviceArgs) -> Result<Self, LabError> {
        Stage::set_at(args, None)
    }

    /// The first so many devices all begin at the first door, the others at the rest.
    pub(crate) fn set_crowded(args: &DeviceArgs, crowd: usize) -> Result<Self, LabError> {
        Stage::set_at(args, Some(crowd))
    }

    fn set_at(args: &DeviceArgs, crowd_at_first_door: Option<usize>) -> Result<Self, LabError> {
        if args.devices == 0 || args.under_way == 0 {
            return Err(LabError::Usage("--devices and --under-way must be at least 1".into()));
        }
        let workers = args.clients.unwrap_or(args.devices.div_ceil(DEVICES_PER_PROCESS)).max(1);
        if args.devices.div_ceil(workers) > DEVICES_PER_PROCESS {
            let why = format!("{} devices: one client process holds {DEVICES_PER_PROCESS}", args.devices);
            return Err(LabError::Usage(why));
        }
        let cluster = Cluster::find(args)?;
        let tag = process::run_tag();
        setup::many_users(&mut cluster.http(), &tag, args.devices)?;
        Stage::open(args, cluster, tag, workers, crowd_at_first_door)
    }

    fn open(
        args: &DeviceArgs,
        cluster: Cluster,
        tag: String,
        workers: usize,
        crowd_at_first_door: Option<usize>,
    ) -> Result<Self, LabError> {
        let plan = OpenDevices {
            doors: cluster.doors.clone(),
            certificate: cluster.certificate.clone(),
            token_key: cluster.target.keys().1.to_owned(),
            tag: tag.clone(),
            first: 0,
            count: args.devices,
            crowd_at_first_door,
            ..Stage::plan(args)
        };
        let fleet = Fleet::open(&plan, workers)?;
        let before = Memory::now(&cluster.processes(), &fleet.pids());
        Ok(Stage { cluster, fleet, tag, before })
    }

    /// The same devices, all away, and a server that was started anew.
    pub(crate) fn anew(self, args: &DeviceArgs) -> Result<Self, LabError> {
        let Stage { mut cluster, fleet, tag, .. } = self;
        let workers = fleet.workers();
        drop(fleet);
        cluster.restart(args.via)?;
        Stage::open(args, cluster, tag, workers, None)
    }

    /// What all device clients of a run are told, but for who their devices are.
    pub(crate) fn plan(args: &DeviceArgs) -> OpenDevices {
        OpenDevices {
            doors: Vec::new(),
            via: args.via,
            certificate: None,
            token_key: String::new(),
            tag: String::new(),
            first: 0,
            count: 0,
            source: (rand::random_range(16..=250), 0),
            heartbeat_s: args.heartbeat.as_secs().max(1),
            under_way_max: args.under_way,
            attempt_ms: ATTEMPT.as_millis() as u64,
            attempts_max: ATTEMPTS_MAX,
            crowd_at_first_door: None,
            bare: false,
            mute: false,
            core: args.target.client_core,
        }
    }

    /// Binds every device.
    pub(crate) fn connect(&mut self, args: &DeviceArgs) -> Result<Ramp, LabError> {
        let per_second = match args.rate {
            Rate::Max => None,
            Rate::PerSecond(rate) => Some(rate / self.fleet.workers() as f64),
        };
        self.ramp("connecting", &DeviceCommand::Connect { per_second, within_ms: args.within.as_millis() as u64 })
    }

    /// Runs a command that ends with every device bound, and what it cost.
    pub(crate) fn ramp(&mut self, title: &str, command: &DeviceCommand) -> Result<Ramp, LabError> {
        let (server, clients) = (self.cluster.cpu_seconds(), self.fleet.cpu_seconds());
        let tally = self.fleet.run(title, command)?;
        Ok(Ramp {
            server_cpu_seconds: self.cluster.cpu_seconds() - server,
            client_cpu_seconds: self.fleet.cpu_seconds() - clients,
            tally,
        })
    }

    pub(crate) fn memory(&self) -> Memory {
        Memory::now(&self.cluster.processes(), &self.fleet.pids())
    }

    /// Waits until every heartbeat that was sent is answered, and counts.
    pub(crate) fn settle(&mut self, patience: Duration) -> Result<Tally, LabError> {
        self.fleet.run("settling", &DeviceCommand::Settle { within_ms: patience.as_millis() as u64 })
    }

    /// Has the server compare what it holds in memory with what it stored.
    pub(crate) fn compare_presence(&self) -> Result<Presence, LabError> {
        Stage::compare_presence_of(&self.cluster)
    }

    pub(crate) fn compare_presence_of(cluster: &Cluster) -> Result<Presence, LabError> {
        let request = ComparePresence { repair: false };
        Ok(Presence(cluster.http().post("/v1/admin/presence/compare", &request)?))
    }

    /// Ends the clients and a server of our own.
    pub(crate) fn end(mut self) -> Result<Option<Check>, LabError> {
        if self.cluster.is_own() && !self.cluster.is_alive() {
            return Err(LabError::Server("did not survive the run".into()));
        }
        drop(self.fleet);
        self.cluster.finish()
    }
}

/// Devices that came to be bound, and the CPU that it took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ramp {
    pub(crate) tally: Tally,
    pub(crate) server_cpu_seconds: f64,
    pub(crate) client_cpu_seconds: f64,
}

impl Ramp {
    pub(crate) fn verdict(&self) -> Verdict {
        let tally = &self.tally;
        if tally.live != tally.devices || tally.given_up > 0 || tally.altered > 0 {
            return if tally.lab_troubles > 0 { Verdict::LabFellBehind } else { Verdict::Failed };
        }
        let fell_behind = tally.lab_troubles > 0 || tally.lateness.percentiles().p99 > LATENESS_MS_MAX;
        if fell_behind { Verdict::LabFellBehind } else { Verdict::Passed }
    }
}

/// A client that begins its connects later than this at the 99th percentile shapes what it measures.
const LATENESS_MS_MAX: f64 = 100.0;

/// What the server says of its sessions: those in memory, and those that it has registered.
#[derive(Debug, Clone)]
pub(crate) struct Presence(PresenceComparison);

/// Differences that are printed; all are counted.
const DIFFERENCES_SHOWN: usize = 5;

impl Presence {
    pub(crate) fn differences(&self) -> u64 {
        self.0.ghosts + self.0.missing + self.0.wrong_node
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let agrees = self.differences() == 0 && self.0.registered == self.0.held;
        if agrees { Verdict::Passed } else { Verdict::Failed }
    }

    pub(crate) fn print(&self) {
        let PresenceComparison { registered, held, ghosts, missing, wrong_node, .. } = &self.0;
        println!(
            "presence       {} differences: registered {registered}  held {held}  ghosts {ghosts}  missing {missing}  \
             wrong node {wrong_node}",
            self.differences()
        );
        for difference in self.0.differences.iter().take(DIFFERENCES_SHOWN) {
            println!("  ! {difference:?}");
        }
    }

    pub(crate) fn json(&self) -> Value {
        let PresenceComparison { registered, held, ghosts, missing, wrong_node, .. } = &self.0;
        json!({
            "differences": self.differences(), "registered": registered, "held": held, "ghosts": ghosts,
            "missing": missing, "wrong_node": wrong_node,
        })
    }
}

pub(crate) fn check_verdict(check: &Option<Check>) -> Verdict {
    report::print_check(check);
    if check.as_ref().is_some_and(|check| !check.passed) { Verdict::Failed } else { Verdict::Passed }
}

//! Devices of a population: they bind, stay with heartbeats, come back at one moment, and are pushed to.
//!
//! In reading order: [`set`], the devices of a run with their load clients; [`figures`], what they are as measurements, and what they
//! are held to; [`failover`], the task that goes on while a gateway is killed.

mod failover;
pub(crate) mod figures;
pub(crate) mod set;

use super::{Job, Surroundings, WorkResult};
use crate::{
    LabError,
    devices::{
        device_counts::{DeviceCounts, PUSHES_MAX},
        memory::{BytesPerConnection, Memory},
        push_round::PushRound,
        worker_protocol::DeviceCommand,
    },
    interrupt,
    live::{LiveBlock, WorkLength},
    process::{ServerProcesses, monotonic_ns},
    rate_profile::PlannedTimes,
    result::{Measurement, RunResult, Verdict, filled},
    sampler::Sampler,
    scenario::{
        plan::{phase::Load, population::DeviceSpec},
        trouble::Trouble,
    },
};
use figures::{PresenceCheck, RampUp};
use serde_json::json;
use set::DeviceSet;
use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

/// The time from the command to the storm, in which the command reaches every load client, so that all start at once.
pub(crate) const START_DELAY: Duration = Duration::from_millis(500);
/// The interval at which devices are counted while their connections are held.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// A rest after the ramp-up, in which the server frees and writes what binding left behind, before memory is measured.
const REST_BEFORE_HOLD: Duration = Duration::from_secs(1);

/// A gateway that the lab has killed.
#[derive(Debug, Clone)]
pub(crate) struct KilledGateway {
    pub(crate) at: Instant,
    pub(crate) at_ns: u64,
    pub(crate) addresses: Vec<SocketAddr>,
}

pub(crate) struct DeviceWorker {
    set: DeviceSet,
    /// Before any device was bound.
    before: Option<Memory>,
    /// Rounds of all phases so far: each has a number of its own.
    rounds: usize,
    /// Whether binding is a task of its own, and the server's presence is compared in the end.
    binds_by_task: bool,
    /// Whether no connection may end: the server is not killed on purpose.
    must_stay: bool,
    /// Of all phases. Copies may come until the end.
    pushes: Vec<PushRound>,
    killed_gateway: Arc<OnceLock<KilledGateway>>,
}

impl DeviceWorker {
    /// `first`: what they do first. Unless that is to bind, they are bound before.
    pub(crate) fn open(around: &Surroundings<'_>, spec: &DeviceSpec, first: &Load) -> Result<Self, LabError> {
        let mut worker = DeviceWorker {
            set: DeviceSet::open(around, spec)?,
            before: None,
            rounds: 0,
            binds_by_task: matches!(first, Load::Bind { .. }),
            must_stay: true,
            pushes: Vec::new(),
            killed_gateway: around.killed_gateway.clone(),
        };
        if !worker.binds_by_task {
            worker.bind_all()?;
        }
        Ok(worker)
    }

    fn bind_all(&mut self) -> Result<(), LabError> {
        let devices = self.set.spec.devices;
        let live = self.set.clients.run("connecting", &self.set.connect(None))?.live;
        if live != devices as u64 {
            return Err(LabError::Server(format!("bound {live} of {devices} devices")));
        }
        Ok(())
    }

    /// Binds all and ends their load clients, so that the server knows them.
    pub(crate) fn make_known(mut self) -> Result<Self, LabError> {
        self.bind_all()?;
        Ok(self)
    }

    /// Goes on with load clients of its own for the same devices, after the server was started anew.
    pub(crate) fn reopen(self, around: &Surroundings<'_>) -> Result<Self, LabError> {
        Ok(DeviceWorker { set: self.set.reopen(around)?, ..self })
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        match job.load {
            Load::Bind { per_second } => {
                self.before = Some(self.set.memory(&job.server));
                self.ramp_up(job, &self.set.connect(*per_second))
            }
            Load::Reconnect => {
                let at_ns = monotonic_ns() + START_DELAY.as_nanos() as u64;
                let within_ms = self.set.spec.within.as_millis() as u64;
                self.ramp_up(job, &DeviceCommand::Storm { at_ns, within_ms })
            }
            Load::Stay { lasts } => self.stay(job, *lasts),
            Load::Outlive { pause, forgotten_within } => {
                self.must_stay = false;
                self.outlive(job, *pause, *forgotten_within)
            }
            _ => self.push(job),
        }
    }

    /// Runs a command that binds devices, and measures it.
    fn ramp_up(&mut self, job: &Job<'_>, command: &DeviceCommand) -> Result<WorkResult, LabError> {
        let clients_cpu = self.set.clients.cpu_seconds();
        let used = Sampler::start(job.server.clone(), Some(self.set.http_address()), self.set.clients.pids());
        let counts = self.set.clients.run(&job.title, command)?;
        let (samples, server_cpu_seconds, _) = used.finish();
        let client_cpu_seconds = self.set.clients.cpu_seconds() - clients_cpu;
        let agents = self.set.clients.agents();
        let ramp_up = RampUp { counts, samples, server_cpu_seconds, client_cpu_seconds, agents };
        Ok(result_of(ramp_up.measured(&job.title)))
    }

    /// Holds the connections with heartbeats for so long, then waits until the last heartbeat is answered.
    fn stay(&mut self, job: &Job<'_>, lasts: Duration) -> Result<WorkResult, LabError> {
        std::thread::sleep(REST_BEFORE_HOLD.min(lasts));
        let used = Sampler::start(job.server.clone(), Some(self.set.http_address()), self.set.clients.pids());
        let clients = self.set.clients.cpu_seconds();
        let bound = self.set.clients.count()?.live;
        let live = LiveBlock::begin(&job.title, WorkLength::Time(lasts));
        let until = Instant::now() + lasts;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            && !interrupt::requested()
        {
            std::thread::sleep(left.min(COUNT_INTERVAL));
            let count = self.set.clients.count()?;
            let (sent, answered) = (count.heartbeats_sent, count.heartbeats_answered);
            live.note(format!("{} bound, heartbeats {sent} sent, {answered} answered", count.live));
        }
        drop(live);
        let held = self.set.settle()?;
        let after = self.set.memory(&job.server);
        let (samples, server_cpu_seconds, _) = used.finish();
        let figures = json!({
            "latency": held.heartbeat.percentiles(), "answers": held.heartbeats_answered, "seconds": lasts.as_secs_f64(),
            "client_cpu_seconds": self.set.clients.cpu_seconds() - clients, "samples": samples,
            "server_cpu_seconds": server_cpu_seconds, "server_rss_bytes": job.server.resident_bytes(),
        });
        let title = format!("{}: echo of {} devices", job.title, held.live);
        let mut measured = figures::of_devices(&title, &held, figures);
        if let Some(before) = &self.before {
            let each = BytesPerConnection::between(before, &after, bound);
            measured = figures::with_memory(measured, before, &after, &each);
        }
        Ok(result_of(measured))
    }

    fn push(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        let used = Sampler::start(job.server.clone(), Some(self.set.http_address()), self.set.clients.pids());
        let clients = self.set.clients.cpu_seconds();
        let (start, start_ns) = (Instant::now(), monotonic_ns());
        let live = LiveBlock::begin(&job.title, WorkLength::Unknown);
        let first = self.pushes.len();
        let mut late_ms: f64 = 0.0;
        match job.load {
            Load::Rounds { rounds, pause, at_least } => {
                let mut count = 0;
                while (count < *rounds || start.elapsed() < *at_least && self.rounds < PUSHES_MAX)
                    && !interrupt::requested()
                {
                    if count > 0 {
                        std::thread::sleep(*pause);
                    }
                    if !self.round(&live)? {
                        break;
                    }
                    count += 1;
                }
            }
            Load::Planned(profile) => {
                let times = PlannedTimes::of(profile);
                for due_ns in (0..).map_while(|number| times.due(number)) {
                    if interrupt::requested() {
                        break;
                    }
                    std::thread::sleep(Duration::from_nanos((start_ns + due_ns).saturating_sub(monotonic_ns())));
                    late_ms = late_ms.max(monotonic_ns().saturating_sub(start_ns + due_ns) as f64 / 1e6);
                    self.round(&live)?;
                }
            }
            _ => return Err(LabError::Usage("devices are pushed to in rounds, or at a planned rate".into())),
        }
        drop(live);
        let seconds = start.elapsed().as_secs_f64();
        let end = self.settle()?;
        let (samples, server_cpu_seconds, server_rss_bytes) = used.finish();
        let rounds = &self.pushes[first..];
        let device_ms = end.push.percentiles();
        let figures = json!({
            "latency": device_ms, "device_ms": device_ms, "planned": rounds.len(), "seconds": seconds,
            "answers": rounds.iter().map(|round| round.got.devices).sum::<u64>(), "latest_push_ms": late_ms,
            "pushes": rounds, "samples": samples, "server_cpu_seconds": server_cpu_seconds,
            "server_rss_bytes": server_rss_bytes, "client_cpu_seconds": self.set.clients.cpu_seconds() - clients,
        });
        let mut measured = figures::of_devices(&job.title, &end, figures);
        for round in rounds {
            measured = measured.remark(round.in_words()).check(round.check());
        }
        let measured = measured.check(figures::check_bodies(&end)).check(figures::check_heartbeats(&end));
        Ok(result_of(measured))
    }

    /// One push to all; returns whether every device has it once, and the server says so.
    fn round(&mut self, live: &LiveBlock) -> Result<bool, LabError> {
        let http = self.set.http();
        let DeviceSet { clients, tag, patience, .. } = &mut self.set;
        let round = PushRound::run(clients, http, (tag, self.rounds), *patience)?;
        self.rounds += 1;
        let is_met = round.check().is_met();
        self.pushes.push(round);
        live.note(format!("{} pushes", self.pushes.len()));
        Ok(is_met)
    }

    /// Waits until every heartbeat that was sent is answered, and takes over copies that came after their push was waited for.
    fn settle(&mut self) -> Result<DeviceCounts, LabError> {
        let end = self.set.settle()?;
        self.pushes.iter_mut().for_each(|push| push.settle(&end));
        Ok(end)
    }

    /// What can be asked only when all work is done, while the server runs.
    pub(crate) fn conclude(&mut self, server: &ServerProcesses, result: &mut RunResult) -> Result<(), LabError> {
        let end = self.settle()?;
        let at_end = self.set.memory(server);
        if at_end.server_bytes() > 0 {
            let bytes = json!({ "bytes": at_end.server_bytes() });
            result.note("at the end", format!("server memory {}", filled("{bytes:MiB}", &bytes)));
        }
        end.problems.iter().for_each(|problem| result.problem(&**problem));
        result.check(match self.must_stay {
            true => figures::check_connections(&end),
            false => figures::check_live(&end),
        });
        for check in [figures::check_heartbeats(&end), figures::check_bodies(&end)] {
            result.check(check);
        }
        self.pushes.iter().for_each(|push| result.check(push.check()));
        result.set("at_end", at_end);
        if self.binds_by_task {
            PresenceCheck::compare(self.set.http())?.record(result);
        }
        Ok(())
    }
}

/// What devices are held to is a balance.
fn result_of(measured: Measurement) -> WorkResult {
    let failed = measured.verdict() == Verdict::Failed;
    let trouble = failed.then(|| Trouble::Balance("devices are not as they must be".into()));
    WorkResult { trouble, measured }
}

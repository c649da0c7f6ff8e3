//! Connections that come and go: each binds when it is due, stays, and goes. They are devices, by their load clients.

use super::{Job, Surroundings, WorkResult, devices::set::DeviceSet, figures::Figures};
use crate::{
    LabError,
    devices::{device_counts::DeviceCounts, worker_protocol::DeviceCommand},
    load_times::TimeFigures,
    process::{ServerProcesses, monotonic_ns},
    result::Check,
    sampler::Sampler,
    scenario::{
        plan::{phase::Load, population::DeviceSpec},
        trouble::Trouble,
    },
    server::Target,
};
use std::{path::PathBuf, time::Duration};

/// The time in which the command reaches every load client, so that all start at once.
const START_DELAY: Duration = Duration::from_millis(100);
/// Connections that are due at the end of a phase must have come by then.
const LATE_MAX: Duration = Duration::from_secs(60);
/// A server that has opened this share of its descriptors keeps the others for itself.
const DESCRIPTORS_FULL: f64 = 0.8;
/// What a server logs that has fewer places for connections than it is set to, for want of descriptors.
const DESCRIPTORS_IN_LOG: &str = "file descriptors";

pub(crate) struct ConnectionWorker {
    set: DeviceSet,
    stay: Option<Duration>,
    /// Of a server that the lab has started.
    server_log: Option<PathBuf>,
    lag_max: Duration,
}

impl ConnectionWorker {
    pub(crate) fn open(
        around: &Surroundings<'_>,
        devices: &DeviceSpec,
        stay: Option<Duration>,
    ) -> Result<Self, LabError> {
        let server_log = match around.target {
            Target::Own(own) => Some(own.log_file()),
            Target::Running { .. } => None,
        };
        let lag_max = around.args.lag_max;
        Ok(ConnectionWorker { set: DeviceSet::open(around, devices)?, stay, server_log, lag_max })
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        let Load::Planned(profile) = job.load else {
            return Err(LabError::Usage("connections come at a rate that is planned".into()));
        };
        let used = Sampler::start(job.server.clone(), Some(self.set.http_address()), self.set.clients.pids());
        let visit = DeviceCommand::Visit {
            profile: profile.clone(),
            at_ns: monotonic_ns() + START_DELAY.as_nanos() as u64,
            stay_ms: self.stay.map(|stay| stay.as_millis() as u64),
            within_ms: LATE_MAX.as_millis() as u64,
        };
        let counts = self.set.clients.run(&job.title, &visit)?;
        // While the connections that stay are open.
        let trouble = self.trouble_of(&counts, &job.server);
        self.set.clients.run("disconnecting", &DeviceCommand::Disconnect)?;
        let (samples, server_cpu_seconds, server_rss_bytes) = used.finish();
        let planned = profile.messages();
        let (refused, broken) = (sum(&counts.failures), sum(&counts.disconnects));
        let mut problems = counts.problems.clone();
        problems.extend(counts.disconnects.iter().map(|(why, count)| format!("{count} connections ended: {why}")));
        let never_begun = planned.saturating_sub(counts.bound + refused);
        if never_begun > 0 {
            problems.push(format!("{never_begun} connections found no place before those that were under way"));
        }
        let lateness = counts.lateness.percentiles();
        let figures = Figures {
            title: job.title.clone(),
            planned,
            answers: counts.bound,
            refused,
            refused_by_code: counts.failures.clone(),
            broken,
            // What has no answer has not come true.
            wrong: never_begun,
            seconds: counts.seconds().max(profile.seconds()),
            times: TimeFigures {
                latency: counts.bind.percentiles(),
                latency_curve: counts.bind.curve(),
                lateness,
                series: counts.series(),
            },
            lag_max_ms: self.lag_max.as_secs_f64() * 1e3,
            samples,
            server_cpu_seconds,
            server_rss_bytes,
            problems,
        };
        let failed = counts.client_failures;
        let of_lab = Check::of_lab("the lab's connections", "each has a port and a descriptor", failed == 0);
        let trouble = trouble.or_else(|| {
            let is_late = lateness.p99 > figures.lag_max_ms;
            let kept_out = (never_begun > 0).then(|| Trouble::Refusals(format!("no place for {never_begun}")));
            kept_out.or_else(|| {
                is_late.then(|| Trouble::Lab(format!("began {:.0} ms late at the 99th percentile", lateness.p99)))
            })
        });
        let measured = figures.measured("connections").check(of_lab.value(format!("{failed} had none")));
        Ok(WorkResult { trouble, measured })
    }

    fn trouble_of(&self, counts: &DeviceCounts, server: &ServerProcesses) -> Option<Trouble> {
        if counts.client_failures > 0 {
            return Some(Trouble::Lab(counts.problems.first().cloned().unwrap_or_default()));
        }
        if let Some(code) = counts.failures.keys().next() {
            let refused = || Trouble::Refusals(code.clone());
            return Some(self.without_descriptors(server, code).unwrap_or_else(refused));
        }
        let ended = sum(&counts.disconnects);
        (ended > 0).then_some(Trouble::LostConnections(ended))
    }

    /// Whether the server refuses because it has no descriptor for one more connection.
    fn without_descriptors(&self, server: &ServerProcesses, code: &str) -> Option<Trouble> {
        let (open, limit) = server.descriptors()?;
        let is_full = open as f64 >= DESCRIPTORS_FULL * limit as f64;
        let log = self.server_log.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let found = is_full || log.contains(DESCRIPTORS_IN_LOG);
        found.then(|| Trouble::Descriptors(format!("{open} of {limit} are open, the server keeps the others; {code}")))
    }
}

fn sum(causes: &std::collections::BTreeMap<String, u64>) -> u64 {
    causes.values().sum()
}

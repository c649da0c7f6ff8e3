//! Samples of the processes of a phase while it runs: CPU and memory of the server and of the lab, the machine's other work, and
//! the server's queues by its public `/metrics`, the kernel's counters of connections.

use crate::{
    kernel::{self, TcpCounters},
    otlp,
    process::{self, ServerProcesses},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::mpsc,
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;

/// CPU time is counted in ticks of 10 ms: over half a second, one tick is 2 % of a core.
const INTERVAL: Duration = Duration::from_millis(500);
/// Samples of a phase. When there are more, every other is dropped and the interval doubles.
const SAMPLES_MAX: usize = 480;
/// A server that does not tell its metrics within this is busy; the sample goes without them.
const METRICS_TIMEOUT: Duration = Duration::from_millis(400);
/// Gauges that say how much waits, and counters of which the rate is of interest.
const GAUGES: [&str; 6] = [
    "tidings_queue_depth",
    "tidings_webhook_lag",
    "tidings_cluster_position_lag",
    "tidings_webhook_parked",
    "tidings_provider_lag",
    "tidings_provider_waiting",
];
/// Metrics in a report at most, so that a server with many labels does not fill it.
const METRICS_MAX: usize = 40;

/// One row per sample; in each column one value per row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// Seconds since the phase began.
    pub at: Vec<f64>,
    /// How many cores' worth of time the server used since the sample before. `None`: the server is not the bench's own.
    pub server_cores: Vec<Option<f64>>,
    pub server_bytes: Vec<Option<u64>>,
    pub lab_cores: Vec<f64>,
    /// All processes of the machine together.
    pub machine_cores: Vec<f64>,
    /// Metrics of the first server, by name and labels, as long as they are not 0 throughout.
    pub metrics: BTreeMap<String, Vec<Option<f64>>>,
    /// What the kernel counted of the machine's connections between two samples, and what waited, by name.
    #[serde(default)]
    pub kernel: BTreeMap<String, Vec<f64>>,
}

/// The processes that a sampler looks at.
struct Watched {
    server: ServerProcesses,
    /// Where `/metrics` is asked for; unset: nowhere.
    metrics_address: Option<SocketAddr>,
    /// Load clients beside this process.
    lab_pids: Vec<u32>,
}

/// A thread that takes samples until it is told to finish.
#[derive(Debug)]
pub(crate) struct Sampler {
    stop: mpsc::SyncSender<()>,
    thread: JoinHandle<Samples>,
    server: ServerProcesses,
    cpu_before: Option<f64>,
}

impl Sampler {
    /// `metrics_address`: where `/metrics` is asked for; unset: nowhere. `lab_pids`: load clients beside this process.
    pub(crate) fn start(server: ServerProcesses, metrics_address: Option<SocketAddr>, lab_pids: Vec<u32>) -> Self {
        let watched = Watched { server: server.clone(), metrics_address, lab_pids };
        // Nothing is ever sent: the thread ends when the sender is gone.
        let (stop, stopped) = mpsc::sync_channel(1);
        let thread = std::thread::spawn(move || sample_until(&watched, &stopped));
        Sampler { stop, thread, cpu_before: server.cpu_seconds(), server }
    }

    /// The samples, the server's CPU time since the start, and its memory.
    pub(crate) fn finish(self) -> (Samples, Option<f64>, Option<u64>) {
        let cpu_seconds = self.server.cpu_seconds().zip(self.cpu_before).map(|(now, before)| now - before);
        drop(self.stop);
        (self.thread.join().unwrap_or_default(), cpu_seconds, self.server.resident_bytes())
    }
}

struct CpuTimes {
    at: Instant,
    server: Option<f64>,
    lab: f64,
    machine: f64,
}

impl CpuTimes {
    fn read(watched: &Watched) -> Self {
        let lab = watched.lab_pids.iter().copied().chain([std::process::id()]).map(process::cpu_seconds).sum();
        CpuTimes {
            at: Instant::now(),
            server: watched.server.cpu_seconds(),
            lab,
            machine: process::machine_cpu_seconds(),
        }
    }
}

fn sample_until(watched: &Watched, stopped: &mpsc::Receiver<()>) -> Samples {
    let (mut samples, mut interval) = (Samples::default(), INTERVAL);
    let mut http = watched.metrics_address.map(|address| {
        let mut http = HttpClient::new(address, "");
        http.set_timeout(METRICS_TIMEOUT);
        http
    });
    let start = Instant::now();
    let mut before = CpuTimes::read(watched);
    let mut rows: Vec<BTreeMap<String, f64>> = Vec::new();
    let mut tcp = vec![(0.0, TcpCounters::read())];
    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
        let now = CpuTimes::read(watched);
        let seconds = (now.at - before.at).as_secs_f64().max(1e-9);
        samples.at.push(start.elapsed().as_secs_f64());
        tcp.push((start.elapsed().as_secs_f64(), TcpCounters::read()));
        // A server that has ended, be it by a fault of the run, uses none from then on.
        let server = now.server.zip(before.server).map(|(now, before)| (now - before) / seconds);
        let cores = server.filter(|cores| *cores >= 0.0);
        let bytes = watched.server.resident_bytes();
        samples.server_cores.push(cores);
        samples.server_bytes.push(bytes);
        otlp::take_sample(cores, bytes);
        samples.lab_cores.push((now.lab - before.lab) / seconds);
        samples.machine_cores.push((now.machine - before.machine) / seconds);
        rows.push(http.as_mut().map(read_metrics).unwrap_or_default());
        before = now;
        if samples.at.len() >= SAMPLES_MAX {
            samples.drop_every_other();
            rows = every_other(rows);
            let first = tcp[0];
            tcp = std::iter::once(first).chain(every_other(tcp.split_off(1))).collect();
            interval *= 2;
        }
    }
    let names: BTreeSet<&String> =
        rows.iter().flat_map(BTreeMap::iter).filter(|(_, v)| **v != 0.0).map(|p| p.0).collect();
    let column = |name: &String| rows.iter().map(|row| row.get(name).copied()).collect();
    samples.metrics = names.into_iter().take(METRICS_MAX).map(|name| (name.clone(), column(name))).collect();
    samples.kernel = kernel::columns_of(&tcp);
    samples
}

impl Samples {
    fn drop_every_other(&mut self) {
        self.at = every_other(std::mem::take(&mut self.at));
        self.server_cores = every_other(std::mem::take(&mut self.server_cores));
        self.server_bytes = every_other(std::mem::take(&mut self.server_bytes));
        self.lab_cores = every_other(std::mem::take(&mut self.lab_cores));
        self.machine_cores = every_other(std::mem::take(&mut self.machine_cores));
    }
}

/// The second of each pair: the last sample stays.
fn every_other<T>(column: Vec<T>) -> Vec<T> {
    column.into_iter().skip(1).step_by(2).collect()
}

fn read_metrics(http: &mut HttpClient) -> BTreeMap<String, f64> {
    match http.exchange("GET", "/metrics", b"") {
        Ok(answer) if answer.status == 200 => gauges_of(&String::from_utf8_lossy(&answer.body)),
        _ => BTreeMap::new(),
    }
}

fn gauges_of(text: &str) -> BTreeMap<String, f64> {
    let of_line = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        let bare = name.split('{').next()?;
        let value: f64 = value.parse().ok()?;
        GAUGES.contains(&bare).then(|| (name.to_owned(), value))
    };
    text.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_depths_are_read_by_label_and_other_metrics_are_not() {
        let text = "# TYPE tidings_queue_depth gauge\ntidings_queue_depth{queue=\"direct\"} 3\n\
                    tidings_queue_depth_max 9\ntidings_webhook_lag 2\ntidings_sessions 5\n";
        let gauges = gauges_of(text);
        assert_eq!(gauges.len(), 2);
        assert_eq!(gauges["tidings_queue_depth{queue=\"direct\"}"], 3.0);
    }

    #[test]
    fn a_sampler_sees_this_process_and_ends_when_told() {
        let sampler = Sampler::start(Some(std::process::id()).into(), None, Vec::new());
        let (samples, ..) = sampler.finish();
        assert_eq!(samples.at.len(), samples.server_bytes.len());
    }
}

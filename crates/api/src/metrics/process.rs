//! Metrics of the process, under the names that Prometheus' own client libraries use.

use prometheus_client::{
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use rustix::{
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};
use std::{fs, sync::OnceLock};

/// The unit of start times in `/proc/PID/stat` (`USER_HZ`): 100 ticks a second on the systems that we build for.
const TICKS_A_SECOND: f64 = 100.0;
/// The number of the field `starttime` in `/proc/PID/stat` (proc(5)), counted from 1.
const STARTED_FIELD: usize = 22;

/// The present metrics. Those that the system does not provide are left out.
pub(super) fn registry() -> Registry {
    let mut registry = Registry::default();
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    registry.register("process_cpu_seconds", "Time of processors used, in seconds", ConstCounter::new(cpu_seconds));
    let mut gauge = |name: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            registry.register(name, help, ConstGauge::new(value));
        }
    };
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |name| number_of(&status, name).map(|kilobytes| kilobytes * 1_024.0);
    gauge("process_resident_memory_bytes", "Memory in use, in bytes", bytes("VmRSS:"));
    gauge("process_virtual_memory_bytes", "Addresses in use, in bytes", bytes("VmSize:"));
    gauge("process_threads", "Threads", number_of(&status, "Threads:"));
    gauge("process_open_fds", "Open file descriptors", open_descriptors());
    let limit = getrlimit(Resource::Nofile).current;
    gauge("process_max_fds", "File descriptors that may be open", limit.map(|limit| limit as f64));
    gauge("process_start_time_seconds", "When the process began, in seconds since 1970", started());
    registry
}

/// A number of `/proc/self/status`, which has one in each line.
fn number_of(status: &str, name: &str) -> Option<f64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Read once, so that it does not change when the system's clock is set.
fn started() -> Option<f64> {
    static STARTED: OnceLock<Option<f64>> = OnceLock::new();
    *STARTED.get_or_init(|| {
        let boot = number_of(&fs::read_to_string("/proc/stat").ok()?, "btime ")?;
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The second field is the program's name in parentheses, which may hold any character.
        let (_, fields) = stat.rsplit_once(") ")?;
        let ticks: f64 = fields.split(' ').nth(STARTED_FIELD - 3)?.parse().ok()?;
        Some(boot + ticks / TICKS_A_SECOND)
    })
}

fn open_descriptors() -> Option<f64> {
    // Reading the list needs a descriptor of its own.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

//! The machine of a run: what it is, and whether it swapped or held the lab back meanwhile.

use crate::kernel::{TcpCounters, bytes_of, read};
use serde_json::{Value, json};
use std::path::Path;

/// Counters of the machine that only grow, at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MachineCounters {
    /// Pages swapped in and out.
    swapped_pages: u64,
    /// Times that the control group of this process used up its share of CPU time.
    throttled: u64,
    tcp: TcpCounters,
}

/// The number behind a name in a file of lines `name number`.
fn counter(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

impl MachineCounters {
    pub(super) fn read() -> Self {
        let vmstat = read("/proc/vmstat");
        MachineCounters {
            swapped_pages: counter(&vmstat, "pswpin") + counter(&vmstat, "pswpout"),
            throttled: counter(&read(&format!("/sys/fs/cgroup{}/cpu.stat", own_group())), "nr_throttled"),
            tcp: TcpCounters::read(),
        }
    }

    /// What the kernel counted since `before`, and what of it makes the figures doubtful, in words.
    pub(super) fn since(&self, before: &MachineCounters) -> (Value, Vec<String>) {
        let grown = |of: fn(&MachineCounters) -> u64| of(self).saturating_sub(of(before));
        let (swapped, throttled) = (grown(|c| c.swapped_pages), grown(|c| c.throttled));
        let mut doubts = Vec::new();
        if swapped > 0 {
            doubts.push(format!("The machine swapped {swapped} pages during the run."));
        }
        if throttled > 0 {
            doubts.push(format!("The lab was held back {throttled} times by the CPU share of its control group."));
        }
        let value = json!({
            "swapped_pages": swapped, "throttled": throttled, "listen_overflows": grown(|c| c.tcp.listen_overflows),
            "listen_drops": grown(|c| c.tcp.listen_drops), "retransmits": grown(|c| c.tcp.retransmits),
        });
        (value, doubts)
    }
}

/// The control group of this process, of version 2 of the interface.
fn own_group() -> String {
    let text = read("/proc/self/cgroup");
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").to_owned()
}

/// The machine in figures and words.
pub(super) fn describe() -> Value {
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|parts| parts.1));
    let load = read("/proc/loadavg");
    json!({
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "cpu": model.unwrap_or("unknown"),
        "memory_bytes": bytes_of(&read("/proc/meminfo"), "MemTotal:"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_before": load.split_whitespace().next().and_then(|load| load.parse::<f64>().ok()),
        "clock_source": read("/sys/devices/system/clocksource/clocksource0/current_clocksource").trim(),
    })
}

/// The commit of the program: named when it was built, or that of the sources it was built from, if they are still there.
pub(super) fn commit() -> String {
    if let Some(commit) = option_env!("TIDINGS_COMMIT") {
        return commit.to_owned();
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").arg("-C").arg(sources).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        None => "unknown".into(),
        Some(commit) => match git(&["status", "--porcelain", "--untracked-files=no"]) {
            Some(changes) if changes.is_empty() => commit,
            _ => format!("{commit}, with changes"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_counters_are_read_by_name() {
        assert_eq!(counter("pswpin 3\npswpin_zero 9\n", "pswpin"), 3);
    }

    #[test]
    fn swapping_during_the_run_is_a_doubt() {
        let before = MachineCounters::default();
        let after = MachineCounters { swapped_pages: 7, ..before };
        assert!(after.since(&before).1.iter().any(|doubt| doubt.contains("7 pages")));
        assert!(before.since(&before).1.is_empty());
    }
}

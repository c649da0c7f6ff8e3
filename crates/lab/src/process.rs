//! Calls to the operating system: cores, CPU time, memory, signals.

use crate::kernel;
use rustix::{
    process::{Pid, Signal, kill_process, setpriority_process},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use std::{
    io::{self, BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, ExitCode, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

/// Pins this thread, and those that it starts, to one core, so that the load takes no time from other cores.
pub(crate) fn pin_to_core(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Keeps this thread, and those that it starts, off one core, if there are others.
pub(crate) fn avoid_core(core: usize) -> io::Result<()> {
    let mut set = sched_getaffinity(None)?;
    set.unset(core);
    if set.count() > 0 {
        sched_setaffinity(None, &set)?;
    }
    Ok(())
}

/// Runs `work` on one core; a process that it starts stays on that core.
pub(crate) fn run_on_core<T>(core: usize, work: impl FnOnce() -> T) -> io::Result<T> {
    // Affinity is the thread's, and a child process inherits it.
    let before = sched_getaffinity(None)?;
    pin_to_core(core)?;
    let result = work();
    sched_setaffinity(None, &before)?;
    Ok(result)
}

/// Gives this process the lowest priority: nice 19, and where `chrt` is installed the scheduler's class for idle time. With nice
/// alone a process keeps a core for some milliseconds after another one wakes for it, which then counts as the server's latency.
pub(crate) fn lower_priority() -> io::Result<()> {
    setpriority_process(None, 19)?;
    let pid = std::process::id().to_string();
    let mut idle = Command::new("chrt");
    let _ =
        idle.args(["--all-tasks", "--idle", "--pid", "0", &pid]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    Ok(())
}

/// The last core of the machine.
pub(crate) fn last_core() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) - 1
}

/// CPU seconds that a process has used, all threads, in user and kernel mode; 0 if it is gone.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    cpu_fields(pid, &[11, 12])
}

/// The same, and what its children had used when they ended.
pub(crate) fn cpu_seconds_with_ended_children(pid: u32) -> f64 {
    cpu_fields(pid, &[11, 12, 13, 14])
}

fn cpu_fields(pid: u32, wanted: &[usize]) -> f64 {
    let stat = kernel::read(&format!("/proc/{pid}/stat"));
    // The name may hold anything, so fields are counted after its closing bracket.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    wanted.iter().map(|index| ticks(*index)).sum::<u64>() as f64 / TICKS_PER_SECOND
}

/// CPU seconds that all processes of the machine have used, the kernel's own included; those of waiting for disks are not.
pub(crate) fn machine_cpu_seconds() -> f64 {
    let stat = kernel::read("/proc/stat");
    let ticks: Vec<f64> =
        stat.lines().next().unwrap_or_default().split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guests are part of user.
    let busy = [0, 1, 2, 5, 6, 7].iter().filter_map(|index| ticks.get(*index)).sum::<f64>();
    busy / TICKS_PER_SECOND
}

/// Seconds that this thread was ready to run while others had its core.
pub(crate) fn thread_wait_seconds() -> f64 {
    let stat = kernel::read("/proc/thread-self/schedstat");
    stat.split_whitespace().nth(1).and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// `USER_HZ`: fixed by Linux's interface for every architecture of interest.
const TICKS_PER_SECOND: f64 = 100.0;

/// Resident memory of a process, in bytes; 0 if it is gone.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    kernel::bytes_of(&kernel::read(&format!("/proc/{pid}/status")), "VmRSS:")
}

/// The processes of the server under test: one, the nodes of a cluster, or none that the lab may look at.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerProcesses(Vec<u32>);

impl ServerProcesses {
    pub(crate) fn pids(&self) -> &[u32] {
        &self.0
    }

    /// CPU seconds that they have used together; `None` if there are none.
    pub(crate) fn cpu_seconds(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.iter().copied().map(cpu_seconds).sum())
    }

    /// Resident memory of all of them; `None` if there are none.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        (!self.0.is_empty()).then(|| self.0.iter().copied().map(resident_bytes).sum())
    }

    /// Open files and their limit, of the process that is nearest to it.
    pub(crate) fn descriptors(&self) -> Option<(u64, u64)> {
        let all = self.0.iter().filter_map(|pid| descriptors(*pid));
        all.min_by_key(|(open, limit)| limit.saturating_sub(*open))
    }
}

impl FromIterator<u32> for ServerProcesses {
    fn from_iter<I: IntoIterator<Item = u32>>(pids: I) -> Self {
        ServerProcesses(pids.into_iter().collect())
    }
}

impl From<Option<u32>> for ServerProcesses {
    fn from(pid: Option<u32>) -> Self {
        pid.into_iter().collect()
    }
}

/// How many files a process has open, and how many it may open; `None` if it is gone.
pub(crate) fn descriptors(pid: u32) -> Option<(u64, u64)> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    Some((open, line.split_whitespace().next()?.parse().ok()?))
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // Fails when it has ended already.
        let _ = kill_process(pid, signal);
    }
}

/// A hidden command of this program that prints where it listens, and serves until it is killed, or has nobody left to serve. It ends
/// with this handle.
pub(crate) struct BareLoop {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl BareLoop {
    pub(crate) fn start(arguments: &[&str]) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let child = command.arg("bench").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut bare = BareLoop { child, address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) };
        let mut line = String::new();
        if let Some(stdout) = bare.child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let address = line.trim().parse();
        bare.address = address.map_err(|_| io::Error::other("a bare loop did not say where it listens"))?;
        Ok(bare)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The hidden command itself.
    pub(crate) fn exit_code(name: &str, served: io::Result<()>) -> ExitCode {
        match served {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{name}: {error}");
                ExitCode::FAILURE
            }
        }
    }
}

impl Drop for BareLoop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nanoseconds of the monotonic clock, which all processes of the machine share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Milliseconds since 1970 UTC.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A short text that differs between runs.
pub(crate) fn run_tag() -> String {
    format!("{:x}{:x}", unix_ms() & 0xfff_ffff_ffff, std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_cpu_time_of_this_process_are_read() {
        let pid = std::process::id();
        assert!(resident_bytes(pid) > 100_000);
        let start = std::time::Instant::now();
        while cpu_seconds(pid) == 0.0 {
            assert!(start.elapsed().as_secs() < 60, "a minute of work took no time");
            std::hint::black_box(run_tag());
        }
    }
}

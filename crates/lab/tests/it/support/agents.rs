//! Agents, and benches that load from them.

use super::{
    lab::{self, Bench, Ended},
    message_server::{Fault, serve},
};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};
use tempfile::NamedTempFile;

pub(crate) const TOKEN: &str = "a-token-of-this-test";

/// A file with the token.
pub(crate) fn token_file() -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    writeln!(file, "{TOKEN}").unwrap();
    file
}

/// An agent, which is killed at the end. What it complained about is printed if the trial fails.
pub(crate) struct Agent {
    child: Child,
    errors: NamedTempFile,
    pub(crate) address: String,
}

impl Agent {
    pub(crate) fn start(token: &Path, ip: &str, clock_shift_ms: u64) -> Agent {
        let errors = NamedTempFile::new().unwrap();
        let mut child = lab::command(&format!("agent --listen {ip}:0 --token-file"))
            .arg(token)
            .env("TIDINGS_LAB_CLOCK_SHIFT_MS", clock_shift_ms.to_string())
            .stdout(Stdio::piped())
            .stderr(errors.reopen().unwrap())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        // The rest is read so that the agent never waits for it.
        std::thread::spawn(move || lines.for_each(drop));
        let address = first.strip_prefix("agent listens on ").unwrap().to_owned();
        Agent { child, errors, address }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// From now on the agent may have so many files open.
    pub(crate) fn limit_descriptors(&self, count: u64) {
        let limit = Rlimit { current: Some(count), maximum: Some(count) };
        prlimit(Pid::from_raw(self.pid() as i32), Resource::Nofile, limit).unwrap();
    }

    pub(crate) fn load_clients(&self) -> Vec<u32> {
        children_of(self.pid())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        if std::thread::panicking() {
            eprintln!("agent {}: {}", self.address, std::fs::read_to_string(self.errors.path()).unwrap_or_default());
        }
    }
}

pub(crate) fn three_agents(token: &Path) -> [Agent; 3] {
    ["127.0.0.1", "127.0.0.2", "127.0.0.3"].map(|ip| Agent::start(token, ip, 0))
}

/// Processes that live and were started by this one.
fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap();
    let pids = processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        fields.first().is_some_and(|state| *state != "Z") && fields.get(1) == Some(&parent.to_string().as_str())
    })
    .collect()
}

pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with('Z'))
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Waits for what another process does in its own time.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(300), "after five minutes not yet: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts `bench group` against the servers, from agents if there are any.
pub(crate) fn start(urls: &str, agents: &[&Agent], token: &Path, options: &str) -> Bench {
    start_bench("group", urls, agents, token, options)
}

pub(crate) fn start_bench(bench: &str, urls: &str, agents: &[&Agent], token: &Path, options: &str) -> Bench {
    let mut command = lab::command(&format!("{bench} --url {urls} --api-key k --token-key t {options}"));
    if !agents.is_empty() {
        let addresses: Vec<&str> = agents.iter().map(|agent| agent.address.as_str()).collect();
        command.arg("--agents").arg(addresses.join(",")).arg("--agent-token-file").arg(token);
    }
    Bench::spawn(command)
}

pub(crate) fn run(fault: Fault, agents: &[&Agent], token: &Path, options: &str) -> Ended {
    start(&serve(fault)[0], agents, token, options).end()
}

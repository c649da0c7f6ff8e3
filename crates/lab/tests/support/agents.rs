//! Agents and benches as processes: the binary of the test again.

#![allow(clippy::unwrap_used)]

use crate::message_server::{Fault, serve};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

pub(crate) const TOKEN: &str = "a-token-of-this-test";

/// An agent, which is killed at the end.
pub(crate) struct Agent {
    child: Child,
    pub(crate) address: String,
}

impl Agent {
    pub(crate) fn start(token: &Path, ip: &str, clock_shift_ms: u64) -> Agent {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["bench", "agent", "--listen", &format!("{ip}:0"), "--token-file"])
            .arg(token)
            .env("TIDINGS_LAB_CLOCK_SHIFT_MS", clock_shift_ms.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        // The rest is read so that the agent never waits for it.
        std::thread::spawn(move || lines.for_each(drop));
        let address = first.strip_prefix("agent listens on ").unwrap().to_owned();
        Agent { child, address }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn load_clients(&self) -> Vec<u32> {
        children_of(self.pid())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
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
        assert!(started.elapsed() < Duration::from_secs(60), "after a minute not yet: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A bench that is running, with the file of its figures.
pub(crate) struct Bench {
    pub(crate) child: Child,
    folder: tempfile::TempDir,
}

/// What a bench left.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) said: String,
    pub(crate) figures: Value,
}

/// Starts `bench group` against the servers, from agents if there are any.
pub(crate) fn start(urls: &str, agents: &[&Agent], token: &Path, options: &str) -> Bench {
    start_bench("group", urls, agents, token, options)
}

pub(crate) fn start_bench(bench: &str, urls: &str, agents: &[&Agent], token: &Path, options: &str) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let line = format!(
        "bench --json {} {bench} --url {urls} --api-key k --token-key t {options}",
        folder.path().join("json").display()
    );
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(line.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if !agents.is_empty() {
        let addresses: Vec<&str> = agents.iter().map(|agent| agent.address.as_str()).collect();
        command.arg("--agents").arg(addresses.join(",")).arg("--agent-token-file").arg(token);
    }
    Bench { child: command.spawn().unwrap(), folder }
}

impl Bench {
    pub(crate) fn end(self) -> Ended {
        let Bench { child, folder } = self;
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let figures = std::fs::read(folder.path().join("json")).unwrap_or_default();
        let code = output.status.code().unwrap();
        println!("{said}");
        Ended { code, said: said.into_owned(), figures: serde_json::from_slice(&figures).unwrap_or_default() }
    }
}

pub(crate) fn run(fault: Fault, agents: &[&Agent], token: &Path, options: &str) -> Ended {
    start(&serve(fault)[0], agents, token, options).end()
}

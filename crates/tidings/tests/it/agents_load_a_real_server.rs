//! Benches of every kind that takes agents, small, against the real server with load from two agents: each must balance, and
//! what the server stored must check. The agents, their load clients and the server are the program itself.
// Slow: left out by `make test-quick`.
#![cfg(feature = "lab")]

use crate::support::{FELL_BEHIND, balances};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

const TOKEN: &str = "a-token-of-this-test";

struct Agent {
    child: Child,
    address: String,
}

impl Agent {
    fn start(ip: &str) -> Agent {
        Agent::start_ahead(ip, 0)
    }

    /// Its clock is so far ahead, as if it were on another machine.
    fn start_ahead(ip: &str, shift_ms: u64) -> Agent {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidings"))
            .args(["bench", "agent", "--listen", &format!("{ip}:0")])
            .env("TIDINGS_AGENT_TOKEN", TOKEN)
            .env("TIDINGS_LAB_CLOCK_SHIFT_MS", shift_ms.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.next().unwrap().unwrap().strip_prefix("agent listens on ").unwrap().to_owned();
        // The rest is read so that the agent never waits for it.
        std::thread::spawn(move || lines.for_each(drop));
        Agent { child, address }
    }

    /// Its load clients.
    fn load_clients(&self) -> Vec<u32> {
        let task = format!("/proc/{0}/task", self.child.id());
        let threads = std::fs::read_dir(task).unwrap().flatten();
        let children =
            threads.map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default());
        let children: String = children.collect();
        children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// Waits until the only load client of an agent holds so many files, its connections among them.
fn wait_for_connections(agent: &Agent, files: usize) -> u32 {
    let started = Instant::now();
    loop {
        let open = |pid: &u32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        if let Some(pid) = agent.load_clients().iter().find(|pid| open(pid) >= files) {
            return *pid;
        }
        assert!(started.elapsed() < Duration::from_secs(300), "no load client connects");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Runs a bench with load from two agents, which must pass; answers what it printed and its figures.
fn bench(line: &str) -> (String, Value) {
    bench_on(&["127.0.0.2", "127.0.0.3"].map(Agent::start), line)
}

fn bench_on(agents: &[Agent; 2], line: &str) -> (String, Value) {
    let json = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidings"))
        .args(["bench", "--json"])
        .arg(json.path())
        .args(line.split(' '))
        .args(["--agents", &format!("{},{}", agents[0].address, agents[1].address)])
        .env("TIDINGS_AGENT_TOKEN", TOKEN)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{line}\n{printed}");
    assert!(balances(output.status.code()), "{line}: {:?}", output.status);
    assert!(printed.contains("check          passed"), "{line}: what was stored");
    (printed.into_owned(), serde_json::from_slice(&std::fs::read(json.path()).unwrap()).unwrap())
}

/// That each agent sent something, in `sent` cases, and received something.
fn both_took_part(outcome: &Value, senders: usize) {
    let agents = outcome["agents"].as_array().unwrap();
    let count = |name: &str| agents.iter().filter(|agent| agent[name].as_u64() > Some(0)).count();
    assert_eq!((count("sent"), count("delivered")), (senders, 2), "{outcome:#}");
}

#[test]
fn direct_messages_balance() {
    for via in ["http", "ws"] {
        let (_, figures) = bench(&format!("direct --via {via} --pairs 5 --connections 3 --window 20 --duration 500ms"));
        both_took_part(&figures["outcome"], 2);
        // A conversation is on one agent: no latency depends on two clocks.
        assert_eq!(figures["outcome"]["negative_latencies"], 0);
    }
}

#[test]
fn a_group_over_websocket_balances_with_everybodys_receipts() {
    let (printed, figures) = bench("group --members 10 --senders 3 --via ws --rate 20 --duration 2s --receipts 500ms");
    both_took_part(&figures["outcome"], 2);
    assert!(printed.contains("of the last message: delivered 10, read 10 of 10"), "receipts are missing");
}

#[test]
fn a_broadcast_ends_each_round_with_the_last_receiver_of_both() {
    let (_, figures) = bench("broadcast --members 9 --rounds 6 --pause 10ms");
    let outcome = &figures["outcome"];
    both_took_part(outcome, 1);
    assert_eq!((outcome["planned"].as_u64(), outcome["delivered"].as_u64()), (Some(6), Some(54)));
    let rounds: Vec<f64> = outcome["rounds"].as_array().unwrap().iter().map(|round| round.as_f64().unwrap()).collect();
    let slowest = rounds.iter().copied().fold(0.0, f64::max);
    assert_eq!(rounds.len(), 6);
    // The last receiver's latency is the round's, within the three digits of a histogram.
    let max = outcome["latency"]["max"].as_f64().unwrap();
    assert!((slowest - max).abs() <= 0.01 + max / 500.0, "{slowest} ms and {max} ms");
}

#[test]
fn a_recorded_chat_reaches_agents_that_do_not_have_its_file() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/fixtures/ubuntu-irc-sample.jsonl");
    let (_, figures) = bench(&format!("replay {file} --online 12 --batch 20"));
    both_took_part(&figures["outcome"], 1);
    assert_eq!(figures["outcome"]["committed"], figures["messages"]);
}

#[test]
fn direct_messages_beside_a_flood_take_two_load_clients_of_each_agent() {
    let (_, figures) = bench("isolation --pairs 4 --members 6 --direct-rate 20 --duration 500ms --floods group");
    both_took_part(&figures["idle"], 2);
    both_took_part(&figures["floods"][0]["direct"], 2);
    both_took_part(&figures["floods"][0]["flooding"], 2);
}

fn sum(agents: &Value, name: &str) -> u64 {
    agents.as_array().unwrap().iter().map(|agent| agent[name].as_u64().unwrap()).sum()
}

#[test]
fn devices_of_two_machines_are_one_population() {
    const HOUR_MS: f64 = 3_600_000.0;
    let agents = [Agent::start("127.0.0.2"), Agent::start_ahead("127.0.0.3", HOUR_MS as u64)];
    let (printed, figures) = bench_on(&agents, "connect --devices 41 --hold 1s --push --heartbeat 10s --within 2m");
    let ramp = &figures["ramp"];
    assert_eq!((sum(&ramp["agents"], "receivers"), sum(&ramp["agents"], "delivered")), (41, 41), "{ramp:#}");
    assert!(ramp["agents"].as_array().unwrap().iter().all(|agent| agent["delivered"].as_u64() >= Some(20)));
    assert_eq!((&ramp["live"], &figures["push"]["got"]["devices"]), (&41.into(), &41.into()));
    // All times are the bench's, whatever the agents' clocks say.
    let last = figures["push"]["last_device_ms"].as_f64().unwrap();
    assert!(ramp["seconds"].as_f64().unwrap() < 3_600.0 && last < HOUR_MS && last > 0.0, "{figures:#}");
    assert!(agents.iter().all(|agent| printed.contains(&format!("agent {}: ", agent.address))));
    // The same agents serve the next bench: a storm at one moment of the bench's clock.
    let (_, storm) = bench_on(&agents, "storm --devices 20 --heartbeat 10s --within 2m");
    let again = &storm["storms"][0];
    assert_eq!((&again["live"], sum(&again["agents"], "delivered")), (&20.into(), 20));
    assert!(again["seconds"].as_f64().unwrap() < 3_600.0 && storm["bare"].is_null(), "{storm:#}");
}

#[test]
fn pushes_beside_chat_take_devices_and_messages_of_each_agent() {
    let (_, figures) = bench("push --devices 20 --rounds 2 --beside-chat 20 --pairs 4 --chat-duration 1s --within 2m");
    assert_eq!(sum(&figures["ramp"]["agents"], "delivered"), 20);
    both_took_part(&figures["chat"]["beside"], 2);
}

/// Runs a bench with devices of two agents, and does something to the second while it runs.
fn devices_with_trouble(line: &str, trouble: impl FnOnce(&mut Agent)) -> (Output, String) {
    let mut agents = ["127.0.0.2", "127.0.0.3"].map(Agent::start);
    let child = Command::new(env!("CARGO_BIN_EXE_tidings"))
        .arg("bench")
        .args(line.split(' '))
        .args(["--agents", &format!("{},{}", agents[0].address, agents[1].address)])
        .env("TIDINGS_AGENT_TOKEN", TOKEN)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    trouble(&mut agents[1]);
    (child.wait_with_output().unwrap(), agents[1].address.clone())
}

#[test]
fn an_agent_with_devices_that_is_killed_fails_the_run() {
    let (output, address) = devices_with_trouble("connect --devices 40 --hold 60m --agent-timeout 5s", |agent| {
        wait_for_connections(agent, 15);
        agent.child.kill().unwrap();
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains(&format!("agent {address}: has vanished")), "{said}");
}

#[test]
fn an_agent_with_devices_that_lags_is_named() {
    let (output, address) = devices_with_trouble("connect --devices 240 --rate 60 --hold 1s --within 2m", |agent| {
        let slow = wait_for_connections(agent, 15);
        signal(slow, "STOP");
        // The fault itself.
        std::thread::sleep(Duration::from_millis(1_500));
        signal(slow, "CONT");
    });
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(FELL_BEHIND), "{said}");
    assert!(said.contains(&format!("agent {address} could not keep up")), "{said}");
    assert!(said.contains("240 of 240"), "{said}");
}

#[test]
fn what_needs_one_load_client_or_one_machine_says_so() {
    for (line, part) in [
        (
            "streams --streams 1 --agents 127.0.0.1:1 --agent-token a-token-of-this-test",
            "loads from this machine alone",
        ),
        ("group --agents 127.0.0.1:1", "TIDINGS_AGENT_TOKEN"),
        (
            "connect --clients 2 --agents 127.0.0.1:1 --agent-token a-token-of-this-test",
            "--clients: agents start as many",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidings"));
        let output = command.arg("bench").args(line.split(' ')).env_remove("TIDINGS_AGENT_TOKEN").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.contains(part)), (Some(2), true), "{line}: {said}");
    }
}

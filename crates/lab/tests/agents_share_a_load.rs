//! Three agents on three addresses of the loopback load a small server as one client would: the merged report balances, a fault
//! towards any receiver is found, and what happens to an agent or a coordinator is said and leaves nothing behind.
//!
//! The agents, their load clients and the benches are this binary again.
// Slow: left out by `make test-quick`.

#![allow(clippy::unwrap_used)]

#[path = "support/agents.rs"]
mod agents;
#[path = "support/message_server.rs"]
mod message_server;

use agents::{Agent, TOKEN, is_alive, run, signal, start, start_bench, three_agents, wait_until};
use clap::Parser;
use message_server::{Fault, serve, serve_and_tell};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::ExitCode,
    sync::mpsc,
    time::Duration,
};

#[derive(Parser)]
enum CommandLine {
    Bench(tidings_lab::BenchArgs),
}

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const INVALID: i32 = 3;
const ENVIRONMENT: i32 = 4;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("bench") {
        let CommandLine::Bench(args) = CommandLine::parse();
        let code = tidings_lab::run(args);
        let number = (0..=255).find(|number| ExitCode::from(*number) == code);
        std::process::exit(number.map_or(-1, i32::from));
    }
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
    three_agents_count_what_one_client_counts(&token);
    a_fault_towards_any_receiver_is_found(&token);
    a_round_without_an_end_fails_the_run(&token);
    clocks_that_differ_are_corrected(&token);
    an_agent_that_lags_is_named(&token);
    a_killed_agent_ends_the_run_and_leaves_nothing(&token);
    a_killed_coordinator_leaves_an_agent_ready(&token);
    one_coordinator_at_a_time(&token);
    mistakes_are_explained(&token);
    strangers_are_refused(&token);
}

/// A machine with other work may lag behind; what is counted does not depend on it.
const NO_LAG: &str = "--lag-max 60s --patience 60s";

fn sum(values: &Value) -> f64 {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap_or(0.0)).sum()
}

fn three_agents_count_what_one_client_counts(token: &Path) {
    let agents = three_agents(token);
    let agents = [&agents[0], &agents[1], &agents[2]];
    for options in [
        "--members 7 --senders 4 --rate 200",
        "--members 3 --senders 2 --rate 200 --batch 4",
        "--members 2 --senders 1 --rate 50",
    ] {
        let options = format!("{options} --duration 1s {NO_LAG}");
        let (one, three) = (run(Fault::None, &[], token, &options), run(Fault::None, &agents, token, &options));
        assert_eq!((one.code, three.code), (0, 0), "{options}");
        let (one, three) = (&one.figures["outcome"], &three.figures["outcome"]);
        for count in [
            "planned",
            "sent",
            "committed",
            "refused",
            "expected",
            "delivered",
            "lost",
            "doubled",
            "out_of_order",
            "altered",
        ] {
            assert_eq!(one[count], three[count], "{count} with {options}");
        }
        let parts = three["agents"].as_array().unwrap();
        assert_eq!(parts.len(), 3);
        for count in ["planned", "sent", "expected", "delivered"] {
            let parts: f64 = parts.iter().map(|part| part[count].as_f64().unwrap()).sum();
            assert_eq!(Some(parts), three[count].as_f64(), "{count} of the agents together");
        }
        assert_eq!(Some(sum(&three["series"]["delivered"])), three["delivered"].as_f64());
        assert_eq!(Some(sum(&three["series"]["planned"])), three["planned"].as_f64());
        let (early, error) =
            (three["negative_latency_max_ms"].as_f64().unwrap(), three["clock_error_ms"].as_f64().unwrap());
        assert!(early <= error, "a delivery came {early} ms before it was due, by clocks that are off by {error} ms");
    }
    // A closed loop, and connections that break and resume.
    let closed = run(
        Fault::None,
        &agents,
        token,
        &format!("--members 5 --senders 3 --rate max --window 30 --duration 500ms {NO_LAG}"),
    );
    let outcome = &closed.figures["outcome"];
    assert_eq!((closed.code, outcome["balances"].as_bool()), (0, Some(true)));
    assert!(outcome["agents"].as_array().unwrap().iter().all(|agent| agent["sent"].as_u64() > Some(0)), "{outcome:#}");
    let urls = serve(Fault::Disconnect).join(",");
    let broken =
        start(&urls, &agents, token, &format!("--members 6 --senders 3 --rate 100 --duration 1s {NO_LAG}")).end();
    assert_eq!((broken.code, broken.figures["outcome"]["reconnects"].as_u64() > Some(0)), (0, true));
}

fn a_fault_towards_any_receiver_is_found(token: &Path) {
    let agents = three_agents(token);
    let agents = [&agents[0], &agents[1], &agents[2]];
    for (fault, count) in [
        (Fault::LoseEntry, "lost"),
        (Fault::DuplicateEntry, "doubled"),
        (Fault::ReorderEntries, "out_of_order"),
        (Fault::AlterEntry, "altered"),
        (Fault::WithholdFromAll, "lost"),
        // Each agent sees one order, and a valid one: only together they see that there are two.
        (Fault::DifferentOrderForOne, "altered"),
    ] {
        let ended = run(
            fault,
            &agents,
            token,
            "--members 3 --senders 3 --rate 200 --duration 500ms --lag-max 60s --patience 3s",
        );
        let outcome = &ended.figures["outcome"];
        assert_eq!((ended.code, outcome["balances"].as_bool()), (FAILED, Some(false)), "{fault:?}");
        assert!(outcome[count].as_u64() > Some(0), "{fault:?}: {outcome:#}");
        let is_named = agents.iter().any(|agent| outcome["problems"].to_string().contains(&agent.address));
        assert!(is_named || fault == Fault::WithholdFromAll, "{fault:?}: {}", outcome["problems"]);
    }
}

/// A round whose message one receiver never gets has no end: with one client and with several the run ends all the same.
fn a_round_without_an_end_fails_the_run(token: &Path) {
    let agents = three_agents(token);
    for agents in [vec![], agents.iter().collect()] {
        let options = "--members 4 --rounds 30 --pause 0ms --lag-max 60s --patience 2s";
        let ended = start_bench("broadcast", &serve(Fault::LoseEntry)[0], &agents, token, options).end();
        let outcome = &ended.figures["outcome"];
        assert_eq!((ended.code, &outcome["planned"], &outcome["lost"]), (FAILED, &json!(20), &json!(1)));
        assert_eq!(outcome["rounds"].as_array().map(Vec::len), Some(19));
    }
}

fn clocks_that_differ_are_corrected(token: &Path) {
    const HOUR_MS: u64 = 3_600_000;
    let shifts = [0, 5_000, HOUR_MS];
    let agents: Vec<Agent> = shifts
        .iter()
        .zip(["127.0.0.1", "127.0.0.2", "127.0.0.3"])
        .map(|(shift, ip)| Agent::start(token, ip, *shift))
        .collect();
    let ended = run(
        Fault::None,
        &agents.iter().collect::<Vec<_>>(),
        token,
        &format!("--members 6 --senders 3 --rate 100 --duration 500ms {NO_LAG}"),
    );
    let outcome = &ended.figures["outcome"];
    assert_eq!(ended.code, 0);
    for (agent, shift) in outcome["agents"].as_array().unwrap().iter().zip(shifts) {
        let (offset, error) = (agent["clock_offset_ms"].as_f64().unwrap(), agent["clock_error_ms"].as_f64().unwrap());
        assert!((offset - shift as f64).abs() <= error, "measured {offset} ± {error} ms, set {shift} ms");
        assert!(error < HOUR_MS as f64 && agent["latency"]["max"].as_f64().unwrap() < HOUR_MS as f64, "{agent:#}");
    }
    assert!(ended.said.contains("clocks"), "the error bound is printed");
}

fn an_agent_that_lags_is_named(token: &Path) {
    // The last agent sends in the first run, and only receives in the second.
    for senders in [3, 1] {
        let agents = three_agents(token);
        let (tell, told) = mpsc::sync_channel(1);
        let urls = serve_and_tell(Fault::None, move |number| {
            if number == 20 {
                tell.send(()).unwrap();
            }
        });
        let options =
            format!("--members 6 --senders {senders} --rate 100 --duration 4s --lag-max 300ms --patience 60s");
        let bench = start(&urls[0], &[&agents[0], &agents[1], &agents[2]], token, &options);
        told.recv().unwrap();
        let slow = agents[2].load_clients()[0];
        signal(slow, Signal::STOP);
        // The fault itself.
        std::thread::sleep(Duration::from_millis(1500));
        signal(slow, Signal::CONT);
        let ended = bench.end();
        let outcome = &ended.figures["outcome"];
        assert_eq!((ended.code, outcome["balances"].as_bool()), (INVALID, Some(true)));
        assert_eq!(outcome["agents"][2]["lagged"], true, "{outcome:#}");
        assert!(ended.said.contains(&format!("agent {} could not keep up", agents[2].address)));
    }
}

fn a_killed_agent_ends_the_run_and_leaves_nothing(token: &Path) {
    // One is killed, the other says nothing any more.
    for (fate, word) in [(Signal::KILL, "the connection ended"), (Signal::STOP, "silent for 2 s")] {
        let agents = three_agents(token);
        let (tell, told) = mpsc::sync_channel(1);
        let urls = serve_and_tell(Fault::None, move |number| {
            if number == 20 {
                tell.send(()).unwrap();
            }
        });
        let options = "--members 6 --senders 3 --rate 100 --duration 60m --lag-max 60s --agent-timeout 2s";
        let bench = start(&urls[0], &[&agents[0], &agents[1], &agents[2]], token, options);
        told.recv().unwrap();
        let load_clients: Vec<Vec<u32>> = agents.iter().map(Agent::load_clients).collect();
        assert!(load_clients.iter().all(|clients| clients.len() == 1), "{load_clients:?}");
        signal(agents[1].pid(), fate);
        let ended = bench.end();
        assert_eq!(ended.code, ENVIRONMENT);
        let line = format!("agent {}: has vanished: {word}", agents[1].address);
        assert!(ended.said.contains(&line), "{line}");
        let rest = if fate == Signal::KILL { &load_clients[..] } else { &load_clients[2..] };
        for pid in rest.iter().flatten().chain(&load_clients[0]) {
            wait_until("the load client is gone", || !is_alive(*pid));
        }
        let again = run(
            Fault::None,
            &[&agents[0], &agents[2]],
            token,
            &format!("--members 4 --senders 2 --rate 50 --duration 200ms {NO_LAG}"),
        );
        assert_eq!(again.code, 0, "the others serve the next coordinator");
        if fate == Signal::STOP {
            signal(agents[1].pid(), Signal::CONT);
            wait_until("the load client is gone", || !is_alive(load_clients[1][0]));
        }
    }
}

fn a_killed_coordinator_leaves_an_agent_ready(token: &Path) {
    let agent = Agent::start(token, "127.0.0.2", 0);
    let (tell, told) = mpsc::sync_channel(1);
    let urls = serve_and_tell(Fault::None, move |number| {
        if number == 20 {
            tell.send(()).unwrap();
        }
    });
    let mut bench = start(&urls[0], &[&agent], token, "--members 2 --senders 1 --rate 100 --duration 60m");
    told.recv().unwrap();
    let load_client = agent.load_clients()[0];
    bench.child.kill().unwrap();
    bench.child.wait().unwrap();
    wait_until("the load client is gone", || !is_alive(load_client));
    let again =
        run(Fault::None, &[&agent], token, &format!("--members 2 --senders 1 --rate 50 --duration 200ms {NO_LAG}"));
    assert_eq!(again.code, 0);
}

fn one_coordinator_at_a_time(token: &Path) {
    let agent = Agent::start(token, "127.0.0.3", 0);
    let (tell, told) = mpsc::sync_channel(1);
    let urls = serve_and_tell(Fault::None, move |number| {
        if number == 20 {
            tell.send(()).unwrap();
        }
    });
    let first = start(&urls[0], &[&agent], token, "--members 2 --senders 1 --rate 100 --duration 60m --lag-max 60s");
    told.recv().unwrap();
    let second = run(Fault::None, &[&agent], token, "--members 2 --senders 1 --duration 100ms");
    assert_eq!(second.code, ENVIRONMENT);
    assert!(second.said.contains("another coordinator, at 127.0.0.1:") && second.said.contains("(busy)"));
    // The first one goes on undisturbed, and is ended early.
    signal(first.child.id(), Signal::INT);
    let first = first.end();
    assert_eq!((first.code, first.figures["outcome"]["balances"].as_bool()), (130, Some(true)));
}

fn mistakes_are_explained(token: &Path) {
    let agent = Agent::start(token, "127.0.0.1", 0);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name)
    };
    let wrong = run(Fault::None, &[&agent], &file("wrong", "another-token-of-this-test"), "--members 2");
    assert_eq!((wrong.code, wrong.said.contains("(wrong_token)")), (ENVIRONMENT, true));
    let short = run(Fault::None, &[&agent], &file("short", "short"), "--members 2");
    assert_eq!((short.code, short.said.contains("16 characters")), (USAGE, true));
    let none = start(&serve(Fault::None)[0], &[], token, &format!("--members 2 --agents {}", agent.address)).end();
    assert_eq!((none.code, none.said.contains("--agent-token-file")), (USAGE, true));
    let twice = start(&serve(Fault::None)[0], &[&agent, &agent], token, "--members 2").end();
    assert_eq!((twice.code, twice.said.contains("twice")), (USAGE, true));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = format!("--members 2 --agents {nobody} --agent-token {TOKEN}");
    let nobody_there = start(&serve(Fault::None)[0], &[], token, &options).end();
    assert_eq!((nobody_there.code, nobody_there.said.contains(&nobody.to_string())), (ENVIRONMENT, true));
    let many = run(Fault::None, &[&agent], token, "--members 30000 --senders 1");
    assert_eq!((many.code, many.said.contains("30001 connections: the agents hold [")), (USAGE, true));
    // The token that is given on the command line is not in the report.
    let options =
        format!("--members 2 --rate 50 --duration 100ms {NO_LAG} --agents {} --agent-token {TOKEN}", agent.address);
    let told = start(&serve(Fault::None)[0], &[], token, &options).end();
    assert_eq!((told.code, told.figures.to_string().contains(TOKEN)), (0, false));
}

/// Sends lines to an agent, and returns all that it says, but for its greeting.
fn say(agent: &Agent, lines: &[u8]) -> String {
    let mut stream = TcpStream::connect(&agent.address).unwrap();
    stream.write_all(lines).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    let (hello, rest) = said.split_once('\n').unwrap();
    assert!(hello.starts_with(r#"{"hello":{"protocol":"#), "{hello}");
    rest.to_owned()
}

fn strangers_are_refused(token: &Path) {
    let agent = Agent::start(token, "127.0.0.1", 0);
    let credentials = |version: &str| {
        let line = json!({ "authenticate": {
            "protocol": 2, "version": version, "session": "s", "nonce": "n", "proof": "00",
        }});
        format!("{line}\n").into_bytes()
    };
    let long = vec![b'x'; 100_000];
    for (lines, code) in [
        (b"GET / HTTP/1.1\r\n\r\n".as_slice(), "bad_line"),
        (b"{\"launch\":null}\n", "bad_line"),
        (b"\"launch\"\n", "bad_line"),
        (&long, "line_too_long"),
        (&credentials(env!("CARGO_PKG_VERSION")), "wrong_token"),
        (&credentials("0.0.0"), "other_version"),
    ] {
        let said = say(&agent, lines);
        assert!(said.contains(&format!(r#""code":"{code}""#)) && said.starts_with(r#"{"refused":"#), "{code}: {said}");
    }
    assert!(agent.load_clients().is_empty());
    // A coordinator tells its keys to no agent that does not know the token, and to none of another version.
    for (version, welcome, code) in [
        (
            env!("CARGO_PKG_VERSION"),
            r#"{"welcome":{"proof":"00","machine":{"host":"h","cores":1,"descriptors":9999,"ports":9,"load":0.0,"kernel":"k"}}}"#,
            "wrong_token",
        ),
        ("0.0.0", "", "other_version"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let impostor = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let hello = json!({ "hello": { "protocol": 2, "version": version, "nonce": "n" } });
            stream.write_all(format!("{hello}\n{welcome}\n").as_bytes()).unwrap();
            let mut heard = String::new();
            let _ = stream.read_to_string(&mut heard);
            heard
        });
        let options = format!("--members 2 --duration 100ms --agents {address} --agent-token {TOKEN}");
        let ended = start(&serve(Fault::None)[0], &[], token, &options).end();
        assert_eq!((ended.code, ended.said.contains(&format!("({code})"))), (ENVIRONMENT, true));
        let heard = impostor.join().unwrap();
        assert!(!heard.contains(TOKEN) && !heard.contains("token_key"), "{heard}");
    }
}

//! Three agents on three addresses of the loopback load a small server as one client would: the merged report balances, a fault
//! towards any receiver is found, and what happens to an agent or a coordinator is said and leaves nothing behind.
// Slow: left out by `make test-quick`.

use crate::support::{
    agents::{Agent, TOKEN, is_alive, run, signal, start, start_bench, three_agents, token_file, wait_until},
    lab::{ENVIRONMENT, FAILED, INTERRUPTED, INVALID, PASSED, USAGE},
    message_server::{Fault, serve, serve_and_tell},
    trials::trial,
};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    time::Duration,
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial!(three_agents_count_what_one_client_counts("--members 7 --senders 4 --rate 200")),
        trial!(three_agents_count_what_one_client_counts("--members 3 --senders 2 --rate 200 --batch 4")),
        trial!(three_agents_count_what_one_client_counts("--members 2 --senders 1 --rate 50")),
        trial!(three_agents_share_a_closed_loop),
        trial!(connections_of_agents_break_and_resume),
        trial!(clocks_that_differ_are_corrected),
        trial!(a_killed_coordinator_leaves_an_agent_ready),
        trial!(one_coordinator_at_a_time),
        trial!(mistakes_are_explained),
        trial!(strangers_are_refused),
        trial!(an_agent_of_another_version_or_token_is_told_no_key),
    ];
    for fault in [
        Fault::LoseEntry,
        Fault::DuplicateEntry,
        Fault::ReorderEntries,
        Fault::AlterEntry,
        Fault::WithholdFromAll,
        Fault::DifferentOrderForOne,
    ] {
        trials.push(trial!(a_fault_towards_any_receiver_is_found(fault)));
    }
    for load in [Load::OfOneClient, Load::OfAgents] {
        trials.push(trial!(a_round_without_an_end_fails_the_run(load)));
    }
    for slow in [Slow::SendsAndReceives, Slow::Receives] {
        trials.push(trial!(an_agent_that_lags_is_named(slow)));
    }
    for fate in [Fate::Killed, Fate::Silent] {
        trials.push(trial!(a_lost_agent_ends_the_run_and_leaves_nothing(fate)));
    }
    trials
}

/// A machine with other work may lag behind; what is counted does not depend on it.
const NO_LAG: &str = "--lag-max 60s --patience 60s";

fn sum(values: &Value) -> f64 {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap_or(0.0)).sum()
}

fn three_agents_count_what_one_client_counts(options: &str) {
    let token = token_file();
    let agents = three_agents(token.path());
    let options = format!("{options} --duration 500ms {NO_LAG}");
    let one = run(Fault::None, &[], token.path(), &options);
    let three = run(Fault::None, &agents.each_ref(), token.path(), &options);
    assert_eq!((one.code, three.code), (PASSED, PASSED));
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
        assert_eq!(one[count], three[count], "{count}");
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

fn three_agents_share_a_closed_loop() {
    let token = token_file();
    let agents = three_agents(token.path());
    let options = format!("--members 5 --senders 3 --rate max --window 30 --duration 2s {NO_LAG}");
    let closed = run(Fault::None, &agents.each_ref(), token.path(), &options);
    let outcome = &closed.figures["outcome"];
    assert_eq!((closed.code, outcome["balances"].as_bool()), (PASSED, Some(true)));
    assert!(outcome["agents"].as_array().unwrap().iter().all(|agent| agent["sent"].as_u64() > Some(0)), "{outcome:#}");
}

fn connections_of_agents_break_and_resume() {
    let token = token_file();
    let agents = three_agents(token.path());
    let urls = serve(Fault::Disconnect).join(",");
    let options = format!("--members 6 --senders 3 --rate 100 --duration 1s {NO_LAG}");
    let broken = start(&urls, &agents.each_ref(), token.path(), &options).end();
    assert_eq!((broken.code, broken.figures["outcome"]["reconnects"].as_u64() > Some(0)), (PASSED, true));
}

fn a_fault_towards_any_receiver_is_found(fault: Fault) {
    let count = match fault {
        Fault::LoseEntry | Fault::WithholdFromAll => "lost",
        Fault::DuplicateEntry => "doubled",
        Fault::ReorderEntries => "out_of_order",
        // Each agent sees one order, and a valid one: only together they see that there are two.
        Fault::AlterEntry | Fault::DifferentOrderForOne => "altered",
        other => panic!("{other:?}"),
    };
    let token = token_file();
    let agents = three_agents(token.path());
    let options = "--members 3 --senders 3 --rate 200 --duration 500ms --lag-max 60s --patience 3s";
    let ended = run(fault, &agents.each_ref(), token.path(), options);
    let outcome = &ended.figures["outcome"];
    assert_eq!((ended.code, outcome["balances"].as_bool()), (FAILED, Some(false)));
    assert!(outcome[count].as_u64() > Some(0), "{outcome:#}");
    let is_named = agents.iter().any(|agent| outcome["problems"].to_string().contains(&agent.address));
    assert!(is_named || fault == Fault::WithholdFromAll, "{}", outcome["problems"]);
}

#[derive(Debug, Clone, Copy)]
enum Load {
    OfOneClient,
    OfAgents,
}

/// A round whose message one receiver never gets has no end: with one client and with several the run ends all the same.
fn a_round_without_an_end_fails_the_run(load: Load) {
    let token = token_file();
    let agents = match load {
        Load::OfOneClient => Vec::new(),
        Load::OfAgents => Vec::from(three_agents(token.path())),
    };
    let agents: Vec<&Agent> = agents.iter().collect();
    let options = "--members 4 --rounds 30 --pause 0ms --lag-max 60s --patience 3s";
    let ended = start_bench("broadcast", &serve(Fault::LoseEntry)[0], &agents, token.path(), options).end();
    let outcome = &ended.figures["outcome"];
    assert_eq!((ended.code, &outcome["planned"], &outcome["lost"]), (FAILED, &json!(20), &json!(1)));
    assert_eq!(outcome["rounds"].as_array().map(Vec::len), Some(19));
}

fn clocks_that_differ_are_corrected() {
    const HOUR_MS: u64 = 3_600_000;
    let token = token_file();
    let shifts = [0, 5_000, HOUR_MS];
    let agents: Vec<Agent> = shifts
        .iter()
        .zip(["127.0.0.1", "127.0.0.2", "127.0.0.3"])
        .map(|(shift, ip)| Agent::start(token.path(), ip, *shift))
        .collect();
    let ended = run(
        Fault::None,
        &agents.iter().collect::<Vec<_>>(),
        token.path(),
        &format!("--members 6 --senders 3 --rate 100 --duration 500ms {NO_LAG}"),
    );
    let outcome = &ended.figures["outcome"];
    assert_eq!(ended.code, PASSED);
    for (agent, shift) in outcome["agents"].as_array().unwrap().iter().zip(shifts) {
        let (offset, error) = (agent["clock_offset_ms"].as_f64().unwrap(), agent["clock_error_ms"].as_f64().unwrap());
        assert!((offset - shift as f64).abs() <= error, "measured {offset} ± {error} ms, set {shift} ms");
        assert!(error < HOUR_MS as f64 && agent["latency"]["max"].as_f64().unwrap() < HOUR_MS as f64, "{agent:#}");
    }
    assert!(ended.said.contains("clocks"), "the error bound is printed");
}

/// What the agent does that is too slow.
#[derive(Debug, Clone, Copy)]
enum Slow {
    SendsAndReceives,
    Receives,
}

fn an_agent_that_lags_is_named(slow: Slow) {
    // Of three senders each agent has one, and a single one is the first agent's.
    let senders = match slow {
        Slow::SendsAndReceives => 3,
        Slow::Receives => 1,
    };
    let token = token_file();
    let agents = three_agents(token.path());
    let (url, told) = serve_until_loaded();
    let options = format!("--members 6 --senders {senders} --rate 100 --duration 3s --lag-max 300ms --patience 60s");
    let bench = start(&url, &agents.each_ref(), token.path(), &options);
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

/// A server, and whoever waits until it has got twenty messages: by then all agents are part of the run.
fn serve_until_loaded() -> (String, mpsc::Receiver<()>) {
    let (tell, told) = mpsc::sync_channel(1);
    let [url, _] = serve_and_tell(Fault::None, move |number| {
        if number == 20 {
            tell.send(()).unwrap();
        }
    });
    (url, told)
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Killed,
    /// It says nothing any more.
    Silent,
}

fn a_lost_agent_ends_the_run_and_leaves_nothing(fate: Fate) {
    // Only silence is waited for.
    let (fatal, timeout, word) = match fate {
        Fate::Killed => (Signal::KILL, "60s", "the connection ended"),
        Fate::Silent => (Signal::STOP, "3s", "silent for 3 s"),
    };
    let token = token_file();
    let agents = three_agents(token.path());
    let (url, told) = serve_until_loaded();
    let options = format!("--members 6 --senders 3 --rate 100 --duration 60m --lag-max 60s --agent-timeout {timeout}");
    let bench = start(&url, &agents.each_ref(), token.path(), &options);
    told.recv().unwrap();
    let load_clients = agents.each_ref().map(Agent::load_clients);
    assert!(load_clients.iter().all(|clients| clients.len() == 1), "{load_clients:?}");
    signal(agents[1].pid(), fatal);
    let ended = bench.end();
    assert_eq!(ended.code, ENVIRONMENT);
    let line = format!("agent {}: has vanished: {word}", agents[1].address);
    assert!(ended.said.contains(&line), "{line}");
    let is_gone = |agent: usize| wait_until("the load client is gone", || !is_alive(load_clients[agent][0]));
    is_gone(0);
    is_gone(2);
    if matches!(fate, Fate::Killed) {
        is_gone(1);
    }
    let options = format!("--members 4 --senders 2 --rate 50 --duration 200ms {NO_LAG}");
    let again = run(Fault::None, &[&agents[0], &agents[2]], token.path(), &options);
    assert_eq!(again.code, PASSED, "the others serve the next coordinator");
    if matches!(fate, Fate::Silent) {
        signal(agents[1].pid(), Signal::CONT);
        is_gone(1);
    }
}

fn a_killed_coordinator_leaves_an_agent_ready() {
    let token = token_file();
    let agent = Agent::start(token.path(), "127.0.0.2", 0);
    let (url, told) = serve_until_loaded();
    let options = "--members 2 --senders 1 --rate 100 --duration 60m";
    let bench = start(&url, &[&agent], token.path(), options);
    told.recv().unwrap();
    let load_client = agent.load_clients()[0];
    // It is killed.
    drop(bench);
    wait_until("the load client is gone", || !is_alive(load_client));
    let options = format!("--members 2 --senders 1 --rate 50 --duration 200ms {NO_LAG}");
    let again = run(Fault::None, &[&agent], token.path(), &options);
    assert_eq!(again.code, PASSED);
}

fn one_coordinator_at_a_time() {
    let token = token_file();
    let agent = Agent::start(token.path(), "127.0.0.3", 0);
    let (url, told) = serve_until_loaded();
    let options = "--members 2 --senders 1 --rate 100 --duration 60m --lag-max 60s";
    let first = start(&url, &[&agent], token.path(), options);
    told.recv().unwrap();
    let second = run(Fault::None, &[&agent], token.path(), "--members 2 --senders 1 --duration 100ms");
    assert_eq!(second.code, ENVIRONMENT);
    assert!(second.said.contains("another coordinator, at 127.0.0.1:") && second.said.contains("(busy)"));
    // The first one goes on undisturbed, and is ended early.
    signal(first.pid(), Signal::INT);
    let first = first.end();
    assert_eq!((first.code, first.figures["outcome"]["balances"].as_bool()), (INTERRUPTED, Some(true)));
}

fn mistakes_are_explained() {
    let token = token_file();
    let agent = Agent::start(token.path(), "127.0.0.1", 0);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name)
    };
    let wrong = run(Fault::None, &[&agent], &file("wrong", "another-token-of-this-test"), "--members 2");
    assert_eq!((wrong.code, wrong.said.contains("(wrong_token)")), (ENVIRONMENT, true));
    let short = run(Fault::None, &[&agent], &file("short", "short"), "--members 2");
    assert_eq!((short.code, short.said.contains("16 characters")), (USAGE, true));
    let none =
        start(&serve(Fault::None)[0], &[], token.path(), &format!("--members 2 --agents {}", agent.address)).end();
    assert_eq!((none.code, none.said.contains("--agent-token-file")), (USAGE, true));
    let twice = start(&serve(Fault::None)[0], &[&agent, &agent], token.path(), "--members 2").end();
    assert_eq!((twice.code, twice.said.contains("twice")), (USAGE, true));
    // A port that is taken, so that nobody else gets it, and that nobody listens at.
    let taken = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    taken.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    let nobody = taken.local_addr().unwrap().as_socket().unwrap();
    let options = format!("--members 2 --agents {nobody} --agent-token {TOKEN}");
    let nobody_there = start(&serve(Fault::None)[0], &[], token.path(), &options).end();
    assert_eq!((nobody_there.code, nobody_there.said.contains(&nobody.to_string())), (ENVIRONMENT, true));
    // A hundred descriptors are for other things than connections.
    agent.limit_descriptors(400);
    let many = run(Fault::None, &[&agent], token.path(), "--members 300 --senders 1");
    assert_eq!((many.code, many.said.contains("301 connections: the agents hold [300]")), (USAGE, true));
    // The token that is given on the command line is not in the report.
    let options =
        format!("--members 2 --rate 50 --duration 100ms {NO_LAG} --agents {} --agent-token {TOKEN}", agent.address);
    let told = start(&serve(Fault::None)[0], &[], token.path(), &options).end();
    assert_eq!((told.code, told.figures.to_string().contains(TOKEN)), (PASSED, false));
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

fn strangers_are_refused() {
    let token = token_file();
    let agent = Agent::start(token.path(), "127.0.0.1", 0);
    let credentials = |version: &str| {
        let line = json!({ "authenticate": {
            "protocol": 3, "version": version, "session": "s", "nonce": "n", "proof": "00",
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
}

/// A coordinator tells its keys to no agent that does not know the token, and to none of another version.
fn an_agent_of_another_version_or_token_is_told_no_key() {
    let token = token_file();
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
            let hello = json!({ "hello": { "protocol": 3, "version": version, "nonce": "n" } });
            stream.write_all(format!("{hello}\n{welcome}\n").as_bytes()).unwrap();
            let mut heard = String::new();
            let _ = stream.read_to_string(&mut heard);
            heard
        });
        let options = format!("--members 2 --duration 100ms --agents {address} --agent-token {TOKEN}");
        let ended = start(&serve(Fault::None)[0], &[], token.path(), &options).end();
        assert_eq!((ended.code, ended.said.contains(&format!("({code})"))), (ENVIRONMENT, true));
        let heard = impostor.join().unwrap();
        assert!(!heard.contains(TOKEN) && !heard.contains("token_key"), "{heard}");
    }
}

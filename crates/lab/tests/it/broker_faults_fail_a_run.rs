//! Real brokers are loaded through a proxy that plants one fault: each is counted, told by an example, and fails the run, over
//! MQTT 3.1.1, MQTT 5 and NATS alike.
//!
//! Needs mosquitto and nats-server.
// Slow: left out by `make test-quick`.

use crate::support::{
    fault_proxy::{self, FAULTY, Fault, Framing},
    lab::{self, FAILED, PASSED, USAGE},
    trials::trial,
};
use libtest_mimic::Trial;
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU8, Ordering},
    time::{Duration, Instant},
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![trial!(mistakes_are_explained), trial!(one_scenario_starts_mosquitto_and_verifies_it)];
    for fault in [Fault::None, Fault::Drop] {
        trials.push(trial!(one_scenario_verifies_a_broker_that_runs(fault)));
    }
    for server in [Server::Nats, Server::Mosquitto, Server::MosquittoMqtt5] {
        for fault in [Fault::None, Fault::Drop, Fault::Double, Fault::Swap, Fault::Alter, Fault::Starve] {
            trials.push(trial!(each_fault_is_counted_and_named(server, fault)));
        }
    }
    trials
}

/// A server, and how it is spoken to.
#[derive(Debug, Clone, Copy)]
enum Server {
    Nats,
    Mosquitto,
    MosquittoMqtt5,
}

impl Server {
    /// As the bench calls it.
    fn name(self) -> &'static str {
        match self {
            Server::Nats => "nats",
            Server::Mosquitto => "mosquitto",
            Server::MosquittoMqtt5 => "mosquitto-mqtt5",
        }
    }

    fn framing(self) -> Framing {
        match self {
            Server::Nats => Framing::Nats,
            Server::Mosquitto | Server::MosquittoMqtt5 => Framing::Mqtt,
        }
    }
}

/// A broker of this test, which is killed at the end.
struct Broker {
    child: Child,
    framing: Framing,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Broker {
    fn start(framing: Framing) -> Self {
        // An address of its own: on a shared one another trial may take the port before the broker does, and look like it.
        static BROKERS: AtomicU8 = AtomicU8::new(1);
        let ip = Ipv4Addr::new(127, 0, 1, BROKERS.fetch_add(1, Ordering::Relaxed));
        // Another process may take the port before the broker does: then the broker ends, and gets another.
        for _ in 0..20 {
            let address = TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap();
            let port = address.port();
            let folder = tempfile::tempdir().unwrap();
            let mut command = match framing {
                Framing::Nats => Command::new(program("nats-server")),
                Framing::Mqtt => Command::new(program("mosquitto")),
            };
            match framing {
                Framing::Nats => command.args(["--addr", &ip.to_string(), "--port", &port.to_string()]),
                Framing::Mqtt => {
                    let settings = format!("listener {port} {ip}\nallow_anonymous true\n");
                    std::fs::write(folder.path().join("mosquitto.conf"), settings).unwrap();
                    command.args(["-c", "mosquitto.conf"])
                }
            };
            command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
            let child = command.spawn().unwrap();
            let mut broker = Broker { child, framing, address, _folder: folder };
            let started = Instant::now();
            while broker.child.try_wait().unwrap().is_none() {
                if TcpStream::connect(address).is_ok() {
                    return broker;
                }
                assert!(started.elapsed() < Duration::from_secs(300), "{framing:?} does not listen");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("{framing:?} ended twenty times");
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Debian puts servers where only administrators look.
fn program(name: &str) -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed"))
}

fn each_fault_is_counted_and_named(server: Server, fault: Fault) {
    let ([lost, doubled, reordered, altered], named) = match fault {
        Fault::None => ([0, 0, 0, 0], ""),
        Fault::Drop => ([1, 0, 0, 0], " never got message "),
        Fault::Double => ([0, 1, 0, 0], " twice"),
        Fault::Swap => ([0, 0, 1, 0], " after a later one"),
        Fault::Alter => ([1, 0, 0, 1], " that nobody sent"),
        Fault::Starve => ([u64::MAX, 0, 0, 0], " never got message "),
    };
    let broker = Broker::start(server.framing());
    let proxy = fault_proxy::start(broker.address, broker.framing, fault);
    // Where something is lost for good, nothing is waited for: what a run without faults needs comes in milliseconds.
    let patience = if matches!(fault, Fault::None | Fault::Double | Fault::Swap) { "60s" } else { "3s" };
    let name = server.name();
    let ended = lab::run(&format!(
        "brokers --servers {name} --at {name}={proxy} --members 3 --senders 1 --window 50 --duration 1s --ladder 2 \
         --broadcasts 2 --idle 3 --rounds 1 --body-bytes 60 --lag-max 60s --patience {patience}"
    ));
    // Of the group on the only server.
    let group = &ended.figures["servers"][0]["rounds"][0]["group"];
    let counts = ["lost", "doubled", "out_of_order", "altered"].map(|count| group[count].as_u64().unwrap());
    let sent = group["sent"].as_u64().unwrap();
    assert!(sent > FAULTY + 2, "{sent}");
    let lost = if lost == u64::MAX { sent - FAULTY } else { lost };
    assert_eq!(counts, [lost, doubled, reordered, altered]);
    assert_eq!(ended.code, if fault == Fault::None { PASSED } else { FAILED });
    assert!(ended.said.contains(named), "{named}");
    // Nothing is known of a process that the bench has not started.
    assert!(group["server_cpu_seconds"].is_null(), "{group:#}");
}

/// A group of three, one sender.
const SCENARIO: &str = r#"
name = "a-broker"
about = "A group on a broker."
[server]
SERVER
[population.group]
kind = "group"
members = 3
senders = 1
body_bytes = 80
[[phase]]
name = "one by one"
[[phase.work]]
population = "group"
rounds = 30
pause = "1ms"
"#;

/// Runs the scenario with this server from one file.
fn run_scenario(server: &str, patience: &str) -> lab::Ended {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.toml");
    std::fs::write(&file, SCENARIO.replace("SERVER", server)).unwrap();
    lab::run(&format!("run {} --lag-max 60s --patience {patience}", file.display()))
}

fn one_scenario_starts_mosquitto_and_verifies_it() {
    let ended = run_scenario("broker = \"mosquitto\"", "60s");
    let work = &ended.figures["phases"][0]["works"][0];
    assert_eq!((ended.code, &work["delivered"], &work["lost"]), (PASSED, &90.into(), &0.into()), "{work:#}");
    assert_eq!(work["rounds"].as_array().unwrap().len(), 30);
    assert!(work["server_rss_bytes"].as_u64().unwrap() > 0, "it is the lab's own process");
}

fn one_scenario_verifies_a_broker_that_runs(fault: Fault) {
    let broker = Broker::start(Framing::Mqtt);
    let proxy = fault_proxy::start(broker.address, broker.framing, fault);
    let patience = if fault == Fault::None { "60s" } else { "3s" };
    let ended = run_scenario(&format!("url = \"mqtt://{proxy}\"\ndriver = \"mqtt\""), patience);
    let work = &ended.figures["phases"][0]["works"][0];
    let (code, lost) = if fault == Fault::None { (PASSED, 0) } else { (FAILED, 1) };
    assert_eq!((ended.code, &work["lost"], &work["delivered"]), (code, &lost.into(), &(90 - lost).into()), "{work:#}");
    assert!(work["server_rss_bytes"].is_null(), "nothing is known of a process that the bench has not started");
}

fn mistakes_are_explained() {
    for (options, why) in [
        ("--at tidings=127.0.0.1:1", "its folder can be checked"),
        ("--servers tidings --at nats=127.0.0.1:1", "--servers does not name it"),
        ("--at kafka=127.0.0.1:1", "there are nats, mosquitto, mosquitto-mqtt5"),
        ("--at nats", "SERVER=HOST:PORT"),
        ("--at nats=here", "no such address"),
        ("--url http://127.0.0.1:1", "--url is for the server of a --driver"),
        ("--driver centrifugo", "--driver needs the --url"),
        ("--driver other --url http://127.0.0.1:1", "the drivers in this program are centrifugo, socket-io"),
    ] {
        let ended = lab::run(&format!("brokers {options}"));
        assert_eq!((ended.code, ended.said.contains(why)), (USAGE, true), "{options}");
    }
}

//! Real brokers are loaded through a proxy that plants one fault: each is counted, told by an example, and fails the run, over
//! MQTT 3.1.1, MQTT 5 and NATS alike.
//!
//! The bench and its load clients are this binary again. Needs mosquitto and nats-server.
// Slow: left out by `make test-quick`.

#![allow(clippy::unwrap_used)]

#[path = "support/fault_proxy.rs"]
mod fault_proxy;

use clap::Parser;
use fault_proxy::{FAULTY, Fault, Framing};
use serde_json::Value;
use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

#[derive(Parser)]
enum CommandLine {
    Bench(tidings_lab::BenchArgs),
}

const FAILED: i32 = 1;
const USAGE: i32 = 2;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("bench") {
        let CommandLine::Bench(args) = CommandLine::parse();
        let code = tidings_lab::run(args);
        let number = (0..=255).find(|number| ExitCode::from(*number) == code);
        std::process::exit(number.map_or(-1, i32::from));
    }
    let (nats, mosquitto) = (Broker::start(Framing::Nats), Broker::start(Framing::Mqtt));
    for (server, broker) in [("nats", &nats), ("mosquitto", &mosquitto), ("mosquitto-mqtt5", &mosquitto)] {
        each_fault_is_counted_and_named(server, broker);
    }
    mistakes_are_explained();
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
        // Another process may take the port before the broker does: then the broker ends, and gets another.
        for _ in 0..20 {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let folder = tempfile::tempdir().unwrap();
            let mut command = match framing {
                Framing::Nats => Command::new(program("nats-server")),
                Framing::Mqtt => Command::new(program("mosquitto")),
            };
            match framing {
                Framing::Nats => command.args(["--addr", "127.0.0.1", "--port", &address.port().to_string()]),
                // Without a file it listens on the loopback alone, and lets everybody in.
                Framing::Mqtt => command.args(["-p", &address.port().to_string()]),
            };
            command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
            let child = command.spawn().unwrap();
            let mut broker = Broker { child, framing, address, _folder: folder };
            let started = Instant::now();
            while broker.child.try_wait().unwrap().is_none() {
                if TcpStream::connect(address).is_ok() {
                    return broker;
                }
                assert!(started.elapsed() < Duration::from_secs(60), "{framing:?} does not listen");
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

struct Ended {
    code: i32,
    said: String,
    /// Of the group on the only server.
    group: Value,
}

fn bench(options: &str) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["bench", "--json"]).arg(&json).arg("brokers").args(options.split_whitespace());
    let output = command.output().unwrap();
    let figures: Value = std::fs::read(&json).map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).unwrap());
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Ended { code: output.status.code().unwrap(), said, group: figures["servers"][0]["rounds"][0]["group"].clone() }
}

fn each_fault_is_counted_and_named(server: &str, broker: &Broker) {
    for (fault, [lost, doubled, reordered, altered], named) in [
        (Fault::None, [0, 0, 0, 0], ""),
        (Fault::Drop, [1, 0, 0, 0], " never got message "),
        (Fault::Double, [0, 1, 0, 0], " twice"),
        (Fault::Swap, [0, 0, 1, 0], " after a later one"),
        (Fault::Alter, [1, 0, 0, 1], " that nobody sent"),
        (Fault::Starve, [u64::MAX, 0, 0, 0], " never got message "),
    ] {
        let proxy = fault_proxy::start(broker.address, broker.framing, fault);
        // Where something is lost for good, nothing is waited for: what a run without faults needs comes in milliseconds.
        let patience = if matches!(fault, Fault::None | Fault::Double | Fault::Swap) { "60s" } else { "3s" };
        let ended = bench(&format!(
            "--servers {server} --at {server}={proxy} --members 3 --senders 1 --window 50 --duration 500ms --ladder 2 \
             --broadcasts 2 --idle 3 --rounds 1 --body-bytes 60 --lag-max 60s --patience {patience}"
        ));
        let Ended { code, said, group } = &ended;
        let what = format!("{server}, {fault:?}: {said}");
        let counts = ["lost", "doubled", "out_of_order", "altered"].map(|count| group[count].as_u64().unwrap());
        let sent = group["sent"].as_u64().unwrap();
        assert!(sent > FAULTY + 2, "{what}");
        let lost = if lost == u64::MAX { sent - FAULTY } else { lost };
        assert_eq!(counts, [lost, doubled, reordered, altered], "{what}");
        assert_eq!(*code, if fault == Fault::None { 0 } else { FAILED }, "{what}");
        assert!(said.contains(named), "{what}");
        // Nothing is known of a process that the bench has not started.
        assert!(group["server_cpu_seconds"].is_null(), "{group:#}");
    }
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
        ("--driver other --url http://127.0.0.1:1", "there are centrifugo, socket-io"),
    ] {
        let ended = bench(options);
        assert_eq!((ended.code, ended.said.contains(why)), (USAGE, true), "{options}: {}", ended.said);
    }
}

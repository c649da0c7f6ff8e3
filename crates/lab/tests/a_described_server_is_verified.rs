//! A server that a driver's file describes is loaded like any other: with a server that keeps its promises a run passes, and
//! each fault of one that does not is counted and named, whichever protocol the file describes.
// Slow: left out by `make test-quick`.

#![allow(clippy::unwrap_used)]

#[path = "support/foreign_server.rs"]
mod foreign_server;
#[path = "support/tls_proxy.rs"]
mod tls_proxy;

use clap::Parser;
use foreign_server::{Fault, ForeignServer};
use serde_json::Value;
use std::{fs, path::Path, process::ExitCode};

#[derive(Parser)]
enum Command {
    Bench(tidings_lab::BenchArgs),
}

/// One sender, so that the twentieth message is the same for all.
const SCENARIO: &str = r#"
name = "described"
about = "A group on a server that others wrote."
[population.g]
kind = "group"
members = 3
senders = 1
body_bytes = 80
[[phase]]
name = "one by one"
[[phase.work]]
population = "g"
rounds = 5
pause = "1ms"
[[phase]]
name = "even"
duration = "500ms"
[[phase.work]]
population = "g"
rate = 60
[[phase]]
name = "flood"
duration = "500ms"
[[phase.work]]
population = "g"
rate = "max"
window = 20
"#;

/// Five conversations, four messages each: the twentieth message is the last of the fifth pair.
const DIRECT: &str = r#"
name = "described-pairs"
about = "Direct conversations on a server that others wrote."
[population.p]
kind = "direct"
pairs = 5
senders = 2
body_bytes = 80
[[phase]]
name = "even"
duration = "500ms"
[[phase.work]]
population = "p"
rate = 60
[[phase]]
name = "flood"
duration = "500ms"
[[phase.work]]
population = "p"
rate = "max"
window = 20
"#;

const TEXT_DRIVER: &str = r#"
name = "words"
about = "A protocol of words."
[token]
request = { method = "GET", path = "/token?user={user}" }
at = { pointer = "/auth/t" }
[session]
path = "/text"
[login]
frame = "login {user} {token}"
answer = { is = "welcome" }
[subscribe]
frame = "join {channel}"
answer = { is = "joined" }
[publish]
frame = "say {number} {channel} {marker}"
answer = { is = "ok" }
[delivery]
marker = { between = ["<", ">"] }
[refused]
begins = "no "
[acknowledge]
id = { between = ["msg ", " "] }
frame = "ack {id}"
[heartbeat]
every = "20ms"
frame = "beat"
"#;

#[derive(Debug, Clone, Copy)]
enum DriverFile {
    Centrifugo,
    Words,
}

const BOTH: [DriverFile; 2] = [DriverFile::Centrifugo, DriverFile::Words];

struct Run {
    code: ExitCode,
    /// Of the three phases.
    outcomes: Vec<Value>,
    server: ForeignServer,
}

impl Run {
    fn sum(&self, count: &str) -> u64 {
        self.outcomes.iter().map(|outcome| outcome[count].as_u64().unwrap()).sum()
    }

    /// What the run says in words.
    fn problems(&self) -> String {
        self.outcomes.iter().map(|outcome| outcome["problems"].to_string()).collect::<Vec<_>>().join("\n")
    }
}

fn bench(folder: &Path, scenario: &str, options: &str) -> (ExitCode, Option<Value>) {
    fs::write(folder.join("words.toml"), TEXT_DRIVER).unwrap();
    fs::write(folder.join("scenario.toml"), scenario).unwrap();
    let (file, json) = (folder.join("scenario.toml"), folder.join("out.json"));
    let line = format!("x bench run {} --json {} --lag-max 60s {options}", file.display(), json.display());
    let Command::Bench(args) = Command::parse_from(line.split_whitespace());
    let code = tidings_lab::run(args);
    (code, fs::read(json).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

fn run(fault: Fault, driver: DriverFile) -> Run {
    run_scenario(SCENARIO, fault, driver, false)
}

/// `over_tls`: through a proxy that encrypts.
fn run_scenario(scenario: &str, fault: Fault, driver: DriverFile, over_tls: bool) -> Run {
    let server = ForeignServer::start(fault);
    let folder = tempfile::tempdir().unwrap();
    let mut url = server.url.clone();
    if over_tls {
        let (address, certificate) = tls_proxy::start(url.strip_prefix("http://").unwrap().parse().unwrap());
        fs::write(folder.path().join("ca.pem"), certificate).unwrap();
        url = format!("https://localhost:{} --ca {}", address.port(), folder.path().join("ca.pem").display());
    }
    let driver = match driver {
        DriverFile::Centrifugo => "--driver centrifugo --api-key secret-key --token-key t".to_owned(),
        DriverFile::Words => format!("--driver {}", folder.path().join("words.toml").display()),
    };
    // Where something is lost for good, nothing is waited for: what a run without faults needs comes in milliseconds.
    let patience =
        if matches!(fault, Fault::None | Fault::Fragments | Fault::Double | Fault::Reorder) { "60s" } else { "2s" };
    let (code, report) = bench(folder.path(), scenario, &format!("--url {url} {driver} --patience {patience}"));
    let phases = report.as_ref().map_or(Vec::new(), |report| report["phases"].as_array().cloned().unwrap_or_default());
    let outcomes = phases.iter().map(|phase| phase["works"][0].clone()).collect();
    Run { code, outcomes, server }
}

const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

#[test]
fn a_server_that_keeps_its_promises_passes() {
    for driver in BOTH {
        let run = run(Fault::None, driver);
        assert_eq!(run.code, ExitCode::SUCCESS, "{driver:?}: {:#?}", run.outcomes);
        assert_eq!(run.outcomes.len(), 3);
        let [rounds, even, flood] = &run.outcomes[..] else { panic!() };
        assert_eq!((&rounds["sent"], rounds["rounds"].as_array().unwrap().len()), (&Value::from(5), 5));
        assert_eq!((&even["planned"], &even["delivered"]), (&Value::from(30), &Value::from(90)));
        assert!(flood["sent"].as_u64().unwrap() > 0, "{flood:#}");
        assert_eq!(even["series"]["planned"].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>(), 30);
        assert!(even["acknowledged"]["p50"].as_f64().unwrap() > 0.0);
        match driver {
            DriverFile::Centrifugo => assert!(run.server.all_have_answered_the_ping()),
            DriverFile::Words => {
                assert!(run.server.heartbeats() > 0);
                assert_eq!(run.server.unacknowledged(), 0, "every delivery is acknowledged");
            }
        }
    }
}

#[test]
fn each_fault_is_counted_and_named() {
    // The first five messages are the rounds: the twentieth is the fifteenth of the second phase, number 14.
    for (fault, [lost, doubled, reordered, altered], named) in [
        (Fault::Lose, [1, 0, 0, 0], " never got message 14 of sender 0"),
        (Fault::Double, [0, 1, 0, 0], " got message 14 of sender 0 twice"),
        (Fault::Reorder, [0, 0, 1, 0], " got message 14 of sender 0 after a later one"),
        (Fault::Alter, [1, 0, 0, 1], "that nobody sent: lab."),
        (Fault::RefuseAndDeliver, [1, 0, 0, 0], " never got message 14 of sender 0"),
    ] {
        for driver in BOTH {
            let run = run(fault, driver);
            let counts = ["lost", "doubled", "out_of_order", "altered"].map(|count| run.sum(count));
            assert_eq!(counts, [lost, doubled, reordered, altered], "{fault:?}, {driver:?}: {}", run.problems());
            assert!(run.problems().contains(named), "{fault:?}, {driver:?}: {}", run.problems());
            assert_eq!(run.code, ExitCode::from(FAILED), "{fault:?}, {driver:?}");
        }
    }
}

#[test]
fn messages_may_come_in_several_frames_and_encrypted() {
    for driver in BOTH {
        for (fault, over_tls) in [(Fault::Fragments, false), (Fault::None, true), (Fault::Fragments, true)] {
            let run = run_scenario(SCENARIO, fault, driver, over_tls);
            assert_eq!(run.code, ExitCode::SUCCESS, "{driver:?}, {fault:?}, TLS {over_tls}: {:#?}", run.outcomes);
            assert_eq!(run.sum("delivered"), 3 * run.sum("sent"));
        }
        let lost = run_scenario(SCENARIO, Fault::Lose, driver, true);
        assert_eq!((lost.code, lost.sum("lost")), (ExitCode::from(FAILED), 1), "{driver:?}: {}", lost.problems());
    }
}

#[test]
fn a_server_that_is_not_trusted_gets_nothing() {
    let server = ForeignServer::start(Fault::None);
    let folder = tempfile::tempdir().unwrap();
    let (address, _) = tls_proxy::start(server.url.strip_prefix("http://").unwrap().parse().unwrap());
    // The certificate of another server.
    fs::write(folder.path().join("ca.pem"), tls_proxy::start("127.0.0.1:9".parse().unwrap()).1).unwrap();
    let options = format!(
        "--url https://localhost:{} --ca {} --driver {}",
        address.port(),
        folder.path().join("ca.pem").display(),
        folder.path().join("words.toml").display()
    );
    assert_eq!(bench(folder.path(), SCENARIO, &options).0, ExitCode::from(FAILED));
}

#[test]
fn direct_messages_reach_their_receiver_alone() {
    for driver in BOTH {
        let clean = run_scenario(DIRECT, Fault::None, driver, false);
        assert_eq!(clean.code, ExitCode::SUCCESS, "{driver:?}: {:#?}", clean.outcomes);
        let even = &clean.outcomes[0];
        assert_eq!((&even["planned"], &even["expected"], &even["delivered"]), (&30.into(), &30.into(), &30.into()));
        assert_eq!(clean.sum("delivered"), clean.sum("sent"));
        for (fault, [lost, doubled, reordered, altered], named) in [
            (Fault::Lose, [1, 0, 0, 0], " never got message "),
            (Fault::Double, [0, 1, 0, 0], " twice"),
            (Fault::Alter, [1, 0, 0, 1], "that nobody sent: lab."),
            (Fault::Stray, [0, 0, 0, 1], "got a message that is for receiver "),
        ] {
            let run = run_scenario(DIRECT, fault, driver, false);
            let counts = ["lost", "doubled", "out_of_order", "altered"].map(|count| run.sum(count));
            assert_eq!(counts, [lost, doubled, reordered, altered], "{fault:?}, {driver:?}: {}", run.problems());
            assert!(run.problems().contains(named), "{fault:?}, {driver:?}: {}", run.problems());
            assert_eq!(run.code, ExitCode::from(FAILED), "{fault:?}, {driver:?}");
        }
    }
}

#[test]
fn a_refused_message_is_no_loss() {
    for driver in BOTH {
        let run = run(Fault::Refuse, driver);
        assert_eq!((run.sum("refused"), run.sum("lost")), (1, 0), "{driver:?}: {}", run.problems());
        assert_eq!(run.code, ExitCode::SUCCESS);
        let shown = if matches!(driver, DriverFile::Words) { "no thanks" } else { "try again" };
        assert!(run.problems().contains(shown), "{}", run.problems());
    }
}

#[test]
fn a_receiver_that_is_starved_or_cut_off_loses_all_that_follows() {
    for fault in [Fault::Starve, Fault::Disconnect] {
        for driver in BOTH {
            let run = run(fault, driver);
            let after_phase_one: u64 = run.outcomes[1..].iter().map(|outcome| outcome["sent"].as_u64().unwrap()).sum();
            assert_eq!(run.sum("lost"), after_phase_one - 14, "{fault:?}, {driver:?}: {}", run.problems());
            assert_eq!(run.code, ExitCode::from(FAILED));
        }
    }
}

#[test]
fn a_server_that_answers_no_publish_is_told_so() {
    let run = run(Fault::NoAnswer, DriverFile::Words);
    assert!(run.problems().contains("publishes were never answered"), "{}", run.problems());
}

#[test]
fn a_refused_login_ends_the_run_with_the_servers_words() {
    for driver in BOTH {
        let run = run(Fault::RefuseLogin, driver);
        assert_eq!((run.code, run.outcomes.len()), (ExitCode::from(FAILED), 0));
    }
}

#[test]
fn what_a_driver_cannot_do_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let server = "[server]\nurl = \"http://127.0.0.1:9\"\ndriver = \"words.toml\"\n";
    let head = "name = \"a\"\nabout = \"A.\"\n";
    let group = "[population.g]\nkind = \"group\"\nmembers = 2\n";
    let phase = "[[phase]]\nname = \"p\"\nduration = \"1s\"\n[[phase.work]]\npopulation = \"g\"\nrate = 1\n";
    for (scenario, options) in [
        // Another kind of population.
        (format!("{head}{server}[population.g]\nkind = \"new-conversations\"\npairs = 2\n{phase}"), ""),
        (
            format!("{head}[population.g]\nkind = \"devices\"\ndevices = 2\n{phase}"),
            "--url http://127.0.0.1:9 --driver centrifugo",
        ),
        // No server.
        (format!("{head}{group}{phase}"), "--driver centrifugo"),
        // No such driver, no such file, and a file with a mistake.
        (format!("{head}{group}{phase}"), "--url http://127.0.0.1:9 --driver centrifuge"),
        (format!("{head}{group}{phase}"), "--url http://127.0.0.1:9 --driver not/there.toml"),
        (format!("{head}{}{group}{phase}", server.replace("words", "scenario")), ""),
        // Certificates for a server without TLS, and a file without one.
        (format!("{head}{group}{phase}"), "--url http://127.0.0.1:9 --driver centrifugo --ca words.toml"),
        (format!("{head}{group}{phase}"), "--url https://127.0.0.1:9 --driver centrifugo --ca /etc/hostname"),
        // The driver's token is signed with a key that is not given.
        (format!("{head}{group}{phase}"), "--url http://127.0.0.1:9 --driver centrifugo --api-key k"),
    ] {
        assert_eq!(bench(folder.path(), &scenario, options).0, ExitCode::from(WRONG_USAGE), "{options}\n{scenario}");
    }
}

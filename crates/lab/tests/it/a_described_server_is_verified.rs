//! A server that a driver's file describes is loaded like any other: with a server that keeps its promises a run passes, and
//! each fault of one that does not is counted and named, whichever protocol the file describes.
// Slow: left out by `make test-quick`.

use crate::support::{
    foreign_server::{Fault, ForeignServer},
    lab::{self, Ended, FAILED, PASSED, USAGE},
    tls_proxy,
    trials::trial,
};
use libtest_mimic::Trial;
use serde_json::Value;
use std::{fs, path::Path};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial!(one_file_has_the_server_its_protocol_and_the_load(Fault::None)),
        trial!(one_file_has_the_server_its_protocol_and_the_load(Fault::Lose)),
        trial!(a_server_that_is_not_trusted_gets_nothing),
        trial!(a_server_that_answers_no_publish_is_told_so),
        trial!(what_a_driver_cannot_do_is_wrong_usage),
    ];
    for driver in [DriverFile::Centrifugo, DriverFile::Words] {
        trials.push(trial!(a_server_that_keeps_its_promises_passes(driver)));
        for fault in [Fault::Lose, Fault::Double, Fault::Reorder, Fault::Alter, Fault::RefuseAndDeliver] {
            trials.push(trial!(each_fault_is_counted_and_named(fault, driver)));
        }
        for (fault, way) in [(Fault::Fragments, Way::Plain), (Fault::None, Way::Tls), (Fault::Fragments, Way::Tls)] {
            trials.push(trial!(messages_may_come_in_several_frames_and_encrypted(fault, way, driver)));
        }
        trials.push(trial!(a_loss_is_counted_over_tls(driver)));
        trials.push(trial!(direct_messages_reach_their_receiver_alone(driver)));
        for fault in [Fault::Lose, Fault::Double, Fault::Alter, Fault::Stray] {
            trials.push(trial!(each_fault_of_direct_messages_is_counted_and_named(fault, driver)));
        }
        trials.push(trial!(a_refused_message_is_no_loss(driver)));
        for fault in [Fault::Starve, Fault::Disconnect] {
            trials.push(trial!(a_receiver_that_is_starved_or_cut_off_loses_all_that_follows(fault, driver)));
        }
        trials.push(trial!(a_refused_login_ends_the_run_with_the_servers_words(driver)));
    }
    trials
}

/// One sender, so that the twentieth message is the same for all.
const GROUP: &str = r#"
name = "described"
about = "A group on a server that others wrote."
[population.p]
kind = "group"
members = 3
senders = 1
body_bytes = 80
[[phase]]
name = "one by one"
[[phase.work]]
population = "p"
rounds = 5
pause = "1ms"
"#;

/// Five conversations, so that most messages are not the first receiver's.
const DIRECT: &str = r#"
name = "described-pairs"
about = "Direct conversations on a server that others wrote."
[population.p]
kind = "direct"
pairs = 5
senders = 2
body_bytes = 80
"#;

/// What both are loaded with.
const EVEN_AND_FLOOD: &str = r#"
[[phase]]
name = "even"
duration = "250ms"
[[phase.work]]
population = "p"
rate = 120
[[phase]]
name = "flood"
duration = "200ms"
[[phase.work]]
population = "p"
rate = "max"
window = 20
"#;

fn group() -> String {
    [GROUP, EVEN_AND_FLOOD].concat()
}

fn direct() -> String {
    [DIRECT, EVEN_AND_FLOOD].concat()
}

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

/// To the server.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Plain,
    /// Through a proxy that encrypts.
    Tls,
}

struct Run {
    ended: Ended,
    /// Of the three phases.
    outcomes: Vec<Value>,
    server: ForeignServer,
}

impl Run {
    fn code(&self) -> i32 {
        self.ended.code
    }

    fn sum(&self, count: &str) -> u64 {
        self.outcomes.iter().map(|outcome| outcome[count].as_u64().unwrap()).sum()
    }

    /// What the run says in words.
    fn problems(&self) -> String {
        self.outcomes.iter().map(|outcome| outcome["problems"].to_string()).collect::<Vec<_>>().join("\n")
    }
}

fn bench(folder: &Path, scenario: &str, options: &str) -> Ended {
    fs::write(folder.join("words.toml"), TEXT_DRIVER).unwrap();
    fs::write(folder.join("scenario.toml"), scenario).unwrap();
    lab::run(&format!("run {} --lag-max 60s {options}", folder.join("scenario.toml").display()))
}

fn run(fault: Fault, driver: DriverFile) -> Run {
    run_scenario(&group(), fault, driver, Way::Plain)
}

fn run_scenario(scenario: &str, fault: Fault, driver: DriverFile, way: Way) -> Run {
    let server = ForeignServer::start(fault);
    let folder = tempfile::tempdir().unwrap();
    let mut url = server.url.clone();
    if way == Way::Tls {
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
        if matches!(fault, Fault::None | Fault::Fragments | Fault::Double | Fault::Reorder) { "60s" } else { "3s" };
    let ended = bench(folder.path(), scenario, &format!("--url {url} {driver} --patience {patience}"));
    let phases = ended.figures["phases"].as_array().cloned().unwrap_or_default();
    let outcomes = phases.iter().map(|phase| phase["works"][0].clone()).collect();
    Run { ended, outcomes, server }
}

fn a_server_that_keeps_its_promises_passes(driver: DriverFile) {
    // Longer than elsewhere, so that also on a busy machine the client gets round to the flood before it is over.
    let scenario = group().replace("200ms", "2s");
    let run = run_scenario(&scenario, Fault::None, driver, Way::Plain);
    assert_eq!(run.code(), PASSED, "{:#?}", run.outcomes);
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

/// The scenario names the server and describes its protocol; nothing else is given.
fn one_file_has_the_server_its_protocol_and_the_load(fault: Fault) {
    let server = ForeignServer::start(fault);
    let driver = TEXT_DRIVER.replace("\n[", "\n[server.driver.");
    let group = group();
    let (head, rest) = group.split_once("[population").unwrap();
    let url = &server.url;
    let scenario = format!("{head}[server]\nurl = \"{url}\"\n[server.driver]{driver}[population{rest}");
    let patience = if fault == Fault::None { "60s" } else { "3s" };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.toml");
    fs::write(&file, scenario).unwrap();
    let ended = lab::run(&format!("run {} --lag-max 60s --patience {patience}", file.display()));
    let works = ended.figures["phases"].as_array().unwrap().iter().map(|phase| &phase["works"][0]);
    let lost: u64 = works.map(|work| work["lost"].as_u64().unwrap()).sum();
    let expected = if fault == Fault::None { (PASSED, 0) } else { (FAILED, 1) };
    assert_eq!((ended.code, lost), expected);
}

fn each_fault_is_counted_and_named(fault: Fault, driver: DriverFile) {
    // The first five messages are the rounds: the twentieth is the fifteenth of the second phase, number 14.
    let (counts, named) = match fault {
        Fault::Lose | Fault::RefuseAndDeliver => ([1, 0, 0, 0], " never got message 14 of sender 0"),
        Fault::Double => ([0, 1, 0, 0], " got message 14 of sender 0 twice"),
        Fault::Reorder => ([0, 0, 1, 0], " got message 14 of sender 0 after a later one"),
        Fault::Alter => ([1, 0, 0, 1], "that nobody sent: lab."),
        other => panic!("{other:?}"),
    };
    expect_fault(&run(fault, driver), counts, named);
}

/// A run fails, with so many lost, doubled, reordered and altered, and says this.
fn expect_fault(run: &Run, expected: [u64; 4], named: &str) {
    let counts = ["lost", "doubled", "out_of_order", "altered"].map(|count| run.sum(count));
    assert_eq!(counts, expected, "{}", run.problems());
    assert!(run.problems().contains(named), "{}", run.problems());
    assert_eq!(run.code(), FAILED);
}

fn messages_may_come_in_several_frames_and_encrypted(fault: Fault, way: Way, driver: DriverFile) {
    let run = run_scenario(&group(), fault, driver, way);
    assert_eq!(run.code(), PASSED, "{:#?}", run.outcomes);
    assert_eq!(run.sum("delivered"), 3 * run.sum("sent"));
}

fn a_loss_is_counted_over_tls(driver: DriverFile) {
    let lost = run_scenario(&group(), Fault::Lose, driver, Way::Tls);
    assert_eq!((lost.code(), lost.sum("lost")), (FAILED, 1), "{}", lost.problems());
}

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
    assert_eq!(bench(folder.path(), &group(), &options).code, FAILED);
}

fn direct_messages_reach_their_receiver_alone(driver: DriverFile) {
    let clean = run_scenario(&direct(), Fault::None, driver, Way::Plain);
    assert_eq!(clean.code(), PASSED, "{:#?}", clean.outcomes);
    let even = &clean.outcomes[0];
    assert_eq!((&even["planned"], &even["expected"], &even["delivered"]), (&30.into(), &30.into(), &30.into()));
    assert_eq!(clean.sum("delivered"), clean.sum("sent"));
}

fn each_fault_of_direct_messages_is_counted_and_named(fault: Fault, driver: DriverFile) {
    let (counts, named) = match fault {
        Fault::Lose => ([1, 0, 0, 0], " never got message "),
        Fault::Double => ([0, 1, 0, 0], " twice"),
        Fault::Alter => ([1, 0, 0, 1], "that nobody sent: lab."),
        Fault::Stray => ([0, 0, 0, 1], "got a message that is for receiver "),
        other => panic!("{other:?}"),
    };
    expect_fault(&run_scenario(&direct(), fault, driver, Way::Plain), counts, named);
}

fn a_refused_message_is_no_loss(driver: DriverFile) {
    let run = run(Fault::Refuse, driver);
    assert_eq!((run.sum("refused"), run.sum("lost")), (1, 0), "{}", run.problems());
    assert_eq!(run.code(), PASSED);
    let shown = if matches!(driver, DriverFile::Words) { "no thanks" } else { "try again" };
    assert!(run.problems().contains(shown), "{}", run.problems());
}

fn a_receiver_that_is_starved_or_cut_off_loses_all_that_follows(fault: Fault, driver: DriverFile) {
    let run = run(fault, driver);
    let after_phase_one: u64 = run.outcomes[1..].iter().map(|outcome| outcome["sent"].as_u64().unwrap()).sum();
    assert_eq!(run.sum("lost"), after_phase_one - 14, "{}", run.problems());
    assert_eq!(run.code(), FAILED);
}

fn a_server_that_answers_no_publish_is_told_so() {
    let run = run(Fault::NoAnswer, DriverFile::Words);
    assert!(run.problems().contains("publishes were never answered"), "{}", run.problems());
}

fn a_refused_login_ends_the_run_with_the_servers_words(driver: DriverFile) {
    let run = run(Fault::RefuseLogin, driver);
    assert_eq!((run.code(), run.outcomes.len()), (FAILED, 0));
}

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
        assert_eq!(bench(folder.path(), &scenario, options).code, USAGE, "{options}\n{scenario}");
    }
}

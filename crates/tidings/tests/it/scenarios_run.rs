//! Scenarios run as docs/scenarios.md says: every example of the page, and what a search names when something breaks.
// Slow: left out by `make test-quick`.
#![cfg(feature = "lab")]

use crate::support::balances;
use serde_json::Value;
use std::{path::Path, process::Command};

/// Runs a scenario of this text: its exit code, its figures, and what it printed.
fn run(text: &str) -> (i32, Value, String) {
    run_set(text, &[])
}

/// The same with other values in some places.
fn run_set(text: &str, set: &[&str]) -> (i32, Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let (file, figures) = (folder.path().join("scenario.toml"), folder.path().join("figures.json"));
    std::fs::write(&file, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidings"))
        .args(["bench", "run"])
        .arg(&file)
        // A machine that does other things makes the lab late, which ends a search: these tests are about what the server does.
        .args(["--lag-max", "1m"])
        .arg("--json")
        .arg(&figures)
        .args(set.iter().flat_map(|line| ["--set", line]))
        .output()
        .unwrap();
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{printed}");
    let figures = std::fs::read_to_string(&figures).map_or(Value::Null, |json| serde_json::from_str(&json).unwrap());
    (output.status.code().unwrap(), figures, printed)
}

/// The same for a scenario that must pass.
fn passed(text: &str) -> Value {
    let (code, figures, printed) = run(text);
    assert!(balances(Some(code)), "exit code {code}: {printed}");
    figures
}

/// The whole files among the page's examples, by their names.
fn example(name: &str) -> String {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios.md")).unwrap();
    let mut examples = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let head = format!("name = \"{name}\"\n");
    examples.find(|text| text.starts_with(&head)).unwrap_or_else(|| panic!("the page has no {name}")).to_owned()
}

fn works(figures: &Value, phase: usize) -> &Vec<Value> {
    figures["phases"][phase]["works"].as_array().unwrap()
}

#[test]
fn works_share_a_rate_and_are_held_to_their_thresholds() {
    let figures = passed(&example("an-evening"));
    let of = |phase, work: usize, name: &str| works(&figures, phase)[work][name].as_u64().unwrap();
    // The area under the ramp is 55 messages, of which 22 and 33 are due.
    assert_eq!((of(0, 0, "planned"), of(0, 1, "planned")), (22, 33));
    assert_eq!((of(0, 0, "delivered"), of(0, 1, "delivered")), (220, 33));
    // Bursts: 2 × (0.8 × 10 + 0.2 × 80); steps: 10 + 20.
    assert_eq!((of(1, 0, "planned"), of(1, 1, "planned")), (48, 30));
    assert_eq!(works(&figures, 1)[0]["title"], "bursts: chatter");
    let marks = works(&figures, 1)[1]["marks"].as_array().unwrap();
    assert_eq!((marks.len(), &marks[0]["name"]), (1, &Value::from("20/s")));
    let criteria = figures["run"]["criteria"].as_array().unwrap();
    let of_threshold = |bound: &str| criteria.iter().filter(|one| one["bound"] == bound).count();
    assert_eq!((of_threshold("errors < 5 %"), of_threshold("p50 < 5000 ms")), (4, 1), "{criteria:?}");
}

#[test]
fn a_flood_runs_at_a_share_of_what_it_reaches_alone_around_what_is_measured() {
    // On a busy machine a tenth of what two senders reach in half a second is nothing.
    let text = example("beside-a-flood").replace(r#"{ share = 0.1, each = "500ms" }"#, r#"{ share = 1, each = "2s" }"#);
    assert!(text.contains("share = 1,"), "{text}");
    let figures = passed(&text);
    let (alone, beside) = (&works(&figures, 0)[0], works(&figures, 1));
    assert_eq!((&alone["delivered"], &beside[0]["delivered"]), (&Value::from(20), &Value::from(20)));
    let flood = &beside[1];
    assert_eq!(flood["delivered"].as_u64().unwrap(), 5 * flood["committed"].as_u64().unwrap());
    // It begins and ends half a second apart from what is measured: it is due for twice as long. What it reaches alone on a busy machine
    // may be few messages a second: the end is an interval after the last of them.
    let (bins, planned) = (flood["series"]["planned"].as_array().unwrap(), flood["planned"].as_u64().unwrap());
    let last = bins.iter().rposition(|bin| bin.as_u64() > Some(0)).unwrap() as u64;
    let quarters = (last + 1) * planned / (planned - 1).max(1);
    assert!(quarters > 5 || planned < 2, "due for {quarters} quarters of a second: {bins:?}");
}

#[test]
fn values_are_set_from_outside_and_the_highest_rate_is_proved() {
    let text = r#"
        name = "highest"
        about = "How many messages a second two friends can send."
        [population.friends]
        kind = "direct"
        pairs = 9
        [[phase]]
        name = "rising"
        duration = "1s"
        [[phase.work]]
        population = "friends"
        rate = { highest = { from = 40, each = "500ms", thresholds = ["p99<0"] } }
        "#;
    // No rate keeps this bound, down to the lowest.
    let figures = passed(text);
    let found = &figures["phases"][0];
    assert_eq!((&found["works"], found["trials"].as_array().unwrap().len()), (&Value::Null, 7), "{found}");
    // Set from outside, every rate keeps the bound up to one at which fewer are planned than there are.
    let (code, figures, printed) = run_set(text, &["population.friends.pairs=2", "phase.rising.work.0.rate=10"]);
    assert!(balances(Some(code)), "exit code {code}: {printed}");
    assert_eq!(works(&figures, 0)[0]["delivered"], 10);
}

#[test]
fn a_recorded_chat_is_replayed_and_receipts_agree() {
    let chat = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/fixtures/ubuntu-irc-sample.jsonl");
    let figures = passed(&format!(
        r#"
        name = "a-chat"
        about = "A recorded chat beside a group whose members say what they have read."
        [population.chat]
        kind = "chat"
        file = "{}"
        limit = 40
        online = 10
        [population.family]
        kind = "group"
        members = 5
        receipts = "200ms"
        [[phase]]
        name = "both"
        duration = "1s"
        [[phase.work]]
        population = "chat"
        replay = "max"
        batch = 10
        [[phase.work]]
        population = "family"
        rate = 20
        "#,
        chat.display()
    ));
    assert_eq!((&works(&figures, 0)[0]["committed"], &works(&figures, 0)[1]["delivered"]), (&40.into(), &100.into()));
    let criteria = figures["run"]["criteria"].as_array().unwrap();
    let receipts = criteria.iter().find(|one| one["name"] == "receipts").unwrap();
    assert_eq!(receipts["met"], true, "{receipts}");
}

#[test]
fn a_cluster_loses_nothing_when_one_of_its_nodes_is_killed() {
    let figures = passed(&example("two-nodes"));
    let (quiet, faulty) = (&works(&figures, 0)[0], &works(&figures, 1)[0]);
    assert_eq!((&quiet["delivered"], &faulty["delivered"]), (&Value::from(120), &Value::from(300)));
    let marks: Vec<&str> =
        faulty["marks"].as_array().unwrap().iter().filter_map(|mark| mark["name"].as_str()).collect();
    assert_eq!(marks, ["node-killed", "reverted"]);
    assert!(quiet["server_rss_bytes"].as_u64().unwrap() > 2 << 20, "both nodes' memory: {}", quiet["server_rss_bytes"]);
    assert_eq!(faulty["server_cpu_seconds"], Value::Null, "the process that was measured is gone");
}

#[test]
fn every_kind_of_population_works() {
    let figures = passed(&example("everybody"));
    let works = works(&figures, 0);
    assert_eq!((works[0]["rounds"].as_array().unwrap().len(), &works[0]["delivered"]), (3, &Value::from(30)));
    assert_eq!((&works[1]["planned"], &works[1]["delivered"]), (&Value::from(40), &Value::from(40)));
    assert_eq!((works[2]["pushes"].as_array().unwrap().len(), &works[2]["answers"]), (2, &Value::from(40)));
    assert_eq!((&works[3]["answers"], &works[3]["broken"]), (&Value::from(40), &Value::from(0)));
    let popups = &self::works(&figures, 1)[0];
    assert!(popups["stretch"]["answers"].as_u64().unwrap() > 0, "{}", popups["stretch"]);
    assert_eq!(popups["stretch"]["broken"], 0);
    let answers = &self::works(&figures, 1)[1];
    assert_eq!((&answers["delivered"], &answers["stored_whole"]), (&Value::from(400), &Value::from(10)), "{answers}");
}

#[test]
fn devices_bind_stay_come_back_and_are_pushed_to() {
    let figures = passed(&example("a-day-of-devices"));
    let of = |phase: usize| &works(&figures, phase)[0];
    assert_eq!((&of(0)["live"], &of(0)["answers"]), (&40.into(), &40.into()));
    assert!(of(0)["series"]["acknowledged"].as_array().is_some_and(|bins| !bins.is_empty()), "connects over time");
    assert!(of(1)["answers"].as_u64() > Some(0) && of(1)["per_connection_bytes"].is_object(), "{}", of(1));
    assert_eq!((&of(2)["live"], &of(2)["attempts"]), (&40.into(), &40.into()));
    assert_eq!((of(3)["pushes"].as_array().unwrap().len(), &of(3)["answers"]), (2, &80.into()));
    assert_eq!(figures["presence"]["differences"], 0);
}

#[test]
fn populations_of_popup_users_follow_each_other() {
    let figures = passed(
        r#"
name = "home-pages"
about = "Two populations with popups of their own, one after the other."
[population.kept]
kind = "popup-users"
users = 200
popups = 20
connections = 4
[population.short]
kind = "popup-users"
users = 200
popups = 10
connections = 4
keep_alive = false
[[phase]]
name = "one"
duration = "1s"
[[phase.work]]
population = "kept"
rate = 100
[[phase]]
name = "the other"
duration = "1s"
[[phase.work]]
population = "short"
rate = 100
"#,
    );
    for phase in 0..2 {
        let popups = &works(&figures, phase)[0];
        assert!(popups["stretch"]["answers"].as_u64().unwrap() > 0, "{}", popups["stretch"]);
        assert_eq!((&popups["stretch"]["broken"], &popups["balance"]["wrong"]), (&Value::from(0), &Value::from(0)));
    }
}

#[test]
fn a_search_names_the_descriptors_that_ran_out() {
    let figures = passed(&example("how-many-bind"));
    let (good, broke) = (&figures["phases"][0]["last_good"], &figures["phases"][0]["broke"]);
    assert_eq!(broke["by"]["cause"], "descriptors", "{broke}");
    assert_eq!(good["step"].as_u64().unwrap() + 1, broke["step"].as_u64().unwrap(), "{good} {broke}");
}

#[test]
fn a_search_names_refusals_with_their_codes() {
    let figures = passed(
        r#"
        name = "too-many"
        about = "One user who sends more and more."
        [server]
        settings = { TIDINGS_ENGINE_SENDS_PER_SECOND = 5 }
        [population.one]
        kind = "direct"
        pairs = 1
        via = "ws"
        [[phase]]
        name = "rising"
        [[phase.work]]
        population = "one"
        rate = { until_it_breaks = { from = 2, to = 512, factor = 16, each = "1s" } }
        "#,
    );
    let (good, broke) = (&figures["phases"][0]["last_good"], &figures["phases"][0]["broke"]);
    assert_eq!((&good["step"], &broke["by"]["cause"]), (&Value::from(2), &Value::from("refusals")), "{good} {broke}");
    assert!(broke["by"]["what"].as_str().unwrap().starts_with("rate_limited "), "{broke}");
}

#[test]
fn scripted_clients_take_their_steps() {
    let figures = passed(&example("a-parcel"));
    let script = &works(&figures, 0)[0];
    // Each of 6 sessions: 11 steps before the repetition, 2 × 2 in it, and one after it.
    assert_eq!((&script["planned"], &script["wrong"], &script["seed"]), (&96.into(), &0.into(), &3.into()), "{script}");
}

#[test]
fn a_step_that_does_not_come_true_is_told_with_what_came_instead() {
    let (code, figures, printed) = run(r#"
        name = "in-vain"
        about = "A client that waits in vain."
        [script.phone]
        sessions = 2
        steps = [
            "bind",
            { send = { to = "everybody", body = "hello" } },
            { push = { body = "one thing" } },
            { wait = "500ms" },
            { expect = { kind = "push", body = "another", within = "500ms" } },
        ]
        [[phase]]
        name = "in vain"
        [[phase.work]]
        script = "phone"
        "#);
    assert_eq!(code, 1, "{printed}");
    let problems = works(&figures, 0)[0]["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 2);
    for problem in problems {
        let problem = problem.as_str().unwrap();
        assert!(problem.contains("step 5 (expect): 0 of 1 came"), "{problem}");
        assert!(problem.contains("a push \"one thing\""), "{problem}");
    }
}

#[test]
fn a_script_in_lua_decides_by_what_came_and_draws_from_its_seed() {
    let steps = || {
        let figures = passed(&example("a-device-in-lua"));
        let script = &works(&figures, 0)[0];
        assert_eq!(script["wrong"], 0, "{script}");
        script["planned"].as_u64().unwrap()
    };
    // Each of 6 sessions: three stays with two steps and four more for each of one to three pushes.
    let first = steps();
    assert!((6 * 18..=6 * 42).contains(&first), "{first}");
    assert_eq!(steps(), first);
}

#[test]
fn a_fault_of_a_script_in_lua_is_told_with_its_line() {
    let script = |program: &str| {
        run(&format!(
            "name = \"in-vain\"\nabout = \"A program that goes wrong.\"\n[script.phone]\nsessions = 1\nlua = \"\"\"\n{program}\n\"\"\"\n\
             [[phase]]\nname = \"in vain\"\n[[phase.work]]\nscript = \"phone\"\n"
        ))
    };
    for (program, why) in [
        (
            "bind()\npush { body = 'one' }\nexpect { kind = 'push', body = 'two', within = '500ms' }",
            "session 0, line 3 (expect): 0 of 1 came",
        ),
        ("bind()\nlocal text = nothing.body", "session 0, 2: attempt to index a nil value"),
        ("push { text = 'one' }", "session 0, line 1: unknown field `text`"),
    ] {
        let (code, figures, printed) = script(program);
        assert_eq!(code, 1, "{printed}");
        let problems = works(&figures, 0)[0]["problems"].as_array().unwrap();
        assert!(problems.len() == 1 && problems[0].as_str().unwrap().contains(why), "{problems:?}");
    }
    let (code, _, printed) = script("bind(");
    assert_eq!(code, 2);
    assert!(printed.contains("scenario.toml:5:7: "), "{printed}");
}

#[test]
fn faults_are_survived_and_marked() {
    let figures = passed(&example("bad-minute"));
    let work = &works(&figures, 0)[0];
    assert_eq!((&work["planned"], &work["delivered"]), (&80.into(), &400.into()), "{work}");
    assert!(work["reconnects"].as_u64().unwrap() >= 5, "nobody noticed that the server was killed");
    let marks: Vec<&str> = work["marks"].as_array().unwrap().iter().filter_map(|mark| mark["name"].as_str()).collect();
    assert_eq!(marks, ["node-killed", "reverted", "node-frozen", "reverted"]);
}

#[test]
fn commands_stand_beside_each_other() {
    let figures = passed(&example("two-groups"));
    let titles: Vec<&str> = figures["commands"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|command| command["figures"]["outcome"]["title"].as_str())
        .collect();
    assert_eq!(titles.len(), 2);
    assert!(titles[0].starts_with("three: ") && titles[1].starts_with("six: "), "{titles:?}");
    let criteria = figures["run"]["criteria"].as_array().unwrap();
    assert_eq!(criteria.iter().filter(|one| one["name"] == "threshold").count(), 1, "only of the second");
}

#[test]
fn a_mistake_ends_the_run_before_anything_is_started() {
    let (code, _, printed) = run("name = \"a\"\nabout = \"A.\"\n[population.g]\nkind = \"grop\"\n");
    assert_eq!(code, 2);
    assert!(printed.contains("scenario.toml:4:8: unknown variant `grop`, expected one of `group`"), "{printed}");
}

#[test]
fn every_shipped_scenario_is_listed_and_shown() {
    let tidings = |line: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidings")).args(line.split(' ')).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (listed, list) = tidings("bench scenario list");
    assert!(listed && list.lines().count() > 20, "{list}");
    let is_heading = |line: &&str| line.is_empty() || line.ends_with(':');
    for name in list.lines().filter(|line| !is_heading(line)).map(|line| line.split(' ').next().unwrap()) {
        let (shown, text) = tidings(&format!("bench scenario show {name}"));
        assert!(shown && text.contains(&format!("name = \"{name}\"")), "{name}: {text}");
    }
}

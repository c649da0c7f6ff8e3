//! `docs/operations/capacity.md`: its examples are what the program prints, and its table says what was measured, what the program
//! computes for that, and how far apart the two are.

use std::process::Command;

const TIDINGS: &str = env!("CARGO_BIN_EXE_tidings");
const PAGE: &str = include_str!("../../../../docs/operations/capacity.md");

fn plan(arguments: &str) -> String {
    let output = Command::new(TIDINGS).arg("plan").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{arguments}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The busy cores of the line that begins so.
fn cores(text: &str, line: &str) -> f64 {
    let line = text.lines().find_map(|text| text.strip_prefix(line)).unwrap_or_else(|| panic!("no {line}: {text}"));
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn an_example_is_what_the_program_prints() {
    let (_, example) = PAGE.split_once("```text\n$ tidings plan ").unwrap();
    let (arguments, printed) = example.split_once("```").unwrap().0.split_once('\n').unwrap();
    assert_eq!(plan(arguments), printed);
}

#[test]
fn the_table_says_what_was_measured_and_how_far_off_the_model_is() {
    let mut rows = 0;
    for row in PAGE.lines().filter(|line| line.contains("| `tidings plan ")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [_, command, line, measured, computed, off] = cells[..] else { panic!("{row}") };
        let arguments = command.trim_matches('`').strip_prefix("tidings plan ").unwrap();
        let found = cores(&plan(arguments), line);
        assert_eq!(format!("{found:.2}"), computed, "{row}");
        let measured: f64 = measured.parse().unwrap();
        assert_eq!(format!("{:+.0} %", (found / measured - 1.0) * 100.0), off, "{row}");
        rows += 1;
    }
    assert!(rows >= 3, "{rows} rows");
}

#[test]
fn more_load_never_takes_less() {
    let busiest = [("sessions", 200_000), ("devices", 900_000), ("logins", 900), ("direct", 4_000), ("group", 300)];
    let busiest = busiest.into_iter().chain([("pushes", 20_000), ("popups", 9_000), ("popup-users", 2_000_000)]);
    let mut arguments = String::from("--cores 16");
    let mut before = [0.0; 4];
    for (name, value) in busiest {
        arguments += &format!(" --{name} {value}");
        let text = plan(&arguments);
        let memory = |line: &str| {
            let line = text.lines().find(|text| text.starts_with(line)).unwrap();
            line.split(" GiB").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap()
        };
        let now = [cores(&text, "one server"), cores(&text, "a cluster"), memory("one server"), memory("a cluster")];
        assert!(now.iter().zip(before).all(|(now, before)| *now >= before), "{before:?} {arguments}: {text}");
        before = now;
    }
    assert!(before[0] > 1.0 && before[1] > 1.0 && before[2] > 4.0, "{before:?}");
}

#[test]
fn what_no_cluster_carries_is_said_and_nonsense_is_refused() {
    let text = plan("--cores 1 --busy 1 --direct 100000 --sessions 100");
    assert!(text.contains("no number of nodes") && text.contains("beyond what was measured"), "{text}");
    for nonsense in ["--direct -1", "--direct nan", "--busy 0", "--cores 0", "--tls 101", "--heartbeat 0"] {
        let output = Command::new(TIDINGS).arg("plan").args(nonsense.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{nonsense}: {output:?}");
    }
}

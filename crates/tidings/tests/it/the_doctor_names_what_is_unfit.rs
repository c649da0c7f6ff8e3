//! `tidings doctor` exits with 1 when a machine cannot bear a load, names what and how to mend it, and tells no secrets.

use std::process::{Command, Output};

fn doctor(arguments: &[&str], variables: &[(&str, &str)]) -> (Output, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidings"))
        .arg("doctor")
        .args(arguments)
        .env("TIDINGS_DATA_DIR", folder.path().join("data"))
        .envs(variables.iter().copied())
        .current_dir(folder.path())
        .output()
        .unwrap();
    (output, folder)
}

fn findings(output: &Output) -> Vec<serde_json::Value> {
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    told["findings"].as_array().unwrap().clone()
}

#[test]
fn a_load_that_no_machine_bears_is_refused_with_what_to_change() {
    let (output, folder) = doctor(&["--json", "--connections", "1000000000"], &[]);
    assert_eq!(output.status.code(), Some(1));
    let findings = findings(&output);
    let memory = findings.iter().find(|finding| finding["name"].as_str().unwrap().contains("memory")).unwrap();
    assert_eq!(memory["state"], "wrong");
    for finding in &findings {
        for field in ["name", "now", "needed", "why"] {
            assert_ne!(finding[field], "", "{finding}");
        }
        assert!(finding["state"] == "fine" || finding["command"] != "", "{finding}");
    }
    assert!(findings.iter().any(|finding| finding["name"].as_str().unwrap().starts_with("fsync")));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_small_load_needs_no_more_descriptors_than_a_process_has() {
    let (output, _folder) = doctor(&["--json", "--connections", "1", "--rate", "1"], &[]);
    let descriptors = findings(&output).into_iter().find(|finding| finding["name"] == "fs.nr_open").unwrap();
    assert_eq!(descriptors["state"], "fine");
}

#[test]
fn services_that_do_not_answer_are_named_without_their_passwords() {
    let variables = [
        ("TIDINGS_STORE_URL", "postgres://u:hidden-one@127.0.0.1:1/x"),
        ("TIDINGS_CLUSTER_NAME", "a"),
        ("TIDINGS_CLUSTER_REDIS", "redis://u:hidden-two@127.0.0.1:1"),
    ];
    let (output, _folder) = doctor(&["--json"], &variables);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&[output.stdout.clone(), output.stderr.clone()].concat()).into_owned();
    assert!(!told.contains("hidden"), "{told}");
    let findings = findings(&output);
    let wrong =
        |name: &str| findings.iter().any(|one| one["name"].as_str().unwrap().contains(name) && one["state"] == "wrong");
    assert!(wrong("PostgreSQL") && wrong("Redis"), "{told}");
    assert!(!told.contains("fsync of"), "the disk of a database is not this machine's");
}

#[test]
fn nonsense_is_wrong_usage() {
    for arguments in [["--connections", "0"], ["--rate", "-1"], ["--rate", "2000000000"]] {
        assert_eq!(doctor(&arguments, &[]).0.status.code(), Some(2), "{arguments:?}");
    }
}

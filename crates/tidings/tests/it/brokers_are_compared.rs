//! `bench brokers`: the same load on Tidings, on Debian's nats-server and on its mosquitto, with every delivery verified.

use crate::support::balances;
use serde_json::Value;
use std::process::Command;

#[test]
fn a_small_comparison_balances_on_every_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("figures.json");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_tidings"));
    bench.args(["bench", "brokers", "--members", "20", "--ladder", "10,20", "--broadcasts", "3", "--idle", "30"]);
    bench.args(["--duration", "300ms", "--rounds", "1", "--patience", "60s", "--json"]).arg(&file);
    let output = bench.current_dir(folder.path()).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(balances(output.status.code()), "{}: {printed}", output.status);
    let figures: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let servers = figures["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 3);
    for server in servers {
        let round = &server["rounds"][0];
        let group = &round["group"];
        assert_eq!(group["balances"], true, "{server}");
        assert!(group["delivered"].as_u64().unwrap() > 0 && group["delivered"] == group["expected"], "{server}");
        assert_eq!(round["broadcasts"].as_array().unwrap().len(), 2, "{server}");
        assert!(server["version"].as_str().unwrap().contains('.'), "{server}");
    }
}

#[test]
fn a_number_of_nothing_is_refused() {
    for (option, value) in [("--members", "0"), ("--ladder", "5,0"), ("--url", "http://127.0.0.1:1")] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_tidings")).args(["bench", "brokers", option, value]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{option}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

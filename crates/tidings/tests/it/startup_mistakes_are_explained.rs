//! Startup errors are explained, and conditions that allow serving do not prevent the start.

use crate::support::*;
use std::{fs, net::TcpListener};

/// Starts the server with these variables, which must be refused. Returns its standard error.
fn refused(variables: &[(&str, &str)]) -> String {
    let folder = Folder::new();
    let mut command = folder.program(&["serve"]);
    command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{variables:?}");
    assert!(!folder.data().exists(), "nothing is opened before the settings are looked at");
    text(&output.stderr)
}

#[test]
fn an_unknown_log_level_is_refused_at_startup() {
    let told = refused(&[("TIDINGS_LOG_LEVEL", "verbose")]);
    assert!(told.contains("\"verbose\"") && told.contains("off, error, warn, info, debug, trace"), "{told}");
}

#[test]
fn numbers_out_of_range_are_refused_at_startup() {
    for (name, value) in
        [("TIDINGS_PUSH_FLUSH_INTERVAL_MS", "0"), ("TIDINGS_SESSION_HEARTBEAT_MS", "18446744073709551615")]
    {
        let told = refused(&[(name, value)]);
        assert!(told.contains(&format!("is {value}: it must be from 1 to ")), "{told}");
    }
}

#[test]
fn an_address_of_redis_with_a_path_is_refused_at_startup() {
    let told = refused(&[
        ("TIDINGS_STORE_URL", "postgres://nowhere/x"),
        ("TIDINGS_CLUSTER_NAME", "a"),
        ("TIDINGS_CLUSTER_SECRET", "a secret of the nodes"),
        ("TIDINGS_CLUSTER_REDIS", "redis://10.0.0.1:6379,redis://:hush@10.0.0.2:6379/1"),
    ]);
    let parts = ["[cluster] redis", "address 2 of Redis names a database", "leave the path out"];
    assert!(parts.iter().all(|part| told.contains(part)) && !told.contains("hush"), "{told}");
}

#[test]
fn an_invalid_settings_file_is_refused_with_line_and_reason() {
    let folder = Folder::new();
    fs::write(folder.path().join("tidings.toml"), "# ours\nmiop_listen = []\nhttp_listen = \"localhost\"\n").unwrap();
    let told = text(&folder.program(&["serve"]).env_remove("TIDINGS_HTTP_LISTEN").output().unwrap().stderr);
    for part in ["tidings.toml", "line 3", "\"localhost\" is not an IP address and a port, such as 127.0.0.1:8080"] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
}

#[test]
fn with_logs_in_json_every_line_is_json() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = folder.program(&["serve"]);
    command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).env("TIDINGS_LOG_FORMAT", "json");
    let output = command.env("TIDINGS_HTTP_LISTEN", taken.local_addr().unwrap().to_string()).output().unwrap();
    assert!(!output.status.success());
    let told = text(&output.stderr);
    assert!(told.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{told}");
    assert!(told.contains("in use"), "{told}");
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn command_help_does_not_list_every_setting() {
    let folder = Folder::new();
    let commands = ["serve", "token", "listen", "backup", "check"];
    for command in commands.into_iter().chain(cfg!(feature = "lab").then_some("cluster")) {
        for flag in ["-h", "--help"] {
            let output = folder.run(&[command, flag]);
            assert!(output.status.success());
            let help = text(&output.stdout);
            assert!(!help.contains("--engine-commit-queue"), "{help}");
            assert!(help.lines().count() <= 40, "{command} {flag}: {} lines", help.lines().count());
            assert!(command == "cluster" || help.contains("--help-settings"), "it says where they are: {help}");
        }
    }
    let all = text(&folder.run(&["serve", "--help-settings"]).stdout);
    let sample = text(&folder.run(&["config"]).stdout);
    let mut table = String::new();
    let mut settings = 0;
    for line in sample.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            table = format!("{name}-");
        } else if let Some((name, _)) = line.trim_start_matches("# ").split_once(" = ")
            && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        {
            let flag = format!("  --{table}{} <VALUE>\n", name.replace('_', "-"));
            assert!(all.contains(&flag), "no {flag}");
            settings += 1;
        }
    }
    assert!(settings > 80, "{settings}");
}

#[cfg(feature = "lab")]
#[test]
fn an_invalid_cluster_setting_is_refused_before_anything_starts() {
    let folder = Folder::new();
    let refused = |setting: &str| {
        let output = folder.run(&["cluster", "--set", setting]);
        assert!(!output.status.success());
        assert!(!text(&output.stdout).contains("starting"), "{}", text(&output.stdout));
        text(&output.stderr)
    };
    assert!(refused("TIDINGS_STORE_URL=postgres://elsewhere").contains("TIDINGS_STORE_URL is what joins the nodes"));
    assert!(refused("TIDINGS_DATA_DIR=/tmp/x").contains("TIDINGS_DATA_DIR is chosen for each server"));
    assert!(refused("TIDINGS_API_KYE=x").contains("TIDINGS_API_KYE: unknown setting"));
    assert!(refused("TIDINGS_HTTP_THREADS=many").contains("\"many\" is not a whole number"));
}

/// As on a full disk, neither the draft nor the file itself can be written.
#[test]
fn a_server_serves_even_if_it_cannot_write_the_listening_file() {
    let folder = Folder::new();
    fs::create_dir_all(folder.data().join("listening.new")).unwrap();
    // The file of an earlier process that was killed.
    fs::write(folder.data().join("listening"), "http=127.0.0.1:1\n").unwrap();
    let log = fs::File::create(folder.path().join("log")).unwrap();
    let mut command = folder.program(&["serve"]);
    let command = command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).stderr(log);
    let mut server = Server::start(command);
    assert!(server.http().is_ready());
    assert!(!folder.data().join("listening").exists(), "what is there names a listener of nobody's");
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("the server's addresses cannot be written"), "{log}");
    server.signal("TERM");
    assert!(server.wait().0.success());
}

//! While a bench runs, a terminal shows how far it is, with the rates and latencies of its series; whatever ends the bench, the
//! terminal is clean afterwards. Where nobody looks nothing is drawn.
//!
//! The lab starts the same binary again as its load client, `bench worker`, and so does this test, under a pseudo-terminal.
// Slow: left out by `make test-quick`.

#![allow(clippy::unwrap_used)]

#[path = "support/message_server.rs"]
mod message_server;
#[path = "support/pseudo_terminal.rs"]
mod pseudo_terminal;

use clap::Parser;
use message_server::{Fault, serve};
use pseudo_terminal::PseudoTerminal;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::File,
    os::unix::process::ExitStatusExt,
    process::{Command, ExitCode, Stdio},
};

#[derive(Parser)]
enum Arguments {
    Bench(tidings_lab::BenchArgs),
}

const INTERRUPTED: i32 = 130;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("bench") {
        let Arguments::Bench(args) = Arguments::parse();
        return tidings_lab::run(args);
    }
    a_run_is_followed_until_ctrl_c();
    tables_begin_where_the_view_began();
    an_error_stands_alone();
    a_signal_that_ends_the_run_leaves_nothing();
    colours_are_left_out_where_they_are_not_wanted();
    nothing_is_drawn_where_nobody_looks();
    ExitCode::SUCCESS
}

/// Starts `bench group` against a server of its own, with tables on nobody's terminal.
fn start(options: &str, set_up: impl FnOnce(&mut Command)) -> PseudoTerminal {
    start_with(options, |command, terminal| {
        command.stdout(Stdio::null()).stderr(terminal);
        set_up(command);
    })
}

fn start_with(options: &str, set_up: impl FnOnce(&mut Command, File)) -> PseudoTerminal {
    let url = &serve(Fault::None)[0];
    let line = format!(
        "bench group --url {url} --api-key secret-key --token-key t --members 3 --senders 8 --lag-max 60s --rate 200 {options}"
    );
    PseudoTerminal::run(std::env::current_exe().unwrap().to_str().unwrap(), &line, set_up)
}

/// The lines of the view, by what they begin with.
fn has_view(screen: &str) -> bool {
    ["  planned ", "  answered ", "  p99 ", "  errors 0  late "]
        .iter()
        .all(|name| screen.lines().any(|line| line.starts_with(name)))
}

fn a_run_is_followed_until_ctrl_c() {
    let mut terminal = start("--duration 60m", |_| {});
    let screen = terminal.wait_for(|screen| {
        let of_planned = screen.lines().find(|line| line.starts_with("  planned "));
        has_view(screen) && of_planned.is_some_and(|line| line.contains('█') && line.ends_with(" 200/s"))
    });
    assert!(screen.lines().next().unwrap().contains(" of 1:00:00"), "{screen}");
    assert!(screen.contains("delivered ") && screen.contains(" ms"), "{screen}");
    terminal.press(b"\x03");
    let (status, screen, _) = terminal.end();
    assert_eq!(status.code(), Some(INTERRUPTED), "{screen}");
    assert_eq!(screen, "ended early: these figures are of a part of the run");
}

fn tables_begin_where_the_view_began() {
    let terminal = start_with("--duration 3s", |command, terminal| {
        command.stdout(terminal.try_clone().unwrap()).stderr(terminal);
    });
    terminal.wait_for(has_view);
    let (status, screen, _) = terminal.end();
    assert_eq!(status.code(), Some(0), "{screen}");
    assert!(screen.lines().nth(1).unwrap().starts_with("  messages     planned 600  sent 600"), "{screen}");
    assert!(!screen.contains('█') && !screen.contains('░'), "{screen}");
}

fn an_error_stands_alone() {
    let terminal = start("--duration 60m", |_| {});
    terminal.wait_for(has_view);
    let pid = terminal.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let worker = children.split_whitespace().next().unwrap().parse().unwrap();
    kill_process(Pid::from_raw(worker).unwrap(), Signal::KILL).unwrap();
    let (status, screen, _) = terminal.end();
    assert_eq!((status.code(), screen.as_str()), (Some(1), "bench: the load worker failed: ended without a report"));
}

fn a_signal_that_ends_the_run_leaves_nothing() {
    let terminal = start("--duration 60m", |_| {});
    terminal.wait_for(has_view);
    kill_process(Pid::from_raw(terminal.pid() as i32).unwrap(), Signal::TERM).unwrap();
    let (status, screen, _) = terminal.end();
    assert_eq!((status.signal(), screen.as_str()), (Some(Signal::TERM.as_raw()), ""));
}

fn colours_are_left_out_where_they_are_not_wanted() {
    for (no_color, has_colours) in [(None, true), (Some("1"), false)] {
        let mut terminal = start("--duration 60m", |command| {
            command.envs(no_color.map(|value| ("NO_COLOR", value)));
        });
        terminal.wait_for(has_view);
        terminal.press(b"\x03");
        let (_, _, bytes) = terminal.end();
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.contains("\x1b[1m"), has_colours, "{text:?}");
    }
}

fn nothing_is_drawn_where_nobody_looks() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let json = format!("--json {}", file.path().display());
    for (term, options) in [("dumb", ""), ("xterm", "--quiet"), ("xterm", json.as_str())] {
        let terminal = start(&format!("--duration 1s {options}"), |command| {
            command.env("TERM", term);
        });
        let (status, screen, bytes) = terminal.end();
        assert_eq!((status.code(), bytes.is_empty()), (Some(0), true), "{term} {options}: {screen}");
    }
    let errors = tempfile::NamedTempFile::new().unwrap();
    let terminal = start("--duration 1s", |command| {
        command.stderr(errors.reopen().unwrap());
    });
    let (status, _, _) = terminal.end();
    assert_eq!((status.code(), std::fs::read_to_string(errors.path()).unwrap().as_str()), (Some(0), ""));
}

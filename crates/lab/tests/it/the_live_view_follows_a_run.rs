//! While a bench runs, a terminal shows how far it is, with the rates and latencies of its series; whatever ends the bench, the
//! terminal is clean afterwards. Where nobody looks nothing is drawn.
// Slow: left out by `make test-quick`.

use crate::support::{
    lab::{FAILED, INTERRUPTED, PASSED},
    message_server::{Fault, serve},
    pseudo_terminal::PseudoTerminal,
    trials::trial,
};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::File,
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial!(a_run_is_followed_until_ctrl_c),
        trial!(tables_begin_where_the_view_began),
        trial!(an_error_stands_alone),
        trial!(a_signal_that_ends_the_run_leaves_nothing),
    ];
    for wish in [Colours::Wanted, Colours::Unwanted] {
        trials.push(trial!(colours_are_left_out_where_they_are_not_wanted(wish)));
    }
    for place in [Unseen::DumbTerminal, Unseen::Quiet, Unseen::Json, Unseen::File] {
        trials.push(trial!(nothing_is_drawn_where_nobody_looks(place)));
    }
    trials
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
        let shows_rate = of_planned.is_some_and(|line| line.contains('█') && line.ends_with(" 200/s"));
        // A server on a busy machine may deliver nothing in the first seconds.
        has_view(screen) && shows_rate && screen.contains("delivered ")
    });
    assert!(screen.lines().next().unwrap().contains(" of 1:00:00") && screen.contains(" ms"), "{screen}");
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
    assert_eq!(status.code(), Some(PASSED), "{screen}");
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
    assert_eq!(
        (status.code(), screen.as_str()),
        (Some(FAILED), "bench: the load worker failed: ended without a report")
    );
}

fn a_signal_that_ends_the_run_leaves_nothing() {
    let terminal = start("--duration 60m", |_| {});
    terminal.wait_for(has_view);
    kill_process(Pid::from_raw(terminal.pid() as i32).unwrap(), Signal::TERM).unwrap();
    let (status, screen, _) = terminal.end();
    assert_eq!((status.signal(), screen.as_str()), (Some(Signal::TERM.as_raw()), ""));
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Colours {
    Wanted,
    /// Said by `NO_COLOR`.
    Unwanted,
}

fn colours_are_left_out_where_they_are_not_wanted(colours: Colours) {
    let mut terminal = start("--duration 60m", |command| {
        command.envs((colours == Colours::Unwanted).then_some(("NO_COLOR", "1")));
    });
    terminal.wait_for(has_view);
    terminal.press(b"\x03");
    let (_, _, bytes) = terminal.end();
    let text = String::from_utf8_lossy(&bytes);
    assert_eq!(text.contains("\x1b[1m"), colours == Colours::Wanted, "{text:?}");
}

/// Why nobody looks.
#[derive(Debug, Clone, Copy)]
enum Unseen {
    DumbTerminal,
    Quiet,
    Json,
    /// Standard error is a file.
    File,
}

fn nothing_is_drawn_where_nobody_looks(unseen: Unseen) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (term, options) = match unseen {
        Unseen::DumbTerminal => ("dumb", String::new()),
        Unseen::Quiet => ("xterm", "--quiet".into()),
        Unseen::Json => ("xterm", format!("--json {}", file.path().display())),
        Unseen::File => ("xterm", String::new()),
    };
    let terminal = start(&format!("--duration 1s {options}"), |command| {
        command.env("TERM", term);
        if matches!(unseen, Unseen::File) {
            command.stderr(file.reopen().unwrap());
        }
    });
    let (status, screen, bytes) = terminal.end();
    assert_eq!((status.code(), bytes.is_empty()), (Some(PASSED), true), "{screen}");
    if matches!(unseen, Unseen::File) {
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "");
    }
}

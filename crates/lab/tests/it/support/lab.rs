//! The lab as a process of its own: this binary again, whose `main` runs the bench.
//!
//! A bench handles Ctrl-C, keeps its threads to a core and draws on the terminal. All three are its process's, so that no trial
//! runs one in the process that it shares with others.

use serde_json::Value;
use std::process::{Child, Command, Stdio};

pub(crate) const PASSED: i32 = 0;
pub(crate) const FAILED: i32 = 1;
pub(crate) const USAGE: i32 = 2;
pub(crate) const INVALID: i32 = 3;
pub(crate) const ENVIRONMENT: i32 = 4;
pub(crate) const THRESHOLD_MISSED: i32 = 5;
pub(crate) const INTERRUPTED: i32 = 130;

/// `bench` with these arguments.
pub(crate) fn command(arguments: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("bench").args(arguments.split_whitespace());
    command
}

/// Runs a bench to its end.
pub(crate) fn run(arguments: &str) -> Ended {
    Bench::start(arguments).end()
}

/// A bench that is running, with the file of its figures. It is killed if nobody waits for its end.
pub(crate) struct Bench {
    child: Option<Child>,
    folder: tempfile::TempDir,
}

/// What a bench left. It is printed if the trial fails.
pub(crate) struct Ended {
    pub(crate) code: i32,
    /// What was printed: the tables, then the errors.
    pub(crate) said: String,
    /// `Null` if the bench got no figures.
    pub(crate) figures: Value,
}

impl Bench {
    pub(crate) fn start(arguments: &str) -> Self {
        Bench::spawn(command(arguments))
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        command.arg("--json").arg(folder.path().join("json"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Bench { child: Some(command.spawn().unwrap()), folder }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn end(mut self) -> Ended {
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let figures = std::fs::read(self.folder.path().join("json"));
        let figures = figures.map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).unwrap());
        Ended { code: output.status.code().unwrap(), said, figures }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.said);
        }
    }
}

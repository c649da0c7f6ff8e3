//! Commands of a topology: at a place, as a user, with a death signal.

use super::place::Place;
use crate::LabError;
use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

/// A user that a process runs as: (user, group).
pub(super) type ProcessUser = (u32, u32);

/// The command that starts a program at a place, as a user, with a death signal.
///
/// Every wrapper becomes the next program without a fork, so that the child's id is the program's. The death signal is sent
/// when the *thread* that started the process ends, so that thread must outlive the topology.
pub(super) fn command(place: Place, user: Option<ProcessUser>, death_signal: &str, program: &Path) -> Command {
    let mut command = match place.namespace() {
        None => Command::new("setpriv"),
        Some(holder) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/proc/{holder}/ns/net")).arg("setpriv");
            command
        }
    };
    command.args(["--pdeathsig", death_signal]);
    if let Some((user, group)) = user {
        command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).arg("--clear-groups");
    }
    // Its own process group: a terminal's Ctrl-C must reach only the lab, which stops its processes in order.
    command.arg(program).stdin(Stdio::null()).process_group(0);
    command
}

/// Runs a program to its end and returns its output; if it fails, its standard error is the error.
pub(super) fn run(command: &mut Command) -> Result<String, LabError> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let program = command.get_args().fold(command.get_program().to_owned(), |mut line, argument| {
            line.push(" ");
            line.push(argument);
            line
        });
        Err(LabError::Environment(format!("{}: {}", program.display(), stderr.trim())))
    }
}

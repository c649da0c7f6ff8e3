//! A process that the lab has started, with its log. It never outlives the lab.

use crate::{LabError, process};
use std::{
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

/// Between two looks at a process.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The longest wait until a server of this program is ready: opening a folder of ten million messages takes seconds, and longer in a
/// debug build on a busy machine.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest wait for its end: it drains and closes its store.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// A process with its log.
#[derive(Debug)]
pub(crate) struct ManagedProcess {
    name: String,
    log: PathBuf,
    child: Option<Child>,
}

impl ManagedProcess {
    pub(crate) fn new(name: impl Into<String>, log: PathBuf) -> Self {
        ManagedProcess { name: name.into(), log, child: None }
    }

    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Starts a command; its output is appended to the log.
    pub(crate) fn start(&mut self, mut command: Command) -> Result<(), LabError> {
        let log = self.open_log()?;
        self.child = Some(command.stdout(log.try_clone()?).stderr(log).spawn()?);
        Ok(())
    }

    fn open_log(&self) -> Result<File, LabError> {
        Ok(OpenOptions::new().create(true).append(true).open(&self.log)?)
    }

    /// Waits until `ready` returns true; if the process ends before, the error has the end of its log. `fault`: what kind of error that is.
    pub(crate) fn wait_until(
        &mut self,
        patience: Duration,
        fault: fn(String) -> LabError,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), LabError> {
        let started = Instant::now();
        while !ready() {
            if let Some(status) = self.ended()? {
                return Err(fault(format!("{} ended with {status}: {}", self.name, self.log_tail())));
            }
            if started.elapsed() > patience {
                return Err(fault(format!("{} was not ready in time: {}", self.name, self.log_tail())));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// The exit status, if the process has ended without being told to.
    pub(crate) fn ended(&mut self) -> Result<Option<std::process::ExitStatus>, LabError> {
        match &mut self.child {
            None => Ok(None),
            Some(child) => Ok(child.try_wait()?),
        }
    }

    /// If the process has ended without being told to: its name and the end of its log.
    pub(crate) fn unexpected_end(&mut self) -> Option<String> {
        let is_as_requested = matches!(self.ended(), Ok(None));
        (!is_as_requested).then(|| format!("{}: {}", self.name, self.log_tail()))
    }

    pub(crate) fn log_tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Kills the process (`kill -9`), and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<(), LabError> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Sends SIGTERM to a server of this program, and waits until it has drained and ended.
    pub(crate) fn drain(&mut self) -> Result<(), LabError> {
        if self.stop(rustix::process::Signal::TERM, DRAIN_TIMEOUT)? {
            Ok(())
        } else {
            Err(LabError::Server(format!("did not end after SIGTERM: {}: {}", self.name, self.log_tail())))
        }
    }

    /// Sends a signal and waits for the process's end; kills it after `patience`. Returns whether it ended by itself.
    pub(crate) fn stop(&mut self, signal: rustix::process::Signal, patience: Duration) -> Result<bool, LabError> {
        let Some(child) = &mut self.child else { return Ok(true) };
        process::signal(child.id(), signal);
        let asked = Instant::now();
        while child.try_wait()?.is_none() {
            if asked.elapsed() > patience {
                self.kill()?;
                return Ok(false);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.child = None;
        Ok(true)
    }
}

impl Drop for ManagedProcess {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

//! The load clients of a run with devices: worker processes, each with a part of the devices.

use super::{
    device_counts::DeviceCounts,
    worker_protocol::{DeviceCommand, DeviceReport, DeviceWorkerConfig},
};
use crate::{
    LabError, interrupt,
    live::{LiveBlock, WorkLength},
    process,
};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    time::Duration,
};

/// A worker without a report for so long has failed: workers report progress four times a second.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Reports per worker that may wait to be read.
const REPORTS_MAX: usize = 64;

pub(crate) struct DeviceClients {
    workers: Vec<Worker>,
    reports: Receiver<(usize, DeviceReport)>,
    pub(crate) devices: usize,
}

struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl DeviceClients {
    /// Starts the workers, each with its part of the devices; returns when all have signed their tokens.
    pub(crate) fn open(config: &DeviceWorkerConfig, workers: usize) -> Result<Self, LabError> {
        let (sender, reports) = sync_channel(REPORTS_MAX * workers);
        let mut clients = DeviceClients { workers: Vec::new(), reports, devices: config.count };
        let mut first = config.first;
        // Concurrent runs differ in the second byte of their source addresses, workers of one run in the third.
        let (a, b) = config.source;
        for number in 0..workers {
            let count = config.count / workers + usize::from(number < config.count % workers);
            let part = DeviceWorkerConfig { first, count, source: (a, b.wrapping_add(number as u8)), ..config.clone() };
            first += count;
            clients.start(number, sender.clone())?;
            clients.send(number, &DeviceCommand::Open(Box::new(part)))?;
        }
        let mut opened = 0;
        while opened < workers {
            match clients.receive()? {
                (_, DeviceReport::Opened) => opened += 1,
                (_, other) => return Err(LabError::Worker(format!("reported {other:?} instead of opening"))),
            }
        }
        Ok(clients)
    }

    fn start(&mut self, number: usize, sender: SyncSender<(usize, DeviceReport)>) -> Result<(), LabError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "device-worker"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        if interrupt::is_installed() {
            command.process_group(0);
        }
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        self.workers.push(Worker { child, stdin });
        let Some(stdout) = stdout else { return Err(LabError::Worker("has no output".into())) };
        std::thread::spawn(move || forward_reports(number, stdout, &sender));
        Ok(())
    }

    /// Has every worker carry out a command, shows progress, and adds up their counts.
    pub(crate) fn run(&mut self, title: &str, command: &DeviceCommand) -> Result<DeviceCounts, LabError> {
        self.begin(command)?;
        self.finish(title)
    }

    /// Sends a command to every worker and returns at once; [`finish`](Self::finish) waits for all.
    pub(crate) fn begin(&mut self, command: &DeviceCommand) -> Result<(), LabError> {
        (0..self.workers.len()).try_for_each(|number| self.send(number, command))
    }

    pub(crate) fn finish(&mut self, title: &str) -> Result<DeviceCounts, LabError> {
        let live = LiveBlock::begin(title, WorkLength::Unknown);
        let mut sum = DeviceCounts::default();
        let mut at = vec![(0, 0, 0); self.workers.len()];
        let mut waiting = self.workers.len();
        while waiting > 0 {
            match self.receive()? {
                (worker, DeviceReport::Progress { live: bound, attempts, given_up }) => {
                    at[worker] = (bound, attempts, given_up);
                    let all = at.iter().fold((0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
                    live.note(format!("{} of {} bound, {} attempts, {} gave up", all.0, self.devices, all.1, all.2));
                }
                (_, DeviceReport::Done(counts)) => {
                    sum.add(&counts);
                    waiting -= 1;
                }
                (_, DeviceReport::Opened) => {}
                (_, DeviceReport::Failed { why }) => return Err(LabError::Worker(why)),
            }
        }
        drop(live);
        Ok(sum)
    }

    pub(crate) fn count(&mut self) -> Result<DeviceCounts, LabError> {
        self.begin(&DeviceCommand::ReportCounts)?;
        self.finish("counting")
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.child.id()).collect()
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.pids().into_iter().map(process::cpu_seconds).sum()
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }

    fn send(&mut self, number: usize, command: &DeviceCommand) -> Result<(), LabError> {
        let Some(stdin) = &mut self.workers[number].stdin else { return Err(LabError::Worker("has ended".into())) };
        let mut line = serde_json::to_vec(command).map_err(std::io::Error::from)?;
        line.push(b'\n');
        stdin.write_all(&line)?;
        Ok(stdin.flush()?)
    }

    fn receive(&mut self) -> Result<(usize, DeviceReport), LabError> {
        match self.reports.recv_timeout(REPORT_TIMEOUT) {
            Ok((_, DeviceReport::Failed { why })) => Err(LabError::Worker(why)),
            Ok(report) => Ok(report),
            Err(RecvTimeoutError::Timeout) => Err(LabError::Worker("sent no report for a minute".into())),
            Err(RecvTimeoutError::Disconnected) => Err(LabError::Worker("ended without a report".into())),
        }
    }
}

fn forward_reports(number: usize, stdout: ChildStdout, sender: &SyncSender<(usize, DeviceReport)>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Some(Ok(line)) = lines.next() {
        let report = serde_json::from_str(&line).unwrap_or_else(|error| DeviceReport::Failed {
            why: format!("sent a report that does not parse: {error}"),
        });
        if sender.send((number, report)).is_err() {
            return;
        }
    }
    // The worker has ended: at the end of a run, when no report is read any more, or by a crash.
    let _ = sender.send((number, DeviceReport::Failed { why: "ended without a report".into() }));
}

impl Drop for DeviceClients {
    fn drop(&mut self) {
        // A worker ends when its input ends.
        for worker in &mut self.workers {
            worker.stdin = None;
        }
        for worker in &mut self.workers {
            let _ = worker.child.wait();
        }
    }
}

//! The device clients of a run: worker processes, each with a part of the devices.

use super::{
    job::{DeviceCommand, DeviceReport, OpenDevices},
    tally::Tally,
};
use crate::{LabError, process, report::Live};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    time::Duration,
};

/// A worker that says nothing for so long has failed: it reports progress four times a second.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Reports that wait for the parent, per worker.
const REPORTS_MAX: usize = 64;

pub(crate) struct Fleet {
    workers: Vec<Worker>,
    reports: Receiver<(usize, DeviceReport)>,
    pub(crate) devices: usize,
}

struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Fleet {
    /// Starts the workers that divide the devices among themselves; returns when all have their tokens.
    pub(crate) fn open(plan: &OpenDevices, workers: usize) -> Result<Self, LabError> {
        let (sender, reports) = sync_channel(REPORTS_MAX * workers);
        let mut fleet = Fleet { workers: Vec::new(), reports, devices: plan.count };
        let mut first = plan.first;
        // Runs side by side, of tests or of people, differ in the second byte of their addresses.
        let (a, b) = plan.source;
        for number in 0..workers {
            let count = plan.count / workers + usize::from(number < plan.count % workers);
            let open = OpenDevices { first, count, source: (a, b.wrapping_add(number as u8)), ..plan.clone() };
            first += count;
            fleet.start(number, sender.clone())?;
            fleet.tell(number, &DeviceCommand::Open(Box::new(open)))?;
        }
        let mut opened = 0;
        while opened < workers {
            match fleet.hear()? {
                (_, DeviceReport::Opened) => opened += 1,
                (_, other) => return Err(LabError::Worker(format!("said {other:?} instead of opening"))),
            }
        }
        Ok(fleet)
    }

    fn start(&mut self, number: usize, sender: SyncSender<(usize, DeviceReport)>) -> Result<(), LabError> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "device-worker"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        self.workers.push(Worker { child, stdin });
        let Some(stdout) = stdout else { return Err(LabError::Worker("has no output".into())) };
        std::thread::spawn(move || listen(number, stdout, &sender));
        Ok(())
    }

    /// Has every worker do it, shows how far they are, and adds up what they counted.
    pub(crate) fn run(&mut self, title: &str, command: &DeviceCommand) -> Result<Tally, LabError> {
        self.begin(command)?;
        self.finish(title)
    }

    /// Tells every worker, and returns at once; [`finish`](Self::finish) waits for all.
    pub(crate) fn begin(&mut self, command: &DeviceCommand) -> Result<(), LabError> {
        (0..self.workers.len()).try_for_each(|number| self.tell(number, command))
    }

    pub(crate) fn finish(&mut self, title: &str) -> Result<Tally, LabError> {
        let live = Live::start(title);
        let mut sum = Tally::default();
        let mut at = vec![(0, 0, 0); self.workers.len()];
        let mut waiting = self.workers.len();
        while waiting > 0 {
            match self.hear()? {
                (worker, DeviceReport::Progress { live: bound, attempts, given_up }) => {
                    at[worker] = (bound, attempts, given_up);
                    let all = at.iter().fold((0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
                    live.say(format!("{} of {} bound, {} attempts, {} gave up", all.0, self.devices, all.1, all.2));
                }
                (_, DeviceReport::Done(tally)) => {
                    sum.add(&tally);
                    waiting -= 1;
                }
                (_, DeviceReport::Opened) => {}
                (_, DeviceReport::Failed { why }) => return Err(LabError::Worker(why)),
            }
        }
        live.end();
        Ok(sum)
    }

    pub(crate) fn count(&mut self) -> Result<Tally, LabError> {
        self.begin(&DeviceCommand::Count)?;
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

    fn tell(&mut self, number: usize, command: &DeviceCommand) -> Result<(), LabError> {
        let Some(stdin) = &mut self.workers[number].stdin else { return Err(LabError::Worker("is gone".into())) };
        let mut line = serde_json::to_vec(command).map_err(std::io::Error::from)?;
        line.push(b'\n');
        stdin.write_all(&line)?;
        Ok(stdin.flush()?)
    }

    fn hear(&mut self) -> Result<(usize, DeviceReport), LabError> {
        match self.reports.recv_timeout(SILENCE_MAX) {
            Ok((_, DeviceReport::Failed { why })) => Err(LabError::Worker(why)),
            Ok(report) => Ok(report),
            Err(RecvTimeoutError::Timeout) => Err(LabError::Worker("said nothing for a minute".into())),
            Err(RecvTimeoutError::Disconnected) => Err(LabError::Worker("ended without a word".into())),
        }
    }
}

fn listen(number: usize, stdout: ChildStdout, sender: &SyncSender<(usize, DeviceReport)>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Some(Ok(line)) = lines.next() {
        let report = serde_json::from_str(&line)
            .unwrap_or_else(|error| DeviceReport::Failed { why: format!("said what nobody understands: {error}") });
        if sender.send((number, report)).is_err() {
            return;
        }
    }
    // The end of a run, when nobody listens any more, or of a worker that crashed.
    let _ = sender.send((number, DeviceReport::Failed { why: "ended without a word".into() }));
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // The end of its input tells a worker to go.
        for worker in &mut self.workers {
            worker.stdin = None;
        }
        for worker in &mut self.workers {
            let _ = worker.child.wait();
        }
    }
}

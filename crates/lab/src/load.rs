//! The worker process, as the bench that started it sees it.

use crate::{
    LabError,
    args::TargetArgs,
    job::{Command as Job, Conversation, Open, Outcome, Phase, Progress, Receiver, Report},
    process,
    report::Live,
    server::Target,
};
use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

/// A descriptor per connection, and a few for the rest.
const CONNECTIONS_MAX: usize = 19_900;

/// With several servers, a connection that is silent for so long is given up for one to the next.
const SILENCE: Duration = Duration::from_secs(4);

/// A running worker with all its connections open.
#[derive(Debug)]
pub(crate) struct Load {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    server_pid: Option<u32>,
}

/// Who connects, for one worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Crowd {
    pub(crate) conversations: Vec<Conversation>,
    pub(crate) receivers: Vec<Receiver>,
    pub(crate) http_senders: usize,
    pub(crate) ws_senders: Vec<String>,
    /// Another worker on the same core measures at the same time, and goes first.
    pub(crate) yielding: bool,
}

impl Crowd {
    /// All of these users receive conversation 0.
    pub(crate) fn of_group(conversation: Conversation, online: &[String]) -> Self {
        Crowd {
            conversations: vec![conversation],
            receivers: online.iter().map(|user| Receiver { user: user.clone(), conversation: 0 }).collect(),
            ..Crowd::default()
        }
    }
}

impl Load {
    pub(crate) fn open(target: &Target, args: &TargetArgs, crowd: Crowd) -> Result<Self, LabError> {
        let (api_key, token_key) = target.keys();
        Load::start(target.addresses(), target.pid(), (api_key, token_key), args, crowd, false)
    }

    /// Against the bare loop, whose receivers neither upgrade nor bind.
    pub(crate) fn open_bare(address: SocketAddr, pid: u32, args: &TargetArgs, crowd: Crowd) -> Result<Self, LabError> {
        Load::start(vec![address], Some(pid), ("", ""), args, crowd, true)
    }

    fn start(
        addresses: Vec<SocketAddr>,
        server_pid: Option<u32>,
        (api_key, token_key): (&str, &str),
        args: &TargetArgs,
        crowd: Crowd,
        bare: bool,
    ) -> Result<Self, LabError> {
        let count = crowd.receivers.len() + crowd.http_senders + crowd.ws_senders.len();
        if count > CONNECTIONS_MAX {
            return Err(LabError::Usage(format!("{count} connections: one load client holds {CONNECTIONS_MAX}")));
        }
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "worker"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let Some(stdout) = stdout else { return Err(LabError::Worker("has no output".into())) };
        let mut load = Load { child, stdin, stdout: BufReader::new(stdout), server_pid };
        load.tell(&Job::Open(Open {
            // One server that is silent has its reasons, and nobody else to go to.
            silence_ms: (addresses.len() > 1).then_some(SILENCE.as_millis() as u64),
            addresses,
            api_key: api_key.into(),
            token_key: token_key.into(),
            bare,
            // A flood's client yields to every other process, so it may run on any core. On the core of the client that
            // measures it would delay that client.
            core: (!crowd.yielding).then(|| args.client_core.unwrap_or_else(process::last_core)),
            yielding: crowd.yielding,
            patience_ms: args.patience.as_millis() as u64,
            conversations: crowd.conversations,
            receivers: crowd.receivers,
            http_senders: crowd.http_senders,
            ws_senders: crowd.ws_senders,
        }))?;
        match load.hear()? {
            Report::Opened { .. } => Ok(load),
            other => Err(LabError::Worker(format!("said {other:?} instead of opening"))),
        }
    }

    /// Spreads the connections over all servers as they were at first, and returns when they are open.
    pub(crate) fn spread(&mut self) -> Result<(), LabError> {
        self.tell(&Job::Spread)?;
        match self.hear()? {
            Report::Opened { .. } => Ok(()),
            other => Err(LabError::Worker(format!("said {other:?} instead of opening"))),
        }
    }

    /// Runs one phase, showing its progress on a terminal.
    pub(crate) fn run(&mut self, title: &str, phase: Phase) -> Result<Outcome, LabError> {
        self.begin(phase)?;
        self.finish(title)
    }

    /// Starts a phase and returns at once; [`finish`](Self::finish) waits for its end.
    pub(crate) fn begin(&mut self, phase: Phase) -> Result<(), LabError> {
        self.tell(&Job::Run(phase))
    }

    pub(crate) fn finish(&mut self, title: &str) -> Result<Outcome, LabError> {
        self.finish_watched(title, |_| false)
    }

    /// Waits for the end of a phase, and shows each report on the way. Once `watch` answers that it is enough, nothing
    /// more is planned.
    pub(crate) fn finish_watched(
        &mut self,
        title: &str,
        mut watch: impl FnMut(&Progress) -> bool,
    ) -> Result<Outcome, LabError> {
        let live = Live::start(title);
        let mut told = false;
        let before = self.server_pid.map(process::cpu_seconds);
        loop {
            match self.hear()? {
                Report::Progress(progress) => {
                    live.show(&progress);
                    if watch(&progress) && !std::mem::replace(&mut told, true) {
                        self.tell(&Job::Enough)?;
                    }
                }
                Report::Done(mut outcome) => {
                    live.end();
                    if let (Some(pid), Some(before)) = (self.server_pid, before) {
                        outcome.server_cpu_seconds = Some(process::cpu_seconds(pid) - before);
                        outcome.server_rss_bytes = Some(process::resident_bytes(pid));
                    }
                    return Ok(*outcome);
                }
                Report::Opened { .. } => {}
                Report::Failed { why } => return Err(LabError::Worker(why)),
            }
        }
    }

    fn tell(&mut self, job: &Job) -> Result<(), LabError> {
        let Some(stdin) = &mut self.stdin else { return Err(LabError::Worker("is gone".into())) };
        let mut line = serde_json::to_vec(job).map_err(std::io::Error::from)?;
        line.push(b'\n');
        stdin.write_all(&line)?;
        Ok(stdin.flush()?)
    }

    fn hear(&mut self) -> Result<Report, LabError> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            return Err(LabError::Worker("ended without a word".into()));
        }
        match serde_json::from_str(&line).map_err(std::io::Error::from)? {
            Report::Failed { why } => Err(LabError::Worker(why)),
            report => Ok(report),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // The end of its input tells the worker to go.
        self.stdin = None;
        let _ = self.child.wait();
    }
}

//! One connection of a coordinator: a load client is started for it, and what both say is passed on.

use super::{
    machine::Machine,
    wire::{
        AgentLine, CoordinatorLine, LINE_BYTES_MAX, Line, LineReader, LoadClientKind, Refusal, RefusalCode, parse,
        write_line,
    },
};
use crate::{clock::machine_ns, lock::lock};
use base64::{Engine, engine::general_purpose::STANDARD};
use std::{
    io::{self, Write},
    net::TcpStream,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tempfile::NamedTempFile;

/// A coordinator says every second that it is there. One that is silent for so long is gone, or its machine is.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The line to the coordinator, on which the connection and the load client's output take turns.
#[derive(Clone)]
struct Coordinator(Arc<Mutex<TcpStream>>);

impl Coordinator {
    fn tell(&self, line: &AgentLine) -> io::Result<()> {
        let mut stream = lock(&self.0);
        write_line(&mut *stream, line)
    }
}

/// A load client; it is killed when it is dropped. It holds nothing that must last.
struct LoadProcess {
    child: Child,
    stdin: ChildStdin,
}

impl LoadProcess {
    fn start(kind: LoadClientKind, coordinator: Coordinator) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", kind.command()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a load client without pipes"));
        };
        std::thread::spawn(move || pass_reports_on(stdout, &coordinator));
        Ok(LoadProcess { child, stdin })
    }
}

impl Drop for LoadProcess {
    fn drop(&mut self) {
        // Fails when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes on what the load client reports until it ends, or the coordinator has gone.
fn pass_reports_on(stdout: ChildStdout, coordinator: &Coordinator) {
    let mut lines = LineReader::new(stdout, LINE_BYTES_MAX);
    let how = loop {
        match lines.read() {
            Ok(Line::Complete(line)) => {
                let report = match parse(&line) {
                    Ok(report) => report,
                    Err(refusal) => break refusal.to_string(),
                };
                if coordinator.tell(&AgentLine::Report(report)).is_err() {
                    return;
                }
            }
            Ok(Line::NotYet) => {}
            Ok(Line::End) => break "ended".into(),
            Err(refusal) => break refusal.to_string(),
        }
    };
    // The coordinator may have ended it.
    let _ = coordinator.tell(&AgentLine::Ended { how });
}

/// Serves one connection until the coordinator closes it.
pub(super) fn relay(stream: &TcpStream, lines: &mut LineReader<&TcpStream>) -> Result<(), Refusal> {
    let machine = |error: io::Error| RefusalCode::Machine.because(format!("the agent's machine: {error}"));
    let coordinator = Coordinator(Arc::new(Mutex::new(stream.try_clone().map_err(machine)?)));
    let mut load: Option<LoadProcess> = None;
    let mut files: Vec<NamedTempFile> = Vec::new();
    let mut file_is_open = false;
    let mut heard = Instant::now();
    loop {
        let line = match lines.read_value()? {
            Line::Complete(line) => line,
            Line::NotYet if heard.elapsed() <= SILENCE_MAX => continue,
            Line::NotYet => {
                let why = format!("the coordinator was silent for {} s", SILENCE_MAX.as_secs());
                return Err(RefusalCode::Timeout.because(why));
            }
            Line::End => return Ok(()),
        };
        heard = Instant::now();
        let answer = match line {
            CoordinatorLine::Ping { id } => Some(AgentLine::Pong { id, clock_ns: machine_ns() }),
            CoordinatorLine::Inspect => Some(AgentLine::Machine(Machine::inspect())),
            CoordinatorLine::Launch(kind) if load.is_none() => {
                load = Some(LoadProcess::start(kind, coordinator.clone()).map_err(machine)?);
                None
            }
            CoordinatorLine::Command(command) => {
                let Some(load) = &mut load else {
                    return Err(RefusalCode::BadLine.because("a command before the load client was launched"));
                };
                // A load client that has ended is told of by its output.
                let _ = load.stdin.write_all(format!("{command}\n").as_bytes()).and_then(|()| load.stdin.flush());
                None
            }
            CoordinatorLine::File { data, is_last } => {
                let bytes = STANDARD.decode(data).map_err(|error| RefusalCode::BadLine.because(error.to_string()))?;
                if !std::mem::replace(&mut file_is_open, !is_last) {
                    files.push(NamedTempFile::with_prefix("tidings-agent-").map_err(machine)?);
                }
                let Some(file) = files.last_mut() else { continue };
                file.write_all(&bytes).map_err(machine)?;
                is_last.then(|| AgentLine::Stored { path: file.path().display().to_string() })
            }
            CoordinatorLine::Authenticate(_) | CoordinatorLine::Launch(_) => {
                return Err(RefusalCode::BadLine.because("a line that comes once came again"));
            }
        };
        if let Some(answer) = answer
            && coordinator.tell(&answer).is_err()
        {
            return Ok(());
        }
    }
}

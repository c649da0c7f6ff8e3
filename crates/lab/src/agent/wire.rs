//! What a coordinator and an agent say to each other over TCP: one JSON line each, of bounded length.

use crate::agent::machine::Machine;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    time::Duration,
};

/// Raised whenever lines change, those of load clients included.
pub(crate) const PROTOCOL: u32 = 3;
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The longest line before both sides have proved that they know the token.
pub(crate) const GREETING_BYTES_MAX: usize = 4 * 1024;
/// The longest line afterwards: the participants of one load client take some two megabytes, a chunk of a ledger one.
pub(crate) const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How long both sides may take to greet each other.
pub(crate) const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the coordinator says that it is there.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(1);
/// How long a read may take before the reader looks at the time.
pub(crate) const READ_TICK: Duration = Duration::from_millis(250);

/// From the coordinator to an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CoordinatorLine {
    Authenticate(Credentials),
    /// Answered by `Pong` with the same number.
    Ping {
        id: u64,
    },
    /// Start a load client of this kind; its reports follow.
    Launch(LoadClientKind),
    /// A command for the load client.
    Command(Box<RawValue>),
    /// Answered by `Machine`.
    Inspect,
    /// A chunk of a file that the load client will read, in base64; the last one is answered by `Stored`.
    File {
        data: String,
        is_last: bool,
    },
}

/// What a load client loads with, and so which commands it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LoadClientKind {
    Messages,
    Devices,
}

impl LoadClientKind {
    /// The command of `tidings bench` that is such a client.
    pub(crate) fn command(self) -> &'static str {
        match self {
            LoadClientKind::Messages => "worker",
            LoadClientKind::Devices => "device-worker",
        }
    }
}

/// What a coordinator proves itself with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Credentials {
    pub(crate) protocol: u32,
    pub(crate) version: String,
    /// Connections of one coordinator have the same session.
    pub(crate) session: String,
    pub(crate) nonce: String,
    pub(crate) proof: String,
}

/// From an agent to the coordinator.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AgentLine {
    /// The first line of a connection.
    Hello {
        protocol: u32,
        version: String,
        nonce: String,
    },
    Welcome {
        proof: String,
        machine: Machine,
    },
    /// The last line of a connection.
    Refused(Refusal),
    Pong {
        id: u64,
        clock_ns: u64,
    },
    /// A report of the load client.
    Report(Box<RawValue>),
    /// The load client has ended.
    Ended {
        how: String,
    },
    Machine(Machine),
    Stored {
        path: String,
    },
}

/// Why an agent serves no longer, or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{why} ({})", .code.as_str())]
pub(crate) struct Refusal {
    pub(crate) code: RefusalCode,
    pub(crate) why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RefusalCode {
    WrongToken,
    OtherVersion,
    /// Another coordinator is being served.
    Busy,
    BadLine,
    LineTooLong,
    Timeout,
    /// The machine refused a process or a file.
    Machine,
}

impl RefusalCode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            RefusalCode::WrongToken => "wrong_token",
            RefusalCode::OtherVersion => "other_version",
            RefusalCode::Busy => "busy",
            RefusalCode::BadLine => "bad_line",
            RefusalCode::LineTooLong => "line_too_long",
            RefusalCode::Timeout => "timeout",
            RefusalCode::Machine => "machine",
        }
    }

    pub(crate) fn because(self, why: impl Into<String>) -> Refusal {
        Refusal { code: self, why: why.into() }
    }
}

/// What a reader found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<T> {
    Complete(T),
    /// Nothing, or not all of it, within the time-out of the stream. Reading goes on where it was.
    NotYet,
    End,
}

/// Reads lines of at most so many bytes; what is longer is never held in memory.
#[derive(Debug)]
pub(crate) struct LineReader<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    bytes_max: usize,
}

impl<R: Read> LineReader<R> {
    pub(crate) fn new(stream: R, bytes_max: usize) -> Self {
        LineReader { reader: BufReader::new(stream), line: Vec::new(), bytes_max }
    }

    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// The next line, without its end.
    pub(crate) fn read(&mut self) -> Result<Line<Vec<u8>>, Refusal> {
        let room = (self.bytes_max + 1).saturating_sub(self.line.len());
        match self.reader.by_ref().take(room as u64).read_until(b'\n', &mut self.line) {
            Ok(_) if self.line.last() == Some(&b'\n') => {
                let mut line = std::mem::take(&mut self.line);
                line.pop();
                Ok(Line::Complete(line))
            }
            Ok(_) if self.line.len() > self.bytes_max => {
                Err(RefusalCode::LineTooLong.because(format!("a line of more than {} bytes", self.bytes_max)))
            }
            Ok(0) => Ok(Line::End),
            Ok(_) => Ok(Line::NotYet),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Ok(Line::NotYet)
            }
            // A peer that was killed resets the connection.
            Err(_) => Ok(Line::End),
        }
    }

    /// The next line as a value.
    pub(crate) fn read_value<T: DeserializeOwned>(&mut self) -> Result<Line<T>, Refusal> {
        Ok(match self.read()? {
            Line::Complete(line) => Line::Complete(parse(&line)?),
            Line::NotYet => Line::NotYet,
            Line::End => Line::End,
        })
    }
}

pub(crate) fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(line).map_err(|error| {
        let begin: String = String::from_utf8_lossy(&line[..line.len().min(40)]).into_owned();
        RefusalCode::BadLine.because(format!("not a line of this protocol: {error} in {begin:?}"))
    })
}

/// Writes a line in one chunk.
pub(crate) fn write_line(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    out.write_all(&bytes)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_are_bounded_and_survive_pauses() {
        /// Hands out its chunks one by one; an empty one is a pause.
        struct Chunks(Vec<&'static [u8]>);
        impl Read for Chunks {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                if self.0.is_empty() {
                    return Ok(0);
                }
                let chunk = self.0.remove(0);
                if chunk.is_empty() {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                buffer[..chunk.len()].copy_from_slice(chunk);
                Ok(chunk.len())
            }
        }
        let mut reader = LineReader::new(Chunks(vec![b"12", b"", b"34\n5", b"\n"]), 4);
        let mut lines = Vec::new();
        loop {
            match reader.read().unwrap() {
                Line::Complete(line) => lines.push(String::from_utf8(line).unwrap()),
                Line::NotYet => lines.push("pause".into()),
                Line::End => break,
            }
        }
        assert_eq!(lines, ["pause", "1234", "5"]);
        let mut reader = LineReader::new(Chunks(vec![b"12345\n"]), 4);
        assert_eq!(reader.read().unwrap_err().code, RefusalCode::LineTooLong);
        let mut endless = LineReader::new(io::repeat(b'x'), 1000);
        assert_eq!(endless.read().unwrap_err().code, RefusalCode::LineTooLong);
        assert!(endless.line.capacity() < 10_000);
    }

    #[test]
    fn commands_pass_through_as_they_are() {
        let inner = r#"{"run":{"x":1.50}}"#;
        let line = CoordinatorLine::Command(RawValue::from_string(inner.into()).unwrap());
        let mut bytes = Vec::new();
        write_line(&mut bytes, &line).unwrap();
        let Line::Complete(CoordinatorLine::Command(command)) =
            LineReader::new(bytes.as_slice(), 100).read_value().unwrap()
        else {
            panic!()
        };
        assert_eq!(command.get(), inner);
        assert_eq!(parse::<CoordinatorLine>(b"{\"run\":1}").unwrap_err().code, RefusalCode::BadLine);
    }
}

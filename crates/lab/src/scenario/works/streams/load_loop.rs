//! The loop that writes all streams and reads them: one thread, an open loop.

use super::{
    session::{Role, Session},
    texts::{Chunks, Readers},
};
use crate::{
    LabError,
    client_engine::{
        ConnectionError, HANDSHAKES_MAX,
        reactor::{Clients, Reactor},
        session::{FrameView, PING_INTERVAL, put_ping},
        websocket::put_text,
    },
    latency::Latencies,
    live::{LiveBlock, LiveCounts, WorkLength},
    problems::Problems,
    process,
};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use tidings_client::session::CONNECT_PATH;

/// All sessions must be open within this.
const OPEN_TIMEOUT: Duration = Duration::from_secs(120);
/// Streams that are begun or ended at a time: fewer than a server reads for at a time (256).
const ASKED_MAX: usize = 100;
/// The longest sleep of the loop.
const POLL_TIMEOUT_MAX: Duration = Duration::from_millis(20);

/// The sizes of a run. Until it is known what is to be written, there are no chunks.
#[derive(Debug, Clone, Default)]
pub(super) struct Sizes {
    pub(super) streams: usize,
    pub(super) readers: usize,
    pub(super) writers: usize,
    pub(super) per_second: f64,
    pub(super) chunks: Chunks,
    pub(super) patience: Duration,
}

/// Who takes part: conversation `n` is that of stream `n`.
#[derive(Debug, Clone)]
pub(super) struct Participants {
    pub(super) conversations: Vec<String>,
    pub(super) writers: Vec<String>,
    /// By stream, then by reader.
    pub(super) readers: Vec<Vec<String>>,
    pub(super) token_key: String,
}

/// What all sessions share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) readers: Readers,
    /// The `seq` of each stream's message; 0: not begun.
    pub(super) seqs: Vec<u64>,
    /// Streams whose end was acknowledged.
    pub(super) ended: u64,
    /// Streams whose last chunk was acknowledged at the length of the whole text.
    pub(super) written: u64,
    pub(super) refused: u64,
    /// Requests to begin or to end all streams that were answered.
    answered: usize,
    /// From the planned begin or end of a stream to its answer.
    pub(super) committed: Latencies,
    pub(super) sizes: Sizes,
    start_ns: u64,
    asked_at: Vec<u64>,
}

pub(super) struct LoadLoop {
    pub(super) participants: Participants,
    reactor: Reactor,
    sessions: Vec<Session>,
    last_ping: Instant,
    pub(super) shared: Shared,
}

/// A turn of the reactor.
struct Turn<'a> {
    sessions: &'a mut [Session],
    shared: &'a mut Shared,
    token_key: &'a str,
}

impl Clients for Turn<'_> {
    type Error = ConnectionError;

    fn connected(&mut self, number: usize, out: &mut Vec<u8>) {
        self.sessions[number].websocket.begin(CONNECT_PATH, out);
    }

    fn receive(&mut self, number: usize, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<usize, ConnectionError> {
        let take = |role, frame: &FrameView<'_>| self.shared.receive(role, frame);
        self.sessions[number].receive(bytes, out, self.token_key, take)
    }

    fn ended(&mut self, _: &mut Reactor, number: usize, why: ConnectionError) -> Result<(), LabError> {
        let role = self.sessions[number].role;
        Err(LabError::Server(format!("ended the session {number} ({role:?}): {why}")))
    }
}

impl LoadLoop {
    /// Opens the sessions of all writers and readers.
    pub(super) fn open(addresses: &[SocketAddr], participants: Participants, sizes: Sizes) -> Result<Self, LabError> {
        let shared = Shared {
            readers: Readers::new(sizes.chunks, sizes.streams, sizes.readers, 0),
            seqs: vec![0; sizes.streams],
            asked_at: vec![0; sizes.streams],
            sizes,
            ..Shared::default()
        };
        let mut load = LoadLoop {
            reactor: Reactor::new()?,
            sessions: Vec::new(),
            last_ping: Instant::now(),
            participants,
            shared,
        };
        let writers =
            load.participants.writers.iter().cloned().enumerate().map(|(number, user)| (Role::Writer(number), user));
        let mut roles: Vec<(Role, String)> = writers.collect();
        for (stream, users) in load.participants.readers.iter().enumerate() {
            roles.extend(
                users.iter().cloned().enumerate().map(|(reader, user)| (Role::Reader { stream, reader }, user)),
            );
        }
        let deadline = Instant::now() + OPEN_TIMEOUT;
        for (role, user) in roles {
            let number = load.sessions.len();
            load.sessions.push(Session::new(role, user));
            load.reactor.connect(number, addresses[number % addresses.len()], None)?;
            load.wait_until(deadline, |load| load.opening() < HANDSHAKES_MAX)?;
        }
        load.wait_until(deadline, |load| load.opening() == 0)?;
        Ok(load)
    }

    fn opening(&self) -> usize {
        // Sessions are opened in order, so that only the newest can be on their way.
        let newest = self.sessions.iter().rev().take(2 * HANDSHAKES_MAX);
        newest.filter(|session| !session.is_live).count()
    }

    fn wait_until(&mut self, deadline: Instant, done: impl Fn(&Self) -> bool) -> Result<bool, LabError> {
        while !done(self) {
            if Instant::now() > deadline {
                return Ok(false);
            }
            self.poll_once(POLL_TIMEOUT_MAX)?;
        }
        Ok(true)
    }

    fn poll_once(&mut self, timeout: Duration) -> Result<(), LabError> {
        let LoadLoop { participants, reactor, sessions, shared, .. } = self;
        reactor.turn(timeout, &mut Turn { sessions, shared, token_key: &participants.token_key })?;
        if self.last_ping.elapsed() >= PING_INTERVAL {
            self.last_ping = Instant::now();
            for number in (0..self.sessions.len()).filter(|number| self.sessions[*number].is_live) {
                put_ping(self.reactor.out(number));
            }
        }
        Ok(())
    }

    fn writer_of(&self, stream: usize) -> usize {
        stream % self.shared.sizes.writers
    }

    /// Sends a frame about every stream, some at a time, and waits until `done`.
    fn ask_all(
        &mut self,
        frame: impl Fn(&Self, usize) -> String,
        done: impl Fn(&Shared) -> bool,
    ) -> Result<(), LabError> {
        self.shared.answered = 0;
        let deadline = Instant::now() + self.shared.sizes.patience;
        for stream in 0..self.shared.sizes.streams {
            self.wait_until(deadline, |load| stream < load.shared.answered + ASKED_MAX)?;
            let (payload, writer) = (frame(self, stream), self.writer_of(stream));
            self.shared.asked_at[stream] = process::monotonic_ns();
            put_text(self.reactor.out(writer), payload.as_bytes());
        }
        self.wait_until(deadline, |load| done(&load.shared)).map(|_| ())
    }

    /// Begins all streams; each must be acknowledged.
    pub(super) fn begin(&mut self) -> Result<(), LabError> {
        let begin = |load: &Self, stream: usize| {
            format!(
                r#"{{"t":"stream_begin","ref":{stream},"conversation":"{}","client_msg_id":"s-{stream}","type":"answer","body":{{"text":""}}}}"#,
                load.participants.conversations[stream]
            )
        };
        self.ask_all(begin, |shared| shared.seqs.iter().all(|seq| *seq > 0) || shared.refused > 0)?;
        match self.shared.seqs.iter().filter(|seq| **seq == 0).count() {
            0 => Ok(()),
            left => {
                let why = self.shared.readers.problems.first().cloned().unwrap_or_default();
                Err(LabError::Server(format!("did not begin {left} streams in time {why}")))
            }
        }
    }

    /// Writes so many chunks of each stream, each at its time, and waits until all readers have all of them, or for the patience without
    /// progress.
    pub(super) fn write_chunks(&mut self, title: &str, count: usize, per_second: f64) -> Result<(), LabError> {
        let sizes = &mut self.shared.sizes;
        (sizes.chunks.count, sizes.per_second) = (count, per_second);
        let sizes = sizes.clone();
        self.shared.start_ns = process::monotonic_ns();
        self.shared.readers = Readers::new(sizes.chunks, sizes.streams, sizes.readers, self.shared.start_ns);
        let total = sizes.streams * sizes.chunks.count;
        let expected = (total * sizes.readers) as u64;
        let mut live = LiveBlock::begin(title, WorkLength::Messages(total as u64));
        let mut next = 0;
        let mut last_progress = (0, Instant::now());
        while next < total || self.shared.readers.delivered < expected || self.shared.written < sizes.streams as u64 {
            let now = process::monotonic_ns();
            while next < total {
                let (chunk, stream) = (next / sizes.streams, next % sizes.streams);
                let due = self.shared.due(stream, chunk);
                if due > now {
                    break;
                }
                self.append(stream, chunk);
                let written = process::monotonic_ns();
                self.shared.readers.times.begun(due, written, written.saturating_sub(due));
                next += 1;
            }
            let delivered = self.shared.readers.delivered + self.shared.written;
            if next < total || delivered != last_progress.0 {
                last_progress = (delivered, Instant::now());
            } else if last_progress.1.elapsed() > sizes.patience {
                return Ok(());
            }
            let due = if next < total { self.shared.due(next % sizes.streams, next / sizes.streams) } else { u64::MAX };
            let wait = Duration::from_nanos(due.saturating_sub(process::monotonic_ns()));
            self.poll_once(wait.min(POLL_TIMEOUT_MAX))?;
            let readers = &mut self.shared.readers;
            let counts = LiveCounts {
                sent: next as u64,
                delivered: readers.delivered,
                errors: readers.gaps + readers.altered,
                ..LiveCounts::default()
            };
            live.show_series(self.shared.start_ns, &mut readers.times.series, || counts);
        }
        live.export_rest(&mut self.shared.readers.times.series);
        Ok(())
    }

    fn append(&mut self, stream: usize, chunk: usize) {
        let chunks = self.shared.sizes.chunks;
        // The last chunk is answered with the length of the whole text.
        let reference = if chunk + 1 == chunks.count { format!(r#""ref":{stream},"#) } else { String::new() };
        let payload = format!(
            r#"{{"t":"stream_append",{reference}"conversation":"{}","seq":{},"offset":{},"text":"{}"}}"#,
            self.participants.conversations[stream],
            self.shared.seqs[stream],
            chunk * chunks.bytes,
            chunks.text(stream, chunk)
        );
        let writer = self.writer_of(stream);
        put_text(self.reactor.out(writer), payload.as_bytes());
    }

    /// Ends all streams, and waits until every reader was handed every end.
    pub(super) fn end(&mut self) -> Result<(), LabError> {
        let end = |load: &Self, stream: usize| {
            let reference = load.shared.sizes.streams + stream;
            let (conversation, seq) = (&load.participants.conversations[stream], load.shared.seqs[stream]);
            format!(r#"{{"t":"stream_end","ref":{reference},"conversation":"{conversation}","seq":{seq}}}"#)
        };
        let (streams, readers) = (self.shared.sizes.streams as u64, self.shared.sizes.readers as u64);
        let done = move |shared: &Shared| shared.ended == streams && shared.readers.complete() == streams * readers;
        self.ask_all(end, done)
    }
}

impl Shared {
    /// When a chunk is due: every stream at its rate, all streams evenly beside each other.
    fn due(&self, stream: usize, chunk: usize) -> u64 {
        let share = stream as f64 / self.sizes.streams as f64;
        self.start_ns + ((chunk as f64 + share) * 1e9 / self.sizes.per_second) as u64
    }

    fn receive(&mut self, role: Role, frame: &FrameView<'_>) {
        let now = process::monotonic_ns();
        match (role, frame.t) {
            (Role::Reader { stream, reader }, "stream") => {
                let (start, share) = (self.start_ns, stream as f64 / self.sizes.streams as f64);
                let per_second = self.sizes.per_second;
                let due = move |chunk: usize| start + ((chunk as f64 + share) * 1e9 / per_second) as u64;
                let (offset, text) = (frame.offset.unwrap_or(usize::MAX), frame.text.as_deref().unwrap_or_default());
                self.readers.receive(stream, reader, offset, text, due, now);
            }
            (Role::Reader { stream, reader }, "messages") => {
                for entry in frame.entries.iter().filter(|entry| entry.kind == "edit") {
                    self.readers.receive_end(stream, reader, entry.body.get());
                }
            }
            (Role::Writer(_), "sent") => {
                for sent in &frame.results {
                    let number = sent.reference as usize;
                    let stream = number % self.sizes.streams;
                    self.committed.record(self.asked_at[stream], now);
                    self.answered += 1;
                    if number < self.sizes.streams { self.seqs[stream] = sent.seq } else { self.ended += 1 }
                }
            }
            (Role::Writer(_), "appended") => {
                let whole = self.sizes.chunks.bytes * self.sizes.chunks.count;
                self.written += u64::from(frame.offset == Some(whole));
            }
            (_, "error") => {
                self.refused += 1;
                self.answered += usize::from(frame.reference.is_some());
                let (code, message) = (frame.code.as_deref(), frame.message.as_deref());
                let what = format!("{} (ref {:?}): {}", code.unwrap_or("?"), frame.reference, message.unwrap_or("?"));
                self.readers.problems.note(what);
            }
            _ => {}
        }
    }
}

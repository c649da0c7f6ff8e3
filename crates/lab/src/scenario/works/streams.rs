//! Many messages that grow at once, each read by its members while it is written.
//!
//! In reading order: [`texts`]: what is written, and what each reader has of it; [`session`]: the sessions of writers and
//! readers; [`load_loop`]: the open loop that drives them.

mod load_loop;
mod session;
mod texts;

use super::{Job, Surroundings, WorkResult};
use crate::{
    LabError,
    latency::Percentiles,
    load_times::TimeFigures,
    problems::Problems,
    process,
    result::{Layout, Measurement},
    sampler::{Sampler, Samples},
    scenario::{
        plan::{phase::Load, population::Streams},
        trouble::Trouble,
    },
    setup,
};
use load_loop::{LoadLoop, Participants, Sizes};
use serde::Serialize;
use std::{net::SocketAddr, time::Duration};
use texts::Chunks;
use tidings_client::http::{HttpClient, path_segment};
use tidings_protocol::{entry::Entry, http::ConversationKind};

/// Streams of one writer: below the default limits of a user, 16 open ones and 100 chunks a second.
const STREAMS_PER_WRITER: usize = 5;

/// Writers and readers, with a message of each writer begun that is still empty.
pub(crate) struct StreamWorker {
    load: LoadLoop,
    http: HttpClient,
    metrics_address: SocketAddr,
    lag_max: Duration,
}

impl StreamWorker {
    /// Creates the groups, opens all sessions, and begins all streams.
    pub(crate) fn open(around: &Surroundings<'_>, streams: Streams) -> Result<Self, LabError> {
        let (target, args) = (around.target, around.args);
        let sizes = Sizes {
            streams: streams.streams,
            readers: streams.readers,
            writers: streams.streams.div_ceil(STREAMS_PER_WRITER),
            per_second: 0.0,
            chunks: Chunks { bytes: streams.chunk_bytes, count: 0 },
            patience: args.patience,
        };
        let mut http = target.http();
        let participants = create_participants(&mut http, &sizes, target.keys().1)?;
        let mut load = LoadLoop::open(&target.addresses(), participants, sizes)?;
        load.begin()?;
        Ok(StreamWorker { load, http, metrics_address: target.address(), lag_max: args.lag_max })
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        let Load::Planned(profile) = job.load else {
            return Err(LabError::Usage("messages grow at a constant rate".into()));
        };
        let StreamWorker { load, http, metrics_address, lag_max } = self;
        let client_cpu = || process::cpu_seconds(std::process::id());
        let (cpu_before, started) = (client_cpu(), std::time::Instant::now());
        let used = Sampler::start(job.server.clone(), Some(*metrics_address), Vec::new());
        load.write_chunks(&job.title, profile.messages() as usize, profile.first())?;
        let (seconds, client_cpu_seconds) = (started.elapsed().as_secs_f64(), client_cpu() - cpu_before);
        let (samples, server_cpu_seconds, server_rss_bytes) = used.finish();
        load.end()?;
        let stored_whole = stored_whole(http, load)?;
        let outcome = StreamsOutcome {
            lag_max_ms: lag_max.as_secs_f64() * 1e3,
            samples,
            seconds,
            client_cpu_seconds,
            server_cpu_seconds,
            server_rss_bytes,
            stored_whole,
            ..outcome(load)
        };
        let first = outcome.problems.first().cloned().unwrap_or_default();
        let trouble = (!outcome.balances()).then_some(Trouble::Balance(first));
        Ok(WorkResult { measured: outcome.measured(&job.title), trouble })
    }
}

/// Creates a group for every stream, of its writer and its readers.
fn create_participants(http: &mut HttpClient, sizes: &Sizes, token_key: &str) -> Result<Participants, LabError> {
    let tag = process::run_tag();
    let writers = setup::numbered_ids(&format!("{tag}-w"), sizes.writers);
    let readers = setup::numbered_ids(&format!("{tag}-r"), sizes.streams * sizes.readers);
    setup::create_users(http, &writers)?;
    setup::create_users(http, &readers)?;
    let mut participants =
        Participants { conversations: Vec::new(), writers, readers: Vec::new(), token_key: token_key.to_owned() };
    for (stream, readers) in readers.chunks(sizes.readers).enumerate() {
        let members: Vec<String> =
            std::iter::once(&participants.writers[stream % sizes.writers]).chain(readers).cloned().collect();
        let id = format!("{tag}-s{stream}");
        let group = setup::create_conversation(http, ConversationKind::Group, &id, &members)?;
        participants.conversations.push(group.id);
        participants.readers.push(readers.to_vec());
    }
    Ok(participants)
}

/// How many streams the server tells as whole messages with the written text.
fn stored_whole(http: &mut HttpClient, load: &mut LoadLoop) -> Result<u64, LabError> {
    let mut whole = 0;
    for (stream, id) in load.participants.conversations.iter().enumerate() {
        let path = format!("/v1/conversations/{}/messages/{}", path_segment(id), load.shared.seqs[stream]);
        let entry: Entry = http.get(&path)?;
        if entry.stream.is_none() && load.shared.readers.is_whole(stream, entry.body.get()) {
            whole += 1;
        } else {
            load.shared.readers.problems.note(format!("stream {stream} is stored as {entry:?}"))
        }
    }
    Ok(whole)
}

/// The figures of the streams.
#[derive(Debug, Clone, Default, Serialize)]
struct StreamsOutcome {
    streams: usize,
    readers: usize,
    chunks: u64,
    delivered: u64,
    expected: u64,
    frames: u64,
    complete: u64,
    stored_whole: u64,
    gaps: u64,
    altered: u64,
    refused: u64,
    seconds: f64,
    /// From when a chunk was due to its last reader.
    #[serde(flatten)]
    times: TimeFigures,
    lag_max_ms: f64,
    samples: Samples,
    /// From the request to begin or end a stream to its answer, in milliseconds.
    committed: Percentiles,
    client_cpu_seconds: f64,
    server_cpu_seconds: Option<f64>,
    server_rss_bytes: Option<u64>,
    problems: Vec<String>,
}

impl StreamsOutcome {
    fn balances(&self) -> bool {
        self.gaps + self.altered + self.refused == 0
            && self.delivered == self.expected
            && self.complete == (self.streams * self.readers) as u64
            && self.stored_whole == self.streams as u64
    }

    fn measured(&self, title: &str) -> Measurement {
        let per_second = |count: u64| count as f64 / self.seconds.max(1e-9);
        Measurement::of(title, self)
            .layout(&LAYOUT)
            .set("chunks_per_second", per_second(self.chunks))
            .set("deliveries_per_second", per_second(self.delivered))
            .set("texts", self.streams * self.readers)
            .balance(self.balances())
            .punctual(&self.times.lateness, self.lag_max_ms)
    }
}

const LAYOUT: Layout = Layout {
    lines: &[
        (
            "chunks",
            "written {chunks}  delivered {delivered} of {expected}  in {frames} frames  gaps {gaps}  altered {altered}  \
             refused {refused}",
        ),
        ("texts", "whole at {complete} of {texts} readers  stored whole {stored_whole} of {streams}"),
        (
            "rate",
            "{chunks_per_second:0} chunks/s  {deliveries_per_second:0} deliveries/s  over {seconds:2} s  CPU client \
             {client_cpu_seconds:2} s  server {server_cpu_seconds:2} s",
        ),
    ],
    percentiles: &[("last reader", "latency"), ("begin, end", "committed"), ("client late", "lateness")],
};

fn outcome(load: &LoadLoop) -> StreamsOutcome {
    let (shared, sizes) = (&load.shared, &load.shared.sizes);
    let chunks = (sizes.streams * sizes.chunks.count) as u64;
    StreamsOutcome {
        streams: sizes.streams,
        readers: sizes.readers,
        chunks,
        delivered: shared.readers.delivered,
        expected: chunks * sizes.readers as u64,
        frames: shared.readers.frames,
        complete: shared.readers.complete(),
        gaps: shared.readers.gaps,
        altered: shared.readers.altered,
        refused: shared.refused,
        times: shared.readers.times.figures(),
        committed: shared.committed.percentiles(),
        problems: shared.readers.problems.clone(),
        ..StreamsOutcome::default()
    }
}

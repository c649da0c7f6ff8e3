//! `bench streams`: many messages that grow at once, each read by its members while it is written, beside plain messages.
//!
//! In reading order: [`texts`]: what is written, and what each reader has of it; [`session`]: the sessions of writers and
//! readers; [`load_loop`]: the open loop that drives them. The plain messages are those of `bench direct`, by a load client
//! of their own: first alone, then beside the streams.

mod load_loop;
mod session;
mod texts;

use crate::{
    LabError,
    latency::{Curve, Percentiles, curve_of},
    message_clients::{MessageClients, PairSpec},
    options::{TargetArgs, parse_duration},
    process,
    result::{Layout, Measurement, RunResult},
    sampler::{Sampler, Samples, Watched},
    series::Series,
    server::{OwnServer, Target},
    setup,
    worker_protocol::{LoadModel, Outcome, Phase},
};
use clap::Args;
use load_loop::{Cast, LoadLoop, Sizes};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;
use texts::{CHUNK_BYTES_MIN, Chunks};
use tidings_client::http::{HttpClient, path_segment};
use tidings_protocol::{entry::Entry, http::ConversationKind, limits::BODY_BYTES_MAX};

#[derive(Debug, Clone, Args)]
pub struct StreamsArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Messages that grow at once, each in a group of its own
    #[arg(long, default_value_t = 1000)]
    pub streams: usize,
    /// Members who read each of them
    #[arg(long, default_value_t = 2)]
    pub readers: usize,
    /// Chunks a second of each (open loop)
    #[arg(long, default_value_t = 20.0)]
    pub rate: f64,
    #[arg(long, default_value_t = 20)]
    pub chunk_bytes: usize,
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Plain direct messages a second, alone and then beside the streams; 0: none
    #[arg(long, default_value_t = 200.0)]
    pub chat_rate: f64,
}

/// Streams of one writer: below the default limits of a user, 16 open ones and 100 chunks a second.
const STREAMS_PER_WRITER: usize = 5;
const CHAT_PAIRS: usize = 50;
const CHAT_SENDERS: usize = 16;
const CHAT_BODY_BYTES: usize = 200;
/// Plain messages run so much longer than the chunks, so that all chunks have some beside them.
const MARGIN: Duration = Duration::from_secs(1);

/// The figures of the streams.
#[derive(Debug, Clone, Default, Serialize)]
struct StreamsOutcome {
    title: String,
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
    /// From when a chunk was due to its last reader, in milliseconds.
    latency: Percentiles,
    lateness: Percentiles,
    lag_max_ms: f64,
    series: Series,
    latency_curve: Curve,
    samples: Samples,
    /// From the request to begin or end a stream to its answer, in milliseconds.
    committed: Percentiles,
    client_cpu_seconds: f64,
    server_cpu_seconds: Option<f64>,
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
            .punctual(&self.lateness, self.lag_max_ms)
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

fn sizes(args: &StreamsArgs) -> Result<Sizes, LabError> {
    let count = (args.rate * args.duration.as_secs_f64()) as usize;
    if args.streams == 0 || args.readers == 0 || args.chunk_bytes < CHUNK_BYTES_MIN || count == 0 {
        let what = format!("--streams, --readers and chunks must be at least 1, --chunk-bytes {CHUNK_BYTES_MIN}");
        return Err(LabError::Usage(what));
    }
    // The body has some bytes beside its text.
    if count * args.chunk_bytes + 64 > BODY_BYTES_MAX {
        let length = count * args.chunk_bytes;
        return Err(LabError::Usage(format!("a text would have {length} bytes; a body has at most {BODY_BYTES_MAX}")));
    }
    Ok(Sizes {
        streams: args.streams,
        readers: args.readers,
        writers: args.streams.div_ceil(STREAMS_PER_WRITER),
        per_second: args.rate,
        chunks: Chunks { bytes: args.chunk_bytes, count },
        patience: args.target.patience,
    })
}

/// Creates a group for every stream, of its writer and its readers.
fn create_cast(http: &mut HttpClient, sizes: &Sizes, token_key: &str) -> Result<Cast, LabError> {
    let tag = process::run_tag();
    let writers = setup::numbered_ids(&format!("{tag}-w"), sizes.writers);
    let readers = setup::numbered_ids(&format!("{tag}-r"), sizes.streams * sizes.readers);
    setup::create_users(http, &writers)?;
    setup::create_users(http, &readers)?;
    let mut cast = Cast { conversations: Vec::new(), writers, readers: Vec::new(), token_key: token_key.to_owned() };
    for (stream, readers) in readers.chunks(sizes.readers).enumerate() {
        let members: Vec<String> =
            std::iter::once(&cast.writers[stream % sizes.writers]).chain(readers).cloned().collect();
        let id = format!("{tag}-s{stream}");
        let group = setup::create_conversation(http, ConversationKind::Group, &id, &members)?;
        cast.conversations.push(group.id);
        cast.readers.push(readers.to_vec());
    }
    Ok(cast)
}

pub(crate) fn run(args: &StreamsArgs) -> Result<RunResult, LabError> {
    let sizes = sizes(args)?;
    let target = match args.target.url {
        Some(_) => Target::resolve(&args.target)?,
        // Above 100 chunks a second of one writer, which is a limit on people, not on this load.
        None => Target::Own(Box::new(OwnServer::start_with(
            vec![("TIDINGS_STREAMS_APPENDS_PER_SECOND".to_owned(), "0".to_owned())],
            None,
        )?)),
    };
    let mut http = target.http();
    let cast = create_cast(&mut http, &sizes, target.keys().1)?;
    let pairs = PairSpec::of(CHAT_PAIRS, CHAT_SENDERS);
    let chat = |target: &Target| MessageClients::pairs(target, &args.target, &pairs);
    let mut chat = if args.chat_rate > 0.0 { Some(chat(&target)?) } else { None };
    let phase = |fixture: &MessageClients, duration: Duration| -> Phase {
        let duration_ms = duration.as_millis() as u64;
        fixture.phase(LoadModel::OpenLoop { per_second: args.chat_rate, duration_ms }, CHAT_BODY_BYTES, 1, 1)
    };
    let mut alone = None;
    if let Some(fixture) = &mut chat {
        let phase = phase(fixture, args.duration);
        alone = Some(fixture.load.run("direct messages, nothing else", phase)?);
    }
    let mut load = LoadLoop::open(&target.addresses(), cast.clone(), sizes.clone())?;
    load.begin()?;
    if let Some(fixture) = &mut chat {
        let phase = phase(fixture, args.duration + MARGIN);
        fixture.load.start_phase(phase)?;
    }
    let before = (process::cpu_seconds(std::process::id()), target.pid().map(process::cpu_seconds));
    let started = std::time::Instant::now();
    let sampler = Sampler::start(Watched {
        server: target.pid().into(),
        metrics_address: Some(target.address()),
        lab_pids: Vec::new(),
    });
    load.write_chunks()?;
    let samples = sampler.finish();
    let seconds = started.elapsed().as_secs_f64();
    let after = (process::cpu_seconds(std::process::id()), target.pid().map(process::cpu_seconds));
    let beside = match &mut chat {
        Some(fixture) => Some(fixture.load.finish_phase("direct messages, beside the streams")?),
        None => None,
    };
    load.end()?;
    let outcome = StreamsOutcome {
        title: "streams".into(),
        lag_max_ms: args.target.lag_max.as_secs_f64() * 1e3,
        samples,
        seconds,
        client_cpu_seconds: after.0 - before.0,
        server_cpu_seconds: after.1.zip(before.1).map(|(after, before)| after - before),
        stored_whole: stored_whole(&mut http, &cast, &mut load)?,
        ..outcome(&load, &sizes)
    };
    drop((load, chat, http));
    finish(args, target, &outcome, [alone, beside])
}

/// How many streams the server tells as whole messages with the written text.
fn stored_whole(http: &mut HttpClient, cast: &Cast, load: &mut LoadLoop) -> Result<u64, LabError> {
    let mut whole = 0;
    for (stream, id) in cast.conversations.iter().enumerate() {
        let path = format!("/v1/conversations/{}/messages/{}", path_segment(id), load.shared.seqs[stream]);
        let entry: Entry = http.get(&path)?;
        if entry.stream.is_none() && load.shared.readers.is_whole(stream, entry.body.get()) {
            whole += 1;
        } else {
            load.shared.readers.add_problem(format!("stream {stream} is stored as {entry:?}"))
        }
    }
    Ok(whole)
}

fn outcome(load: &LoadLoop, sizes: &Sizes) -> StreamsOutcome {
    let (shared, chunks) = (&load.shared, (sizes.streams * sizes.chunks.count) as u64);
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
        latency: Percentiles::of(&shared.readers.latency),
        latency_curve: curve_of(&shared.readers.latency),
        series: shared.readers.series.series(),
        lateness: Percentiles::of(&shared.lateness),
        committed: Percentiles::of(&shared.committed),
        problems: shared.readers.problems.clone(),
        ..StreamsOutcome::default()
    }
}

fn finish(
    args: &StreamsArgs,
    target: Target,
    outcome: &StreamsOutcome,
    [alone, beside]: [Option<Outcome>; 2],
) -> Result<RunResult, LabError> {
    let mut result = RunResult::of("streams");
    result.set_all(json!({ "rate": args.rate, "chunk_bytes": args.chunk_bytes, "balances": outcome.balances() }));
    for (name, title, chat) in [
        ("chat_alone", "direct messages, nothing else", &alone),
        ("chat_beside", "direct messages, beside the streams", &beside),
    ] {
        match chat {
            Some(chat) => result.measure(name, chat.measured(title)),
            None => result.set(name, Value::Null),
        }
    }
    let title = format!(
        "{} streams with {} readers each, {} chunks of {} bytes a second each",
        args.streams, args.readers, args.rate, args.chunk_bytes
    );
    result.measure("outcome", outcome.measured(&title));
    result.store_check(target.finish()?);
    Ok(result)
}

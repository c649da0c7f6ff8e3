//! `bench growth`: rates and memory as group size, history and the number of users grow.

use crate::{
    LabError,
    message_clients::{GroupSpec, MessageClients},
    options::{TargetArgs, parse_duration},
    process, report,
    result::{RunResult, filled},
    server::{OwnServer, Target},
    setup,
    worker_protocol::LoadModel,
};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::time::{Duration, Instant};
use tidings_client::http::HttpClient;

#[derive(Debug, Clone, Args)]
pub struct GrowthArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Members online in both groups
    #[arg(long, default_value_t = 300)]
    pub members: usize,
    /// Members of the big group
    #[arg(long, default_value_t = 100_000)]
    pub group_size: usize,
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Sizes of history at which commit rate and opening are measured
    #[arg(long, value_delimiter = ',', default_values_t = [1_000_000, 10_000_000])]
    pub messages: Vec<u64>,
    /// Offline users whose memory is measured
    #[arg(long, default_value_t = 200_000)]
    pub users: usize,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [GrowthPart::Group, GrowthPart::History, GrowthPart::Users])]
    pub parts: Vec<GrowthPart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GrowthPart {
    Group,
    History,
    Users,
}

/// Messages in one request that appends history: the limit of the batch send.
const BATCH: usize = tidings_protocol::limits::SEND_BATCH_MAX;
/// Connections that append history at the same time.
const CONNECTIONS: usize = 8;
/// The commit rate is measured over so many messages, the last before each size is reached.
const MEASURED_MESSAGES: u64 = 200_000;

pub(crate) fn run(args: &GrowthArgs) -> Result<RunResult, LabError> {
    let mut result = RunResult::of("growth");
    if args.parts.contains(&GrowthPart::Group) {
        measure_group_sizes(args, &mut result)?;
    }
    if args.parts.contains(&GrowthPart::Users) {
        measure_users(args, &mut result)?;
    }
    if args.parts.contains(&GrowthPart::History) {
        measure_history(args, &mut result)?;
    }
    Ok(result)
}

/// Compares the rate in a group of online members only with that in a much bigger group with the same members online.
fn measure_group_sizes(args: &GrowthArgs, result: &mut RunResult) -> Result<(), LabError> {
    let target = Target::resolve(&args.target)?;
    let mut rates = Vec::new();
    let mut outcomes = Vec::new();
    for size in [args.members, args.group_size] {
        let spec = GroupSpec::of(size, args.members, 32);
        let mut fixture = MessageClients::group(&target, &args.target, &spec)?;
        let model = LoadModel::ClosedLoop { window: 1000, duration_ms: args.duration.as_millis() as u64 };
        let phase = fixture.phase(model, 200, 1, 1);
        let outcome = fixture.load.run(&format!("group of {size}"), phase)?;
        let title = format!("group of {size}, {} online, as fast as it goes", args.members);
        outcomes.push(result.record(outcome.measured(&title)));
        rates.push(outcome.messages_per_second());
    }
    result.store_check(target.finish()?);
    let ratio = rates[1] / rates[0].max(1e-9);
    result.note("", format!("ratio of rates, {} members to {}: {ratio:.2}", args.group_size, args.members));
    result.set("group", json!({ "ratio": ratio, "outcomes": outcomes }));
    report::print_new(result);
    Ok(())
}

/// Measures the server's memory per offline user.
fn measure_users(args: &GrowthArgs, result: &mut RunResult) -> Result<(), LabError> {
    let mut server = OwnServer::start()?;
    let mut http = HttpClient::new(server.address, server.api_key.clone());
    // Warm-up of the allocator, the connection and caches.
    setup::create_users(&mut http, &setup::numbered_ids("warm", 1000))?;
    let resident = |server: &OwnServer| server.pid().map_or(0, process::resident_bytes);
    let before = resident(&server);
    setup::create_users(&mut http, &setup::numbered_ids("user", args.users))?;
    let after = resident(&server);
    drop(http);
    server.stop()?;
    server.launch()?;
    let reopened = resident(&server);
    server.stop()?;
    let per_user = after.saturating_sub(before) as f64 / args.users as f64;
    let figures = json!({
        "users": args.users, "bytes_per_user": per_user, "resident_before": before, "resident_after": after,
        "resident_after_restart": reopened,
    });
    let line = "{users} offline users: {bytes_per_user:0} bytes each while writing, {resident_after_restart:MiB} resident in all after \
                a restart";
    result.note("", filled(line, &figures));
    result.set("users", figures);
    report::print_new(result);
    Ok(())
}

/// Measures commit rate and opening time at growing sizes of history.
fn measure_history(args: &GrowthArgs, result: &mut RunResult) -> Result<(), LabError> {
    let mut server = OwnServer::start()?;
    let mut http = HttpClient::new(server.address, server.api_key.clone());
    let pairs = 1000;
    let (a, b) = (setup::numbered_ids("a", pairs), setup::numbered_ids("b", pairs));
    setup::create_users(&mut http, &a)?;
    setup::create_users(&mut http, &b)?;
    let mut conversations = Vec::new();
    for (a, b) in a.iter().zip(&b) {
        conversations.push((setup::create_direct(&mut http, a, b)?.id, a.clone()));
    }
    drop(http);
    let mut sizes = args.messages.clone();
    sizes.sort_unstable();
    let mut rows = Vec::new();
    let mut stored = 0;
    for size in sizes {
        let measured_from = size.saturating_sub(MEASURED_MESSAGES).max(stored);
        append_messages(&server, &conversations, stored, measured_from)?;
        let started = Instant::now();
        append_messages(&server, &conversations, measured_from, size)?;
        let rate = (size - measured_from) as f64 / started.elapsed().as_secs_f64();
        stored = size;
        let memory = server.pid().map_or(0, process::resident_bytes);
        server.stop()?;
        let opened = server.launch()?;
        let row = json!({
            "messages": size, "commits_per_second": rate, "open_seconds": opened.as_secs_f64(), "resident_bytes": memory,
        });
        let line = "{messages} messages stored: {commits_per_second:0} commits/s, opened in {open_seconds:2} s, server memory \
                    {resident_bytes:MiB}";
        result.note("", filled(line, &row));
        report::print_new(result);
        rows.push(row);
    }
    server.stop()?;
    let check = server.check()?;
    result.store_check(Some(check.clone()));
    result.set("history", json!({ "rows": rows, "check": check }));
    Ok(())
}

/// Sends messages `from..to` in batches over a few connections.
fn append_messages(server: &OwnServer, conversations: &[(String, String)], from: u64, to: u64) -> Result<(), LabError> {
    let batches: Vec<(u64, u64)> =
        (from..to).step_by(BATCH).map(|start| (start, (start + BATCH as u64).min(to))).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || -> Result<(), LabError> {
        let mut http = HttpClient::new(server.address, server.api_key.clone());
        let mut body = String::new();
        while let Some((start, end)) = batches.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            body.clear();
            body.push_str("{\"messages\":[");
            for n in *start..*end {
                let (conversation, sender) = &conversations[n as usize % conversations.len()];
                body.push_str(&format!(
                    r#"{{"conversation":"{conversation}","from":"{sender}","client_msg_id":"g{n}","type":"text","body":{{"text":"{n:0>180}"}}}},"#
                ));
            }
            body.pop();
            body.push_str("]}");
            send_until_accepted(&mut http, body.as_bytes())?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(LabError::Worker("a sending thread panicked".into())))
        })
    })
}

/// Sends a batch again while the server refuses all or part of it with a retryable code; the same ids make that harmless.
fn send_until_accepted(http: &mut HttpClient, body: &[u8]) -> Result<(), LabError> {
    const TRIES_MAX: usize = 1000;
    for _ in 0..TRIES_MAX {
        let answer = http.exchange("POST", "/v1/messages/batch", body)?;
        let refused = answer.body.windows(8).any(|window| window == b"\"error\":");
        match answer.status {
            200..=299 if !refused => return Ok(()),
            200..=299 | 429 | 503 => std::thread::sleep(std::time::Duration::from_millis(20)),
            status => {
                let body = String::from_utf8_lossy(&answer.body).into_owned();
                return Err(LabError::Server(format!("answered a batch with {status}: {body}")));
            }
        }
    }
    Err(LabError::Server("refused a batch for too long".into()))
}

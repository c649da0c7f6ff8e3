//! `bench growth`: what a bigger group, a longer history and more users cost.

use crate::{
    LabError, Verdict,
    args::{GrowthArgs, GrowthPart, Via},
    group::{Shape, Stage},
    job::Pace,
    process,
    report::{self, outcome_json},
    server::{OwnServer, Target},
    setup,
};
use serde_json::{Value, json};
use std::time::Instant;
use tidings_client::http::HttpClient;

/// Messages in one request while history grows: the limit of the batch send.
const BATCH: usize = tidings_protocol::limits::SEND_BATCH_MAX;
/// Requests under way while history grows.
const CONNECTIONS: usize = 8;
/// The commit rate is measured over the last so many messages before each size.
const MEASURED: u64 = 200_000;

pub(crate) fn run(args: &GrowthArgs) -> Result<Verdict, LabError> {
    let mut verdict = Verdict::Passed;
    let mut value = json!({ "bench": "growth" });
    if args.parts.contains(&GrowthPart::Group) {
        let (part, seen) = groups(args)?;
        value["group"] = part;
        verdict = verdict.and(seen);
    }
    if args.parts.contains(&GrowthPart::Users) {
        value["users"] = users(args)?;
    }
    if args.parts.contains(&GrowthPart::History) {
        let (part, seen) = history(args)?;
        value["history"] = part;
        verdict = verdict.and(seen);
    }
    report::write_json(args.target.json.as_deref(), &value)?;
    Ok(verdict)
}

/// The same members online, in a group of just them and in one of many more.
fn groups(args: &GrowthArgs) -> Result<(Value, Verdict), LabError> {
    let target = Target::find(&args.target)?;
    let mut verdict = Verdict::Passed;
    let mut rates = Vec::new();
    let mut outcomes = Vec::new();
    for size in [args.members, args.group_size] {
        let shape = Shape { members: args.members, group_size: size, senders: 32, via: Via::Http, yielding: false };
        let mut stage = Stage::set(&target, &args.target, &shape)?;
        let pace = Pace::Window { window: 1000, duration_ms: args.duration.as_millis() as u64 };
        let phase = stage.phase(pace, 200, 1, 1);
        let outcome = stage.load.run(&format!("group of {size}"), phase)?;
        report::print(&format!("group of {size}, {} online, as fast as it goes", args.members), &outcome);
        verdict = verdict.and(Verdict::of(&outcome));
        rates.push(outcome.messages_per_second());
        outcomes.push(outcome_json(&outcome));
    }
    report::print_check(&target.finish()?);
    let ratio = rates[1] / rates[0].max(1e-9);
    println!("ratio of rates, {} members to {}: {ratio:.2}", args.group_size, args.members);
    Ok((json!({ "ratio": ratio, "outcomes": outcomes }), verdict))
}

/// Memory per user who is known and offline.
fn users(args: &GrowthArgs) -> Result<Value, LabError> {
    let mut server = OwnServer::start()?;
    let mut http = HttpClient::new(server.address, server.api_key.clone());
    // Warm: allocator, connection, caches.
    setup::named_users(&mut http, &setup::names("warm", 1000))?;
    let resident = |server: &OwnServer| server.pid().map_or(0, process::resident_bytes);
    let before = resident(&server);
    setup::named_users(&mut http, &setup::names("user", args.users))?;
    let after = resident(&server);
    drop(http);
    server.stop()?;
    server.launch()?;
    let reopened = resident(&server);
    server.stop()?;
    let per_user = after.saturating_sub(before) as f64 / args.users as f64;
    println!(
        "{} offline users: {:.0} bytes each while writing, {:.0} MiB resident in all after a restart",
        args.users,
        per_user,
        reopened as f64 / 1048576.0
    );
    Ok(json!({
        "users": args.users, "bytes_per_user": per_user, "resident_before": before, "resident_after": after,
        "resident_after_restart": reopened,
    }))
}

/// Commit rate and opening time as history grows.
fn history(args: &GrowthArgs) -> Result<(Value, Verdict), LabError> {
    let mut server = OwnServer::start()?;
    let mut http = HttpClient::new(server.address, server.api_key.clone());
    let pairs = 1000;
    let (a, b) = (setup::names("a", pairs), setup::names("b", pairs));
    setup::named_users(&mut http, &a)?;
    setup::named_users(&mut http, &b)?;
    let mut conversations = Vec::new();
    for (a, b) in a.iter().zip(&b) {
        conversations.push((setup::direct(&mut http, a, b)?.id, a.clone()));
    }
    drop(http);
    let mut sizes = args.messages.clone();
    sizes.sort_unstable();
    let mut rows = Vec::new();
    let mut stored = 0;
    for size in sizes {
        let measured_from = size.saturating_sub(MEASURED).max(stored);
        grow(&server, &conversations, stored, measured_from)?;
        let started = Instant::now();
        grow(&server, &conversations, measured_from, size)?;
        let rate = (size - measured_from) as f64 / started.elapsed().as_secs_f64();
        stored = size;
        let memory = server.pid().map_or(0, process::resident_bytes);
        server.stop()?;
        let opened = server.launch()?;
        println!(
            "{size:>10} messages stored: {rate:>8.0} commits/s, opened in {:.2} s, server memory {:.0} MiB",
            opened.as_secs_f64(),
            memory as f64 / 1048576.0
        );
        rows.push(json!({
            "messages": size, "commits_per_second": rate, "open_seconds": opened.as_secs_f64(),
            "resident_bytes": memory,
        }));
    }
    server.stop()?;
    let check = server.check()?;
    let verdict = if check.passed { Verdict::Passed } else { Verdict::Failed };
    report::print_check(&Some(check.clone()));
    Ok((json!({ "rows": rows, "check": check }), verdict))
}

/// Sends messages `from..to` in batches over a few connections.
fn grow(server: &OwnServer, conversations: &[(String, String)], from: u64, to: u64) -> Result<(), LabError> {
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
            send_until_taken(&mut http, body.as_bytes())?;
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

/// A batch may be refused for the moment, whole or in part; the same ids make sending it again harmless.
fn send_until_taken(http: &mut HttpClient, body: &[u8]) -> Result<(), LabError> {
    const TRIES_MAX: usize = 1000;
    for _ in 0..TRIES_MAX {
        let answer = http.exchange("POST", "/v1/messages/batch", body)?;
        let refused = answer.body.windows(8).any(|window| window == b"\"error\":");
        match answer.status {
            200..=299 if !refused => return Ok(()),
            200..=299 | 429 | 503 => std::thread::sleep(std::time::Duration::from_millis(20)),
            status => {
                let said = String::from_utf8_lossy(&answer.body).into_owned();
                return Err(LabError::Server(format!("answered a batch with {status}: {said}")));
            }
        }
    }
    Err(LabError::Server("refused a batch for too long".into()))
}

//! `bench events`: a consumer's webhook that fails for some conversations, while a group is as busy as it can be. What was taken of each
//! conversation must be in order and whole; shown is how far others lag behind their commits.

use crate::{
    LabError, interrupt,
    latency::{Percentiles, new_histogram, record},
    message_clients::{GroupSpec, MessageClients},
    offline_push::{
        http1::{Answer, Handler, HttpServer, Request},
        notice::NoticeSink,
        tally::NoticeTally,
    },
    options::{TargetArgs, parse_duration, parse_share},
    result::{Check, RunResult, Table},
    server::Target,
    setup::{create_users, numbered_ids},
    worker_protocol::LoadModel,
};
use clap::Args;
use hdrhistogram::Histogram;
use serde::Deserialize;
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tidings_client::http::HttpClient;
use tidings_protocol::http::{EventConsumer, PutEventConsumer, PutEventWebhook, SendRequest};

#[derive(Debug, Clone, Args)]
pub struct EventsArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Direct conversations beside the group
    #[arg(long, default_value_t = 10_000)]
    pub conversations: usize,
    /// Of these, so many of which the webhook takes nothing
    #[arg(long, default_value = "5%", value_parser = parse_share)]
    pub failing: f64,
    /// Messages a second to them, in turn
    #[arg(long, default_value_t = 500)]
    pub rate: usize,
    /// Members of the group
    #[arg(long, default_value_t = 30)]
    pub members: usize,
    /// The group's rate, as a part of what it reaches beside the webhook
    #[arg(long, default_value = "70%", value_parser = parse_share)]
    pub share: f64,
    /// Duration of the measurement
    #[arg(long, default_value = "20s", value_parser = parse_duration)]
    pub duration: Duration,
}

const BODY_BYTES: usize = 200;
const SENDERS: usize = 32;
const WINDOW: usize = 1_000;
/// How long the group runs to find its rate.
const ALONE: Duration = Duration::from_secs(5);
/// Turns of the sender in a second.
const TURNS: u32 = 20;
/// Messages of one request.
const BATCH: usize = 500;
/// Users whose pairs are the conversations.
const USERS: usize = 400;

/// What the webhook reads of an event.
#[derive(Deserialize)]
struct Event<'a> {
    subject: &'a str,
    data: Entry,
}

#[derive(Deserialize)]
struct Entry {
    seq: u64,
    at: u64,
}

/// What was taken.
struct Taken {
    group: String,
    failing: f64,
    measures: bool,
    others: Histogram<u64>,
    of_group: Histogram<u64>,
    /// The newest `seq` of each conversation.
    newest: HashMap<String, u64>,
    events: u64,
    faults: Vec<String>,
}

/// The webhook.
struct Hook {
    taken: Mutex<Taken>,
    sink: NoticeTally,
}

impl Hook {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Whether the webhook takes nothing of a conversation.
fn is_failing(conversation: &str, share: f64) -> bool {
    let number = conversation.bytes().fold(17_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    (number % 1_000) as f64 <= 1_000.0 * share
}

impl Handler for Hook {
    fn answer(&self, request: Request<'_>) -> Result<Option<Answer>, String> {
        let events: Vec<Event<'_>> = serde_json::from_slice(request.body).map_err(|error| error.to_string())?;
        let mut taken = self.taken();
        let (now_ms, share) = (now_ms(), taken.failing);
        if events.iter().any(|event| event.subject != taken.group && is_failing(event.subject, share)) {
            return Ok(Some(Answer::empty(500)));
        }
        for Event { subject, data: Entry { seq, at } } in events {
            let newest = taken.newest.insert(subject.to_owned(), seq).unwrap_or(0);
            if seq != newest + 1 && newest > 0 {
                let fault = format!("{subject}: {seq} after {newest}");
                taken.faults.push(fault);
            }
            taken.events += 1;
            if taken.measures {
                let lag = if subject == taken.group { &mut taken.of_group } else { &mut taken.others };
                record(lag, at * 1_000_000, now_ms.max(at) * 1_000_000);
            }
        }
        Ok(Some(Answer::empty(204)))
    }

    fn sink(&self) -> &dyn NoticeSink {
        &self.sink
    }
}

/// The conversations, each of two users.
fn pair(number: usize) -> (String, String) {
    let (a, b) = (number / (USERS - 1), number % (USERS - 1));
    (format!("pair-{a}"), format!("pair-{}", if b >= a { b + 1 } else { b }))
}

/// Sends one message to each of these conversations.
fn send_to(http: &mut HttpClient, conversations: impl Iterator<Item = usize>) -> Result<(), LabError> {
    let messages = conversations.map(|number| {
        let (from, to) = pair(number);
        serde_json::from_value(json!({ "from": from, "to": to, "body": { "text": "x".repeat(BODY_BYTES) } }))
    });
    let messages = messages.collect::<serde_json::Result<Vec<SendRequest>>>().map_err(std::io::Error::other)?;
    for batch in messages.chunks(BATCH) {
        http.send_batch(batch.to_vec())?;
    }
    Ok(())
}

/// Sends to all conversations in turn, at the rate.
fn send_in_turn(http: &mut HttpClient, args: &EventsArgs) -> Result<(), LabError> {
    let (began, mut sent) = (Instant::now(), 0);
    while began.elapsed() < args.duration && !interrupt::requested() {
        let due = (began.elapsed().as_secs_f64() * args.rate as f64) as usize;
        send_to(http, (sent..due).map(|number| number % args.conversations))?;
        sent = due;
        std::thread::sleep(Duration::from_secs(1) / TURNS);
    }
    Ok(())
}

/// Waits until the consumer is at the end of the feed.
fn wait_until_caught_up(http: &mut HttpClient, patience: Duration) -> Result<EventConsumer, LabError> {
    let began = Instant::now();
    loop {
        let consumer: EventConsumer = http.get("/v1/event-consumers/bench")?;
        if consumer.behind == 0 || began.elapsed() > patience || interrupt::requested() {
            return Ok(consumer);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub(crate) fn run(args: &EventsArgs) -> Result<RunResult, LabError> {
    if args.target.url.is_some() {
        return Err(LabError::Usage(
            "the server must be one that the bench starts: it calls the bench's webhook".into(),
        ));
    }
    let target = Target::resolve(&args.target)?;
    let mut http = target.http();
    create_users(&mut http, &numbered_ids("pair", USERS))?;
    let spec = GroupSpec { low_priority: true, ..GroupSpec::of(args.members, args.members, SENDERS) };
    let mut group = MessageClients::group(&target, &args.target, &spec)?;
    let taken = Taken {
        group: group.conversations[0].id.clone(),
        failing: args.failing,
        measures: false,
        others: new_histogram(),
        of_group: new_histogram(),
        newest: HashMap::new(),
        events: 0,
        faults: Vec::new(),
    };
    let hook = Arc::new(Hook { taken: Mutex::new(taken), sink: NoticeTally::default() });
    let server = HttpServer::start("events", hook.clone())?;
    let webhook = PutEventWebhook { url: format!("http://{}/", server.address), ..PutEventWebhook::default() };
    let types = vec!["entry.message".to_owned()];
    let put = PutEventConsumer { types, after: Some("now".into()), webhook: Some(webhook) };
    let _: EventConsumer = http.put("/v1/event-consumers/bench", &put)?;
    // Every conversation is there, and those that fail are known.
    send_to(&mut http, 0..args.conversations)?;
    wait_until_caught_up(&mut http, args.target.patience)?;
    let closed = LoadModel::ClosedLoop { window: WINDOW, duration_ms: ALONE.as_millis() as u64 };
    let phase = group.phase(closed, BODY_BYTES, 1, 1);
    let alone = group.load.run("the group beside the webhook", phase)?;
    wait_until_caught_up(&mut http, args.target.patience)?;
    let per_second = args.share * alone.messages_per_second();
    let duration_ms = (args.duration + 2 * Duration::from_secs(1)).as_millis() as u64;
    let phase = group.phase(LoadModel::OpenLoop { per_second, duration_ms }, BODY_BYTES, 1, 1);
    group.load.start_phase(phase)?;
    hook.taken().measures = true;
    send_in_turn(&mut http, args)?;
    hook.taken().measures = false;
    let flooding = group.load.finish_phase("the group at its share")?;
    let consumer = wait_until_caught_up(&mut http, args.target.patience)?;
    drop(group);
    let check = target.finish()?;

    let taken = hook.taken();
    let (others, of_group) = (Percentiles::of(&taken.others), Percentiles::of(&taken.of_group));
    let mut result = RunResult::of("events");
    result.measure("group", flooding.measured("the group at its share").may_be_late());
    let faults = taken.faults.len();
    result.note("events", format!("taken {}, aside {}, faults of order {faults}", taken.events, consumer.aside));
    let last_error = consumer.last_error.as_ref().map_or("no error", |error| &error.detail);
    let behind = format!("the consumer is {:?}, {} commits behind: {last_error}", consumer.state, consumer.behind);
    if consumer.behind > 0 {
        result.note("", &*behind);
    }
    let mut table = Table::of("lag behind the commit, ms|p50|p99|p100");
    for (name, Percentiles { p50, p99, max, .. }) in [("others", &others), ("the group", &of_group)] {
        table.row(name, [p50, p99, max].map(|ms| format!("{ms:.2}")));
    }
    result.table(table);
    result.store_check(check);
    taken.faults.iter().take(10).for_each(|fault| result.problem(&**fault));
    result.check(
        Check::of_server("order", "the events of a conversation come in order", faults == 0)
            .value(format!("{faults} faults")),
    );
    result.check(Check::of_server("feed", "the consumer comes to the end", consumer.behind == 0).value(behind));
    let measured = taken.others.len();
    result.check(
        Check::of_server("events", "some were taken meanwhile", measured > 0).value(format!("{measured} of others")),
    );
    result.set_all(json!({
        "conversations": args.conversations, "failing": args.failing, "taken": taken.events, "aside": consumer.aside, "faults": faults,
        "others_lag_ms": { "p50": others.p50, "p99": others.p99, "max": others.max },
        "group_lag_ms": { "p50": of_group.p50, "p99": of_group.p99, "max": of_group.max },
    }));
    Ok(result)
}

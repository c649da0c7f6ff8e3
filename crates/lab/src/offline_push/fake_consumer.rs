//! A consumer of the lab's own, which follows the feed of events by a webhook, and takes nothing of some direct conversations. What it
//! takes of each conversation must be in order and whole; shown is how far it lags behind the commits.

use super::{
    http_server::{Answer, Handler, HttpServer, Request, answer},
    notice::NoticeSink,
    tally::NoticeTally,
};
use crate::{
    LabError, interrupt,
    latency::{Latencies, Percentiles},
    lock::lock,
    process,
    result::{Check, RunResult, Table},
    server::Target,
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tidings_protocol::{
    http::{EventConsumer, PutEventConsumer, PutEventWebhook},
    ids::direct_pair,
};
use xxhash_rust::xxh3::xxh3_64;

/// The consumer's name and place.
const PATH: &str = "/v1/event-consumers/bench";
const POLL_INTERVAL: Duration = Duration::from_millis(100);

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
#[derive(Default)]
struct Taken {
    direct_lag: Latencies,
    group_lag: Latencies,
    /// The newest `seq` of each conversation.
    newest: HashMap<String, u64>,
    events: u64,
    faults: Vec<String>,
}

/// The webhook.
struct Hook {
    /// The share of direct conversations of which nothing is taken.
    failing: f64,
    taken: Mutex<Taken>,
    sink: NoticeTally,
}

impl Hook {
    fn is_failing(&self, conversation: &str) -> bool {
        let draw = xxh3_64(conversation.as_bytes()) % 1_000;
        direct_pair(conversation).is_some() && (draw as f64) < 1_000.0 * self.failing
    }
}

impl Handler for Arc<Hook> {
    fn answer(&self, request: &Request) -> Result<Answer, String> {
        let events: Vec<Event<'_>> = serde_json::from_slice(request.body()).map_err(|error| error.to_string())?;
        if events.iter().any(|event| self.is_failing(event.subject)) {
            return Ok(answer(StatusCode::INTERNAL_SERVER_ERROR, ""));
        }
        let now_ms = process::unix_ms();
        let mut taken = lock(&self.taken);
        for Event { subject, data: Entry { seq, at } } in events {
            let newest = taken.newest.insert(subject.to_owned(), seq).unwrap_or(0);
            if seq != newest + 1 && newest > 0 {
                let fault = format!("{subject}: {seq} after {newest}");
                taken.faults.push(fault);
            }
            taken.events += 1;
            let lag = if direct_pair(subject).is_some() { &mut taken.direct_lag } else { &mut taken.group_lag };
            lag.record(at * 1_000_000, now_ms.max(at) * 1_000_000);
        }
        Ok(answer(StatusCode::NO_CONTENT, ""))
    }

    fn sink(&self) -> &dyn NoticeSink {
        &self.sink
    }
}

/// The consumer. Its webhook ends with this handle.
pub(crate) struct FakeConsumer {
    hook: Arc<Hook>,
    _server: HttpServer,
}

impl FakeConsumer {
    /// Has the server call the webhook for every message from now on.
    pub(crate) fn start(failing: f64, target: &Target) -> Result<FakeConsumer, LabError> {
        let hook = Arc::new(Hook { failing, taken: Mutex::default(), sink: NoticeTally::default() });
        let server = HttpServer::start("events", hook.clone())?;
        let webhook = PutEventWebhook { url: format!("http://{}/", server.address), ..PutEventWebhook::default() };
        let types = vec!["entry.message".to_owned()];
        let put = PutEventConsumer { types, after: Some("now".into()), webhook: Some(webhook) };
        let _: EventConsumer = target.http().put(PATH, &put)?;
        Ok(FakeConsumer { hook, _server: server })
    }

    /// Waits until it is at the end of the feed, and measures from there on.
    pub(crate) fn begin_phase(&self, target: &Target, patience: Duration) -> Result<(), LabError> {
        wait_until_caught_up(target, patience)?;
        let mut taken = lock(&self.hook.taken);
        (taken.direct_lag, taken.group_lag) = Default::default();
        Ok(())
    }

    /// What it has taken in all, and its lag in the last phase. Call it while the server runs.
    pub(crate) fn conclude(&self, target: &Target, patience: Duration, result: &mut RunResult) -> Result<(), LabError> {
        let consumer = wait_until_caught_up(target, patience)?;
        let taken = lock(&self.hook.taken);
        let (direct, of_group) = (taken.direct_lag.percentiles(), taken.group_lag.percentiles());
        let faults = taken.faults.len();
        result.note("events", format!("taken {}, aside {}, faults of order {faults}", taken.events, consumer.aside));
        let last_error = consumer.last_error.as_ref().map_or("no error", |error| &error.detail);
        let behind = format!("the consumer is {:?}, {} commits behind: {last_error}", consumer.state, consumer.behind);
        if consumer.behind > 0 {
            result.note("", &*behind);
        }
        let mut table = Table::of("lag behind the commit, ms|p50|p99|p100");
        for (name, Percentiles { p50, p99, max, .. }) in [("direct conversations", &direct), ("groups", &of_group)] {
            table.row(name, [p50, p99, max].map(|ms| format!("{ms:.2}")));
        }
        result.table(table);
        taken.faults.iter().take(10).for_each(|fault| result.problem(&**fault));
        let measured = taken.direct_lag.len() + taken.group_lag.len();
        for (name, bound, is_met, value) in [
            ("order", "the events of a conversation come in order", faults == 0, format!("{faults} faults")),
            ("feed", "the consumer comes to the end", consumer.behind == 0, behind),
            ("events", "some were taken in the last phase", measured > 0, measured.to_string()),
        ] {
            result.check(Check::of_server(name, bound, is_met).value(value));
        }
        let lag = |Percentiles { p50, p99, max, .. }: &Percentiles| json!({ "p50": p50, "p99": p99, "max": max });
        result.set_all(json!({
            "failing": self.hook.failing, "taken": taken.events, "aside": consumer.aside, "faults": faults,
            "others_lag_ms": lag(&direct), "group_lag_ms": lag(&of_group),
        }));
        Ok(())
    }
}

/// Waits until the consumer is at the end of the feed.
fn wait_until_caught_up(target: &Target, patience: Duration) -> Result<EventConsumer, LabError> {
    let (mut http, began) = (target.http(), Instant::now());
    loop {
        let consumer: EventConsumer = http.get(PATH)?;
        if consumer.behind == 0 || began.elapsed() > patience || interrupt::requested() {
            return Ok(consumer);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

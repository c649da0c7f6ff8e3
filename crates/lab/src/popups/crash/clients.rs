//! Client threads that outlive their server: some request decisions for new users, others repeat reports of events until they
//! are answered.

use crate::{lock::lock, server::OwnServer};
use serde_json::json;
use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_client::http::{HttpClient, HttpResponse};
use tidings_protocol::http::{Decision, PopupEventKind, PopupEventsAccepted};

/// A request that is not answered within this is repeated.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The wait after a failure.
const PAUSE: Duration = Duration::from_millis(5);
/// The number of recent decisions that events are about.
const RECENT: usize = 2_000;
const EVENTS_PER_CALL_MAX: u64 = 12;
/// How many answered reports are repeated after a kill: all their events must be duplicates.
const REPEATED_CALLS: usize = 3;
const EVENT_KINDS: [PopupEventKind; 3] = [PopupEventKind::Impression, PopupEventKind::Click, PopupEventKind::Dismiss];

/// A user who was shown a popup.
#[derive(Debug, Clone)]
pub(super) struct Exposure {
    pub(super) user: String,
    pub(super) placement: &'static str,
    pub(super) strict: bool,
    /// The incarnation of the server that answered.
    pub(super) incarnation: usize,
    pub(super) answered: Instant,
}

/// The server's incarnations, of which each but the last was ended by a kill, and their answers.
pub(super) struct Incarnations {
    /// The server's address and the number of its incarnation.
    now: Mutex<(SocketAddr, usize)>,
    ends: Mutex<Vec<Instant>>,
    stop: AtomicBool,
    /// Decisions for new users are paused while earlier exposures are verified.
    paused: AtomicBool,
    api_key: String,
    exposures: Mutex<Vec<Exposure>>,
    decisions: Mutex<VecDeque<String>>,
    /// Answers that are wrong however often the server was killed, by status: their number, and the first one.
    unexpected: Mutex<BTreeMap<u16, (u64, String)>>,
}

impl Incarnations {
    pub(super) fn new(server: &OwnServer) -> Self {
        Incarnations {
            now: Mutex::new((server.address, 0)),
            ends: Mutex::default(),
            stop: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            api_key: server.api_key.clone(),
            exposures: Mutex::default(),
            decisions: Mutex::default(),
            unexpected: Mutex::default(),
        }
    }

    /// Records an answer that is neither a success nor a retryable refusal.
    fn note_answer(&self, path: &str, answer: &HttpResponse) {
        if !matches!(answer.status, 200 | 202 | 204 | 429 | 503) {
            let first = || (0, format!("{path}: {} {}", answer.status, String::from_utf8_lossy(&answer.body)));
            lock(&self.unexpected).entry(answer.status).or_insert_with(first).0 += 1;
        }
    }

    pub(super) fn take_unexpected_answers(&self) -> BTreeMap<u16, (u64, String)> {
        std::mem::take(&mut lock(&self.unexpected))
    }

    pub(super) fn record_kill(&self, at: Instant) {
        lock(&self.ends).push(at);
    }

    pub(super) fn start_incarnation(&self, address: SocketAddr) {
        let mut now = lock(&self.now);
        *now = (address, now.1 + 1);
    }

    /// When an incarnation was killed.
    pub(super) fn kill_time(&self, incarnation: usize) -> Option<Instant> {
        lock(&self.ends).get(incarnation).copied()
    }

    pub(super) fn take_exposures(&self) -> Vec<Exposure> {
        std::mem::take(&mut lock(&self.exposures))
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn connect(&self) -> (HttpClient, usize) {
        let (address, incarnation) = *lock(&self.now);
        let mut http = HttpClient::new(address, self.api_key.clone());
        http.set_timeout(ANSWER_TIMEOUT);
        (http, incarnation)
    }

    fn incarnation(&self) -> usize {
        lock(&self.now).1
    }
}

pub(super) fn decide_request(user: &str, placement: &str) -> Vec<u8> {
    json!({ "user": user, "placement": placement }).to_string().into_bytes()
}

/// Requests decisions for one new user after the other.
pub(super) fn decide_until_stopped(
    incarnations: &Incarnations,
    thread: usize,
    (placement, strict): (&'static str, bool),
) {
    let (mut http, mut incarnation) = incarnations.connect();
    let mut number = 0u64;
    while !incarnations.stopping() {
        if incarnations.paused.load(Ordering::Relaxed) {
            std::thread::sleep(PAUSE);
            continue;
        }
        number += 1;
        let user = format!("d{thread}-{number}");
        match http.exchange("POST", "/v1/popups/decide", &decide_request(&user, placement)) {
            Ok(answer) if answer.status == 200 => {
                let answered = Instant::now();
                lock(&incarnations.exposures).push(Exposure { user, placement, strict, incarnation, answered });
                if let Ok(decision) = serde_json::from_slice::<Decision>(&answer.body) {
                    let mut decisions = lock(&incarnations.decisions);
                    if decisions.len() == RECENT {
                        decisions.pop_front();
                    }
                    decisions.push_back(decision.decision);
                }
            }
            // After a retryable refusal the next decision is for another user.
            Ok(answer) => {
                incarnations.note_answer("decide", &answer);
                std::thread::sleep(PAUSE);
            }
            Err(_) => {
                std::thread::sleep(PAUSE);
                (http, incarnation) = incarnations.connect();
            }
        }
    }
}

/// An event that was reported to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReportedEvent {
    pub(super) id: String,
    pub(super) kind: PopupEventKind,
    pub(super) decision: String,
}

/// The events that a thread reported, with their answers.
#[derive(Debug, Default)]
pub(super) struct ReporterLog {
    /// Events that were answered with 202.
    pub(super) accepted: Vec<ReportedEvent>,
    /// Events that were sent and never answered.
    pub(super) open: Vec<ReportedEvent>,
    pub(super) retries: u64,
    /// Contradictory answers: new events that count as duplicates, or repeated ones that count as new.
    pub(super) contradictions: Vec<String>,
}

/// Reports events in batches; a batch without an answer is repeated with the same ids.
pub(super) fn report_until_stopped(incarnations: &Incarnations, thread: usize) -> ReporterLog {
    let mut log = ReporterLog::default();
    let (mut http, mut incarnation) = incarnations.connect();
    let (mut number, mut call) = (0u64, 0u64);
    let mut open: Vec<ReportedEvent> = Vec::new();
    let mut recent: VecDeque<Vec<ReportedEvent>> = VecDeque::new();
    let mut tried_before = false;
    let mut repeated_calls_in = incarnation;
    while !incarnations.stopping() {
        if incarnation != incarnations.incarnation() {
            (http, incarnation) = incarnations.connect();
        }
        if repeated_calls_in != incarnation {
            repeated_calls_in = incarnation;
            for batch in recent.drain(..) {
                if let Some(answer) = report_events(incarnations, &mut http, &batch)
                    && answer.accepted > 0
                {
                    let ids: Vec<&str> = batch.iter().map(|event| event.id.as_str()).collect();
                    log.contradictions.push(format!("{answer:?} for {ids:?}, which had been accepted before"));
                }
            }
        }
        if open.is_empty() {
            call += 1;
            tried_before = false;
            let decisions = lock(&incarnations.decisions);
            for _ in 0..1 + call % EVENTS_PER_CALL_MAX {
                let Some(decision) = decisions.get((number * 7919 % RECENT as u64) as usize % decisions.len().max(1))
                else {
                    break;
                };
                number += 1;
                open.push(ReportedEvent {
                    id: format!("e{thread}-{number}"),
                    kind: EVENT_KINDS[(number % 3) as usize],
                    decision: decision.clone(),
                });
            }
        }
        if open.is_empty() {
            std::thread::sleep(PAUSE);
            continue;
        }
        match report_events(incarnations, &mut http, &open) {
            Some(answer) => {
                if answer.accepted + answer.duplicates != open.len() || (answer.duplicates > 0 && !tried_before) {
                    log.contradictions.push(format!("{answer:?} for {} events, the first {}", open.len(), open[0].id));
                }
                log.accepted.extend(open.iter().cloned());
                if recent.len() == REPEATED_CALLS {
                    recent.pop_front();
                }
                recent.push_back(std::mem::take(&mut open));
            }
            None => {
                tried_before = true;
                log.retries += 1;
                std::thread::sleep(PAUSE);
                (http, incarnation) = incarnations.connect();
            }
        }
    }
    log.open = open;
    log
}

/// Reports a batch of events; `None`: it was not answered, or refused with a retryable code.
fn report_events(
    incarnations: &Incarnations,
    http: &mut HttpClient,
    events: &[ReportedEvent],
) -> Option<PopupEventsAccepted> {
    let events: Vec<_> =
        events.iter().map(|event| json!({ "id": event.id, "decision": event.decision, "type": event.kind })).collect();
    let body = json!({ "events": events }).to_string();
    let answer = http.exchange("POST", "/v1/popup-events", body.as_bytes()).ok()?;
    incarnations.note_answer("popup-events", &answer);
    (answer.status == 202).then(|| serde_json::from_slice(&answer.body).ok())?
}

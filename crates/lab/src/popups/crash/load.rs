//! Threads that outlive their server: they ask for new users, and report events until these are answered.

use crate::server::OwnServer;
use serde_json::json;
use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_client::http::{HttpClient, HttpResponse};
use tidings_protocol::http::{Decision, PopupEventsAccepted};

/// What is not answered within this is asked again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// After a failure, before the next try.
const PAUSE: Duration = Duration::from_millis(5);
/// Decisions that events can be about.
const RECENT: usize = 2_000;
const EVENTS_PER_CALL_MAX: u64 = 12;
/// Of calls that were answered, after a kill so many are made once more: all their events must be known.
const CALLED_AGAIN: usize = 3;
pub(super) const KINDS: [&str; 3] = ["impression", "click", "dismiss"];

/// A thread that panicked fails the run by itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A user who was shown a popup.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) user: String,
    pub(super) placement: &'static str,
    pub(super) strict: bool,
    /// Of the server that answered.
    pub(super) life: usize,
    pub(super) answered: Instant,
}

/// The server's lives one after the other, and what was answered in them.
pub(super) struct Lives {
    /// Where it is, in which life.
    now: Mutex<(SocketAddr, usize)>,
    ends: Mutex<Vec<Instant>>,
    stop: AtomicBool,
    /// No new users for now: those of before are being asked for again.
    paused: AtomicBool,
    api_key: String,
    shown: Mutex<Vec<Shown>>,
    decisions: Mutex<VecDeque<String>>,
    /// Answers that a server may not give, however often it was killed: how often, and the first one, by status.
    odd: Mutex<BTreeMap<u16, (u64, String)>>,
}

impl Lives {
    pub(super) fn new(server: &OwnServer) -> Self {
        Lives {
            now: Mutex::new((server.address, 0)),
            ends: Mutex::default(),
            stop: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            api_key: server.api_key.clone(),
            shown: Mutex::default(),
            decisions: Mutex::default(),
            odd: Mutex::default(),
        }
    }

    /// Remembers an answer that is neither what was asked for nor a refusal for the moment.
    fn look_at(&self, path: &str, answer: &HttpResponse) {
        if !matches!(answer.status, 200 | 202 | 204 | 429 | 503) {
            let first = || (0, format!("{path}: {} {}", answer.status, String::from_utf8_lossy(&answer.body)));
            lock(&self.odd).entry(answer.status).or_insert_with(first).0 += 1;
        }
    }

    pub(super) fn take_odd(&self) -> BTreeMap<u16, (u64, String)> {
        std::mem::take(&mut lock(&self.odd))
    }

    pub(super) fn ended_at(&self, at: Instant) {
        lock(&self.ends).push(at);
    }

    pub(super) fn begin_at(&self, address: SocketAddr) {
        let mut now = lock(&self.now);
        *now = (address, now.1 + 1);
    }

    /// When a life was ended by a kill.
    pub(super) fn end_of(&self, life: usize) -> Option<Instant> {
        lock(&self.ends).get(life).copied()
    }

    pub(super) fn take_shown(&self) -> Vec<Shown> {
        std::mem::take(&mut lock(&self.shown))
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
        let (address, life) = *lock(&self.now);
        let mut http = HttpClient::new(address, self.api_key.clone());
        http.set_timeout(ANSWER_TIMEOUT);
        (http, life)
    }

    fn life(&self) -> usize {
        lock(&self.now).1
    }
}

pub(super) fn question(user: &str, placement: &str) -> Vec<u8> {
    json!({ "user": user, "placement": placement }).to_string().into_bytes()
}

/// Asks for one new user after the other.
pub(super) fn decide_on(lives: &Lives, thread: usize, (placement, strict): (&'static str, bool)) {
    let (mut http, mut life) = lives.connect();
    let mut number = 0u64;
    while !lives.stopping() {
        if lives.paused.load(Ordering::Relaxed) {
            std::thread::sleep(PAUSE);
            continue;
        }
        number += 1;
        let user = format!("d{thread}-{number}");
        match http.exchange("POST", "/v1/popups/decide", &question(&user, placement)) {
            Ok(answer) if answer.status == 200 => {
                let answered = Instant::now();
                lock(&lives.shown).push(Shown { user, placement, strict, life, answered });
                if let Ok(decision) = serde_json::from_slice::<Decision>(&answer.body) {
                    let mut decisions = lock(&lives.decisions);
                    if decisions.len() == RECENT {
                        decisions.pop_front();
                    }
                    decisions.push_back(decision.decision);
                }
            }
            // Refused for the moment: the next one is another user.
            Ok(answer) => {
                lives.look_at("decide", &answer);
                std::thread::sleep(PAUSE);
            }
            Err(_) => {
                std::thread::sleep(PAUSE);
                (http, life) = lives.connect();
            }
        }
    }
}

/// One event as it was reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) id: String,
    pub(super) kind: &'static str,
    pub(super) decision: String,
}

/// What a reporting thread knows at the end.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Answered with 202.
    pub(super) accepted: Vec<Reported>,
    /// Sent, and never answered.
    pub(super) open: Vec<Reported>,
    pub(super) retries: u64,
    /// Answers that cannot be: new ones of which some were known, or known ones of which some were new.
    pub(super) contradictions: Vec<String>,
}

/// Reports events in batches; a batch without an answer is sent again with the same ids.
pub(super) fn report_on(lives: &Lives, thread: usize) -> Told {
    let mut told = Told::default();
    let (mut http, mut life) = lives.connect();
    let (mut number, mut call) = (0u64, 0u64);
    let mut open: Vec<Reported> = Vec::new();
    let mut recent: VecDeque<Vec<Reported>> = VecDeque::new();
    let mut tried_before = false;
    let mut called_again_in = life;
    while !lives.stopping() {
        if life != lives.life() {
            (http, life) = lives.connect();
        }
        if called_again_in != life {
            called_again_in = life;
            for batch in recent.drain(..) {
                if let Some(answer) = report(lives, &mut http, &batch)
                    && answer.accepted > 0
                {
                    let ids: Vec<&str> = batch.iter().map(|event| event.id.as_str()).collect();
                    told.contradictions.push(format!("{answer:?} for {ids:?}, which had been accepted before"));
                }
            }
        }
        if open.is_empty() {
            call += 1;
            tried_before = false;
            let decisions = lock(&lives.decisions);
            for _ in 0..1 + call % EVENTS_PER_CALL_MAX {
                let Some(decision) = decisions.get((number * 7919 % RECENT as u64) as usize % decisions.len().max(1))
                else {
                    break;
                };
                number += 1;
                open.push(Reported {
                    id: format!("e{thread}-{number}"),
                    kind: KINDS[(number % 3) as usize],
                    decision: decision.clone(),
                });
            }
        }
        if open.is_empty() {
            std::thread::sleep(PAUSE);
            continue;
        }
        match report(lives, &mut http, &open) {
            Some(answer) => {
                if answer.accepted + answer.duplicates != open.len() || (answer.duplicates > 0 && !tried_before) {
                    told.contradictions.push(format!("{answer:?} for {} events, the first {}", open.len(), open[0].id));
                }
                told.accepted.extend(open.iter().cloned());
                if recent.len() == CALLED_AGAIN {
                    recent.pop_front();
                }
                recent.push_back(std::mem::take(&mut open));
            }
            None => {
                tried_before = true;
                told.retries += 1;
                std::thread::sleep(PAUSE);
                (http, life) = lives.connect();
            }
        }
    }
    told.open = open;
    told
}

/// Nothing: not answered, or refused for the moment.
fn report(lives: &Lives, http: &mut HttpClient, events: &[Reported]) -> Option<PopupEventsAccepted> {
    let events: Vec<_> =
        events.iter().map(|event| json!({ "id": event.id, "decision": event.decision, "type": event.kind })).collect();
    let body = json!({ "events": events }).to_string();
    let answer = http.exchange("POST", "/v1/popup-events", body.as_bytes()).ok()?;
    lives.look_at("popup-events", &answer);
    (answer.status == 202).then(|| serde_json::from_slice(&answer.body).ok())?
}

//! `bench crash`: kill the server at random moments under load, and prove that nothing acknowledged was lost.
//!
//! Every sender keeps to one rule: a send whose answer did not come is sent again with the same
//! `client_msg_id` until it is answered. At the end each conversation is read back whole.

use crate::{
    LabError, Verdict,
    args::CrashArgs,
    report,
    server::{Check, OwnServer},
    setup,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{json, value::RawValue};
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_client::{ClientError, http::Http, session::Session, token};
use tidings_protocol::{
    entry::Entry,
    frames::ServerFrame,
    http::{HistoryQuery, NewMessage, SendRequest},
    limits::HISTORY_PAGE_MAX,
};

/// How long a server lives once it is ready.
const LIFE_MS: std::ops::Range<u64> = 20..600;
/// How long a server lives that is killed while it opens.
const OPENING_MS: std::ops::Range<u64> = 1..60;
/// A send that is not answered within this is sent again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Answered sends that are sent once more after a kill: their answer must not change.
const ASKED_AGAIN: u64 = 3;
const WS_WINDOW: usize = 16;

/// Where the server is now; it listens elsewhere after each start.
struct Whereabouts {
    address: Mutex<SocketAddr>,
    stop: AtomicBool,
    api_key: String,
    token_key: String,
}

impl Whereabouts {
    fn address(&self) -> SocketAddr {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// What a sender knows at the end.
#[derive(Debug, Default)]
struct Told {
    /// Per `client_msg_id`: the first acknowledged `seq`.
    acknowledged: HashMap<String, u64>,
    retries: u64,
    asked_again: u64,
    /// A second answer that differs from the first.
    contradictions: Vec<String>,
}

impl Told {
    fn note(&mut self, id: String, seq: u64) {
        match self.acknowledged.insert(id.clone(), seq) {
            Some(first) if first != seq => {
                self.contradictions.push(format!("{id} answered with {first}, then with {seq}"));
                self.acknowledged.insert(id, first);
            }
            _ => {}
        }
    }
}

pub(crate) fn run(args: &CrashArgs) -> Result<Verdict, LabError> {
    if args.conversations < 2 {
        return Err(LabError::Usage("--conversations must be at least 2".into()));
    }
    let seed = args.seed.unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut server = OwnServer::start()?;
    let users = setup::names("user", args.conversations);
    let mut http = Http::new(server.address, server.api_key.clone());
    setup::named_users(&mut http, &users)?;
    let mut bases = HashMap::new();
    for number in 0..args.conversations {
        let conversation = match number % 2 {
            0 => setup::group(&mut http, &format!("room-{number}"), &users)?,
            _ => {
                let peer = format!("peer-{number}");
                setup::named_users(&mut http, std::slice::from_ref(&peer))?;
                setup::direct(&mut http, &users[number], &peer)?
            }
        };
        bases.insert(number, conversation);
    }
    let whereabouts = Whereabouts {
        address: Mutex::new(server.address),
        stop: AtomicBool::new(false),
        api_key: server.api_key.clone(),
        token_key: server.token_key.clone(),
    };
    let started = Instant::now();
    let told = std::thread::scope(|scope| -> Result<Vec<(usize, Told)>, LabError> {
        let mut senders = Vec::new();
        for number in 0..args.conversations {
            let (whereabouts, user) = (&whereabouts, users[number].as_str());
            let conversation = bases[&number].id.as_str();
            // Two senders per conversation, so that commits of one conversation compete.
            for lane in 0..2 {
                let over_websocket = (number + lane) % 2 == 1;
                let name = format!("{number}-{lane}");
                senders.push(scope.spawn(move || {
                    let told = match over_websocket {
                        true => send_over_websocket(whereabouts, conversation, user, &name),
                        false => send_over_http(whereabouts, conversation, user, &name),
                    };
                    (number, told)
                }));
            }
        }
        let mut killed = 0;
        let mut kill_once = || -> Result<usize, LabError> {
            let life = Duration::from_millis(random.random_range(LIFE_MS));
            std::thread::sleep(life);
            server.kill()?;
            // Some die again while they open: recovery must itself survive being cut off.
            while random.random_ratio(1, 5) && killed + 1 < args.kills {
                server.spawn()?;
                std::thread::sleep(Duration::from_millis(random.random_range(OPENING_MS)));
                server.kill()?;
                killed += 1;
            }
            server.launch()?;
            killed += 1;
            *whereabouts.address.lock().unwrap_or_else(PoisonError::into_inner) = server.address;
            eprintln!("{killed} of {} kills, the last server lived {} ms", args.kills, life.as_millis());
            Ok(killed)
        };
        let result = loop {
            match kill_once() {
                Ok(killed) if killed < args.kills => {}
                result => break result,
            }
        };
        // Senders must end also when a start failed: nothing answers them then.
        whereabouts.stop.store(true, Ordering::Relaxed);
        let told = senders.into_iter().filter_map(|sender| sender.join().ok()).collect();
        result.map(|_| told)
    })?;
    let seconds = started.elapsed().as_secs_f64();

    let mut http = Http::new(server.address, server.api_key.clone());
    let mut tally = Tally::default();
    for number in 0..args.conversations {
        let conversation = &bases[&number];
        let entries = read_all(&mut http, &conversation.id)?;
        tally.add(&conversation.id, &entries, told.iter().filter(|(n, _)| *n == number).map(|(_, told)| told));
    }
    drop(http);
    server.stop()?;
    let check = server.check()?;
    tally.print(args.kills, seconds);
    report::print_check(&Some(check.clone()));
    report::write_json(args.json.as_deref(), &tally.json(args.kills, seed, seconds, &check))?;
    Ok(if tally.is_clean() && check.passed { Verdict::Passed } else { Verdict::Failed })
}

fn body(id: &str) -> Box<RawValue> {
    // A short plain text always serializes.
    RawValue::from_string(format!("{{\"text\":\"{id}\"}}")).unwrap_or_default()
}

fn send_over_http(at: &Whereabouts, conversation: &str, user: &str, name: &str) -> Told {
    let mut told = Told::default();
    let mut http = Http::new(at.address(), at.api_key.clone());
    http.set_timeout(ANSWER_TIMEOUT);
    let mut again: Vec<String> = Vec::new();
    let mut number = 0u64;
    while !at.stopping() {
        let id = again.pop().unwrap_or_else(|| {
            number += 1;
            format!("h{name}-{number}")
        });
        let request = SendRequest {
            conversation: Some(conversation.into()),
            to: None,
            from: Some(user.into()),
            client_msg_id: Some(id.clone()),
            content_type: "text".into(),
            body: body(&id),
            mentions: Vec::new(),
            silent: false,
            skip_push: false,
        };
        match http.send(&request) {
            Ok(receipt) => told.note(id, receipt.seq),
            Err(ClientError::Refused { .. }) => again.push(id),
            Err(_) => {
                told.retries += 1;
                // The newest answered ones, too: a crash must not change what was answered.
                let newest = (number.saturating_sub(ASKED_AGAIN)..number).map(|n| format!("h{name}-{n}"));
                let answered: Vec<String> = newest.filter(|old| told.acknowledged.contains_key(old)).collect();
                told.asked_again += answered.len() as u64;
                again.extend(answered);
                again.push(id);
                std::thread::sleep(Duration::from_millis(5));
                http = Http::new(at.address(), at.api_key.clone());
                http.set_timeout(ANSWER_TIMEOUT);
            }
        }
    }
    told
}

/// Pipelined: several sends are unanswered when the kill comes, and all are sent again.
fn send_over_websocket(at: &Whereabouts, conversation: &str, user: &str, name: &str) -> Told {
    let mut told = Told::default();
    let mut number = 0;
    let mut unanswered: Vec<u64> = Vec::new();
    while !at.stopping() {
        if let Err(_lost) = session(at, conversation, user, name, &mut told, &mut number, &mut unanswered) {
            told.retries += unanswered.len() as u64;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    told
}

fn session(
    at: &Whereabouts,
    conversation: &str,
    user: &str,
    name: &str,
    told: &mut Told,
    number: &mut u64,
    unanswered: &mut Vec<u64>,
) -> Result<(), ClientError> {
    let token = token::sign(&at.token_key, user, Duration::from_secs(3600));
    let mut session = Session::open(at.address(), &token, name, None)?;
    let send = |session: &mut Session, reference: u64| {
        let id = format!("w{name}-{reference}");
        let message = NewMessage {
            body: body(&id),
            client_msg_id: Some(id),
            content_type: "text".into(),
            mentions: Vec::new(),
            silent: false,
            skip_push: false,
        };
        session.send(reference, conversation, message)
    };
    for reference in unanswered.iter() {
        send(&mut session, *reference)?;
    }
    while !at.stopping() {
        while unanswered.len() < WS_WINDOW {
            *number += 1;
            unanswered.push(*number);
            send(&mut session, *number)?;
        }
        match session.next(ANSWER_TIMEOUT)? {
            Some(ServerFrame::Sent { results }) => {
                for sent in results {
                    let Some(reference) = sent.reference else { continue };
                    unanswered.retain(|other| *other != reference);
                    told.note(format!("w{name}-{reference}"), sent.receipt.seq);
                }
            }
            Some(ServerFrame::Error { reference: Some(reference), .. }) => {
                std::thread::sleep(Duration::from_millis(5));
                send(&mut session, reference)?;
            }
            Some(_) => {}
            None => return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }
    Ok(())
}

/// The whole timeline of a conversation.
fn read_all(http: &mut Http, id: &str) -> Result<Vec<Entry>, LabError> {
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let from_seq = entries.last().map_or(1, |entry| entry.seq + 1);
        let query = HistoryQuery { from_seq: Some(from_seq), limit: Some(HISTORY_PAGE_MAX), ..HistoryQuery::default() };
        let page = http.history(id, &query)?;
        if page.entries.is_empty() {
            return Ok(entries);
        }
        entries.extend(page.entries);
        if !page.more {
            return Ok(entries);
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    acknowledged: u64,
    stored: u64,
    lost: u64,
    doubled: u64,
    moved: u64,
    holes: u64,
    altered: u64,
    contradictions: u64,
    retries: u64,
    asked_again: u64,
    problems: Vec<String>,
}

impl Tally {
    /// Holds a conversation's timeline against what its senders were told.
    fn add<'a>(&mut self, conversation: &str, entries: &[Entry], told: impl Iterator<Item = &'a Told>) {
        let mut stands_at: HashMap<&str, u64> = HashMap::new();
        for (index, entry) in entries.iter().enumerate() {
            if entry.seq != index as u64 + 1 {
                self.holes += 1;
                self.problems.push(format!("{conversation}: place {} holds {}", index + 1, entry.seq));
            }
            let Some(id) = entry.client_msg_id.as_deref() else { continue };
            self.stored += 1;
            if entry.body.get() != body(id).get() {
                self.altered += 1;
                self.problems.push(format!("{conversation}: {} holds another text", entry.seq));
            }
            if let Some(first) = stands_at.insert(id, entry.seq) {
                self.doubled += 1;
                self.problems.push(format!("{conversation}: {id} at {first} and at {}", entry.seq));
            }
        }
        for told in told {
            self.retries += told.retries;
            self.asked_again += told.asked_again;
            self.contradictions += told.contradictions.len() as u64;
            self.problems.extend(told.contradictions.iter().cloned());
            for (id, seq) in &told.acknowledged {
                self.acknowledged += 1;
                match stands_at.get(id.as_str()) {
                    None => {
                        self.lost += 1;
                        self.problems.push(format!("{conversation}: {id}, acknowledged as {seq}, is gone"));
                    }
                    Some(place) if place != seq => {
                        self.moved += 1;
                        self.problems.push(format!("{conversation}: {id}, acknowledged as {seq}, is at {place}"));
                    }
                    Some(_) => {}
                }
            }
        }
    }

    fn is_clean(&self) -> bool {
        self.lost + self.doubled + self.moved + self.holes + self.altered + self.contradictions == 0
    }

    fn print(&self, kills: usize, seconds: f64) {
        println!(
            "kills={kills} acknowledged={} lost={} doubled={} moved={} holes={} altered={} contradictions={} stored={} \
             retries={} asked_again={} seconds={seconds:.1}",
            self.acknowledged,
            self.lost,
            self.doubled,
            self.moved,
            self.holes,
            self.altered,
            self.contradictions,
            self.stored,
            self.retries,
            self.asked_again
        );
        for problem in self.problems.iter().take(10) {
            println!("  ! {problem}");
        }
    }

    fn json(&self, kills: usize, seed: u64, seconds: f64, check: &Check) -> serde_json::Value {
        json!({
            "bench": "crash", "kills": kills, "seed": seed, "seconds": seconds, "acknowledged": self.acknowledged,
            "stored": self.stored, "lost": self.lost, "doubled": self.doubled, "moved": self.moved,
            "holes": self.holes, "altered": self.altered, "contradictions": self.contradictions,
            "retries": self.retries, "asked_again": self.asked_again, "check": check,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_protocol::entry::EntryKind;

    fn entry(seq: u64, id: &str) -> Entry {
        Entry {
            conversation: "c".into(),
            seq,
            kind: EntryKind::Message,
            at: 1,
            from: None,
            client_msg_id: Some(id.into()),
            content_type: "text".into(),
            body: body(id),
            mentions: Vec::new(),
            silent: false,
        }
    }

    fn tally(entries: &[Entry], acknowledged: &[(&str, u64)]) -> Tally {
        let acknowledged = acknowledged.iter().map(|(id, seq)| (id.to_string(), *seq)).collect();
        let told = Told { acknowledged, ..Told::default() };
        let mut tally = Tally::default();
        tally.add("c", entries, [&told].into_iter());
        tally
    }

    #[test]
    fn a_timeline_is_held_against_what_was_acknowledged() {
        assert!(tally(&[entry(1, "a"), entry(2, "b")], &[("a", 1), ("b", 2)]).is_clean());
        assert!(tally(&[entry(1, "a"), entry(2, "b")], &[("a", 1)]).is_clean(), "stored without an answer is allowed");
        assert_eq!(tally(&[entry(1, "a")], &[("a", 1), ("b", 2)]).lost, 1);
        assert_eq!(tally(&[entry(1, "a"), entry(2, "a")], &[("a", 1)]).doubled, 1);
        assert_eq!(tally(&[entry(1, "a"), entry(3, "b")], &[]).holes, 1);
        assert_eq!(tally(&[entry(1, "a"), entry(2, "b")], &[("a", 2)]).moved, 1);
    }

    #[test]
    fn two_answers_to_one_send_must_agree() {
        let mut told = Told::default();
        told.note("a".into(), 1);
        told.note("a".into(), 1);
        assert!(told.contradictions.is_empty());
        told.note("a".into(), 2);
        assert_eq!(told.contradictions.len(), 1);
    }
}

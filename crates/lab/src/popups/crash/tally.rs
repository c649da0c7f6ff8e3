//! Holding what the server remembers against what it answered.

use super::{
    super::balance::hours_of,
    POPUPS,
    load::{Lives, Reported, Shown, Told, question},
};
use crate::{LabError, server::Check};
use rand::{RngExt, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tidings_client::http::HttpClient;
use tidings_protocol::http::ExportedEvent;

const PROBLEMS_MAX: usize = 20;
/// What one call of the export covers.
const EXPORT_SLICE_MS: u64 = 500;
/// A server that refuses for the moment is asked again.
const REFUSED_MAX: usize = 1_000;

#[derive(Debug)]
pub(super) struct Tally {
    bound: Duration,
    begun_ms: u64,
    /// Users who were shown something and asked for again.
    asked_again: u64,
    /// Forgotten, of those answered within the bound before a kill: so it is stated.
    forgotten_within: u64,
    /// Per kill, how long before it the oldest one was answered that was forgotten.
    oldest_forgotten: Vec<Duration>,
    forgotten_late: u64,
    forgotten_strict: u64,
    /// Of lives before the last, or answered before a clean stop.
    forgotten_stored: u64,
    accepted: u64,
    exported: u64,
    /// Exported, and without an answer.
    unanswered_exported: u64,
    lost: u64,
    doubled: u64,
    altered: u64,
    miscounted: u64,
    retries: u64,
    contradictions: u64,
    /// Answers with a status that a server may not have.
    odd: u64,
    /// Those whose showing must be remembered from now on.
    earlier: Vec<Shown>,
    problems: Vec<String>,
}

impl Tally {
    pub(super) fn new(bound: Duration) -> Self {
        Tally {
            bound,
            begun_ms: now_ms(),
            asked_again: 0,
            forgotten_within: 0,
            oldest_forgotten: Vec::new(),
            forgotten_late: 0,
            forgotten_strict: 0,
            forgotten_stored: 0,
            accepted: 0,
            exported: 0,
            unanswered_exported: 0,
            lost: 0,
            doubled: 0,
            altered: 0,
            miscounted: 0,
            retries: 0,
            contradictions: 0,
            odd: 0,
            earlier: Vec::new(),
            problems: Vec::new(),
        }
    }

    pub(super) fn some_earlier(&self, random: &mut StdRng, count: usize) -> Vec<Shown> {
        match self.earlier.len() {
            0 => Vec::new(),
            length => (0..count).map(|_| self.earlier[random.random_range(0..length)].clone()).collect(),
        }
    }

    /// Asks again for users who were shown a popup that is shown once. Without `lives` they must all be remembered;
    /// with them, those who were answered within the bound before their server's kill may be forgotten.
    pub(super) fn remembered(
        &mut self,
        http: &mut HttpClient,
        shown: &[Shown],
        lives: Option<&Lives>,
    ) -> Result<(), LabError> {
        // By life: problems of one kill are told together.
        let mut oldest: BTreeMap<usize, (Duration, u64)> = BTreeMap::new();
        for one in shown {
            self.asked_again += 1;
            if !ask_again(http, one)? {
                if lives.is_some() {
                    self.earlier.push(one.clone());
                }
                continue;
            }
            // An answer that was read after the kill came before it.
            let end = lives.and_then(|lives| lives.end_of(one.life));
            let age = end.map(|end| end.saturating_duration_since(one.answered));
            match age {
                _ if one.strict => {
                    self.forgotten_strict += 1;
                    self.problem(format!("{} of a strict popup was forgotten", one.user));
                }
                Some(age) => {
                    let late = age > self.bound;
                    *if late { &mut self.forgotten_late } else { &mut self.forgotten_within } += 1;
                    let (oldest, late_ones) = oldest.entry(one.life).or_default();
                    *oldest = age.max(*oldest);
                    *late_ones += u64::from(late);
                }
                None => {
                    self.forgotten_stored += 1;
                    self.problem(format!("{} was forgotten, whose showing was long stored", one.user));
                }
            }
        }
        for (life, (oldest, late_ones)) in oldest {
            self.oldest_forgotten.push(oldest);
            if late_ones > 0 {
                self.problem(format!(
                    "life {life}: {late_ones} forgotten beyond the bound, the oldest after {oldest:?}"
                ));
            }
        }
        Ok(())
    }

    /// Holds export and counts against what was accepted.
    pub(super) fn hold_events(&mut self, http: &mut HttpClient, reports: &[Told]) -> Result<(), LabError> {
        let mut stored: HashMap<String, ExportedEvent> = HashMap::new();
        let mut by_kind: HashMap<(String, &'static str), u64> = HashMap::new();
        for event in self.export(http)? {
            self.exported += 1;
            *by_kind.entry((event.popup.clone(), kind_of(&event))).or_default() += 1;
            if let Some(first) = stored.insert(event.id.clone(), event) {
                self.doubled += 1;
                self.problem(format!("event {} is there twice", first.id));
            }
        }
        for told in reports {
            self.retries += told.retries;
            self.contradictions += told.contradictions.len() as u64;
            self.problems.extend(told.contradictions.iter().take(PROBLEMS_MAX).cloned());
            for event in &told.accepted {
                self.accepted += 1;
                match stored.remove(&event.id) {
                    None => {
                        self.lost += 1;
                        self.problem(format!("event {}, accepted, is gone", event.id));
                    }
                    Some(kept) => self.compare(event, &kept),
                }
            }
            for event in &told.open {
                self.unanswered_exported += u64::from(stored.remove(&event.id).is_some());
            }
        }
        for event in stored.into_values() {
            self.altered += 1;
            self.problem(format!("event {} was never reported", event.id));
        }
        for (popup, _) in POPUPS {
            let hours = hours_of(http, popup)?;
            let count = |of: fn(&tidings_protocol::http::PopupHour) -> u64| hours.iter().map(of).sum::<u64>();
            for (kind, counted) in [
                ("impression", count(|hour| hour.impressions)),
                ("click", count(|hour| hour.clicks)),
                ("dismiss", count(|hour| hour.dismissals)),
            ] {
                let exported = by_kind.get(&(popup.to_owned(), kind)).copied().unwrap_or_default();
                if counted != exported {
                    self.miscounted += 1;
                    self.problem(format!("{popup}: {counted} of {kind} counted, {exported} exported"));
                }
            }
        }
        Ok(())
    }

    fn compare(&mut self, reported: &Reported, kept: &ExportedEvent) {
        if kind_of(kept) != reported.kind || kept.decision != reported.decision {
            self.altered += 1;
            self.problem(format!("{reported:?} is kept as {kept:?}"));
        }
    }

    /// Everything from before the run until now, in slices of time.
    fn export(&self, http: &mut HttpClient) -> Result<Vec<ExportedEvent>, LabError> {
        let (mut events, end) = (Vec::new(), now_ms() + 1_000);
        let mut from = self.begun_ms.saturating_sub(1_000);
        while from < end {
            let to = from + EXPORT_SLICE_MS;
            let path = format!("/v1/popup-events?from={from}&to={to}&format=jsonl");
            let answer = http.exchange("GET", &path, b"")?;
            if answer.status != 200 {
                return Err(LabError::Server(format!("answered an export with {}", answer.status)));
            }
            for line in answer.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                events.push(serde_json::from_slice(line).map_err(std::io::Error::from)?);
            }
            from = to;
        }
        Ok(events)
    }

    pub(super) fn hold_against(&mut self, odd: BTreeMap<u16, (u64, String)>) {
        for (times, first) in odd.into_values() {
            self.odd += times;
            self.problem(format!("{times} times, the first {first}"));
        }
    }

    fn problem(&mut self, what: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(what);
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        let forgotten = self.forgotten_late + self.forgotten_strict + self.forgotten_stored;
        let events = self.lost + self.doubled + self.altered + self.miscounted + self.contradictions + self.odd;
        // A run in which nothing was answered proves nothing.
        forgotten + events == 0 && self.asked_again > 0 && self.accepted > 0
    }

    fn oldest_ms(&self) -> Vec<f64> {
        self.oldest_forgotten.iter().map(|oldest| oldest.as_secs_f64() * 1000.0).collect()
    }

    pub(super) fn print(&self, kills: usize, seconds: f64) {
        println!("{kills} kills in {seconds:.1} s");
        println!(
            "  decisions    asked again {}  forgotten: within {:?} of a kill {}, longer before {}, strict {}, of earlier lives \
             or before a clean stop {}",
            self.asked_again,
            self.bound,
            self.forgotten_within,
            self.forgotten_late,
            self.forgotten_strict,
            self.forgotten_stored
        );
        let oldest = self.oldest_ms();
        println!("  oldest       forgotten at each kill, in ms before it: {oldest:.0?}");
        println!(
            "  events       accepted {}  exported {} ({} without an answer)  lost {}  doubled {}  altered {}  miscounted {}  \
             contradictions {}  sent again {}  other answers {}",
            self.accepted,
            self.exported,
            self.unanswered_exported,
            self.lost,
            self.doubled,
            self.altered,
            self.miscounted,
            self.contradictions,
            self.retries,
            self.odd
        );
        for problem in &self.problems {
            println!("  ! {problem}");
        }
    }

    pub(super) fn json(&self, kills: usize, seed: u64, seconds: f64, check: &Check) -> Value {
        json!({
            "bench": "popup-crash", "kills": kills, "seed": seed, "seconds": seconds,
            "bound_ms": self.bound.as_millis() as u64, "asked_again": self.asked_again,
            "forgotten": {
                "within_bound": self.forgotten_within, "oldest_ms": self.oldest_ms(),
                "longer_before": self.forgotten_late, "strict": self.forgotten_strict,
                "stored": self.forgotten_stored,
            },
            "events": {
                "accepted": self.accepted, "exported": self.exported, "unanswered_exported": self.unanswered_exported,
                "lost": self.lost, "doubled": self.doubled, "altered": self.altered, "miscounted": self.miscounted,
                "contradictions": self.contradictions, "retries": self.retries, "other_answers": self.odd,
            },
            "passed": self.is_clean(), "problems": self.problems, "check": check,
        })
    }
}

/// Whether the user is shown the popup once more.
fn ask_again(http: &mut HttpClient, one: &Shown) -> Result<bool, LabError> {
    for _ in 0..REFUSED_MAX {
        let answer = http.exchange("POST", "/v1/popups/decide", &question(&one.user, one.placement))?;
        match answer.status {
            200 => return Ok(true),
            204 => return Ok(false),
            429 | 503 => std::thread::sleep(Duration::from_millis(5)),
            status => {
                let said = String::from_utf8_lossy(&answer.body).into_owned();
                return Err(LabError::Server(format!("answered {} with {status}: {said}", one.user)));
            }
        }
    }
    Err(LabError::Server("refused a question for too long".into()))
}

fn kind_of(event: &ExportedEvent) -> &'static str {
    use tidings_protocol::http::PopupEventKind::*;
    match event.kind {
        Impression => "impression",
        Click => "click",
        Button => "button",
        Dismiss => "dismiss",
        Conversion => "conversion",
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

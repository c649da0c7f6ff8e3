//! Compares the exposures and events that the server has stored with its answers.

use super::{
    super::balance::hours_of,
    POPUPS,
    clients::{Exposure, Incarnations, ReportedEvent, ReporterLog, decide_request},
};
use crate::{
    LabError,
    problems::Problems,
    process,
    result::{Check, Layout, Measurement, filled},
};
use rand::{RngExt, rngs::StdRng};
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};
use tidings_client::http::HttpClient;
use tidings_protocol::http::{ExportedEvent, PopupEventKind};

/// The span of time that one request of the export covers.
const EXPORT_SLICE_MS: u64 = 500;
/// How often a request is repeated that is refused with a retryable code.
const REFUSED_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct CrashVerifier {
    bound: Duration,
    begun_ms: u64,
    /// Exposures that were verified by a repeated request.
    asked_again: u64,
    /// Exposures lost in a kill that were answered within the bound before it, which is allowed.
    forgotten_within: u64,
    /// By kill: how long before it the oldest lost exposure was answered.
    oldest_forgotten: Vec<Duration>,
    /// Exposures lost in a kill that were answered longer before it.
    forgotten_late: u64,
    /// Lost exposures of a strict popup.
    forgotten_strict: u64,
    /// Lost exposures of earlier incarnations, or from before a clean stop.
    forgotten_stored: u64,
    accepted: u64,
    exported: u64,
    /// Events that were exported although they were never answered.
    unanswered_exported: u64,
    lost: u64,
    doubled: u64,
    altered: u64,
    miscounted: u64,
    retries: u64,
    contradictions: u64,
    /// Answers with an unexpected status.
    unexpected: u64,
    /// Exposures that were verified once and must stay stored.
    earlier: Vec<Exposure>,
    problems: Vec<String>,
}

impl CrashVerifier {
    pub(super) fn new(bound: Duration) -> Self {
        CrashVerifier { bound, begun_ms: process::unix_ms(), ..CrashVerifier::default() }
    }

    pub(super) fn sample_earlier(&self, random: &mut StdRng, count: usize) -> Vec<Exposure> {
        match self.earlier.len() {
            0 => Vec::new(),
            length => (0..count).map(|_| self.earlier[random.random_range(0..length)].clone()).collect(),
        }
    }

    /// Repeats the requests of exposures of popups that may be shown once. Without `incarnations` all exposures must be stored;
    /// with them, those that were answered within the bound before the kill may be lost.
    pub(super) fn verify_exposures(
        &mut self,
        http: &mut HttpClient,
        exposures: &[Exposure],
        incarnations: Option<&Incarnations>,
    ) -> Result<(), LabError> {
        // By incarnation: losses of one kill are reported together.
        let mut oldest: BTreeMap<usize, (Duration, u64)> = BTreeMap::new();
        for one in exposures {
            self.asked_again += 1;
            if !ask_again(http, one)? {
                if incarnations.is_some() {
                    self.earlier.push(one.clone());
                }
                continue;
            }
            // An answer that was read after the kill was sent before it.
            let end = incarnations.and_then(|incarnations| incarnations.kill_time(one.incarnation));
            let age = end.map(|end| end.saturating_duration_since(one.answered));
            match age {
                _ if one.strict => {
                    self.forgotten_strict += 1;
                    self.problems.note(format!("{} of a strict popup was forgotten", one.user));
                }
                Some(age) => {
                    let late = age > self.bound;
                    *if late { &mut self.forgotten_late } else { &mut self.forgotten_within } += 1;
                    let (oldest, late_ones) = oldest.entry(one.incarnation).or_default();
                    *oldest = age.max(*oldest);
                    *late_ones += u64::from(late);
                }
                None => {
                    self.forgotten_stored += 1;
                    self.problems.note(format!("{} was forgotten, whose showing was long stored", one.user));
                }
            }
        }
        for (incarnation, (oldest, late_ones)) in oldest {
            self.oldest_forgotten.push(oldest);
            if late_ones > 0 {
                self.problems.note(format!(
                    "life {incarnation}: {late_ones} forgotten beyond the bound, the oldest after {oldest:?}"
                ));
            }
        }
        Ok(())
    }

    /// Compares the exported events and the counts with the events that were accepted.
    pub(super) fn verify_events(&mut self, http: &mut HttpClient, reports: &[ReporterLog]) -> Result<(), LabError> {
        let mut stored: HashMap<String, ExportedEvent> = HashMap::new();
        let mut by_kind: HashMap<(String, PopupEventKind), u64> = HashMap::new();
        for event in self.export(http)? {
            self.exported += 1;
            *by_kind.entry((event.popup.clone(), event.kind)).or_default() += 1;
            if let Some(first) = stored.insert(event.id.clone(), event) {
                self.doubled += 1;
                self.problems.note(format!("event {} is there twice", first.id));
            }
        }
        for log in reports {
            self.retries += log.retries;
            self.contradictions += log.contradictions.len() as u64;
            log.contradictions.iter().for_each(|what| self.problems.note(what.clone()));
            for event in &log.accepted {
                self.accepted += 1;
                match stored.remove(&event.id) {
                    None => {
                        self.lost += 1;
                        self.problems.note(format!("event {}, accepted, is lost", event.id));
                    }
                    Some(kept) => self.compare(event, &kept),
                }
            }
            for event in &log.open {
                self.unanswered_exported += u64::from(stored.remove(&event.id).is_some());
            }
        }
        for event in stored.into_values() {
            self.altered += 1;
            self.problems.note(format!("event {} was never reported", event.id));
        }
        for (popup, _) in POPUPS {
            let hours = hours_of(http, popup)?;
            let count = |of: fn(&tidings_protocol::http::PopupHour) -> u64| hours.iter().map(of).sum::<u64>();
            for (kind, counted) in [
                (PopupEventKind::Impression, count(|hour| hour.impressions)),
                (PopupEventKind::Click, count(|hour| hour.clicks)),
                (PopupEventKind::Dismiss, count(|hour| hour.dismissals)),
            ] {
                let exported = by_kind.get(&(popup.to_owned(), kind)).copied().unwrap_or_default();
                if counted != exported {
                    self.miscounted += 1;
                    self.problems.note(format!("{popup}: {counted} of {kind:?} counted, {exported} exported"));
                }
            }
        }
        Ok(())
    }

    fn compare(&mut self, reported: &ReportedEvent, kept: &ExportedEvent) {
        if kept.kind != reported.kind || kept.decision != reported.decision {
            self.altered += 1;
            self.problems.note(format!("{reported:?} is kept as {kept:?}"));
        }
    }

    /// Exports all events from before the run until now, in slices of time.
    fn export(&self, http: &mut HttpClient) -> Result<Vec<ExportedEvent>, LabError> {
        let (mut events, end) = (Vec::new(), process::unix_ms() + 1_000);
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

    pub(super) fn add_unexpected_answers(&mut self, unexpected: BTreeMap<u16, (u64, String)>) {
        for (times, first) in unexpected.into_values() {
            self.unexpected += times;
            self.problems.note(format!("{times} times, the first {first}"));
        }
    }

    fn is_clean(&self) -> bool {
        let forgotten = self.forgotten_late + self.forgotten_strict + self.forgotten_stored;
        let events = self.lost + self.doubled + self.altered + self.miscounted + self.contradictions + self.unexpected;
        // A run without verified exposures and accepted events proves nothing.
        forgotten + events == 0 && self.asked_again > 0 && self.accepted > 0
    }

    fn oldest_ms(&self) -> Vec<f64> {
        self.oldest_forgotten.iter().map(|oldest| oldest.as_secs_f64() * 1000.0).collect()
    }

    pub(super) fn measured(&self, kills: usize, seed: u64, seconds: f64) -> Measurement {
        let figures = json!({
            "kills": kills, "seed": seed, "seconds": seconds,
            "bound_ms": self.bound.as_millis() as u64, "asked_again": self.asked_again,
            "forgotten": {
                "within_bound": self.forgotten_within, "oldest_ms": self.oldest_ms(),
                "longer_before": self.forgotten_late, "strict": self.forgotten_strict,
                "stored": self.forgotten_stored,
            },
            "events": {
                "accepted": self.accepted, "exported": self.exported, "unanswered_exported": self.unanswered_exported,
                "lost": self.lost, "doubled": self.doubled, "altered": self.altered, "miscounted": self.miscounted,
                "contradictions": self.contradictions, "retries": self.retries, "other_answers": self.unexpected,
            },
            "passed": self.is_clean(), "problems": self.problems,
        });
        let bound =
            "every accepted event is stored once, and no exposure is forgotten that was answered longer before a kill";
        let check = Check::of_server("events and exposures", bound, self.is_clean());
        let value = filled(
            "events {events.accepted}, lost {events.lost}, doubled {events.doubled}; forgotten {forgotten}",
            &figures,
        );
        let title = format!("{kills} kills in {seconds:.1} s");
        Measurement::of(&title, &figures).layout(&LAYOUT).check(check.value(value))
    }
}

const LAYOUT: Layout = Layout {
    lines: &[
        (
            "decisions",
            "asked again {asked_again}  forgotten: within {bound_ms} ms of a kill {forgotten.within_bound}, longer before \
             {forgotten.longer_before}, strict {forgotten.strict}, of earlier lives or before a clean stop {forgotten.stored}",
        ),
        ("oldest", "forgotten at each kill, in ms before it: {forgotten.oldest_ms}"),
        (
            "events",
            "accepted {events.accepted}  exported {events.exported} ({events.unanswered_exported} without an answer)  lost \
             {events.lost}  doubled {events.doubled}  altered {events.altered}  miscounted {events.miscounted}  contradictions \
             {events.contradictions}  sent again {events.retries}  other answers {events.other_answers}",
        ),
    ],
    percentiles: &[],
};

/// Repeats the request of an exposure; returns whether the popup is shown once more.
fn ask_again(http: &mut HttpClient, one: &Exposure) -> Result<bool, LabError> {
    for _ in 0..REFUSED_MAX {
        let answer = http.exchange("POST", "/v1/popups/decide", &decide_request(&one.user, one.placement))?;
        match answer.status {
            200 => return Ok(true),
            204 => return Ok(false),
            429 | 503 => std::thread::sleep(Duration::from_millis(5)),
            status => {
                let body = String::from_utf8_lossy(&answer.body).into_owned();
                return Err(LabError::Server(format!("answered {} with {status}: {body}", one.user)));
            }
        }
    }
    Err(LabError::Server("refused a question for too long".into()))
}

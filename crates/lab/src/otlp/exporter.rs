//! The thread that sends what the run reported, every second, and once more at its end.
//!
//! All counts are cumulative, so that an export says all that those before it said: one that cannot be sent is dropped, and
//! nothing is kept for it.

use super::{
    QUEUE, Queue,
    encoding::request_of,
    parts::{Parts, Report, now_ns},
};
use crate::{LabError, lock::lock};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use prost::Message;
use reqwest::{Url, blocking::Client, redirect::Policy};
use std::{
    error::Error,
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

const INTERVAL: Duration = Duration::from_secs(1);
/// A collector that takes longer counts as not having received the export. A run ends at most two of these later than without a collector: one for
/// the export that is under way, one for the last.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Reports that wait while an export is under way. Parts tell some ten a second each, so that this is enough for fifty of them.
const REPORTS_MAX: usize = 1024;
/// Of an answer, which is a message of a few bytes.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Sends the run's figures for as long as it lives. Dropping it sends the last of them, and says what could not be sent.
#[derive(Debug)]
pub(crate) struct Exporter {
    /// What the thread says at its end.
    exports: mpsc::Receiver<Exports>,
    reports_dropped: Arc<AtomicU64>,
}

/// What came of all exports.
#[derive(Debug, Default)]
struct Exports {
    due: u64,
    sent: u64,
    /// Why the latest one that was not sent was not.
    why: String,
}

impl Exporter {
    /// `url` is that of the collector, without `/v1/metrics`.
    pub(crate) fn start(url: &str, run_id: &str) -> Result<Self, LabError> {
        let wrong = |why: String| LabError::Usage(format!("--otlp {url}: {why}"));
        let mut address = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
        if !["http", "https"].contains(&address.scheme()) {
            return Err(wrong("the URL of a collector begins with http:// or https://".into()));
        }
        address.set_path(&format!("{}/v1/metrics", address.path().trim_end_matches('/')));
        // Err: it is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .timeout(TIMEOUT)
            .redirect(Policy::none())
            .build()
            .map_err(|error| wrong(in_words(&error)))?;
        let (sender, reports) = mpsc::sync_channel(REPORTS_MAX);
        let run_id = run_id.to_owned();
        let (tell_exports, exports) = mpsc::sync_channel(1);
        std::thread::Builder::new().name("otlp".into()).spawn(move || {
            let _ = tell_exports.send(export_until_end(&reports, |parts| send(&client, &address, parts, &run_id)));
        })?;
        let reports_dropped = Arc::new(AtomicU64::new(0));
        *lock(&QUEUE) = Some(Queue { reports: sender, dropped: reports_dropped.clone() });
        Ok(Exporter { exports, reports_dropped })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // The thread ends when nobody can tell it anything more.
        *lock(&QUEUE) = None;
        // A collector that sends its answer byte by byte, or a name that is not resolved, takes longer: the thread is left to itself then.
        match self.exports.recv_timeout(2 * TIMEOUT) {
            Ok(Exports { due, sent, why }) if sent < due => {
                eprintln!("--otlp: {} of {due} exports were not sent: {why}", due - sent);
            }
            Ok(_) => {}
            Err(_) => eprintln!("--otlp: the last export was not sent: the collector takes too long"),
        }
        let reports = self.reports_dropped.load(Ordering::Relaxed);
        if reports > 0 {
            eprintln!(
                "--otlp: {reports} reports found no room while an export was under way: what was sent lacks them"
            );
        }
    }
}

/// Exports every second, and what is left when nobody can tell anything more.
fn export_until_end(reports: &mpsc::Receiver<Report>, mut send: impl FnMut(&Parts) -> Result<(), String>) -> Exports {
    let (mut parts, mut exports) = (Parts::default(), Exports::default());
    let mut next = Instant::now() + INTERVAL;
    loop {
        let is_over = match reports.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(report) => {
                parts.take(report);
                // Reports that come without a pause do not put an export off.
                if Instant::now() < next {
                    continue;
                }
                false
            }
            Err(mpsc::RecvTimeoutError::Timeout) => false,
            Err(mpsc::RecvTimeoutError::Disconnected) => true,
        };
        reports.try_iter().take(REPORTS_MAX).for_each(|report| parts.take(report));
        exports.due += 1;
        parts.add_up();
        match send(&parts) {
            Ok(()) => {
                exports.sent += 1;
                parts.forget_what_is_over();
            }
            Err(why) => exports.why = why,
        }
        if is_over {
            return exports;
        }
        next += INTERVAL;
        // While one was under way others were due. They are skipped: the next says all that they would have said.
        while next <= Instant::now() {
            (exports.due, next) = (exports.due + 1, next + INTERVAL);
            if exports.why.is_empty() {
                exports.why = "the one before took longer than a second".into();
            }
        }
    }
}

fn send(client: &Client, address: &Url, parts: &Parts, run_id: &str) -> Result<(), String> {
    let body = request_of(parts, run_id, now_ns()).encode_to_vec();
    let request = client.post(address.clone()).header("content-type", "application/x-protobuf").body(body);
    let answer = request.send().map_err(|error| in_words(&error.without_url()))?;
    if !answer.status().is_success() {
        return Err(format!("the collector answered {}", answer.status()));
    }
    let mut bytes = Vec::new();
    answer.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    // A collector may answer with nothing, or in another encoding: the status is what counts.
    let refused = ExportMetricsServiceResponse::decode(&*bytes).ok().and_then(|answer| answer.partial_success);
    match refused.filter(|refused| refused.rejected_data_points > 0) {
        Some(refused) => Err(format!("the collector refused points: {}", refused.error_message)),
        None => Ok(()),
    }
}

/// An error with its causes, of which the last says most.
fn in_words(error: &reqwest::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_last_is_sent_at_the_end_and_again_what_could_not_be_sent() {
        let (sender, reports) = mpsc::sync_channel(REPORTS_MAX);
        let began = |title: &str| Report::Began { title: title.into(), at_ns: 0 };
        let ended = |title: &str| Report::Ended { title: title.into(), counters: [("sent", 1)].into() };
        for report in [Report::Scenario { name: "s".into(), seed: None }, began("a"), ended("a"), began("b")] {
            assert!(sender.send(report).is_ok());
        }
        let (tell_names, names) = mpsc::sync_channel(REPORTS_MAX);
        let thread = std::thread::spawn(move || {
            let mut is_first = true;
            export_until_end(&reports, |parts| {
                let names = parts.scenarios.iter().flat_map(|scenario| &scenario.parts).map(|part| part.name.clone());
                let _ = tell_names.send(names.collect::<Vec<String>>());
                if std::mem::take(&mut is_first) { Err("refused".into()) } else { Ok(()) }
            })
        });
        for _ in 0..2 {
            assert_eq!(names.recv(), Ok(vec!["a".into(), "b".into()]), "what is over is sent until it has arrived");
        }
        assert!(sender.send(ended("b")).is_ok());
        drop(sender);
        let later: Vec<Vec<String>> = names.iter().collect();
        assert!(later.iter().flatten().all(|name| name == "b"), "{later:?}");
        assert!(later.iter().any(|names| !names.is_empty()), "{later:?}");
        let exports = thread.join().unwrap_or_default();
        assert_eq!((exports.sent, &*exports.why), (1 + later.len() as u64, "refused"));
    }

    #[test]
    fn an_invalid_url_is_wrong_usage() {
        for url in ["localhost:4318", "ftp://h", "http://"] {
            assert!(
                matches!(Exporter::start(url, "r"), Err(LabError::Usage(why)) if why.starts_with("--otlp")),
                "{url}"
            );
        }
    }
}

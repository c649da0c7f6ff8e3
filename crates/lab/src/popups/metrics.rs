//! Reads the server's own counters at its public `/metrics`.

use crate::LabError;
use serde::Serialize;
use tidings_client::http::HttpClient;

/// The counters that a run reports, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct ServerMetrics {
    pub(crate) decisions: f64,
    pub(crate) store_reads: f64,
    pub(crate) store_busy_seconds: f64,
    pub(crate) users: f64,
}

impl ServerMetrics {
    /// Reads the counters; those that the server does not have are 0.
    pub(crate) fn read(http: &mut HttpClient) -> Result<Self, LabError> {
        let answer = http.exchange("GET", "/metrics", b"")?;
        Ok(ServerMetrics::of(&String::from_utf8_lossy(&answer.body)))
    }

    fn of(text: &str) -> Self {
        ServerMetrics {
            decisions: sum(text, "tidings_popup_decisions_total"),
            store_reads: sum(text, "tidings_popup_store_reads_total"),
            store_busy_seconds: sum(text, "tidings_popup_store_busy_seconds_total"),
            users: sum(text, "tidings_popup_users"),
        }
    }

    pub(crate) fn since(&self, before: &ServerMetrics) -> ServerMetrics {
        let mut since = *self;
        counts!(since -= before: decisions, store_reads, store_busy_seconds);
        since
    }

    /// Store reads per 1,000 decisions.
    pub(crate) fn reads_per_thousand(&self) -> f64 {
        self.store_reads * 1000.0 / self.decisions.max(1.0)
    }
}

/// The sum of a metric over all its labels.
fn sum(text: &str, name: &str) -> f64 {
    text.lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with(['{', ' ']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        })
        .fold(0.0, |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels_without_longer_names() {
        let text = "# HELP tidings_popup_users x\ntidings_popup_users 3\ntidings_popup_users_max 9\n\
                    tidings_popup_decisions_total{outcome=\"shown\"} 2\ntidings_popup_decisions_total{outcome=\"nothing\"} 5\n";
        let metrics = ServerMetrics::of(text);
        assert_eq!((metrics.users, metrics.decisions), (3.0, 7.0));
    }
}

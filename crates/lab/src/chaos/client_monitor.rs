//! Monitors the group's clients during a step.

use crate::{
    lock::lock,
    worker_protocol::{Progress, RefusalCounts},
};
use serde::Serialize;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// The cluster counts as healthy after so many consecutive healthy reports, of which four come a second.
const HEALTHY_REPORTS: u32 = 6;

/// Reads the load client's reports of progress, and says whether the cluster is healthy.
#[derive(Debug)]
pub(super) struct ClientMonitor {
    started: Instant,
    state: Mutex<MonitorState>,
    stop: AtomicBool,
}

impl Default for ClientMonitor {
    fn default() -> Self {
        ClientMonitor { started: Instant::now(), state: Mutex::default(), stop: AtomicBool::new(false) }
    }
}

#[derive(Debug, Default)]
struct MonitorState {
    committed: u64,
    healthy_in_row: u32,
    last_unhealthy: Option<Instant>,
    pause_ms: f64,
    reconnects: u64,
    refused: RefusalCounts,
}

/// The impact of a step's faults on the group's clients.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ClientImpact {
    /// The longest gap between two deliveries to one member.
    pub(super) pause_ms: f64,
    pub(super) reconnects: u64,
    pub(super) refused: RefusalCounts,
    /// Seconds from the injection to the last report in which a member lagged or no message was committed.
    pub(super) disturbed_s: f64,
    /// The same from the reversal; 0: the cluster was healthy by then.
    pub(super) healed_s: f64,
}

impl ClientMonitor {
    /// Records a report. Returns whether the load should stop.
    pub(super) fn record_progress(&self, progress: &Progress) -> bool {
        let mut state = lock(&self.state);
        // Unhealthy: a member lacks an entry that another had a quarter of a second ago, or no message was committed.
        let healthy = progress.lagging == 0 && progress.committed > state.committed;
        if healthy {
            state.healthy_in_row += 1;
        } else {
            (state.healthy_in_row, state.last_unhealthy) = (0, Some(Instant::now()))
        }
        state.committed = progress.committed;
        state.pause_ms = state.pause_ms.max(progress.pause_ms);
        (state.reconnects, state.refused) = (progress.reconnects, progress.refused.clone());
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether no member has lagged and messages were committed for long enough.
    pub(super) fn is_healthy(&self) -> bool {
        lock(&self.state).healthy_in_row >= HEALTHY_REPORTS
    }

    /// The fault begins: its impact is measured from now on.
    pub(super) fn start_fault(&self) {
        let mut state = lock(&self.state);
        (state.healthy_in_row, state.pause_ms, state.last_unhealthy) = (0, 0.0, None);
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// Whether no member of the group has lost a connection in this phase.
    pub(super) fn no_client_reconnected(&self) -> bool {
        lock(&self.state).reconnects == 0
    }

    /// Restarts the check for health: earlier reports no longer count.
    pub(super) fn restart_recovery_check(&self) {
        lock(&self.state).healthy_in_row = 0;
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn impact(&self, injected: Instant, revert_began: Instant) -> ClientImpact {
        let state = lock(&self.state);
        let since =
            |start: Instant| state.last_unhealthy.map_or(0.0, |bad| bad.saturating_duration_since(start).as_secs_f64());
        ClientImpact {
            pause_ms: state.pause_ms,
            reconnects: state.reconnects,
            refused: state.refused.clone(),
            disturbed_s: since(injected),
            healed_s: since(revert_began),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(committed: u64, lagging: u64) -> Progress {
        Progress { committed, lagging, ..Progress::default() }
    }

    #[test]
    fn the_cluster_is_healthy_after_some_reports_without_lag_and_with_commits() {
        let monitor = ClientMonitor::default();
        let mut committed = 0;
        let mut report = |grows: u64, lagging: u64, times: u32| {
            for _ in 0..times {
                committed += grows;
                assert!(!monitor.record_progress(&progress(committed, lagging)));
            }
            monitor.is_healthy()
        };
        assert!(!report(1, 0, HEALTHY_REPORTS - 1));
        assert!(report(1, 0, 1));
        assert!(!report(1, 1, HEALTHY_REPORTS), "a member lags");
        assert!(!report(0, 0, HEALTHY_REPORTS), "nothing is committed");
        assert!(report(1, 0, HEALTHY_REPORTS));
        monitor.stop();
        assert!(monitor.record_progress(&progress(0, 0)));
    }
}

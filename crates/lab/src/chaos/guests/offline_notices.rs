//! Changes of presence that watching sessions received, and wrong ones among them: guests called offline while connected.

use super::device_handle::DeviceHandle;
use crate::lock::lock;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// The most notices that are kept: more would add nothing to the report.
const NOTICES_MAX: usize = 1_000;

/// A user was announced as offline while a device of that user had a session.
#[derive(Debug)]
struct OfflineNotice {
    user: String,
    /// When that session began.
    since: Instant,
    at: Instant,
    node: usize,
}

#[derive(Debug, Default)]
pub(super) struct OfflineNotices {
    notices: Mutex<Vec<OfflineNotice>>,
    /// All changes of presence that were received in this step.
    changes: AtomicU64,
}

impl OfflineNotices {
    /// Records changes that a watching session on this node received.
    pub(super) fn record(&self, changes: Vec<(String, bool)>, devices: &[DeviceHandle], node: usize) {
        self.changes.fetch_add(changes.len() as u64, Ordering::Relaxed);
        for (user, _) in changes.into_iter().filter(|(_, online)| !online) {
            let devices = devices.iter().filter(|handle| handle.user == user);
            let since = devices.filter_map(DeviceHandle::bound_since).min();
            let mut notices = lock(&self.notices);
            if let Some(since) = since
                && notices.len() < NOTICES_MAX
            {
                notices.push(OfflineNotice { user, since, at: Instant::now(), node });
            }
        }
    }

    /// The notices after the fault about users whose session began before it.
    pub(super) fn since_before(&self, injected: Instant) -> Vec<String> {
        let notices = lock(&self.notices);
        let stayed = notices.iter().filter(|notice| notice.since <= injected && notice.at >= injected);
        let after = |notice: &OfflineNotice| notice.at.saturating_duration_since(injected).as_secs_f64();
        stayed
            .map(|notice| format!("{} to a session on node {} after {:.1} s", notice.user, notice.node, after(notice)))
            .collect()
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(super) fn clear(&self) {
        lock(&self.notices).clear();
        self.changes.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::device_handle::GuestProtocol, *};

    #[test]
    fn only_users_connected_since_before_the_fault_are_reported() {
        let devices = [
            DeviceHandle::new("ann", "web", GuestProtocol::WebSocket, 0),
            DeviceHandle::new("bob", "web", GuestProtocol::WebSocket, 0),
        ];
        devices[0].record_bound(true);
        let injected = Instant::now();
        devices[1].record_bound(true);
        let notices = OfflineNotices::default();
        let of = |user: &str, online| vec![(user.to_owned(), online)];
        notices.record(of("ann", true), &devices, 0);
        notices.record(of("bob", false), &devices, 0);
        assert_eq!(notices.since_before(injected), Vec::<String>::new(), "online, or connected only since the fault");
        notices.record(of("ann", false), &devices, 2);
        assert!(
            notices.since_before(injected)[0].starts_with("ann to a session on node 2"),
            "{:?}",
            notices.since_before(injected)
        );
        devices[0].record_end();
        notices.clear();
        notices.record(of("ann", false), &devices, 0);
        assert_eq!(notices.since_before(injected), Vec::<String>::new(), "gone");
    }
}

//! Devices that come by a profile, stay for a while, and go.

use super::DevicePool;
use crate::{
    client_engine::reactor::Reactor,
    device_worker::{connect_schedule::ConnectSchedule, device::DeviceState},
    rate_profile::{PlannedTimes, RateProfile},
};

/// How long visitors stay; unset: until they are disconnected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visits {
    pub(super) stay_ns: Option<u64>,
}

impl DevicePool {
    /// Has devices come by a profile, and go. They begin a new measurement, of everything.
    pub(crate) fn visit(&mut self, at_ns: u64, profile: &RateProfile, stay_ms: Option<u64>) {
        self.reset_measurement(at_ns);
        self.counts.disconnects.clear();
        self.counts.problems.clear();
        self.counts.client_failures = 0;
        self.visits = Some(Visits { stay_ns: stay_ms.map(|ms| ms * 1_000_000) });
        let free = self.take_unconnected();
        self.schedule = ConnectSchedule::planned(at_ns, PlannedTimes::of(profile), self.config.worker, free);
    }

    /// Whether all visitors that were due have come, or failed to.
    pub(crate) fn have_all_come(&self) -> bool {
        self.schedule.is_over() && self.connecting == 0
    }

    /// The time of a visitor is over. Live => Queued.
    pub(super) fn leave(&mut self, reactor: &mut Reactor, index: usize) {
        reactor.close(index);
        let device = &mut self.devices[index];
        self.counts.heartbeats_cut_off += u64::from(device.heartbeat_sent_ns != 0);
        (device.heartbeat_sent_ns, device.state) = (0, DeviceState::Queued);
        self.counts.live -= 1;
        self.schedule.free(index as u32);
    }
}

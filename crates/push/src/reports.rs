//! What sessions were written and have acknowledged, summed where they are: the worker takes one set of devices per push.

use roaring::RoaringBitmap;
use tidings_domain::push_store::DeviceNo;

/// A push, and a device that was written it or has acknowledged it.
pub(crate) type Report = (u64, DeviceNo);

/// Reports about pushes, collected until they are handed to the worker.
#[derive(Debug, Default)]
pub struct PushReports {
    pub(crate) written: Vec<Report>,
    pub(crate) acknowledged: Vec<Report>,
}

impl PushReports {
    /// The push was written to the device's connection.
    pub fn add_written(&mut self, push: u64, device: DeviceNo) {
        self.written.push((push, device));
    }

    /// The device has acknowledged these pushes.
    pub fn add_acknowledged(&mut self, device: DeviceNo, pushes: &[u64]) {
        self.acknowledged.extend(pushes.iter().map(|push| (*push, device)));
    }

    /// The number of devices in all reports.
    pub fn len(&self) -> usize {
        self.written.len() + self.acknowledged.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn append(&mut self, mut others: PushReports) {
        self.written.append(&mut others.written);
        self.acknowledged.append(&mut others.acknowledged);
    }
}

/// Calls `each` with every push, in the order of numbers, and its devices in the order of theirs.
pub(crate) fn by_push(mut reports: Vec<Report>, mut each: impl FnMut(u64, &[Report])) {
    reports.sort_unstable();
    reports.dedup();
    for of_push in reports.chunk_by(|one, next| one.0 == next.0) {
        each(of_push[0].0, of_push);
    }
}

pub(crate) fn devices_of(reports: &[Report]) -> RoaringBitmap {
    reports.iter().map(|(_, device)| device.0).collect()
}

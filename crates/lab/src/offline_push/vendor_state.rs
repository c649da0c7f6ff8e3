//! How the doubles of vendors answer: they accept, refuse, or keep requests waiting, each until it is told otherwise.

use super::notice::OfflineRoad;
use std::sync::atomic::{AtomicU8, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VendorState {
    Accepts,
    /// 503.
    Refuses,
    /// Requests get no answer.
    Hangs,
}

/// The state of each vendor.
#[derive(Debug, Default)]
pub(crate) struct VendorStates([AtomicU8; 3]);

impl VendorStates {
    fn of(&self, vendor: OfflineRoad) -> Option<&AtomicU8> {
        let place = OfflineRoad::VENDORS.iter().position(|known| *known == vendor)?;
        self.0.get(place)
    }

    pub(crate) fn set(&self, vendor: OfflineRoad, state: VendorState) {
        let code = match state {
            VendorState::Accepts => 0,
            VendorState::Refuses => 1,
            VendorState::Hangs => 2,
        };
        if let Some(place) = self.of(vendor) {
            place.store(code, Ordering::Release);
        }
    }

    pub(crate) fn get(&self, vendor: OfflineRoad) -> VendorState {
        match self.of(vendor).map(|place| place.load(Ordering::Acquire)) {
            Some(1) => VendorState::Refuses,
            Some(2) => VendorState::Hangs,
            _ => VendorState::Accepts,
        }
    }
}

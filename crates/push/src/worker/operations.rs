//! What the operations of the HTTP API ask of the worker.

use super::Worker;
use crate::{audience::DeviceSets, draft::Draft};
use roaring::RoaringBitmap;
use tidings_domain::{model::UserNo, push_store::*, refusals::store_refusal, store::StoreResult};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{DeviceDetails, PushCounts},
};

impl Worker {
    /// Cancels a push unless it has ended; one that is cancelled already stays so.
    pub(crate) fn cancel_push(&mut self, push: u64) -> Result<(), Refusal> {
        let stored = self.stored_push(push).map_err(store_refusal)?;
        match stored.filter(|stored| stored.stage != PushStage::Preparing) {
            None => Err(Refusal::not_found("push", &push.to_string())),
            Some(stored) if matches!(stored.stage, PushStage::Scheduled | PushStage::Running) => {
                self.jobs.remove(&push);
                self.cancel(stored).map_err(store_refusal)
            }
            Some(stored) if stored.stage == PushStage::Cancelled => Ok(()),
            Some(_) => Err(has_ended(push)),
        }
    }

    /// The counts of a running push to many; `None` if it does not run.
    pub(crate) fn counts_of_running(&self, push: u64, stage: PushStage) -> Option<PushCounts> {
        let audience = self.audiences.get(&push)?;
        Some(audience.sets.counts(stage, self.devices.online()))
    }

    /// The sets of a running push to many; `None` if it does not run.
    pub(crate) fn sets_of_running(&self, push: u64) -> Option<&DeviceSets> {
        self.audiences.get(&push).map(|audience| &audience.sets)
    }

    /// How many of these devices have no session.
    pub(crate) fn count_offline(&self, devices: &RoaringBitmap) -> u64 {
        devices.difference_len(self.devices.online())
    }

    fn require_device(&self, user: UserNo, device_id: &str) -> Result<DeviceNo, Refusal> {
        self.devices.find(user, device_id).ok_or_else(|| Refusal::not_found("device", device_id))
    }

    pub(crate) fn device_details(&self, user: UserNo) -> Result<Vec<DeviceDetails>, Refusal> {
        let all_details = self.numbered_device_details(user).map_err(store_refusal)?;
        Ok(all_details.into_iter().map(|(_, details)| details).collect())
    }

    /// The devices of a user with their numbers, in the order of their ids.
    pub(crate) fn numbered_device_details(&self, user: UserNo) -> StoreResult<Vec<(DeviceNo, DeviceDetails)>> {
        let mut all_details = Vec::new();
        for device in self.devices.of_user(user) {
            if let Some(row) = self.device_row(device)? {
                all_details.push((device, self.details_of(row)));
            }
        }
        all_details.sort_unstable_by(|(_, a), (_, b)| a.device_id.cmp(&b.device_id));
        Ok(all_details)
    }

    fn details_of(&self, row: StoredDevice) -> DeviceDetails {
        DeviceDetails {
            online: self.devices.session(row.no).is_some(),
            last_bound: self.devices.bound_ms(row.no).max(row.first_bound),
            pending: self.devices.pending(row.no) as u64,
            device_id: row.device_id,
            device_kind: row.device_kind,
            app_version: row.app_version,
            tags: row.tags,
            first_bound: row.first_bound,
        }
    }

    pub(crate) fn set_tags(
        &mut self,
        user: UserNo,
        device_id: &str,
        tags: Vec<String>,
    ) -> Result<DeviceDetails, Refusal> {
        let device = self.require_device(user, device_id)?;
        self.devices.check_tags(&tags)?;
        let row = self.device_row(device).map_err(store_refusal)?;
        let row = row.map(|row| StoredDevice { tags, ..row }).ok_or_else(|| Refusal::not_found("device", device_id))?;
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        draft.put(PushRow::Device(row.clone()));
        self.store_draft(draft).map_err(store_refusal)?;
        self.devices.put(&row);
        Ok(self.details_of(row))
    }

    pub(crate) fn remove_named_device(&mut self, user: UserNo, device_id: &str) -> Result<(), Refusal> {
        let device = self.require_device(user, device_id)?;
        self.remove_device(device).map_err(store_refusal)
    }
}

/// The refusal for a push that cannot be cancelled any more.
pub(crate) fn has_ended(push: u64) -> Refusal {
    Refusal::new(ErrorCode::Conflict, format!("push {push} has ended"))
}

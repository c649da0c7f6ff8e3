//! The status of a push: counts, and the state on each device.

use crate::{PushHandle, audience::DeviceSets, fallback::sent_by, user_delivery::state_of_target, worker::state_of};
use roaring::RoaringBitmap;
use tidings_domain::{
    model::UserNo,
    push_store::*,
    refusals::store_refusal,
    store::{StoreError, StoreResult},
};
use tidings_protocol::{error::Refusal, http::*, limits::PUSH_DEVICES_PAGE_MAX};

/// Targets in one read.
const TARGETS_PER_PAGE: usize = 1_000;

impl PushHandle {
    /// A push's state and counts, which may be a flush behind. Blocks.
    ///
    /// # Errors
    /// `not_found` for a push that was never accepted, or is purged; else as [`Self::settle`].
    pub fn status(&self, push: u64) -> Result<PushStatus, Refusal> {
        let stored = self.stored_push(push)?;
        let counts = if stored.to_many { self.counts_to_many(&stored)? } else { self.counts_named(&stored)? };
        let fallback = self.fallback_status(push).map_err(store_refusal)?;
        let done = stored.stage == PushStage::Running && counts.pending == 0;
        Ok(PushStatus {
            push,
            state: if done { PushState::Completed } else { state_of(stored.stage) },
            content_type: stored.content_type,
            priority: if stored.high { PushPriority::High } else { PushPriority::Normal },
            collapse_key: stored.collapse_key,
            client_push_id: stored.client_push_id,
            accepted_at: stored.accepted_at,
            send_at: stored.send_at,
            started_at: stored.started_at,
            expires_at: stored.expires_at,
            ended_at: stored.ended_at,
            counts,
            fallback,
            refused_full: u64::from(stored.refused_full),
            unknown: u64::from(stored.unknown),
        })
    }

    pub(crate) fn stored_push(&self, push: u64) -> Result<StoredPush, Refusal> {
        match self.store.push_row(&PushKey::Push(push)).map_err(store_refusal)? {
            Some(PushRow::Push(stored)) if stored.stage != PushStage::Preparing => Ok(stored),
            _ => Err(Refusal::not_found("push", &push.to_string())),
        }
    }

    fn counts_to_many(&self, stored: &StoredPush) -> Result<PushCounts, Refusal> {
        let (push, stage) = (stored.push, stored.stage);
        match self.ask(move |worker| worker.counts_of_running(push, stage))? {
            Some(counts) => Ok(counts),
            None => {
                // The push ended between the two reads, or before: its state is read again.
                let stage = self.stored_push(push)?.stage;
                let sets = DeviceSets::read(&*self.store, push).map_err(store_refusal)?;
                Ok(sets.counts(stage, &RoaringBitmap::new()))
            }
        }
    }

    fn counts_named(&self, stored: &StoredPush) -> Result<PushCounts, Refusal> {
        let mut counts = PushCounts::default();
        let mut pending = RoaringBitmap::new();
        let mut next = 0;
        loop {
            let targets = self.targets(stored.push, next, TARGETS_PER_PAGE).map_err(store_refusal)?;
            for target in &targets {
                next = target.device.0 + 1;
                counts.targets += 1;
                counts.delivered += u64::from(target.delivered_at.is_some());
                match target.state {
                    TargetState::Pending => drop(pending.insert(target.device.0)),
                    TargetState::Acknowledged => counts.acknowledged += 1,
                    TargetState::Expired => counts.expired += 1,
                    TargetState::Collapsed => counts.collapsed += 1,
                    TargetState::Cancelled => counts.cancelled += 1,
                }
            }
            if targets.len() < TARGETS_PER_PAGE {
                break;
            }
        }
        counts.pending = pending.len();
        if counts.pending > 0 {
            counts.offline = self.ask(move |worker| worker.count_offline(&pending))?;
        }
        Ok(counts)
    }

    fn targets(&self, push: u64, from: u32, limit: usize) -> StoreResult<Vec<StoredTarget>> {
        let (first, last) = (PushKey::Target(push, DeviceNo(from)), PushKey::Target(push, DeviceNo(u32::MAX)));
        let rows = self.store.push_rows(&first, &last, limit)?;
        let target = |row| if let PushRow::Target(target) = row { Some(target) } else { None };
        Ok(rows.into_iter().filter_map(target).collect())
    }

    /// A page of a push's devices in the order of their numbers: those behind `after`. Blocks.
    ///
    /// # Errors
    /// `not_found` as [`Self::status`], `limit_exceeded` for too large a page.
    pub fn devices(
        &self,
        push: u64,
        state: Option<DeviceState>,
        after: Option<u32>,
        limit: usize,
    ) -> Result<PushDevicePage, Refusal> {
        let limit = if limit == 0 { PUSH_DEVICES_PAGE_MAX } else { limit };
        if limit > PUSH_DEVICES_PAGE_MAX {
            return Err(Refusal::limit("limit (devices)", PUSH_DEVICES_PAGE_MAX as u64, limit as u64));
        }
        let stored = self.stored_push(push)?;
        let from = after.map_or(0, |after| after.saturating_add(1));
        let mut found = if stored.to_many {
            self.devices_to_many(&stored, state, from, limit + 1)?
        } else {
            self.devices_named(&stored, state, from, limit + 1).map_err(store_refusal)?
        };
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|(device, ..)| device.0);
        let sent = self.sent_by_providers(push).map_err(store_refusal)?;
        let mut devices = Vec::with_capacity(found.len());
        for (device, state, delivered_at, ended_at) in found {
            // A device that was removed meanwhile is shown without a name.
            let (user, device_id) = self.name_of(device).map_err(store_refusal)?.unwrap_or_default();
            let fallback = sent_by(&sent, device);
            devices.push(PushDevice { user, device_id, state, delivered_at, ended_at, fallback });
        }
        Ok(PushDevicePage { devices, next })
    }

    fn name_of(&self, device: DeviceNo) -> StoreResult<Option<(String, String)>> {
        let Some(PushRow::Device(device)) = self.store.push_row(&PushKey::Device(device))? else { return Ok(None) };
        let user = self.store.user(UserNo(device.user))?;
        let user = user.ok_or_else(|| StoreError::Damaged(format!("device {:?} is of no user", device.no)))?;
        Ok(Some((user.id, device.device_id)))
    }

    #[allow(clippy::type_complexity)]
    fn devices_to_many(
        &self,
        stored: &StoredPush,
        state: Option<DeviceState>,
        from: u32,
        limit: usize,
    ) -> Result<Vec<(DeviceNo, DeviceState, Option<u64>, Option<u64>)>, Refusal> {
        let (push, stage) = (stored.push, stored.stage);
        let page = move |sets: &DeviceSets, stage| {
            let states = sets
                .of(AudienceSet::Targets)
                .range(from..)
                .map(move |no| (DeviceNo(no), sets.state(DeviceNo(no), stage)));
            let wanted = states.filter(|(_, found)| state.is_none_or(|state| state == *found));
            wanted.take(limit).map(|(device, state)| (device, state, None, None)).collect()
        };
        match self.ask(move |worker| worker.sets_of_running(push).map(|sets| page(sets, stage)))? {
            Some(found) => Ok(found),
            None => {
                let stage = self.stored_push(push)?.stage;
                Ok(page(&DeviceSets::read(&*self.store, push).map_err(store_refusal)?, stage))
            }
        }
    }

    #[allow(clippy::type_complexity)]
    fn devices_named(
        &self,
        stored: &StoredPush,
        state: Option<DeviceState>,
        mut from: u32,
        limit: usize,
    ) -> StoreResult<Vec<(DeviceNo, DeviceState, Option<u64>, Option<u64>)>> {
        let mut found = Vec::new();
        while found.len() < limit {
            let targets = self.targets(stored.push, from, TARGETS_PER_PAGE)?;
            let Some(last) = targets.last() else { break };
            from = last.device.0.saturating_add(1);
            let states = targets
                .iter()
                .map(|target| (target.device, state_of_target(target), target.delivered_at, target.ended_at));
            let room = limit - found.len();
            found.extend(states.filter(|(_, own, ..)| state.is_none_or(|state| state == *own)).take(room));
        }
        Ok(found)
    }
}

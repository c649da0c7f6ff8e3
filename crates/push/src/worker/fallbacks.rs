//! Devices that have not acknowledged a push in time fall back to their providers. They are handed out page by page, to whoever notifies
//! them; a page is dealt with once its successor is stored as the place to go on.
//!
//! The pushes whose time has come take turns: after a page a push is behind the others that are due.

use super::Worker;
use crate::{
    audience::{DeviceSets, add_chunk, chunk_bytes, chunk_of},
    draft::Draft,
    fallback::{DueFallback, FallbackDevice, FallbackState, PushNotification, read_fallback},
};
use roaring::RoaringBitmap;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use tidings_domain::{model::UserNo, push_store::*, store::StoreResult};
use tidings_protocol::http::{DeviceState, PushFallback, PushPriority, PushProvider};

/// Devices in one page.
const DEVICES_PER_PAGE: usize = 100;
/// So long a device that is connected may take to acknowledge a push whose fallback is due at once.
const CONNECTED_WAIT_MS: u64 = 10_000;
/// Rows of pushes that have ended which one question removes.
const ENDED_PER_QUESTION: usize = 64;

impl Worker {
    pub(super) fn fallback_of(&self, push: u64) -> StoreResult<Option<PushFallback>> {
        read_fallback(&*self.store, push)
    }

    /// The next page of devices that fall back now.
    pub(crate) fn due_fallback(&mut self) -> StoreResult<Option<DueFallback>> {
        self.check_in_sync()?;
        for _ in 0..ENDED_PER_QUESTION {
            let (first, last) = (PushKey::FallbackTimer(0, 0), PushKey::FallbackTimer(u64::MAX, u64::MAX));
            let Some(PushRow::FallbackTimer(timer)) = self.store.push_rows(&first, &last, 1)?.into_iter().next() else {
                self.inbox.set_next_fallback(u64::MAX);
                return Ok(None);
            };
            self.inbox.set_next_fallback(timer.at);
            let now = self.now();
            if now < timer.at {
                return Ok(None);
            }
            let stored = self.stored_push(timer.push)?.filter(|stored| is_running(stored, now));
            let fallback = if stored.is_some() { self.fallback_of(timer.push)? } else { None };
            if let (Some(stored), Some(fallback)) = (stored, fallback) {
                return self.fallback_page(&stored, timer, &fallback).map(Some);
            }
            let store = self.store.clone();
            let mut draft = Draft::new(&*store);
            draft.delete(PushKey::FallbackTimer(timer.at, timer.push));
            self.store_draft(draft)?;
        }
        Ok(None)
    }

    fn fallback_page(
        &self,
        stored: &StoredPush,
        timer: StoredFallbackTimer,
        fallback: &PushFallback,
    ) -> StoreResult<DueFallback> {
        let StoredPush { push, expires_at, .. } = *stored;
        let some: Vec<DeviceNo> = match timer.whom {
            FallbackDevices::All | FallbackDevices::NotConnected => self.targets_from(stored, timer.next)?,
            FallbackDevices::WereConnected => {
                let set = self.fallback_devices(push, FallbackPart::Connected)?;
                set.range(timer.next..).take(DEVICES_PER_PAGE).map(DeviceNo).collect()
            }
        };
        let next = some.last().filter(|_| some.len() == DEVICES_PER_PAGE).map(|last| last.0 + 1);
        let pending = self.pending_among(stored, some)?;
        let is_connected = |device: &DeviceNo| self.devices.session(*device).is_some();
        let (connected, falling): (Vec<_>, Vec<_>) = match timer.whom {
            FallbackDevices::NotConnected => pending.into_iter().partition(is_connected),
            FallbackDevices::All | FallbackDevices::WereConnected => (Vec::new(), pending),
        };
        let keys: Vec<PushKey> = falling.into_iter().map(PushKey::Device).collect();
        let device = |row| match row {
            Some(PushRow::Device(StoredDevice { user, device_id, .. })) => {
                Some(FallbackDevice { user: UserNo(user), device_id })
            }
            _ => None,
        };
        let devices = self.store.push_rows_of(&keys)?.into_iter().filter_map(device).collect();
        let began_at = due_at(stored, fallback);
        Ok(DueFallback { push, expires_at, devices, timer, began_at, connected, next })
    }

    /// The next targets of a push, of which some may have acknowledged it.
    fn targets_from(&self, stored: &StoredPush, next: u32) -> StoreResult<Vec<DeviceNo>> {
        let push = stored.push;
        if stored.to_many {
            let pending = self.audiences.get(&push).map(|audience| audience.sets.pending()).unwrap_or_default();
            return Ok(pending.range(next..).take(DEVICES_PER_PAGE).map(DeviceNo).collect());
        }
        let (first, last) = (PushKey::Target(push, DeviceNo(next)), PushKey::Target(push, DeviceNo(u32::MAX)));
        let rows = self.store.push_rows(&first, &last, DEVICES_PER_PAGE)?;
        Ok(rows
            .iter()
            .filter_map(|row| if let PushRow::Target(target) = row { Some(target.device) } else { None })
            .collect())
    }

    /// Those of the devices that have not acknowledged the push, and on which it was not replaced.
    fn pending_among(&self, stored: &StoredPush, mut devices: Vec<DeviceNo>) -> StoreResult<Vec<DeviceNo>> {
        let push = stored.push;
        if stored.to_many {
            let audience = self.audiences.get(&push);
            devices.retain(|device| audience.is_some_and(|audience| audience.sets.is_pending(*device)));
            return Ok(devices);
        }
        devices.retain(|device| self.reports.get(&(*device, push)).is_none_or(|report| report.end.is_none()));
        let keys: Vec<PushKey> = devices.iter().map(|device| PushKey::Pending(*device, push)).collect();
        let rows = self.store.push_rows_of(&keys)?;
        Ok(devices.into_iter().zip(rows).filter_map(|(device, row)| row.map(|_| device)).collect())
    }

    /// The page is dealt with: the next one is due, behind other pushes.
    pub(crate) fn fallback_taken(&mut self, due: &DueFallback) -> StoreResult<()> {
        let DueFallback { push, timer, began_at, connected, next, .. } = due;
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        let key = PushKey::FallbackTimer(timer.at, *push);
        if draft.get(&key)? != Some(PushRow::FallbackTimer(*timer)) {
            return Ok(());
        }
        draft.delete(key);
        add_devices(&mut draft, *push, FallbackPart::Connected, connected.iter().copied())?;
        let following = match (next, timer.whom) {
            (Some(next), _) => Some(StoredFallbackTimer { at: self.now().max(timer.at), next: *next, ..*timer }),
            (None, FallbackDevices::NotConnected) => {
                let at = (began_at + CONNECTED_WAIT_MS).max(timer.at);
                Some(StoredFallbackTimer { at, push: *push, whom: FallbackDevices::WereConnected, next: 0 })
            }
            (None, FallbackDevices::All | FallbackDevices::WereConnected) => None,
        };
        if let Some(following) = following {
            draft.put(PushRow::FallbackTimer(following));
        }
        self.store_draft(draft)?;
        // The next question looks for the first of all times.
        self.inbox.set_next_fallback(0);
        Ok(())
    }

    pub(crate) fn push_notification(
        &self,
        push: u64,
        devices: &[FallbackDevice],
    ) -> StoreResult<Option<PushNotification>> {
        self.check_in_sync()?;
        let stored = self.stored_push(push)?.filter(|stored| stored.started_at.is_some());
        let (Some(stored), Some(fallback)) = (stored, self.fallback_of(push)?) else { return Ok(None) };
        let found: Vec<_> = devices.iter().map(|device| self.devices.find(device.user, &device.device_id)).collect();
        let known: Vec<DeviceNo> = found.iter().flatten().copied().collect();
        let sent = self.sent_among(push, &known)?;
        let pending: FxHashSet<DeviceNo> = if is_running(&stored, self.now()) {
            self.pending_among(&stored, known)?.into_iter().collect()
        } else {
            FxHashSet::default()
        };
        let state = |device: &Option<DeviceNo>| match device {
            None => Ok(FallbackState::NoDevice),
            Some(device) if sent.contains(device.0) => Ok(FallbackState::Sent),
            Some(device) if pending.contains(device) => Ok(FallbackState::Wanted),
            Some(device) => self.why_not_pending(&stored, *device),
        };
        let states = found.iter().map(state).collect::<StoreResult<Vec<_>>>()?;
        let expires_at = fallback.ttl_s.map(|ttl_s| due_at(&stored, &fallback).saturating_add(ttl_s * 1_000));
        Ok(Some(PushNotification {
            collapse_key: fallback.collapse_key.clone().or(stored.collapse_key),
            high: fallback.priority.map_or(stored.high, |priority| priority == PushPriority::High),
            expires_at: expires_at.unwrap_or(u64::MAX).min(stored.expires_at),
            push_expires_at: stored.expires_at,
            content_type: stored.content_type,
            fallback,
            states,
        }))
    }

    /// Why a push is not pending on a device.
    fn why_not_pending(&self, stored: &StoredPush, device: DeviceNo) -> StoreResult<FallbackState> {
        let of_stage = match stored.stage {
            PushStage::Cancelled => FallbackState::Cancelled,
            _ => FallbackState::Expired,
        };
        if stored.to_many {
            let stored_sets;
            let sets = match self.audiences.get(&stored.push) {
                Some(audience) => &audience.sets,
                None => {
                    stored_sets = DeviceSets::read(&*self.store, stored.push)?;
                    &stored_sets
                }
            };
            if !sets.of(AudienceSet::Targets).contains(device.0) {
                return Ok(FallbackState::NoDevice);
            }
            return Ok(match sets.state(device, stored.stage) {
                DeviceState::Acknowledged => FallbackState::Acknowledged,
                DeviceState::Collapsed => FallbackState::Collapsed,
                DeviceState::Cancelled => FallbackState::Cancelled,
                DeviceState::Expired | DeviceState::Pending | DeviceState::Delivered => of_stage,
            });
        }
        let reported = self.reports.get(&(device, stored.push)).and_then(|report| report.end);
        let state = match (reported, self.store.push_row(&PushKey::Target(stored.push, device))?) {
            (Some((state, _)), _) => state,
            (None, Some(PushRow::Target(target))) => target.state,
            (None, _) => return Ok(FallbackState::NoDevice),
        };
        Ok(match state {
            TargetState::Acknowledged => FallbackState::Acknowledged,
            TargetState::Collapsed => FallbackState::Collapsed,
            TargetState::Cancelled => FallbackState::Cancelled,
            TargetState::Expired | TargetState::Pending => of_stage,
        })
    }

    /// Those of the devices for which a provider has taken the notification.
    fn sent_among(&self, push: u64, devices: &[DeviceNo]) -> StoreResult<RoaringBitmap> {
        let mut chunks: Vec<u32> = devices.iter().map(|device| chunk_of(*device)).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let of_chunk = |chunk: &u32| {
            PushProvider::ALL.map(|provider| PushKey::Fallback(push, FallbackPart::Sent(provider), *chunk))
        };
        let keys: Vec<PushKey> = chunks.iter().flat_map(of_chunk).collect();
        let mut sent = RoaringBitmap::new();
        for row in self.store.push_rows_of(&keys)?.into_iter().flatten() {
            if let PushRow::Fallback { chunk, bytes, .. } = row {
                add_chunk(&mut sent, chunk, &bytes);
            }
        }
        Ok(sent)
    }

    /// A set of devices that is kept of a fallback.
    fn fallback_devices(&self, push: u64, part: FallbackPart) -> StoreResult<RoaringBitmap> {
        let (first, last) = (PushKey::Fallback(push, part, 0), PushKey::Fallback(push, part, u32::MAX));
        let mut devices = RoaringBitmap::new();
        for row in self.store.push_rows(&first, &last, usize::MAX)? {
            if let PushRow::Fallback { chunk, bytes, .. } = row {
                add_chunk(&mut devices, chunk, &bytes);
            }
        }
        Ok(devices)
    }

    pub(crate) fn fallback_sent(&mut self, provider: PushProvider, sent: &[(u64, FallbackDevice)]) -> StoreResult<()> {
        let mut by_push = BTreeMap::<u64, Vec<DeviceNo>>::new();
        for (push, FallbackDevice { user, device_id }) in sent {
            // A device that was removed meanwhile has no state.
            let device = self.devices.find(*user, device_id);
            by_push.entry(*push).or_default().extend(device);
        }
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        for (push, devices) in by_push {
            if draft.get(&PushKey::Fallback(push, FallbackPart::Request, 0))?.is_none() {
                continue;
            }
            add_devices(&mut draft, push, FallbackPart::Sent(provider), devices.into_iter())?;
            if draft.len() >= PUSH_ROWS_PER_WRITE / 2 {
                self.store_draft(std::mem::replace(&mut draft, Draft::new(&*store)))?;
            }
        }
        self.store_draft(draft)
    }
}

/// When the first devices of a push fall back.
fn due_at(stored: &StoredPush, fallback: &PushFallback) -> u64 {
    stored.started_at.unwrap_or(stored.accepted_at).saturating_add(fallback.after_s * 1_000)
}

fn is_running(stored: &StoredPush, now: u64) -> bool {
    stored.stage == PushStage::Running && now < stored.expires_at
}

/// Adds devices to a set that is kept of a fallback.
fn add_devices(
    draft: &mut Draft<'_>,
    push: u64,
    part: FallbackPart,
    devices: impl Iterator<Item = DeviceNo>,
) -> StoreResult<()> {
    let mut by_chunk = BTreeMap::<u32, RoaringBitmap>::new();
    for device in devices {
        by_chunk.entry(chunk_of(device)).or_default().insert(device.0);
    }
    for (chunk, mut set) in by_chunk {
        if let Some(PushRow::Fallback { bytes, .. }) = draft.get(&PushKey::Fallback(push, part, chunk))? {
            add_chunk(&mut set, chunk, &bytes);
        }
        draft.put(PushRow::Fallback { push, part, chunk, bytes: chunk_bytes(&set, chunk) });
    }
    Ok(())
}

//! Collapse keys: on each device the newest push with a key replaces the older ones that are not acknowledged.
//!
//! There are three cases. A named push finds older named ones by the key's row. A push of either kind collapses an
//! older push to many by intersecting sets. A push to many collapses older named pushes afterwards: the worker goes
//! through its targets that have named pushes pending, a bounded number in each turn.

use super::Worker;
use crate::draft::Draft;
use roaring::RoaringBitmap;
use rustc_hash::FxHashSet;
use tidings_domain::{push_store::*, store::StoreResult};

/// Devices of a push to many that one write collapses older pushes on.
const DEVICES_PER_WRITE: usize = PUSH_ROWS_PER_WRITE / 4;

impl Worker {
    /// Of these devices, those on which a push with this key would replace another.
    pub(super) fn collapses_on(&self, devices: &[DeviceNo], collapse_key: &str) -> StoreResult<FxHashSet<DeviceNo>> {
        let keys: Vec<PushKey> =
            devices.iter().map(|device| PushKey::Collapse(*device, collapse_key.to_owned())).collect();
        let rows = self.store.push_rows_of(&keys)?;
        Ok(devices.iter().zip(rows).filter(|(_, row)| row.is_some()).map(|(device, _)| *device).collect())
    }

    /// Reads ahead what [`Self::collapse_on`] reads for each of these devices: in two reads, however many devices.
    pub(super) fn read_collapses(
        &self,
        draft: &mut Draft<'_>,
        devices: &[DeviceNo],
        collapse_key: &str,
    ) -> StoreResult<()> {
        let keys = || devices.iter().map(|device| PushKey::Collapse(*device, collapse_key.to_owned()));
        draft.read_ahead(keys())?;
        let mut older = Vec::new();
        for key in keys() {
            if let Some(PushRow::Collapse { device, push, .. }) = draft.get(&key)? {
                older.extend([PushKey::Pending(device, push), PushKey::Target(push, device)]);
            }
        }
        draft.read_ahead(older)
    }

    /// The newest push with a key replaces the one before on each of these devices.
    pub(super) fn collapse_all(
        &self,
        draft: &mut Draft<'_>,
        devices: &[DeviceNo],
        newest: &StoredPush,
    ) -> StoreResult<()> {
        let Some(collapse_key) = &newest.collapse_key else { return Ok(()) };
        self.read_collapses(draft, devices, collapse_key)?;
        devices.iter().try_for_each(|device| self.collapse_on(draft, *device, newest))
    }

    fn collapse_on(&self, draft: &mut Draft<'_>, device: DeviceNo, newest: &StoredPush) -> StoreResult<()> {
        let Some(collapse_key) = newest.collapse_key.clone() else { return Ok(()) };
        let key = PushKey::Collapse(device, collapse_key.clone());
        if let Some(PushRow::Collapse { push: older, .. }) = draft.get(&key)?
            && let Some(PushRow::Pending(pending)) = draft.get(&PushKey::Pending(device, older))?
            && pending.start_order < newest.start_order
            && self.now() < pending.expires_at
        {
            // A device that has acknowledged the older push keeps it, even if the report is not stored yet.
            let report = self.reports.get(&(device, older)).copied().unwrap_or_default();
            self.end_target(draft, device, older, Some(&collapse_key), report.end_or(TargetState::Collapsed))?;
        }
        draft.put(PushRow::Collapse { device, collapse_key, push: newest.push });
        Ok(())
    }

    /// Older pushes to many with this key end on these devices.
    pub(super) fn collapse_audiences(&mut self, collapse_key: &str, start_order: u64, targets: &RoaringBitmap) {
        let now = self.now();
        for older in self.audiences.values_mut() {
            let is_older = older.start_order < start_order && older.collapse_key.as_deref() == Some(collapse_key);
            if is_older && now < older.frame.expires_at {
                let count = older.collapse(targets);
                self.metrics.push_collapsed.inc_by(count);
            }
        }
    }

    /// Ends named pushes on the targets of newer pushes to many with the same key, in at most so many writes.
    pub(super) fn work_on_collapses(&mut self, writes: usize) -> StoreResult<()> {
        for _ in 0..writes {
            let Some((push, next)) = self.collapsing.first_key_value().map(|(push, next)| (*push, *next)) else {
                break;
            };
            match self.collapse_named(push, next)? {
                Some(next) => self.collapsing.insert(push, next),
                None => self.collapsing.remove(&push),
            };
        }
        Ok(())
    }

    /// One write of that, from the device `next` on; answers where the next write goes on.
    fn collapse_named(&mut self, push: u64, next: u32) -> StoreResult<Option<u32>> {
        let Some(audience) = self.audiences.get(&push) else { return Ok(None) };
        let Some(collapse_key) = audience.collapse_key.clone() else { return Ok(None) };
        let start_order = audience.start_order;
        let targets = audience.sets.of(AudienceSet::Targets).range(next..);
        let some: Vec<DeviceNo> =
            targets.map(DeviceNo).filter(|device| self.devices.pending(*device) > 0).take(DEVICES_PER_WRITE).collect();
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        self.read_collapses(&mut draft, &some, &collapse_key)?;
        for device in &some {
            let key = PushKey::Collapse(*device, collapse_key.clone());
            if let Some(PushRow::Collapse { push: older, .. }) = draft.get(&key)?
                && let Some(PushRow::Pending(pending)) = draft.get(&PushKey::Pending(*device, older))?
                && pending.start_order < start_order
                && self.now() < pending.expires_at
            {
                let report = self.reports.get(&(*device, older)).copied().unwrap_or_default();
                let end = report.end_or(TargetState::Collapsed);
                self.end_target(&mut draft, *device, older, Some(&collapse_key), end)?;
            }
        }
        self.store_draft(draft)?;
        Ok(some.last().filter(|_| some.len() == DEVICES_PER_WRITE).map(|last| last.0 + 1))
    }
}

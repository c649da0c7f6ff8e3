//! Collapse keys: on each device the newest push with a key takes the place of those before that are
//! not acknowledged. By name and by name it is looked up, among pushes to many the sets are compared, and
//! after a push to many the devices that something waits for by name are gone through, a piece at a time.

use super::{DeviceNo, draft::Draft, rows::*, worker::Worker};
use crate::store::StoreResult;
use roaring::RoaringBitmap;
use rustc_hash::FxHashSet;

/// Devices of a push to many that are looked at in one write.
const DEVICES_AT_ONCE: usize = PUSH_ROWS_PER_WRITE / 4;

impl Worker {
    /// Of these devices, those on which a push with this key would take another's place.
    pub(super) fn collapses_on(&self, devices: &[DeviceNo], collapse_key: &str) -> StoreResult<FxHashSet<DeviceNo>> {
        let keys: Vec<PushKey> =
            devices.iter().map(|device| PushKey::Collapse(*device, collapse_key.to_owned())).collect();
        let rows = self.store.push_rows_of(&keys)?;
        Ok(devices.iter().zip(rows).filter(|(_, row)| row.is_some()).map(|(device, _)| *device).collect())
    }

    /// Reads what [`Self::collapse_on`] will ask for, of all these devices at once: in two rounds, however many they are.
    pub(super) fn read_collapses(
        &self,
        draft: &mut Draft<'_>,
        devices: &[DeviceNo],
        collapse_key: &str,
    ) -> StoreResult<()> {
        let keys = || devices.iter().map(|device| PushKey::Collapse(*device, collapse_key.to_owned()));
        draft.read_ahead(keys())?;
        let mut waiting = Vec::new();
        for key in keys() {
            if let Some(PushRow::Collapse { device, push, .. }) = draft.get(&key)? {
                waiting.extend([PushKey::Pending(device, push), PushKey::Target(push, device)]);
            }
        }
        draft.read_ahead(waiting)
    }

    /// The newest push with a key takes the place of the one before on each of these devices.
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
            && let Some(PushRow::Pending(waiting)) = draft.get(&PushKey::Pending(device, older))?
            && waiting.order < newest.order
            && self.now() < waiting.expires_at
        {
            // A device that has it has it, even if that is not stored yet.
            let note = self.notes.get(&(device, older)).copied().unwrap_or_default();
            self.end_on(draft, device, older, Some(&collapse_key), note.or_else(Fate::Collapsed))?;
        }
        draft.put(PushRow::Collapse { device, collapse_key, push: newest.push });
        Ok(())
    }

    /// Older pushes to many with this key are through on these devices.
    pub(super) fn collapse_audiences(&mut self, collapse_key: &str, order: u64, targets: &RoaringBitmap) {
        let now = self.now();
        for older in self.audiences.values_mut() {
            let is_older = older.order < order && older.collapse_key.as_deref() == Some(collapse_key);
            if is_older && now < older.frame.expires_at {
                let count = older.collapse(targets);
                self.metrics.push_collapsed.inc_by(count);
            }
        }
    }

    /// Ends what waits by name for devices that a push to many with the same key is for, in at most so many writes.
    pub(super) fn work_on_collapses(&mut self, writes: usize) -> StoreResult<()> {
        for _ in 0..writes {
            let Some((push, next)) = self.collapsing.first_key_value().map(|(push, next)| (*push, *next)) else {
                break;
            };
            match self.collapse_some(push, next)? {
                Some(next) => self.collapsing.insert(push, next),
                None => self.collapsing.remove(&push),
            };
        }
        Ok(())
    }

    fn collapse_some(&mut self, push: u64, next: u32) -> StoreResult<Option<u32>> {
        let Some(audience) = self.audiences.get(&push) else { return Ok(None) };
        let Some(collapse_key) = audience.collapse_key.clone() else { return Ok(None) };
        let order = audience.order;
        let targets = audience.sets.of(Set::Targets).range(next..);
        let some: Vec<DeviceNo> =
            targets.map(DeviceNo).filter(|device| self.devices.pending(*device) > 0).take(DEVICES_AT_ONCE).collect();
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        self.read_collapses(&mut draft, &some, &collapse_key)?;
        for device in &some {
            let key = PushKey::Collapse(*device, collapse_key.clone());
            if let Some(PushRow::Collapse { push: older, .. }) = draft.get(&key)?
                && let Some(PushRow::Pending(waiting)) = draft.get(&PushKey::Pending(*device, older))?
                && waiting.order < order
                && self.now() < waiting.expires_at
            {
                let note = self.notes.get(&(*device, older)).copied().unwrap_or_default();
                self.end_on(&mut draft, *device, older, Some(&collapse_key), note.or_else(Fate::Collapsed))?;
            }
        }
        self.store_draft(draft)?;
        Ok(some.last().filter(|_| some.len() == DEVICES_AT_ONCE).map(|last| last.0 + 1))
    }
}

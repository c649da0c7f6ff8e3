//! What devices have, on its way to the store. Until it is there, a crash makes that they are handed it again.

use super::{DeviceNo, draft::Draft, rows::*, worker::Worker};
use crate::store::StoreResult;

/// Pushes that name devices, with reports that are not stored yet. Above: reports are dropped.
const NOTES_MAX: usize = 1_000_000;
/// Notes in one write: a note changes up to three rows.
const NOTES_PER_WRITE: usize = PUSH_ROWS_PER_WRITE / 4;
/// Pieces of sets in one write: they are up to 2 KiB each.
const CHUNKS_PER_WRITE: usize = 64;

/// What is known of a push on a device that it names, and not stored yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) delivered_at: Option<u64>,
    /// How it ended, and when.
    pub(super) end: Option<(Fate, u64)>,
}

/// An end that may have been overtaken by one that is not stored yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    delivered_at: Option<u64>,
    fate: Fate,
    at: Option<u64>,
}

impl Note {
    /// This fate, unless the note has one.
    pub(super) fn or_else(self, fate: Fate) -> End {
        let (fate, at) = self.end.map_or((fate, None), |(fate, at)| (fate, Some(at)));
        End { delivered_at: self.delivered_at, fate, at }
    }
}

impl Worker {
    /// The push was written to these devices' connections.
    pub(super) fn written(&mut self, push: u64, devices: &[DeviceNo]) {
        if let Some(audience) = self.audiences.get_mut(&push) {
            let new = devices.iter().filter(|device| audience.insert(Set::Delivered, **device)).count();
            self.metrics.push_delivered.inc_by(new as u64);
            return;
        }
        let now = self.now();
        for device in devices {
            if self.has_room_for_notes() {
                self.notes.entry((*device, push)).or_default().delivered_at.get_or_insert(now);
            }
        }
    }

    /// The device has these.
    pub(super) fn acknowledged(&mut self, device: DeviceNo, pushes: &[u64]) {
        let now = self.now();
        for push in pushes {
            if let Some(audience) = self.audiences.get_mut(push) {
                let delivered = audience.insert(Set::Delivered, device);
                let acknowledged = audience.insert(Set::Acknowledged, device);
                self.metrics.push_delivered.inc_by(u64::from(delivered));
                self.metrics.push_acknowledged.inc_by(u64::from(acknowledged));
            } else if self.has_room_for_notes() {
                self.notes.entry((device, *push)).or_default().end.get_or_insert((Fate::Acknowledged, now));
            }
            self.handed_out(device, *push);
        }
    }

    fn has_room_for_notes(&self) -> bool {
        let room = self.notes.len() < NOTES_MAX;
        if !room {
            self.metrics.push_notes_dropped.inc();
        }
        room
    }

    /// Stores reports in at most so many writes; answers whether that was all.
    pub(super) fn flush(&mut self, writes: usize) -> StoreResult<bool> {
        let mut left = writes;
        while left > 0 && !self.notes.is_empty() {
            self.flush_notes()?;
            left -= 1;
        }
        while left > 0 && self.flush_chunks()? {
            left -= 1;
        }
        while left > 0 && !self.bound.is_empty() {
            self.flush_bound()?;
            left -= 1;
        }
        Ok(left > 0)
    }

    fn flush_notes(&mut self) -> StoreResult<()> {
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        let some: Vec<_> = self.notes.iter().take(NOTES_PER_WRITE).map(|(key, note)| (*key, *note)).collect();
        draft.read_ahead(
            some.iter()
                .flat_map(|((device, push), _)| [PushKey::Pending(*device, *push), PushKey::Target(*push, *device)]),
        )?;
        let mut collapses = Vec::new();
        for ((device, push), _) in some.iter().filter(|(_, note)| note.end.is_some()) {
            if let Some(PushRow::Pending(StoredPending { collapse_key: Some(key), .. })) =
                draft.get(&PushKey::Pending(*device, *push))?
            {
                collapses.push(PushKey::Collapse(*device, key));
            }
        }
        draft.read_ahead(collapses)?;
        for ((device, push), note) in &some {
            let Some(PushRow::Pending(pending)) = draft.get(&PushKey::Pending(*device, *push))? else { continue };
            match note.end {
                Some(_) => {
                    let key = pending.collapse_key.as_deref();
                    self.end_on(&mut draft, *device, *push, key, note.or_else(Fate::Acknowledged))?;
                }
                None => {
                    let mut target = target_of(&draft, *push, *device)?;
                    if target.delivered_at.is_none() {
                        target.delivered_at = note.delivered_at;
                        self.metrics.push_delivered.inc();
                        draft.put(PushRow::Target(target));
                    }
                }
            }
        }
        self.store_draft(draft)?;
        for (key, _) in some {
            self.notes.remove(&key);
        }
        Ok(())
    }

    /// A push is through on a device.
    pub(super) fn end_on(
        &self,
        draft: &mut Draft<'_>,
        device: DeviceNo,
        push: u64,
        collapse_key: Option<&str>,
        end: End,
    ) -> StoreResult<()> {
        let mut target = target_of(draft, push, device)?;
        let at = end.at.unwrap_or_else(|| self.now());
        let was_delivered = target.delivered_at.is_some();
        target.delivered_at = target.delivered_at.or(end.delivered_at);
        if end.fate == Fate::Acknowledged {
            target.delivered_at.get_or_insert(at);
        }
        (target.fate, target.ended_at) = (end.fate, Some(at));
        self.metrics.push_delivered.inc_by(u64::from(target.delivered_at.is_some() && !was_delivered));
        let counter = match end.fate {
            Fate::Acknowledged => &self.metrics.push_acknowledged,
            Fate::Expired => &self.metrics.push_expired,
            Fate::Collapsed => &self.metrics.push_collapsed,
            Fate::Waits | Fate::Cancelled => &self.metrics.push_cancelled,
        };
        counter.inc();
        draft.put(PushRow::Target(target));
        draft.drop_pending(device, push, collapse_key)
    }

    /// Stores some pieces of running pushes' sets; answers whether there were any.
    fn flush_chunks(&mut self) -> StoreResult<bool> {
        let mut draft = Draft::new(&*self.store);
        for (push, audience) in &mut self.audiences {
            let room = CHUNKS_PER_WRITE - draft.len();
            if audience.is_dirty() && room > 0 {
                audience.take_dirty(*push, room).into_iter().for_each(|row| draft.put(row));
            }
        }
        if draft.len() == 0 {
            return Ok(false);
        }
        // As memory has them: whatever became of a write that failed, the next one is right.
        self.check_sure()?;
        let written = draft.write(self.term);
        if written.is_err() {
            for key in draft.keys() {
                if let PushKey::Chunk(push, set, chunk) = key
                    && let Some(audience) = self.audiences.get_mut(push)
                {
                    audience.not_stored(*set, *chunk);
                }
            }
        }
        written.map(|()| true)
    }

    fn flush_bound(&mut self) -> StoreResult<()> {
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        let some: Vec<_> = self.bound.iter().take(PUSH_ROWS_PER_WRITE).copied().collect();
        for device in some.iter().filter(|device| self.devices.is_known(**device)) {
            draft.put(PushRow::Bound { device: *device, at: self.devices.bound_ms(*device) });
        }
        // As memory has them, too.
        self.check_sure()?;
        draft.write(self.term)?;
        for device in &some {
            self.bound.remove(device);
        }
        Ok(())
    }
}

fn target_of(draft: &Draft<'_>, push: u64, device: DeviceNo) -> StoreResult<StoredTarget> {
    match draft.get(&PushKey::Target(push, device))? {
        Some(PushRow::Target(target)) => Ok(target),
        _ => Ok(StoredTarget { push, device, fate: Fate::Waits, delivered_at: None, ended_at: None }),
    }
}

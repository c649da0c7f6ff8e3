//! What waited for a device, handed to it a part at a time: the next when it has acknowledged the former.

use super::{DeviceNo, PushFrame, accept::text, notes::Note, rows::*, start::build_frame, worker::Worker};
use crate::store::{StoreError, StoreResult};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::{cmp::Reverse, sync::Arc};

/// Pushes, and bytes of them, in one part.
const PART_PUSHES: usize = 32;
const PART_BYTES: usize = 64 * 1024;
/// Rows read at once of what waits for a device.
const PENDING_AT_ONCE: usize = 2_048;

/// A device that has been handed a part, and more waits for it.
#[derive(Debug, Default)]
pub(super) struct Handout {
    /// Handed out, not acknowledged.
    open: SmallVec<[u64; 8]>,
    /// Pushes that began meanwhile and were handed to it at once: the next parts are without them. As many as may
    /// wait for a device, and run to many.
    at_once: Vec<u64>,
}

/// A push that waits for a device.
struct Waits {
    push: u64,
    high: bool,
    order: u64,
    collapse_key: Option<String>,
    /// At hand for pushes to many.
    frame: Option<Arc<PushFrame>>,
}

impl Worker {
    /// A device has this one; when that was the last of its part, the next is due.
    pub(super) fn handed_out(&mut self, device: DeviceNo, push: u64) {
        let Some(handout) = self.handouts.get_mut(&device) else { return };
        handout.open.retain(|open| *open != push);
        if handout.open.is_empty() {
            self.due.insert(device);
        }
    }

    /// A push is handed to a device as it begins.
    pub(super) fn handed_at_once(&mut self, device: DeviceNo, push: u64) {
        if let Some(handout) = self.handouts.get_mut(&device) {
            handout.at_once.push(push);
        }
    }

    /// Hands out what is due. Where the store fails, it stays due.
    pub(super) fn hand_out_due(&mut self) {
        for device in std::mem::take(&mut self.due) {
            if let Err(error) = self.hand_out(device) {
                self.due.insert(device);
                self.note_failure(Err(error));
            }
        }
    }

    fn hand_out(&mut self, device: DeviceNo) -> StoreResult<()> {
        let Some((shard, session)) = self.devices.session(device) else { return Ok(()) };
        let mut waiting = self.waits_for(device)?;
        let at_once = self.handouts.get(&device).map(|handout| handout.at_once.clone()).unwrap_or_default();
        waiting.retain(|waits| !at_once.contains(&waits.push));
        if waiting.is_empty() {
            self.handouts.remove(&device);
            return Ok(());
        }
        self.leave_the_newest(device, &mut waiting);
        waiting.sort_unstable_by_key(|waits| (Reverse(waits.high), waits.push));
        let high = waiting.first().is_some_and(|first| first.high);
        let (mut frames, mut bytes, mut more) = (Vec::new(), 0, false);
        for waits in waiting {
            if frames.len() == PART_PUSHES || bytes >= PART_BYTES {
                more = true;
                break;
            }
            let frame = match waits.frame {
                Some(frame) => Some(frame),
                None => self.frame_of(waits.push)?,
            };
            if let Some(frame) = frame {
                bytes += frame.miop.len().max(frame.json.len());
                frames.push(frame);
            }
        }
        if more {
            let open = frames.iter().map(|frame| frame.push).collect();
            self.handouts.insert(device, Handout { open, at_once });
        } else {
            self.handouts.remove(&device);
        }
        if !frames.is_empty() {
            self.outgoing.pending(shard, session, frames, high);
        }
        Ok(())
    }

    /// All that a device has not got and may still get.
    fn waits_for(&mut self, device: DeviceNo) -> StoreResult<Vec<Waits>> {
        let now = self.now();
        let mut waiting = Vec::new();
        for (push, audience) in &self.audiences {
            let runs = now < audience.frame.expires_at && !self.jobs.contains_key(push);
            if runs && audience.sets.waits_for(device) {
                waiting.push(Waits {
                    push: *push,
                    high: audience.high,
                    order: audience.order,
                    collapse_key: audience.collapse_key.clone(),
                    frame: Some(audience.frame.clone()),
                });
            }
        }
        if self.devices.pending(device) == 0 {
            return Ok(waiting);
        }
        let mut from = 0;
        loop {
            let (first, last) = (PushKey::Pending(device, from), PushKey::Pending(device, u64::MAX));
            let rows = self.store.push_rows(&first, &last, PENDING_AT_ONCE)?;
            let count = rows.len();
            for row in rows {
                let PushRow::Pending(pending) = row else { continue };
                from = pending.push + 1;
                let note = self.notes.get(&(device, pending.push));
                let ended = note.is_some_and(|note| note.end.is_some()) || self.jobs.contains_key(&pending.push);
                if now < pending.expires_at && !ended {
                    let StoredPending { push, high, order, collapse_key, .. } = pending;
                    waiting.push(Waits { push, high, order, collapse_key, frame: None });
                }
            }
            if count < PENDING_AT_ONCE {
                return Ok(waiting);
            }
        }
    }

    /// Of those with the same collapse key only the newest is handed out, also where a crash cut off the ends of
    /// the others.
    fn leave_the_newest(&mut self, device: DeviceNo, waiting: &mut Vec<Waits>) {
        let mut newest: FxHashMap<String, u64> = FxHashMap::default();
        for waits in waiting.iter() {
            if let Some(key) = &waits.collapse_key {
                let newest = newest.entry(key.clone()).or_default();
                *newest = waits.order.max(*newest);
            }
        }
        let now = self.now();
        waiting.retain(|waits| {
            let stays = waits.collapse_key.as_ref().is_none_or(|key| newest[key] == waits.order);
            if !stays {
                match self.audiences.get_mut(&waits.push) {
                    Some(audience) => {
                        let count = audience.collapse(&[device.0].into_iter().collect());
                        self.metrics.push_collapsed.inc_by(count);
                    }
                    None => {
                        let note: &mut Note = self.notes.entry((device, waits.push)).or_default();
                        note.end.get_or_insert((Fate::Collapsed, now));
                    }
                }
            }
            stays
        });
    }

    /// The frame of a push to named devices; `None` if it runs no more.
    fn frame_of(&mut self, push: u64) -> StoreResult<Option<Arc<PushFrame>>> {
        if let Some(frame) = self.frames.get(&push) {
            return Ok(Some(frame.clone()));
        }
        let Some(stored) = self.stored_push(push)?.filter(|stored| stored.stage == Stage::Running) else {
            return Ok(None);
        };
        let (body, _) = self.parts_of(&stored)?;
        let frame = build_frame(&stored, &body);
        self.frames.insert(push, frame.clone());
        Ok(Some(frame))
    }

    /// The body of a push, and whom it is for as long as it is scheduled.
    pub(super) fn parts_of(&self, push: &StoredPush) -> StoreResult<(String, Vec<u8>)> {
        let last = PushKey::Part(push.push, u32::MAX);
        let rows = self.store.push_rows(&PushKey::Part(push.push, 0), &last, push.parts as usize)?;
        let mut whole = Vec::new();
        for row in rows {
            if let PushRow::Part { bytes, .. } = row {
                whole.extend(bytes);
            }
        }
        let body_bytes = push.body_bytes as usize;
        let body = whole.get(..body_bytes).ok_or_else(|| StoreError::Damaged("a push's body is missing".into()))?;
        Ok((text(body)?, whole[body_bytes..].to_vec()))
    }
}

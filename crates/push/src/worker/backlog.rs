//! Backlogs: pushes that a device has not acknowledged, handed to its session in batches. The next batch follows when
//! the device has acknowledged the one before.

use super::{Worker, delivery_reports::DeliveryReport};
use crate::PushFrame;
use roaring::RoaringBitmap;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::{cmp::Reverse, sync::Arc};
use tidings_domain::{
    push_store::*,
    store::{StoreError, StoreResult},
};

/// Pushes, and their bytes, in one batch.
const BATCH_PUSHES: usize = 32;
const BATCH_BYTES: usize = 64 * 1024;
/// Rows of a device's pending pushes in one read.
const PENDING_PAGE: usize = 2_048;

/// The batch that a device's session was handed last, while more of the backlog is left.
#[derive(Debug, Default)]
pub(super) struct BacklogBatch {
    /// Pushes of the batch that the device has not acknowledged.
    unacked: SmallVec<[u64; 8]>,
    /// Pushes that started meanwhile and were handed over at their start: later batches leave them out. Bounded by the
    /// named pushes that may be pending on a device, and the pushes to many that may run.
    sent_at_start: Vec<u64>,
}

/// A push that is pending on a device.
struct PendingPush {
    push: u64,
    high: bool,
    start_order: u64,
    collapse_key: Option<String>,
    /// Present for pushes to many: their audience holds it.
    frame: Option<Arc<PushFrame>>,
}

impl Worker {
    /// Devices have acknowledged a push; of each for which that was the last of its batch, the next batch is due.
    pub(super) fn backlogs_acknowledged(&mut self, devices: &RoaringBitmap, push: u64) {
        if self.backlogs.is_empty() {
            return;
        }
        for device in devices.iter().map(DeviceNo) {
            let Some(batch) = self.backlogs.get_mut(&device) else { continue };
            batch.unacked.retain(|unacked| *unacked != push);
            if batch.unacked.is_empty() {
                self.backlogs_due.insert(device);
            }
        }
    }

    /// A push that starts is handed to a device beside its backlog.
    pub(super) fn sent_at_start(&mut self, device: DeviceNo, push: u64) {
        if let Some(batch) = self.backlogs.get_mut(&device) {
            batch.sent_at_start.push(push);
        }
    }

    /// Sends the batches that are due. A batch that the store cannot read stays due.
    pub(super) fn send_due_backlogs(&mut self) {
        for device in std::mem::take(&mut self.backlogs_due) {
            if let Err(error) = self.send_backlog(device) {
                self.backlogs_due.insert(device);
                self.note_failure(Err(error));
            }
        }
    }

    fn send_backlog(&mut self, device: DeviceNo) -> StoreResult<()> {
        let Some((destination, session)) = self.devices.session(device) else { return Ok(()) };
        let mut pending = self.pending_pushes(device)?;
        let sent_at_start = self.backlogs.get(&device).map(|batch| batch.sent_at_start.clone()).unwrap_or_default();
        pending.retain(|push| !sent_at_start.contains(&push.push));
        if pending.is_empty() {
            self.backlogs.remove(&device);
            return Ok(());
        }
        self.keep_newest_of_each_key(device, &mut pending);
        pending.sort_unstable_by_key(|push| (Reverse(push.high), push.push));
        let high = pending.first().is_some_and(|first| first.high);
        let (mut frames, mut bytes, mut more) = (Vec::new(), 0, false);
        for push in pending {
            if frames.len() == BATCH_PUSHES || bytes >= BATCH_BYTES {
                more = true;
                break;
            }
            let frame = match push.frame {
                Some(frame) => Some(frame),
                None => self.frame_of(push.push)?,
            };
            if let Some(frame) = frame {
                bytes += frame.miop.len().max(frame.json.len());
                frames.push(frame);
            }
        }
        if more {
            let unacked = frames.iter().map(|frame| frame.push).collect();
            self.backlogs.insert(device, BacklogBatch { unacked, sent_at_start });
        } else {
            self.backlogs.remove(&device);
        }
        if !frames.is_empty() {
            self.outgoing.send_pending(destination, session, frames, high);
        }
        Ok(())
    }

    /// All pushes that are pending on a device and may still be handed to it.
    fn pending_pushes(&mut self, device: DeviceNo) -> StoreResult<Vec<PendingPush>> {
        let now = self.now();
        let mut found = Vec::new();
        for (push, audience) in &self.audiences {
            let runs = now < audience.frame.expires_at && !self.jobs.contains_key(push);
            if runs && audience.sets.is_pending(device) {
                found.push(PendingPush {
                    push: *push,
                    high: audience.high,
                    start_order: audience.start_order,
                    collapse_key: audience.collapse_key.clone(),
                    frame: Some(audience.frame.clone()),
                });
            }
        }
        if self.devices.pending(device) == 0 {
            return Ok(found);
        }
        let mut from = 0;
        loop {
            let (first, last) = (PushKey::Pending(device, from), PushKey::Pending(device, u64::MAX));
            let rows = self.store.push_rows(&first, &last, PENDING_PAGE)?;
            let count = rows.len();
            for row in rows {
                let PushRow::Pending(pending) = row else { continue };
                from = pending.push + 1;
                let report = self.reports.get(&(device, pending.push));
                let ended = report.is_some_and(|report| report.end.is_some()) || self.jobs.contains_key(&pending.push);
                if now < pending.expires_at && !ended {
                    let StoredPending { push, high, start_order, collapse_key, .. } = pending;
                    found.push(PendingPush { push, high, start_order, collapse_key, frame: None });
                }
            }
            if count < PENDING_PAGE {
                return Ok(found);
            }
        }
    }

    /// Of pushes with the same collapse key only the newest is handed out, even if a crash kept the others from being
    /// ended.
    fn keep_newest_of_each_key(&mut self, device: DeviceNo, pending: &mut Vec<PendingPush>) {
        let mut newest: FxHashMap<String, u64> = FxHashMap::default();
        for push in pending.iter() {
            if let Some(key) = &push.collapse_key {
                let newest = newest.entry(key.clone()).or_default();
                *newest = push.start_order.max(*newest);
            }
        }
        let now = self.now();
        pending.retain(|push| {
            let is_newest = push.collapse_key.as_ref().is_none_or(|key| newest[key] == push.start_order);
            if !is_newest {
                match self.audiences.get_mut(&push.push) {
                    Some(audience) => {
                        let count = audience.collapse(&[device.0].into_iter().collect());
                        self.metrics.push_collapsed.inc_by(count);
                    }
                    None => {
                        let report: &mut DeliveryReport = self.reports.entry((device, push.push)).or_default();
                        report.end.get_or_insert((TargetState::Collapsed, now));
                    }
                }
            }
            is_newest
        });
    }

    /// The frame of a named push; `None` if the push does not run any more.
    fn frame_of(&mut self, push: u64) -> StoreResult<Option<Arc<PushFrame>>> {
        if let Some(frame) = self.frames.get(&push) {
            return Ok(Some(frame.clone()));
        }
        let Some(stored) = self.stored_push(push)?.filter(|stored| stored.stage == PushStage::Running) else {
            return Ok(None);
        };
        let (body, _) = self.read_parts(&stored)?;
        let frame = PushFrame::encode(&stored, &body);
        self.frames.insert(push, frame.clone());
        Ok(Some(frame))
    }

    /// The body of a push and, while the push is scheduled, its target specification as JSON.
    pub(super) fn read_parts(&self, push: &StoredPush) -> StoreResult<(String, Vec<u8>)> {
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

/// Bytes that were stored from a string.
fn text(bytes: &[u8]) -> StoreResult<String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| StoreError::Damaged("a push's body is not text".into()))
}

//! Reports of what devices were written and have acknowledged, until they are stored. After a crash that loses an
//! acknowledgement the device is handed the push again.

use super::Worker;
use crate::draft::Draft;
use roaring::RoaringBitmap;
use tidings_domain::{notification_counts::ChannelEvent, push_store::*, store::StoreResult};
use tidings_protocol::http::Channel;

/// Reports on targets of named pushes that are not stored yet. Above: further reports are dropped.
const REPORTS_MAX: usize = 1_000_000;
/// Reports in one write: a report changes up to three rows.
const REPORTS_PER_WRITE: usize = PUSH_ROWS_PER_WRITE / 4;
/// Chunks of sets in one write: they are up to 2 KiB each.
const CHUNKS_PER_WRITE: usize = 64;

/// What is known, and not stored yet, of a named push on one of its targets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DeliveryReport {
    pub(super) delivered_at: Option<u64>,
    /// How the push ended there, and when.
    pub(super) end: Option<(TargetState, u64)>,
}

/// How a push ends on a target.
#[derive(Debug, Clone, Copy)]
pub(super) struct TargetEnd {
    delivered_at: Option<u64>,
    state: TargetState,
    /// Absent: now.
    at: Option<u64>,
}

impl DeliveryReport {
    /// The end that was reported, or else this one.
    pub(super) fn end_or(self, state: TargetState) -> TargetEnd {
        let (state, at) = self.end.map_or((state, None), |(state, at)| (state, Some(at)));
        TargetEnd { delivered_at: self.delivered_at, state, at }
    }
}

impl Worker {
    /// Counts what has become of a push on so many devices; with the time from its writing to its acknowledgement, if both are known.
    pub(super) fn count_notifications(&self, event: ChannelEvent, count: u64, took_ms: Option<u64>) {
        self.metrics.notifications.add(Channel::DevicePush, event, self.now(), count, took_ms);
    }

    /// The push was written to these devices' connections.
    pub(super) fn written(&mut self, push: u64, devices: &RoaringBitmap) {
        if let Some(audience) = self.audiences.get_mut(&push) {
            let new = audience.insert(AudienceSet::Delivered, devices);
            self.metrics.push_delivered.inc_by(new);
            self.count_notifications(ChannelEvent::Attempted, new, None);
            return;
        }
        let now = self.now();
        for device in devices {
            if self.has_room_for_report() {
                self.reports.entry((DeviceNo(device), push)).or_default().delivered_at.get_or_insert(now);
            }
        }
    }

    /// These devices have acknowledged the push.
    pub(super) fn acknowledged(&mut self, push: u64, devices: &RoaringBitmap) {
        if let Some(audience) = self.audiences.get_mut(&push) {
            let delivered = audience.insert(AudienceSet::Delivered, devices);
            let acknowledged = audience.insert(AudienceSet::Acknowledged, devices);
            self.metrics.push_delivered.inc_by(delivered);
            self.metrics.push_acknowledged.inc_by(acknowledged);
            self.count_notifications(ChannelEvent::Acknowledged, acknowledged, None);
        } else {
            let now = self.now();
            for device in devices.iter().map(DeviceNo) {
                if self.has_room_for_report() {
                    let report = self.reports.entry((device, push)).or_default();
                    report.end.get_or_insert((TargetState::Acknowledged, now));
                }
            }
        }
        self.backlogs_acknowledged(devices, push);
    }

    fn has_room_for_report(&self) -> bool {
        let has_room = self.reports.len() < REPORTS_MAX;
        if !has_room {
            self.metrics.push_notes_dropped.inc();
        }
        has_room
    }

    /// Stores reports in at most so many writes; answers whether all are stored.
    pub(super) fn flush(&mut self, writes: usize) -> StoreResult<bool> {
        let mut left = writes;
        while left > 0 && !self.reports.is_empty() {
            self.flush_named()?;
            left -= 1;
        }
        while left > 0 && self.flush_chunks()? {
            left -= 1;
        }
        while left > 0 && !self.last_bound_dirty.is_empty() {
            self.flush_last_bound()?;
            left -= 1;
        }
        Ok(left > 0)
    }

    fn flush_named(&mut self) -> StoreResult<()> {
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        let some: Vec<_> = self.reports.iter().take(REPORTS_PER_WRITE).map(|(key, report)| (*key, *report)).collect();
        draft.read_ahead(
            some.iter()
                .flat_map(|((device, push), _)| [PushKey::Pending(*device, *push), PushKey::Target(*push, *device)]),
        )?;
        let mut collapses = Vec::new();
        for ((device, push), _) in some.iter().filter(|(_, report)| report.end.is_some()) {
            if let Some(PushRow::Pending(StoredPending { collapse_key: Some(key), .. })) =
                draft.get(&PushKey::Pending(*device, *push))?
            {
                collapses.push(PushKey::Collapse(*device, key));
            }
        }
        draft.read_ahead(collapses)?;
        for ((device, push), report) in &some {
            let Some(PushRow::Pending(pending)) = draft.get(&PushKey::Pending(*device, *push))? else { continue };
            match report.end {
                Some(_) => {
                    let key = pending.collapse_key.as_deref();
                    self.end_target(&mut draft, *device, *push, key, report.end_or(TargetState::Acknowledged))?;
                }
                None => {
                    let mut target = target_of(&draft, *push, *device)?;
                    if target.delivered_at.is_none() {
                        target.delivered_at = report.delivered_at;
                        self.metrics.push_delivered.inc();
                        self.count_notifications(ChannelEvent::Attempted, 1, None);
                        draft.put(PushRow::Target(target));
                    }
                }
            }
        }
        self.store_draft(draft)?;
        for (key, _) in some {
            self.reports.remove(&key);
        }
        Ok(())
    }

    /// A named push ends on a device.
    pub(super) fn end_target(
        &self,
        draft: &mut Draft<'_>,
        device: DeviceNo,
        push: u64,
        collapse_key: Option<&str>,
        end: TargetEnd,
    ) -> StoreResult<()> {
        let mut target = target_of(draft, push, device)?;
        let at = end.at.unwrap_or_else(|| self.now());
        let was_delivered = target.delivered_at.is_some();
        target.delivered_at = target.delivered_at.or(end.delivered_at);
        if end.state == TargetState::Acknowledged {
            target.delivered_at.get_or_insert(at);
        }
        (target.state, target.ended_at) = (end.state, Some(at));
        let is_first_delivery = u64::from(target.delivered_at.is_some() && !was_delivered);
        self.metrics.push_delivered.inc_by(is_first_delivery);
        self.count_notifications(ChannelEvent::Attempted, is_first_delivery, None);
        let (counter, event) = match end.state {
            TargetState::Acknowledged => (&self.metrics.push_acknowledged, Some(ChannelEvent::Acknowledged)),
            TargetState::Expired => (&self.metrics.push_expired, Some(ChannelEvent::Expired)),
            TargetState::Collapsed => (&self.metrics.push_collapsed, Some(ChannelEvent::Superseded)),
            TargetState::Pending | TargetState::Cancelled => (&self.metrics.push_cancelled, None),
        };
        counter.inc();
        if let Some(event) = event {
            let written = target.delivered_at.filter(|_| event == ChannelEvent::Acknowledged);
            self.count_notifications(event, 1, written.map(|written| at.saturating_sub(written)));
        }
        draft.put(PushRow::Target(target));
        draft.delete_pending(device, push, collapse_key)
    }

    /// Stores some chunks of running pushes' sets; answers whether there were any.
    fn flush_chunks(&mut self) -> StoreResult<bool> {
        // Chunks are written whole: whatever became of a write that failed, the next write of a chunk corrects it. So
        // this write needs no reconcile when its outcome is unknown.
        self.check_in_sync()?;
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
        let written = draft.write(self.term);
        if written.is_err() {
            for key in draft.keys() {
                if let PushKey::Chunk(push, set, chunk) = key
                    && let Some(audience) = self.audiences.get_mut(push)
                {
                    audience.mark_dirty(*set, *chunk);
                }
            }
        }
        written.map(|()| true)
    }

    fn flush_last_bound(&mut self) -> StoreResult<()> {
        let store = self.store.clone();
        let mut draft = Draft::new(&*store);
        let some: Vec<_> = self.last_bound_dirty.iter().take(PUSH_ROWS_PER_WRITE).copied().collect();
        for device in some.iter().filter(|device| self.devices.is_known(**device)) {
            draft.put(PushRow::LastBound { device: *device, at: self.devices.bound_ms(*device) });
        }
        // These rows are written whole, too.
        self.check_in_sync()?;
        draft.write(self.term)?;
        for device in &some {
            self.last_bound_dirty.remove(device);
        }
        Ok(())
    }
}

fn target_of(draft: &Draft<'_>, push: u64, device: DeviceNo) -> StoreResult<StoredTarget> {
    match draft.get(&PushKey::Target(push, device))? {
        Some(PushRow::Target(target)) => Ok(target),
        _ => Ok(StoredTarget { push, device, state: TargetState::Pending, delivered_at: None, ended_at: None }),
    }
}

//! Starting a push: its targets are resolved, their rows are written, and the push is sent to those that are online.

use super::Worker;
use crate::{PushFrame, audience::Audience, draft::Draft, prepared_push::TargetSpec};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use tidings_domain::{model::UserNo, push_store::*, store::StoreResult};
use tidings_protocol::http::{PushFallback, PushReach};

/// Bytes of a part: with its key a part stays below the longest row.
const PART_BYTES: usize = 2 * 1024 + 512;
/// Rows that one named device may need: target and pending, and both again for the push that is collapsed there.
const ROWS_PER_DEVICE: usize = 2;
const ROWS_PER_COLLAPSE: usize = 4;

/// What to store of a push, and then to do with it.
pub(super) struct Plan {
    pub(super) header: StoredPush,
    pub(super) frame: Arc<PushFrame>,
    rows: Vec<PushRow>,
    pub(super) deletes: Vec<PushKey>,
    /// The targets of a named push.
    named: Vec<DeviceNo>,
    audience: Option<Audience>,
    /// After how many seconds devices fall back that have not acknowledged the push.
    fallback_after_s: Option<u64>,
}

impl Plan {
    pub(super) fn new(header: StoredPush, frame: Arc<PushFrame>) -> Self {
        let (rows, deletes, named) = Default::default();
        Plan { header, frame, rows, deletes, named, audience: None, fallback_after_s: None }
    }

    /// The plan of a push that waits for its start: the target specification is stored behind the body.
    pub(super) fn scheduled(header: StoredPush, body: &str, targets: &TargetSpec) -> Self {
        let mut plan = Plan::new(
            header,
            Arc::new(PushFrame { push: 0, expires_at: 0, miop: [].as_slice().into(), json: [].as_slice().into() }),
        );
        let mut whole = body.as_bytes().to_vec();
        whole.extend(serde_json::to_vec(targets).unwrap_or_default());
        plan.put_parts(&whole);
        plan
    }

    pub(super) fn put_parts(&mut self, whole: &[u8]) {
        for (part, bytes) in whole.chunks(PART_BYTES).enumerate() {
            self.rows.push(PushRow::Part { push: self.header.push, part: part as u32, bytes: bytes.to_vec() });
        }
        self.header.parts = whole.len().div_ceil(PART_BYTES) as u32;
    }

    /// Adds the rows of the fallback that the push was accepted with.
    pub(super) fn put_fallback(&mut self, fallback: &PushFallback) {
        let push = self.header.push;
        let whole = serde_json::to_vec(fallback).unwrap_or_default();
        self.rows.extend(whole.chunks(PART_BYTES).zip(0..).map(|(bytes, chunk)| PushRow::Fallback {
            push,
            part: FallbackPart::Request,
            chunk,
            bytes: bytes.to_vec(),
        }));
        self.fallback_after_s = Some(fallback.after_s);
    }

    /// Devices of a push that starts now, and was accepted before, fall back after this time.
    pub(super) fn falling_back_after(&mut self, after_s: Option<u64>) {
        self.fallback_after_s = after_s;
    }

    /// When the devices of a push that starts now fall back.
    fn fallback_timer(&self) -> Option<StoredFallbackTimer> {
        let after_s = self.fallback_after_s.filter(|_| self.header.stage == PushStage::Running)?;
        let whom = if after_s == 0 { FallbackDevices::NotConnected } else { FallbackDevices::All };
        let at = self.header.started_at?.saturating_add(after_s * 1_000);
        Some(StoredFallbackTimer { at, push: self.header.push, whom, next: 0 })
    }

    pub(super) fn runs_to_many(&self) -> bool {
        self.audience.is_some()
    }

    /// An upper bound of the rows that are written for the push.
    pub(super) fn rows(&self) -> usize {
        let collapse = if self.header.collapse_key.is_some() { ROWS_PER_COLLAPSE } else { 0 };
        self.rows.len() + self.deletes.len() + self.named.len() * collapse + 7
    }

    /// The rows that make the push accepted: they are in the last of its writes.
    fn final_rows(&self) -> Vec<PushRow> {
        let StoredPush { push, due_at, stage, send_at, .. } = self.header;
        let mut rows = vec![PushRow::Push(self.header.clone()), PushRow::Timer { at: due_at, push }];
        // A scheduled push that starts now has had its row since it was accepted.
        let is_accepted_now = send_at.is_none() || stage == PushStage::Scheduled;
        if let Some(client_push_id) = self.header.client_push_id.clone().filter(|_| is_accepted_now) {
            rows.push(PushRow::ClientPushId { client_push_id, push, request: self.header.request });
        }
        if stage == PushStage::Scheduled {
            rows.push(PushRow::RecoveryIndex { index: RecoveryIndex::Scheduled, push });
        }
        if self.audience.is_some() {
            rows.push(PushRow::RecoveryIndex { index: RecoveryIndex::Live, push });
        }
        rows.extend(self.fallback_timer().map(PushRow::FallbackTimer));
        rows
    }
}

impl Worker {
    pub(crate) fn reach(&self, targets: &TargetSpec) -> PushReach {
        let (devices, online) = match targets {
            TargetSpec::Many(query) => {
                let found = self.devices.select(query);
                (found.len(), found.intersection_len(self.devices.online()))
            }
            TargetSpec::Named { .. } => {
                let (found, _) = self.find_named(targets);
                let online = found.iter().filter(|device| self.devices.session(**device).is_some()).count();
                (found.len() as u64, online as u64)
            }
        };
        PushReach { devices, online }
    }

    /// The named devices, each once, and how many names stand for no device.
    fn find_named(&self, targets: &TargetSpec) -> (Vec<DeviceNo>, u32) {
        let TargetSpec::Named { users, devices, kinds } = targets else { return (Vec::new(), 0) };
        let mut found = FxHashSet::default();
        let mut unknown = 0;
        for user in users {
            found.extend(self.devices.of_user(UserNo(*user)));
        }
        for (user, device_id) in devices {
            match self.devices.find(UserNo(*user), device_id) {
                Some(device) => drop(found.insert(device)),
                None => unknown += 1,
            }
        }
        let mut found: Vec<_> = found.into_iter().filter(|device| self.devices.is_of_kinds(*device, kinds)).collect();
        found.sort_unstable();
        (found, unknown)
    }

    /// Finds the targets and adds their rows to the plan. `planned`: by how much drafts that are not stored yet change
    /// the devices' pending pushes.
    pub(super) fn resolve_targets(
        &self,
        plan: &mut Plan,
        targets: &TargetSpec,
        planned: &FxHashMap<DeviceNo, i32>,
    ) -> StoreResult<()> {
        let header = &mut plan.header;
        header.started_at = Some(self.now());
        header.stage = PushStage::Running;
        header.due_at = header.expires_at;
        match targets {
            TargetSpec::Named { .. } => {
                let (mut named, unknown) = self.find_named(targets);
                let before = named.len();
                let has_room = |device: &DeviceNo| {
                    let pending = self.devices.pending(*device) as i64
                        + i64::from(planned.get(device).copied().unwrap_or_default());
                    (self.config.pending_per_device as i64) > pending
                };
                let full: Vec<DeviceNo> = named.iter().copied().filter(|device| !has_room(device)).collect();
                if !full.is_empty() {
                    let collapses = header.collapse_key.as_deref().map(|key| self.collapses_on(&full, key));
                    let collapses = collapses.transpose()?.unwrap_or_default();
                    named.retain(|device| has_room(device) || collapses.contains(device));
                }
                header.unknown += unknown;
                header.refused_full = (before - named.len()) as u32;
                header.targets = named.len() as u32;
                plan.rows.reserve(named.len() * ROWS_PER_DEVICE);
                for device in &named {
                    let StoredPush { push, high, expires_at, start_order, .. } = *header;
                    let collapse_key = header.collapse_key.clone();
                    let pending = StoredPending { device: *device, push, high, expires_at, collapse_key, start_order };
                    let state = TargetState::Pending;
                    let target = StoredTarget { push, device: *device, state, delivered_at: None, ended_at: None };
                    plan.rows.extend([PushRow::Pending(pending), PushRow::Target(target)]);
                }
                plan.named = named;
            }
            TargetSpec::Many(query) => {
                let targets = self.devices.select(query);
                header.targets = targets.len() as u32;
                if !targets.is_empty() {
                    let (high, collapse_key) = (header.high, header.collapse_key.clone());
                    let (frame, start_order) = (plan.frame.clone(), header.start_order);
                    let mut audience = Audience::with_targets(frame, high, collapse_key, start_order, targets);
                    plan.rows.extend(audience.take_dirty(header.push, usize::MAX));
                    plan.audience = Some(audience);
                }
            }
        }
        if header.targets == 0 {
            (header.stage, header.closed) = (PushStage::Completed, true);
            header.ended_at = header.started_at;
            header.due_at = self.now() + self.retention_ms();
        }
        Ok(())
    }

    pub(super) fn retention_ms(&self) -> u64 {
        self.config.retention.as_millis() as u64
    }

    /// Puts a whole plan into a draft.
    pub(super) fn put_plan(&self, draft: &mut Draft<'_>, plan: &Plan) -> StoreResult<()> {
        for row in plan.rows.iter().cloned().chain(plan.final_rows()) {
            draft.put(row);
        }
        draft.put(self.counters());
        plan.deletes.iter().cloned().for_each(|key| draft.delete(key));
        self.collapse_all(draft, &plan.named, &plan.header)
    }

    /// Stores a plan with more rows than one write takes, and starts it. The write with the final rows comes after
    /// those of the targets.
    pub(super) fn store_in_writes(&mut self, mut plan: Plan) -> StoreResult<()> {
        let store = self.store.clone();
        for rows in std::mem::take(&mut plan.rows).chunks(PUSH_ROWS_PER_WRITE) {
            let mut draft = Draft::new(&*store);
            rows.iter().cloned().for_each(|row| draft.put(row));
            self.store_draft(draft)?;
        }
        let named = std::mem::take(&mut plan.named);
        let mut draft = Draft::new(&*store);
        self.put_plan(&mut draft, &plan)?;
        self.store_draft(draft)?;
        // The push is accepted now. Older pushes are collapsed only from here on: none may end for a push that is never
        // accepted.
        for some in named.chunks(PUSH_ROWS_PER_WRITE / (ROWS_PER_COLLAPSE + 1)) {
            let mut draft = Draft::new(&*store);
            let collapsed = self.collapse_all(&mut draft, some, &plan.header);
            if let Err(error) = collapsed.and_then(|()| self.store_draft(draft)) {
                tracing::warn!(%error, push = plan.header.push, "older pushes with the collapse key were not replaced");
                break;
            }
        }
        plan.named = named;
        self.start(plan);
        Ok(())
    }

    /// Starts a stored push: sends it to its targets that are online.
    pub(super) fn start(&mut self, plan: Plan) {
        if let Some(timer) = plan.fallback_timer() {
            self.inbox.note_fallback(timer.at);
        }
        let Plan { header, frame, named, audience, .. } = plan;
        self.metrics.pushes_accepted.inc();
        if header.stage == PushStage::Scheduled {
            self.scheduled += 1;
            return;
        }
        let targets = match &audience {
            Some(audience) => audience.sets.of(AudienceSet::Targets).clone(),
            None => named.iter().map(|device| device.0).collect(),
        };
        if let Some(collapse_key) = &header.collapse_key {
            self.collapse_audiences(collapse_key, header.start_order, &targets);
        }
        match audience {
            Some(audience) => {
                let mut online = targets & self.devices.online();
                // These devices are about to get the push with their backlogs.
                for device in &self.backlogs_due {
                    online.remove(device.0);
                }
                let in_backlog: Vec<DeviceNo> =
                    self.backlogs.keys().copied().filter(|device| online.contains(device.0)).collect();
                in_backlog.into_iter().for_each(|device| self.sent_at_start(device, header.push));
                self.outgoing.send_many(&frame, header.high, online, &self.devices);
                if header.collapse_key.is_some() {
                    self.collapsing.insert(header.push, 0);
                }
                self.audiences.insert(header.push, audience);
            }
            None if !named.is_empty() => {
                let now: Vec<DeviceNo> =
                    named.into_iter().filter(|device| !self.backlogs_due.contains(device)).collect();
                now.iter().for_each(|device| self.sent_at_start(*device, header.push));
                self.outgoing.send_named(&frame, header.high, &now, &self.devices);
                self.frames.insert(header.push, frame);
            }
            None => {}
        }
    }
}

//! Starting a push: whom it is for, the rows that make it theirs, and the first hand-over to those who are there.

use super::{DeviceNo, PushFrame, accept::Aim, audience::Audience, draft::Draft, rows::*, worker::Worker};
use crate::{model::UserNo, store::StoreResult};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::value::RawValue;
use std::sync::Arc;
use tidings_protocol::{
    frames::{Push, ServerFrame},
    http::PushReach,
    miop,
};

/// Bytes of a part: with its key it stays below the longest row.
const PART_BYTES: usize = 2 * 1024 + 512;
/// Rows that one named device may need: target, pending, and the same of what it collapses.
const ROWS_PER_DEVICE: usize = 2;
const ROWS_PER_COLLAPSE: usize = 4;

/// All that is to be stored of a push, and then done with it.
pub(super) struct Plan {
    pub(super) header: StoredPush,
    pub(super) frame: Arc<PushFrame>,
    rows: Vec<PushRow>,
    pub(super) drops: Vec<PushKey>,
    named: Vec<DeviceNo>,
    audience: Option<Audience>,
}

impl Plan {
    pub(super) fn new(header: StoredPush, frame: Arc<PushFrame>) -> Self {
        Plan { header, frame, rows: Vec::new(), drops: Vec::new(), named: Vec::new(), audience: None }
    }

    /// One that only waits for its time: with the body is stored whom it is for.
    pub(super) fn scheduled(header: StoredPush, body: &str, aim: &Aim) -> Self {
        let mut plan = Plan::new(
            header,
            Arc::new(PushFrame { push: 0, expires_at: 0, miop: [].as_slice().into(), json: [].as_slice().into() }),
        );
        let mut whole = body.as_bytes().to_vec();
        whole.extend(serde_json::to_vec(aim).unwrap_or_default());
        plan.put_parts(&whole);
        plan
    }

    pub(super) fn put_parts(&mut self, whole: &[u8]) {
        for (part, bytes) in whole.chunks(PART_BYTES).enumerate() {
            self.rows.push(PushRow::Part { push: self.header.push, part: part as u32, bytes: bytes.to_vec() });
        }
        self.header.parts = whole.len().div_ceil(PART_BYTES) as u32;
    }

    pub(super) fn runs_to_many(&self) -> bool {
        self.audience.is_some()
    }

    /// At most so many rows are written for it.
    pub(super) fn rows(&self) -> usize {
        let collapse = if self.header.collapse_key.is_some() { ROWS_PER_COLLAPSE } else { 0 };
        self.rows.len() + self.drops.len() + self.named.len() * collapse + 6
    }

    /// The rows that make it true.
    fn last_rows(&self) -> Vec<PushRow> {
        let StoredPush { push, due_at, stage, .. } = self.header;
        let mut rows = vec![PushRow::Push(self.header.clone()), PushRow::Timer { at: due_at, push }];
        if let Some(client_push_id) = self.header.client_push_id.clone() {
            rows.push(PushRow::Name { client_push_id, push });
        }
        if stage == Stage::Scheduled {
            rows.push(PushRow::Mark { mark: Mark::Scheduled, push });
        }
        if self.audience.is_some() {
            rows.push(PushRow::Mark { mark: Mark::Live, push });
        }
        rows
    }
}

/// A push in both forms that sessions write.
pub(super) fn build_frame(push: &StoredPush, body: &str) -> Arc<PushFrame> {
    let miop = miop::Frame::Push(miop::Push {
        push: push.push,
        expires_at: push.expires_at,
        collapse_key: push.collapse_key.as_deref(),
        priority: u64::from(push.high),
        content_type: &push.content_type,
        body: body.as_bytes(),
    });
    let mut bytes = Vec::with_capacity(body.len() + 64);
    miop.put(&mut bytes);
    let json = ServerFrame::Push(Push {
        push: push.push,
        expires_at: push.expires_at,
        collapse_key: push.collapse_key.clone(),
        high: push.high,
        content_type: push.content_type.clone(),
        body: RawValue::from_string(body.to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned()),
    });
    // Writing to memory cannot fail for these types.
    let json = serde_json::to_vec(&json).unwrap_or_default();
    Arc::new(PushFrame { push: push.push, expires_at: push.expires_at, miop: bytes.into(), json: json.into() })
}

impl Worker {
    pub(super) fn reach(&self, aim: &Aim) -> PushReach {
        let (devices, online) = match aim {
            Aim::Many(many) => {
                let found = self.devices.select(many);
                (found.len(), found.intersection_len(self.devices.online()))
            }
            Aim::Named { .. } => {
                let (found, _) = self.resolve(aim);
                let online = found.iter().filter(|device| self.devices.session(**device).is_some()).count();
                (found.len() as u64, online as u64)
            }
        };
        PushReach { devices, online }
    }

    /// The devices that are named, each once, and how many names stand for none.
    fn resolve(&self, aim: &Aim) -> (Vec<DeviceNo>, u32) {
        let Aim::Named { users, devices, kinds } = aim else { return (Vec::new(), 0) };
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

    /// Finds the devices and writes down what makes the push theirs. `planned`: what is about to wait for devices.
    pub(super) fn aim(&self, plan: &mut Plan, aim: &Aim, planned: &FxHashMap<DeviceNo, i32>) -> StoreResult<()> {
        let header = &mut plan.header;
        header.started_at = Some(self.now());
        header.stage = Stage::Running;
        header.due_at = header.expires_at;
        match aim {
            Aim::Named { .. } => {
                let (mut named, unknown) = self.resolve(aim);
                let before = named.len();
                let has_room = |device: &DeviceNo| {
                    let waiting = self.devices.pending(*device) as i64
                        + i64::from(planned.get(device).copied().unwrap_or_default());
                    (self.config.pending_per_device as i64) > waiting
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
                    let StoredPush { push, high, expires_at, order, .. } = *header;
                    let collapse_key = header.collapse_key.clone();
                    let pending = StoredPending { device: *device, push, high, expires_at, collapse_key, order };
                    let fate = Fate::Waits;
                    let target = StoredTarget { push, device: *device, fate, delivered_at: None, ended_at: None };
                    plan.rows.extend([PushRow::Pending(pending), PushRow::Target(target)]);
                }
                plan.named = named;
            }
            Aim::Many(many) => {
                let targets = self.devices.select(many);
                header.targets = targets.len() as u32;
                if !targets.is_empty() {
                    let (high, collapse_key) = (header.high, header.collapse_key.clone());
                    let mut audience = Audience::to(plan.frame.clone(), high, collapse_key, header.order, targets);
                    plan.rows.extend(audience.take_dirty(header.push, usize::MAX));
                    plan.audience = Some(audience);
                }
            }
        }
        if header.targets == 0 {
            (header.stage, header.closed) = (Stage::Completed, true);
            header.ended_at = header.started_at;
            header.due_at = self.now() + self.kept_ms();
        }
        Ok(())
    }

    pub(super) fn kept_ms(&self) -> u64 {
        self.config.kept.as_millis() as u64
    }

    /// Puts a whole plan into a draft.
    pub(super) fn put_plan(&self, draft: &mut Draft<'_>, plan: &Plan) -> StoreResult<()> {
        for row in plan.rows.iter().cloned().chain(plan.last_rows()) {
            draft.put(row);
        }
        draft.put(self.counters());
        plan.drops.iter().cloned().for_each(|key| draft.drop(key));
        self.collapse_all(draft, &plan.named, &plan.header)
    }

    /// One with more rows than a write has. The write that makes it true comes when all others are done.
    pub(super) fn store_in_pieces(&mut self, mut plan: Plan) -> StoreResult<()> {
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
        // It is accepted. What it collapses ends afterwards: nothing may end for a push that then is not there.
        for some in named.chunks(PUSH_ROWS_PER_WRITE / (ROWS_PER_COLLAPSE + 1)) {
            let mut draft = Draft::new(&*store);
            let collapsed = self.collapse_all(&mut draft, some, &plan.header);
            if let Err(error) = collapsed.and_then(|()| self.store_draft(draft)) {
                tracing::warn!(%error, push = plan.header.push, "what a push takes the place of stays beside it");
                break;
            }
        }
        plan.named = named;
        self.begin(plan);
        Ok(())
    }

    /// It is stored: to those who are there.
    pub(super) fn begin(&mut self, plan: Plan) {
        let Plan { header, frame, named, audience, .. } = plan;
        self.metrics.pushes_accepted.inc();
        if header.stage == Stage::Scheduled {
            self.scheduled += 1;
            return;
        }
        let targets = match &audience {
            Some(audience) => audience.sets.of(Set::Targets).clone(),
            None => named.iter().map(|device| device.0).collect(),
        };
        if let Some(collapse_key) = &header.collapse_key {
            self.collapse_audiences(collapse_key, header.order, &targets);
        }
        match audience {
            Some(audience) => {
                let mut there = targets & self.devices.online();
                // They are handed it with what waits for them.
                for device in &self.due {
                    there.remove(device.0);
                }
                let handed: Vec<DeviceNo> = self.handouts.keys().copied().filter(|no| there.contains(no.0)).collect();
                handed.into_iter().for_each(|device| self.handed_at_once(device, header.push));
                self.outgoing.put_many(&frame, header.high, there, &self.devices);
                if header.collapse_key.is_some() {
                    self.collapsing.insert(header.push, 0);
                }
                self.audiences.insert(header.push, audience);
            }
            None if !named.is_empty() => {
                let there: Vec<DeviceNo> = named.into_iter().filter(|device| !self.due.contains(device)).collect();
                there.iter().for_each(|device| self.handed_at_once(*device, header.push));
                self.outgoing.put_named(&frame, header.high, &there, &self.devices);
                self.frames.insert(header.push, frame);
            }
            None => {}
        }
    }
}

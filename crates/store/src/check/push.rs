//! Verifies the rows of push against each other.

use super::CheckReport;
use crate::{errors::store_error, kv::*, push::push_key, rows::*};
use std::collections::{HashMap, HashSet};
use tidings_domain::{model::UserNo, push_store::*, store::*};

/// What other rows must agree with.
#[derive(Default)]
struct PushIndex {
    devices: HashSet<DeviceNo>,
    pushes: HashMap<u64, StoredPush>,
    /// The last number given to a push, and the next one for a device.
    counters: (u64, u32),
}

/// Checks devices, pushes, and the rows that name them.
pub(crate) fn check_push(kv: &dyn KvRead, report: &mut CheckReport) -> StoreResult<()> {
    let mut index = PushIndex::default();
    each_row(kv, &mut |key, row| match row {
        Err(error) => report.fault(format_args!("the push row with key {key:02x?}: {error}")),
        Ok(row) if push_key(&row.key()) != key => {
            report.fault(format_args!("a push row stands under another key than its own: {:?}", row.key()));
        }
        Ok(PushRow::Counters { push, device, .. }) => index.counters = (push, device),
        Ok(PushRow::Device(device)) => {
            report.devices += 1;
            if !matches!(kv.get(Space::Meta, &crate::rows::key(MetaKind::User, &[device.user])), Ok(Some(_))) {
                let (device, user) = (device.no.0, UserNo(device.user));
                report.fault(format_args!("device {device} belongs to user {user:?}, who does not exist"));
            }
            index.devices.insert(device.no);
        }
        Ok(PushRow::Push(push)) => {
            report.pushes += 1;
            index.pushes.insert(push.push, push);
        }
        Ok(_) => {}
    })?;
    let (last_push, next_device) = index.counters;
    if index.devices.iter().any(|device| device.0 >= next_device) {
        report.fault("a device has a number that was not given out");
    }
    if index.pushes.keys().any(|push| *push > last_push) {
        report.fault("a push has a number that was not given out");
    }
    let mut timers: HashMap<u64, u64> = HashMap::new();
    each_row(kv, &mut |_, row| {
        let Ok(row) = row else { return };
        if let Some(fault) = index.fault_of(kv, &row) {
            report.fault(fault);
        }
        match row {
            PushRow::Timer { at, push } if index.pushes.get(&push).is_some_and(|stored| stored.due_at == at) => {
                *timers.entry(push).or_default() += 1;
            }
            PushRow::Pending(_) => report.pending_pushes += 1,
            _ => {}
        }
    })?;
    for (push, stored) in &index.pushes {
        if stored.stage != PushStage::Preparing && timers.get(push) != Some(&1) {
            report.fault(format_args!("push {push} has no timer: it would never end"));
        }
    }
    Ok(())
}

impl PushIndex {
    /// What is wrong with a row that names a push or a device.
    fn fault_of(&self, kv: &dyn KvRead, row: &PushRow) -> Option<String> {
        let no_push = |push: &u64| !self.pushes.contains_key(push);
        match row {
            PushRow::Pending(pending) if no_push(&pending.push) => {
                Some(format!("push {}, which does not exist, is pending for device {}", pending.push, pending.device.0))
            }
            PushRow::Pending(pending) if !self.devices.contains(&pending.device) => {
                Some(format!("push {} is pending for device {}, which does not exist", pending.push, pending.device.0))
            }
            PushRow::Pending(StoredPending { device, push, .. }) => {
                let target = kv.get(Space::Push, &push_key(&PushKey::Target(*push, *device))).ok().flatten();
                let is_pending = matches!(
                    target.map(|row| decode::<PushRow>(&row)),
                    Some(Ok(PushRow::Target(StoredTarget { state: TargetState::Pending, .. })))
                );
                (!is_pending)
                    .then(|| format!("push {push} is pending for device {}, though its target is done", device.0))
            }
            PushRow::Target(StoredTarget { push, device, .. }) if no_push(push) => {
                Some(format!("device {} is a target of push {push}, which does not exist", device.0))
            }
            PushRow::Target(StoredTarget { push, device, state: TargetState::Pending, .. }) => {
                let pending = kv.get(Space::Push, &push_key(&PushKey::Pending(*device, *push))).ok().flatten();
                pending.is_none().then(|| format!("push {push} is not pending for device {}, its target", device.0))
            }
            PushRow::ClientPushId { push, .. }
            | PushRow::Part { push, .. }
            | PushRow::Chunk { push, .. }
            | PushRow::Fallback { push, .. }
                if no_push(push) =>
            {
                Some(format!("{:?} belongs to a push that does not exist", row.key()))
            }
            _ => None,
        }
    }
}

fn each_row(kv: &dyn KvRead, visit: &mut dyn FnMut(&[u8], StoreResult<PushRow>)) -> StoreResult<()> {
    kv.scan(Space::Push, &[], LAST_KEY, Order::Ascending, &mut |key, row| {
        visit(key, decode(row));
        true
    })
    .map_err(store_error)
}

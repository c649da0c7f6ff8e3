//! What must be true of the rows of push.

use crate::{check::CheckReport, embedded::store_error, kv::*, push::push_key, rows::*};
use std::collections::{HashMap, HashSet};
use tidings_engine::{
    model::UserNo,
    push::{DeviceNo, rows::*},
    store::*,
};

/// What the rows say that other rows must agree with.
#[derive(Default)]
struct Found {
    devices: HashSet<DeviceNo>,
    pushes: HashMap<u64, StoredPush>,
    counters: (u64, u32),
}

/// Checks devices, pushes, and everything that names them.
pub(crate) fn check_push(kv: &dyn KvRead, report: &mut CheckReport) -> StoreResult<()> {
    let mut found = Found::default();
    each_row(kv, &mut |key, row| match row {
        Err(error) => report.fault(format_args!("a row of push, key {key:02x?}: {error}")),
        Ok(row) if push_key(&row.key()) != key => {
            report.fault(format_args!("a row of push stands under another key: {:?}", row.key()));
        }
        Ok(PushRow::Counters { push, device, .. }) => found.counters = (push, device),
        Ok(PushRow::Device(device)) => {
            report.devices += 1;
            if !matches!(kv.get(Space::Meta, &crate::rows::key(b'U', &[device.user])), Ok(Some(_))) {
                report.fault(format_args!(
                    "device {} is of user {:?}, who does not exist",
                    device.no.0,
                    UserNo(device.user)
                ));
            }
            found.devices.insert(device.no);
        }
        Ok(PushRow::Push(push)) => {
            report.pushes += 1;
            found.pushes.insert(push.push, push);
        }
        Ok(_) => {}
    })?;
    let (last_push, next_device) = found.counters;
    if found.devices.iter().any(|device| device.0 >= next_device) {
        report.fault("a device's number was not given out");
    }
    if found.pushes.keys().any(|push| *push > last_push) {
        report.fault("a push's number was not given out");
    }
    let mut timers: HashMap<u64, u64> = HashMap::new();
    each_row(kv, &mut |_, row| {
        let Ok(row) = row else { return };
        if let Some(fault) = found.fault_of(kv, &row) {
            report.fault(fault);
        }
        match row {
            PushRow::Timer { at, push } if found.pushes.get(&push).is_some_and(|stored| stored.due_at == at) => {
                *timers.entry(push).or_default() += 1;
            }
            PushRow::Pending(_) => report.pending_pushes += 1,
            _ => {}
        }
    })?;
    for (push, stored) in &found.pushes {
        if stored.stage != Stage::Preparing && timers.get(push) != Some(&1) {
            report.fault(format_args!("push {push} has no timer: it would never end"));
        }
    }
    Ok(())
}

impl Found {
    fn fault_of(&self, kv: &dyn KvRead, row: &PushRow) -> Option<String> {
        let no_push = |push: &u64| !self.pushes.contains_key(push);
        match row {
            PushRow::Pending(pending) if no_push(&pending.push) => {
                Some(format!("push {}, which does not exist, waits for device {}", pending.push, pending.device.0))
            }
            PushRow::Pending(pending) if !self.devices.contains(&pending.device) => {
                Some(format!("push {} waits for device {}, which does not exist", pending.push, pending.device.0))
            }
            PushRow::Pending(StoredPending { device, push, .. }) => {
                let target = kv.get(Space::Push, &push_key(&PushKey::Target(*push, *device))).ok().flatten();
                let waits = matches!(
                    target.map(|row| decode::<PushRow>(&row)),
                    Some(Ok(PushRow::Target(StoredTarget { fate: Fate::Waits, .. })))
                );
                (!waits).then(|| format!("push {push} waits for device {}, and is through there", device.0))
            }
            PushRow::Target(StoredTarget { push, device, .. }) if no_push(push) => {
                Some(format!("device {} is a target of push {push}, which does not exist", device.0))
            }
            PushRow::Target(StoredTarget { push, device, fate: Fate::Waits, .. }) => {
                let pending = kv.get(Space::Push, &push_key(&PushKey::Pending(*device, *push))).ok().flatten();
                pending.is_none().then(|| format!("push {push} is not handed to device {}, its target", device.0))
            }
            PushRow::Name { push, .. } | PushRow::Part { push, .. } | PushRow::Chunk { push, .. } if no_push(push) => {
                Some(format!("{:?} is of no push", row.key()))
            }
            _ => None,
        }
    }
}

fn each_row(kv: &dyn KvRead, visit: &mut dyn FnMut(&[u8], StoreResult<PushRow>)) -> StoreResult<()> {
    kv.scan(Space::Push, &[], LAST_KEY, Order::Up, &mut |key, row| {
        visit(key, decode(row));
        true
    })
    .map_err(store_error)
}

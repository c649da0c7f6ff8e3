//! The stored pushes that are, or were, for some devices: what a person's export has of pushes. It reads the store alone.

use super::{
    audience::{DeviceSets, chunk_of},
    user_delivery::state_of_target,
};
use serde::Serialize;
use serde_json::value::RawValue;
use tidings_domain::{
    push_store::*,
    store::{Store, StoreError, StoreResult},
};
use tidings_protocol::http::DeviceState;

/// Pushes that are looked at together: a read has the keys of all of them.
const PUSHES_AT_ONCE: usize = 200;

/// What became of a push on a device.
#[derive(Debug, Serialize)]
pub struct PushOfDevice {
    pub push: u64,
    pub device_id: String,
    pub state: DeviceState,
    pub accepted_at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    pub expires_at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collapse_key: Option<String>,
    #[serde(rename = "type")]
    pub content_type: String,
    pub body: Box<RawValue>,
}

/// The pushes from the number `from` on that are for one of these devices; and the number from which on the next page is. A page looks at
/// a bounded number of pushes, and may be empty.
///
/// # Errors
/// The store cannot be read.
pub fn pushes_of_devices(
    store: &dyn Store,
    devices: &[StoredDevice],
    from: u64,
) -> StoreResult<(Vec<PushOfDevice>, Option<u64>)> {
    let rows = store.push_rows(&PushKey::Push(from), &PushKey::Push(u64::MAX), PUSHES_AT_ONCE)?;
    let is_last = rows.len() < PUSHES_AT_ONCE;
    let pushes: Vec<StoredPush> = rows
        .into_iter()
        .filter_map(|row| match row {
            PushRow::Push(push) => Some(push),
            _ => None,
        })
        .collect();
    let next = pushes.last().filter(|_| !is_last).map(|push| push.push + 1);
    let mut found = Vec::new();
    for push in pushes {
        let states = if push.to_many {
            states_to_many(store, &push, devices)?
        } else {
            let keys: Vec<_> = devices.iter().map(|device| PushKey::Target(push.push, device.no)).collect();
            let targets = store.push_rows_of(&keys)?.into_iter().zip(devices);
            let states = targets.filter_map(|(row, device)| match row {
                Some(PushRow::Target(target)) => {
                    Some((device, state_of_target(&target), target.delivered_at, target.ended_at))
                }
                _ => None,
            });
            states.collect()
        };
        if states.is_empty() {
            continue;
        }
        let body = body_of(store, &push)?;
        found.extend(states.into_iter().map(|(device, state, delivered_at, ended_at)| PushOfDevice {
            push: push.push,
            device_id: device.device_id.clone(),
            state,
            accepted_at: push.accepted_at,
            delivered_at,
            ended_at,
            expires_at: push.expires_at,
            collapse_key: push.collapse_key.clone(),
            content_type: push.content_type.clone(),
            body: body.clone(),
        }));
    }
    Ok((found, next))
}

type DeviceAndState<'d> = (&'d StoredDevice, DeviceState, Option<u64>, Option<u64>);

fn states_to_many<'d>(
    store: &dyn Store,
    push: &StoredPush,
    devices: &'d [StoredDevice],
) -> StoreResult<Vec<DeviceAndState<'d>>> {
    let mut chunks: Vec<u32> = devices.iter().map(|device| chunk_of(device.no)).collect();
    chunks.dedup();
    let sets = DeviceSets::read_chunks(store, push.push, &chunks)?;
    let targets = devices.iter().filter(|device| sets.of(AudienceSet::Targets).contains(device.no.0));
    Ok(targets.map(|device| (device, sets.state(device.no, push.stage), None, push.ended_at)).collect())
}

fn body_of(store: &dyn Store, push: &StoredPush) -> StoreResult<Box<RawValue>> {
    let last = PushKey::Part(push.push, u32::MAX);
    let mut whole = Vec::new();
    for row in store.push_rows(&PushKey::Part(push.push, 0), &last, push.parts as usize)? {
        if let PushRow::Part { bytes, .. } = row {
            whole.extend(bytes);
        }
    }
    whole.truncate(push.body_bytes as usize);
    let text = String::from_utf8(whole).ok().and_then(|text| RawValue::from_string(text).ok());
    text.ok_or_else(|| StoreError::Damaged(format!("the body of push {}", push.push)))
}

//! Why a push reached, or did not reach, the devices of a user.

use crate::{PushHandle, audience::DeviceSets, fallback::sent_by};
use tidings_domain::{push_store::*, refusals::store_refusal, store::StoreResult};
use tidings_protocol::{error::Refusal, http::*};

/// What is known of a push on one device.
struct OnDevice {
    state: DeviceState,
    delivered_at: Option<u64>,
    ended_at: Option<u64>,
}

impl PushHandle {
    /// What became of a push on each device of a user, and why. Blocks.
    ///
    /// # Errors
    /// `not_found` for a push that was never accepted or is purged, and for an unknown user; else as [`Self::settle`].
    pub fn user_delivery(&self, push: u64, user: &str) -> Result<PushUserDelivery, Refusal> {
        let no = self.require_user(user)?;
        // Reports of devices are up to one flush behind; who asks for the cause wants the newest.
        self.settle()?;
        let stored = self.stored_push(push)?;
        let all_details = self.ask(move |worker| worker.numbered_device_details(no))?.map_err(store_refusal)?;
        let sent = self.sent_by_providers(push).map_err(store_refusal)?;
        let mut devices = Vec::with_capacity(all_details.len());
        for (device, details) in all_details {
            let found = if stored.to_many {
                self.of_many(&stored, device)?
            } else {
                self.of_named(push, device).map_err(store_refusal)?
            };
            let newer = match found.as_ref().map(|found| found.state) {
                Some(DeviceState::Collapsed) => self.newer_push(&stored, device).map_err(store_refusal)?,
                _ => None,
            };
            let about = about_device(&stored, &details, found, newer);
            devices.push(with_fallback(about, sent_by(&sent, device)));
        }
        let started_at = stored.started_at;
        Ok(PushUserDelivery { push, user: user.to_owned(), accepted_at: stored.accepted_at, started_at, devices })
    }

    fn of_named(&self, push: u64, device: DeviceNo) -> StoreResult<Option<OnDevice>> {
        let Some(PushRow::Target(target)) = self.store.push_row(&PushKey::Target(push, device))? else {
            return Ok(None);
        };
        let (delivered_at, ended_at) = (target.delivered_at, target.ended_at);
        Ok(Some(OnDevice { state: state_of_target(&target), delivered_at, ended_at }))
    }

    fn of_many(&self, stored: &StoredPush, device: DeviceNo) -> Result<Option<OnDevice>, Refusal> {
        let (push, stage) = (stored.push, stored.stage);
        let state_in = move |sets: &DeviceSets| {
            sets.of(AudienceSet::Targets).contains(device.0).then(|| sets.state(device, stage))
        };
        let state = match self.ask(move |worker| worker.sets_of_running(push).map(state_in))? {
            Some(state) => state,
            None => state_in(&DeviceSets::read(&*self.store, push).map_err(store_refusal)?),
        };
        Ok(state.map(|state| OnDevice { state, delivered_at: None, ended_at: None }))
    }

    /// The push that took the place, if it is known still.
    fn newer_push(&self, stored: &StoredPush, device: DeviceNo) -> StoreResult<Option<u64>> {
        let Some(key) = stored.collapse_key.clone() else { return Ok(None) };
        let row = self.store.push_row(&PushKey::Collapse(device, key))?;
        Ok(if let Some(PushRow::Collapse { push, .. }) = row {
            Some(push).filter(|push| *push != stored.push)
        } else {
            None
        })
    }
}

/// The state of a target's row.
pub(crate) fn state_of_target(target: &StoredTarget) -> DeviceState {
    match target.state {
        TargetState::Pending if target.delivered_at.is_some() => DeviceState::Delivered,
        TargetState::Pending => DeviceState::Pending,
        TargetState::Acknowledged => DeviceState::Acknowledged,
        TargetState::Expired => DeviceState::Expired,
        TargetState::Collapsed => DeviceState::Collapsed,
        TargetState::Cancelled => DeviceState::Cancelled,
    }
}

/// Why it is as it is, in a sentence of which the device is the subject.
fn about_device(
    stored: &StoredPush,
    details: &DeviceDetails,
    found: Option<OnDevice>,
    newer: Option<u64>,
) -> PushDeviceDelivery {
    let name = &details.device_id;
    let on = |at: Option<u64>| at.map(|at| format!(" at {}", time(at))).unwrap_or_default();
    let (delivered_at, ended_at) = found.as_ref().map_or((None, None), |found| (found.delivered_at, found.ended_at));
    let connected = if details.online {
        "is connected now".to_owned()
    } else {
        format!("is not connected; it was last at {}", time(details.last_bound))
    };
    let written = match (delivered_at, found.as_ref().map(|found| found.state)) {
        (Some(at), _) => format!("it was written to its connection at {}", time(at)),
        (None, Some(DeviceState::Delivered)) => "it was written to its connection".into(),
        (None, _) => "it was never written to its connection".into(),
    };
    let summary = match (&found, stored.stage, stored.started_at) {
        (None, PushStage::Scheduled, _) => {
            format!("the push has not started; it is to start at {}", time(stored.due_at))
        }
        (None, _, Some(started)) if details.first_bound > started => {
            format!(
                "{name} was unknown when the push started: it connected for the first time at {}",
                time(details.first_bound)
            )
        }
        (None, _, _) if stored.refused_full > 0 => {
            format!(
                "{name} is not among the push's devices: it does not fit what the push is for, or had too many pushes pending"
            )
        }
        (None, _, _) => format!("{name} is not among the push's devices: it does not fit what the push is for"),
        (Some(found), ..) => match found.state {
            DeviceState::Pending => {
                format!("{name} {connected}; the push waits for it until {}", time(stored.expires_at))
            }
            DeviceState::Delivered => {
                format!(
                    "{name} has not acknowledged the push, and {connected}; {written}, and is again until {}",
                    time(stored.expires_at)
                )
            }
            DeviceState::Acknowledged => format!("{name} acknowledged the push{}", on(ended_at)),
            DeviceState::Expired => {
                format!("{name} did not acknowledge the push before {}; {written}", time(stored.expires_at))
            }
            DeviceState::Collapsed => match newer {
                Some(newer) => {
                    format!("push {newer} with the same collapse key took its place for {name}{}", on(ended_at))
                }
                None => format!("a newer push with the same collapse key took its place for {name}{}", on(ended_at)),
            },
            DeviceState::Cancelled => format!(
                "the push was cancelled{} before {name} acknowledged it; {written}",
                on(ended_at.or(stored.ended_at))
            ),
        },
    };
    PushDeviceDelivery {
        device_id: details.device_id.clone(),
        online: details.online,
        state: found.map(|found| found.state),
        delivered_at,
        ended_at,
        replaced_by: newer,
        fallback: None,
        summary,
    }
}

/// Adds by which provider the device was notified in place of the push.
fn with_fallback(about: PushDeviceDelivery, fallback: Option<PushProvider>) -> PushDeviceDelivery {
    let Some(provider) = fallback else { return about };
    let summary = format!("{}; a notification in its place went out by {}", about.summary, provider.name());
    PushDeviceDelivery { fallback, summary, ..about }
}

fn time(at: u64) -> String {
    jiff::Timestamp::from_millisecond(at as i64).map_or_else(|_| at.to_string(), |at| at.to_string())
}

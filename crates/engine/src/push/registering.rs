//! Devices become known: a device is in the store before its session is told that it is bound, so a
//! push to all after that reaches it.

use super::{
    DeviceNo, Register, devices::Session, draft::Draft, elsewhere::Answer, numbers::DEVICES_MAX, rows::*,
    worker::Worker,
};
use crate::{
    commit::store_refusal,
    store::{StoreError, StoreResult},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::Instant;
use tidings_protocol::error::{ErrorCode, Refusal};

/// Registrations of one write.
const REGISTERS_PER_WRITE: usize = PUSH_ROWS_PER_WRITE - 1;

impl Worker {
    pub(super) fn register_all(&mut self, registers: &[Register]) {
        for some in registers.chunks(REGISTERS_PER_WRITE) {
            self.register_some(some);
        }
    }

    fn register_some(&mut self, registers: &[Register]) {
        // Whose rows must be written first, by the place in the list.
        let mut changed: FxHashMap<usize, StoredDevice> = FxHashMap::default();
        let mut new: FxHashMap<(u64, &str), DeviceNo> = FxHashMap::default();
        let mut found = Vec::with_capacity(registers.len());
        let next_before = self.numbers.next;
        for (place, register) in registers.iter().enumerate() {
            let device = match self.devices.find(register.user, &register.device_id) {
                Some(device) => self.changed_card(device, register).map(|card| {
                    changed.extend(card.map(|card| (place, card)));
                    device
                }),
                None => match new.get(&(register.user.0, &*register.device_id)) {
                    Some(device) => Ok(*device),
                    None => self
                        .new_device(register, new.keys().filter(|(user, _)| *user == register.user.0).count())
                        .inspect(|card| {
                            new.insert((register.user.0, &*register.device_id), card.no);
                            changed.insert(place, card.clone());
                        })
                        .map(|card| card.no),
                },
            };
            found.push(device);
        }
        let mut failed = None;
        if !changed.is_empty() {
            let store = self.store.clone();
            let mut draft = Draft::new(&*store);
            changed.values().for_each(|card| draft.put(PushRow::Device(card.clone())));
            draft.put(self.counters());
            let written = self.store_draft(draft);
            // Numbers that may have been stored are never given again: a device's rows, and its pushes, would be another's.
            if matches!(&written, Err(error) if !matches!(error, StoreError::Unsure(_))) {
                // From the last one taken: those that are new go back to where they came from.
                let mut taken: Vec<DeviceNo> = new.values().copied().collect();
                taken.sort_unstable();
                taken.into_iter().filter(|device| device.0 < next_before).for_each(|no| self.numbers.give_back(no));
                self.numbers.next = next_before;
            }
            failed = written.err().map(store_refusal);
        }
        let now = self.now();
        let fresh: FxHashSet<DeviceNo> = new.values().copied().collect();
        for (place, (register, device)) in registers.iter().zip(found).enumerate() {
            let card = changed.remove(&place);
            let is_written = |device: &DeviceNo| !fresh.contains(device) && card.is_none();
            let result = match &failed {
                Some(refusal) => device.and_then(|no| if is_written(&no) { Ok(no) } else { Err(refusal.clone()) }),
                None => device,
            };
            if let Ok(device) = result {
                if card.is_some() && fresh.contains(&device) {
                    // It was asked before whether it may.
                    let _ = self.new_devices.take(register.user, 1, too_many_new);
                }
                card.iter().for_each(|card| self.devices.put(card));
                let session = Session { place: register.shard, name: register.session, since: register.since };
                if self.devices.bind(device, session, now) {
                    self.handouts.remove(&device);
                    self.due.insert(device);
                }
                self.bound.insert(device);
                self.metrics.push_registrations.inc();
            }
            self.answer(register, result);
        }
    }

    fn answer(&mut self, register: &Register, result: Result<DeviceNo, Refusal>) {
        let (place, session) = (register.shard, register.session);
        let Some(name) = self.held.name(place, session) else {
            return self.outgoing.answer(place, session, result);
        };
        match self.held.answered(name, result.as_ref().ok().copied()) {
            Answer::Tell(shard, session) => self.outgoing.answer(shard, session, result),
            Answer::Nothing => {}
            // The store failed; it is tried again when that may be over.
            Answer::Again => {
                self.unregistered.push(name);
                self.failed_at.get_or_insert(Instant::now());
            }
        }
    }

    /// The row of a known device if it comes as another kind or version.
    fn changed_card(&self, device: DeviceNo, register: &Register) -> Result<Option<StoredDevice>, Refusal> {
        let version = register.app_version.as_deref();
        if !self.devices.card_differs(device, &register.device_kind, version) {
            return Ok(None);
        }
        let card = self.device_row(device).map_err(store_refusal)?;
        Ok(card.map(|card| StoredDevice {
            device_kind: register.device_kind.to_string(),
            app_version: version.map(str::to_owned),
            ..card
        }))
    }

    pub(super) fn device_row(&self, device: DeviceNo) -> StoreResult<Option<StoredDevice>> {
        match self.store.push_row(&PushKey::Device(device))? {
            Some(PushRow::Device(card)) => Ok(Some(card)),
            _ => Ok(None),
        }
    }

    /// `before`: new devices of the user in the same write, which are not among the known ones yet.
    fn new_device(&mut self, register: &Register, before: usize) -> Result<StoredDevice, Refusal> {
        self.new_devices.check(register.user, before + 1, too_many_new)?;
        if let Some(old) = self.devices.gives_way(register.user, before)? {
            let session = self.devices.session(old);
            self.remove_device(old).map_err(store_refusal)?;
            if let Some((place, session)) =
                session.filter(|(place, session)| self.held.name(*place, *session).is_none())
            {
                let refusal = Refusal::new(ErrorCode::Replaced, "the limit of the user's devices was reached");
                self.outgoing.answer(place, session, Err(refusal));
            }
        }
        let no = self.take_number().map_err(store_refusal)?;
        let no =
            no.ok_or_else(|| Refusal::new(ErrorCode::QueueFull, format!("devices are limited to {DEVICES_MAX}")))?;
        Ok(StoredDevice {
            no,
            user: register.user.0,
            device_id: register.device_id.to_string(),
            device_kind: register.device_kind.to_string(),
            app_version: register.app_version.as_deref().map(str::to_owned),
            tags: Vec::new(),
            first_bound: self.now(),
        })
    }
}

fn too_many_new() -> String {
    "device_id: you bind too many new devices".into()
}

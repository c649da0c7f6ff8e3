//! Devices become known: a device is in the store before its session is told that it is bound, so a
//! push to all after that reaches it.

use super::{DeviceNo, Register, devices::Session, draft::Draft, elsewhere::Answer, rows::*, worker::Worker};
use crate::{
    commit::store_refusal,
    store::{StoreError, StoreResult},
};
use rustc_hash::FxHashMap;
use std::time::Instant;
use tidings_protocol::error::{ErrorCode, Refusal};

/// Registrations of one write.
const REGISTERS_PER_WRITE: usize = PUSH_ROWS_PER_WRITE - 1;
/// Devices that can be known: above, a new one is refused.
const DEVICES_MAX: u32 = 100_000_000;

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
        let next_device = self.next_device;
        for (place, register) in registers.iter().enumerate() {
            let device = match self.devices.find(register.user, &register.device_id) {
                Some(device) => self.changed_card(device, register).map(|card| {
                    changed.extend(card.map(|card| (place, card)));
                    device
                }),
                None => match new.get(&(register.user.0, &*register.device_id)) {
                    Some(device) => Ok(*device),
                    None => self
                        .new_device(register)
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
                self.next_device = next_device;
            }
            failed = written.err().map(store_refusal);
        }
        let now = self.now();
        for (place, (register, device)) in registers.iter().zip(found).enumerate() {
            let card = changed.remove(&place);
            let is_written = |device: &DeviceNo| device.0 < next_device && card.is_none();
            let result = match &failed {
                Some(refusal) => device.and_then(|no| if is_written(&no) { Ok(no) } else { Err(refusal.clone()) }),
                None => device,
            };
            if let Ok(device) = result {
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

    fn new_device(&mut self, register: &Register) -> Result<StoredDevice, Refusal> {
        if let Some(old) = self.devices.gives_way(register.user) {
            self.remove_device(old).map_err(store_refusal)?;
        }
        if self.next_device == DEVICES_MAX {
            return Err(Refusal::new(ErrorCode::QueueFull, format!("devices are limited to {DEVICES_MAX}")));
        }
        let no = DeviceNo(self.next_device);
        self.next_device += 1;
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

//! Registration: a session's device becomes known. The device is stored before its session learns that it is bound, so
//! a push to all that is accepted after that reaches it.

use super::{Worker, device_numbers::DEVICES_MAX};
use crate::{Register, devices::Session, draft::Draft, remote::AfterRegister};
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::Instant;
use tidings_domain::{
    push_store::*,
    refusals::store_refusal,
    store::{StoreError, StoreResult},
};
use tidings_protocol::error::{ErrorCode, Refusal};

/// Registrations in one write.
const REGISTERS_PER_WRITE: usize = PUSH_ROWS_PER_WRITE - 1;

impl Worker {
    pub(super) fn register_all(&mut self, registers: &[Register]) {
        for batch in registers.chunks(REGISTERS_PER_WRITE) {
            self.register_batch(batch);
        }
    }

    fn register_batch(&mut self, registers: &[Register]) {
        // Device rows to write before the answers, by the index of the registration.
        let mut changed: FxHashMap<usize, StoredDevice> = FxHashMap::default();
        let mut new: FxHashMap<(u64, &str), DeviceNo> = FxHashMap::default();
        let mut found = Vec::with_capacity(registers.len());
        let next_before = self.numbers.next;
        for (index, register) in registers.iter().enumerate() {
            let device = match self.devices.find(register.user, &register.device_id) {
                Some(device) => self.changed_row(device, register).map(|row| {
                    changed.extend(row.map(|row| (index, row)));
                    device
                }),
                None => match new.get(&(register.user.0, &*register.device_id)) {
                    Some(device) => Ok(*device),
                    None => self
                        .new_device(register, new.keys().filter(|(user, _)| *user == register.user.0).count())
                        .inspect(|row| {
                            new.insert((register.user.0, &*register.device_id), row.no);
                            changed.insert(index, row.clone());
                        })
                        .map(|row| row.no),
                },
            };
            found.push(device);
        }
        let mut failed = None;
        if !changed.is_empty() {
            let store = self.store.clone();
            let mut draft = Draft::new(&*store);
            changed.values().for_each(|row| draft.put(PushRow::Device(row.clone())));
            draft.put(self.counters());
            let written = self.store_draft(draft);
            // A number that may have been stored is not given to another device, which would take over the first one's
            // rows and pushes.
            if matches!(&written, Err(error) if !matches!(error, StoreError::OutcomeUnknown(_))) {
                // The highest first, so that fresh numbers go back in the order in which they were taken.
                let mut taken: Vec<DeviceNo> = new.values().copied().collect();
                taken.sort_unstable();
                taken.into_iter().filter(|device| device.0 < next_before).for_each(|no| self.numbers.give_back(no));
                self.numbers.next = next_before;
            }
            failed = written.err().map(store_refusal);
        }
        let now = self.now();
        let fresh: FxHashSet<DeviceNo> = new.values().copied().collect();
        for (index, (register, device)) in registers.iter().zip(found).enumerate() {
            let row = changed.remove(&index);
            let is_written = |device: &DeviceNo| !fresh.contains(device) && row.is_none();
            let result = match &failed {
                Some(refusal) => device.and_then(|no| if is_written(&no) { Ok(no) } else { Err(refusal.clone()) }),
                None => device,
            };
            if let Ok(device) = result {
                if row.is_some() && fresh.contains(&device) {
                    // `new_device` has checked that the user may have it.
                    let _ = self.new_devices.take(register.user, 1, too_many_new);
                }
                row.iter().for_each(|row| self.devices.put(row));
                let session = Session { destination: register.shard, id: register.session, since: register.since };
                if self.devices.bind(device, session, now) {
                    self.backlogs.remove(&device);
                    self.backlogs_due.insert(device);
                }
                self.last_bound_dirty.insert(device);
                self.metrics.push_registrations.inc();
            }
            self.answer(register, result);
        }
    }

    fn answer(&mut self, register: &Register, result: Result<DeviceNo, Refusal>) {
        let (destination, session) = (register.shard, register.session);
        let Some(id) = self.local_sessions.id(destination, session) else {
            return self.outgoing.send_answer(destination, session, result);
        };
        let after = self.local_sessions.answered(id, &result);
        if matches!(after, AfterRegister::Retry | AfterRegister::TellAndRetry(..)) {
            // The store failed: wait before the next try.
            self.unregistered.push(id);
            self.store_failed_at.get_or_insert(Instant::now());
        }
        if let AfterRegister::Tell(shard, session) | AfterRegister::TellAndRetry(shard, session) = after {
            self.outgoing.send_answer(shard, session, result);
        }
    }

    /// The new row of a known device, if it binds with another kind or version.
    fn changed_row(&self, device: DeviceNo, register: &Register) -> Result<Option<StoredDevice>, Refusal> {
        let version = register.app_version.as_deref();
        if !self.devices.details_differ(device, &register.device_kind, version) {
            return Ok(None);
        }
        let row = self.device_row(device).map_err(store_refusal)?;
        Ok(row.map(|row| StoredDevice {
            device_kind: register.device_kind.to_string(),
            app_version: version.map(str::to_owned),
            ..row
        }))
    }

    pub(super) fn device_row(&self, device: DeviceNo) -> StoreResult<Option<StoredDevice>> {
        match self.store.push_row(&PushKey::Device(device))? {
            Some(PushRow::Device(row)) => Ok(Some(row)),
            _ => Ok(None),
        }
    }

    /// `uncommitted`: the user's further new devices in the same write, which are not known yet.
    fn new_device(&mut self, register: &Register, uncommitted: usize) -> Result<StoredDevice, Refusal> {
        self.new_devices.check(register.user, uncommitted + 1, too_many_new)?;
        if let Some(old) = self.devices.eviction_candidate(register.user, uncommitted)? {
            let session = self.devices.session(old);
            self.remove_device(old).map_err(store_refusal)?;
            let is_local = |(destination, session)| self.local_sessions.id(destination, session).is_some();
            if let Some((destination, session)) = session.filter(|session| !is_local(*session)) {
                let refusal = Refusal::new(ErrorCode::Replaced, "the limit of the user's devices was reached");
                self.outgoing.send_answer(destination, session, Err(refusal));
            }
        }
        let no = self.allocate_number().map_err(store_refusal)?;
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

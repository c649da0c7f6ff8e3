//! Changes on their way to the store, seen by who reads through them.

use super::{
    DeviceNo,
    rows::{PushChange, PushKey, PushRow},
};
use crate::store::{Store, StoreResult, Term};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

pub(super) struct Draft<'a> {
    store: &'a dyn Store,
    changes: BTreeMap<PushKey, Option<PushRow>>,
    /// What the store has, as far as it was read ahead.
    read: BTreeMap<PushKey, Option<PushRow>>,
    /// By how much the pushes that wait for a device by name grow once this is stored.
    pub(super) pending: FxHashMap<DeviceNo, i32>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(store: &'a dyn Store) -> Self {
        Draft { store, changes: BTreeMap::new(), read: BTreeMap::new(), pending: FxHashMap::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &PushKey> {
        self.changes.keys()
    }

    pub(super) fn get(&self, key: &PushKey) -> StoreResult<Option<PushRow>> {
        match self.changes.get(key) {
            Some(row) => Ok(row.clone()),
            None => self.read.get(key).map_or_else(|| self.store.push_row(key), |row| Ok(row.clone())),
        }
    }

    /// Reads rows that will be asked for, all at once.
    pub(super) fn read_ahead(&mut self, keys: impl IntoIterator<Item = PushKey>) -> StoreResult<()> {
        let is_known = |key: &PushKey| self.changes.contains_key(key) || self.read.contains_key(key);
        let keys: Vec<PushKey> = keys.into_iter().filter(|key| !is_known(key)).collect();
        if !keys.is_empty() {
            let rows = self.store.push_rows_of(&keys)?;
            self.read.extend(keys.into_iter().zip(rows));
        }
        Ok(())
    }

    pub(super) fn put(&mut self, row: PushRow) {
        if let PushRow::Pending(pending) = &row {
            *self.pending.entry(pending.device).or_default() += 1;
        }
        self.changes.insert(row.key(), Some(row));
    }

    pub(super) fn drop(&mut self, key: PushKey) {
        self.changes.insert(key, None);
    }

    /// A push waits for a device no more; its place under its collapse key goes with it.
    pub(super) fn drop_pending(&mut self, device: DeviceNo, push: u64, collapse_key: Option<&str>) -> StoreResult<()> {
        *self.pending.entry(device).or_default() -= 1;
        self.drop(PushKey::Pending(device, push));
        if let Some(collapse_key) = collapse_key {
            let key = PushKey::Collapse(device, collapse_key.to_owned());
            if let Some(PushRow::Collapse { push: newest, .. }) = self.get(&key)?
                && newest == push
            {
                self.drop(key);
            }
        }
        Ok(())
    }

    /// Stores it all in one write.
    pub(super) fn write(&self, term: Term) -> StoreResult<()> {
        if self.changes.is_empty() {
            return Ok(());
        }
        let changes: Vec<PushChange> = self
            .changes
            .iter()
            .map(|(key, row)| match row {
                Some(row) => PushChange::Put(row.clone()),
                None => PushChange::Drop(key.clone()),
            })
            .collect();
        self.store.write_push(term, &changes)
    }
}

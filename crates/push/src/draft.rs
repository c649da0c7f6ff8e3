//! Changes that become one write. Reads through a draft see its changes before they are stored.

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use tidings_domain::{
    push_store::{DeviceNo, PushChange, PushKey, PushRow, StoredPush},
    store::{Store, StoreResult, Term},
};

pub(super) struct Draft<'a> {
    store: &'a dyn Store,
    changes: BTreeMap<PushKey, Option<PushRow>>,
    /// Rows as the store has them, as far as they were read ahead.
    read: BTreeMap<PushKey, Option<PushRow>>,
    /// By how much each device's count of pending named pushes changes once this is stored.
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

    /// The pushes whose rows are written, as they are from then on.
    pub(super) fn pushes(&self) -> impl Iterator<Item = &StoredPush> {
        let rows = self.changes.range(PushKey::Push(0)..=PushKey::Push(u64::MAX));
        rows.filter_map(|(_, row)| if let Some(PushRow::Push(push)) = row { Some(push) } else { None })
    }

    pub(super) fn get(&self, key: &PushKey) -> StoreResult<Option<PushRow>> {
        match self.changes.get(key) {
            Some(row) => Ok(row.clone()),
            None => self.read.get(key).map_or_else(|| self.store.push_row(key), |row| Ok(row.clone())),
        }
    }

    /// Reads rows that [`Self::get`] will be asked for, all in one read.
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

    pub(super) fn delete(&mut self, key: PushKey) {
        self.changes.insert(key, None);
    }

    /// A push is not pending on a device any more; its row under its collapse key goes with it.
    pub(super) fn delete_pending(
        &mut self,
        device: DeviceNo,
        push: u64,
        collapse_key: Option<&str>,
    ) -> StoreResult<()> {
        *self.pending.entry(device).or_default() -= 1;
        self.delete(PushKey::Pending(device, push));
        if let Some(collapse_key) = collapse_key {
            let key = PushKey::Collapse(device, collapse_key.to_owned());
            if let Some(PushRow::Collapse { push: newest, .. }) = self.get(&key)?
                && newest == push
            {
                self.delete(key);
            }
        }
        Ok(())
    }

    /// Stores all changes in one write.
    pub(super) fn write(&self, term: Term) -> StoreResult<()> {
        if self.changes.is_empty() {
            return Ok(());
        }
        let changes: Vec<PushChange> = self
            .changes
            .iter()
            .map(|(key, row)| match row {
                Some(row) => PushChange::Put(row.clone()),
                None => PushChange::Delete(key.clone()),
            })
            .collect();
        self.store.write_push(term, &changes)
    }
}

//! What is stored, read at the start; and what was left over by a stop, dropped.

use super::{
    Shared,
    catalog::{Catalog, Entry},
    check::{self, CheckedSettings},
    configuration::{Above, Configuration},
    counts::HOUR_MS,
    decision_id::Seal,
    rows::{self, Head, Numbers, SPACE, StoredEvent, Version},
    rules::Names,
    segments::read_list,
    timetable::Days,
};
use crate::store::{RowStore, StoreResult};
use jiff::tz::TimeZone;
use rustc_hash::FxHashMap;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tidings_protocol::http::{PopupSettings, PopupSpec};

/// Rows read at once.
const READ_AT_ONCE: usize = 512;

impl Shared {
    /// Reads what is configured; decisions are answered from then on.
    pub(super) fn recover(&self) -> StoreResult<()> {
        let store = &*self.store;
        let numbers = match store.row(SPACE, &rows::numbers_key())? {
            Some(row) => rows::decode(&row)?,
            None => {
                let numbers = Numbers { popup: 0, list: 0, seal: rand::random() };
                self.write(vec![rows::put(rows::numbers_key(), rows::encode(&numbers))])?;
                numbers
            }
        };
        self.take_notes()?;
        let now_ms = self.clock.now_ms();
        let above = Above::new(&CheckedSettings::default(), Arc::new(Days::new(TimeZone::UTC, now_ms)));
        let mut catalog = Catalog {
            popups: BTreeMap::new(),
            settings: PopupSettings::default(),
            checked: CheckedSettings::default(),
            segments: BTreeMap::new(),
            names: Names::default(),
            days: FxHashMap::default(),
            configuration: Arc::new(Configuration {
                generation: 0,
                above: Arc::new(above),
                names: Arc::default(),
                placements: FxHashMap::default(),
                by_no: FxHashMap::default(),
                last_no: numbers.popup,
            }),
            numbers,
        };
        if let Some(text) = rows::read_long(store, &rows::settings_key())? {
            catalog.settings = serde_json::from_slice(&text).map_err(|error| rows::damaged(&error))?;
            catalog.checked = check::check_settings(&catalog.settings).map_err(|refusal| rows::damaged(&refusal))?;
        }
        each(store, &[4], |_, row| {
            let head: rows::SegmentHead = rows::decode(row)?;
            let list = read_list(store, &head)?;
            catalog.segments.insert(head.id.clone(), (head, Arc::new(list)));
            Ok(())
        })?;
        each(store, &[1], |key, row| {
            let no = number(&key[1..])?;
            let head: Head = rows::decode(row)?;
            let version = rows::read_long(store, &rows::version_key(no, head.version))?;
            let version = version.ok_or_else(|| rows::damaged(&format_args!("popup {:?} has no version", head.id)))?;
            let Version { updated_at, updated_by, spec, .. } = rows::decode(&version)?;
            let spec: PopupSpec = serde_json::from_str(&spec).map_err(|error| rows::damaged(&error))?;
            let checked = check::check_spec(&spec).map_err(|refusal| rows::damaged(&refusal))?;
            let compiled = catalog.compile((no, &head.id, head.version), &spec, &checked, now_ms);
            catalog.popups.insert(head.id.clone(), Entry { no, head, updated_at, updated_by, spec, checked, compiled });
            Ok(())
        })?;
        self.drop_left_over(&catalog)?;
        catalog.rebuild_all(now_ms);
        let _ = self.seal.set(Seal::new(&catalog.numbers.seal));
        *self.configuration.write() = Some(catalog.configuration.clone());
        *self.catalog.lock() = Some(catalog);
        Ok(())
    }

    /// Lists that no segment has: an upload, or the removal of a list, was cut short. The same for popups.
    fn drop_left_over(&self, catalog: &Catalog) -> StoreResult<()> {
        let lists: BTreeSet<u32> = catalog.segments.values().map(|(head, _)| head.list).collect();
        let popups: BTreeSet<u32> = catalog.popups.values().map(|entry| entry.no).collect();
        for (kind, known) in [(5, &lists), (2, &popups), (7, &popups)] {
            // One look per number, not one per row.
            let mut from = vec![kind];
            while let Some((key, _)) = self.store.rows(SPACE, &from, &rows::end_of(vec![kind]), 1)?.pop() {
                let owner = number(&key[1..])?;
                let last = rows::end_of(key[..5].to_vec());
                if !known.contains(&owner) {
                    self.drop_all(&key[..5], &last)?;
                }
                from = last;
            }
        }
        Ok(())
    }

    /// Drops events and counts that are old, a bounded number of rows.
    pub(super) fn sweep(&self, now_ms: u64, most: usize) -> StoreResult<()> {
        let kept_from = now_ms.saturating_sub(self.config.events_kept.as_millis() as u64);
        let last = [&[8], &kept_from.saturating_sub(1).to_be_bytes()[..]].concat();
        let mut left = most;
        while left > 0 {
            let old = self.store.rows(SPACE, &[8], &rows::end_of(last.clone()), rows::ROWS_PER_WRITE / 2)?;
            if old.is_empty() {
                break;
            }
            left = left.saturating_sub(old.len());
            let mut changes = Vec::with_capacity(old.len() * 2);
            for (key, row) in old {
                let event: StoredEvent = rows::decode(&row)?;
                changes.push(rows::remove(rows::event_id_key(rows::event_name(&event.user, &event.id))));
                changes.push(rows::remove(key));
            }
            self.write(changes)?;
        }
        let oldest_hour = (now_ms.saturating_sub(self.config.counts_kept.as_millis() as u64) / HOUR_MS) as u32;
        let popups: Vec<u32> = self.configuration.read().iter().flat_map(|all| all.by_no.keys().copied()).collect();
        for popup in popups {
            let (from, to) = (rows::count_key(popup, 0, ""), rows::count_key(popup, oldest_hour, ""));
            let old = self.store.rows(SPACE, &from, &to, rows::ROWS_PER_WRITE)?;
            if !old.is_empty() {
                self.write(old.into_iter().map(|(key, _)| rows::remove(key)).collect())?;
            }
        }
        Ok(())
    }
}

fn number(bytes: &[u8]) -> StoreResult<u32> {
    let number = bytes.first_chunk().copied().map(u32::from_be_bytes);
    number.ok_or_else(|| rows::damaged(&"a key that is too short"))
}

/// All rows whose key begins so.
pub(super) fn each<S: RowStore + ?Sized>(
    store: &S,
    prefix: &[u8],
    mut row: impl FnMut(&[u8], &[u8]) -> StoreResult<()>,
) -> StoreResult<()> {
    let to = rows::end_of(prefix.to_vec());
    let mut from = prefix.to_vec();
    loop {
        let found = store.rows(SPACE, &from, &to, READ_AT_ONCE)?;
        let Some((last, _)) = found.last() else { return Ok(()) };
        from = [&last[..], &[0]].concat();
        for (key, value) in &found {
            row(key, value)?;
        }
    }
}

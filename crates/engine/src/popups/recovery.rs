//! What is stored, read at the start; and what was left over by a stop, dropped.

use super::{
    Shared,
    catalog::{Catalog, Entry},
    check::{self, CheckedSettings},
    configuration::{Above, Configuration},
    decision_id::Seal,
    rows::{self, Head, Numbers, SPACE, Version},
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
    /// Reads what is configured; decisions are answered from then on. Answers when the last events were taken.
    pub(super) fn recover(&self) -> StoreResult<u64> {
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
        let last_taken = store.row(SPACE, &rows::last_taken_key())?;
        let last_taken_at = last_taken.map(|row| rows::decode(&row)).transpose()?.unwrap_or_default();
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
        pages(store, &[1], |page| {
            let heads: Vec<(u32, Head)> = page
                .iter()
                .map(|(key, row)| Ok((number(&key[1..])?, rows::decode::<Head>(row)?)))
                .collect::<StoreResult<_>>()?;
            let keys: Vec<Vec<u8>> = heads.iter().map(|(no, head)| rows::version_key(*no, head.version)).collect();
            for ((no, head), version) in heads.into_iter().zip(rows::read_longs(store, &keys)?) {
                let version =
                    version.ok_or_else(|| rows::damaged(&format_args!("popup {:?} has no version", head.id)))?;
                let Version { updated_at, updated_by, spec, .. } = rows::decode(&version)?;
                let spec: PopupSpec = serde_json::from_str(&spec).map_err(|error| rows::damaged(&error))?;
                let checked = check::check_spec(&spec).map_err(|refusal| rows::damaged(&refusal))?;
                let compiled = catalog.compile((no, &head.id, head.version), &spec, &checked, now_ms);
                let entry = Entry { no, head, updated_at, updated_by, spec, checked, compiled };
                catalog.popups.insert(entry.head.id.clone(), entry);
            }
            Ok(())
        })?;
        self.drop_left_over(&catalog)?;
        catalog.rebuild_all(now_ms);
        let _ = self.seal.set(Seal::new(&catalog.numbers.seal));
        *self.configuration.write() = Some(catalog.configuration.clone());
        *self.catalog.lock() = Some(catalog);
        Ok(last_taken_at)
    }

    /// Lists that no segment has: an upload, or the removal of a list, was cut short. The same for popups.
    fn drop_left_over(&self, catalog: &Catalog) -> StoreResult<()> {
        let lists: BTreeSet<u32> = catalog.segments.values().map(|(head, _)| head.list).collect();
        let popups: BTreeSet<u32> = catalog.popups.values().map(|entry| entry.no).collect();
        for (kind, known) in [(5, &lists), (2, &popups), (7, &popups)] {
            // Numbers that follow each other leave no room for others: one look per gap.
            let mut next = 0;
            let ends = known.iter().map(|owner| (Some(*owner), owner.checked_sub(1)));
            for (owner, last) in ends.chain([(None, Some(u32::MAX))]) {
                if let Some(last) = last.filter(|last| *last >= next) {
                    let key = |number: u32| [&[kind], &number.to_be_bytes()[..]].concat();
                    self.drop_all(&key(next), &rows::end_of(key(last)))?;
                }
                next = owner.map_or(u32::MAX, |owner| owner.saturating_add(1));
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
    pages(store, prefix, |page| page.iter().try_for_each(|(key, value)| row(key, value)))
}

/// The same, as many at once as are read at once.
fn pages<S: RowStore + ?Sized>(
    store: &S,
    prefix: &[u8],
    mut page: impl FnMut(&[(Vec<u8>, Vec<u8>)]) -> StoreResult<()>,
) -> StoreResult<()> {
    let to = rows::end_of(prefix.to_vec());
    let mut from = prefix.to_vec();
    loop {
        let found = store.rows(SPACE, &from, &to, READ_AT_ONCE)?;
        let Some((last, _)) = found.last() else { return Ok(()) };
        from = [&last[..], &[0]].concat();
        page(&found)?;
    }
}

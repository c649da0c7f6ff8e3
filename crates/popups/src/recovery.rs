//! Recovery: reads the stored configuration at the start, stores what only the side log has, and removes rows that an
//! interrupted operation left behind.

use super::{
    Shared,
    catalog::{Catalog, CatalogEntry},
    check::{self, CheckedSettings},
    configuration::{Configuration, GlobalPolicy, PopupVersion},
    decision_id::DecisionSigner,
    journeys::{JourneyEntry, check::check_journey, steps_of},
    rows::{self, IdAllocator, JourneyHead, PopupHead, SPACE, StoredVersion, kind},
    rules::AttributeSlots,
    segments::read_segment_users,
    timetable::Days,
};
use jiff::tz::TimeZone;
use rustc_hash::FxHashMap;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tidings_domain::store::{RowStore, Store, StoreResult};
use tidings_protocol::http::{PopupJourneySpec, PopupSettings, PopupSpec};

/// Rows read at once.
const READ_AT_ONCE: usize = 512;

impl Shared {
    /// Reads the configuration, from which decisions are answered then. Returns the time of the last stored events.
    pub(super) fn recover(&self) -> StoreResult<u64> {
        let store = &*self.store;
        if store.row(SPACE, &rows::id_allocator_key())?.is_none() {
            let id_allocator = IdAllocator { last_popup: 0, last_list: 0, signing_key: rand::random() };
            self.write(vec![rows::put(rows::id_allocator_key(), rows::encode(&id_allocator))])?;
        }
        self.recover_side_log()?;
        let last_taken = store.row(SPACE, &rows::last_taken_key())?;
        let last_taken_at = last_taken.map(|row| rows::decode(&row)).transpose()?.unwrap_or_default();
        let catalog = self.read_stored_catalog(0)?;
        self.remove_orphans(&catalog)?;
        let _ = self.signer.set(DecisionSigner::new(&catalog.id_allocator.signing_key));
        *self.configuration.write() = Some(catalog.configuration.clone());
        *self.catalog.lock() = Some(catalog);
        Ok(last_taken_at)
    }

    /// Reads the catalog, and builds its configuration with a later generation than this one.
    pub(super) fn read_stored_catalog(&self, generation: u64) -> StoreResult<Catalog> {
        let store = &*self.store;
        let allocated = store.row(SPACE, &rows::id_allocator_key())?;
        let allocated = allocated.ok_or_else(|| rows::damaged(&"no numbers of popups and lists"))?;
        let id_allocator: IdAllocator = rows::decode(&allocated)?;
        let now_ms = self.clock.now_ms();
        let global = GlobalPolicy::new(&CheckedSettings::default(), Arc::new(Days::new(TimeZone::UTC, now_ms)));
        let mut catalog = Catalog {
            popups: BTreeMap::new(),
            numbers: FxHashMap::default(),
            journeys: read_stored_journeys(store)?,
            settings: PopupSettings::default(),
            checked: CheckedSettings::default(),
            segments: BTreeMap::new(),
            slots: AttributeSlots::default(),
            days: FxHashMap::default(),
            configuration: Arc::new(Configuration {
                generation,
                global: Arc::new(global),
                slots: Arc::default(),
                placements: FxHashMap::default(),
                by_no: FxHashMap::default(),
                last_no: id_allocator.last_popup,
                marks_impressions: false,
                journeys: Arc::default(),
                by_conversion: FxHashMap::default(),
            }),
            id_allocator,
        };
        if let Some(text) = rows::read_long(store, &rows::settings_key())? {
            catalog.settings = serde_json::from_slice(&text).map_err(|error| rows::damaged(&error))?;
            catalog.checked = check::check_settings(&catalog.settings).map_err(|refusal| rows::damaged(&refusal))?;
        }
        for_each_row(store, &[kind::SEGMENT], |_, row| {
            let head: rows::SegmentHead = rows::decode(row)?;
            let list = read_segment_users(store, &head)?;
            catalog.segments.insert(head.id.clone(), (head, Arc::new(list)));
            Ok(())
        })?;
        for_each_page(store, &[kind::POPUP], |page| {
            let heads: Vec<(u32, PopupHead)> = page
                .iter()
                .map(|(key, row)| Ok((key_number(&key[1..])?, rows::decode::<PopupHead>(row)?)))
                .collect::<StoreResult<_>>()?;
            let keys: Vec<Vec<u8>> = heads.iter().map(|(no, head)| rows::version_key(*no, head.version)).collect();
            for ((no, head), version) in heads.into_iter().zip(rows::read_longs(store, &keys)?) {
                let version =
                    version.ok_or_else(|| rows::damaged(&format_args!("popup {:?} has no version", head.id)))?;
                let StoredVersion { updated_at, updated_by, spec, .. } = rows::decode(&version)?;
                let spec: PopupSpec = serde_json::from_str(&spec).map_err(|error| rows::damaged(&error))?;
                let checked = check::check_spec(&spec).map_err(|refusal| rows::damaged(&refusal))?;
                catalog.numbers.insert(head.id.clone(), no);
                let named = PopupVersion { no, id: &head.id, version: head.version };
                let compiled = catalog.compile(named, &spec, &checked, now_ms);
                let entry = CatalogEntry { no, head, updated_at, updated_by, spec, checked, compiled };
                catalog.popups.insert(entry.head.id.clone(), entry);
            }
            Ok(())
        })?;
        catalog.rebuild_all(now_ms);
        Ok(catalog)
    }

    /// Removes rows without an owner: lists that no segment has, after an upload or a removal that was interrupted;
    /// versions and counts of popups whose removal was interrupted.
    fn remove_orphans(&self, catalog: &Catalog) -> StoreResult<()> {
        let lists: BTreeSet<u32> = catalog.segments.values().map(|(head, _)| head.list).collect();
        let popups: BTreeSet<u32> = catalog.popups.values().map(|entry| entry.no).collect();
        let journeys: BTreeSet<u32> = catalog.journeys.values().map(|entry| entry.no).collect();
        let counted: BTreeSet<u32> = popups.union(&journeys).copied().collect();
        for (kind, known) in [
            (kind::SEGMENT_CHUNK, &lists),
            (kind::VERSION, &popups),
            (kind::JOURNEY_VERSION, &journeys),
            (kind::COUNTS, &counted),
            (kind::ASSIGNMENT, &popups),
        ] {
            // The owners' numbers are ascending, so orphans can only be in the gaps between them: one read per gap.
            let mut next = 0;
            let ends = known.iter().map(|owner| (Some(*owner), owner.checked_sub(1)));
            for (owner, last) in ends.chain([(None, Some(u32::MAX))]) {
                if let Some(last) = last.filter(|last| *last >= next) {
                    let key = |number: u32| [&[kind], &number.to_be_bytes()[..]].concat();
                    self.remove_range(&key(next), &rows::end_of(key(last)))?;
                }
                next = owner.map_or(u32::MAX, |owner| owner.saturating_add(1));
            }
        }
        Ok(())
    }
}

/// Reads all journeys with their versions.
fn read_stored_journeys(store: &dyn Store) -> StoreResult<BTreeMap<String, JourneyEntry>> {
    let mut heads = Vec::new();
    for_each_row(store, &[kind::JOURNEY], |key, row| {
        heads.push((key_number(&key[1..])?, rows::decode::<JourneyHead>(row)?));
        Ok(())
    })?;
    let mut journeys = BTreeMap::new();
    for (no, head) in heads {
        let numbers: Vec<u32> = (head.oldest..=head.version).collect();
        let keys: Vec<Vec<u8>> = numbers.iter().map(|version| rows::journey_version_key(no, *version)).collect();
        let mut versions = BTreeMap::new();
        let mut newest = None;
        for (version, bytes) in numbers.into_iter().zip(rows::read_longs(store, &keys)?) {
            let missing = || rows::damaged(&format_args!("journey {:?} has no version {version}", head.id));
            let stored: StoredVersion = rows::decode(&bytes.ok_or_else(missing)?)?;
            let spec: PopupJourneySpec = serde_json::from_str(&stored.spec).map_err(|error| rows::damaged(&error))?;
            let checked = check_journey(&spec).map_err(|refusal| rows::damaged(&refusal))?;
            versions.insert(version as u16, steps_of(&spec, &checked));
            newest = Some((stored.updated_at, stored.updated_by, spec, checked));
        }
        let Some((updated_at, updated_by, spec, checked)) = newest else { continue };
        let entry = JourneyEntry { no, head, updated_at, updated_by, spec, checked, versions };
        journeys.insert(entry.head.id.clone(), entry);
    }
    Ok(journeys)
}

fn key_number(bytes: &[u8]) -> StoreResult<u32> {
    let number = bytes.first_chunk().copied().map(u32::from_be_bytes);
    number.ok_or_else(|| rows::damaged(&"a key that is too short"))
}

/// Calls `row` for each row whose key begins with the prefix, in the order of keys.
pub(super) fn for_each_row<S: RowStore + ?Sized>(
    store: &S,
    prefix: &[u8],
    mut row: impl FnMut(&[u8], &[u8]) -> StoreResult<()>,
) -> StoreResult<()> {
    for_each_page(store, prefix, |page| page.iter().try_for_each(|(key, value)| row(key, value)))
}

/// The same for each page of rows as the store reads it.
fn for_each_page<S: RowStore + ?Sized>(
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

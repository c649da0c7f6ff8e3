//! The catalog: popups, their versions and the settings, as app servers write them. Each write stores a version first,
//! and then builds the configuration for decisions anew.

use super::{
    PopupService, Shared,
    check::{self, CheckedSettings, CheckedSpec},
    configuration::{self, CompileContext, Configuration, GlobalPolicy, Placement, Popup, PopupVersion},
    journeys::{JourneyEntry, position::Journeys},
    rows::{self, IdAllocator, PopupHead, SPACE, SegmentHead, StoredVersion},
    rules::{AttributeSlots, Segment},
    timetable::Days,
};
use jiff::tz::TimeZone;
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
};
use tidings_domain::{
    gates::Gate,
    refusals::store_refusal,
    store::{RowChange, StoreError},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{Popup as HttpPopup, *},
    limits::*,
};

/// The longest author of a version, in bytes.
pub(super) const AUTHOR_BYTES_MAX: usize = 256;
/// Popups in one page when the caller does not say.
const PAGE_DEFAULT: usize = 100;

/// The placements by their names.
type Placements = FxHashMap<Box<str>, Arc<Placement>>;

/// The condition on which a write depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    None,
    /// The popup's newest version is this one.
    Version(u32),
    /// The popup does not exist yet.
    Absent,
}

/// A popup's newest version, as written and compiled.
pub(super) struct CatalogEntry {
    pub(super) no: u32,
    pub(super) head: PopupHead,
    pub(super) updated_at: u64,
    pub(super) updated_by: Option<String>,
    pub(super) spec: PopupSpec,
    pub(super) checked: CheckedSpec,
    pub(super) compiled: Arc<Popup>,
}

/// Everything that is configured. It is behind a lock that is held for the whole of a change, so changes do not
/// interleave.
pub(super) struct Catalog {
    pub(super) id_allocator: IdAllocator,
    pub(super) popups: BTreeMap<String, CatalogEntry>,
    /// The numbers of all popups, also of those that are being compiled.
    pub(super) numbers: FxHashMap<String, u32>,
    pub(super) journeys: BTreeMap<String, JourneyEntry>,
    pub(super) settings: PopupSettings,
    pub(super) checked: CheckedSettings,
    pub(super) segments: BTreeMap<String, (SegmentHead, Arc<Segment>)>,
    pub(super) slots: AttributeSlots,
    pub(super) days: FxHashMap<String, Arc<Days>>,
    pub(super) configuration: Arc<Configuration>,
}

/// A popup's state at this time: its start and end may override the written state.
fn state_now(spec: &PopupSpec, now_ms: u64) -> PopupState {
    match spec.state {
        PopupState::Live | PopupState::Scheduled if spec.ends_at.is_some_and(|end| end <= now_ms) => PopupState::Ended,
        PopupState::Live | PopupState::Scheduled if spec.starts_at.is_some_and(|start| start > now_ms) => {
            PopupState::Scheduled
        }
        PopupState::Live | PopupState::Scheduled => PopupState::Live,
        other => other,
    }
}

fn version_to_http(head: &PopupHead, version: StoredVersion, now_ms: u64) -> Result<HttpPopup, Refusal> {
    let spec: PopupSpec = serde_json::from_str(&version.spec).map_err(|error| {
        store_refusal(rows::damaged(&format_args!("{:?} version {}: {error}", head.id, version.version)))
    })?;
    let StoredVersion { version, updated_at, updated_by, .. } = version;
    Ok(HttpPopup { id: head.id.clone(), version, updated_at, updated_by, now: state_now(&spec, now_ms), spec })
}

impl CatalogEntry {
    pub(super) fn to_http(&self, now_ms: u64) -> HttpPopup {
        HttpPopup {
            id: self.head.id.clone(),
            version: self.head.version,
            updated_at: self.updated_at,
            updated_by: self.updated_by.clone(),
            now: state_now(&self.spec, now_ms),
            spec: self.spec.clone(),
        }
    }

    fn segments(&self) -> impl Iterator<Item = &str> {
        let conversion = self.checked.conversion.as_ref().and_then(|conversion| conversion.condition.as_ref());
        let rules = [self.checked.audience.as_ref(), self.checked.condition.as_ref(), conversion];
        rules.into_iter().flatten().flat_map(|rule| rule.segments())
    }
}

impl Catalog {
    pub(super) fn zone(&self) -> TimeZone {
        self.checked.zone.clone().unwrap_or(TimeZone::UTC)
    }

    /// Compiles a popup with the settings and segments of the catalog.
    pub(super) fn compile(
        &mut self,
        version: PopupVersion<'_>,
        spec: &PopupSpec,
        checked: &CheckedSpec,
        now_ms: u64,
    ) -> Arc<Popup> {
        let zone = self.zone();
        let segments = &self.segments;
        let segment = |id: &str| segments.get(id).map(|(_, segment)| segment.clone());
        let popups = &self.numbers;
        let popup = |id: &str| popups.get(id).copied();
        let mut context =
            CompileContext { zone: &zone, now_ms, segment: &segment, popup: &popup, days: &mut self.days };
        Arc::new(Popup::compile(version, spec, checked, &mut self.slots, &mut context))
    }

    fn placement(&self, name: &str) -> Option<Arc<Placement>> {
        let here = |entry: &&CatalogEntry| entry.spec.placements.iter().any(|placement| placement == name);
        let popups: Vec<_> = self.popups.values().filter(here).map(|entry| entry.compiled.clone()).collect();
        let caps = self.checked.placements.iter().find(|(placement, _)| placement == name).map(|(_, caps)| *caps);
        (!popups.is_empty()).then(|| Arc::new(Placement::new(name, caps.unwrap_or_default(), popups)))
    }

    /// All placements, of which those with these names are rebuilt.
    fn rebuilt<'a>(&self, names: impl Iterator<Item = &'a str>) -> Placements {
        let mut placements = self.configuration.placements.clone();
        for name in names {
            match self.placement(name) {
                Some(placement) => drop(placements.insert(name.into(), placement)),
                None => drop(placements.remove(name)),
            }
        }
        placements
    }

    /// Checks that no question becomes too expensive by placements being replaced. A placement that was too expensive before,
    /// by popups of an earlier version of the server, may become cheaper or stay as it is.
    fn check_cost(&self, placements: &Placements) -> Result<(), Refusal> {
        for (name, placement) in placements {
            let before = self.configuration.placements.get(name).map_or(0, |before| before.cost_max);
            if placement.cost_max > POPUP_QUESTION_COST_NS_MAX.max(before) {
                let what = format!("the conditions of the popups of placement {name:?} (estimated ns for a question)");
                return Err(Refusal::limit(&what, POPUP_QUESTION_COST_NS_MAX, placement.cost_max));
            }
        }
        Ok(())
    }

    /// Compiles the journeys anew, and publishes the configuration.
    pub(super) fn rebuild_journeys(&mut self) {
        let (placements, journeys) = (self.configuration.placements.clone(), self.compile_journeys());
        self.publish(placements, journeys);
    }

    fn publish(&mut self, placements: Placements, journeys: Arc<Journeys>) {
        let by_no = self.popups.values().map(|entry| (entry.no, entry.compiled.clone())).collect();
        let marks_impressions = self.popups.values().any(|entry| entry.compiled.names_impressions)
            || self.journeys.values().any(|entry| entry.checked.names_impressions());
        self.configuration = Arc::new(Configuration {
            generation: self.configuration.generation + 1,
            global: self.configuration.global.clone(),
            slots: Arc::new(self.slots.clone()),
            placements,
            by_no,
            last_no: self.id_allocator.last_popup,
            marks_impressions,
            journeys,
            by_conversion: configuration::by_conversion(self.popups.values().map(|entry| &entry.compiled)),
        });
    }

    /// Rebuilds everything, since settings or segments have changed, or the precomputed times run out.
    pub(super) fn rebuild_all(&mut self, now_ms: u64) {
        (self.slots, self.days) = (AttributeSlots::default(), FxHashMap::default());
        let mut popups = std::mem::take(&mut self.popups);
        for entry in popups.values_mut() {
            let version = PopupVersion { no: entry.no, id: &entry.head.id, version: entry.head.version };
            entry.compiled = self.compile(version, &entry.spec, &entry.checked, now_ms);
        }
        self.popups = popups;
        let days = Arc::new(Days::new(self.zone(), now_ms));
        let global = Arc::new(GlobalPolicy::new(&self.checked, days));
        self.configuration = Arc::new(Configuration { global, ..(*self.configuration).clone() });
        let names: BTreeSet<String> =
            self.popups.values().flat_map(|entry| entry.spec.placements.iter().cloned()).collect();
        let placements = names.iter().filter_map(|name| Some((name.as_str().into(), self.placement(name)?))).collect();
        let journeys = self.compile_journeys();
        self.publish(placements, journeys);
    }

    /// The other popups whose rules name this popup.
    fn popups_naming(&self, id: &str) -> Vec<&str> {
        let names = |entry: &&CatalogEntry| {
            entry.head.id != id && entry.checked.audience.iter().any(|rule| rule.popups().contains(&id))
        };
        self.popups.values().filter(names).map(|entry| entry.head.id.as_str()).collect()
    }

    /// The popups that name a segment.
    pub(super) fn popups_of_segment(&self, id: &str) -> Vec<&str> {
        let names = |entry: &&CatalogEntry| entry.segments().any(|segment| segment == id);
        self.popups.values().filter(names).map(|entry| entry.head.id.as_str()).collect()
    }

    /// Checks that segments and popups exist that the rules of the popup `id` name.
    fn check_names(&self, id: &str, checked: &CheckedSpec) -> Result<(), Refusal> {
        let conversion = checked.conversion.as_ref().map_or(&None, |conversion| &conversion.condition);
        let rules =
            [("audience", &checked.audience), ("trigger.where", &checked.condition), ("conversion.where", conversion)];
        for (field, rule) in rules {
            let missing = rule.iter().flat_map(|rule| rule.segments()).find(|id| !self.segments.contains_key(*id));
            if let Some(missing) = missing {
                return Err(Refusal::field(field, format!("unknown segment {missing:?}")));
            }
            let named = rule.iter().flat_map(|rule| rule.popups());
            if let Some(missing) = named.filter(|named| *named != id).find(|named| !self.popups.contains_key(*named)) {
                return Err(Refusal::field(field, format!("unknown popup {missing:?}")));
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Changes the catalog; decisions from then on use the new configuration.
    pub(super) fn update_catalog<T>(
        &self,
        change: impl FnOnce(&mut Catalog) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut catalog = self.catalog.lock();
        let catalog = self.as_stored(&mut catalog)?;
        let done = change(catalog)?;
        *self.configuration.write() = Some(catalog.configuration.clone());
        Ok(done)
    }

    /// Writes rows of the catalog, all or nothing.
    pub(super) fn write_catalog(&self, changes: Vec<RowChange>) -> Result<(), Refusal> {
        let written = self.write(changes);
        if matches!(written, Err(StoreError::OutcomeUnknown(_))) {
            self.catalog_outcome_unknown.store(true, Ordering::Relaxed);
        }
        written.map_err(store_refusal)
    }

    /// The catalog as the store has it: read anew if the answer to a write was lost. Until that succeeds, decisions go on
    /// with the configuration from before the write.
    fn as_stored<'a>(&self, catalog: &'a mut Option<Catalog>) -> Result<&'a mut Catalog, Refusal> {
        let catalog = catalog.as_mut().ok_or_else(super::loading)?;
        if self.catalog_outcome_unknown.load(Ordering::Relaxed) {
            let read = || {
                self.fence_open_writes()?;
                self.read_stored_catalog(catalog.configuration.generation)
            };
            *catalog = read().map_err(store_refusal)?;
            *self.configuration.write() = Some(catalog.configuration.clone());
            self.catalog_outcome_unknown.store(false, Ordering::Relaxed);
        }
        Ok(catalog)
    }

    pub(super) fn read_catalog<T>(&self, look: impl FnOnce(&Catalog) -> Result<T, Refusal>) -> Result<T, Refusal> {
        look(self.as_stored(&mut self.catalog.lock())?)
    }

    /// Recomputes timetables and days, which are precomputed for some days ahead.
    pub(super) fn refresh(&self) {
        let now_ms = self.clock.now_ms();
        let _ = self.update_catalog(|catalog| {
            catalog.rebuild_all(now_ms);
            Ok(())
        });
    }

    pub(super) fn popup_no(&self, id: &str) -> Result<u32, Refusal> {
        self.read_catalog(|catalog| Ok(catalog.popups.get(id).ok_or_else(|| Refusal::not_found("popup", id))?.no))
    }

    fn put_popup(
        &self,
        id: &str,
        spec: PopupSpec,
        author: Option<&str>,
        precondition: Precondition,
    ) -> Result<(HttpPopup, bool), Refusal> {
        check::check_popup_id(id)?;
        if let Some(author) = author.filter(|author| author.len() > AUTHOR_BYTES_MAX) {
            return Err(Refusal::limit("Tidings-Author (bytes)", AUTHOR_BYTES_MAX as u64, author.len() as u64));
        }
        let checked = check::check_spec(&spec)?;
        check::check_published(&spec)?;
        // A node of an earlier version would call the popup damaged.
        spec.conversion.as_ref().map_or(Ok(()), |_| self.gates.require(Gate::PopupConversions))?;
        let text = serde_json::to_string(&spec).map_err(|error| Refusal::field("popup", error))?;
        let now_ms = self.clock.now_ms();
        self.update_catalog(|catalog| {
            catalog.check_names(id, &checked)?;
            if let Some(journey) = catalog.journey_showing(id).filter(|own| spec.journey.as_deref() != Some(*own)) {
                return Err(Refusal::field("journey", format!("must be {journey:?}, whose steps show the popup")));
            }
            let before = catalog.popups.get(id);
            check_precondition(precondition, before.map(|entry| entry.head.version), id)?;
            let (ids, no, head) = match before {
                Some(entry) => {
                    let version = entry.head.version + 1;
                    let oldest = entry.head.oldest.max(version.saturating_sub(POPUP_VERSIONS_MAX as u32 - 1));
                    (None, entry.no, PopupHead { version, oldest, ..entry.head.clone() })
                }
                None if catalog.popups.len() >= POPUPS_MAX => {
                    return Err(Refusal::limit("popups", POPUPS_MAX as u64, catalog.popups.len() as u64 + 1));
                }
                None => {
                    let ids =
                        IdAllocator { last_popup: catalog.id_allocator.last_popup + 1, ..catalog.id_allocator.clone() };
                    let no = ids.last_popup;
                    (Some(ids), no, PopupHead { id: id.to_owned(), version: 1, oldest: 1 })
                }
            };
            let version = StoredVersion {
                version: head.version,
                updated_at: now_ms,
                updated_by: author.map(str::to_owned),
                spec: text,
            };
            let mut changes = vec![rows::put(rows::head_key(no), rows::encode(&head))];
            changes.extend(ids.as_ref().map(|ids| rows::put(rows::id_allocator_key(), rows::encode(ids))));
            rows::put_long(&mut changes, &rows::version_key(no, head.version), &rows::encode(&version));
            if let Some(entry) = before
                && entry.head.oldest < head.oldest
            {
                let (from, to) = (rows::version_key(no, entry.head.oldest), rows::version_key(no, head.oldest - 1));
                let old =
                    self.store.rows(SPACE, &from, &rows::end_of(to), rows::ROWS_PER_WRITE).map_err(store_refusal)?;
                changes.extend(old.into_iter().map(|(key, _)| rows::remove(key)));
            }
            let mut affected: FxHashSet<String> = spec.placements.iter().cloned().collect();
            affected.extend(before.iter().flat_map(|entry| entry.spec.placements.iter().cloned()));
            catalog.numbers.insert(id.to_owned(), no);
            let named = PopupVersion { no, id, version: head.version };
            let compiled = catalog.compile(named, &spec, &checked, now_ms);
            let updated_by = author.map(str::to_owned);
            let entry = CatalogEntry { no, head, updated_at: now_ms, updated_by, spec, checked, compiled };
            let popup = entry.to_http(now_ms);
            // The placements are built with the new version first: what a question then costs is part of the check.
            let replaced = catalog.popups.insert(id.to_owned(), entry);
            let created = replaced.is_none();
            let placements = catalog.rebuilt(affected.iter().map(String::as_str));
            if let Err(refusal) = catalog.check_cost(&placements).and_then(|()| self.write_catalog(changes)) {
                match replaced {
                    Some(entry) => drop(catalog.popups.insert(id.to_owned(), entry)),
                    None => {
                        catalog.popups.remove(id);
                        catalog.numbers.remove(id);
                    }
                }
                return Err(refusal);
            }
            if let Some(ids) = ids {
                catalog.id_allocator = ids;
            }
            let journeys = catalog.configuration.journeys.clone();
            catalog.publish(placements, journeys);
            Ok((popup, created))
        })
    }

    fn remove_popup(&self, id: &str, precondition: Precondition) -> Result<(), Refusal> {
        let no = self.update_catalog(|catalog| {
            let entry = catalog.popups.get(id).ok_or_else(|| Refusal::not_found("popup", id))?;
            check_precondition(precondition, Some(entry.head.version), id)?;
            if let Some(other) = catalog.popups_naming(id).first() {
                let why = format!("popup {other:?} names {id:?} in its rules");
                return Err(Refusal::new(ErrorCode::Conflict, why));
            }
            if let Some(journey) = catalog.journeys_naming(id) {
                let why = format!("journey {journey:?} names the popup {id:?}");
                return Err(Refusal::new(ErrorCode::Conflict, why));
            }
            let no = entry.no;
            self.write_catalog(vec![rows::remove(rows::head_key(no))])?;
            catalog.numbers.remove(id);
            if let Some(entry) = catalog.popups.remove(id) {
                let placements = catalog.rebuilt(entry.spec.placements.iter().map(String::as_str));
                let journeys = catalog.configuration.journeys.clone();
                catalog.publish(placements, journeys);
            }
            Ok(no)
        })?;
        // Without the head nothing finds these rows. If the process ends before they are removed, the next start does
        // it.
        let prefixes = [rows::version_key(no, 0), rows::count_key(no, 0, ""), rows::assignments_prefix(no, None, None)];
        for prefix in prefixes {
            let prefix = &prefix[..5];
            self.remove_range(prefix, &rows::end_of(prefix.to_vec())).map_err(store_refusal)?;
        }
        Ok(())
    }

    /// The kept versions of a popup, newest first. Blocks.
    pub(super) fn versions(&self, id: &str) -> Result<PopupVersions, Refusal> {
        let (no, head) = self.read_catalog(|catalog| {
            let entry = catalog.popups.get(id).ok_or_else(|| Refusal::not_found("popup", id))?;
            Ok((entry.no, entry.head.clone()))
        })?;
        let now_ms = self.clock.now_ms();
        let mut versions = Vec::new();
        for version in (head.oldest..=head.version).rev() {
            let bytes = rows::read_long(&*self.store, &rows::version_key(no, version)).map_err(store_refusal)?;
            // The oldest version may have been removed meanwhile.
            let Some(bytes) = bytes else { continue };
            versions.push(version_to_http(&head, rows::decode(&bytes).map_err(store_refusal)?, now_ms)?);
        }
        Ok(PopupVersions { versions })
    }
}

pub(super) fn check_precondition(precondition: Precondition, version: Option<u32>, id: &str) -> Result<(), Refusal> {
    let why = match (precondition, version) {
        (Precondition::Version(asked), Some(version)) if asked != version => {
            format!("{id:?} is at version {version}, not {asked}")
        }
        (Precondition::Version(asked), None) => format!("{id:?} does not exist yet, so it has no version {asked}"),
        (Precondition::Absent, Some(version)) => format!("{id:?} is there already, at version {version}"),
        _ => return Ok(()),
    };
    Err(Refusal::new(ErrorCode::Conflict, why))
}

/// Operations of app servers. All of them may wait for the store. Besides their own errors, all are refused while
/// another node leads (`node_unavailable`), and while the catalog is being read or the store fails
/// (`store_unavailable`).
impl PopupService {
    /// Creates or replaces a popup by the JSON of its [`PopupSpec`]; returns whether the popup is new.
    ///
    /// # Errors
    /// The id or the specification is wrong (`malformed`, `invalid_field`, `limit_exceeded`), or the precondition does not
    /// hold (`conflict`).
    pub fn put(
        &self,
        id: &str,
        spec: &[u8],
        author: Option<&str>,
        precondition: Precondition,
    ) -> Result<(HttpPopup, bool), Refusal> {
        self.shared()?.put_popup(id, check::read_spec(spec)?, author, precondition)
    }

    /// Changes only a popup's state, as a new version.
    ///
    /// # Errors
    /// There is no such popup (`not_found`), the precondition does not hold or another write came in between (`conflict`), or
    /// the popup cannot have this state (`invalid_field`).
    pub fn set_state(
        &self,
        id: &str,
        state: PopupState,
        author: Option<&str>,
        precondition: Precondition,
    ) -> Result<HttpPopup, Refusal> {
        let popup = self.get(id)?;
        // A write that comes in between must not be overwritten.
        let precondition = match precondition {
            Precondition::None => Precondition::Version(popup.version),
            asked => asked,
        };
        let spec = PopupSpec { state, ..popup.spec };
        Ok(self.shared()?.put_popup(id, spec, author, precondition)?.0)
    }

    /// A popup as it is now.
    ///
    /// # Errors
    /// There is no such popup (`not_found`).
    pub fn get(&self, id: &str) -> Result<HttpPopup, Refusal> {
        let now_ms = self.clock.now_ms();
        let find = |catalog: &Catalog| catalog.popups.get(id).map(|entry| entry.to_http(now_ms));
        self.shared()?.read_catalog(|catalog| find(catalog).ok_or_else(|| Refusal::not_found("popup", id)))
    }

    /// The kept versions of a popup, newest first.
    ///
    /// # Errors
    /// There is no such popup (`not_found`).
    pub fn versions(&self, id: &str) -> Result<PopupVersions, Refusal> {
        self.shared()?.versions(id)
    }

    /// Deletes a popup with its versions and counts.
    ///
    /// # Errors
    /// There is no such popup (`not_found`), or the precondition does not hold (`conflict`).
    pub fn remove(&self, id: &str, precondition: Precondition) -> Result<(), Refusal> {
        self.shared()?.remove_popup(id, precondition)
    }

    /// A page of popups in the order of their ids; `limit` 0 is the default size.
    ///
    /// # Errors
    /// `limit` is too high (`limit_exceeded`).
    pub fn list(&self, after: Option<&str>, limit: usize) -> Result<PopupPage, Refusal> {
        let limit = if limit == 0 { PAGE_DEFAULT } else { limit };
        if limit > POPUPS_PAGE_MAX {
            return Err(Refusal::limit("limit (popups)", POPUPS_PAGE_MAX as u64, limit as u64));
        }
        let now_ms = self.clock.now_ms();
        self.shared()?.read_catalog(|catalog| {
            let from = match after {
                Some(after) => std::ops::Bound::Excluded(after),
                None => std::ops::Bound::Unbounded,
            };
            let mut rest = catalog.popups.range::<str, _>((from, std::ops::Bound::Unbounded));
            let popups: Vec<_> = rest.by_ref().take(limit).map(|(_, entry)| entry.to_http(now_ms)).collect();
            let next = rest.next().and(popups.last()).map(|popup| popup.id.clone());
            Ok(PopupPage { popups, next })
        })
    }

    /// The settings for all popups.
    ///
    /// # Errors
    /// Only those of all operations.
    pub fn settings(&self) -> Result<PopupSettings, Refusal> {
        self.shared()?.read_catalog(|catalog| Ok(catalog.settings.clone()))
    }

    /// Replaces the settings for all popups by their JSON.
    ///
    /// # Errors
    /// The settings are wrong (`malformed`, `invalid_field`, `limit_exceeded`).
    pub fn set_settings(&self, settings: &[u8]) -> Result<PopupSettings, Refusal> {
        let settings: PopupSettings = tidings_protocol::json::read(settings)?;
        let checked = check::check_settings(&settings)?;
        let text = serde_json::to_string(&settings).map_err(|error| Refusal::field("settings", error))?;
        let now_ms = self.clock.now_ms();
        let shared = self.shared()?;
        shared.update_catalog(|catalog| {
            let mut changes = Vec::new();
            rows::put_long(&mut changes, &rows::settings_key(), text.as_bytes());
            shared.write_catalog(changes)?;
            (catalog.settings, catalog.checked) = (settings.clone(), checked);
            catalog.rebuild_all(now_ms);
            Ok(settings)
        })
    }

    /// A popup's counts, hour by hour.
    ///
    /// # Errors
    /// There is no such popup (`not_found`), or the answer would be too long (`limit_exceeded`).
    pub fn counts(&self, id: &str, from: Option<u64>, to: Option<u64>) -> Result<PopupCounts, Refusal> {
        self.shared()?.counts(id, from, to)
    }
}

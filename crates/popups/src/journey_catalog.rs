//! The catalog's journeys: versions as app servers write them, and counts per step.

use super::{
    PopupService, Shared,
    catalog::{AUTHOR_BYTES_MAX, Catalog, Precondition, check_precondition},
    hourly_counts::HOUR_MS,
    journeys::{
        JourneyEntry,
        check::{CheckedJourney, check_journey, read_journey},
        position::Journeys,
        steps_of,
    },
    rows::{self, CountKind, IdAllocator, JourneyHead, SPACE, StoredVersion},
};
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::{gates::Gate, refusals::store_refusal};
use tidings_protocol::{error::Refusal, http::*, ids::check_id, limits::*};

impl Catalog {
    /// Compiles all journeys anew.
    pub(crate) fn compile_journeys(&self) -> Arc<Journeys> {
        Arc::new(Journeys::new(self.journeys.values().map(|entry| entry.compile(self))))
    }

    /// The journeys that name a popup.
    pub(crate) fn journeys_naming(&self, popup: &str) -> Option<&str> {
        let names = |entry: &&JourneyEntry| entry.checked.popups().iter().any(|(_, named)| *named == popup);
        self.journeys.values().find(names).map(|entry| entry.head.id.as_str())
    }

    /// The journey that shows a popup.
    pub(crate) fn journey_showing(&self, popup: &str) -> Option<&str> {
        let shows = |entry: &&JourneyEntry| entry.checked.shown().any(|(_, shown, _)| shown == popup);
        self.journeys.values().find(shows).map(|entry| entry.head.id.as_str())
    }

    /// A journey that names a segment.
    pub(crate) fn journey_of_segment(&self, id: &str) -> Option<&str> {
        let names = |entry: &&JourneyEntry| entry.checked.condition.iter().any(|rule| rule.segments().contains(&id));
        self.journeys.values().find(names).map(|entry| entry.head.id.as_str())
    }

    fn check_journey_names(&self, id: &str, checked: &CheckedJourney) -> Result<(), Refusal> {
        for (field, popup) in checked.popups() {
            if !self.popups.contains_key(popup) {
                return Err(Refusal::field(&field, format!("unknown popup {popup:?}")));
            }
        }
        for (field, popup, placement) in checked.shown() {
            let Some(entry) = self.popups.get(popup) else { continue };
            if entry.spec.journey.as_deref() != Some(id) {
                let why = format!("the popup {popup:?} is not one of this journey: its journey must be {id:?}");
                return Err(Refusal::field(&field, why));
            }
            if let Some(placement) = placement.filter(|only| entry.spec.placements.iter().all(|own| own != only)) {
                let why = format!("the popup {popup:?} is not for the placement {placement:?}");
                return Err(Refusal::field(&field.replace(".popup", ".placement"), why));
            }
        }
        let segments = checked.condition.iter().flat_map(|rule| rule.segments());
        if let Some(missing) = segments.into_iter().find(|segment| !self.segments.contains_key(*segment)) {
            return Err(Refusal::field("entry.where", format!("unknown segment {missing:?}")));
        }
        Ok(())
    }
}

impl Shared {
    fn put_journey(
        &self,
        id: &str,
        spec: PopupJourneySpec,
        author: Option<&str>,
        precondition: Precondition,
    ) -> Result<(PopupJourney, bool), Refusal> {
        check_id("journey", id)?;
        if let Some(author) = author.filter(|author| author.len() > AUTHOR_BYTES_MAX) {
            return Err(Refusal::limit("Tidings-Author (bytes)", AUTHOR_BYTES_MAX as u64, author.len() as u64));
        }
        let checked = check_journey(&spec)?;
        // A node of an earlier version would call the journey damaged.
        if spec.steps.iter().any(|step| step.push.as_ref().is_some_and(|push| push.fallback.is_some())) {
            self.gates.require(Gate::PushFallback)?;
        }
        let text = serde_json::to_string(&spec).map_err(|error| Refusal::field("journey", error))?;
        let now_ms = self.clock.now_ms();
        self.update_catalog(|catalog| {
            catalog.check_journey_names(id, &checked)?;
            let before = catalog.journeys.get(id);
            check_precondition(precondition, before.map(|entry| entry.head.version), id)?;
            let (ids, no, head) = match before {
                // A position names its version in 16 bits.
                Some(entry) if entry.head.version >= u32::from(u16::MAX) => {
                    return Err(Refusal::limit("versions", u64::from(u16::MAX), u64::from(entry.head.version) + 1));
                }
                Some(entry) => {
                    let version = entry.head.version + 1;
                    let oldest = entry.head.oldest.max(version.saturating_sub(JOURNEY_VERSIONS_MAX as u32 - 1));
                    (None, entry.no, JourneyHead { version, oldest, ..entry.head.clone() })
                }
                None if catalog.journeys.len() >= JOURNEYS_MAX => {
                    return Err(Refusal::limit("journeys", JOURNEYS_MAX as u64, catalog.journeys.len() as u64 + 1));
                }
                None => {
                    // Journeys are numbered together with popups: their counts stand beside each other.
                    let last_popup = catalog.id_allocator.last_popup + 1;
                    let ids = IdAllocator { last_popup, ..catalog.id_allocator.clone() };
                    (Some(ids), last_popup, JourneyHead { id: id.to_owned(), version: 1, oldest: 1 })
                }
            };
            let stored = StoredVersion {
                version: head.version,
                updated_at: now_ms,
                updated_by: author.map(str::to_owned),
                spec: text,
            };
            let mut changes = vec![rows::put(rows::journey_key(no), rows::encode(&head))];
            changes.extend(ids.as_ref().map(|ids| rows::put(rows::id_allocator_key(), rows::encode(ids))));
            rows::put_long(&mut changes, &rows::journey_version_key(no, head.version), &rows::encode(&stored));
            let oldest_before = before.map_or(head.oldest, |entry| entry.head.oldest);
            if oldest_before < head.oldest {
                let from = rows::journey_version_key(no, oldest_before);
                let to = rows::end_of(rows::journey_version_key(no, head.oldest - 1));
                let old = self.store.rows(SPACE, &from, &to, rows::ROWS_PER_WRITE).map_err(store_refusal)?;
                changes.extend(old.into_iter().map(|(key, _)| rows::remove(key)));
            }
            self.write_catalog(changes)?;
            if let Some(ids) = ids {
                catalog.id_allocator = ids;
            }
            let before = catalog.journeys.remove(id);
            let created = before.is_none();
            let mut versions = before.map(|entry| entry.versions).unwrap_or_default();
            versions.retain(|version, _| u32::from(*version) >= head.oldest);
            versions.insert(head.version as u16, steps_of(&spec, &checked));
            let updated_by = author.map(str::to_owned);
            let entry = JourneyEntry { no, head, updated_at: now_ms, updated_by, spec, checked, versions };
            let journey = entry.to_http();
            catalog.journeys.insert(id.to_owned(), entry);
            catalog.rebuild_journeys();
            Ok((journey, created))
        })
    }

    fn remove_journey(&self, id: &str, precondition: Precondition) -> Result<(), Refusal> {
        let no = self.update_catalog(|catalog| {
            let entry = catalog.journeys.get(id).ok_or_else(|| Refusal::not_found("journey", id))?;
            check_precondition(precondition, Some(entry.head.version), id)?;
            let no = entry.no;
            self.write_catalog(vec![rows::remove(rows::journey_key(no))])?;
            catalog.journeys.remove(id);
            catalog.rebuild_journeys();
            Ok(no)
        })?;
        // Without the head nothing finds these rows. If the process ends before they are removed, the next start does it.
        for prefix in [rows::journey_version_key(no, 0), rows::count_key(no, 0, "")] {
            let prefix = &prefix[..5];
            self.remove_range(prefix, &rows::end_of(prefix.to_vec())).map_err(store_refusal)?;
        }
        Ok(())
    }

    fn journey_counts(&self, id: &str, from: Option<u64>, to: Option<u64>) -> Result<PopupJourneyCounts, Refusal> {
        let no = self.read_catalog(|catalog| {
            Ok(catalog.journeys.get(id).ok_or_else(|| Refusal::not_found("journey", id))?.no)
        })?;
        self.flush()?;
        let hour_of = |at: u64| at.div_ceil(HOUR_MS).min(u64::from(u32::MAX)) as u32;
        let mut key = rows::count_key(no, hour_of(from.unwrap_or(0)), "");
        let last = match to {
            Some(to) => rows::count_key(no, hour_of(to), ""),
            None => rows::end_of(rows::count_key(no, u32::MAX, "")),
        };
        let mut sums: BTreeMap<(u32, String), (u64, u64)> = BTreeMap::new();
        loop {
            let page = self.store.rows(SPACE, &key, &last, rows::ROWS_PER_WRITE).map_err(store_refusal)?;
            let Some((end, _)) = page.last() else { break };
            let next = [&end[..], &[0]].concat();
            for (key, row) in page {
                let counts: [u64; rows::COUNT_KINDS] = rows::decode(&row).map_err(store_refusal)?;
                let name = String::from_utf8_lossy(&key[9..]).into_owned();
                let Some((version, step)) = name.split_once('/') else { continue };
                let sum = sums.entry((version.parse().unwrap_or(0), step.to_owned())).or_default();
                sum.0 += counts[CountKind::Shown as usize];
                sum.1 += counts[CountKind::Control as usize];
            }
            key = next;
        }
        let steps = sums.into_iter().map(|((version, step), (reached, left))| PopupJourneyStepCounts {
            version,
            step,
            reached,
            left,
        });
        Ok(PopupJourneyCounts { journey: id.to_owned(), steps: steps.collect() })
    }
}

/// Operations of app servers on journeys; they are refused as those on popups are.
impl PopupService {
    /// Creates a journey, or replaces it by a new version; returns whether the journey is new.
    ///
    /// # Errors
    /// The id or the specification is wrong (`malformed`, `invalid_field`, `limit_exceeded`), or the precondition does not
    /// hold (`conflict`).
    pub fn put_journey(
        &self,
        id: &str,
        spec: &[u8],
        author: Option<&str>,
        precondition: Precondition,
    ) -> Result<(PopupJourney, bool), Refusal> {
        self.shared()?.put_journey(id, read_journey(spec)?, author, precondition)
    }

    /// A journey as it is now.
    ///
    /// # Errors
    /// There is no such journey (`not_found`).
    pub fn journey(&self, id: &str) -> Result<PopupJourney, Refusal> {
        let find = |catalog: &Catalog| catalog.journeys.get(id).map(JourneyEntry::to_http);
        self.shared()?.read_catalog(|catalog| find(catalog).ok_or_else(|| Refusal::not_found("journey", id)))
    }

    /// All journeys in the order of their ids.
    ///
    /// # Errors
    /// Only those of all operations.
    pub fn journeys(&self) -> Result<PopupJourneys, Refusal> {
        let all = |catalog: &Catalog| catalog.journeys.values().map(JourneyEntry::to_http).collect();
        self.shared()?.read_catalog(|catalog| Ok(PopupJourneys { journeys: all(catalog) }))
    }

    /// Deletes a journey with its versions and counts: all users leave it.
    ///
    /// # Errors
    /// There is no such journey (`not_found`), or the precondition does not hold (`conflict`).
    pub fn remove_journey(&self, id: &str, precondition: Precondition) -> Result<(), Refusal> {
        self.shared()?.remove_journey(id, precondition)
    }

    /// How many users came to each step and went on, in the hours with `from <= hour < to`.
    ///
    /// # Errors
    /// There is no such journey (`not_found`).
    pub fn journey_counts(&self, id: &str, from: Option<u64>, to: Option<u64>) -> Result<PopupJourneyCounts, Refusal> {
        self.shared()?.journey_counts(id, from, to)
    }
}

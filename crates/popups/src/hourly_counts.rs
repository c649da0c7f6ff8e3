//! Counts per popup, variant and hour, for the app server's statistics. The worker keeps the hours that are being
//! counted in memory and writes them together with the exposures and events that they count, so that neither is stored
//! without the other.

use super::{
    Shared,
    rows::{self, COUNT_KINDS, CountKind, SPACE},
};
use rustc_hash::{FxHashMap, FxHashSet};
use tidings_domain::{
    refusals::store_refusal,
    store::{RowChange, RowStore, StoreResult},
};
use tidings_protocol::{error::Refusal, http::*, limits::POPUP_HOURS_MAX};

pub(super) const HOUR_MS: u64 = 60 * 60 * 1_000;
/// Hours in memory. Above: those that the last write did not change are dropped, and read again when needed.
const LOADED_MAX: usize = 50_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct HourlyCountKey {
    popup: u32,
    hour: u32,
    variant: String,
}

impl HourlyCountKey {
    fn of(popup: u32, variant: &str, at: u64) -> Self {
        HourlyCountKey { popup, hour: (at / HOUR_MS) as u32, variant: variant.to_owned() }
    }
}

type Hour = [u64; COUNT_KINDS];

#[derive(Default)]
pub(super) struct HourlyCounts {
    loaded: FxHashMap<HourlyCountKey, Hour>,
    changed: FxHashSet<HourlyCountKey>,
}

fn encode(counts: &Hour) -> Vec<u8> {
    rows::encode(counts)
}

impl HourlyCounts {
    /// Loads the hours that are about to be counted, each given by popup, variant and time.
    pub(super) fn load<'a, S: RowStore + ?Sized>(
        &mut self,
        store: &S,
        wanted: impl Iterator<Item = (u32, &'a str, u64)>,
    ) -> StoreResult<()> {
        let wanted = wanted.map(|(popup, variant, at)| HourlyCountKey::of(popup, variant, at));
        let missing: FxHashSet<HourlyCountKey> = wanted.filter(|key| !self.loaded.contains_key(key)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let missing: Vec<HourlyCountKey> = missing.into_iter().collect();
        let keys: Vec<Vec<u8>> = missing.iter().map(|key| rows::count_key(key.popup, key.hour, &key.variant)).collect();
        for (key, stored) in missing.into_iter().zip(store.rows_of(SPACE, &keys)?) {
            let counts = stored.map(|row| rows::decode(&row)).transpose()?.unwrap_or_default();
            self.loaded.insert(key, counts);
        }
        Ok(())
    }

    /// Adds one to an hour that has been loaded.
    pub(super) fn count(&mut self, popup: u32, variant: &str, kind: CountKind, at: u64) {
        let key = HourlyCountKey::of(popup, variant, at);
        debug_assert!(self.loaded.contains_key(&key), "an hour is loaded before it is counted");
        if let Some(counts) = self.loaded.get_mut(&key) {
            counts[kind as usize] += 1;
            self.changed.insert(key);
        }
    }

    /// Adds the rows of all hours that changed since the last write.
    pub(super) fn push_changes(&self, changes: &mut Vec<RowChange>) {
        for key in &self.changed {
            if let Some(counts) = self.loaded.get(key) {
                changes.push(rows::put(rows::count_key(key.popup, key.hour, &key.variant), encode(counts)));
            }
        }
    }

    /// The changes were stored.
    pub(super) fn changes_stored(&mut self) {
        if self.loaded.len() > LOADED_MAX {
            let changed = std::mem::take(&mut self.changed);
            self.loaded.retain(|key, _| changed.contains(key));
        }
        self.changed.clear();
    }

    /// The changes could not be stored: the hours are read from the store again when they are next counted.
    pub(super) fn discard_changes(&mut self) {
        for key in self.changed.drain() {
            self.loaded.remove(&key);
        }
    }
}

impl Shared {
    /// A popup's counts, hour by hour; `from <= hour < to`.
    pub(super) fn counts(&self, id: &str, from: Option<u64>, to: Option<u64>) -> Result<PopupCounts, Refusal> {
        let no = self.popup_no(id)?;
        self.flush()?;
        let (from, to) = (from.unwrap_or(0), to.unwrap_or(u64::MAX));
        let first = rows::count_key(no, from.div_ceil(HOUR_MS).min(u64::from(u32::MAX)) as u32, "");
        let last = rows::end_of(rows::count_key(no, u32::MAX, ""));
        let rows = self.store.rows(SPACE, &first, &last, POPUP_HOURS_MAX + 1).map_err(store_refusal)?;
        let mut hours = Vec::new();
        for (key, row) in rows {
            let hour = u64::from(u32::from_be_bytes(std::array::from_fn(|at| key[5 + at]))) * HOUR_MS;
            if hour >= to {
                break;
            }
            if hours.len() == POPUP_HOURS_MAX {
                return Err(Refusal::limit("hours", POPUP_HOURS_MAX as u64, hours.len() as u64 + 1));
            }
            let counts: Hour = rows::decode(&row).map_err(store_refusal)?;
            let of = |kind: CountKind| counts[kind as usize];
            hours.push(PopupHour {
                hour,
                variant: String::from_utf8_lossy(&key[9..]).into_owned(),
                shown: of(CountKind::Shown),
                control: of(CountKind::Control),
                impressions: of(CountKind::Impression),
                clicks: of(CountKind::Click),
                buttons: of(CountKind::Button),
                dismissals: of(CountKind::Dismiss),
                conversions: of(CountKind::Conversion),
            });
        }
        Ok(PopupCounts { popup: id.to_owned(), hours })
    }
}

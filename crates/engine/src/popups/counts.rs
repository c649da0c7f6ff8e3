//! What is counted per popup, variant and hour. The worker keeps the hours that are being counted in memory and
//! writes them with what they count, so that neither is ever stored without the other.

use super::{
    Shared,
    rows::{self, COUNTED, Counted, SPACE},
};
use crate::{
    commit::store_refusal,
    store::{RowChange, RowStore, StoreResult},
};
use rustc_hash::{FxHashMap, FxHashSet};
use tidings_protocol::{error::Refusal, http::*, limits::POPUP_HOURS_MAX};

pub(super) const HOUR_MS: u64 = 60 * 60 * 1_000;
/// Hours held in memory. Above: those that were not counted in the last write are dropped, and read again if needed.
const HELD_MAX: usize = 50_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CountKey {
    popup: u32,
    hour: u32,
    variant: String,
}

impl CountKey {
    fn of(popup: u32, variant: &str, at: u64) -> Self {
        CountKey { popup, hour: (at / HOUR_MS) as u32, variant: variant.to_owned() }
    }
}

type Numbers = [u64; COUNTED];

#[derive(Default)]
pub(super) struct Counts {
    held: FxHashMap<CountKey, Numbers>,
    changed: FxHashSet<CountKey>,
}

fn encode(numbers: &Numbers) -> Vec<u8> {
    rows::encode(numbers)
}

impl Counts {
    /// Reads what is not held of what is to be counted: popup, variant and time of each.
    pub(super) fn hold<'a, S: RowStore + ?Sized>(
        &mut self,
        store: &S,
        wanted: impl Iterator<Item = (u32, &'a str, u64)>,
    ) -> StoreResult<()> {
        let wanted = wanted.map(|(popup, variant, at)| CountKey::of(popup, variant, at));
        let missing: FxHashSet<CountKey> = wanted.filter(|key| !self.held.contains_key(key)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let missing: Vec<CountKey> = missing.into_iter().collect();
        let keys: Vec<Vec<u8>> = missing.iter().map(|key| rows::count_key(key.popup, key.hour, &key.variant)).collect();
        for (key, stored) in missing.into_iter().zip(store.rows_of(SPACE, &keys)?) {
            let numbers = stored.map(|row| rows::decode(&row)).transpose()?.unwrap_or_default();
            self.held.insert(key, numbers);
        }
        Ok(())
    }

    /// Counts one of what is held.
    pub(super) fn count(&mut self, popup: u32, variant: &str, what: Counted, at: u64) {
        let key = CountKey::of(popup, variant, at);
        debug_assert!(self.held.contains_key(&key), "what is counted is held");
        if let Some(numbers) = self.held.get_mut(&key) {
            numbers[what as usize] += 1;
            self.changed.insert(key);
        }
    }

    /// The rows of what changed since the last time.
    pub(super) fn put_changed(&self, changes: &mut Vec<RowChange>) {
        for key in &self.changed {
            if let Some(numbers) = self.held.get(key) {
                changes.push(rows::put(rows::count_key(key.popup, key.hour, &key.variant), encode(numbers)));
            }
        }
    }

    /// What changed is stored.
    pub(super) fn stored(&mut self) {
        if self.held.len() > HELD_MAX {
            let changed = std::mem::take(&mut self.changed);
            self.held.retain(|key, _| changed.contains(key));
        }
        self.changed.clear();
    }

    /// What changed could not be stored: the store's numbers count.
    pub(super) fn forget_changed(&mut self) {
        for key in self.changed.drain() {
            self.held.remove(&key);
        }
    }
}

impl Shared {
    /// A popup's counts, hour by hour; `from <= hour < to`.
    pub(super) fn counts(&self, id: &str, from: Option<u64>, to: Option<u64>) -> Result<PopupCounts, Refusal> {
        let no = self.popup_no(id)?;
        self.settle()?;
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
            let numbers: Numbers = rows::decode(&row).map_err(store_refusal)?;
            let of = |what: Counted| numbers[what as usize];
            hours.push(PopupHour {
                hour,
                variant: String::from_utf8_lossy(&key[9..]).into_owned(),
                shown: of(Counted::Shown),
                control: of(Counted::Control),
                impressions: of(Counted::Impression),
                clicks: of(Counted::Click),
                buttons: of(Counted::Button),
                dismissals: of(Counted::Dismiss),
                conversions: of(Counted::Conversion),
            });
        }
        Ok(PopupCounts { popup: id.to_owned(), hours })
    }
}

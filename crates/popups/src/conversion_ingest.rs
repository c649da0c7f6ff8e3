//! Conversions: an event that is what a popup is for changes the rows of its user's assignments, in the write that stores it.

use super::{
    UserKey,
    assignments::row_key,
    configuration::{Configuration, Popup},
    conversion::Group,
    events::VerifiedEvent,
    rows::{self, AssignmentKey, SPACE, StoredAssignment},
    user_changes::{UserChange, UserChanges},
    worker::Worker,
};
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::store::{RowChange, StoreResult};

/// Conversions of one write, by where the assignments are kept.
#[derive(Default)]
pub(super) struct Conversions(BTreeMap<UserKey, Vec<(Arc<Popup>, f64, String)>>);

impl Conversions {
    /// Notes the popups whose declared conversion this event is.
    pub(super) fn note(&mut self, verified: &VerifiedEvent, name: &str, configuration: &Configuration, taken_at: u64) {
        let Some(popups) = configuration.by_conversion.get(name) else { return };
        let user = UserKey::of(verified.user());
        for popup in popups {
            let value = popup
                .conversion
                .as_ref()
                .and_then(|one| one.value_of(user, verified.event.properties.as_ref(), taken_at));
            if let Some(value) = value {
                self.0.entry(user).or_default().push((popup.clone(), value, verified.user().to_owned()));
            }
        }
    }
}

impl Worker {
    /// Adds the rows of the assignments that these conversions change, and that of their users' marks which says that there is
    /// such a row.
    pub(super) fn push_conversions(
        &mut self,
        conversions: Conversions,
        taken_at: u64,
        marks: &mut UserChanges,
        to: &mut Vec<RowChange>,
    ) -> StoreResult<()> {
        if conversions.0.is_empty() {
            return Ok(());
        }
        self.load_users(conversions.0.keys().copied())?;
        let mut found: BTreeMap<AssignmentKey, (StoredAssignment, u32, f64)> = BTreeMap::new();
        for (user, all) in conversions.0 {
            let counters = self.with_loaded_user(user, |user| user.counters.clone())?;
            for (popup, value, id) in all {
                let Some(conversion) = &popup.conversion else { continue };
                let Some(mark) = counters.get(conversion.mark) else { continue };
                let is_within = mark.last_at <= taken_at && taken_at - mark.last_at < conversion.within_ms;
                let Some(key) = row_key(user, mark).filter(|_| is_within) else { continue };
                marks.push(&id, UserChange::AssignmentWritten { key: mark.key });
                let (_, conversions, sum) = found.entry(key).or_insert_with(|| {
                    let variant = popup.variant_of_group(Group(mark.total)).unwrap_or_default().to_owned();
                    (StoredAssignment { user: id, group: mark.total, variant, ..StoredAssignment::default() }, 0, 0.0)
                });
                (*conversions, *sum) = (*conversions + 1, *sum + value);
            }
        }
        let keys: Vec<Vec<u8>> = found.keys().map(|key| key.to_bytes()).collect();
        let stored = self.shared.store.rows_of(SPACE, &keys)?;
        for ((key, (new, conversions, value)), stored) in keys.into_iter().zip(found.into_values()).zip(stored) {
            let mut row = stored.map(|row| rows::decode(&row)).transpose()?.unwrap_or_else(|| new.clone());
            if row.user.is_empty() {
                (row.user, row.variant) = (new.user, new.variant);
            }
            if row.conversions == 0 {
                row.converted_at = taken_at;
            }
            row.conversions = row.conversions.saturating_add(conversions);
            row.value += value;
            to.push(rows::put(key, rows::encode(&row)));
        }
        Ok(())
    }
}

//! The rows of notifications that the store keeps in tables: what each row is, and under which key.
//!
//! There are three kinds. Each has a table of its own once the gate `notification_tables` is open. The form before had one table for all of
//! them, in which the id of a row says what it is:
//!
//! | ids of the shared table | rows |
//! | --- | --- |
//! | below 2^62 | events of the webhook that were given up; a position is below 2^49 |
//! | from 2^62 | events of the webhook that wait for another attempt: their own id is below the bit |
//! | from 3 × 2^61 | messages that a session did not acknowledge. Bit 60: the session goes on; bit 59: for all channels |
//!
//! Rows of both forms are read; rows of the form before go as they are dealt with. Nobody but this module knows these ids.

use std::ops::RangeInclusive;
use tidings_domain::{
    gates::{Gate, OpenGates},
    store::{NotificationKey, NotificationTable, Store, StoreResult, StoredNotification},
};

const RETRIES: u64 = 1 << 62;
const UNACKNOWLEDGED: u64 = 3 << 61;
const SESSION_STAYS: u64 = 1 << 60;
const FOR_ALL_CHANNELS: u64 = 1 << 59;
/// The numbers of unacknowledged messages are below this.
pub(crate) const UNACKNOWLEDGED_NUMBERS: u64 = FOR_ALL_CHANNELS;
/// No row has a higher id.
const LAST_ID: u64 = (1 << 63) - 1;

/// What a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotificationRowId {
    /// The id of an event that was given up.
    DeadLetter(u64),
    /// The id of an event that is to be tried again.
    Retry(u64),
    Unacknowledged {
        /// The silent session goes on: that the user has a session does not make the message obsolete.
        stays: bool,
        /// Those of older versions of the server are for the webhook, and have an event.
        for_all_channels: bool,
        number: u64,
    },
}

/// A kind of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotificationKind {
    DeadLetter,
    Retry,
    Unacknowledged,
}

impl NotificationKind {
    pub(crate) const ALL: [NotificationKind; 3] =
        [NotificationKind::DeadLetter, NotificationKind::Retry, NotificationKind::Unacknowledged];

    /// Where rows of this kind are, in the order in which they are read.
    fn places(self) -> Vec<(NotificationTable, RangeInclusive<u64>)> {
        let of_shared = |ids| (NotificationTable::DeadLetters, ids);
        match self {
            NotificationKind::DeadLetter => vec![of_shared(0..=RETRIES - 1)],
            NotificationKind::Retry => {
                vec![of_shared(RETRIES..=UNACKNOWLEDGED - 1), (NotificationTable::Retries, 0..=LAST_ID)]
            }
            NotificationKind::Unacknowledged => {
                vec![of_shared(UNACKNOWLEDGED..=LAST_ID), (NotificationTable::Unacknowledged, 0..=LAST_ID)]
            }
        }
    }
}

/// The form of rows that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowForm {
    /// The form before: all in one table.
    Shared,
    OwnTables,
}

impl RowForm {
    pub(crate) fn of(gates: &OpenGates) -> RowForm {
        if gates.is_open(Gate::NotificationTables) { RowForm::OwnTables } else { RowForm::Shared }
    }
}

impl NotificationRowId {
    pub(crate) fn of(NotificationKey { table, id }: NotificationKey) -> NotificationRowId {
        match (table, id) {
            (NotificationTable::DeadLetters, ..RETRIES) => NotificationRowId::DeadLetter(id),
            (NotificationTable::DeadLetters, RETRIES..UNACKNOWLEDGED) => NotificationRowId::Retry(id & !RETRIES),
            (NotificationTable::DeadLetters, UNACKNOWLEDGED..) => NotificationRowId::Unacknowledged {
                stays: id & SESSION_STAYS != 0,
                for_all_channels: id & FOR_ALL_CHANNELS != 0,
                number: id % UNACKNOWLEDGED_NUMBERS,
            },
            (NotificationTable::Retries, id) => NotificationRowId::Retry(id),
            (NotificationTable::Unacknowledged, id) => {
                NotificationRowId::Unacknowledged { stays: id & 1 != 0, for_all_channels: true, number: id >> 1 }
            }
        }
    }

    /// The key of the row. Of a dead letter both forms are the same, and no message for the webhook alone is written any more.
    pub(crate) fn key(self, form: RowForm) -> NotificationKey {
        let flag = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        let (table, id) = match (self, form) {
            (NotificationRowId::DeadLetter(event), _) => (NotificationTable::DeadLetters, event),
            (NotificationRowId::Retry(event), RowForm::Shared) => (NotificationTable::DeadLetters, RETRIES | event),
            (NotificationRowId::Retry(event), RowForm::OwnTables) => (NotificationTable::Retries, event),
            (NotificationRowId::Unacknowledged { stays, for_all_channels: true, number }, RowForm::OwnTables) => {
                (NotificationTable::Unacknowledged, number << 1 | u64::from(stays))
            }
            (NotificationRowId::Unacknowledged { stays, for_all_channels, number }, _) => {
                let flags = flag(stays, SESSION_STAYS) | flag(for_all_channels, FOR_ALL_CHANNELS);
                (NotificationTable::DeadLetters, UNACKNOWLEDGED | flags | number)
            }
        };
        NotificationKey { table, id }
    }
}

/// Rows of a kind behind a key, in both forms, at most `limit`.
pub(crate) fn rows(
    store: &dyn Store,
    kind: NotificationKind,
    after: Option<NotificationKey>,
    limit: usize,
) -> StoreResult<Vec<StoredNotification>> {
    let mut found = Vec::new();
    let places = kind.places();
    let first = after.and_then(|after| places.iter().position(|(table, _)| *table == after.table)).unwrap_or(0);
    for (at, (table, ids)) in places.into_iter().enumerate().skip(first) {
        let behind = after.filter(|_| at == first).map(|after| after.id);
        let behind = behind.max(ids.start().checked_sub(1));
        let rows = store.stored_notifications(table, behind, limit - found.len())?;
        found.extend(rows.into_iter().take_while(|row| ids.contains(&row.key.id)));
        if found.len() >= limit {
            break;
        }
    }
    Ok(found)
}

/// The row with this key, if it is stored.
pub(crate) fn find(store: &dyn Store, key: NotificationKey) -> StoreResult<Option<StoredNotification>> {
    let rows = store.stored_notifications(key.table, key.id.checked_sub(1), 1)?;
    Ok(rows.into_iter().next().filter(|row| row.key == key))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tidings_domain::store::Proposal;
    use tidings_testkit::MemoryStore;

    const SHARED: NotificationTable = NotificationTable::DeadLetters;

    /// The numbers are stored: nodes of the version before read and write the same.
    #[test]
    fn rows_have_the_keys_that_are_stored() {
        let unacknowledged =
            |stays, for_all_channels| NotificationRowId::Unacknowledged { stays, for_all_channels, number: 5 };
        let (retries, own) = (NotificationTable::Retries, NotificationTable::Unacknowledged);
        let all = [
            (NotificationRowId::DeadLetter(7), 7, (SHARED, 7)),
            (NotificationRowId::Retry(7), (1 << 62) + 7, (retries, 7)),
            (unacknowledged(false, false), (3 << 61) + 5, (SHARED, (3 << 61) + 5)),
            (unacknowledged(true, false), (3 << 61) + (1 << 60) + 5, (SHARED, (3 << 61) + (1 << 60) + 5)),
            (unacknowledged(false, true), (3 << 61) + (1 << 59) + 5, (own, 10)),
            (unacknowledged(true, true), (3 << 61) + (1 << 60) + (1 << 59) + 5, (own, 11)),
        ];
        for (row, shared, (table, id)) in all {
            let keys = [NotificationKey { table: SHARED, id: shared }, NotificationKey { table, id }];
            assert_eq!([RowForm::Shared, RowForm::OwnTables].map(|form| row.key(form)), keys);
            assert_eq!(keys.map(NotificationRowId::of), [row; 2]);
        }
    }

    #[test]
    fn rows_of_both_forms_are_found_whatever_the_page() {
        let store = MemoryStore::default();
        let both = [RowForm::Shared, RowForm::OwnTables];
        let unacknowledged =
            |number| NotificationRowId::Unacknowledged { stays: number % 2 == 0, for_all_channels: true, number };
        let of = |kind| match kind {
            NotificationKind::DeadLetter => [1, 2, 3].map(NotificationRowId::DeadLetter),
            NotificationKind::Retry => [1, 2, 3].map(NotificationRowId::Retry),
            NotificationKind::Unacknowledged => [1, 2, 3].map(unacknowledged),
        };
        let keys = NotificationKind::ALL.into_iter().flat_map(of).flat_map(|row| both.map(|form| row.key(form)));
        let stored = |key| StoredNotification {
            key,
            failed_at: 0,
            attempts: 0,
            last_error: String::new(),
            event: String::new(),
        };
        let dead = keys.map(stored).collect();
        store.commit(&[Proposal::AdvanceOutbox { through: 0, dead }], 0).unwrap();
        for kind in NotificationKind::ALL {
            let forms = if kind == NotificationKind::DeadLetter { 1 } else { 2 };
            for limit in 1..=7 {
                let (mut after, mut found) = (None, Vec::new());
                loop {
                    let page = rows(&store, kind, after, limit).unwrap();
                    assert!(page.len() <= limit);
                    let Some(last) = page.last() else { break };
                    after = Some(last.key);
                    assert!(page.iter().all(|row| find(&store, row.key).unwrap().as_ref() == Some(row)));
                    found.extend(page.iter().map(|row| NotificationRowId::of(row.key)));
                }
                assert_eq!(found.len(), 3 * forms, "{kind:?}, {limit} at once");
                assert!(of(kind).iter().all(|row| found.iter().filter(|found| *found == row).count() == forms));
            }
        }
        assert_eq!(find(&store, NotificationRowId::Retry(9).key(RowForm::OwnTables)).unwrap(), None);
    }
}

//! The tables of stored notifications, which are alike, and the statements for them.

use super::connection::{Call, bigint};
use crate::rows::{NotificationRow, encode};
use std::collections::BTreeMap;
use tidings_domain::store::{NotificationKey, NotificationTable, StoredNotification};

/// The statements for one table.
pub(super) struct Statements {
    pub(super) read: &'static str,
    put: &'static str,
    delete: &'static str,
}

macro_rules! statements {
    ($table:literal) => {
        Statements {
            read: concat!("SELECT id, row FROM ", $table, " WHERE id > $1 ORDER BY id LIMIT $2"),
            put: concat!(
                "INSERT INTO ",
                $table,
                " (id, row) SELECT * FROM unnest($1::bigint[], $2::bytea[]) ON CONFLICT (id) DO UPDATE SET row = excluded.row"
            ),
            delete: concat!("DELETE FROM ", $table, " WHERE id = ANY($1)"),
        }
    };
}

impl Statements {
    pub(super) fn of(table: NotificationTable) -> Statements {
        match table {
            NotificationTable::DeadLetters => statements!("dead_notifications"),
            NotificationTable::Retries => statements!("notification_retries"),
            NotificationTable::Unacknowledged => statements!("unacknowledged_messages"),
        }
    }
}

/// The changes of one table, as the columns that its statements take.
#[derive(Default)]
struct Columns {
    ids: Vec<i64>,
    rows: Vec<Vec<u8>>,
    removed: Vec<i64>,
}

/// The changes of all tables.
pub(super) struct NotificationColumns(BTreeMap<NotificationTable, Columns>);

impl NotificationColumns {
    /// Without a notification the key is removed.
    pub(super) fn of(changes: &BTreeMap<NotificationKey, Option<&StoredNotification>>) -> NotificationColumns {
        let mut tables = BTreeMap::<_, Columns>::new();
        for (NotificationKey { table, id }, notification) in changes {
            let columns = tables.entry(*table).or_default();
            if let Some(notification) = notification {
                columns.ids.push(bigint(*id));
                columns.rows.push(encode(&NotificationRow::of(notification)));
            } else {
                columns.removed.push(bigint(*id));
            }
        }
        NotificationColumns(tables)
    }

    /// Adds the statements that write them.
    pub(super) fn add_calls<'a>(&'a self, calls: &mut Vec<Call<'a>>) {
        for (table, Columns { ids, rows, removed }) in &self.0 {
            let Statements { put, delete, .. } = Statements::of(*table);
            if !ids.is_empty() {
                calls.push(Call::new(put, &[ids, rows]));
            }
            if !removed.is_empty() {
                calls.push(Call::new(delete, &[removed]));
            }
        }
    }
}

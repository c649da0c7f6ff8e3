//! Rows whose keys and values a part of the server encodes itself.

use super::{PostgresStore, connection::number, read_place::Read, terms::is_lease_of};
use crate::{
    byte_rows::check_lengths,
    push::{decode_push_row, push_key, push_value},
};
use std::collections::{BTreeMap, HashMap};
use tidings_domain::{push_store::*, store::*};
use tokio_postgres::Row;

/// The statements of one table of rows.
struct Table {
    /// Puts rows that have a value and drops the others, in one statement and so all or none. Returns a row if the term is
    /// still this process's. The boot id is compared too: a database that has gone back may give out a term twice. A node
    /// that would begin another term waits until the statement is done.
    write: &'static str,
    row: &'static str,
    rows_of: &'static str,
    rows: &'static str,
    first_keys: &'static str,
}

macro_rules! table {
    ($table:literal) => {
        Table {
            write: concat!(
                "WITH fence AS MATERIALIZED (SELECT 1 FROM leader WHERE term = $3::bigint AND boot_id = $4::bigint ",
                "AND ",
                is_lease_of!("$5"),
                " FOR SHARE), ",
                "change AS MATERIALIZED ",
                "(SELECT c.* FROM fence, unnest($1::bytea[], $2::bytea[]) AS c (key, value)), ",
                "gone AS (DELETE FROM ",
                $table,
                " r USING change c WHERE r.key = c.key AND c.value IS NULL), ",
                "there AS (INSERT INTO ",
                $table,
                " (key, value) SELECT key, value FROM change WHERE value IS NOT NULL ",
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value) ",
                "SELECT 1 FROM fence"
            ),
            row: concat!("SELECT value FROM ", $table, " WHERE key = $1"),
            rows_of: concat!("SELECT key, value FROM ", $table, " WHERE key = ANY($1::bytea[])"),
            rows: concat!("SELECT key, value FROM ", $table, " WHERE key BETWEEN $1 AND $2 ORDER BY key LIMIT $3"),
            first_keys: concat!(
                "SELECT ordinal, key FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS range (low, high, ordinal), ",
                "LATERAL (SELECT key FROM ",
                $table,
                " WHERE key BETWEEN low AND high ORDER BY key LIMIT 1) AS first"
            ),
        }
    };
}

const PUSH: Table = table!("push_rows");
const POPUPS: Table = table!("popup_rows");
const CHAT: Table = table!("chat_rows");

impl PostgresStore {
    /// The last change of a key counts. Rows are written in the order of keys, so that writers do not deadlock.
    fn write_table(&self, term: Term, table: &Table, changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> StoreResult<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let (keys, values): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        self.write_in_term(term, |number, leader, function| {
            Ok(!self.write_statement(table.write, &[&keys, &values, &number, &leader, &function])?.is_empty())
        })
    }

    /// The values of these keys, in their order.
    fn values_of<T: Clone>(
        &self,
        table: &Table,
        keys: &[Vec<u8>],
        value: impl Fn(&[u8]) -> StoreResult<T>,
    ) -> StoreResult<Vec<Option<T>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.read(Read::RowsByKey, table.rows_of, &[&keys])?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            found.insert(row.get::<_, &[u8]>(0), value(row.get(1))?);
        }
        Ok(keys.iter().map(|key| found.get(&key[..]).cloned()).collect())
    }

    fn range_of(&self, table: &Table, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<Row>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.read(Read::RowRange, table.rows, &[&from, &to, &limit])
    }
}

impl Table {
    fn of(space: RowSpace) -> &'static Table {
        match space {
            RowSpace::Popups => &POPUPS,
            RowSpace::Chat => &CHAT,
        }
    }
}

impl RowStore for PostgresStore {
    fn write_rows(&self, term: Term, space: RowSpace, changes: Vec<RowChange>) -> StoreResult<()> {
        check_lengths(&changes)?;
        self.write_table(term, Table::of(space), changes.into_iter().map(|change| (change.key, change.value)).collect())
    }

    fn row(&self, space: RowSpace, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        Ok(self.read(Read::RowsByKey, Table::of(space).row, &[&key])?.first().map(|row| row.get(0)))
    }

    fn rows_of(&self, space: RowSpace, keys: &[Vec<u8>]) -> StoreResult<Vec<Option<Vec<u8>>>> {
        self.values_of(Table::of(space), keys, |value| Ok(value.to_vec()))
    }

    fn rows(&self, space: RowSpace, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>> {
        let rows = self.range_of(Table::of(space), from, to, limit)?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    fn first_keys(&self, space: RowSpace, ranges: &[(Vec<u8>, Vec<u8>)]) -> StoreResult<Vec<Option<Vec<u8>>>> {
        let (low, high): (Vec<&[u8]>, Vec<&[u8]>) = ranges.iter().map(|(low, high)| (&low[..], &high[..])).unzip();
        let mut first = vec![None; ranges.len()];
        for row in self.read(Read::RowRanges, Table::of(space).first_keys, &[&low, &high])? {
            if let Some(place) = first.get_mut(number(&row, 0) as usize - 1) {
                *place = Some(row.get(1));
            }
        }
        Ok(first)
    }
}

impl PushStore for PostgresStore {
    fn write_push(&self, term: Term, changes: &[PushChange]) -> StoreResult<()> {
        let mut last = BTreeMap::new();
        for change in changes {
            match change {
                PushChange::Put(row) => last.insert(push_key(&row.key()), Some(push_value(row)?)),
                PushChange::Delete(key) => last.insert(push_key(key), None),
            };
        }
        self.write_table(term, &PUSH, last)
    }

    fn push_row(&self, key: &PushKey) -> StoreResult<Option<PushRow>> {
        let rows = self.read(Read::RowsByKey, PUSH.row, &[&push_key(key)])?;
        rows.first().map(|row| decode_push_row(row.get(0))).transpose()
    }

    fn push_rows_of(&self, keys: &[PushKey]) -> StoreResult<Vec<Option<PushRow>>> {
        let keys: Vec<Vec<u8>> = keys.iter().map(push_key).collect();
        self.values_of(&PUSH, &keys, decode_push_row)
    }

    fn push_rows(&self, from: &PushKey, to: &PushKey, limit: usize) -> StoreResult<Vec<PushRow>> {
        let rows = self.range_of(&PUSH, &push_key(from), &push_key(to), limit)?;
        rows.iter().map(|row| decode_push_row(row.get(1))).collect()
    }
}

//! Rows on their way into the database, as the columns that the statements take.

use super::table::{Table, Value};
use crate::postgres::connection::{Call, bigint};
use std::collections::BTreeMap;

/// The bytes of rows from which on a batch is full, however few rows it has.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Rows of several tables that are written, or compared, together.
#[derive(Default)]
pub(super) struct Batch {
    columns: BTreeMap<Table, Vec<Vec<Value>>>,
    chapters: BTreeMap<(i64, i32), i64>,
    parts: BTreeMap<i32, PartSums>,
    rows: usize,
    bytes: usize,
}

/// What the entries of a batch add to a part of the timeline.
#[derive(Default)]
struct PartSums {
    entries: i64,
    bytes: i64,
    last_position: i64,
}

impl Batch {
    /// Adds a row: its values in the order of the columns.
    pub(super) fn push<const COLUMNS: usize>(&mut self, table: Table, row: [Value; COLUMNS]) {
        self.rows += 1;
        self.bytes += row.iter().map(Value::length).sum::<usize>();
        let columns = self.columns.entry(table).or_insert_with(|| vec![Vec::new(); COLUMNS]);
        columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
    }

    /// Notes an entry in what is kept of its part of the timeline.
    pub(super) fn note_entry(&mut self, conversation: u64, seq: u64, part: i32, position: u64, bytes: usize) {
        self.chapters.entry((bigint(conversation), part)).or_insert(bigint(seq));
        let sums = self.parts.entry(part).or_default();
        sums.entries += 1;
        sums.bytes += bigint(bytes as u64);
        sums.last_position = sums.last_position.max(bigint(position));
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn is_full(&self, rows_max: usize) -> bool {
        self.rows >= rows_max || self.bytes >= BYTES_MAX
    }

    /// The parts of the timeline that its entries are in.
    pub(super) fn parts(&self) -> Vec<i32> {
        self.parts.keys().copied().collect()
    }

    /// Adds the rows of the tables that are sums over entries.
    pub(super) fn add_sums(&mut self) {
        for ((conversation, part), first_seq) in std::mem::take(&mut self.chapters) {
            self.push(Table::Chapters, [Value::Big(conversation), Value::Int(part), Value::Big(first_seq)]);
        }
        for (part, PartSums { entries, bytes, last_position }) in std::mem::take(&mut self.parts) {
            let [entries, bytes, last_position] = [entries, bytes, last_position].map(Value::Big);
            self.push(Table::Parts, [Value::Int(part), entries, bytes, last_position]);
        }
    }

    /// The statements that write the rows.
    pub(super) fn inserts(&self) -> Vec<Call<'_>> {
        self.calls(|table| &table.statements().insert).map(|(_, _, call)| call).collect()
    }

    /// The statements that count the rows that are stored as they are here: each table with how many there are here.
    pub(super) fn comparisons(&self) -> Vec<(Table, u64, Call<'_>)> {
        self.calls(|table| &table.statements().compare).collect()
    }

    fn calls(&self, sql: impl Fn(Table) -> &'static str) -> impl Iterator<Item = (Table, u64, Call<'_>)> {
        self.columns.iter().map(move |(table, columns)| {
            let params: Vec<_> = columns.iter().map(|column| column as _).collect();
            (*table, columns.first().map_or(0, Vec::len) as u64, Call::new(sql(*table), &params))
        })
    }
}

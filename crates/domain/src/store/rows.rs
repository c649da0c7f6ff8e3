//! Rows of bytes that a part of the server encodes itself, and the side log.

use super::{StoreResult, Term};

/// A part of the server that stores rows in a form of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowSpace {
    /// Everything that the crate of popups stores.
    Popups,
    /// What commits store besides entries, profiles and details, such as who gave which reaction. Only
    /// [`decide`](crate::decide::decide) writes the rows of messages and members; the leader writes those
    /// of bulk sends, and removes what retention and purges leave.
    Chat,
}

/// The longest key of a row in bytes, far below what an index of PostgreSQL takes (2,704). Whoever makes a key of a client's text
/// bounds that text first.
pub const ROW_KEY_BYTES_MAX: usize = 1_024;
/// The longest value of a row in bytes. A part with longer values cuts them into several rows.
pub const ROW_BYTES_MAX: usize = 3 * 1024;

/// Writes a row, or deletes it when `value` is absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    /// At most [`ROW_KEY_BYTES_MAX`] bytes. The order of keys as bytes is the order of rows.
    pub key: Vec<u8>,
    /// At most [`ROW_BYTES_MAX`] bytes; absent: the row is deleted.
    pub value: Option<Vec<u8>>,
}

/// Rows of bytes in the order of their keys. The store does not know what they mean.
///
/// # Errors
/// Every call may fail with [`Unavailable`](super::StoreError::Unavailable) or [`Damaged`](super::StoreError::Damaged).
pub trait RowStore: Send + Sync + 'static {
    /// Writes all changes or none; they are durable when it returns.
    ///
    /// # Errors
    /// [`StaleTerm`](super::StoreError::StaleTerm) and [`DiskFull`](super::StoreError::DiskFull): nothing was stored.
    /// [`OutcomeUnknown`](super::StoreError::OutcomeUnknown): see there. A key longer than [`ROW_KEY_BYTES_MAX`], and a
    /// value longer than [`ROW_BYTES_MAX`], is [`Unavailable`](super::StoreError::Unavailable).
    fn write_rows(&self, term: Term, space: RowSpace, changes: Vec<RowChange>) -> StoreResult<()>;
    /// The value under a key.
    ///
    /// # Errors
    /// Those of every read: see the trait.
    fn row(&self, space: RowSpace, key: &[u8]) -> StoreResult<Option<Vec<u8>>>;
    /// Rows with `from <= key <= to`, in the order of keys, at most `limit`.
    ///
    /// # Errors
    /// Those of every read: see the trait.
    fn rows(&self, space: RowSpace, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>>;

    /// The values of these keys, in the same order. A store with a round trip for each read overrides this with a
    /// single one.
    ///
    /// # Errors
    /// Those of every read: see the trait.
    fn rows_of(&self, space: RowSpace, keys: &[Vec<u8>]) -> StoreResult<Vec<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.row(space, key)).collect()
    }

    /// The key of the first row of each of these ranges, in the same order. A store with a round trip for each read overrides this
    /// with a single one.
    ///
    /// # Errors
    /// Those of every read: see the trait.
    fn first_keys(&self, space: RowSpace, ranges: &[(Vec<u8>, Vec<u8>)]) -> StoreResult<Vec<Option<Vec<u8>>>> {
        let first = |(from, to): &(Vec<u8>, Vec<u8>)| {
            let rows = self.rows(space, from, to, 1)?;
            Ok(rows.into_iter().next().map(|(key, _)| key))
        };
        ranges.iter().map(first).collect()
    }

    /// Whether the store has a side log: two files for rows on their way to the store, appended to without fsync.
    fn has_side_log(&self) -> bool {
        false
    }
    /// Appends rows to the side log: they survive the end of this process, not that of the machine, and a disk that
    /// stalls does not hold up the caller.
    ///
    /// # Errors
    /// The rows could not be written; they survive nothing until they are stored.
    fn append_to_side_log(&self, _: &[RowChange]) -> StoreResult<()> {
        Ok(())
    }
    /// Appends go to the side log's other file from here on, unless that file has not been truncated yet.
    fn rotate_side_log(&self) {}
    /// Empties the file that was appended to before the last rotation: its rows are stored.
    ///
    /// # Errors
    /// The file could not be emptied; a later call does so.
    fn truncate_rotated_side_log(&self) -> StoreResult<()> {
        Ok(())
    }
    /// All rows of the side log, those of each file in the order of their appends.
    ///
    /// # Errors
    /// The side log could not be read.
    fn read_side_log(&self) -> StoreResult<Vec<RowChange>> {
        Ok(Vec::new())
    }
    /// Empties both files.
    ///
    /// # Errors
    /// A file could not be emptied.
    fn truncate_side_log(&self) -> StoreResult<()> {
        Ok(())
    }
}

/// How many rows of popups a check has read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckedRows {
    /// Popups, each with its versions.
    pub popups: u64,
    /// Uploaded lists of users.
    pub segments: u64,
    /// Users with frequency counters.
    pub users: u64,
    /// Events of popups, one for each that is kept for export.
    pub events: u64,
}

/// Checks the rows of popups, which a store can neither read nor judge: calls back with a sentence for each fault.
pub type RowsCheck = fn(&dyn RowStore, &mut dyn FnMut(String)) -> StoreResult<CheckedRows>;

//! The rows that parts of the engine make themselves: bytes as they are, each part in a space of its own.

use crate::{
    embedded::{EmbeddedStore, store_error},
    kv::*,
};
use tidings_engine::store::*;

fn space_of(space: RowSpace) -> Space {
    match space {
        RowSpace::Popups => Space::Popups,
    }
}

/// No store takes longer rows than the one that takes the shortest.
pub(crate) fn check_lengths(changes: &[RowChange]) -> StoreResult<()> {
    match changes.iter().find(|change| change.value.as_ref().is_some_and(|v| v.len() > ROW_BYTES_MAX)) {
        Some(long) => Err(StoreError::Unavailable(format!("a row of more than {ROW_BYTES_MAX} bytes: {:?}", long.key))),
        None => Ok(()),
    }
}

fn note_error(error: std::io::Error) -> StoreError {
    store_error(KvError::Io(error))
}

impl RowStore for EmbeddedStore {
    fn write_rows(&self, _: Term, space: RowSpace, changes: Vec<RowChange>) -> StoreResult<()> {
        if changes.is_empty() {
            return Ok(());
        }
        check_lengths(&changes)?;
        let space = space_of(space);
        let puts = changes.into_iter().map(|RowChange { key, value }| Put { space, key, value }).collect();
        self.write_beside(Batch { puts })
    }

    fn row(&self, space: RowSpace, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        self.kv()?.get(space_of(space), key).map_err(store_error)
    }

    fn rows(&self, space: RowSpace, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>> {
        let row = |key: &[u8], value: &[u8]| Ok((key.to_vec(), value.to_vec()));
        // What stands beyond is the store's own.
        let to = to.min(LAST_KEY);
        Self::scan_values(&*self.kv()?, space_of(space), from, to, limit, Order::Up, row)
    }

    fn takes_notes(&self) -> bool {
        true
    }

    fn note_rows(&self, changes: &[RowChange]) -> StoreResult<()> {
        self.notes.note(changes).map_err(note_error)
    }

    fn turn_notes(&self) {
        self.notes.turn();
    }

    fn forget_turned_notes(&self) -> StoreResult<()> {
        self.notes.forget_turned().map_err(note_error)
    }

    fn noted_rows(&self) -> StoreResult<Vec<RowChange>> {
        self.notes.read().map_err(note_error)
    }

    fn forget_all_notes(&self) -> StoreResult<()> {
        self.notes.forget_all().map_err(note_error)
    }
}

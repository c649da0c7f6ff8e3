//! Rows whose keys and values are bytes that a part of the server has encoded itself; each part has a space of its own.

use crate::{embedded::EmbeddedStore, errors::store_error, kv::*, rows::chat_key};
use tidings_domain::store::*;

/// Where a row of this space and key is.
fn place_of(space: RowSpace, key: Vec<u8>) -> (Space, Vec<u8>) {
    match space {
        RowSpace::Popups => (Space::Popups, key),
        RowSpace::Chat => (Space::Meta, chat_key(&key)),
    }
}

/// Refuses rows that are longer than every store accepts.
pub(crate) fn check_lengths(changes: &[RowChange]) -> StoreResult<()> {
    if let Some(long) = changes.iter().find(|change| change.key.len() > ROW_KEY_BYTES_MAX) {
        return Err(StoreError::Unavailable(format!("a key of {} bytes", long.key.len())));
    }
    match changes.iter().find(|change| change.value.as_ref().is_some_and(|v| v.len() > ROW_BYTES_MAX)) {
        Some(long) => Err(StoreError::Unavailable(format!("a row of more than {ROW_BYTES_MAX} bytes: {:?}", long.key))),
        None => Ok(()),
    }
}

fn io_error(error: std::io::Error) -> StoreError {
    store_error(KvError::Io(error))
}

impl RowStore for EmbeddedStore {
    fn write_rows(&self, _: Term, space: RowSpace, changes: Vec<RowChange>) -> StoreResult<()> {
        if changes.is_empty() {
            return Ok(());
        }
        check_lengths(&changes)?;
        let write = |RowChange { key, value }| {
            let (space, key) = place_of(space, key);
            Write { space, key, value }
        };
        let writes = changes.into_iter().map(write).collect();
        self.write_rows_batch(Batch { writes })
    }

    fn row(&self, space: RowSpace, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        let (space, key) = place_of(space, key.to_vec());
        self.kv()?.get(space, &key).map_err(store_error)
    }

    fn rows(&self, space: RowSpace, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>> {
        // Keys beyond are the store's own.
        let to = to.min(LAST_KEY);
        let prefix = place_of(space, Vec::new()).1.len();
        let row = |key: &[u8], value: &[u8]| Ok((key[prefix..].to_vec(), value.to_vec()));
        let ((space, from), (_, to)) = (place_of(space, from.to_vec()), place_of(space, to.to_vec()));
        Self::scan_values(&*self.kv()?, space, &from, &to, limit, Order::Ascending, row)
    }

    fn has_side_log(&self) -> bool {
        true
    }

    fn append_to_side_log(&self, changes: &[RowChange]) -> StoreResult<()> {
        self.side_log.append(changes).map_err(io_error)
    }

    fn rotate_side_log(&self) {
        self.side_log.rotate();
    }

    fn truncate_rotated_side_log(&self) -> StoreResult<()> {
        self.side_log.truncate_rotated().map_err(io_error)
    }

    fn read_side_log(&self) -> StoreResult<Vec<RowChange>> {
        self.side_log.read_all().map_err(io_error)
    }

    fn truncate_side_log(&self) -> StoreResult<()> {
        self.side_log.truncate_all().map_err(io_error)
    }
}

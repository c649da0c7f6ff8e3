//! What popups keep of a user, for when the user is erased: counters and places in journeys, events, assignments, and timers.

use super::{
    PopupService, UserKey,
    rows::{self, AssignmentKey, ROWS_PER_WRITE, SPACE, kind},
};
use tidings_domain::{
    refusals::store_refusal,
    store::{RowStore, StoreResult},
};
use tidings_protocol::error::Refusal;

/// The keys of all rows of a user. It reads all events and assignments.
///
/// # Errors
/// The store cannot be read.
pub fn rows_of_user<S: RowStore + ?Sized>(store: &S, user: &str) -> StoreResult<Vec<Vec<u8>>> {
    let key = UserKey::of(user);
    let mut found = Vec::new();
    for own in [rows::user_key(key), rows::standing_key(key)] {
        let own = store.rows(SPACE, &own, &rows::end_of(own.clone()), usize::MAX >> 1)?;
        found.extend(own.into_iter().map(|(key, _)| key));
    }
    each_row(store, kind::EVENT, |row_key, row| {
        let (event, _) = rows::decode_event(row)?;
        if event.user == user {
            found.extend([row_key.to_vec(), rows::event_id_key(rows::event_id_hash(user, &event.id))]);
        }
        Ok(())
    })?;
    each_row(store, kind::ASSIGNMENT, |row_key, _| {
        found.extend((AssignmentKey::read(row_key)?.user == key).then(|| row_key.to_vec()));
        Ok(())
    })?;
    each_row(store, kind::WAKE, |row_key, _| {
        found.extend((rows::read_wake(row_key)?.user == key).then(|| row_key.to_vec()));
        Ok(())
    })?;
    Ok(found)
}

fn each_row<S: RowStore + ?Sized>(
    store: &S,
    kind: u8,
    mut look: impl FnMut(&[u8], &[u8]) -> StoreResult<()>,
) -> StoreResult<()> {
    let (mut from, to) = (vec![kind], rows::end_of(vec![kind]));
    loop {
        let some = store.rows(SPACE, &from, &to, ROWS_PER_WRITE)?;
        some.iter().try_for_each(|(key, row)| look(key, row))?;
        match some.last() {
            Some((last, _)) if some.len() == ROWS_PER_WRITE => from = [&last[..], &[0]].concat(),
            _ => return Ok(()),
        }
    }
}

impl PopupService {
    /// Removes all that is kept of a user, who asks and reports no more. Counts, in which nobody is named, stay. Answers how many rows.
    /// Blocks.
    ///
    /// # Errors
    /// `store_unavailable`, `node_unavailable`: some may be removed.
    pub fn forget_user(&self, user: &str) -> Result<usize, Refusal> {
        self.flush()?;
        let shared = self.shared()?;
        shared.users.forget(UserKey::of(user));
        let keys = rows_of_user(&*shared.store, user).map_err(store_refusal)?;
        for some in keys.chunks(ROWS_PER_WRITE) {
            shared.write(some.iter().cloned().map(rows::remove).collect()).map_err(store_refusal)?;
        }
        Ok(keys.len())
    }
}

//! What popups keep of a user: counters and places in journeys, events, assignments, and timers. All of it goes when the user is
//! erased, and is told when the user asks for it.

use super::{
    PopupService, UserKey,
    export::exported,
    frequency::FrequencyCounters,
    rows::{self, AssignmentKey, ROWS_PER_WRITE, SPACE, kind},
};
use serde_json::{Value, json};
use tidings_domain::{
    refusals::store_refusal,
    store::{RowStore, StoreResult},
};
use tidings_protocol::error::Refusal;

/// Where rows of a user are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PopupPlace {
    Counters,
    Standing,
    Events,
    Assignments,
    Wakes,
}

impl PopupPlace {
    pub const ALL: [PopupPlace; 5] =
        [PopupPlace::Counters, PopupPlace::Standing, PopupPlace::Events, PopupPlace::Assignments, PopupPlace::Wakes];

    /// The rows among which the user's are.
    fn range(self, user: UserKey) -> (Vec<u8>, Vec<u8>) {
        let prefix = match self {
            PopupPlace::Counters => rows::user_key(user),
            PopupPlace::Standing => rows::standing_key(user),
            PopupPlace::Events => vec![kind::EVENT],
            PopupPlace::Assignments => vec![kind::ASSIGNMENT],
            PopupPlace::Wakes => vec![kind::WAKE],
        };
        (prefix.clone(), rows::end_of(prefix))
    }

    fn is_of(self, user: &str, key: &[u8], row: &[u8]) -> StoreResult<bool> {
        Ok(match self {
            PopupPlace::Counters | PopupPlace::Standing => true,
            PopupPlace::Events => rows::decode_event(row)?.0.user == user,
            PopupPlace::Assignments => AssignmentKey::read(key)?.user == UserKey::of(user),
            PopupPlace::Wakes => rows::read_wake(key)?.user == UserKey::of(user),
        })
    }
}

/// A page of a user's rows at a place.
#[derive(Debug)]
pub struct RowsOfUser {
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// From where the next page is; absent: this was the last.
    pub next: Option<Vec<u8>>,
}

impl RowsOfUser {
    /// The page from a key on, of a bounded number of rows of all users. It may be empty and not the last.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn read<S: RowStore + ?Sized>(
        store: &S,
        user: &str,
        place: PopupPlace,
        from: Option<Vec<u8>>,
    ) -> StoreResult<RowsOfUser> {
        let (first, to) = place.range(UserKey::of(user));
        let mut found = store.rows(SPACE, &from.unwrap_or(first), &to, ROWS_PER_WRITE)?;
        let next = found.last().filter(|_| found.len() == ROWS_PER_WRITE).map(|(last, _)| [&last[..], &[0]].concat());
        let mut damage = Ok(());
        found.retain(|(key, row)| match place.is_of(user, key, row) {
            Ok(is_theirs) => is_theirs,
            Err(error) => {
                damage = Err(error);
                false
            }
        });
        damage.map(|()| RowsOfUser { rows: found, next })
    }

    /// What the rows say, for the user to read. Counters are told by the first of their rows.
    ///
    /// # Errors
    /// A row is damaged, or the store cannot be read.
    pub fn records<S: RowStore + ?Sized>(&self, store: &S, user: &str, place: PopupPlace) -> StoreResult<Vec<Value>> {
        let mut records = Vec::new();
        match place {
            PopupPlace::Counters if self.rows.is_empty() => {}
            PopupPlace::Counters => {
                let bytes = rows::read_long(store, &rows::user_key(UserKey::of(user)))?.unwrap_or_default();
                for counter in FrequencyCounters::from_bytes(&bytes)?.iter() {
                    records.push(json!({
                        "what": "counter", "counter": format!("{:016x}", counter.key.0), "number": counter.key.owner_no(),
                        "is_journey": counter.key.journey_no().is_some(), "last_at": counter.last_at, "total": counter.total,
                    }));
                }
            }
            PopupPlace::Standing => records.extend(self.rows.iter().map(|_| json!({ "what": "stands_in_a_journey" }))),
            PopupPlace::Events => {
                for (key, row) in &self.rows {
                    let taken_at = key.get(1..9).and_then(|at| at.try_into().ok()).map_or(0, u64::from_be_bytes);
                    records.push(json!({ "what": "event", "event": exported(taken_at, row)? }));
                }
            }
            PopupPlace::Assignments => {
                for (key, row) in &self.rows {
                    let AssignmentKey { popup, at, .. } = AssignmentKey::read(key)?;
                    let rows::StoredAssignment { group, variant, converted_at, conversions, value, .. } =
                        rows::decode(row)?;
                    records.push(json!({
                        "what": "assignment", "popup_number": popup, "at": at, "group": group, "variant": variant,
                        "converted_at": converted_at, "conversions": conversions, "value": value,
                    }));
                }
            }
            PopupPlace::Wakes => {
                for (key, _) in &self.rows {
                    records.push(json!({ "what": "journey_timer", "at": rows::read_wake(key)?.at }));
                }
            }
        }
        Ok(records)
    }
}

/// The keys of all rows of a user. It reads all events and assignments.
///
/// # Errors
/// The store cannot be read.
pub fn rows_of_user<S: RowStore + ?Sized>(store: &S, user: &str) -> StoreResult<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for place in PopupPlace::ALL {
        let mut from = None;
        loop {
            let RowsOfUser { rows: page, next } = RowsOfUser::read(store, user, place, from)?;
            for (key, row) in page {
                if place == PopupPlace::Events {
                    let id = rows::decode_event(&row)?.0.id;
                    found.push(rows::event_id_key(rows::event_id_hash(user, &id)));
                }
                found.push(key);
            }
            from = next;
            if from.is_none() {
                break;
            }
        }
    }
    Ok(found)
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

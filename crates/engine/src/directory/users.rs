//! The users in memory, by number and by id. The index by id has pointers to the users in the cache, about 15 bytes a user; a second
//! cache, from ids to numbers, would take 87.

use hashbrown::{HashTable, hash_table::Entry};
use parking_lot::RwLock;
use quick_cache::{
    DefaultHashBuilder, Lifecycle, UnitWeighter,
    sync::{Cache, GuardResult},
};
use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tidings_domain::{
    model::{User, UserNo},
    store::StoreResult,
};

/// Each part of the index has a lock of its own, so that callers seldom meet.
const PARTS: usize = 16;

pub(super) struct UserCache {
    users: Cache<UserNo, Arc<User>, UnitWeighter, DefaultHashBuilder, IndexedById>,
    by_id: Arc<IdIndex>,
    /// How often users were invalidated of whom perhaps nothing but the id was known.
    invalidations: AtomicU64,
    /// How often users were invalidated at all.
    changes: AtomicU64,
}

/// Takes users who are evicted from the cache out of the index.
#[derive(Clone)]
struct IndexedById(Arc<IdIndex>);

impl Lifecycle<UserNo, Arc<User>> for IndexedById {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), _: UserNo, user: Arc<User>) {
        self.0.remove(&user);
    }
}

/// Has every user in the cache, and for moments one who is being loaded: what it answers is compared with the user in the cache.
#[derive(Default)]
struct IdIndex {
    hasher: RandomState,
    parts: [RwLock<HashTable<Arc<User>>>; PARTS],
}

impl IdIndex {
    fn part(&self, hash: u64) -> &RwLock<HashTable<Arc<User>>> {
        // Tables take the lowest and the highest bits themselves.
        &self.parts[(hash >> 32) as usize % PARTS]
    }

    fn find(&self, id: &str) -> Option<UserNo> {
        let hash = self.hasher.hash_one(id);
        self.part(hash).read().find(hash, |user| user.id == id).map(|user| user.no)
    }

    fn insert(&self, new: &Arc<User>) {
        let hash_of = |user: &Arc<User>| self.hasher.hash_one(user.id.as_str());
        let hash = hash_of(new);
        match self.part(hash).write().entry(hash, |user| user.id == new.id, hash_of) {
            Entry::Occupied(mut known) => *known.get_mut() = new.clone(),
            Entry::Vacant(vacant) => drop(vacant.insert(new.clone())),
        }
    }

    /// Removes this copy of a user. A later one stays.
    fn remove(&self, user: &Arc<User>) {
        let hash = self.hasher.hash_one(user.id.as_str());
        if let Ok(known) = self.part(hash).write().find_entry(hash, |known| Arc::ptr_eq(known, user)) {
            known.remove();
        }
    }
}

impl UserCache {
    pub(super) fn new(entries: usize) -> Self {
        let by_id = Arc::<IdIndex>::default();
        let (weighter, hasher) = (UnitWeighter, DefaultHashBuilder::default());
        UserCache {
            users: Cache::with(entries, entries as u64, weighter, hasher, IndexedById(by_id.clone())),
            by_id,
            invalidations: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        }
    }

    pub(super) fn get(&self, no: UserNo) -> Option<Arc<User>> {
        self.users.get(&no)
    }

    pub(super) fn get_by_id(&self, id: &str) -> Option<Arc<User>> {
        self.get(self.by_id.find(id)?).filter(|user| user.id == id)
    }

    pub(super) fn get_or_load(
        &self,
        no: UserNo,
        load: impl FnOnce() -> StoreResult<Option<User>>,
    ) -> StoreResult<Option<Arc<User>>> {
        let guard = match self.users.get_value_or_guard(&no, None) {
            GuardResult::Value(user) => return Ok(Some(user)),
            GuardResult::Guard(guard) => guard,
            GuardResult::Timeout => return Ok(load()?.map(Arc::new)),
        };
        let before = self.invalidations.load(Ordering::SeqCst);
        let Some(user) = load()?.map(Arc::new) else { return Ok(None) };
        // First the index, then the look at the counter: an invalidation by id that comes after that look finds the user.
        self.by_id.insert(&user);
        // Err: the user was invalidated while being loaded. The copy serves this caller only.
        let is_cached = self.invalidations.load(Ordering::SeqCst) == before && guard.insert(user.clone()).is_ok();
        if !is_cached {
            self.by_id.remove(&user);
        }
        Ok(Some(user))
    }

    /// Loads a user of whom only the id is known, in one read: the number comes with the user. A user is read once more if any have
    /// changed meanwhile. The one who is answered may have given the id away since.
    pub(super) fn load_by_id(
        &self,
        load_by_id: impl FnOnce() -> StoreResult<Option<User>>,
        load: impl FnOnce(UserNo) -> StoreResult<Option<User>>,
    ) -> StoreResult<Option<Arc<User>>> {
        let before = self.changes.load(Ordering::SeqCst);
        let Some(user) = load_by_id()? else { return Ok(None) };
        let no = user.no;
        // From here on the cache itself notices a change.
        self.get_or_load(no, || match self.changes.load(Ordering::SeqCst) == before {
            true => Ok(Some(user)),
            false => load(no),
        })
    }

    pub(super) fn invalidate(&self, no: UserNo) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if let Some((_, user)) = self.users.remove(&no) {
            self.by_id.remove(&user);
        }
    }

    /// Invalidates users by id without a read of the store. A user who is being loaded may be one of them, and is not cached.
    pub(super) fn invalidate_ids<'a>(&self, ids: impl Iterator<Item = &'a str>) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.invalidations.fetch_add(1, Ordering::SeqCst);
        ids.filter_map(|id| self.by_id.find(id)).for_each(|no| self.invalidate(no));
    }

    pub(super) fn clear(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.invalidations.fetch_add(1, Ordering::SeqCst);
        // First the index: it lacks no user who stays in the cache.
        self.by_id.parts.iter().for_each(|part| part.write().clear());
        self.users.clear();
    }
}

#[cfg(test)]
#[path = "../../tests/units/directory_users.rs"]
mod tests;

//! All devices in memory: their users, their current sessions, and sets of devices as bitmaps. Rebuilt from the store
//! at the start; about 100 bytes a device.

mod sessions;

pub(super) use sessions::{Session, SessionEnd};

use roaring::RoaringBitmap;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::hash::{BuildHasher, RandomState};
use tidings_domain::{
    model::UserNo,
    push_store::{DeviceNo, StoredDevice},
};
use tidings_protocol::{error::Refusal, limits::DEVICES_PER_USER_MAX};

/// Kinds that devices have now. Clients choose them, and each takes a device, of which one user has few: a device of a further kind is
/// not found by its kind.
const KINDS_MAX: usize = NO_KIND as usize;
/// Tags in use. Above: a new tag is refused.
const TAGS_MAX: usize = 10_000;
/// Ends the list of a user's devices.
const NO_DEVICE: u32 = u32::MAX;
/// The kind of a device that is in no kind's set.
const NO_KIND: u16 = u16::MAX;

/// One device. `user` 0: the number is vacant.
#[derive(Debug, Clone)]
struct Entry {
    user: u64,
    session: u64,
    /// Hash of the device id, keyed with this process's random state, so that a user cannot choose two ids that collide.
    id_hash: u64,
    /// Hash of kind and app version: shows whether the stored row must change.
    details_hash: u32,
    /// The user's next device.
    next: u32,
    /// When the device bound last, in seconds since 1970 UTC.
    bound_s: u32,
    destination: u16,
    kind: u16,
    /// Named pushes that are pending on the device.
    pending: u16,
    /// When the session bound, in milliseconds since 1970 UTC: 48 bits in two fields, to fit the padding.
    since_low: u32,
    since_high: u16,
}

impl Entry {
    fn since(&self) -> u64 {
        u64::from(self.since_high) << 32 | u64::from(self.since_low)
    }
}

/// Which devices a push to many is for. Stored as JSON in [`TargetSpec`](super::prepared_push::TargetSpec).
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct AudienceQuery {
    /// All devices, whatever their tags.
    pub(super) all: bool,
    /// Devices with any of these tags.
    pub(super) any: Vec<String>,
    /// Devices with every one of these tags.
    pub(super) every: Vec<String>,
    pub(super) kinds: Vec<String>,
}

#[derive(Default)]
struct DevicesOfKind {
    kind: String,
    devices: RoaringBitmap,
}

pub(super) struct Devices {
    entries: Vec<Entry>,
    /// By user, the first of the user's list of devices.
    first_by_user: FxHashMap<u64, u32>,
    hasher: RandomState,
    kind_nos: FxHashMap<String, u16>,
    kinds: Vec<DevicesOfKind>,
    /// The numbers of kinds that no device has any more.
    vacant_kinds: Vec<u16>,
    tags: FxHashMap<String, RoaringBitmap>,
    all: RoaringBitmap,
    /// Devices with a session.
    online: RoaringBitmap,
    /// The devices of `online` by the destination of their session, as in `outgoing`.
    online_by_destination: Vec<RoaringBitmap>,
    /// By device, sessions that are live, as far as is known, beside the device's newest one.
    older_sessions: FxHashMap<u32, SmallVec<[Session; 1]>>,
}

impl Default for Devices {
    fn default() -> Self {
        Devices {
            entries: Vec::new(),
            first_by_user: FxHashMap::default(),
            hasher: RandomState::new(),
            kind_nos: FxHashMap::default(),
            kinds: Vec::new(),
            vacant_kinds: Vec::new(),
            tags: FxHashMap::default(),
            all: RoaringBitmap::new(),
            online: RoaringBitmap::new(),
            online_by_destination: Vec::new(),
            older_sessions: FxHashMap::default(),
        }
    }
}

impl Devices {
    fn entry(&self, device: DeviceNo) -> Option<&Entry> {
        self.entries.get(device.0 as usize).filter(|entry| entry.user != 0)
    }

    fn entry_mut(&mut self, device: DeviceNo) -> Option<&mut Entry> {
        self.entries.get_mut(device.0 as usize).filter(|entry| entry.user != 0)
    }

    /// A user's devices, newest first.
    pub(super) fn of_user(&self, user: UserNo) -> impl Iterator<Item = DeviceNo> {
        let mut at = self.first_by_user.get(&user.0).copied().unwrap_or(NO_DEVICE);
        std::iter::from_fn(move || {
            let device = (at != NO_DEVICE).then_some(DeviceNo(at))?;
            at = self.entries.get(at as usize).map_or(NO_DEVICE, |entry| entry.next);
            Some(device)
        })
    }

    pub(super) fn find(&self, user: UserNo, device_id: &str) -> Option<DeviceNo> {
        let hash = self.hasher.hash_one(device_id);
        self.of_user(user).find(|device| self.entries[device.0 as usize].id_hash == hash)
    }

    /// The device to remove so that the user can have a new one; `None` while there is room. `uncommitted`: the user's
    /// further new devices in the same write, which are not known here yet and are never removed for each other.
    pub(super) fn eviction_candidate(&self, user: UserNo, uncommitted: usize) -> Result<Option<DeviceNo>, Refusal> {
        let known = self.of_user(user).count();
        if known + uncommitted < DEVICES_PER_USER_MAX {
            return Ok(None);
        }
        let oldest = self.of_user(user).min_by_key(|device| {
            let bound = self.entry(*device).map_or(0, |entry| entry.bound_s);
            (self.online.contains(device.0), bound, device.0)
        });
        let too_many =
            || Refusal::limit("devices of a user", DEVICES_PER_USER_MAX as u64, (known + uncommitted + 1) as u64);
        oldest.map(Some).ok_or_else(too_many)
    }

    /// Whether the stored row has another kind or version.
    pub(super) fn details_differ(&self, device: DeviceNo, kind: &str, version: Option<&str>) -> bool {
        self.entry(device).is_none_or(|entry| entry.details_hash != self.details_hash(kind, version))
    }

    fn details_hash(&self, kind: &str, version: Option<&str>) -> u32 {
        self.hasher.hash_one((kind, version)) as u32
    }

    /// Adds a stored device, or takes over what has changed in its row.
    pub(super) fn put(&mut self, device: &StoredDevice) {
        let at = device.no.0 as usize;
        if self.entries.len() <= at {
            let vacant = Entry {
                user: 0,
                session: 0,
                id_hash: 0,
                details_hash: 0,
                next: NO_DEVICE,
                bound_s: 0,
                destination: 0,
                kind: NO_KIND,
                pending: 0,
                since_low: 0,
                since_high: 0,
            };
            self.entries.resize(at + 1, vacant);
        }
        self.remove_from_sets(device.no);
        if ![0, device.user].contains(&self.entries[at].user) {
            // The number has been given to another user's device: the one that memory has under it is gone.
            self.remove(device.no);
        }
        if self.entries[at].user == 0 {
            let next = self.first_by_user.insert(device.user, device.no.0).unwrap_or(NO_DEVICE);
            let id_hash = self.hasher.hash_one(device.device_id.as_str());
            let bound_s = seconds(device.first_bound);
            let entry = &mut self.entries[at];
            (entry.user, entry.id_hash, entry.next, entry.bound_s) = (device.user, id_hash, next, bound_s);
        }
        let details_hash = self.details_hash(&device.device_kind, device.app_version.as_deref());
        let kind = self.kind_no(&device.device_kind);
        (self.entries[at].kind, self.entries[at].details_hash) = (kind, details_hash);
        self.all.insert(device.no.0);
        if let Some(of_kind) = self.kinds.get_mut(usize::from(kind)) {
            of_kind.devices.insert(device.no.0);
        }
        for tag in &device.tags {
            self.tags.entry(tag.clone()).or_default().insert(device.no.0);
        }
    }

    fn kind_no(&mut self, kind: &str) -> u16 {
        if let Some(no) = self.kind_nos.get(kind) {
            return *no;
        }
        let new = DevicesOfKind { kind: kind.to_owned(), devices: RoaringBitmap::new() };
        let no = match self.vacant_kinds.pop() {
            Some(no) => {
                self.kinds[usize::from(no)] = new;
                no
            }
            None if self.kinds.len() == KINDS_MAX => return NO_KIND,
            None => {
                self.kinds.push(new);
                (self.kinds.len() - 1) as u16
            }
        };
        self.kind_nos.insert(kind.to_owned(), no);
        no
    }

    /// Removes a device from the sets of all devices, of its kind and of its tags.
    fn remove_from_sets(&mut self, device: DeviceNo) {
        if !self.all.remove(device.0) {
            return;
        }
        let kind = self.entries[device.0 as usize].kind;
        if let Some(of_kind) = self.kinds.get_mut(usize::from(kind)) {
            of_kind.devices.remove(device.0);
            if of_kind.devices.is_empty() {
                self.kind_nos.remove(&std::mem::take(of_kind).kind);
                self.vacant_kinds.push(kind);
            }
        }
        self.tags.retain(|_, tagged| !tagged.remove(device.0) || !tagged.is_empty());
    }

    pub(super) fn remove(&mut self, device: DeviceNo) {
        let Some(Entry { user, next, .. }) = self.entry(device).cloned() else { return };
        self.remove_from_sets(device);
        self.set_offline(device);
        self.older_sessions.remove(&device.0);
        let before = self.of_user(UserNo(user)).find(|other| self.entries[other.0 as usize].next == device.0);
        match before {
            Some(before) => self.entries[before.0 as usize].next = next,
            None if next == NO_DEVICE => drop(self.first_by_user.remove(&user)),
            None => drop(self.first_by_user.insert(user, next)),
        }
        let entry = &mut self.entries[device.0 as usize];
        (entry.user, entry.session, entry.pending, entry.next) = (0, 0, 0, NO_DEVICE);
    }

    /// Refuses new tags when too many are in use.
    pub(super) fn check_tags(&self, tags: &[String]) -> Result<(), Refusal> {
        let new = tags.iter().filter(|tag| !self.tags.contains_key(*tag)).count();
        match self.tags.len() + new {
            all if new > 0 && all > TAGS_MAX => Err(Refusal::limit("tags in use", TAGS_MAX as u64, all as u64)),
            _ => Ok(()),
        }
    }

    pub(super) fn is_known(&self, device: DeviceNo) -> bool {
        self.entry(device).is_some()
    }

    pub(super) fn bound_ms(&self, device: DeviceNo) -> u64 {
        self.entry(device).map_or(0, |entry| u64::from(entry.bound_s) * 1_000)
    }

    pub(super) fn set_bound(&mut self, device: DeviceNo, at_ms: u64) {
        if let Some(entry) = self.entry_mut(device) {
            entry.bound_s = entry.bound_s.max(seconds(at_ms));
        }
    }

    /// How many named pushes are pending on the device.
    pub(super) fn pending(&self, device: DeviceNo) -> usize {
        self.entry(device).map_or(0, |entry| usize::from(entry.pending))
    }

    pub(super) fn change_pending(&mut self, device: DeviceNo, by: i32) {
        if let Some(entry) = self.entry_mut(device) {
            entry.pending = (i32::from(entry.pending) + by).clamp(0, i32::from(u16::MAX)) as u16;
        }
    }

    pub(super) fn all(&self) -> &RoaringBitmap {
        &self.all
    }

    /// A number above those of all devices.
    pub(super) fn next_no(&self) -> u32 {
        self.all.max().map_or(0, |highest| highest + 1)
    }

    pub(super) fn online(&self) -> &RoaringBitmap {
        &self.online
    }

    pub(super) fn count(&self) -> u64 {
        self.all.len()
    }

    /// Whether the device is of one of these kinds; an empty list stands for all kinds.
    pub(super) fn is_of_kinds(&self, device: DeviceNo, kinds: &[String]) -> bool {
        let own = self.entry(device).map_or(NO_KIND, |entry| entry.kind);
        kinds.is_empty() || kinds.iter().any(|kind| self.kind_nos.get(kind).is_some_and(|no| *no == own))
    }

    /// The devices that a query is for.
    pub(super) fn select(&self, query: &AudienceQuery) -> RoaringBitmap {
        let of_tag = |tag: &String| self.tags.get(tag);
        let union = |sets: &mut dyn Iterator<Item = &RoaringBitmap>| {
            sets.fold(RoaringBitmap::new(), |mut all, set| {
                all |= set;
                all
            })
        };
        let mut found =
            if query.any.is_empty() { self.all.clone() } else { union(&mut query.any.iter().filter_map(of_tag)) };
        for tag in &query.every {
            match of_tag(tag) {
                Some(tagged) => found &= tagged,
                None => found.clear(),
            }
        }
        if !query.kinds.is_empty() {
            let of_kind = |kind: &String| self.kind_nos.get(kind).map(|no| &self.kinds[usize::from(*no)].devices);
            found &= union(&mut query.kinds.iter().filter_map(of_kind));
        }
        found.optimize();
        found
    }
}

fn seconds(ms: u64) -> u32 {
    u32::try_from(ms / 1_000).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn device(no: u32, user: u64, id: &str, kind: &str, tags: &[&str]) -> StoredDevice {
        StoredDevice {
            no: DeviceNo(no),
            user,
            device_id: id.into(),
            device_kind: kind.into(),
            app_version: None,
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            first_bound: 0,
        }
    }

    #[test]
    fn devices_are_found_by_user_kind_and_tags_until_they_are_removed() {
        let mut devices = Devices::default();
        devices.put(&device(0, 1, "a", "phone", &["x"]));
        devices.put(&device(1, 1, "b", "tv", &["x", "y"]));
        devices.put(&device(2, 2, "a", "phone", &[]));
        assert_eq!(devices.find(UserNo(1), "a"), Some(DeviceNo(0)));
        assert_eq!(devices.find(UserNo(2), "a"), Some(DeviceNo(2)));
        assert_eq!(devices.find(UserNo(2), "b"), None);
        let select = |devices: &Devices, all, any: &[&str], every: &[&str], kinds: &[&str]| {
            let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
            let query = AudienceQuery { all, any: owned(any), every: owned(every), kinds: owned(kinds) };
            devices.select(&query).iter().collect::<Vec<_>>()
        };
        assert_eq!(select(&devices, true, &[], &[], &[]), [0, 1, 2]);
        assert_eq!(select(&devices, true, &[], &[], &["phone"]), [0, 2]);
        assert_eq!(select(&devices, false, &["y", "none"], &[], &[]), [1]);
        assert_eq!(select(&devices, false, &["x"], &["y"], &[]), [1]);
        assert_eq!(select(&devices, false, &["x"], &[], &["phone"]), [0]);
        assert_eq!(select(&devices, false, &[], &["none"], &[]), [] as [u32; 0]);
        devices.put(&device(1, 1, "b", "phone", &["y"]));
        assert_eq!(select(&devices, true, &[], &[], &["tv"]), [] as [u32; 0]);
        assert_eq!(select(&devices, false, &["x"], &[], &[]), [0]);
        devices.remove(DeviceNo(0));
        assert_eq!(devices.of_user(UserNo(1)).collect::<Vec<_>>(), [DeviceNo(1)]);
        assert_eq!(select(&devices, true, &[], &[], &[]), [1, 2]);
        devices.remove(DeviceNo(1));
        assert_eq!(devices.find(UserNo(1), "b"), None);
        devices.put(&device(3, 1, "b", "phone", &[]));
        assert_eq!(devices.find(UserNo(1), "b"), Some(DeviceNo(3)));
    }

    #[test]
    fn kinds_that_no_device_has_any_more_make_room_for_others() {
        let mut devices = Devices::default();
        for number in 0..2 * KINDS_MAX {
            devices.put(&device(0, 1, "a", &format!("kind {number}"), &[]));
        }
        devices.put(&device(1, 2, "b", "phone", &[]));
        assert!(devices.is_of_kinds(DeviceNo(1), &["phone".to_owned()]));
        let query = AudienceQuery { all: true, kinds: vec!["phone".into()], ..AudienceQuery::default() };
        assert_eq!(devices.select(&query).iter().collect::<Vec<_>>(), [1]);
        assert!(devices.kinds.len() <= 2, "numbers are used again");
    }

    #[test]
    fn a_device_takes_few_bytes() {
        println!("{} bytes a device", size_of::<Entry>());
        assert!(size_of::<Entry>() <= 48);
    }
}

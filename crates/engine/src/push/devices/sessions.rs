//! Which session a device is pushed to by. Its sessions' beginnings and ends are heard in any order, since several nodes tell
//! of them: it is the newest of those that have begun and not ended.

use super::{Devices, seconds};
use crate::push::DeviceNo;
use roaring::RoaringBitmap;
use smallvec::SmallVec;

/// Sessions of one device beside its newest that are remembered. Above: the oldest is not, as if it had left.
const OTHERS_MAX: usize = 8;

/// A session that a device can be pushed to by. `place`: see `outgoing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::push) struct Session {
    pub(in crate::push) place: usize,
    pub(in crate::push) name: u64,
    pub(in crate::push) since: u64,
}

/// What the end of a session is to its device.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::push) enum Left {
    /// Nothing: it was pushed to by another one, or by none.
    Unknown,
    Offline,
    /// Another session of it is pushed to from here on.
    ForAnother,
}

impl Devices {
    /// Answers whether the device is pushed to by this session from here on: the newest is, whichever is heard of first.
    pub(in crate::push) fn bind(&mut self, device: DeviceNo, session: Session, now_ms: u64) -> bool {
        if let Some(entry) = self.entry_mut(device) {
            entry.bound_s = seconds(now_ms);
        }
        self.forget_other(device, session.place, session.name);
        let Some(present) = self.present(device) else { return self.set_online(device, session) };
        if (present.place, present.name) == (session.place, session.name) {
            return self.set_online(device, session);
        }
        let others = self.others.entry(device.0).or_default();
        let is_newer = session.since >= present.since;
        others.push(if is_newer { present } else { session });
        if others.len() > OTHERS_MAX {
            let oldest = (0..others.len()).min_by_key(|at| others[*at].since);
            oldest.map(|at| others.remove(at));
        }
        is_newer && self.set_online(device, session)
    }

    /// A session has ended. If the device has bound again meanwhile, that is not its session any more.
    pub(in crate::push) fn left(&mut self, device: DeviceNo, place: usize, name: u64) -> Left {
        if self.session(device) != Some((place, name)) {
            self.forget_other(device, place, name);
            return Left::Unknown;
        }
        self.set_offline(device);
        let others = self.others.get(&device.0).map(SmallVec::as_slice).unwrap_or_default();
        let Some(newest) = others.iter().max_by_key(|other| other.since).copied() else { return Left::Offline };
        self.forget_other(device, newest.place, newest.name);
        self.set_online(device, newest);
        Left::ForAnother
    }

    /// Takes over who is connected from what was known before; answers the sessions of devices that are not known here:
    /// place and name.
    pub(in crate::push) fn take_sessions(&mut self, before: &Devices) -> Vec<(usize, u64)> {
        let mut unknown = Vec::new();
        for device in before.online.iter().map(DeviceNo) {
            let (Some(was), Some(present)) = (before.entry(device), before.present(device)) else { continue };
            let others = before.others.get(&device.0);
            match self.entry_mut(device).filter(|entry| entry.user == was.user) {
                Some(entry) => {
                    entry.bound_s = was.bound_s;
                    self.set_online(device, present);
                    self.others.extend(others.map(|others| (device.0, others.clone())));
                }
                None => {
                    let sessions = others.into_iter().flatten().chain([&present]);
                    unknown.extend(sessions.map(|session| (session.place, session.name)));
                }
            }
        }
        unknown
    }

    fn forget_other(&mut self, device: DeviceNo, place: usize, name: u64) {
        if let Some(others) = self.others.get_mut(&device.0) {
            others.retain(|other| (other.place, other.name) != (place, name));
            if others.is_empty() {
                self.others.remove(&device.0);
            }
        }
    }

    fn set_online(&mut self, device: DeviceNo, Session { place, name, since }: Session) -> bool {
        self.set_offline(device);
        let Some(entry) = self.entry_mut(device) else { return false };
        (entry.shard, entry.session) = (place as u16, name);
        (entry.since_low, entry.since_high) = (since as u32, (since >> 32) as u16);
        self.online.insert(device.0);
        if self.places.len() <= place {
            self.places.resize(place + 1, RoaringBitmap::new());
        }
        self.places[place].insert(device.0)
    }

    pub(super) fn set_offline(&mut self, device: DeviceNo) {
        if self.online.remove(device.0)
            && let Some(entry) = self.entries.get(device.0 as usize)
            && let Some(there) = self.places.get_mut(usize::from(entry.shard))
        {
            there.remove(device.0);
        }
    }

    /// The session that the device is pushed to by.
    fn present(&self, device: DeviceNo) -> Option<Session> {
        let entry = self.entry(device).filter(|_| self.online.contains(device.0))?;
        Some(Session { place: usize::from(entry.shard), name: entry.session, since: entry.since() })
    }

    /// Devices that are pushed to at a place.
    pub(in crate::push) fn at(&self, place: usize) -> Option<&RoaringBitmap> {
        self.places.get(place)
    }

    /// All sessions of a place.
    pub(in crate::push) fn sessions_at(&self, place: usize) -> Vec<(DeviceNo, u64)> {
        let present = self.at(place).into_iter().flatten().map(DeviceNo);
        let present = present.filter_map(|device| Some((device, self.session(device)?.1)));
        let others = self.others.iter().flat_map(|(device, others)| others.iter().map(|other| (*device, *other)));
        let others =
            others.filter(|(_, other)| other.place == place).map(|(device, other)| (DeviceNo(device), other.name));
        others.chain(present).collect()
    }

    /// Where a device is connected: place and session.
    pub(in crate::push) fn session(&self, device: DeviceNo) -> Option<(usize, u64)> {
        self.present(device).map(|session| (session.place, session.name))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::device, *};

    #[test]
    fn a_session_that_was_replaced_does_not_end_the_new_one() {
        let mut devices = Devices::default();
        devices.put(&device(0, 1, "a", "phone", &[]));
        assert!(devices.bind(DeviceNo(0), Session { place: 0, name: 7, since: 5_000 }, 5_000));
        assert!(devices.bind(DeviceNo(0), Session { place: 1, name: 8, since: 6_000 }, 6_000));
        assert_eq!(devices.left(DeviceNo(0), 0, 7), Left::Unknown);
        assert_eq!(devices.session(DeviceNo(0)), Some((1, 8)));
        assert_eq!(devices.left(DeviceNo(0), 0, 8), Left::Unknown, "of another place");
        assert_eq!(devices.left(DeviceNo(0), 1, 8), Left::Offline);
        assert_eq!(devices.session(DeviceNo(0)), None);
    }

    /// In whatever order what becomes of a device's sessions is heard, it is the newest of those that are there.
    #[test]
    fn the_newest_session_that_is_there_is_pushed_to() {
        let since = |name: u64| [5_000, 7_000, 6_000][name as usize];
        let mut random = 1_u64;
        for _ in 0..2_000 {
            let mut devices = Devices::default();
            devices.put(&device(0, 1, "a", "phone", &[]));
            let mut there: Vec<u64> = Vec::new();
            let mut left = [false; 3];
            for _ in 0..12 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let name = (random >> 33) % 3;
                if left[name as usize] {
                    continue;
                }
                if !there.contains(&name) {
                    there.push(name);
                    let session = Session { place: name as usize, name, since: since(name) };
                    let newest = there.iter().max_by_key(|name| since(**name)) == Some(&name);
                    assert_eq!(devices.bind(DeviceNo(0), session, 0), newest);
                } else if random >> 40 & 1 == 0 {
                    there.retain(|other| *other != name);
                    left[name as usize] = true;
                    devices.left(DeviceNo(0), name as usize, name);
                }
                let newest = there.iter().max_by_key(|name| since(**name)).copied();
                assert_eq!(devices.session(DeviceNo(0)).map(|(_, name)| name), newest);
                let at: Vec<usize> =
                    (0..3).filter(|place| devices.at(*place).is_some_and(|at| at.contains(0))).collect();
                assert_eq!(at, newest.map(|name| name as usize).into_iter().collect::<Vec<_>>());
                let mut all: Vec<u64> =
                    (0..3).flat_map(|place| devices.sessions_at(place)).map(|(_, name)| name).collect();
                all.sort_unstable();
                there.sort_unstable();
                assert_eq!(all, there);
            }
        }
    }
}

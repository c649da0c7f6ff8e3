//! The current session of each device, which gets its pushes. A device may bind on several nodes, whose reports of
//! sessions that begin and end arrive in any order: the current session is the newest one that has begun and not ended.

use super::{Devices, seconds};
use roaring::RoaringBitmap;
use smallvec::SmallVec;
use tidings_domain::push_store::DeviceNo;

/// Older sessions that are remembered of one device. Above: the oldest is forgotten, as if it had ended.
const OLDER_SESSIONS_MAX: usize = 8;

/// A session of a device. `destination`: see `outgoing`; `id`: the session's number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) destination: usize,
    pub(crate) id: u64,
    pub(crate) since: u64,
}

/// What the end of a session means for its device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// Nothing: the session was not the current one.
    NotCurrent,
    /// The device has no session any more.
    Offline,
    /// An older session of the device is the current one from here on.
    Replaced,
}

impl Devices {
    /// A session begins; answers whether it is the device's current one from here on.
    pub(crate) fn bind(&mut self, device: DeviceNo, session: Session, now_ms: u64) -> bool {
        if let Some(entry) = self.entry_mut(device) {
            entry.bound_s = seconds(now_ms);
        }
        self.forget_older(device, session.destination, session.id);
        let Some(current) = self.current(device) else { return self.set_online(device, session) };
        if (current.destination, current.id) == (session.destination, session.id) {
            return self.set_online(device, session);
        }
        let older = self.older_sessions.entry(device.0).or_default();
        let is_newer = session.since >= current.since;
        older.push(if is_newer { current } else { session });
        if older.len() > OLDER_SESSIONS_MAX {
            let oldest = (0..older.len()).min_by_key(|at| older[*at].since);
            oldest.map(|at| older.remove(at));
        }
        is_newer && self.set_online(device, session)
    }

    /// A session ends. If the device has bound again meanwhile, the session is not its current one any more.
    pub(crate) fn end_session(&mut self, device: DeviceNo, destination: usize, id: u64) -> SessionEnd {
        if self.session(device) != Some((destination, id)) {
            self.forget_older(device, destination, id);
            return SessionEnd::NotCurrent;
        }
        self.set_offline(device);
        let older = self.older_sessions.get(&device.0).map(SmallVec::as_slice).unwrap_or_default();
        let Some(newest) = older.iter().max_by_key(|older| older.since).copied() else { return SessionEnd::Offline };
        self.forget_older(device, newest.destination, newest.id);
        self.set_online(device, newest);
        SessionEnd::Replaced
    }

    /// Takes over the sessions of the devices as they were before; answers the sessions, as destination and id, of
    /// devices that are not known here.
    pub(crate) fn adopt_sessions(&mut self, before: &Devices) -> Vec<(usize, u64)> {
        let mut unknown = Vec::new();
        for device in before.online.iter().map(DeviceNo) {
            let (Some(was), Some(current)) = (before.entry(device), before.current(device)) else { continue };
            let older = before.older_sessions.get(&device.0);
            match self.entry_mut(device).filter(|entry| entry.user == was.user) {
                Some(entry) => {
                    entry.bound_s = was.bound_s;
                    self.set_online(device, current);
                    self.older_sessions.extend(older.map(|older| (device.0, older.clone())));
                }
                None => {
                    let sessions = older.into_iter().flatten().chain([&current]);
                    unknown.extend(sessions.map(|session| (session.destination, session.id)));
                }
            }
        }
        unknown
    }

    fn forget_older(&mut self, device: DeviceNo, destination: usize, id: u64) {
        if let Some(older) = self.older_sessions.get_mut(&device.0) {
            older.retain(|older| (older.destination, older.id) != (destination, id));
            if older.is_empty() {
                self.older_sessions.remove(&device.0);
            }
        }
    }

    fn set_online(&mut self, device: DeviceNo, Session { destination, id, since }: Session) -> bool {
        self.set_offline(device);
        let Some(entry) = self.entry_mut(device) else { return false };
        (entry.destination, entry.session) = (destination as u16, id);
        (entry.since_low, entry.since_high) = (since as u32, (since >> 32) as u16);
        self.online.insert(device.0);
        if self.online_by_destination.len() <= destination {
            self.online_by_destination.resize(destination + 1, RoaringBitmap::new());
        }
        self.online_by_destination[destination].insert(device.0)
    }

    pub(super) fn set_offline(&mut self, device: DeviceNo) {
        if self.online.remove(device.0)
            && let Some(entry) = self.entries.get(device.0 as usize)
            && let Some(online) = self.online_by_destination.get_mut(usize::from(entry.destination))
        {
            online.remove(device.0);
        }
    }

    /// The device's current session.
    fn current(&self, device: DeviceNo) -> Option<Session> {
        let entry = self.entry(device).filter(|_| self.online.contains(device.0))?;
        let destination = usize::from(entry.destination);
        Some(Session { destination, id: entry.session, since: entry.since() })
    }

    /// The devices whose current session is at a destination.
    pub(crate) fn online_at(&self, destination: usize) -> Option<&RoaringBitmap> {
        self.online_by_destination.get(destination)
    }

    /// All sessions of a destination, the older ones of their devices included.
    pub(crate) fn sessions_at(&self, destination: usize) -> Vec<(DeviceNo, u64)> {
        let current = self.online_at(destination).into_iter().flatten().map(DeviceNo);
        let current = current.filter_map(|device| Some((device, self.session(device)?.1)));
        let older = self.older_sessions.iter().flat_map(|(device, older)| older.iter().map(|older| (*device, *older)));
        let older = older.filter(|(_, older)| older.destination == destination);
        older.map(|(device, older)| (DeviceNo(device), older.id)).chain(current).collect()
    }

    /// The device's current session: its destination and id.
    pub(crate) fn session(&self, device: DeviceNo) -> Option<(usize, u64)> {
        self.current(device).map(|session| (session.destination, session.id))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::device, *};

    #[test]
    fn the_end_of_an_older_session_leaves_the_device_online() {
        let mut devices = Devices::default();
        devices.put(&device(0, 1, "a", "phone", &[]));
        assert!(devices.bind(DeviceNo(0), Session { destination: 0, id: 7, since: 5_000 }, 5_000));
        assert!(devices.bind(DeviceNo(0), Session { destination: 1, id: 8, since: 6_000 }, 6_000));
        assert_eq!(devices.end_session(DeviceNo(0), 0, 7), SessionEnd::NotCurrent);
        assert_eq!(devices.session(DeviceNo(0)), Some((1, 8)));
        assert_eq!(devices.end_session(DeviceNo(0), 0, 8), SessionEnd::NotCurrent, "another destination's session");
        assert_eq!(devices.end_session(DeviceNo(0), 1, 8), SessionEnd::Offline);
        assert_eq!(devices.session(DeviceNo(0)), None);
    }

    /// In whatever order the beginnings and ends of a device's sessions are reported.
    #[test]
    fn the_current_session_is_the_newest_live_one_in_any_order_of_reports() {
        let since = |id: u64| [5_000, 7_000, 6_000][id as usize];
        let mut random = 1_u64;
        for _ in 0..2_000 {
            let mut devices = Devices::default();
            devices.put(&device(0, 1, "a", "phone", &[]));
            let mut live: Vec<u64> = Vec::new();
            let mut ended = [false; 3];
            for _ in 0..12 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let id = (random >> 33) % 3;
                if ended[id as usize] {
                    continue;
                }
                if !live.contains(&id) {
                    live.push(id);
                    let session = Session { destination: id as usize, id, since: since(id) };
                    let newest = live.iter().max_by_key(|id| since(**id)) == Some(&id);
                    assert_eq!(devices.bind(DeviceNo(0), session, 0), newest);
                } else if random >> 40 & 1 == 0 {
                    live.retain(|other| *other != id);
                    ended[id as usize] = true;
                    devices.end_session(DeviceNo(0), id as usize, id);
                }
                let newest = live.iter().max_by_key(|id| since(**id)).copied();
                assert_eq!(devices.session(DeviceNo(0)).map(|(_, id)| id), newest);
                let at: Vec<usize> =
                    (0..3).filter(|at| devices.online_at(*at).is_some_and(|online| online.contains(0))).collect();
                assert_eq!(at, newest.map(|id| id as usize).into_iter().collect::<Vec<_>>());
                let mut all: Vec<u64> = (0..3).flat_map(|at| devices.sessions_at(at)).map(|(_, id)| id).collect();
                all.sort_unstable();
                live.sort_unstable();
                assert_eq!(all, live);
            }
        }
    }
}

//! Users beside the group, each with two devices of their own thread: who comes, goes, and is pushed to.
//!
//! A device is where it is wanted: it connects, comes back from a connection that broke or fell silent, on another node,
//! and leaves when it is told to. What it knows of its own session is the truth that nodes are held against. In reading order:
//! [`slot`] is what a device is told and tells, [`mod@line`] its connection, [`device`] its life, [`told`] what it hears of others.

mod device;
mod line;
mod slot;
mod told;

use super::{
    pushes::Book,
    truth::{Stand, Truth},
};
use crate::{LabError, setup};
use device::Around;
use rand::{RngExt, SeedableRng, rngs::StdRng};
pub(super) use slot::Doors;
use slot::{Slot, Via};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;
use told::Told;

/// Devices of a guest, as presence names them.
const DEVICES: [&str; 2] = ["phone", "web"];
/// Between two who come or go.
const BETWEEN_WHIMS: Duration = Duration::from_millis(400);
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct Guests {
    slots: Arc<[Slot]>,
    doors: Arc<Doors>,
    told: Arc<Told>,
    gone: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Guests {
    /// Makes the users, and returns when all their devices are there.
    pub(super) fn arrive(doors: &Arc<Doors>, book: &Arc<Book>, patience: Duration) -> Result<Self, LabError> {
        let mut http = HttpClient::new(doors.nodes[0].0, doors.api_key.clone());
        setup::named_users(&mut http, &doors.guests)?;
        setup::group(&mut http, &doors.group, &doors.guests)?;
        let mut slots = Vec::new();
        for (number, user) in doors.guests.iter().enumerate() {
            // Every node has devices of all ways: one that is for pushes alone lives on when its session is bound anew.
            let phone = Via::Miop { chats: number % 2 == 0 };
            slots.push(Slot::new(user, DEVICES[0], phone, number % doors.nodes.len()));
            slots.push(Slot::new(user, DEVICES[1], Via::WebSocket, (number + 1) % doors.nodes.len()));
        }
        let slots: Arc<[Slot]> = slots.into();
        let gone = Arc::new(AtomicBool::new(false));
        let told = Arc::new(Told::default());
        let start = |number: usize| {
            let (slots, doors, book, told) = (slots.clone(), doors.clone(), book.clone(), told.clone());
            let gone = gone.clone();
            std::thread::spawn(move || {
                let around = Around { slots: &slots, doors: &doors, book: &book, told: &told, gone: &gone };
                device::live(number, &around);
            })
        };
        let threads = (0..slots.len()).map(start).collect();
        let guests = Guests { slots, doors: doors.clone(), told, gone, threads };
        match guests.await_all(patience) {
            true => Ok(guests),
            false => Err(LabError::Server(format!("not all devices were bound: {:?}", guests.breaks()))),
        }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.doors.guests
    }

    /// The devices of the guest of this number.
    pub(super) fn devices_of(guest: usize) -> impl Iterator<Item = usize> {
        (0..DEVICES.len()).map(move |device| guest * DEVICES.len() + device)
    }

    pub(super) fn truth(&self) -> Truth {
        let mut truth: Truth = BTreeMap::new();
        for slot in self.slots.iter() {
            let stand: &mut Stand = truth.entry(slot.user.clone()).or_default();
            slot.tell(stand);
        }
        truth
    }

    /// Whether pushes come to this device, by what it was told when it was bound.
    pub(super) fn is_pushed_to(&self, device: usize) -> bool {
        self.slots[device].is_pushed_to()
    }

    /// Whether it has ever been told that pushes come to it: it is one of those that pushes are for.
    pub(super) fn is_known(&self, device: usize) -> bool {
        self.slots[device].is_known()
    }

    /// How many devices are there to which no pushes come.
    pub(super) fn without_pushes(&self) -> usize {
        (0..self.slots.len()).filter(|device| !self.is_pushed_to(*device)).count()
    }

    /// Who was told to be offline to a session that watches, though there since before the harm.
    pub(super) fn told_offline(&self, harmed: Instant) -> Vec<String> {
        self.told.since(harmed)
    }

    /// Changes that sessions were told in this step.
    pub(super) fn told_changes(&self) -> u64 {
        self.told.changes()
    }

    /// All come, and to the nodes where they were first.
    pub(super) fn spread(&self, lead_may_move: bool) {
        self.told.forget();
        for slot in self.slots.iter() {
            slot.want(true);
            slot.lead_may_move(lead_may_move);
            slot.go_home();
        }
    }

    pub(super) fn all_come(&self) {
        self.slots.iter().for_each(|slot| slot.want(true));
    }

    /// Waits until every device that is wanted has a session.
    pub(super) fn await_all(&self, patience: Duration) -> bool {
        let asked = Instant::now();
        let is_there = || self.slots.iter().all(Slot::is_as_wanted);
        while !is_there() && asked.elapsed() < patience {
            std::thread::sleep(LOOK);
        }
        is_there()
    }

    /// Half of the guests come and go, one device at a time, until `enough`.
    pub(super) fn have_whims(&self, seed: u64, enough: &AtomicBool) {
        let mut random = StdRng::seed_from_u64(seed);
        let whimsical: Vec<usize> = (0..self.names().len()).filter(|guest| guest % 4 > 1).collect();
        while !whimsical.is_empty() && !enough.load(Ordering::Relaxed) {
            let guest = whimsical[random.random_range(0..whimsical.len())];
            let device = &self.slots[guest * DEVICES.len() + random.random_range(0..DEVICES.len())];
            device.want(!device.is_wanted());
            std::thread::sleep(BETWEEN_WHIMS);
        }
    }

    /// Why connections ended so far, except where devices left by themselves.
    pub(super) fn breaks(&self) -> BTreeMap<String, u64> {
        let mut breaks = BTreeMap::new();
        for slot in self.slots.iter() {
            for (why, count) in slot.breaks() {
                *breaks.entry(why).or_default() += count;
            }
        }
        breaks
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

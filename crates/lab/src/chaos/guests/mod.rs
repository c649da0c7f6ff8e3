//! Guests: users beside the group, each with two devices that connect, disconnect and get pushes. One thread drives them all.
//!
//! A device connects while it is wanted, reconnects to another node when its connection breaks or falls silent, and
//! disconnects when it is no longer wanted. Its own knowledge of its session is the expected presence. In reading order:
//! [`device_handle`] controls a device and has its state, [`device_loop`] has the sessions of all, [`offline_notices`] the changes of presence that it receives as a watcher.

mod device_handle;
mod device_loop;
mod offline_notices;

use super::{
    expected_presence::{ExpectedPresence, ExpectedUser},
    push_verifier::PushVerifier,
};
use crate::{LabError, setup};
pub(super) use device_handle::GuestConfig;
use device_handle::{DeviceHandle, GuestProtocol};
use device_loop::DeviceContext;
use offline_notices::OfflineNotices;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// The device ids of a guest.
const DEVICES: [&str; 2] = ["phone", "web"];
/// The interval between two devices that connect or disconnect on purpose.
const TOGGLE_INTERVAL: Duration = Duration::from_millis(400);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) struct Guests {
    devices: Arc<[DeviceHandle]>,
    config: Arc<GuestConfig>,
    notices: Arc<OfflineNotices>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), LabError>>>,
}

impl Guests {
    /// Creates the users, and returns when all their devices have a session.
    pub(super) fn connect_all(
        config: &Arc<GuestConfig>,
        push_verifier: &Arc<PushVerifier>,
        patience: Duration,
    ) -> Result<Self, LabError> {
        let mut http = config.http(0);
        setup::create_users(&mut http, &config.guests)?;
        setup::create_group(&mut http, &config.group, &config.guests)?;
        let mut devices = Vec::new();
        for (number, user) in config.guests.iter().enumerate() {
            // Every node has devices of each protocol and kind; one for pushes alone stays connected when its session is bound
            // anew.
            let phone = GuestProtocol::Miop { chats: number % 2 == 0 };
            devices.push(DeviceHandle::new(user, DEVICES[0], phone, number % config.nodes.len()));
            devices.push(DeviceHandle::new(
                user,
                DEVICES[1],
                GuestProtocol::WebSocket,
                (number + 1) % config.nodes.len(),
            ));
        }
        let devices: Arc<[DeviceHandle]> = devices.into();
        let stopped = Arc::new(AtomicBool::new(false));
        let notices = Arc::new(OfflineNotices::default());
        let context = DeviceContext {
            devices: devices.clone(),
            config: config.clone(),
            push_verifier: push_verifier.clone(),
            notices: notices.clone(),
            stopped: stopped.clone(),
        };
        let thread = Some(std::thread::spawn(move || device_loop::run_devices(context)));
        let guests = Guests { devices, config: config.clone(), notices, stopped, thread };
        if guests.await_all(patience) {
            Ok(guests)
        } else {
            Err(LabError::Server(format!("not all devices were bound: {:?}", guests.disconnects())))
        }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.config.guests
    }

    /// The numbers of a guest's devices.
    pub(super) fn devices_of(guest: usize) -> impl Iterator<Item = usize> {
        (0..DEVICES.len()).map(move |device| guest * DEVICES.len() + device)
    }

    pub(super) fn expected_presence(&self) -> ExpectedPresence {
        let mut expected: ExpectedPresence = BTreeMap::new();
        for handle in self.devices.iter() {
            let user_state: &mut ExpectedUser = expected.entry(handle.user.clone()).or_default();
            handle.add_to(user_state);
        }
        expected
    }

    /// Whether a device has a session that was bound with pushes.
    pub(super) fn receives_pushes(&self, device: usize) -> bool {
        self.devices[device].receives_pushes()
    }

    /// Whether a device has ever been bound with pushes, so that pushes are addressed to it.
    pub(super) fn is_push_target(&self, device: usize) -> bool {
        self.devices[device].is_push_target()
    }

    /// How many devices have no session that was bound with pushes.
    pub(super) fn without_pushes(&self) -> usize {
        (0..self.devices.len()).filter(|device| !self.receives_pushes(*device)).count()
    }

    /// Users who were announced as offline to a watching session although their own session had lasted since before the
    /// fault.
    pub(super) fn told_offline(&self, injected: Instant) -> Vec<String> {
        self.notices.since_before(injected)
    }

    /// Changes of presence that watching sessions received in this step.
    pub(super) fn told_changes(&self) -> u64 {
        self.notices.changes()
    }

    /// Starts a step: all devices connect to their first nodes.
    pub(super) fn reset(&self, sessions_may_move: bool) {
        self.notices.clear();
        for handle in self.devices.iter() {
            handle.set_wanted(true);
            handle.set_sessions_may_move(sessions_may_move);
            handle.request_home();
        }
    }

    /// Wants all devices to be connected.
    pub(super) fn request_all(&self) {
        self.devices.iter().for_each(|handle| handle.set_wanted(true));
    }

    /// Waits until every device is connected if it is wanted, and disconnected if not.
    pub(super) fn await_all(&self, patience: Duration) -> bool {
        let asked = Instant::now();
        let is_there = || self.devices.iter().all(DeviceHandle::is_settled);
        while !is_there() && asked.elapsed() < patience {
            std::thread::sleep(POLL_INTERVAL);
        }
        is_there()
    }

    /// Connects and disconnects devices of half of the guests, one at a time, until `stop`.
    pub(super) fn toggle_devices(&self, seed: u64, stop: &AtomicBool) {
        let mut random = StdRng::seed_from_u64(seed);
        let toggled: Vec<usize> = (0..self.names().len()).filter(|guest| guest % 4 > 1).collect();
        while !toggled.is_empty() && !stop.load(Ordering::Relaxed) {
            let guest = toggled[random.random_range(0..toggled.len())];
            let device = &self.devices[guest * DEVICES.len() + random.random_range(0..DEVICES.len())];
            device.set_wanted(!device.is_wanted());
            std::thread::sleep(TOGGLE_INTERVAL);
        }
    }

    /// Causes of the connections that ended so far, except those that devices ended on purpose.
    pub(super) fn disconnects(&self) -> BTreeMap<String, u64> {
        let mut disconnects = BTreeMap::new();
        for handle in self.devices.iter() {
            for (why, count) in handle.disconnects() {
                *disconnects.entry(why).or_default() += count;
            }
        }
        disconnects
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Without its thread no device was connected, which the step has told.
            let _ = thread.join();
        }
    }
}

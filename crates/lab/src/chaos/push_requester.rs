//! Requests pushes at a rate from every node, and repeats each request until a node accepts it.

use super::{
    guests::{GuestConfig, Guests},
    nodes::Nodes,
    push_verifier::PushVerifier,
};
use crate::devices::push_body;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::index};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use tidings_protocol::http::{PushAccepted, PushTo};

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The most guests that one push is addressed to.
const GUESTS_MAX: usize = 3;

/// Requests pushes, at one node first.
pub(super) struct PushRequester<'a> {
    pub(super) config: &'a GuestConfig,
    pub(super) guests: &'a Guests,
    pub(super) push_verifier: &'a PushVerifier,
    /// The node that is asked first.
    pub(super) node: usize,
    pub(super) per_second: f64,
    pub(super) patience: Duration,
}

impl PushRequester<'_> {
    /// Requests pushes until `stop`; the last one is still repeated until it is accepted.
    pub(super) fn run(&self, seed: u64, stop: &AtomicBool) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut nodes = Nodes::of(self.config, stop, self.patience);
        let started = Instant::now();
        for number in 0u32.. {
            let due = Duration::from_secs_f64(f64::from(number) / self.per_second);
            while started.elapsed() < due {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(POLL_INTERVAL);
            }
            let names = self.guests.names();
            let count = random.random_range(1..=GUESTS_MAX.min(names.len()));
            let chosen: Vec<usize> = index::sample(&mut random, names.len(), count).into_iter().collect();
            self.request_until_accepted(&chosen, &mut nodes);
        }
    }

    /// Requests one push from every node in turn until one accepts it.
    fn request_until_accepted(&self, chosen: &[usize], nodes: &mut Nodes<'_>) {
        let devices = chosen.iter().flat_map(|guest| Guests::devices_of(*guest)).collect();
        let (number, id, body) = self.push_verifier.register(devices, |device| self.guests.is_push_target(device));
        let users = chosen.iter().map(|guest| self.guests.names()[*guest].clone()).collect();
        let request = match push_body::request(PushTo { users, ..PushTo::default() }, id, body) {
            Ok(request) => request,
            Err(error) => return self.push_verifier.record_failure(number, &error.to_string()),
        };
        let retried = |why: &str| self.push_verifier.record_retry(why);
        match nodes.until_accepted(self.node, |http| http.post::<PushAccepted>("/v1/push", &request), retried) {
            Ok((_, accepted)) => self.push_verifier.record_accepted(number, accepted.push, accepted.targets),
            Err(why) => self.push_verifier.record_failure(number, &why),
        }
    }
}

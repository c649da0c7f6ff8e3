//! Requests pushes at a rate from every node, and repeats each request until a node accepts it.

use super::{
    guests::{GuestConfig, Guests},
    push_verifier::PushVerifier,
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::index};
use serde_json::value::RawValue;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use tidings_client::{ClientError, http::HttpClient};
use tidings_protocol::http::{PushAccepted, PushPriority, PushRequest, PushTo};

/// Longer than any run.
const LIFETIME_S: u64 = 24 * 3600;
/// A request without an answer within this is repeated at another node with the same id.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_INTERVAL: Duration = Duration::from_millis(300);
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
        let node = |(http, _): &_| {
            let mut http = HttpClient::new(*http, self.config.api_key.clone());
            http.set_timeout(REQUEST_TIMEOUT);
            http
        };
        let mut nodes: Vec<HttpClient> = self.config.nodes.iter().map(node).collect();
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
            self.request_until_accepted(&chosen, &mut nodes, stop);
        }
    }

    /// Requests one push from every node in turn until one accepts it.
    fn request_until_accepted(&self, chosen: &[usize], nodes: &mut [HttpClient], stop: &AtomicBool) {
        let devices = chosen.iter().flat_map(|guest| Guests::devices_of(*guest)).collect();
        let (number, id, body) = self.push_verifier.register(devices, |device| self.guests.is_push_target(device));
        let body = match RawValue::from_string(body) {
            Ok(body) => body,
            Err(error) => return self.push_verifier.record_failure(number, &error.to_string()),
        };
        let request = PushRequest {
            to: PushTo {
                users: chosen.iter().map(|guest| self.guests.names()[*guest].clone()).collect(),
                ..PushTo::default()
            },
            content_type: "bench".into(),
            body,
            ttl_s: Some(LIFETIME_S),
            collapse_key: None,
            priority: PushPriority::Normal,
            send_at: None,
            dry_run: false,
            client_push_id: Some(id),
            fallback: None,
        };
        // During a fault there may be no node that accepts pushes: patience begins when the step ends.
        let mut retrying_since = None;
        for node in (0..nodes.len()).cycle().skip(self.node) {
            match nodes[node].post::<PushAccepted>("/v1/push", &request) {
                Ok(accepted) => return self.push_verifier.record_accepted(number, accepted.push, accepted.targets),
                Err(ClientError::Refused { problem, .. }) if problem.retry => {
                    self.push_verifier.record_retry(problem.code.as_str());
                }
                Err(ClientError::Io(_)) => self.push_verifier.record_retry("no answer"),
                Err(error) => return self.push_verifier.record_failure(number, &error.to_string()),
            }
            if stop.load(Ordering::Relaxed) && retrying_since.get_or_insert_with(Instant::now).elapsed() > self.patience
            {
                return self.push_verifier.record_failure(number, "no node accepted it in time");
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }
}

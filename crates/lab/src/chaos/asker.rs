//! Asks for pushes, a few a second over every node, and does not let go of one until it is accepted.

use super::{
    guests::{Doors, Guests},
    pushes::Book,
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
/// Who gets no answer asks another node, by the same id.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(20);
/// Guests whom one push is for, at most.
const GUESTS_MAX: usize = 3;

/// One of those who ask.
pub(super) struct Asker<'a> {
    pub(super) doors: &'a Doors,
    pub(super) guests: &'a Guests,
    pub(super) book: &'a Book,
    /// The node that it asks first.
    pub(super) node: usize,
    pub(super) per_second: f64,
    pub(super) patience: Duration,
}

impl Asker<'_> {
    /// Asks until it is enough; what was begun is brought to its end.
    pub(super) fn ask_on(&self, seed: u64, enough: &AtomicBool) {
        let mut random = StdRng::seed_from_u64(seed);
        let node = |(http, _): &_| {
            let mut http = HttpClient::new(*http, self.doors.api_key.clone());
            http.set_timeout(ASK_TIMEOUT);
            http
        };
        let mut nodes: Vec<HttpClient> = self.doors.nodes.iter().map(node).collect();
        let started = Instant::now();
        for number in 0u32.. {
            let due = Duration::from_secs_f64(f64::from(number) / self.per_second);
            while started.elapsed() < due {
                if enough.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(LOOK);
            }
            let names = self.guests.names();
            let count = random.random_range(1..=GUESTS_MAX.min(names.len()));
            let chosen: Vec<usize> = index::sample(&mut random, names.len(), count).into_iter().collect();
            self.ask(&chosen, &mut nodes, enough);
        }
    }

    /// Asks every node in turn until one has accepted it.
    fn ask(&self, chosen: &[usize], nodes: &mut [HttpClient], enough: &AtomicBool) {
        let devices = chosen.iter().flat_map(|guest| Guests::devices_of(*guest)).collect();
        let (number, id, body) = self.book.ask(devices, |device| self.guests.is_known(device));
        let body = match RawValue::from_string(body) {
            Ok(body) => body,
            Err(error) => return self.book.refused(number, &error.to_string()),
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
        };
        // While something is harmed there may be nobody who accepts: patience begins when that is over.
        let mut asked_since = None;
        for node in (0..nodes.len()).cycle().skip(self.node) {
            match nodes[node].post::<PushAccepted>("/v1/push", &request) {
                Ok(accepted) => return self.book.accepted(number, accepted.push, accepted.targets),
                Err(ClientError::Refused { problem, .. }) if problem.retry => {
                    self.book.not_yet(problem.code.as_str());
                }
                Err(ClientError::Io(_)) => self.book.not_yet("no answer"),
                Err(error) => return self.book.refused(number, &error.to_string()),
            }
            if enough.load(Ordering::Relaxed) && asked_since.get_or_insert_with(Instant::now).elapsed() > self.patience
            {
                return self.book.refused(number, "nobody did in time");
            }
            std::thread::sleep(AGAIN);
        }
    }
}

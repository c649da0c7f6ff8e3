//! Verifies pushes: compares those that the server accepted with those that devices got.

use crate::{devices::push_body, lock::lock};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
    time::Instant,
};

const EXAMPLES_MAX: usize = 5;

/// All pushes of a run, with their deliveries.
#[derive(Debug)]
pub(super) struct PushVerifier {
    tag: String,
    records: Mutex<PushRecords>,
}

#[derive(Debug, Default)]
struct PushRecords {
    pushes: Vec<Push>,
    /// The last delivery by device and push number.
    last_deliveries: HashMap<(usize, usize), Delivery>,
    /// The number of this step's first push.
    first: usize,
    copies: DuplicateCounts,
    asked_again: BTreeMap<String, u64>,
    refused: Vec<String>,
    repeats: Vec<String>,
}

#[derive(Debug)]
struct Push {
    /// The devices that the push is addressed to: all devices of its users.
    devices: Vec<usize>,
    /// Those of them that had been bound for pushes when the push was requested.
    known: Vec<usize>,
    /// The push's id and its number of target devices, by the server's answer.
    accepted: Option<(u64, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Delivery {
    id: u64,
    connection: u64,
    at: Instant,
}

/// Duplicates and altered pushes in a step.
#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct DuplicateCounts {
    /// Duplicates on another connection: the acknowledgement was lost, or had not been stored.
    pub(super) again: u64,
    /// Duplicates on the same connection: its session was bound anew at another node.
    pub(super) repeated: u64,
    /// Duplicates under another id: the push was accepted twice.
    pub(super) doubled: u64,
    /// Pushes that differ from every request.
    pub(super) altered: u64,
}

/// The result of a step for pushes.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct PushResult {
    pub(super) asked: u64,
    pub(super) accepted: u64,
    /// Deliveries that are expected: to devices that are bound for pushes at the end.
    pub(super) expected: u64,
    pub(super) reached: u64,
    /// With two versions these are late: the step after which all nodes are of one version has them, too.
    pub(super) lost: u64,
    pub(super) two_versions: bool,
    /// Devices that the server did not count among the targets of an accepted push.
    pub(super) left_out: u64,
    pub(super) copies: DuplicateCounts,
    /// Whether a session may have been bound anew on the same connection, so that duplicates there are allowed.
    pub(super) may_repeat: bool,
    /// Retried requests, by the code of their refusal.
    pub(super) asked_again: BTreeMap<String, u64>,
    pub(super) problems: Vec<String>,
}

impl PushResult {
    pub(super) fn passes(&self) -> bool {
        let lost = if self.two_versions { 0 } else { self.lost };
        let faults = lost + self.left_out + self.copies.doubled + self.copies.altered;
        self.asked == self.accepted && faults == 0 && (self.may_repeat || self.copies.repeated == 0)
    }
}

impl PushVerifier {
    pub(super) fn new(tag: &str) -> Self {
        PushVerifier { tag: tag.to_owned(), records: Mutex::default() }
    }

    /// Starts the next step: counts begin at 0.
    pub(super) fn start_step(&self) {
        let mut records = lock(&self.records);
        records.first = records.pushes.len();
        records.copies = DuplicateCounts::default();
        records.asked_again.clear();
        records.refused.clear();
        records.repeats.clear();
    }

    /// Registers a push before its request; returns its number, its `client_push_id`, and its body.
    pub(super) fn register(&self, devices: Vec<usize>, is_known: impl Fn(usize) -> bool) -> (usize, String, String) {
        let known = devices.iter().copied().filter(|device| is_known(*device)).collect();
        let mut records = lock(&self.records);
        let number = records.pushes.len();
        records.pushes.push(Push { devices, known, accepted: None });
        (number, format!("{}-{number}", self.tag), push_body::format(&self.tag, number, 0))
    }

    pub(super) fn record_accepted(&self, number: usize, id: u64, targets: u64) {
        lock(&self.records).pushes[number].accepted = Some((id, targets));
    }

    /// Records that a request was refused with a retryable code, or not answered.
    pub(super) fn record_retry(&self, why: &str) {
        *lock(&self.records).asked_again.entry(why.to_owned()).or_default() += 1;
    }

    /// Records that a push was not accepted and is not requested again.
    pub(super) fn record_failure(&self, number: usize, why: &str) {
        let mut records = lock(&self.records);
        if records.refused.len() < EXAMPLES_MAX {
            records.refused.push(format!("push {number} was not accepted: {why}"));
        }
    }

    /// Records that a device got a push on its connection with that number.
    pub(super) fn record_delivery(&self, device: usize, connection: u64, id: u64, body: &[u8]) {
        let mut records = lock(&self.records);
        let number = push_body::parse(&self.tag, body).map(|(number, _)| number);
        let Some(number) =
            number.filter(|number| records.pushes.get(*number).is_some_and(|push| push.devices.contains(&device)))
        else {
            records.copies.altered += 1;
            return;
        };
        match records.last_deliveries.insert((device, number), Delivery { id, connection, at: Instant::now() }) {
            None => {}
            Some(last) if last.id != id => records.copies.doubled += 1,
            Some(last) if last.connection == connection => {
                records.copies.repeated += 1;
                let after = last.at.elapsed().as_secs_f64();
                if records.repeats.len() < EXAMPLES_MAX {
                    records.repeats.push(format!(
                        "push {number}, accepted as {id}, came to device {device} once more after {after:.3} s"
                    ));
                }
            }
            Some(_) => records.copies.again += 1,
        }
    }

    /// The result of this step so far. `is_there`: whether a device is bound for pushes.
    pub(super) fn result(&self, is_there: impl Fn(usize) -> bool, may_repeat: bool) -> PushResult {
        let records = lock(&self.records);
        let mut pushes = PushResult {
            copies: records.copies.clone(),
            asked_again: records.asked_again.clone(),
            may_repeat,
            problems: records.refused.clone(),
            ..PushResult::default()
        };
        for (number, push) in records.pushes.iter().enumerate().skip(records.first) {
            pushes.asked += 1;
            let Some((id, targets)) = push.accepted else { continue };
            pushes.accepted += 1;
            pushes.left_out += (push.known.len() as u64).saturating_sub(targets);
            for device in push.known.iter().filter(|device| is_there(**device)) {
                pushes.expected += 1;
                match records.last_deliveries.get(&(*device, number)) {
                    Some(last) if last.id == id => pushes.reached += 1,
                    Some(last) => {
                        pushes.copies.doubled += 1;
                        pushes.problems.push(format!("push {number} was accepted as {id} and came as {}", last.id));
                    }
                    None => {
                        pushes.lost += 1;
                        pushes.problems.push(format!("push {number}, accepted as {id}, did not reach device {device}"));
                    }
                }
            }
        }
        if !may_repeat {
            pushes.problems.extend(records.repeats.iter().cloned());
        }
        pushes.problems.truncate(EXAMPLES_MAX);
        pushes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: fn(usize) -> bool = |_| true;

    /// A verifier with one accepted push to devices 0 and 1, and the push's body.
    fn verifier_with_push() -> (PushVerifier, String) {
        let push_verifier = PushVerifier::new("t");
        let (number, _, body) = push_verifier.register(vec![0, 1], ALL);
        push_verifier.record_accepted(number, 100, 2);
        (push_verifier, body)
    }

    #[test]
    fn a_push_that_reached_all_devices_passes() {
        let (push_verifier, body) = verifier_with_push();
        push_verifier.record_delivery(0, 1, 100, body.as_bytes());
        push_verifier.record_delivery(1, 1, 100, body.as_bytes());
        let pushes = push_verifier.result(ALL, false);
        assert!(pushes.passes());
        assert_eq!((pushes.asked, pushes.accepted, pushes.expected, pushes.reached), (1, 1, 2, 2));
    }

    #[test]
    fn a_push_is_lost_if_a_bound_device_did_not_get_it() {
        let (push_verifier, body) = verifier_with_push();
        push_verifier.record_delivery(0, 1, 100, body.as_bytes());
        let pushes = push_verifier.result(ALL, true);
        assert!(!pushes.passes() && pushes.lost == 1, "{pushes:?}");
        assert!(push_verifier.result(|device| device == 0, true).passes(), "the other is away");
    }

    #[test]
    fn a_push_that_is_not_accepted_or_leaves_out_a_device_fails() {
        let push_verifier = PushVerifier::new("t");
        let (number, ..) = push_verifier.register(vec![0], ALL);
        assert!(!push_verifier.result(ALL, true).passes());
        push_verifier.record_accepted(number, 7, 0);
        let pushes = push_verifier.result(|_| false, true);
        assert!(!pushes.passes() && pushes.left_out == 1);
    }

    #[test]
    fn a_device_that_bound_for_pushes_later_may_get_a_push_or_not() {
        let push_verifier = PushVerifier::new("t");
        let (number, _, body) = push_verifier.register(vec![0, 1], |device| device == 0);
        push_verifier.record_accepted(number, 100, 1);
        push_verifier.record_delivery(0, 1, 100, body.as_bytes());
        assert!(push_verifier.result(ALL, true).passes());
        push_verifier.record_delivery(1, 1, 100, body.as_bytes());
        assert!(push_verifier.result(ALL, true).passes());
    }

    #[test]
    fn duplicates_are_counted_by_kind() {
        let (push_verifier, body) = verifier_with_push();
        push_verifier.record_delivery(0, 1, 100, body.as_bytes());
        push_verifier.record_delivery(1, 1, 100, body.as_bytes());
        push_verifier.record_delivery(0, 2, 100, body.as_bytes());
        assert!(push_verifier.result(ALL, false).passes(), "again on another connection");
        push_verifier.record_delivery(0, 2, 100, body.as_bytes());
        assert!(!push_verifier.result(ALL, false).passes(), "repeated where nothing could bind it anew");
        assert!(push_verifier.result(ALL, true).passes());
        push_verifier.record_delivery(1, 2, 101, body.as_bytes());
        let pushes = push_verifier.result(ALL, true);
        assert!(!pushes.passes(), "under another id");
        assert_eq!((pushes.copies.again, pushes.copies.repeated), (1, 1));
    }

    #[test]
    fn a_push_that_was_not_requested_for_a_device_fails() {
        let (push_verifier, body) = verifier_with_push();
        push_verifier.record_delivery(0, 1, 100, body.as_bytes());
        push_verifier.record_delivery(1, 1, 100, body.as_bytes());
        push_verifier.record_delivery(2, 1, 100, body.as_bytes());
        assert!(!push_verifier.result(ALL, true).passes(), "it is for other devices");
        push_verifier.start_step();
        assert!(push_verifier.result(ALL, true).passes(), "that was the last step");
        push_verifier.record_delivery(0, 1, 102, b"{}");
        assert!(!push_verifier.result(ALL, true).passes());
    }
}

//! The judge of pushes: what was accepted, held against what devices got.

use crate::devices::push_body;
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

const EXAMPLES_MAX: usize = 5;

/// All pushes of a run, and what became of them.
#[derive(Debug)]
pub(super) struct Book {
    tag: String,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    pushes: Vec<Push>,
    /// By device and number.
    got: HashMap<(usize, usize), Got>,
    /// The first push of this step.
    first: usize,
    copies: Copies,
    asked_again: BTreeMap<String, u64>,
    refused: Vec<String>,
    repeats: Vec<String>,
}

#[derive(Debug)]
struct Push {
    /// Whom it is for: all devices of its users.
    devices: Vec<usize>,
    /// Those of them that had been bound for pushes when it was asked for.
    known: Vec<usize>,
    /// Its id, and how many devices it is for by the server's word.
    accepted: Option<(u64, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Got {
    id: u64,
    connection: u64,
    at: Instant,
}

/// What came more than once in a step.
#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct Copies {
    /// On another connection: its acknowledgement was lost, or had not been stored.
    pub(super) again: u64,
    /// On the same connection: its session was bound anew at another node.
    pub(super) repeated: u64,
    /// Under another id: it was accepted twice.
    pub(super) doubled: u64,
    /// Not as it was asked for.
    pub(super) altered: u64,
}

/// What a step came to.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Pushes {
    pub(super) asked: u64,
    pub(super) accepted: u64,
    /// To be had by devices that are there in the end.
    pub(super) expected: u64,
    pub(super) reached: u64,
    pub(super) lost: u64,
    /// Devices that the server did not count among those that an accepted push is for.
    pub(super) left_out: u64,
    pub(super) copies: Copies,
    /// Whether a session may have been bound anew without its device.
    pub(super) may_repeat: bool,
    /// Answers that were not the last one, by their code.
    pub(super) asked_again: BTreeMap<String, u64>,
    pub(super) problems: Vec<String>,
}

impl Pushes {
    pub(super) fn passes(&self) -> bool {
        let faults = self.lost + self.left_out + self.copies.doubled + self.copies.altered;
        self.asked == self.accepted && faults == 0 && (self.may_repeat || self.copies.repeated == 0)
    }
}

impl Book {
    pub(super) fn new(tag: &str) -> Self {
        Book { tag: tag.to_owned(), kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What comes from now on is of the next step.
    pub(super) fn begin_step(&self) {
        let mut kept = self.kept();
        kept.first = kept.pushes.len();
        kept.copies = Copies::default();
        kept.asked_again.clear();
        kept.refused.clear();
        kept.repeats.clear();
    }

    /// A push that is about to be asked for: its number, the caller's id for it, and the body.
    pub(super) fn ask(&self, devices: Vec<usize>, is_known: impl Fn(usize) -> bool) -> (usize, String, String) {
        let known = devices.iter().copied().filter(|device| is_known(*device)).collect();
        let mut kept = self.kept();
        let number = kept.pushes.len();
        kept.pushes.push(Push { devices, known, accepted: None });
        (number, format!("{}-{number}", self.tag), push_body::write(&self.tag, number, 0))
    }

    pub(super) fn accepted(&self, number: usize, id: u64, targets: u64) {
        self.kept().pushes[number].accepted = Some((id, targets));
    }

    /// It is asked for again.
    pub(super) fn not_yet(&self, why: &str) {
        *self.kept().asked_again.entry(why.to_owned()).or_default() += 1;
    }

    /// It is asked for no more.
    pub(super) fn refused(&self, number: usize, why: &str) {
        let mut kept = self.kept();
        if kept.refused.len() < EXAMPLES_MAX {
            kept.refused.push(format!("push {number} was not accepted: {why}"));
        }
    }

    /// A device got a push, on the connection of that number of its own.
    pub(super) fn take(&self, device: usize, connection: u64, id: u64, body: &[u8]) {
        let mut kept = self.kept();
        let number = push_body::read(&self.tag, body).map(|(number, _)| number);
        let Some(number) =
            number.filter(|number| kept.pushes.get(*number).is_some_and(|push| push.devices.contains(&device)))
        else {
            kept.copies.altered += 1;
            return;
        };
        match kept.got.insert((device, number), Got { id, connection, at: Instant::now() }) {
            None => {}
            Some(got) if got.id != id => kept.copies.doubled += 1,
            Some(got) if got.connection == connection => {
                kept.copies.repeated += 1;
                let after = got.at.elapsed().as_secs_f64();
                if kept.repeats.len() < EXAMPLES_MAX {
                    kept.repeats.push(format!(
                        "push {number}, accepted as {id}, came to device {device} once more after {after:.3} s"
                    ));
                }
            }
            Some(_) => kept.copies.again += 1,
        }
    }

    /// What this step came to so far. `is_there`: whether a device is one that pushes come to in the end.
    pub(super) fn pushes(&self, is_there: impl Fn(usize) -> bool, may_repeat: bool) -> Pushes {
        let kept = self.kept();
        let mut pushes = Pushes {
            copies: kept.copies.clone(),
            asked_again: kept.asked_again.clone(),
            may_repeat,
            problems: kept.refused.clone(),
            ..Pushes::default()
        };
        for (number, push) in kept.pushes.iter().enumerate().skip(kept.first) {
            pushes.asked += 1;
            let Some((id, targets)) = push.accepted else { continue };
            pushes.accepted += 1;
            pushes.left_out += (push.known.len() as u64).saturating_sub(targets);
            for device in push.known.iter().filter(|device| is_there(**device)) {
                pushes.expected += 1;
                match kept.got.get(&(*device, number)) {
                    Some(got) if got.id == id => pushes.reached += 1,
                    Some(got) => {
                        pushes.copies.doubled += 1;
                        pushes.problems.push(format!("push {number} was accepted as {id} and came as {}", got.id));
                    }
                    None => {
                        pushes.lost += 1;
                        pushes.problems.push(format!("push {number}, accepted as {id}, did not reach device {device}"));
                    }
                }
            }
        }
        if !may_repeat {
            pushes.problems.extend(kept.repeats.iter().cloned());
        }
        pushes.problems.truncate(EXAMPLES_MAX);
        pushes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: fn(usize) -> bool = |_| true;

    /// A book in which one push is for the devices 0 and 1, and its body.
    fn asked() -> (Book, String) {
        let book = Book::new("t");
        let (number, _, body) = book.ask(vec![0, 1], ALL);
        book.accepted(number, 100, 2);
        (book, body)
    }

    #[test]
    fn what_reached_everybody_passes() {
        let (book, body) = asked();
        book.take(0, 1, 100, body.as_bytes());
        book.take(1, 1, 100, body.as_bytes());
        let pushes = book.pushes(ALL, false);
        assert!(pushes.passes());
        assert_eq!((pushes.asked, pushes.accepted, pushes.expected, pushes.reached), (1, 1, 2, 2));
    }

    #[test]
    fn one_that_a_device_did_not_get_is_lost_if_the_device_is_there() {
        let (book, body) = asked();
        book.take(0, 1, 100, body.as_bytes());
        let pushes = book.pushes(ALL, true);
        assert!(!pushes.passes() && pushes.lost == 1, "{pushes:?}");
        assert!(book.pushes(|device| device == 0, true).passes(), "the other is away");
    }

    #[test]
    fn one_that_is_never_accepted_fails_and_so_does_one_that_leaves_out_a_device() {
        let book = Book::new("t");
        let (number, ..) = book.ask(vec![0], ALL);
        assert!(!book.pushes(ALL, true).passes());
        book.accepted(number, 7, 0);
        let pushes = book.pushes(|_| false, true);
        assert!(!pushes.passes() && pushes.left_out == 1);
    }

    #[test]
    fn a_device_that_asked_for_pushes_later_may_get_it_or_not() {
        let book = Book::new("t");
        let (number, _, body) = book.ask(vec![0, 1], |device| device == 0);
        book.accepted(number, 100, 1);
        book.take(0, 1, 100, body.as_bytes());
        assert!(book.pushes(ALL, true).passes());
        book.take(1, 1, 100, body.as_bytes());
        assert!(book.pushes(ALL, true).passes());
    }

    #[test]
    fn copies_are_told_apart() {
        let (book, body) = asked();
        book.take(0, 1, 100, body.as_bytes());
        book.take(1, 1, 100, body.as_bytes());
        book.take(0, 2, 100, body.as_bytes());
        assert!(book.pushes(ALL, false).passes(), "again on another connection");
        book.take(0, 2, 100, body.as_bytes());
        assert!(!book.pushes(ALL, false).passes(), "repeated where nothing could bind it anew");
        assert!(book.pushes(ALL, true).passes());
        book.take(1, 2, 101, body.as_bytes());
        let pushes = book.pushes(ALL, true);
        assert!(!pushes.passes(), "under another id");
        assert_eq!((pushes.copies.again, pushes.copies.repeated), (1, 1));
    }

    #[test]
    fn what_nobody_asked_for_fails() {
        let (book, body) = asked();
        book.take(0, 1, 100, body.as_bytes());
        book.take(1, 1, 100, body.as_bytes());
        book.take(2, 1, 100, body.as_bytes());
        assert!(!book.pushes(ALL, true).passes(), "it is for somebody else");
        book.begin_step();
        assert!(book.pushes(ALL, true).passes(), "that was the last step");
        book.take(0, 1, 102, b"{}");
        assert!(!book.pushes(ALL, true).passes());
    }
}

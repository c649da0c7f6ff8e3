//! What every verifier of messages holds a server to, whatever its protocol says of a message: what was sent is acknowledged, and
//! delivered to each receiver, once, in order, with its content.
//!
//! - [`order`]: which numbers a receiver has got of a row that must come without a hole;
//! - [`standing`]: where one message stands, by its sender's answer and by its receivers;
//! - [`tally`]: the counts and times of a phase, and the outcome that they add up to.
//!
//! What a number is and which content belongs to it differs, and is the verifier's: `worker::verifier` reads the `seq` of an entry,
//! `delivery_ledger` a marker in the payload, `load_generators::ledger` what several load clients hand over.

pub(crate) mod order;
pub(crate) mod standing;
pub(crate) mod tally;

use crate::problems::Problems;

/// Faults in delivery, by kind. (Lost messages are counted at the end.)
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeliveryFaults {
    pub(crate) doubled: u64,
    pub(crate) out_of_order: u64,
    pub(crate) altered: u64,
}

impl DeliveryFaults {
    pub(crate) fn total(&self) -> u64 {
        self.doubled + self.out_of_order + self.altered
    }
}

/// The faults that were found, counted, and the first of them in words.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) faults: DeliveryFaults,
    pub(crate) problems: Vec<String>,
}

impl Findings {
    pub(crate) fn doubled(&mut self, what: String) {
        self.faults.doubled += 1;
        self.problems.note(what);
    }

    pub(crate) fn out_of_order(&mut self, what: String) {
        self.faults.out_of_order += 1;
        self.problems.note(what);
    }

    pub(crate) fn altered(&mut self, what: String) {
        self.faults.altered += 1;
        self.problems.note(what);
    }
}

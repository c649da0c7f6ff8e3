//! Faults that the fakes are notified to report, so that it is known that the bench finds them. Once in a while a notice is reported
//! wrongly; the server under test did nothing wrong.

use super::{
    participants::{AckHabit, Participants, Whereabouts},
    records::{Arrival, Records},
};
use clap::ValueEnum;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlantedKind {
    /// A notice that came is not counted
    Lost,
    /// A notice is counted twice, with the same id
    Doubled,
    /// A notice is counted for another member of the conversation
    WrongPerson,
    /// A notice for a user whose client has time left to acknowledge is counted as soon as its message was sent
    TooEarly,
}

/// One fault in so many notices that it can be planted in.
const EVERY: u64 = 20;

/// A kind of fault, and how many notices it could have been planted in.
#[derive(Debug)]
pub(crate) struct PlantedFault {
    kind: PlantedKind,
    seen: AtomicU64,
}

impl PlantedFault {
    pub(crate) fn new(kind: PlantedKind) -> PlantedFault {
        PlantedFault { kind, seen: AtomicU64::new(0) }
    }

    fn is_due(&self) -> bool {
        self.seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(EVERY)
    }

    pub(crate) fn apply(&self, arrival: Arrival, participants: &Participants, records: &mut Records) {
        let user = &participants.users[arrival.user];
        match self.kind {
            PlantedKind::Lost if self.is_due() => {}
            PlantedKind::Doubled if self.is_due() => records.arrivals.extend([arrival, arrival]),
            PlantedKind::WrongPerson if self.is_due() => {
                // To somebody who looks: nobody else is notified in their place.
                let members = &participants.conversations[arrival.conversation].members;
                let looks = |number: &&usize| {
                    let other = &participants.users[**number];
                    other.whereabouts == Whereabouts::Foreground && other.habit == AckHabit::Stores && !other.restless
                };
                let other = members.iter().find(looks).copied().unwrap_or(arrival.user);
                records.arrivals.push(Arrival { user: other, ..arrival });
            }
            PlantedKind::TooEarly if user.habit == AckHabit::Freezes => {
                let sent = (records.messages.iter())
                    .find(|message| message.conversation == arrival.conversation && message.seq == arrival.seq);
                let at = sent.map_or(arrival.at, |message| message.answered_at);
                records.arrivals.push(Arrival { at, ..arrival });
            }
            _ => records.arrivals.push(arrival),
        }
    }
}

//! The part of a job: the last number of its row's key, which tells apart the rows of one message and channel. It is stored, so its
//! bits never change their meaning:
//!
//! | bits | of a message that was decided | of other rows |
//! | --- | --- | --- |
//! | 63 | 0 | set: a dead letter that is replayed; its id is below |
//! | 62 | 0 | set: a message that a session did not acknowledge; the user's number times 2^8 is below |
//! | 61 | 0 | set: a removal; its number times 2^8 is below |
//! | 60 | 0 | set: a push whose devices fall back; a number times 2^8 is below, or the id of the dead letter |
//! | 52 to 59 | the service that did not take these devices, from 1 on; 0: never tried | the same, but of a replay |
//! | 45 to 51 | the rule's place in the policy | |
//! | 41 to 44 | the channel's place in the rule | |
//! | 40 | whether users are notified though they have a session | |
//! | 0 to 39 | the row; one that waits for its time has 2^14 of these numbers for what it becomes then, the latter half of them if its people's quiet hours have ended | bit 2, of a message that a session did not acknowledge: quiet hours have ended |

use tidings_domain::{
    chat_rows::{DeferredPlace, number_in},
    model::Position,
};

const REPLAYED: u64 = 1 << 63;
const UNACKNOWLEDGED: u64 = 1 << 62;
const REMOVAL: u64 = 1 << 61;
const PUSH: u64 = 1 << 60;
const DEAD_LETTER_ID_BITS: u64 = (1 << 52) - 1;
/// Rows of one user whose session did not acknowledge a message, and of each channel of the rule among them.
const ROWS_PER_USER: u64 = 1 << 8;
const ROWS_PER_CHANNEL_OF_USER: u64 = 8;
/// Rows that the targets of one removal take at most.
const ROWS_PER_REMOVAL: u64 = 1 << 8;
/// The same of one page of a push's devices.
const ROWS_PER_PUSH_PAGE: u64 = 1 << 8;
const ROWS_PER_STEP: u64 = 1 << 40;
/// The rows that one row for later becomes at its time: more than it has users, and than all their devices need.
const ROWS_PER_LATER_ROW: u64 = 1 << 14;
/// The bit of those among them that were deferred; of rows of a user whose session did not acknowledge the message.
const DEFERRED: u64 = ROWS_PER_LATER_ROW / 2;
const DEFERRED_OF_USER: u64 = ROWS_PER_CHANNEL_OF_USER / 2;
/// The events that one row for later becomes are few; those of a deferred one have numbers behind them.
const DEFERRED_EVENTS: u64 = 2;
/// The bits of a channel's place in its rule, and of whether users are notified though they have a session.
const STEP_BITS: u32 = 5;
const SERVICE_SHIFT: u32 = 52;
const SERVICE_BITS: u64 = (1 << 8) - 1;
/// Services that have a lane of their own. The others are with the last of these.
const SERVICES_MAX: u64 = SERVICE_BITS - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct JobPart(u64);

impl JobPart {
    /// The least of all.
    pub(crate) const FIRST: JobPart = JobPart(0);
    /// The greatest of all.
    pub(crate) const LAST: JobPart = JobPart(u64::MAX);

    /// The first row of one channel of one rule.
    pub(crate) fn of_step(rule_at: usize, channel_at: usize, even_online: bool) -> JobPart {
        let step = (rule_at as u64) << STEP_BITS | (channel_at as u64) << 1 | u64::from(even_online);
        JobPart(step * ROWS_PER_STEP)
    }

    /// The first row of a user whose session did not acknowledge the message, for one channel of the rule.
    pub(crate) fn unacknowledged(user: u64, channel_at: usize) -> JobPart {
        JobPart((UNACKNOWLEDGED | (user * ROWS_PER_USER)) + channel_at as u64 * ROWS_PER_CHANNEL_OF_USER)
    }

    /// The first row of a removal.
    pub(crate) fn removal(number: u32) -> JobPart {
        JobPart(REMOVAL | (u64::from(number) * ROWS_PER_REMOVAL))
    }

    /// The first row of a page of a push's devices.
    pub(crate) fn push_page(number: u32) -> JobPart {
        JobPart(PUSH | (u64::from(number) * ROWS_PER_PUSH_PAGE))
    }

    /// The row of a dead letter of a push that is replayed.
    pub(crate) fn replayed_push(dead_letter: u64) -> JobPart {
        JobPart(PUSH | JobPart::replayed(dead_letter).0)
    }

    /// Whether the row is of a push, and not of a message.
    pub(crate) fn is_push(self) -> bool {
        self.0 & PUSH > 0 && self.0 & (UNACKNOWLEDGED | REMOVAL) == 0
    }

    /// The row of a dead letter that is replayed.
    pub(crate) fn replayed(dead_letter: u64) -> JobPart {
        let part = JobPart(REPLAYED | dead_letter & DEAD_LETTER_ID_BITS);
        debug_assert_eq!(part.service(), None);
        part
    }

    /// The row after this one.
    #[must_use]
    pub(crate) fn next(self) -> JobPart {
        JobPart(self.0 + 1)
    }

    /// The row after this one, if both wait for their time.
    #[must_use]
    pub(crate) fn next_later(self) -> JobPart {
        JobPart(self.0 + ROWS_PER_LATER_ROW)
    }

    /// The row after so many that wait for other times.
    #[must_use]
    pub(crate) fn after_others(self, others: usize) -> JobPart {
        JobPart(self.0 + others as u64 * ROWS_PER_LATER_ROW)
    }

    /// What a row becomes when the quiet hours of its people end, beside what it has become for others; `None`: it does not wait for that.
    pub(crate) fn deferred(self) -> Option<JobPart> {
        match self.0 {
            number if number & REPLAYED > 0 => None,
            number if number & UNACKNOWLEDGED > 0 => Some(JobPart(number | DEFERRED_OF_USER)),
            number => Some(JobPart(number | DEFERRED)),
        }
    }

    /// The row with those devices of a row that failed at this service of the provider's.
    #[must_use]
    pub(crate) fn at_service(self, service: u64) -> JobPart {
        JobPart(self.0 & !(SERVICE_BITS << SERVICE_SHIFT) | (service.min(SERVICES_MAX) + 1) << SERVICE_SHIFT)
    }

    /// The service whose devices a row has; `None`: it was never tried, and has those of any.
    pub(crate) fn service(self) -> Option<u64> {
        (self.0 >> SERVICE_SHIFT & SERVICE_BITS).checked_sub(1)
    }

    /// The user whose session did not acknowledge the message, if it is such a row. The number is right up to 2^54.
    pub(crate) fn unacknowledged_user(self) -> Option<u64> {
        self.0.checked_sub(UNACKNOWLEDGED).map(|rest| rest / ROWS_PER_USER)
    }

    /// Of a message that was decided: the step, the row that waited, and the row that it became.
    pub(crate) fn place(self) -> (u64, u64, u64) {
        let (step, row) = (self.0 / ROWS_PER_STEP, self.0 % ROWS_PER_STEP);
        let event = if row & DEFERRED > 0 { DEFERRED_EVENTS } else { 0 } + row % DEFERRED;
        (step, row / ROWS_PER_LATER_ROW, event)
    }

    /// As it is stored.
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// Where a job's row is, beside its channel or time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct JobPlace {
    pub(crate) position: Position,
    pub(crate) part: JobPart,
}

impl JobPlace {
    /// The place in a key that [`Due::key`](super::Due::key) made.
    pub(crate) fn of_key(key: &[u8]) -> JobPlace {
        if let Some(DeferredPlace { position, part, .. }) = DeferredPlace::of_key(key) {
            return JobPlace { position, part: JobPart(part) };
        }
        let number = |at| number_in(key, at).unwrap_or_default();
        JobPlace { position: number(1), part: JobPart(number(2)) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tidings_protocol::limits::{NOTIFICATION_CHANNELS_MAX, NOTIFICATION_RULES_MAX};

    #[test]
    fn the_rows_of_all_channels_of_all_rules_have_parts_of_their_own() {
        let mut seen = std::collections::HashSet::new();
        let of_rule = |rule| (0..NOTIFICATION_CHANNELS_MAX).map(move |channel| (rule, channel));
        for (rule, channel) in (0..NOTIFICATION_RULES_MAX).flat_map(of_rule) {
            for even_online in [false, true] {
                let first = JobPart::of_step(rule, channel, even_online);
                assert!(seen.insert(first), "rule {rule}, channel {channel}");
                let last = JobPart(first.0 + ROWS_PER_STEP - 1);
                assert_eq!((first.service(), last.service()), (None, None), "rule {rule}, channel {channel}");
                assert_eq!(JobPart(first.at_service(0).0 & !(SERVICE_BITS << SERVICE_SHIFT)), first);
            }
        }
    }

    /// The numbers are stored: nodes of the version before read and write the same.
    #[test]
    fn parts_have_the_numbers_that_are_stored() {
        let numbers = [
            (JobPart::of_step(0, 0, false), 0),
            (JobPart::of_step(2, 3, true), (2 << 5 | 3 << 1 | 1) << 40),
            (JobPart::of_step(0, 1, false).next(), (2 << 40) + 1),
            (JobPart::of_step(0, 1, false).next_later(), (2 << 40) + (1 << 14)),
            (JobPart::unacknowledged(7, 0), 1 << 62 | 7 << 8),
            (JobPart::unacknowledged(7, 2), (1 << 62 | 7 << 8) + 16),
            (JobPart::removal(5), 1 << 61 | 5 << 8),
            (JobPart::replayed(9), 1 << 63 | 9),
            (JobPart::push_page(5).next(), 1 << 60 | 5 << 8 | 1),
            (JobPart::replayed_push(9), 1 << 63 | 1 << 60 | 9),
            (JobPart::of_step(0, 0, false).at_service(3), 4 << 52),
            (JobPart::removal(5).at_service(0), 1 << 61 | 1 << 52 | 5 << 8),
            (JobPart::of_step(0, 1, false).next_later().deferred().unwrap(), (2 << 40) + (1 << 14) + (1 << 13)),
            (JobPart::unacknowledged(7, 2).deferred().unwrap(), (1 << 62 | 7 << 8) + 20),
        ];
        for (part, number) in numbers {
            assert_eq!(part.number(), number, "{part:?}");
        }
        assert_eq!(JobPart::unacknowledged(7, 2).unacknowledged_user(), Some(7));
        let of_push = numbers.iter().filter(|(part, _)| part.is_push()).count();
        assert_eq!((of_push, JobPart::push_page(u32::MAX).at_service(7).is_push()), (2, true));
        assert_eq!(JobPart::replayed(9).deferred(), None);
        assert_eq!(JobPart::of_step(0, 1, false).unacknowledged_user(), None);
    }
}

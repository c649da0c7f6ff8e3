//! When messages that a client does not acknowledge go out by offline push.

use tidings_domain::model::*;

/// Messages that a session was handed, and that its client has not said to have stored.
pub(crate) struct UnacknowledgedDelivery {
    /// Up to here the client has stored all, or offline push has been notified.
    pub since: Cursor,
    /// Where the session went to the background: what came to it there counted as not reached.
    pub until: Option<[Position; LANES]>,
    /// The tick at which the messages go out by offline push.
    pub due: u32,
    /// The ticks that the client has.
    pub timeout: u32,
    /// When the first of them was handed out, in milliseconds since 1970 UTC.
    pub at: u64,
    /// Messages that were handed out later and have time for longer, the oldest first.
    pub later: Vec<LaterDelivery>,
}

/// Messages from a place on that have time for longer than those before.
pub(crate) struct LaterDelivery {
    /// Where the session was when it was handed the first of them.
    pub from: [Position; LANES],
    /// The tick at which the first of them is due.
    pub first_due: u32,
    /// The tick at which the last of them is due, and so all of them.
    pub due: u32,
    pub at: u64,
}

/// A message that a session is handed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandedMessage {
    /// How long the client has to acknowledge it, in ticks.
    pub timeout: u32,
    /// The tick at which that time is over.
    pub due: u32,
    /// When it is handed out, in milliseconds since 1970 UTC.
    pub at: u64,
}

/// Messages that are handed out within this part of the time to acknowledge are due together.
const SHARE_DUE_TOGETHER: u32 = 8;

impl UnacknowledgedDelivery {
    /// The session is handed a further message, due at this tick, which begins at these positions; answers whether all is due
    /// earlier now.
    pub(crate) fn hand(&mut self, from: [Position; LANES], handed: HandedMessage) -> bool {
        let HandedMessage { timeout, due, at } = handed;
        // A message with less time is not held up by one with more.
        if due < self.due {
            (self.due, self.timeout) = (due, timeout);
            self.later.clear();
            return true;
        }
        match self.later.last_mut() {
            Some(last) if due <= last.first_due + timeout / SHARE_DUE_TOGETHER => last.due = last.due.max(due),
            Some(last) if due <= last.due => {}
            None if due == self.due => {}
            _ => self.later.push(LaterDelivery { from, first_due: due, due, at }),
        }
        false
    }

    /// The client has stored something: what it was handed so far has as much time again.
    pub(crate) fn extend(&mut self, tick: u32) {
        self.due = tick + self.timeout;
        self.later.clear();
    }

    /// What is not due with the first messages, and where that begins; `None`: all is due with them.
    pub(crate) fn rest(mut self: Box<Self>) -> Option<([Position; LANES], Box<Self>)> {
        if self.later.is_empty() {
            return None;
        }
        let LaterDelivery { from, due, at, .. } = self.later.remove(0);
        self.since.positions = from;
        (self.due, self.at) = (due, at);
        Some((from, self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(due: u32, timeout: u32) -> Box<UnacknowledgedDelivery> {
        let since = Cursor { epoch: 1, positions: [0; LANES] };
        Box::new(UnacknowledgedDelivery { since, until: None, due, timeout, at: 0, later: Vec::new() })
    }

    /// When the messages from these positions on are due, by what is left each time.
    fn dues(mut delivery: Box<UnacknowledgedDelivery>) -> Vec<(Position, u32)> {
        let mut dues = vec![(delivery.since.positions[0], delivery.due)];
        while let Some((from, rest)) = delivery.rest() {
            assert_eq!(rest.since.positions, from);
            dues.push((from[0], rest.due));
            delivery = rest;
        }
        dues
    }

    fn handed(timeout: u32, due: u32) -> HandedMessage {
        HandedMessage { timeout, due, at: 0 }
    }

    #[test]
    fn each_message_has_its_time() {
        let mut first = delivery(80, 80);
        // Handed out at the ticks 0, 1, 5, 11, 12, 60 and 79, by clients with 80 ticks to acknowledge.
        for (position, tick) in [(1, 0), (2, 1), (3, 5), (4, 11), (5, 12), (6, 60), (7, 79)] {
            assert!(!first.hand([position; LANES], handed(80, tick + 80)));
        }
        assert_eq!(dues(first), [(0, 80), (2, 91), (5, 92), (6, 140), (7, 159)]);
    }

    #[test]
    fn many_messages_take_little_memory() {
        let mut delivery = delivery(80, 80);
        for tick in 1..80 {
            delivery.hand([u64::from(tick); LANES], handed(80, tick + 80));
        }
        assert!(delivery.later.len() <= SHARE_DUE_TOGETHER as usize, "{}", delivery.later.len());
    }

    #[test]
    fn a_message_with_less_time_is_not_held_up() {
        let mut delivery = delivery(80, 80);
        delivery.hand([1; LANES], handed(80, 100));
        assert!(delivery.hand([2; LANES], handed(10, 40)));
        assert_eq!(dues(delivery), [(0, 40)]);
    }

    #[test]
    fn a_client_that_stores_something_has_as_much_time_again() {
        let mut delivery = delivery(80, 80);
        delivery.hand([1; LANES], handed(80, 100));
        delivery.extend(60);
        delivery.hand([2; LANES], handed(80, 141));
        assert_eq!(dues(delivery), [(0, 140), (2, 141)]);
    }
}

//! Which numbers a receiver has got of a row that must come without a hole: the `seq` of a conversation, or one sender's messages.

use std::collections::BTreeSet;

#[derive(Debug, Clone)]
pub(crate) struct ReceivedNumbers {
    /// One more than the highest number that has come, or that the server has named.
    next: u64,
    /// Numbers below `next` that have not come.
    missing: BTreeSet<u64>,
}

/// How a number has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    InOrder,
    /// After this higher one.
    Behind(u64),
    Again,
}

impl ReceivedNumbers {
    pub(crate) fn from(first: u64) -> Self {
        ReceivedNumbers { next: first, missing: BTreeSet::new() }
    }

    pub(crate) fn receive(&mut self, number: u64) -> Arrival {
        if number >= self.next {
            self.expect_below(number);
            self.next = number + 1;
            Arrival::InOrder
        } else if self.missing.remove(&number) {
            Arrival::Behind(self.next - 1)
        } else {
            Arrival::Again
        }
    }

    /// The next numbers have come, so many of them.
    pub(crate) fn receive_next(&mut self, count: u64) {
        self.next += count;
    }

    /// All numbers below this one are there: those that have not come are missing until they do.
    pub(crate) fn expect_below(&mut self, end: u64) {
        if end > self.next {
            self.missing.extend(self.next..end);
            self.next = end;
        }
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The lowest number that has not come.
    pub(crate) fn first_missing(&self) -> u64 {
        self.missing.first().copied().unwrap_or(self.next)
    }

    /// The numbers below `end` that have not come, from the lowest on.
    pub(crate) fn missing_below(&self, end: u64) -> impl Iterator<Item = u64> {
        self.missing.range(..end).copied().chain(self.next..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_in_order_behind_or_there_again() {
        let mut received = ReceivedNumbers::from(5);
        let came = [5, 7, 6, 6, 9].map(|number| received.receive(number));
        let (in_order, again) = (Arrival::InOrder, Arrival::Again);
        assert_eq!(came, [in_order, in_order, Arrival::Behind(7), again, in_order]);
        assert_eq!((received.first_missing(), received.missing_below(12).collect()), (8, vec![8, 10, 11]));
        received.expect_below(12);
        assert_eq!((received.receive(10), received.receive(12)), (Arrival::Behind(11), Arrival::InOrder));
        assert_eq!(received.missing_below(11).collect::<Vec<_>>(), [8]);
    }
}

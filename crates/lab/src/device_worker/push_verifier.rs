//! Verifies and counts the pushes that devices get: first copies, and duplicates by kind.

use crate::{
    devices::{
        device_counts::{PUSHES_MAX, PushCount},
        push_body,
    },
    latency::{HistogramCounts, Latencies},
};

/// The pushes that a device has received, with one bit per push of the run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReceivedPushes {
    on_any_connection: u128,
    /// On the connection that is open now, by which duplicates are told apart.
    on_this_connection: u128,
}

impl ReceivedPushes {
    pub(crate) fn new_connection(&mut self) {
        self.on_this_connection = 0;
    }
}

#[derive(Debug, Default)]
pub(crate) struct PushVerifier {
    tag: String,
    /// By push number: the id and the time of the first copy.
    first_copies: Vec<Option<(u64, u64)>>,
    counts: Vec<PushCount>,
    latency: Latencies,
    pub(crate) altered: u64,
}

impl PushVerifier {
    pub(crate) fn new(tag: &str) -> Self {
        PushVerifier { tag: tag.to_owned(), ..PushVerifier::default() }
    }

    /// Verifies a push that a device got. The device acknowledges it in any case.
    pub(crate) fn receive(
        &mut self,
        received: &mut ReceivedPushes,
        id: u64,
        body: &[u8],
        now_ns: u64,
    ) -> Result<(), String> {
        let Some((number, at_us)) = push_body::parse(&self.tag, body).filter(|(number, _)| *number < PUSHES_MAX) else {
            self.altered += 1;
            return Err(format!("push {id} with another body: {}", String::from_utf8_lossy(body)));
        };
        if self.counts.len() <= number {
            self.counts.resize(number + 1, PushCount::default());
            self.first_copies.resize(number + 1, None);
        }
        let (known_id, known_at) = *self.first_copies[number].get_or_insert((id, at_us));
        if known_at != at_us {
            self.altered += 1;
            return Err(format!("push {id} with a time that other devices did not get"));
        }
        let count = &mut self.counts[number];
        let bit = 1 << number;
        let result = if received.on_any_connection & bit == 0 {
            count.devices += 1;
            count.last_at_ns = now_ns;
            self.latency.record(at_us * 1000, now_ns);
            Ok(())
        } else if id != known_id {
            count.doubled += 1;
            Err(format!("push {number} came twice, as {known_id} and as {id}"))
        } else if received.on_this_connection & bit != 0 {
            count.repeated += 1;
            Ok(())
        } else {
            count.again += 1;
            Ok(())
        };
        received.on_any_connection |= bit;
        received.on_this_connection |= bit;
        result
    }

    pub(crate) fn devices_with(&self, number: usize) -> u64 {
        self.counts.get(number).map_or(0, |count| count.devices)
    }

    pub(crate) fn counts(&self) -> (Vec<PushCount>, HistogramCounts) {
        (self.counts.clone(), self.latency.counts())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn duplicates_are_counted_by_kind() {
        let mut verifier = PushVerifier::new("t");
        let mut received = ReceivedPushes::default();
        let body = push_body::format("t", 3, 10);
        verifier.receive(&mut received, 100, body.as_bytes(), 20_000).unwrap();
        verifier.receive(&mut received, 100, body.as_bytes(), 1).unwrap();
        received.new_connection();
        verifier.receive(&mut received, 100, body.as_bytes(), 1).unwrap();
        received.new_connection();
        assert!(verifier.receive(&mut received, 101, body.as_bytes(), 1).is_err(), "under another id");
        assert!(verifier.receive(&mut received, 102, b"{}", 1).is_err());
        let count = verifier.counts().0[3];
        assert_eq!((count.devices, count.again, count.repeated), (1, 1, 1));
        assert_eq!((count.doubled, verifier.altered), (1, 1));
        assert_eq!(count.last_at_ns, 20_000);
    }
}

//! Which pushes each device has: exactly once, again, or not at all.

use crate::devices::{
    push_body,
    tally::{PUSHES_MAX, PushCount, Spread},
};
use hdrhistogram::Histogram;

/// A bit per push of the run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    ever: u128,
    /// On the connection that is open now.
    here: u128,
}

impl Seen {
    pub(crate) fn new_connection(&mut self) {
        self.here = 0;
    }
}

#[derive(Debug)]
pub(crate) struct PushBook {
    tag: String,
    /// Per number: the id and the time with which it came first.
    known: Vec<Option<(u64, u64)>>,
    counts: Vec<PushCount>,
    latency: Histogram<u64>,
    pub(crate) altered: u64,
}

impl PushBook {
    pub(crate) fn new(tag: &str) -> Self {
        PushBook {
            tag: tag.to_owned(),
            known: Vec::new(),
            counts: Vec::new(),
            latency: crate::worker::histogram(),
            altered: 0,
        }
    }

    /// A device got this push. Whatever it is, the device acknowledges it.
    pub(crate) fn take(&mut self, seen: &mut Seen, id: u64, body: &[u8], now_ns: u64) -> Result<(), String> {
        let Some((number, at_us)) = push_body::read(&self.tag, body).filter(|(number, _)| *number < PUSHES_MAX) else {
            self.altered += 1;
            return Err(format!("push {id} with another body: {}", String::from_utf8_lossy(body)));
        };
        if self.counts.len() <= number {
            self.counts.resize(number + 1, PushCount::default());
            self.known.resize(number + 1, None);
        }
        let (known_id, known_at) = *self.known[number].get_or_insert((id, at_us));
        if known_at != at_us {
            self.altered += 1;
            return Err(format!("push {id} with a time that other devices did not get"));
        }
        let count = &mut self.counts[number];
        let bit = 1 << number;
        let result = if seen.ever & bit == 0 {
            count.devices += 1;
            count.last_at_ns = now_ns;
            self.latency.saturating_record((now_ns / 1000).saturating_sub(at_us));
            Ok(())
        } else if id != known_id {
            count.doubled += 1;
            Err(format!("push {number} came twice, as {known_id} and as {id}"))
        } else if seen.here & bit != 0 {
            count.repeated += 1;
            Ok(())
        } else {
            count.again += 1;
            Ok(())
        };
        seen.ever |= bit;
        seen.here |= bit;
        result
    }

    pub(crate) fn devices_with(&self, number: usize) -> u64 {
        self.counts.get(number).map_or(0, |count| count.devices)
    }

    pub(crate) fn counts(&self) -> (Vec<PushCount>, Spread) {
        (self.counts.clone(), Spread::of(&self.latency))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn copies_are_told_apart() {
        let mut book = PushBook::new("t");
        let mut seen = Seen::default();
        let body = push_body::write("t", 3, 10);
        book.take(&mut seen, 100, body.as_bytes(), 20_000).unwrap();
        book.take(&mut seen, 100, body.as_bytes(), 1).unwrap();
        seen.new_connection();
        book.take(&mut seen, 100, body.as_bytes(), 1).unwrap();
        seen.new_connection();
        assert!(book.take(&mut seen, 101, body.as_bytes(), 1).is_err(), "under another id");
        assert!(book.take(&mut seen, 102, b"{}", 1).is_err());
        let count = book.counts().0[3];
        assert_eq!((count.devices, count.again, count.repeated), (1, 1, 1));
        assert_eq!((count.doubled, book.altered), (1, 1));
        assert_eq!(count.last_at_ns, 20_000);
    }
}

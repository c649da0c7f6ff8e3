//! A rate that changes over time, and the planned time of every message that follows from it.
//!
//! A profile is made of chunks, in each of which the rate goes evenly from one value to another: a constant rate is one chunk,
//! a ramp is one, steps and bursts are several. Message `n` is due when the area under the rate reaches `n`, so planned times
//! depend on nothing but the profile, and no error adds up.

use serde::{Deserialize, Serialize};

/// A stretch of time in which the rate goes evenly from one value to another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct RateChunk {
    /// Messages a second.
    from: f64,
    to: f64,
    seconds: f64,
}

impl RateChunk {
    fn messages(&self) -> f64 {
        (self.from + self.to) / 2.0 * self.seconds
    }

    /// When so many messages of this chunk have been due: solves `from·t + (to − from)·t² / (2·seconds) = messages`.
    fn time_of(&self, messages: f64) -> f64 {
        if messages <= 0.0 {
            return 0.0;
        }
        let slope = (self.to - self.from) / self.seconds;
        // In this form of the solution nothing is subtracted, so that a small slope costs no digits.
        2.0 * messages / (self.from + (self.from * self.from + 2.0 * slope * messages).max(0.0).sqrt())
    }
}

/// A rate over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RateProfile {
    chunks: Vec<RateChunk>,
}

/// Messages within so little of a chunk's end belong to the next one, or to none: seconds times a rate is seldom exact.
const ROUNDING: f64 = 1e-6;

/// How often bursts come and how long each lasts, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BurstTimes {
    pub(crate) every: f64,
    pub(crate) lasts: f64,
}

impl RateProfile {
    pub(crate) fn constant(per_second: f64, seconds: f64) -> Self {
        RateProfile::ramp(per_second, per_second, seconds)
    }

    pub(crate) fn ramp(from: f64, to: f64, seconds: f64) -> Self {
        RateProfile { chunks: vec![RateChunk { from, to, seconds }] }
    }

    /// Each rate for the same time.
    pub(crate) fn steps(rates: &[f64], seconds: f64) -> Self {
        let each = seconds / rates.len().max(1) as f64;
        RateProfile { chunks: rates.iter().map(|rate| RateChunk { from: *rate, to: *rate, seconds: each }).collect() }
    }

    /// A base rate, at the end of every period of `every` seconds `peak` for `lasts` of them.
    pub(crate) fn bursts(base: f64, peak: f64, burst: BurstTimes, seconds: f64) -> Self {
        let BurstTimes { every, lasts } = burst;
        let mut chunks = Vec::new();
        let mut left = seconds;
        while left > 0.0 {
            for (rate, wanted) in [(base, every - lasts), (peak, lasts)] {
                let seconds = wanted.min(left);
                if seconds > 0.0 {
                    chunks.push(RateChunk { from: rate, to: rate, seconds });
                }
                left -= wanted;
            }
        }
        RateProfile { chunks }
    }

    /// The same with every rate multiplied.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        let scale = |chunk: &RateChunk| RateChunk { from: chunk.from * factor, to: chunk.to * factor, ..*chunk };
        RateProfile { chunks: self.chunks.iter().map(scale).collect() }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.chunks.iter().map(|chunk| chunk.seconds).sum()
    }

    pub(crate) fn highest(&self) -> f64 {
        self.chunks.iter().fold(0.0, |highest, chunk| chunk.from.max(chunk.to).max(highest))
    }

    /// The rate with which it begins.
    pub(crate) fn first(&self) -> f64 {
        self.chunks.first().map_or(0.0, |chunk| chunk.from)
    }

    pub(crate) fn is_constant(&self) -> bool {
        let first = self.first();
        self.chunks.iter().all(|chunk| chunk.from == first && chunk.to == first)
    }

    /// How many messages are due in all.
    pub(crate) fn messages(&self) -> u64 {
        (self.chunks.iter().map(RateChunk::messages).sum::<f64>() + ROUNDING) as u64
    }

    /// The moments at which the rate jumps, in seconds, with the new rate.
    pub(crate) fn jumps(&self) -> Vec<(f64, f64)> {
        let mut at = 0.0;
        let mut jumps = Vec::new();
        for (chunk, next) in self.chunks.iter().zip(self.chunks.iter().skip(1)) {
            at += chunk.seconds;
            if chunk.to != next.from {
                jumps.push((at, next.from));
            }
        }
        jumps
    }
}

/// The planned times of a profile's messages.
#[derive(Debug)]
pub(crate) struct PlannedTimes {
    chunks: Vec<PlannedChunk>,
    messages: u64,
}

#[derive(Debug)]
struct PlannedChunk {
    chunk: RateChunk,
    starts_at: f64,
    messages_before: f64,
}

impl PlannedTimes {
    pub(crate) fn of(profile: &RateProfile) -> Self {
        let (mut starts_at, mut messages_before) = (0.0, 0.0);
        let mut chunks = Vec::new();
        for chunk in &profile.chunks {
            // A chunk without messages plans none, and would stand in the way of the search.
            if chunk.messages() > 0.0 {
                chunks.push(PlannedChunk { chunk: *chunk, starts_at, messages_before });
            }
            starts_at += chunk.seconds;
            messages_before += chunk.messages();
        }
        PlannedTimes { chunks, messages: profile.messages() }
    }

    /// How many there are.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    /// When message `n` is due, in nanoseconds after the start; `None`: there is no such message.
    pub(crate) fn due(&self, n: u64) -> Option<u64> {
        if n >= self.messages {
            return None;
        }
        let later = self.chunks.partition_point(|planned| planned.messages_before <= n as f64 + ROUNDING);
        let planned = self.chunks.get(later.checked_sub(1)?)?;
        let at = planned.starts_at + planned.chunk.time_of(n as f64 - planned.messages_before);
        Some((at * 1e9).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn all(profile: &RateProfile) -> Vec<u64> {
        let times = PlannedTimes::of(profile);
        (0..).map_while(|n| times.due(n)).collect()
    }

    #[test]
    fn a_constant_rate_is_evenly_spaced_and_does_not_drift() {
        let times = PlannedTimes::of(&RateProfile::constant(3.0, 1_000_000.0));
        assert_eq!((times.due(0), times.due(1)), (Some(0), Some(333_333_333)));
        assert_eq!(times.due(2_999_997), Some(999_999 * S), "no error adds up");
        assert_eq!(times.due(3_000_000), None);
    }

    #[test]
    fn a_ramp_is_due_by_the_area_under_it() {
        // From 0 to 200 a second in 10 s: 10·t² messages until t, so message 10·t² is due at t.
        let times = PlannedTimes::of(&RateProfile::ramp(0.0, 200.0, 10.0));
        for second in 0..10u64 {
            assert_eq!(times.due(10 * second * second), Some(second * S), "second {second}");
        }
        assert_eq!(times.due(1_000), None);
        // Downwards: 200·t − 10·t² messages until t.
        let times = PlannedTimes::of(&RateProfile::ramp(200.0, 0.0, 10.0));
        for second in 0..10u64 {
            assert_eq!(times.due(200 * second - 10 * second * second), Some(second * S), "second {second}");
        }
    }

    #[test]
    fn steps_are_even_within_and_jump_between() {
        let profile = RateProfile::steps(&[2.0, 4.0], 4.0);
        let expected = [0, 500, 1_000, 1_500, 2_000, 2_250, 2_500, 2_750, 3_000, 3_250, 3_500, 3_750];
        assert_eq!(all(&profile), expected.map(|ms| ms * 1_000_000));
        assert_eq!(profile.jumps(), [(2.0, 4.0)]);
    }

    #[test]
    fn bursts_come_at_the_end_of_every_period_and_a_base_of_zero_is_silence() {
        let profile = RateProfile::bursts(0.0, 4.0, BurstTimes { every: 2.0, lasts: 0.5 }, 5.0);
        let expected = [1_500, 1_750, 3_500, 3_750];
        assert_eq!(all(&profile), expected.map(|ms| ms * 1_000_000));
        assert_eq!(profile.seconds(), 5.0);
        assert_eq!(profile.jumps(), [(1.5, 4.0), (2.0, 0.0), (3.5, 4.0), (4.0, 0.0)]);
    }

    #[test]
    fn planned_times_never_go_back_and_are_as_many_as_the_area() {
        let mut chunks = RateProfile::ramp(10.0, 333.3, 7.7).chunks;
        chunks.extend(RateProfile::bursts(35.0, 211.0, BurstTimes { every: 1.3, lasts: 0.2 }, 9.1).chunks);
        chunks.extend(RateProfile::ramp(211.0, 1.0, 3.3).chunks);
        let profile = RateProfile { chunks };
        let times = all(&profile);
        assert_eq!(times.len() as u64, profile.messages());
        assert!(times.is_sorted(), "a message is due before the one before it");
        assert!(times.last().is_some_and(|last| *last as f64 <= profile.seconds() * 1e9));
        let half = all(&profile.scaled(0.5));
        assert!(half.len().abs_diff(times.len() / 2) <= 1);
    }
}

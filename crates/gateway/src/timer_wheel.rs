//! A timer wheel, one per shard: a time-out costs an entry in a slot, not a timer.
//!
//! When an entry comes up, the owner checks whether the time-out has really passed (bytes may have been received since)
//! and puts the entry back if not; so receiving bytes costs nothing here. The owner remembers the tick of the entry that
//! it put last: an entry of any other tick is stale, and the owner ignores it.

use std::time::Duration;

/// The tick of the timer wheel: the precision of time-outs.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Ticks per round of the wheel.
const SLOTS: usize = 4_096;

pub(crate) struct TimerWheel {
    /// Keys of slabs, of which no shard holds four billion.
    slots: Vec<Vec<u32>>,
    /// The next tick whose entries come up.
    now: u32,
}

impl TimerWheel {
    pub(crate) fn new() -> Self {
        TimerWheel { slots: vec![Vec::new(); SLOTS], now: 0 }
    }

    /// Has `key` come up at `tick`, or earlier if `tick` is more than a round away: the owner puts it back then. Answers
    /// the tick at which it will come up.
    pub(crate) fn put(&mut self, key: usize, tick: u32) -> u32 {
        let tick = tick.clamp(self.now, self.now + SLOTS as u32 - 1);
        self.slots[tick as usize % SLOTS].push(key as u32);
        tick
    }

    /// The keys that come up until `tick`, inclusive, each with the tick that it was put for.
    pub(crate) fn advance(&mut self, tick: u32) -> Vec<(u32, usize)> {
        let mut due = Vec::new();
        while self.now <= tick {
            let now = self.now;
            // The slot keeps no memory: the busiest tick would count once for each slot of the round.
            due.extend(
                std::mem::take(&mut self.slots[now as usize % SLOTS]).into_iter().map(|key| (now, key as usize)),
            );
            self.now += 1;
        }
        due
    }
}

pub(crate) fn ticks(duration: Duration) -> u32 {
    (duration.as_millis() / TICK.as_millis()).max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_up_once_at_its_tick() {
        let mut wheel = TimerWheel::new();
        wheel.put(1, 3);
        wheel.put(2, 5);
        assert_eq!(wheel.advance(2), []);
        assert_eq!(wheel.advance(4), [(3, 1)]);
        assert_eq!(wheel.advance(10), [(5, 2)]);
        assert_eq!(wheel.advance(1_000), []);
    }

    #[test]
    fn an_entry_more_than_a_round_away_comes_up_early() {
        let mut wheel = TimerWheel::new();
        let early = wheel.put(1, 10_000);
        assert_eq!(wheel.advance(SLOTS as u32), [(early, 1)]);
    }
}

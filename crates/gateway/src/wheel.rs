//! One timer wheel per shard: a time-out costs a slot entry, not a timer.
//!
//! When a connection's slot comes up the owner looks whether the time is really over (something may
//! have been heard since) and puts it back if not; hearing something therefore costs nothing here.
//! The owner keeps the tick it put last: an entry of any other tick is stale and is let go.

/// Turns of the wheel's hand per round.
const SLOTS: usize = 4_096;

pub(crate) struct Wheel {
    slots: Vec<Vec<usize>>,
    /// The tick that is handed out next.
    now: u32,
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Wheel { slots: vec![Vec::new(); SLOTS], now: 0 }
    }

    /// Has `key` come up at `tick`, or earlier if that is more than a round away: the owner puts it
    /// back then. Answers the tick at which it will come up.
    pub(crate) fn put(&mut self, key: usize, tick: u32) -> u32 {
        let tick = tick.clamp(self.now, self.now + SLOTS as u32 - 1);
        self.slots[tick as usize % SLOTS].push(key);
        tick
    }

    /// Everything that comes up until `tick`, inclusive, with the tick it was put for.
    pub(crate) fn advance(&mut self, tick: u32) -> Vec<(u32, usize)> {
        let mut due = Vec::new();
        while self.now <= tick {
            let now = self.now;
            due.extend(self.slots[now as usize % SLOTS].drain(..).map(|key| (now, key)));
            self.now += 1;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_comes_up_once_at_its_tick() {
        let mut wheel = Wheel::new();
        wheel.put(1, 3);
        wheel.put(2, 5);
        assert_eq!(wheel.advance(2), []);
        assert_eq!(wheel.advance(4), [(3, 1)]);
        assert_eq!(wheel.advance(10), [(5, 2)]);
        assert_eq!(wheel.advance(1_000), []);
    }

    #[test]
    fn beyond_a_round_it_comes_up_early_instead_of_never() {
        let mut wheel = Wheel::new();
        let early = wheel.put(1, 10_000);
        assert_eq!(wheel.advance(SLOTS as u32), [(early, 1)]);
    }
}

//! One timer wheel for all clients of a thread, with four bytes per timer.
//!
//! Each client keeps the tick at which its timer expires. An entry at another tick is stale and ignored, so that no entry is
//! ever searched for or removed.

/// Milliseconds per tick: heartbeats and retries need no finer time.
pub(crate) const TICK_MS: u64 = 20;
/// Ticks per round, which takes nearly three minutes.
const SLOTS: usize = 8192;

pub(crate) struct TimerWheel {
    slots: Vec<Vec<u32>>,
    /// The tick that expires next.
    next: u32,
}

impl TimerWheel {
    pub(crate) fn new() -> Self {
        TimerWheel { slots: vec![Vec::new(); SLOTS], next: 1 }
    }

    /// Sets a timer in so many milliseconds, at most one round; returns the tick at which it expires, which is never 0.
    pub(crate) fn schedule(&mut self, client: u32, now_ms: u64, in_ms: u64) -> u32 {
        let earliest = u64::from(self.next);
        let tick = (now_ms / TICK_MS + 1).max(earliest) + in_ms / TICK_MS + 1;
        let tick = tick.min(earliest + SLOTS as u64 - 1) as u32;
        self.slots[tick as usize % SLOTS].push(client);
        tick
    }

    /// Passes over the time in which there was no timer: a wheel that was not advanced meanwhile has no room for what is due later.
    pub(crate) fn skip_to(&mut self, now_ms: u64) {
        self.next = self.next.max((now_ms / TICK_MS) as u32);
    }

    /// Moves the clients whose timers expire at the next tick to `due`, if that tick has come; returns the tick.
    pub(crate) fn advance(&mut self, now_ms: u64, due: &mut Vec<u32>) -> Option<u32> {
        let tick = self.next;
        if u64::from(tick) * TICK_MS > now_ms {
            return None;
        }
        due.append(&mut self.slots[tick as usize % SLOTS]);
        // After many retries at once a slot is far larger than heartbeats will need.
        self.slots[tick as usize % SLOTS].shrink_to(64);
        self.next += 1;
        Some(tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_that_stood_still_has_room_for_a_whole_round() {
        let mut wheel = TimerWheel::new();
        let now_ms = 10 * SLOTS as u64 * TICK_MS;
        wheel.skip_to(now_ms);
        assert!(u64::from(wheel.schedule(1, now_ms, 100_000)) * TICK_MS >= now_ms + 100_000);
    }

    #[test]
    fn a_timer_expires_once_at_its_tick() {
        let mut wheel = TimerWheel::new();
        let tick = wheel.schedule(7, 0, 100);
        // Set by a client that was not driven for a while: it must not expire at once.
        let late = wheel.schedule(8, 500, 100);
        let mut due = Vec::new();
        let mut expired = Vec::new();
        while let Some(at) = wheel.advance(1000, &mut due) {
            expired.extend(due.drain(..).map(|client| (at, client)));
        }
        assert_eq!(expired, [(tick, 7), (late, 8)]);
        assert!(u64::from(tick) * TICK_MS >= 100 && u64::from(late) * TICK_MS >= 600);
    }
}

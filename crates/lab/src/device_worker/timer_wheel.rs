//! One timer wheel for all devices, with four bytes per timer.
//!
//! A device keeps the tick at which its timer expires. An entry at another tick is stale and ignored, so that no entry is
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
        TimerWheel { slots: vec![Vec::new(); SLOTS], next: 0 }
    }

    /// Sets a timer of `device` in so many milliseconds, at most one round; returns the tick at which it expires.
    pub(crate) fn schedule(&mut self, device: u32, in_ms: u64) -> u32 {
        let ticks = (in_ms / TICK_MS + 1).min(SLOTS as u64 - 1) as u32;
        let tick = self.next + ticks;
        self.slots[tick as usize % SLOTS].push(device);
        tick
    }

    /// Moves the devices whose timers expire at the next tick to `due`, if that tick has come; returns the tick.
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
    fn a_timer_expires_once_at_its_tick() {
        let mut wheel = TimerWheel::new();
        let tick = wheel.schedule(7, 100);
        let mut due = Vec::new();
        let mut expired = Vec::new();
        while let Some(at) = wheel.advance(1000, &mut due) {
            expired.extend(due.drain(..).map(|device| (at, device)));
        }
        assert_eq!(expired, [(tick, 7)]);
        assert!(u64::from(tick) * TICK_MS >= 100);
    }
}

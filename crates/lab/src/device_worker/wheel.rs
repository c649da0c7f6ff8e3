//! One timer wheel for all devices: what is due costs four bytes in a slot.
//!
//! A device keeps the tick that it waits for. An entry of another tick is stale and its owner lets it go, so that
//! nothing is ever searched for or taken out.

/// Milliseconds of a tick: heartbeats and retries need no finer time.
pub(crate) const TICK_MS: u64 = 20;
/// Ticks of one round, nearly three minutes.
const SLOTS: usize = 8192;

pub(crate) struct Wheel {
    slots: Vec<Vec<u32>>,
    /// The tick that is handed out next.
    next: u32,
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Wheel { slots: vec![Vec::new(); SLOTS], next: 0 }
    }

    /// Has `device` come up in so many milliseconds, or after one round if that is sooner; answers at which tick.
    pub(crate) fn put(&mut self, device: u32, in_ms: u64) -> u32 {
        let ticks = (in_ms / TICK_MS + 1).min(SLOTS as u64 - 1) as u32;
        let tick = self.next + ticks;
        self.slots[tick as usize % SLOTS].push(device);
        tick
    }

    /// Moves what comes up at the next tick to `due` if its time has come; answers that tick.
    pub(crate) fn advance(&mut self, now_ms: u64, due: &mut Vec<u32>) -> Option<u32> {
        let tick = self.next;
        if u64::from(tick) * TICK_MS > now_ms {
            return None;
        }
        due.append(&mut self.slots[tick as usize % SLOTS]);
        // A wave of retries leaves a slot that is far larger than what heartbeats will need of it.
        self.slots[tick as usize % SLOTS].shrink_to(64);
        self.next += 1;
        Some(tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_comes_up_once_at_its_tick() {
        let mut wheel = Wheel::new();
        let tick = wheel.put(7, 100);
        let mut due = Vec::new();
        let mut came = Vec::new();
        while let Some(at) = wheel.advance(1000, &mut due) {
            came.extend(due.drain(..).map(|device| (at, device)));
        }
        assert_eq!(came, [(tick, 7)]);
        assert!(u64::from(tick) * TICK_MS >= 100);
    }
}

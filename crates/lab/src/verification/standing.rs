//! Where one message stands in its conversation: as its sender was answered, and as receivers got it. Both must agree.

/// The `seq` of each; 0: not yet.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Standing {
    acknowledged: u64,
    delivered: u64,
}

impl Standing {
    pub(crate) fn acknowledged(&self) -> Option<u64> {
        Some(self.acknowledged).filter(|seq| *seq != 0)
    }

    pub(crate) fn delivered(&self) -> Option<u64> {
        Some(self.delivered).filter(|seq| *seq != 0)
    }

    /// The server has answered its sender with this `seq`; whether that fits what is known. The first answer holds.
    pub(crate) fn acknowledge(&mut self, seq: u64) -> bool {
        let fits = [self.acknowledged(), self.delivered()].into_iter().flatten().all(|known| known == seq);
        self.acknowledged = self.acknowledged().unwrap_or(seq);
        fits
    }

    /// It stands at this `seq` of its conversation; whether that fits the answer, if there is one.
    pub(crate) fn deliver(&mut self, seq: u64) -> bool {
        self.delivered = seq;
        self.acknowledged().is_none_or(|known| known == seq)
    }
}

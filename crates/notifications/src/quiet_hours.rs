//! Quiet hours defer: what would disturb a person during do-not-disturb or a snooze is told when they end. Of each conversation and channel the
//! newest message is told then of which the person may still be notified; as if it had been sent at that moment, so that channels wait and expire
//! as ever. The stage takes the rows that wait.

use tidings_domain::{
    gates::{Gate, OpenGates},
    model::ConversationKind,
};

/// A message waits for the end of quiet hours up to so long after it was sent; a longer snooze holds it back.
const DEFERRED_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1_000;

/// Of which conversations messages wait for the end of quiet hours; those of the others are held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QuietHours {
    DeferNone,
    #[default]
    DeferDirect,
    DeferAll,
}

impl QuietHours {
    fn defer(self, kind: ConversationKind) -> bool {
        match self {
            QuietHours::DeferNone => false,
            QuietHours::DeferDirect => kind == ConversationKind::Direct,
            QuietHours::DeferAll => true,
        }
    }

    /// Whether the notification of a push waits for the end of quiet hours: it is of one person, as a direct message is.
    pub(crate) fn defers_pushes(self) -> bool {
        self.defer(ConversationKind::Direct)
    }

    /// Quiet hours that end by then defer a message that is sent at this time, in milliseconds since 1970 UTC; 0: they hold it back.
    pub(crate) fn defer_until(self, gates: &OpenGates, kind: ConversationKind, sent_at: u64) -> u64 {
        let defers = self.defer(kind) && gates.is_open(Gate::QuietHoursDefer);
        if defers { sent_at.saturating_add(DEFERRED_MS_MAX) } else { 0 }
    }
}

//! When each channel of a rule is due for a person: the same for the decision about a message and for its explanation.

use crate::{channel_jobs::OUTCOME_WAIT_MS, policy::ChannelStep};
use tidings_protocol::http::{NotificationOutcome, PolicyChannel};

/// Quiet hours that defer a channel: their end, and why they are quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deferral {
    pub(crate) until: u64,
    pub(crate) cause: NotificationOutcome,
}

/// The times of a rule's channels, which are asked and noted in their order.
pub(crate) struct RuleTimes {
    sent_at: u64,
    /// When the last channel that stops others is taken.
    stops_at: Option<u64>,
    /// What defers a channel. Those after it keep their distance.
    deferral: Option<Deferral>,
    /// A deferred channel stops others, so that popups wait for it, too.
    waits_for_deferred: bool,
}

impl RuleTimes {
    pub(crate) fn of(sent_at: u64) -> RuleTimes {
        RuleTimes { sent_at, stops_at: None, deferral: None, waits_for_deferred: false }
    }

    /// When the channel is due, unless it is deferred.
    pub(crate) fn due(&self, step: &ChannelStep) -> u64 {
        let due = self.sent_at.saturating_add(step.after_ms);
        self.stops_at.filter(|at| due <= *at).map_or(due, |at| at.saturating_add(OUTCOME_WAIT_MS))
    }

    /// What defers the channel since it defers one before it.
    pub(crate) fn deferral(&self, step: &ChannelStep) -> Option<Deferral> {
        self.deferral.filter(|_| step.channel != PolicyChannel::Popup || self.waits_for_deferred)
    }

    /// When a channel that would be due then is due, if one before it is deferred.
    pub(crate) fn deferred_to(&self, step: &ChannelStep, due: u64) -> Option<u64> {
        self.deferral(step).map(|deferral| deferral.until.saturating_add(due - self.sent_at))
    }

    /// The channel that would be due then was begun or not, or deferred.
    pub(crate) fn note(&mut self, due: u64, now_ms: u64, stops: bool, is_begun: bool, deferral: Option<Deferral>) {
        if deferral.is_some() {
            self.deferral = deferral;
            self.waits_for_deferred |= stops;
        }
        if is_begun && stops {
            self.stops_at = Some(if self.deferral.is_some() { due } else { due.max(now_ms) });
        }
    }
}

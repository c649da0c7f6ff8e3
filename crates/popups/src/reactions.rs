//! Reactions: what a user did with a popup, and custom events, keep the popup from being shown: a snooze, a time after an
//! event with it, a delay after the event that triggers it. All of it is read from the user's marks.

use super::{
    check::CheckedReactions,
    frequency::{CounterKey, FrequencyCounters},
    rules::MarkKind,
};

/// A popup's reactions, compiled.
#[derive(Debug)]
pub(super) struct Reactions {
    own: CounterKey,
    snooze: CounterKey,
    /// For how long after an event the popup is not shown again, in milliseconds; absent: never again.
    after: Box<[(MarkKind, CounterKey, Option<u64>)]>,
    /// The custom event that triggers the popup, and how long after it the popup is shown.
    delayed: Option<(CounterKey, u64)>,
}

/// The reaction that keeps a popup from being shown, and until when, if time alone lifts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReactionBlock {
    pub(super) cause: ReactionCause,
    pub(super) until: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReactionCause {
    Snooze,
    After(MarkKind),
    /// The event that triggers the popup has not been reported, or not since the popup was last shown.
    Trigger,
    /// It has, but not long enough ago.
    TriggerDelay,
}

impl Reactions {
    pub(super) fn new(no: u32, checked: &CheckedReactions) -> Self {
        let after = checked.after.iter().map(|(kind, ms)| (*kind, CounterKey::popup_event(no, *kind), *ms));
        Reactions {
            own: CounterKey::popup(no),
            snooze: CounterKey::snooze(no),
            after: after.collect(),
            delayed: checked.delayed.as_ref().map(|(event, delay_ms)| (CounterKey::event(event), *delay_ms)),
        }
    }

    /// Whether the popup is triggered by an event of the past, and so shown at page views.
    pub(super) fn is_delayed(&self) -> bool {
        self.delayed.is_some()
    }

    /// Whether the popup looks at events of this kind.
    pub(super) fn names_kind(&self, wanted: MarkKind) -> bool {
        self.after.iter().any(|(kind, ..)| *kind == wanted)
    }

    /// The reaction that keeps the popup at the time `at`, if one does.
    pub(super) fn block(&self, counters: &FrequencyCounters, at: u64) -> Option<ReactionBlock> {
        let block = |cause, until| Some(ReactionBlock { cause, until });
        if let Some((event, delay_ms)) = self.delayed {
            let shown_at = counters.get(self.own).map(|counter| counter.last_at);
            match counters.get(event).map(|mark| mark.last_at) {
                Some(marked_at) if shown_at.is_none_or(|shown_at| shown_at <= marked_at) => {
                    let due_at = marked_at.saturating_add(delay_ms);
                    if due_at > at {
                        return block(ReactionCause::TriggerDelay, Some(due_at));
                    }
                }
                _ => return block(ReactionCause::Trigger, None),
            }
        }
        // Most users have no marks.
        if !counters.have_marks() {
            return None;
        }
        for (kind, key, wait_ms) in &self.after {
            let Some(mark) = counters.get(*key) else { continue };
            match wait_ms.map(|wait_ms| mark.last_at.saturating_add(wait_ms)) {
                None => return block(ReactionCause::After(*kind), None),
                Some(until) if until > at => return block(ReactionCause::After(*kind), Some(until)),
                Some(_) => {}
            }
        }
        let snooze = counters.get(self.snooze).filter(|snooze| snooze.last_at > at)?;
        block(ReactionCause::Snooze, Some(snooze.last_at))
    }
}

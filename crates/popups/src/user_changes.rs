//! Changes of users' marks and of their positions in journeys, which are stored together with the events that make them.

use super::{
    UserKey,
    configuration::Configuration,
    frequency::{CounterKey, FrequencyCounter, FrequencyCounters},
    journeys::position::Moves,
};
use std::collections::BTreeMap;

/// One change of a user's marks.
#[derive(Debug, Clone, Copy)]
pub(super) enum UserChange {
    Mark {
        key: CounterKey,
        at: u64,
    },
    Snooze {
        popup: u32,
        until: u64,
    },
    /// The row of the user's assignment has been written with an event.
    AssignmentWritten {
        key: CounterKey,
    },
    /// The user enters a journey.
    Enter {
        journey: u32,
        at: u64,
    },
    /// The push is durable at which the user stood in a journey after so many moves.
    Pushed {
        journey: u32,
        moves: u32,
    },
    /// The time has come that the store has a row for.
    Look {
        at: u64,
    },
}

impl UserChange {
    /// Changes the marks. Positions in journeys are changed by [`ChangesOfUser::make`] alone.
    pub(super) fn mark(self, counters: &mut FrequencyCounters) {
        match self {
            UserChange::Mark { key, at } => counters.mark(key, at),
            UserChange::Snooze { popup, until } => counters.snooze(popup, until),
            UserChange::AssignmentWritten { key } => counters.set_assignment_written(key),
            UserChange::Enter { .. } | UserChange::Pushed { .. } | UserChange::Look { .. } => {}
        }
    }
}

/// The changes of one write, by user in the order of their rows.
#[derive(Debug, Default)]
pub(super) struct UserChanges(pub(super) BTreeMap<UserKey, ChangesOfUser>);

#[derive(Debug, Default)]
pub(super) struct ChangesOfUser {
    pub(super) id: String,
    pub(super) changes: Vec<UserChange>,
    /// The counters in memory were as the store had them before the write.
    pub(super) was_clean: bool,
    /// The positions in journeys that time alone has changed in memory, before and after.
    pub(super) advanced: Vec<(FrequencyCounter, FrequencyCounter)>,
    /// The positions in journeys after the changes; empty if none has changed.
    pub(super) positions: Vec<FrequencyCounter>,
}

impl UserChanges {
    pub(super) fn push(&mut self, user: &str, change: UserChange) {
        let of_user = self.0.entry(UserKey::of(user)).or_default();
        if of_user.id.is_empty() {
            user.clone_into(&mut of_user.id);
        }
        of_user.changes.push(change);
    }
}

impl ChangesOfUser {
    /// Makes the changes in the order in which they happened. Before each, time moves the user on in journeys; after it,
    /// the mark does.
    pub(super) fn make(
        &mut self,
        configuration: &Configuration,
        counters: &mut FrequencyCounters,
        now_ms: u64,
        moves: &mut Moves,
    ) {
        let journeys = &configuration.journeys;
        for change in &self.changes {
            let at = match change {
                UserChange::Mark { at, .. } | UserChange::Enter { at, .. } => now_ms.max(*at),
                _ => now_ms,
            };
            journeys.advance(counters, at, moves);
            change.mark(counters);
            match change {
                UserChange::Enter { journey, at } => journeys.enter(*journey, counters, *at, moves),
                UserChange::Pushed { journey, moves: moved } => {
                    journeys.pushed(*journey, *moved, counters, at, moves);
                }
                _ => {}
            }
            journeys.advance(counters, at, moves);
        }
        if !moves.is_empty() {
            self.positions = counters.journeys().copied().collect();
        }
    }

    /// When the user was to be looked at, if that time has come.
    pub(super) fn woken_at(&self) -> Option<u64> {
        self.changes.iter().find_map(|change| match change {
            UserChange::Look { at } => Some(*at),
            _ => None,
        })
    }
}

//! Where a user stands in a journey, and how time and events move the user on. All of it is a function of the journey, the
//! position, the user's marks and the time: it comes to the same whenever it is looked at.

use super::check::{CheckedJourney, CheckedMark, CheckedStep, END, StepIndex};
use crate::{
    frequency::{CounterKey, FrequencyCounter, FrequencyCounters},
    rules::{self, AttributeSlots, CompiledRule, RuleNames},
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::{collections::BTreeMap, sync::Arc};
use tidings_protocol::http::{PopupJourneyPush, PopupJourneyState};

/// When a push that is on its way is looked at again by those who ask what comes after it.
const PUSH_SOON_MS: u64 = 1_000;
/// When a user whose journey is paused is looked at again.
const PAUSED_MS: u64 = 10 * 60 * 1_000;

/// Where a user stands in a journey: one of the user's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) journey: u32,
    pub(crate) version: u16,
    pub(crate) step: StepIndex,
    /// Since when, in milliseconds since 1970 UTC.
    pub(crate) since: u64,
    /// How often the user has moved in this journey so far: of two positions the one with more moves is the later one.
    pub(crate) moves: u32,
}

impl Position {
    fn of(counter: &FrequencyCounter) -> Option<Position> {
        Some(Position {
            journey: counter.key.journey_no()?,
            version: counter.count_on_day,
            step: counter.day,
            since: counter.last_at,
            moves: counter.total,
        })
    }

    pub(crate) fn to_counter(self) -> FrequencyCounter {
        let Position { journey, version, step, since, moves } = self;
        let key = CounterKey::journey(journey);
        FrequencyCounter { key, last_at: since, total: moves, day: step, count_on_day: version }
    }

    pub(crate) fn is_at_end(self) -> bool {
        self.step == END
    }

    fn moved(self, to: StepIndex, at: u64) -> Position {
        Position { step: to, since: at, moves: self.moves.saturating_add(1), ..self }
    }
}

/// A user's positions in all journeys.
pub(crate) fn positions(counters: &FrequencyCounters) -> impl Iterator<Item = Position> {
    counters.journeys().filter_map(Position::of)
}

/// A user's going from one step to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) journey: u32,
    pub(crate) version: u16,
    /// Absent: the user enters.
    pub(crate) from: Option<StepIndex>,
    pub(crate) to: StepIndex,
}

pub(crate) type Moves = SmallVec<[Move; 4]>;

/// A journey, ready to be gone through.
#[derive(Debug)]
pub(crate) struct Journey {
    pub(crate) no: u32,
    pub(crate) id: Arc<str>,
    pub(crate) state: PopupJourneyState,
    /// The newest version, by which users enter.
    pub(crate) version: u16,
    entry: CounterKey,
    pub(crate) condition: Option<(CompiledRule, AttributeSlots)>,
    pub(crate) again: bool,
    /// The kept versions.
    versions: BTreeMap<u16, Arc<Vec<Step>>>,
}

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) id: String,
    pub(crate) action: StepAction,
}

#[derive(Debug)]
pub(crate) enum StepAction {
    Popup { popup: u32, placement: Option<CounterKey>, within: Option<(u64, StepIndex)>, next: StepIndex },
    Wait { ms: u64, next: StepIndex },
    Branch { arms: Vec<Arm>, within: Option<(u64, StepIndex)> },
    Push { push: Arc<PopupJourneyPush>, next: StepIndex },
}

/// One event that a branch waits for.
#[derive(Debug)]
pub(crate) struct Arm {
    mark: CounterKey,
    /// The counter of the popup whose event it is: the event counts since the popup was last shown. Absent: a custom event,
    /// which counts since the user came to the branch.
    shown: Option<CounterKey>,
    to: StepIndex,
}

/// What moves a user on from a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Onward {
    /// Nothing yet; time alone will at `until`.
    Stay {
        until: Option<u64>,
    },
    Go {
        to: StepIndex,
        at: u64,
    },
    /// The server, once it has done what the step says.
    Act,
}

impl Step {
    pub(crate) fn compile(id: &str, checked: &CheckedStep, popup: &dyn Fn(&str) -> Option<u32>) -> Step {
        let action = match checked {
            CheckedStep::Popup { popup: name, placement, within, next } => StepAction::Popup {
                // No popup has the number 0: a step of an old version whose popup was removed shows nothing.
                popup: popup(name).unwrap_or(0),
                placement: placement.as_deref().map(CounterKey::placement),
                within: *within,
                next: *next,
            },
            CheckedStep::Wait { ms, next } => StepAction::Wait { ms: *ms, next: *next },
            CheckedStep::Branch { arms, within } => StepAction::Branch {
                arms: arms.iter().map(|(mark, to)| arm(mark, *to, popup)).collect(),
                within: *within,
            },
            CheckedStep::Push { push, next } => StepAction::Push { push: push.clone(), next: *next },
        };
        Step { id: id.to_owned(), action }
    }

    /// What moves a user on who has stood here since `since`.
    fn onward(&self, since: u64, counters: &FrequencyCounters, now_ms: u64) -> Onward {
        let after = |within: &Option<(u64, StepIndex)>| match within {
            Some((ms, to)) if since.saturating_add(*ms) <= now_ms => {
                Onward::Go { to: *to, at: since.saturating_add(*ms) }
            }
            within => Onward::Stay { until: within.map(|(ms, _)| since.saturating_add(ms)) },
        };
        match &self.action {
            StepAction::Wait { ms, next } => after(&Some((*ms, *next))),
            StepAction::Popup { within, .. } => after(within),
            StepAction::Branch { arms, within } => {
                let end = within.map_or(u64::MAX, |(ms, _)| since.saturating_add(ms));
                let happened = |arm: &Arm| {
                    let mark = counters.get(arm.mark)?.last_at;
                    let from = arm.shown.map_or(Some(since), |shown| Some(counters.get(shown)?.last_at))?;
                    let at = mark.max(since);
                    (mark >= from && at < end).then_some(Onward::Go { to: arm.to, at })
                };
                arms.iter().find_map(happened).unwrap_or_else(|| after(within))
            }
            StepAction::Push { .. } => Onward::Act,
        }
    }
}

fn mark_key(mark: &CheckedMark, popup: &dyn Fn(&str) -> Option<u32>) -> CounterKey {
    match mark {
        CheckedMark::Event(name) => CounterKey::event(name),
        CheckedMark::PopupEvent(name, kind) => CounterKey::popup_event(popup(name).unwrap_or(0), *kind),
    }
}

fn arm(mark: &CheckedMark, to: StepIndex, popup: &dyn Fn(&str) -> Option<u32>) -> Arm {
    let shown = match mark {
        CheckedMark::Event(_) => None,
        CheckedMark::PopupEvent(name, _) => Some(CounterKey::popup(popup(name).unwrap_or(0))),
    };
    Arm { mark: mark_key(mark, popup), shown, to }
}

/// What a journey is called, and who may enter it.
pub(crate) struct JourneySettings<'a> {
    pub no: u32,
    pub id: &'a str,
    pub version: u16,
    pub state: PopupJourneyState,
    /// Whether users may enter it again once they have left.
    pub again: bool,
}

impl Journey {
    /// Compiles the newest version's entry; `versions` are the steps of all that are kept.
    pub(crate) fn compile(
        settings: JourneySettings<'_>,
        checked: &CheckedJourney,
        versions: BTreeMap<u16, Arc<Vec<Step>>>,
        names: &dyn RuleNames,
    ) -> Journey {
        let JourneySettings { no, id, version, state, again } = settings;
        let condition = checked.condition.as_ref().map(|rule| {
            let mut slots = AttributeSlots::default();
            (rules::compile_with(rule, &mut slots, names), slots)
        });
        Journey {
            no,
            id: id.into(),
            state,
            version,
            entry: mark_key(&checked.entry, &|name| names.popup(Some(name))),
            condition,
            again,
            versions,
        }
    }

    pub(crate) fn step(&self, position: Position) -> Option<&Step> {
        self.versions.get(&position.version)?.get(usize::from(position.step))
    }

    /// The id of a step, for counts and explanations.
    pub(crate) fn step_id(&self, version: u16, step: StepIndex) -> &str {
        let step = self.versions.get(&version).and_then(|steps| steps.get(usize::from(step)));
        step.map_or(super::check::END_ID, |step| &step.id)
    }

    /// Where time and marks have moved the user by now.
    fn advance(&self, mut at: Position, counters: &FrequencyCounters, now_ms: u64, moves: &mut Moves) -> Position {
        if self.state == PopupJourneyState::Paused {
            return at;
        }
        // Every move is to a later step, so this ends.
        while let Some(step) = self.step(at)
            && let Onward::Go { to, at: moved_at } = step.onward(at.since, counters, now_ms)
        {
            moves.push(self.moving(at, to));
            at = at.moved(to, moved_at);
        }
        at
    }

    fn moving(&self, from: Position, to: StepIndex) -> Move {
        Move { journey: self.no, version: from.version, from: Some(from.step), to }
    }

    /// When the server has to look at the user again.
    fn wake_at(&self, position: Position, counters: &FrequencyCounters, now_ms: u64) -> Option<u64> {
        let due_at = match self.step(position)?.onward(position.since, counters, now_ms) {
            Onward::Stay { until } => until?,
            Onward::Go { .. } | Onward::Act => position.since,
        };
        let is_paused = self.state == PopupJourneyState::Paused;
        Some(if is_paused && due_at <= now_ms { now_ms + PAUSED_MS } else { due_at })
    }

    /// The first time from `at` on at which the user stands at a step that shows the popup at the placement, if only time
    /// passes.
    fn shows_from(
        &self,
        what: JourneyPopup<'_>,
        mut position: Position,
        counters: &FrequencyCounters,
        at: u64,
        now_ms: u64,
    ) -> Option<u64> {
        if self.state == PopupJourneyState::Paused {
            return None;
        }
        loop {
            let step = self.step(position)?;
            let onward = step.onward(position.since, counters, u64::MAX);
            if let StepAction::Popup { popup: shown, placement: only, .. } = &step.action
                && *shown == what.popup
                && only.is_none_or(|only| only == what.placement)
            {
                let from = at.max(position.since);
                if !matches!(onward, Onward::Go { at: until, .. } if until <= from) {
                    return Some(from);
                }
            }
            position = match (onward, &step.action) {
                (Onward::Go { to, at }, _) => position.moved(to, at),
                (Onward::Act, StepAction::Push { next, .. }) => {
                    position.moved(*next, position.since.max(now_ms) + PUSH_SOON_MS)
                }
                _ => return None,
            };
        }
    }
}

/// All journeys.
#[derive(Debug, Default)]
pub(crate) struct Journeys {
    by_no: FxHashMap<u32, Arc<Journey>>,
    by_id: FxHashMap<Arc<str>, Arc<Journey>>,
    /// By the mark of the event that makes users enter.
    by_entry: FxHashMap<CounterKey, Vec<Arc<Journey>>>,
}

/// A popup that a journey shows, at a placement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JourneyPopup<'a> {
    pub(crate) journey: &'a str,
    pub(crate) popup: u32,
    pub(crate) placement: CounterKey,
}

impl Journeys {
    pub(crate) fn new(journeys: impl Iterator<Item = Arc<Journey>>) -> Journeys {
        let mut all = Journeys::default();
        for journey in journeys {
            all.by_no.insert(journey.no, journey.clone());
            all.by_id.insert(journey.id.clone(), journey.clone());
            all.by_entry.entry(journey.entry).or_default().push(journey);
        }
        all
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_no.is_empty()
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.by_no.keys().copied()
    }

    pub(crate) fn by_no(&self, no: u32) -> Option<&Arc<Journey>> {
        self.by_no.get(&no)
    }

    pub(crate) fn by_id(&self, id: &str) -> Option<&Arc<Journey>> {
        self.by_id.get(id)
    }

    /// The live journeys that users enter by this mark.
    pub(crate) fn entered_by(&self, mark: CounterKey) -> impl Iterator<Item = &Arc<Journey>> {
        let all = self.by_entry.get(&mark).into_iter().flatten();
        all.filter(|journey| journey.state == PopupJourneyState::Live)
    }

    /// Moves the user on in all journeys, as far as time and marks do by now.
    pub(crate) fn advance(&self, counters: &mut FrequencyCounters, now_ms: u64, moves: &mut Moves) {
        let before: SmallVec<[Position; 4]> = positions(counters).collect();
        for position in before {
            let Some(journey) = self.by_no(position.journey) else { continue };
            let after = journey.advance(position, counters, now_ms, moves);
            if after != position {
                counters.put(after.to_counter());
            }
        }
    }

    /// Lets the user enter a journey, unless the user stands in it already or may not enter again.
    pub(crate) fn enter(&self, no: u32, counters: &mut FrequencyCounters, at: u64, moves: &mut Moves) {
        let Some(journey) = self.by_no(no) else { return };
        let before = counters.get(CounterKey::journey(no)).and_then(Position::of);
        let has_left = |position: Position| position.is_at_end() || journey.step(position).is_none();
        if before.is_some_and(|position| !journey.again || !has_left(position)) {
            return;
        }
        let version = journey.version;
        let moved = before.map_or(0, |position| position.moves);
        let position = Position { journey: no, version, step: 0, since: at, moves: moved.saturating_add(1) };
        moves.push(Move { journey: no, version, from: None, to: 0 });
        counters.put(position.to_counter());
    }

    /// The server has done what the step says at which the user stood after so many moves.
    pub(crate) fn pushed(&self, no: u32, moved: u32, counters: &mut FrequencyCounters, at: u64, moves: &mut Moves) {
        let Some(journey) = self.by_no(no) else { return };
        let Some(position) = counters.get(CounterKey::journey(no)).and_then(Position::of) else { return };
        if position.moves == moved
            && let Some(Step { action: StepAction::Push { next, .. }, .. }) = journey.step(position)
        {
            moves.push(journey.moving(position, *next));
            counters.put(position.moved(*next, at.max(position.since)).to_counter());
        }
    }

    /// The pushes that are due: for each the journey, the position and what is pushed.
    pub(crate) fn due_pushes<'a>(
        &'a self,
        counters: &'a FrequencyCounters,
    ) -> impl Iterator<Item = (&'a Arc<Journey>, Position, &'a Arc<PopupJourneyPush>)> {
        positions(counters).filter_map(|position| {
            let journey = self.by_no(position.journey)?;
            match &journey.step(position)?.action {
                StepAction::Push { push, .. } if journey.state != PopupJourneyState::Paused => {
                    Some((journey, position, push))
                }
                _ => None,
            }
        })
    }

    /// The popup was shown: moves the user on from the step that shows it.
    pub(crate) fn shown(
        &self,
        what: JourneyPopup<'_>,
        counters: &mut FrequencyCounters,
        now_ms: u64,
        moves: &mut Moves,
    ) {
        let Some(journey) = self.by_id(what.journey) else { return };
        let Some(position) = counters.get(CounterKey::journey(journey.no)).and_then(Position::of) else { return };
        let position = journey.advance(position, counters, now_ms, moves);
        let after = match journey.step(position).map(|step| &step.action) {
            Some(StepAction::Popup { popup, next, .. }) if *popup == what.popup => {
                moves.push(journey.moving(position, *next));
                let next = position.moved(*next, now_ms.max(position.since));
                journey.advance(next, counters, now_ms, moves)
            }
            _ => position,
        };
        counters.put(after.to_counter());
    }

    /// The first time from `at` on at which the journey shows the popup.
    pub(crate) fn shows_from(
        &self,
        what: JourneyPopup<'_>,
        counters: &FrequencyCounters,
        at: u64,
        now_ms: u64,
    ) -> Option<u64> {
        let journey = self.by_id(what.journey)?;
        let position = counters.get(CounterKey::journey(journey.no)).and_then(Position::of)?;
        journey.shows_from(what, position, counters, at, now_ms)
    }

    /// When the server has to look at the user again.
    pub(crate) fn wake_at(&self, counters: &FrequencyCounters, now_ms: u64) -> Option<u64> {
        let wake = |position: Position| self.by_no(position.journey)?.wake_at(position, counters, now_ms);
        positions(counters).filter_map(wake).min()
    }

    /// Whether the user stands in a journey.
    pub(crate) fn has_standing(&self, counters: &FrequencyCounters) -> bool {
        positions(counters).any(|position| self.by_no(position.journey).is_some_and(|all| all.step(position).is_some()))
    }

    /// Where the user stands by now in a journey, and until when if time alone moves the user on.
    pub(crate) fn standing(
        &self,
        position: Position,
        counters: &FrequencyCounters,
        now_ms: u64,
    ) -> Option<(Position, Option<u64>)> {
        let journey = self.by_no(position.journey)?;
        let now_at = journey.advance(position, counters, now_ms, &mut Moves::new());
        let until = journey.step(now_at).and_then(|step| match step.onward(now_at.since, counters, now_ms) {
            Onward::Stay { until } => until,
            Onward::Go { .. } | Onward::Act => None,
        });
        Some((now_at, until))
    }
}

//! How far a reader of the feed has come.

use std::str::FromStr;
use tidings_domain::model::Position;
use tidings_protocol::error::{ErrorCode, Refusal};

/// A place in the feed. The text of it is the reader's to keep, and ours to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventCursor {
    pub epoch: u64,
    /// The reader has dealt with all events up to this position, or is to begin there once it has the present state.
    pub position: Position,
    pub place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the log: behind the position, and behind so many events of the next record, which may have thousands.
    Log { further: usize },
    /// In the present state.
    State(StatePlace),
}

/// A place in the present state: all users, then of each conversation what `Part` has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StatePlace {
    pub part: Part,
    /// The user who is dealt with, or the conversation that is being dealt with.
    pub no: u64,
    /// What of the conversation's part is dealt with: the number of a member, or a `seq`.
    pub behind: u64,
}

/// The parts of the present state, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Users,
    Details,
    Members,
    Entries,
}

impl Part {
    const ALL: [(Part, &'static str); 4] =
        [(Part::Users, "u"), (Part::Details, "c"), (Part::Members, "m"), (Part::Entries, "e")];

    fn of_name(name: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|(_, known)| *known == name).map(|(part, _)| part)
    }

    pub(super) fn name(self) -> &'static str {
        Part::ALL[self as usize].1
    }
}

impl EventCursor {
    pub(super) fn at(epoch: u64, position: Position) -> EventCursor {
        EventCursor { epoch, position, place: Place::Log { further: 0 } }
    }

    /// The same within the next record of the log.
    pub(super) fn further(self, further: usize) -> EventCursor {
        EventCursor { place: Place::Log { further }, ..self }
    }

    /// How many events of the next record the reader has dealt with.
    pub(super) fn of_next_record(self) -> usize {
        match self.place {
            Place::Log { further } => further,
            Place::State(_) => 0,
        }
    }
}

impl std::fmt::Display for EventCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let EventCursor { epoch, position, place } = self;
        write!(f, "{epoch:x}.{position}")?;
        match place {
            Place::Log { further: 0 } => Ok(()),
            Place::Log { further } => write!(f, ".{further}"),
            Place::State(StatePlace { part, no, behind }) => write!(f, ".{}.{no}.{behind}", part.name()),
        }
    }
}

impl FromStr for EventCursor {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        // A store holds no number above, so that one more than a number is a number, too.
        let number = |part: &str| part.parse().ok().filter(|number: &u64| *number <= i64::MAX as u64);
        let read = || {
            let mut parts = text.split('.');
            let epoch = u64::from_str_radix(parts.next()?, 16).ok()?;
            let position = number(parts.next()?)?;
            let place = match parts.next() {
                None => Place::Log { further: 0 },
                Some(third) => match Part::of_name(third) {
                    Some(part) => {
                        let (no, behind) = (number(parts.next()?)?, number(parts.next()?)?);
                        Place::State(StatePlace { part, no, behind })
                    }
                    None => Place::Log { further: usize::try_from(number(third)?).ok()? },
                },
            };
            parts.next().is_none().then_some(EventCursor { epoch, position, place })
        };
        read().ok_or_else(|| {
            let why =
                "after: must be `start`, `now`, a time such as 2026-11-28T04:00:00Z, or the cursor of an event or page";
            Refusal::new(ErrorCode::CursorInvalid, why)
        })
    }
}

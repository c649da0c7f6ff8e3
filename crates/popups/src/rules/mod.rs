//! Rules: whom a popup is for. Evaluation is pure: everything that a rule reads comes in with a [`Profile`].
//!
//! In reading order: [`value`], the attributes of a request; [`mod@parse`], JSON text to a [`Rule`], or a refusal that
//! names the part; [`mod@compile`], a rule to the form that is evaluated for each request; [`segment`], uploaded lists of
//! users and users' buckets; [`index`], which of many rules may hold. `docs/popups.md` describes the language.

mod compile;
mod index;
mod parse;
mod segment;
mod value;
mod version;

pub use crate::mark_kind::MarkKind;
pub use compile::{AttributeSlots, CompiledRule, Profile, compile};
pub(crate) use compile::{RuleNames, compile_with};
pub use index::RuleIndex;
pub use parse::{parse, parse_event_condition, parse_message_condition};
pub use segment::{Segment, bucket};
pub(super) use value::TextSeed;
pub use value::{Attributes, Value};
pub use version::Version;

use crate::timetable::Window;
use jiff::tz::TimeZone;

/// A rule as it was written. Decisions evaluate its compiled form, [`CompiledRule`].
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    All(Vec<Rule>),
    Any(Vec<Rule>),
    Not(Box<Rule>),
    Attribute {
        name: String,
        predicate: Predicate,
    },
    /// `from <= bucket(user, salt) < to`, in hundredths of a percent.
    Percent {
        salt: String,
        from: u32,
        to: u32,
    },
    Segment(String),
    UnreadDirect {
        older_than_s: u64,
    },
    /// A clock shows a time within the window: that of the zone, or of the profile's if there is none.
    TimeOfDay {
        window: Window,
        zone: Option<TimeZone>,
    },
    /// The user's custom event of this name.
    Event {
        name: String,
        test: MarkTest,
    },
    /// What the user did with a popup; without an id: with the popup whose rule it is.
    PopupEvent {
        popup: Option<String>,
        kind: MarkKind,
        test: MarkTest,
    },
}

/// What is asked of a user's events: all of it must be so. No event at all passes no test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkTest {
    /// The last one was less than so many seconds ago.
    pub within_s: Option<u64>,
    /// The last one was at least so many seconds ago.
    pub before_s: Option<u64>,
    /// There were at least so many.
    pub times_gte: u32,
    /// The last one was not before the last custom event of this name, and there was such an event.
    pub since_event: Option<String>,
}

/// An operator with its value, which an attribute is tested by. All but `Absent` are false of an attribute that is
/// absent or of another type.
#[derive(Debug, Clone, PartialEq)]
pub enum Predicate {
    Equals(Scalar),
    NotEquals(Scalar),
    Number(Comparison, f64),
    In(Values),
    NotIn(Values),
    Contains(String),
    NotContains(String),
    StartsWith(String),
    EndsWith(String),
    Version(Comparison, Version),
    Exists,
    Absent,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    Text(String),
    Number(f64),
    Bool(bool),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    Texts(Vec<String>),
    Numbers(Vec<f64>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

impl Comparison {
    /// Whether an attribute that compares so with the operator's value passes.
    pub fn admits(self, ordering: std::cmp::Ordering) -> bool {
        match self {
            Comparison::Equal => ordering.is_eq(),
            Comparison::Less => ordering.is_lt(),
            Comparison::AtMost => ordering.is_le(),
            Comparison::Greater => ordering.is_gt(),
            Comparison::AtLeast => ordering.is_ge(),
        }
    }
}

impl Rule {
    /// The segments that the rule names, each once, in order.
    pub fn segments(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.visit(&mut |rule| {
            if let Rule::Segment(name) = rule {
                names.push(name.as_str());
            }
        });
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The popups that the rule names in conditions on what users did with them, in the order of the text.
    pub fn popups(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.visit(&mut |rule| {
            if let Rule::PopupEvent { popup: Some(name), .. } = rule {
                names.push(name.as_str());
            }
        });
        names
    }

    /// Whether the rule asks what the user did with the popup whose rule it is.
    pub fn names_own_popup(&self) -> bool {
        let mut found = false;
        self.visit(&mut |rule| found |= matches!(rule, Rule::PopupEvent { popup: None, .. }));
        found
    }

    /// Whether the rule asks for events of this kind with popups.
    pub(crate) fn names_kind(&self, wanted: MarkKind) -> bool {
        let mut found = false;
        self.visit(&mut |rule| found |= matches!(rule, Rule::PopupEvent { kind, .. } if *kind == wanted));
        found
    }

    /// Calls the function with the rule and all of its parts.
    pub fn visit<'r>(&'r self, seen: &mut dyn FnMut(&'r Rule)) {
        seen(self);
        match self {
            Rule::All(rules) | Rule::Any(rules) => rules.iter().for_each(|rule| rule.visit(seen)),
            Rule::Not(rule) => rule.visit(seen),
            _ => {}
        }
    }
}

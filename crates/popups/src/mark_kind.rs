//! The kinds of events with popups that are remembered for each user.

/// What users do with a popup, as far as it is remembered for each user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MarkKind {
    Impression,
    /// Also of one of its buttons.
    Click,
    Dismiss,
    Conversion,
}

impl MarkKind {
    pub const ALL: [MarkKind; 4] = [MarkKind::Impression, MarkKind::Click, MarkKind::Dismiss, MarkKind::Conversion];

    /// The name in rules and journeys.
    pub fn name(self) -> &'static str {
        match self {
            MarkKind::Impression => "impression",
            MarkKind::Click => "click",
            MarkKind::Dismiss => "dismiss",
            MarkKind::Conversion => "conversion",
        }
    }

    pub fn named(name: &str) -> Option<MarkKind> {
        MarkKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

//! What one node does for all: each function of the cluster has a lease and terms of its own, so that nodes share the work.
//!
//! Parts that call each other in memory are one function. What [`Function::Push`] does is of this kind: a notification becomes a push,
//! and a push that nobody acknowledges falls back to a provider. So is what [`Function::Popups`] does: a bulk send asks who is in a
//! segment, and an erasure has a user forgotten. What the two ask of each other is a request from node to node.

/// A function of the cluster. Its name is stored, and told to operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Function {
    /// Pushes and devices, and notifications by webhook and providers.
    #[default]
    Push,
    /// Popups, and what asks them: bulk sends and erasures.
    Popups,
    /// Messages whose time comes: to be sent, or to disappear.
    ScheduledMessages,
    /// Consumers of the feed of events.
    EventConsumers,
    /// Outboxes in the app's own databases.
    Outboxes,
    /// When people were seen last, and the webhook that is called with changes of presence.
    Presence,
    /// API keys, and what is done from time to time: retention, purges, the commit log, and announcements that lag.
    Housekeeping,
}

impl Function {
    /// How many there are.
    pub const COUNT: usize = 7;

    /// All of them, those with the most work first. A cluster that has one lead has that of the first.
    pub const ALL: [Function; Function::COUNT] = [
        Function::Push,
        Function::Popups,
        Function::ScheduledMessages,
        Function::EventConsumers,
        Function::Outboxes,
        Function::Presence,
        Function::Housekeeping,
    ];

    /// The name in the store and for operators.
    pub fn name(self) -> &'static str {
        match self {
            Function::Push => "push",
            Function::Popups => "popups",
            Function::ScheduledMessages => "scheduled_messages",
            Function::EventConsumers => "event_consumers",
            Function::Outboxes => "outboxes",
            Function::Presence => "presence",
            Function::Housekeeping => "housekeeping",
        }
    }

    /// The function of this name, if this program knows it.
    pub fn of_name(name: &str) -> Option<Function> {
        Function::ALL.into_iter().find(|function| function.name() == name)
    }

    /// How much work it is, by comparison with the others.
    pub fn weight(self) -> u32 {
        match self {
            Function::Push | Function::Popups => 3,
            Function::ScheduledMessages
            | Function::EventConsumers
            | Function::Outboxes
            | Function::Presence
            | Function::Housekeeping => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_has_a_name_and_its_place_among_all() {
        for (place, function) in Function::ALL.into_iter().enumerate() {
            assert_eq!(function as usize, place);
            assert_eq!(Function::of_name(function.name()), Some(function));
        }
        assert_eq!(Function::of_name("of_a_later_version"), None);
    }
}

//! Feature gates: what this program may write that nodes of an earlier version do not understand.
//!
//! A new form (a kind of entry, a row, a message between nodes) is read from the first version on that has it, and written once
//! its gate is open. A gate opens when the records of all live nodes name it, and never closes: what was written behind it stays.
//! So code asks the gate and never a version; while the gate is closed, it writes the former form, or refuses the request that
//! needs the new one by [`OpenGates::require`].
//!
//! A new gate is a line in [`Gate`]: its name is stored and never changes. The store keeps which gates are open, and a program
//! that does not know one of them does not start. A node that has its store to itself opens all gates that it knows.

use crate::{function::Function, refusals::GATE_RETRY_AFTER_MS};
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_protocol::error::{ErrorCode, Refusal};

macro_rules! gates {
    ($($(#[$doc:meta])* $gate:ident = $name:literal;)*) => {
        /// What the nodes of a cluster must all understand before one of them writes it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Gate { $($(#[$doc])* $gate,)* }

        impl Gate {
            /// Every gate that this program knows, in the order in which they came.
            pub const ALL: &[Gate] = &[$(Gate::$gate),*];

            /// The name in the store, in nodes' records, and for operators.
            pub fn name(self) -> &'static str {
                match self { $(Gate::$gate => $name),* }
            }
        }
    };
}

gates! {
    /// Entries, changes and fields that a node does not know pass through it unharmed. Nothing is written behind this gate; while
    /// it is closed, a node of a version without gates is among the nodes.
    Opaque = "opaque";
    /// Notifications that wait for another attempt, and messages that a session did not acknowledge, are in tables of their own.
    NotificationTables = "notification_tables";
    /// Popups may declare their conversion, and have rows of assignments.
    PopupConversions = "popup_conversions";
    /// Notifications may wait for the end of quiet hours, in rows of their own.
    QuietHoursDefer = "quiet_hours_defer";
    /// There are API keys beside those of the settings. A node that does not know them would refuse what another has let in and passed on.
    ApiKeys = "api_keys";
    /// Pushes may have a fallback: rows of it, and jobs and dead letters of providers that are of a push.
    PushFallback = "push_fallback";
    /// Every change that the feed of events shows is in the commit log.
    EventLog = "event_log";
    /// Members may be muted and banned, conversations be announce-only or in slow mode, and users join by invites and requests.
    MemberRights = "member_rights";
    /// The leader keeps the places of consumers of the feed, and calls their webhooks.
    EventConsumers = "event_consumers";
    /// The hook may hide messages: their rows say so, and a node that did not know would show them to everybody.
    MessageHook = "message_hook";
    /// Users may be suspended, block each other and report messages.
    UserSafety = "user_safety";
    /// Pushes, notifications and what popups do come into the commit log as notes, by way of rows of their own.
    FeedNotes = "feed_notes";
    /// Conversations may be `importing`, and entries have the time at which they were imported beside their own: a node that did not
    /// know would let members send into the middle of a history, and notify people of old messages.
    HistoryImport = "history_import";
    /// Users may be erased: conversations and entries change their ids, which nodes hold in memory.
    Erasure = "erasure";
    /// Conversations may be deleted: they have a setting that refuses everything, and jobs are of conversations, too.
    ConversationErasure = "conversation_erasure";
    /// Messages may be sent at a later time.
    ScheduledMessages = "scheduled_messages";
    /// Messages have a time at which they disappear, and go by a recall that nobody asked for.
    DisappearingMessages = "disappearing_messages";
    /// Each function of the cluster has a lease of its own. A node that knows one lead would take it for that of all functions.
    FunctionLeases = "function_leases";
    /// A node reports the devices that have acknowledged a push as a set.
    PushReportSets = "push_report_sets";
    /// Popups have a lease of their own, apart from that of pushes. A node that does not know it would ask the leader of pushes.
    PopupsLease = "popups_lease";
    /// Nodes tell each other of whom they have sessions, and leave out what concerns none of them.
    Audiences = "audiences";
    /// Pushes of one connection are answered side by side. Nothing waits for this gate to open: nodes look whether the leader knows it.
    PushPipelines = "push_pipelines";
}

impl Gate {
    /// The gate behind which a function has a lease of its own. While that is closed, it is led with the first function, under its lease.
    pub fn of_lease(function: Function) -> Gate {
        match function {
            Function::Popups => Gate::PopupsLease,
            _ => Gate::FunctionLeases,
        }
    }
}

impl Gate {
    /// The gate of this name, if this program knows it.
    pub fn of_name(name: &str) -> Option<Gate> {
        Gate::ALL.iter().copied().find(|gate| gate.name() == name)
    }

    /// The names of all gates that this program knows.
    pub fn names() -> Vec<String> {
        Gate::ALL.iter().map(|gate| gate.name().to_owned()).collect()
    }

    fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// The open gates, as this node has learnt of them. Asked often, and therefore without a lock.
#[derive(Debug, Default)]
pub struct OpenGates(AtomicU64);

impl OpenGates {
    /// Those of a node that has its store to itself: all.
    pub fn all() -> OpenGates {
        let gates = OpenGates::default();
        for gate in Gate::ALL {
            gates.note_open(*gate);
        }
        gates
    }

    /// Whether every node reads what is written behind the gate, from now on and for good.
    pub fn is_open(&self, gate: Gate) -> bool {
        self.0.load(Ordering::Acquire) & gate.bit() != 0
    }

    /// Refuses a request that needs an open gate.
    ///
    /// # Errors
    /// `not_yet_enabled` while the gate is closed.
    pub fn require(&self, gate: Gate) -> Result<(), Refusal> {
        if self.is_open(gate) {
            return Ok(());
        }
        let detail = format!("{:?} is enabled once every node runs a version that knows it", gate.name());
        Err(Refusal::new(ErrorCode::NotYetEnabled, detail).retry_after(GATE_RETRY_AFTER_MS))
    }

    /// The store says that the gate is open. Returns whether that is new to this node.
    pub fn note_open(&self, gate: Gate) -> bool {
        self.0.fetch_or(gate.bit(), Ordering::AcqRel) & gate.bit() == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_request_behind_a_closed_gate_is_refused_and_a_gate_that_opened_stays_open() {
        let gates = OpenGates::default();
        for gate in Gate::ALL {
            let refusal = gates.require(*gate).unwrap_err();
            assert_eq!((refusal.code, refusal.code.http_status()), (ErrorCode::NotYetEnabled, 503));
            assert!(refusal.retry_after_ms.is_some() && refusal.code.retryable());
            assert!(gates.note_open(*gate) && !gates.note_open(*gate));
            assert!(gates.is_open(*gate) && gates.require(*gate).is_ok());
        }
        assert!(Gate::ALL.iter().all(|gate| OpenGates::all().is_open(*gate)));
    }

    #[test]
    fn names_are_distinct_and_fit_a_row() {
        assert!(Gate::ALL.len() <= u64::BITS as usize);
        for gate in Gate::ALL {
            assert_eq!(Gate::of_name(gate.name()), Some(*gate));
            assert!(gate.name().len() <= 64 && gate.name().chars().all(|c| c.is_ascii_lowercase() || c == '_'));
        }
        assert_eq!(Gate::of_name("of_a_later_version"), None);
    }
}

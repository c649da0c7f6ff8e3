//! Why a server ends by itself: its work is over, and only another start, or a person, can go on with it.
//!
//! A server that merely waits for something (a database that is away, a disk that is full) does not end: what it waits for
//! comes back. Nor does one whose data folder is damaged: a start would refuse the folder, and until it is repaired the
//! server still answers what it can read.

use crate::model::Position;
use std::{fmt, io};

/// The server is to be started again, which mends it. `EX_TEMPFAIL` of sysexits.h.
const START_AGAIN: u8 = 75;
/// A person must look at the settings. `EX_CONFIG` of sysexits.h.
const CONFIGURATION: u8 = 78;

/// A thread, or what a runtime is made of, that the server cannot do without, as the system has given it.
///
/// # Panics
/// There is none. A server without it would accept work that nobody does, so it ends as when the thread dies.
pub fn required<T>(name: &str, thread: io::Result<T>) -> T {
    match thread {
        Ok(thread) => thread,
        Err(error) => panic!("no thread for {name:?}: {error}"),
    }
}

/// Why a server ends by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReason {
    /// A process that started later has this node's name.
    Displaced {
        /// The name that both have.
        name: String,
    },
    /// The store has lost commits that this node has handed out.
    StoreWentBack {
        /// The last position at which the store and this node agree.
        back_to: Position,
        /// The newest position that this node had applied.
        from: Position,
    },
    /// The commits that this node has missed are no longer in the log.
    AwayTooLong(String),
    /// The gate of this name is open, and this program does not know it: another one must take its place.
    UnknownGate(String),
}

impl EndReason {
    /// A stable word for logs and supervisors.
    pub fn code(&self) -> &'static str {
        match self {
            EndReason::Displaced { .. } => "displaced",
            EndReason::StoreWentBack { .. } => "store_went_back",
            EndReason::AwayTooLong(_) => "away_too_long",
            EndReason::UnknownGate(_) => "unknown_gate",
        }
    }

    /// The exit status of the process: it tells a supervisor whether another start mends it.
    pub fn exit_status(&self) -> u8 {
        match self {
            EndReason::Displaced { .. } | EndReason::UnknownGate(_) => CONFIGURATION,
            EndReason::StoreWentBack { .. } | EndReason::AwayTooLong(_) => START_AGAIN,
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::Displaced { name } => write!(f, "another process has taken this node's name, {name:?}"),
            EndReason::StoreWentBack { back_to, from } => {
                write!(f, "the store has gone back to position {back_to} from {from}")
            }
            EndReason::AwayTooLong(error) => write!(f, "{error}"),
            EndReason::UnknownGate(gate) => write!(
                f,
                "the gate {gate:?} is open, and this program does not know it: start the one that the other nodes run"
            ),
        }
    }
}

impl std::error::Error for EndReason {}

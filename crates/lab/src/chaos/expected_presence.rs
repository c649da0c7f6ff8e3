//! The presence that nodes must report, as the users' own devices know it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// The expected presence of every user whom nodes are asked about.
pub(super) type ExpectedPresence = BTreeMap<String, ExpectedUser>;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ExpectedUser {
    /// The devices that have a session.
    pub(super) devices: BTreeSet<String>,
    /// How many sessions have begun or ended so far.
    pub(super) changes: u64,
    /// Whether a device is connecting or disconnecting.
    pub(super) changing: bool,
    /// When the oldest lasting session began; absent also if that is not known.
    pub(super) since: Option<Instant>,
}

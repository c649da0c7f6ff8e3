//! What is true of a user, by the word of the user's own devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// Every user whom nodes are asked about.
pub(super) type Truth = BTreeMap<String, Stand>;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Stand {
    /// Those that have a session.
    pub(super) devices: BTreeSet<String>,
    /// Sessions that have begun or ended so far.
    pub(super) changes: u64,
    /// A device is about to come or to go.
    pub(super) changing: bool,
    /// Since when the session has lasted that began first; absent also where nobody watched.
    pub(super) since: Option<Instant>,
}

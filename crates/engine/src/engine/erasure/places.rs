//! Where a store has what is a person's: the one list that the check for what an erasure left and the export of a person's data go
//! through. A new table of the store is a new place here, and both have to say what they do with it.

/// A place of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PersonalPlace {
    /// The card, attributes and settings, and when the user was last seen.
    Profile,
    /// The conversations that the user is in.
    Memberships,
    /// Entries of conversations, and the ids of direct ones.
    Entries,
    /// Rows of all [kinds](tidings_domain::chat_row_kind::ChatRowKind), each of which `fate_of_row` and the export decide about.
    Rows,
    /// Devices, and the pushes for them.
    Devices,
    /// What popups keep.
    Popups,
    /// Webhook events that wait or were given up.
    Notifications,
    /// The commit log, from which the feed is read: copies that are forgotten with time.
    Log,
}

impl PersonalPlace {
    /// All of them.
    pub(crate) const ALL: [PersonalPlace; 8] = [
        PersonalPlace::Profile,
        PersonalPlace::Memberships,
        PersonalPlace::Entries,
        PersonalPlace::Rows,
        PersonalPlace::Devices,
        PersonalPlace::Popups,
        PersonalPlace::Notifications,
        PersonalPlace::Log,
    ];
}

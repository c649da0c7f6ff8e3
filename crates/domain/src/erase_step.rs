//! The steps by which a person is erased, and the legal hold that keeps one from it: what proposals are made of. What the steps do is in
//! [`erasure`](crate::erasure).

use crate::model::{ConversationNo, UserNo};
use serde::{Deserialize, Serialize};

/// What the user is told whose sessions end since the user is erased.
pub const ERASED: &str = "the account is erased";

/// A user who is erased.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// The number, which stays.
    pub no: UserNo,
    /// The id until now.
    pub id: String,
    /// The id from now on.
    pub alias: String,
}

/// A step of an erasure, committed as a whole.
#[derive(Debug, Clone)]
pub enum EraseStep {
    /// The user may do nothing any more, and the job is stored.
    Begin {
        /// The user.
        user: UserNo,
        /// The key of the job.
        key: Vec<u8>,
        /// The job.
        row: Vec<u8>,
        /// Who wants it.
        by: String,
    },
    /// These entries name the person no more.
    Entries {
        /// Who is erased.
        person: Person,
        /// Where the entries are.
        conversation: ConversationNo,
        /// Which they are; those that there are not are passed over.
        seqs: Vec<u64>,
    },
    /// These rows of [`RowSpace::Chat`](crate::store::RowSpace::Chat) are as [`fate_of_row`](crate::erasure::fate_of_row) says.
    Rows {
        /// Who is erased.
        person: Person,
        /// The keys of the rows.
        keys: Vec<Vec<u8>>,
    },
    /// A direct conversation has an id without the person's.
    Rename {
        /// The conversation.
        conversation: ConversationNo,
        /// Its id from now on, which no other conversation has.
        id: String,
    },
    /// The profile is gone, and the id with it. What sends were first made under ids of the person's own is forgotten.
    Profile {
        /// Who is erased.
        person: Person,
        /// The key of the job, by which the feed's event names the person as long as it is kept.
        key: Vec<u8>,
    },
}

/// A conversation that nothing may be erased from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegalHold {
    /// What it is for, such as the number of a case.
    pub name: String,
    /// The operator or the API key that set it.
    pub by: String,
    /// When, in milliseconds since 1970 UTC.
    pub at: u64,
}

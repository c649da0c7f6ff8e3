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

/// A conversation that is deleted. Its number stays, and its timeline goes on behind what was removed, since clients know messages by
/// their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedConversation {
    /// The number.
    pub no: ConversationNo,
    /// The id until now.
    pub id: String,
    /// The id from now on. That of a direct conversation stays: it is made of the users, who may begin anew.
    pub alias: String,
}

impl DeletedConversation {
    /// The conversation with this alias; an empty one: its id stays.
    pub fn of(no: ConversationNo, id: &str, alias: &str) -> DeletedConversation {
        let alias = if alias.is_empty() { id } else { alias };
        DeletedConversation { no, id: id.to_owned(), alias: alias.to_owned() }
    }

    /// Whether it may be used again.
    pub fn is_direct(&self) -> bool {
        self.id == self.alias
    }
}

/// Of whom or what nothing is to be left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Erased {
    /// A user.
    Person(Person),
    /// A conversation.
    Conversation(DeletedConversation),
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
    /// The job that deletes a conversation is stored.
    BeginConversation {
        /// The key of the job.
        key: Vec<u8>,
        /// The job.
        row: Vec<u8>,
    },
    /// These entries of a conversation say nothing any more.
    Blank {
        /// Where the entries are.
        conversation: ConversationNo,
        /// Which they are; those that there are not are passed over.
        seqs: Vec<u64>,
    },
    /// These rows of [`RowSpace::Chat`](crate::store::RowSpace::Chat) are as
    /// [`fate_of_row_in`](crate::erasure::fate_of_row_in) says.
    RowsIn {
        /// The conversation.
        conversation: DeletedConversation,
        /// The keys of the rows.
        keys: Vec<Vec<u8>>,
    },
    /// A conversation's details are gone, and so is its id unless it is a direct one, which is used again.
    Details {
        /// The conversation.
        conversation: DeletedConversation,
        /// The key of the job, by which the feed's event names the conversation as long as it is kept.
        key: Vec<u8>,
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

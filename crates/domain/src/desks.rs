//! Accounts that answer. Users have direct conversations with an account's own user, as whom its agents write; what is stored
//! of that besides are rows of [`RowSpace::Chat`](crate::store::RowSpace::Chat), whose keys follow the rules of
//! [`chat_rows`](crate::chat_rows):
//!
//! | key | value |
//! | --- | --- |
//! | `w` account | the desk of the account: its user, and its settings |
//! | `g` account, user | an agent of the account, or one who was removed and whose conversations are yet to be unassigned |
//! | `a` conversation | an [`Assignment`]; no row: the conversation is in no account's lists yet |
//! | `i` account, whose, number downwards, conversation | nothing: the index of the account's conversations by their newest entry (its position; in a store of several orders, which gives positions later, its time), twice for each: once among all of the account, once among those of its agent, or of nobody |
//!
//! Members are not copied: an agent who is added or removed is one row, however many conversations there are.

use crate::{chat_row_kind::ChatRowKind, model::*, row_keys::number_in};
use serde::{Deserialize, Serialize};
pub use tidings_protocol::http::OpenTo;

/// Who answers for an official account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desk {
    /// The user as whom the account speaks. Its id is the account's.
    pub user: Sender,
    /// Which users may open a conversation with the account.
    pub open_to: OpenTo,
    /// Whether users are told which agent answers.
    pub shows_agents: bool,
    /// Agents now.
    pub agents: u32,
}

/// A user in an account's list of agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRow {
    /// The user's id.
    pub id: String,
    /// The user was removed, and the conversations assigned to the user are yet to be unassigned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_leaving: bool,
}

/// A change of an account's desk; what is absent stays as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeskPatch {
    /// Which users may open a conversation with the account.
    pub open_to: Option<OpenTo>,
    /// Whether users are told which agent answers.
    pub shows_agents: Option<bool>,
    /// Users who are agents afterwards.
    pub add: Vec<Sender>,
    /// Users who are no agents afterwards.
    pub remove: Vec<UserNo>,
    /// Removed agents to whom nothing is assigned any more.
    pub forget: Vec<UserNo>,
}

/// A conversation in the lists of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The account.
    pub account: ConversationNo,
    /// The agent who has the conversation; absent: nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Sender>,
}

/// A part of the index of an account's conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// All conversations of the account.
    Anyones,
    /// Those that are assigned to nobody.
    Nobodys,
    /// Those that are assigned to this agent.
    Agents(UserNo),
}

impl Whose {
    /// The part in which a conversation with this assignment is.
    pub fn of(assigned_to: Option<&Sender>) -> Whose {
        assigned_to.map_or(Whose::Nobodys, |agent| Whose::Agents(agent.no))
    }

    /// The number by which keys name the part.
    pub fn number(self) -> u64 {
        match self {
            Whose::Anyones => 0,
            Whose::Agents(user) => user.0,
            Whose::Nobodys => u64::MAX,
        }
    }
}

/// The key of an account's desk.
pub fn desk_key(account: ConversationNo) -> Vec<u8> {
    ChatRowKind::Desk.key(&[account.0])
}

/// The account of a key that [`desk_key`] made.
pub fn desk_of(key: &[u8]) -> Option<ConversationNo> {
    number_in(key, 0).map(ConversationNo)
}

/// The key of an agent.
pub fn agent_key(account: ConversationNo, user: UserNo) -> Vec<u8> {
    ChatRowKind::Agent.key(&[account.0, user.0])
}

/// The agent of a key that [`agent_key`] made.
pub fn agent_of(key: &[u8]) -> Option<UserNo> {
    number_in(key, 1).map(UserNo)
}

/// The key of a conversation's assignment.
pub fn assignment_key(conversation: ConversationNo) -> Vec<u8> {
    ChatRowKind::Assignment.key(&[conversation.0])
}

/// The key of a conversation in the index of an account, by the number of its newest entry.
pub fn index_key(account: ConversationNo, whose: Whose, newest: u64, conversation: ConversationNo) -> Vec<u8> {
    ChatRowKind::AccountIndex.key(&[account.0, whose.number(), !newest, conversation.0])
}

/// The number and the conversation of a key that [`index_key`] made.
pub fn indexed(key: &[u8]) -> Option<(u64, ConversationNo)> {
    Some((!number_in(key, 2)?, ConversationNo(number_in(key, 3)?)))
}

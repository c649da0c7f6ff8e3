//! The refusals that callers get for errors of the store, for rejected proposals, and while the leader changes.

use crate::store::{Rejection, StoreError};
use tidings_protocol::error::{ErrorCode, Refusal};

/// When to try again after the store failed: an operator has to act first.
pub const STORE_RETRY_AFTER_MS: u64 = 1_000;
/// When to try again what is enabled once all nodes are upgraded.
pub const GATE_RETRY_AFTER_MS: u64 = 10_000;
/// When to try again while the leader changes: a new one is found within a lease.
const LEADER_RETRY_AFTER_MS: u64 = 1_000;

/// The refusal for an error of the store.
pub fn store_refusal(error: StoreError) -> Refusal {
    match error {
        StoreError::DiskFull => Refusal::new(ErrorCode::StoreUnavailable, "the disk is full; nothing was stored")
            .retry_after(STORE_RETRY_AFTER_MS),
        StoreError::StaleTerm => leader_unavailable(),
        other => Refusal::new(ErrorCode::StoreUnavailable, other.to_string()).retry_after(STORE_RETRY_AFTER_MS),
    }
}

/// The refusal of a user who is not a member of the conversation.
pub fn not_a_member(user: &str, conversation: &str) -> Refusal {
    Refusal::new(ErrorCode::NotAMember, format!("user {user:?} is not a member of conversation {conversation:?}"))
}

/// Until when something holds, for a refusal; nothing if it holds for good.
pub fn until_text(until: Option<u64>) -> String {
    until.map_or_else(String::new, |until| format!(" until {until} (milliseconds since 1970 UTC)"))
}

/// The refusal for an outcome that this kind of proposal cannot have.
pub fn unexpected_outcome() -> Refusal {
    Refusal::new(ErrorCode::Internal, "the store returned an unexpected outcome")
}

/// The refusal for a rejected proposal.
pub fn proposal_refusal(rejection: &Rejection) -> Refusal {
    match rejection {
        Rejection::NoSuchConversation => Refusal::new(ErrorCode::NotFound, "no such conversation"),
        Rejection::NoSuchUser(_) => Refusal::new(ErrorCode::NotFound, "no such user"),
        Rejection::NotAMember => Refusal::new(ErrorCode::NotAMember, "the user is not a member of the conversation"),
        Rejection::LegalHold => Refusal::new(ErrorCode::LegalHold, "the conversation is under a legal hold"),
        Rejection::PreviousNotStored => {
            let why = "the message ahead of this one was not stored: repeat the import";
            Refusal::new(ErrorCode::StoreUnavailable, why).retry_after(STORE_RETRY_AFTER_MS)
        }
        Rejection::Banned(_, until) => {
            Refusal::new(ErrorCode::Banned, format!("a user is banned from the conversation{}", until_text(*until)))
        }
        Rejection::NoSuchInvite => {
            Refusal::new(ErrorCode::NotFound, "no such invite: it was revoked, has expired or is used up, or never was")
        }
        Rejection::TooManyInvites { limit } => Refusal::limit("invites of the conversation", *limit, *limit + 1),
        Rejection::NoSuchRequest => Refusal::new(ErrorCode::NotFound, "no request of the user waits"),
        Rejection::TooManyRequests { limit } => {
            Refusal::limit("requests that wait, in the conversation or of the user", *limit, *limit + 1)
        }
        Rejection::AlreadyAMember => Refusal::new(ErrorCode::Conflict, "the user is a member already"),
        Rejection::NotTheOwner => {
            Refusal::new(ErrorCode::Forbidden, "the user does not own the conversation, or no longer")
        }
        Rejection::TooSoon { retry_after_ms } => Refusal::new(
            ErrorCode::RateLimited,
            format!(
                "the conversation is in slow mode: a member's next message may follow in {} s",
                retry_after_ms.div_ceil(1_000)
            ),
        )
        .retry_after(*retry_after_ms),
        Rejection::ClientMsgIdReused => Refusal::new(
            ErrorCode::ClientMsgIdReused,
            "this client_msg_id stands for another request in this conversation: give each request an id of its own",
        ),
        Rejection::Refused(refusal) => (**refusal).clone(),
        Rejection::NoSuchEntry(seq) => {
            Refusal::new(ErrorCode::NotFound, format!("no message {seq} in this conversation"))
        }
        Rejection::NotAMessage(seq) => {
            Refusal::new(ErrorCode::NotAMessage, format!("entry {seq} is a notice of the server, not a message"))
        }
        Rejection::MessageRecalled(seq) => {
            Refusal::new(ErrorCode::MessageRecalled, format!("message {seq} was recalled"))
        }
        Rejection::StreamOpen(seq) => {
            Refusal::new(ErrorCode::Conflict, format!("message {seq} still grows: end it, then edit it"))
        }
        Rejection::StreamEnded(seq) => Refusal::new(
            ErrorCode::StreamEnded,
            format!("message {seq} does not grow: it was sent whole, ended or interrupted; it can be edited"),
        ),
        Rejection::VersionConflict { expected, actual } => Refusal::new(
            ErrorCode::VersionConflict,
            format!("if_version: the message has version {actual}, not {expected}"),
        ),
        Rejection::TooManyEdits { limit } => Refusal::limit("edits of the message", *limit, *limit + 1),
        Rejection::TooManyReactions { limit } => {
            Refusal::limit("different reactions to the message", *limit, *limit + 1)
        }
        Rejection::TooManyPins { limit } => Refusal::limit("pinned messages", *limit, *limit + 1),
        Rejection::TooManyBlocks { limit } => Refusal::limit("users whom a user blocks", *limit, *limit + 1),
        Rejection::TooManyReports { limit } => Refusal::limit("open reports of a user", *limit, *limit + 1),
        Rejection::NoSuchReport => Refusal::new(ErrorCode::NotFound, "no such report"),
        Rejection::ReportIs(state) => {
            Refusal::new(ErrorCode::Conflict, format!("if_state: the report is {}", state.name()))
        }
        Rejection::UserExists(id) => Refusal::new(
            ErrorCode::Conflict,
            format!("a user has the id {id:?}; an account that answers needs a user of its own with it"),
        ),
        Rejection::NotAnAgent(id) => Refusal::field("assigned_to", format!("{id:?} is not an agent of the account")),
        Rejection::AgentLeaves(id) => Refusal::new(
            ErrorCode::NodeUnavailable,
            format!("add: {id:?} was removed a moment ago, and conversations are yet to be unassigned"),
        )
        .retry_after(LEADER_RETRY_AFTER_MS),
        Rejection::TooManyAgents { limit, would_be } => Refusal::limit("agents of the account", *limit, *would_be),
        Rejection::AssignedTo(who) => {
            let who = who.as_ref().map_or_else(|| "nobody".into(), |who| format!("{who:?}"));
            Refusal::new(ErrorCode::AssignmentConflict, format!("if_assigned_to: {who} has the conversation"))
        }
        Rejection::PushTokenMoved => {
            Refusal::new(ErrorCode::Conflict, "the device or the token is being registered elsewhere; try again")
        }
        Rejection::KindDiffers => {
            Refusal::new(ErrorCode::Conflict, "the id is taken by a conversation of another kind")
        }
        Rejection::TooManyMembers { limit, would_be } => {
            Refusal::limit("members of the conversation", *limit, *would_be)
        }
    }
}

/// The refusal of an operation that only the leader does, while another node becomes the leader.
pub fn leader_unavailable() -> Refusal {
    Refusal::new(ErrorCode::NodeUnavailable, "the node that does this is changing; try again")
        .retry_after(LEADER_RETRY_AFTER_MS)
}

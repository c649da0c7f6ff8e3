//! Who shares a queue: senders as flows, and why a queue or a lane does not admit one more item of a flow.

use tidings_domain::model::{ConversationNo, UserNo};

/// The flow to which a proposal belongs, and whose share of a queue it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FlowKey {
    User(UserNo),
    /// The app server, which writes as the conversation itself.
    Conversation(ConversationNo),
    /// Batches of several senders. A batch keeps its order, so that it must be in one flow.
    Bulk,
    /// Operations of app servers, and the records of the server itself.
    Server,
}

/// Why a proposal is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdmissionError {
    /// All places are taken.
    Full,
    /// The flow holds as many places as are free for all others.
    ShareExceeded {
        held: usize,
    },
    Stopping,
}

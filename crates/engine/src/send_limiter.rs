//! How often a user may have others notified of something: each message, change of one, reaction, and change of members or cards
//! takes a send from the user's rate. App servers are not limited.

use std::sync::Arc;
use tidings_domain::{clock::Clock, model::*, rate::Gcra, store::Proposal, user_limiter::UserLimiter};
use tidings_protocol::error::Refusal;

/// The limiter of sends.
pub(crate) struct SendLimiter(UserLimiter);

impl SendLimiter {
    /// `per_second` 0: no limit.
    pub(crate) fn new(per_second: u32, burst: u32, clock: Arc<dyn Clock>) -> Self {
        let rate = (per_second > 0).then(|| Gcra::new(per_second, burst));
        SendLimiter(UserLimiter::new(rate, format!("a user may send {per_second} messages a second"), clock))
    }

    /// Takes one send from the user's rate.
    pub(crate) fn check(&self, user: UserNo) -> Result<(), Refusal> {
        self.0.take(user, 1, String::new)
    }
}

/// Whether others are notified of what a proposal does: by an entry of the timeline, or as members of a conversation that they
/// are in from then on or no longer. Such a proposal takes a send from its user's rate.
pub(crate) fn is_told(proposal: &Proposal) -> bool {
    match proposal {
        Proposal::Append { .. }
        | Proposal::OpenDirect { .. }
        | Proposal::ChangeMessage { .. }
        | Proposal::React { .. }
        | Proposal::CreateConversation(_)
        | Proposal::UpdateConversation { .. }
        | Proposal::ChangeMembers { .. }
        | Proposal::SetDesk { .. }
        | Proposal::Assign { .. }
        | Proposal::SetBlock { .. }
        | Proposal::Report { .. } => true,
        // What a user keeps for itself, and what the server records.
        Proposal::MarkRead { .. }
        | Proposal::SetMute { .. }
        | Proposal::SetPreferences { .. }
        | Proposal::SetDoNotDisturb { .. }
        | Proposal::SetReceipts { .. }
        | Proposal::SetNotificationPreferences { .. }
        | Proposal::SetPushToken { .. }
        | Proposal::PutUsers(_)
        | Proposal::Kick { .. }
        | Proposal::Revoke { .. }
        | Proposal::SetSuspension { .. }
        | Proposal::SetReport { .. }
        | Proposal::Erase(_)
        | Proposal::SetLegalHold { .. }
        | Proposal::TellReactions { .. }
        | Proposal::CheckpointStream { .. }
        | Proposal::SetStored(_)
        | Proposal::SetLastSeen(_)
        | Proposal::SetNotificationCounts(_)
        | Proposal::SetApiKeyUse(_)
        | Proposal::AddFeedNotes(_)
        | Proposal::AdvanceOutbox { .. }
        | Proposal::DeleteStoredNotifications { .. } => false,
    }
}

//! In how many orders a store commits.
//!
//! A transaction that takes positions holds up the next one until it is durable. A store may therefore commit in several orders side
//! by side. Each conversation belongs to one of them, so that its entries still come one after the other; the one commit order that
//! everybody reads is laid over all of them afterwards.

use super::Proposal;
use crate::{erase_step::EraseStep, model::ConversationNo};
use std::num::NonZeroU16;
use xxhash_rust::xxh3::xxh3_64;

/// How many orders a store commits in; they are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Orders(NonZeroU16);

impl Orders {
    /// The most orders that a store may have.
    pub const MAX: u16 = 256;
    /// A store that commits one batch after the other.
    pub const ONE: Orders = Orders(NonZeroU16::MIN);

    /// So many orders, of which there are from one to [`Orders::MAX`].
    pub fn new(count: u16) -> Orders {
        Orders(NonZeroU16::new(count.min(Orders::MAX)).unwrap_or(NonZeroU16::MIN))
    }

    /// How many there are.
    pub fn count(self) -> u16 {
        self.0.get()
    }

    /// The order of a conversation's entries.
    pub fn of_conversation(self, conversation: ConversationNo) -> u16 {
        (conversation.0 % u64::from(self.count())) as u16
    }

    /// The order in which a conversation with this id is created. Its number is one of that order.
    pub fn of_new(self, id: &str) -> u16 {
        (xxh3_64(id.as_bytes()) % u64::from(self.count())) as u16
    }

    /// The order in which a proposal is committed. What belongs to no conversation is committed in the first.
    pub fn of(self, proposal: &Proposal) -> u16 {
        match proposal {
            Proposal::Append { conversation, .. }
            | Proposal::ChangeMessage { conversation, .. }
            | Proposal::React { conversation, .. }
            | Proposal::TellReactions { conversation }
            | Proposal::CheckpointStream { conversation, .. }
            | Proposal::UpdateConversation { conversation, .. }
            | Proposal::ChangeMembers { conversation, .. }
            | Proposal::SetDesk { account: conversation, .. }
            | Proposal::Assign { conversation, .. }
            | Proposal::MarkRead { conversation, .. }
            | Proposal::SetMute { conversation, .. }
            | Proposal::SetPreferences { conversation, .. }
            | Proposal::SetLegalHold { conversation, .. } => self.of_conversation(*conversation),
            Proposal::OpenDirect { new, .. } => self.of_new(&new.id),
            Proposal::CreateConversation(new) => self.of_new(&new.id),
            Proposal::Erase(step) => match &**step {
                EraseStep::Entries { conversation, .. }
                | EraseStep::Rename { conversation, .. }
                | EraseStep::Blank { conversation, .. } => self.of_conversation(*conversation),
                EraseStep::RowsIn { conversation, .. } | EraseStep::Details { conversation, .. } => {
                    self.of_conversation(conversation.no)
                }
                EraseStep::Begin { .. }
                | EraseStep::Rows { .. }
                | EraseStep::BeginConversation { .. }
                | EraseStep::Profile { .. } => 0,
            },
            Proposal::PutUsers(_)
            | Proposal::SetDoNotDisturb { .. }
            | Proposal::SetStored(_)
            | Proposal::SetReceipts { .. }
            | Proposal::SetNotificationPreferences { .. }
            | Proposal::SetPushToken { .. }
            | Proposal::SetNotificationCounts(_)
            | Proposal::AddFeedNotes(_)
            | Proposal::SetApiKeyUse(_)
            | Proposal::SetLastSeen(_)
            | Proposal::Kick { .. }
            | Proposal::Revoke { .. }
            | Proposal::SetSuspension { .. }
            | Proposal::SetBlock { .. }
            | Proposal::Report { .. }
            | Proposal::SetReport { .. }
            | Proposal::AdvanceOutbox { .. }
            | Proposal::DeleteStoredNotifications { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_at_least_one_order_and_not_too_many() {
        assert_eq!([0, 1, 16, u16::MAX].map(|count| Orders::new(count).count()), [1, 1, 16, Orders::MAX]);
    }

    #[test]
    fn conversations_are_spread_over_all_orders() {
        let orders = Orders::new(16);
        let (mut by_number, mut by_id) = ([0_u32; 16], [0_u32; 16]);
        for n in 0..16_000 {
            by_number[usize::from(orders.of_conversation(ConversationNo(n)))] += 1;
            by_id[usize::from(orders.of_new(&format!("c{n}")))] += 1;
        }
        assert!(by_number.iter().all(|count| *count == 1_000));
        assert!(by_id.iter().all(|count| (850..1_150).contains(count)), "{by_id:?}");
    }
}

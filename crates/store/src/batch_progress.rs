//! How far a batch takes its conversations, for the acknowledgement log.

use crate::ack_log::ConversationProgress;
use rustc_hash::FxHashMap;
use tidings_domain::model::*;

#[derive(Clone, Copy, Default)]
pub(crate) struct BatchProgress<'a> {
    pub position: Position,
    pub heads: Option<&'a FxHashMap<ConversationNo, Head>>,
    /// The ids of conversations whose first entry is in the batch.
    pub first_entry_ids: Option<&'a FxHashMap<ConversationNo, String>>,
}

impl<'a> BatchProgress<'a> {
    /// Of a batch that appends no entry.
    pub(crate) fn none() -> Self {
        BatchProgress::default()
    }

    pub(crate) fn conversations(self) -> impl Iterator<Item = ConversationProgress> + 'a {
        let heads = self.heads.into_iter().flatten().filter(|(_, head)| head.last_seq > 0);
        heads.map(move |(conversation, head)| {
            let id = self.first_entry_ids.and_then(|ids| ids.get(conversation)).cloned();
            ConversationProgress { conversation: conversation.0, last_seq: head.last_seq, id }
        })
    }
}

//! What a batch says in conversations, for the notes beside the journal.

use crate::acknowledged::Reached;
use rustc_hash::FxHashMap;
use tidings_engine::model::*;

#[derive(Clone, Copy, Default)]
pub(crate) struct Said<'a> {
    pub position: Position,
    pub heads: Option<&'a FxHashMap<ConversationNo, Head>>,
    /// The ids of conversations whose first entry is in it.
    pub begun: Option<&'a FxHashMap<ConversationNo, String>>,
}

impl<'a> Said<'a> {
    pub(crate) fn nothing() -> Self {
        Said::default()
    }

    pub(crate) fn reached(self) -> impl Iterator<Item = Reached> + 'a {
        let heads = self.heads.into_iter().flatten().filter(|(_, head)| head.last_seq > 0);
        heads.map(move |(conversation, head)| {
            let id = self.begun.and_then(|begun| begun.get(conversation)).cloned();
            Reached { conversation: conversation.0, last_seq: head.last_seq, id }
        })
    }
}

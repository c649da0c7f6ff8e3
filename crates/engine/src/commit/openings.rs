//! Messages that open a direct conversation, in a batch with messages that come after them.

use super::PendingReply;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tidings_domain::{model::*, store::Proposal};

/// Turns openings into appends where another message of the batch is appended to the same conversation already. An earlier batch has
/// opened that conversation, and the append was queued after the openings: committed after the batch, they would come behind it.
pub(super) fn follow_opened(proposals: &mut [Proposal], pending: &mut [PendingReply]) {
    if !proposals.iter().any(|proposal| matches!(proposal, Proposal::OpenDirect { .. })) {
        return;
    }
    let known = proposals.iter().zip(&*pending).filter_map(|(proposal, (conversation, ..))| match proposal {
        Proposal::Append { .. } => conversation.as_ref().map(|known| (known.id.clone(), known.clone())),
        _ => None,
    });
    let known: FxHashMap<String, Arc<Conversation>> = known.collect();
    for (proposal, (conversation, ..)) in proposals.iter_mut().zip(pending) {
        let Proposal::OpenDirect { new, entry } = &*proposal else { continue };
        // Into a conversation that an import has opened, or that is being deleted, nobody sends: the opening finds it, and is refused.
        if let Some(opened) = known.get(&new.id).filter(|opened| !opened.is_importing() && !opened.is_deleted()) {
            *proposal = Proposal::Append { conversation: opened.no, entry: entry.clone() };
            *conversation = Some(opened.clone());
        }
    }
}

#[cfg(test)]
#[path = "../../tests/units/commit_openings.rs"]
mod tests;

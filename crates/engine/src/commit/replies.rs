//! The results of a commit: items for the lanes, and replies for the callers.

use super::Reply;
use crate::{
    lanes::{LaneItem, LaneSlot},
    shards::{SendReply, Shards},
};
use std::{sync::Arc, time::Instant};
use tidings_domain::{model::*, refusals::proposal_refusal, store::*};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::SendReceipt,
};

/// The lane item of an outcome, if live members must learn of it.
pub(super) fn lane_item(
    proposal: Proposal,
    conversation: Option<Arc<Conversation>>,
    outcome: &Outcome,
    slot: Option<LaneSlot>,
    at: Instant,
) -> Option<LaneItem> {
    let stored = |content: NewEntry, a: &Appended| StoredEntry { seq: a.seq, position: a.position, at: a.at, content };
    let item_of = |conversation, entry| LaneItem { conversation, joined: vec![], left: vec![], entry, slot: None, at };
    let mut lane_item = match (proposal, outcome) {
        (Proposal::Append { entry, .. }, Outcome::Appended(a)) if !a.duplicate => {
            item_of(conversation?, Some(stored(entry, a)))
        }
        (Proposal::ChangeMembers { notice, .. }, Outcome::MembersChanged { added, removed, notice: appended, .. }) => {
            let entry = notice.zip(appended.as_ref()).map(|(content, a)| stored(content, a));
            LaneItem { joined: added.clone(), left: removed.clone(), ..item_of(conversation?, entry) }
        }
        (Proposal::CreateConversation(new), Outcome::Conversation { conversation, created: true }) => {
            let joined = new.members.iter().map(|(user, _)| *user).collect();
            LaneItem { joined, ..item_of(Arc::new(conversation.clone()), None) }
        }
        (Proposal::Append { mut entry, .. }, Outcome::Replied { appended, preview: Some(preview) }) => {
            entry.details_mut().preview = Some(preview.clone());
            item_of(conversation?, Some(stored(entry, appended)))
        }
        (_, Outcome::Reacted { told: Some((appended, entry)), .. }) => {
            item_of(conversation?, Some(stored(NewEntry::clone(entry), appended)))
        }
        (_, Outcome::Assigned { told: Some((appended, entry)) }) => {
            item_of(conversation?, Some(stored(NewEntry::clone(entry), appended)))
        }
        (Proposal::ChangeMessage { .. }, Outcome::MessageChanged { appended, entry: Some(entry), .. }) => {
            item_of(conversation?, Some(stored(NewEntry::clone(entry), appended)))
        }
        (Proposal::UpdateConversation { notice: Some(notice), .. }, Outcome::Appended(a)) => {
            item_of(conversation?, Some(stored(notice, a)))
        }
        _ => return None,
    };
    lane_item.slot = slot;
    Some(lane_item)
}

/// The replies of a batch, gathered by shard so that each shard is woken once.
pub(super) struct ReplyBatch<'a> {
    shards: &'a Shards,
    by_shard: Vec<Vec<SendReply>>,
}

impl<'a> ReplyBatch<'a> {
    pub(super) fn new(shards: &'a Shards) -> Self {
        ReplyBatch { shards, by_shard: vec![Vec::new(); shards.count()] }
    }

    pub(super) fn answer(
        &mut self,
        reply: Reply,
        result: Result<Outcome, Refusal>,
        conversation: Option<Arc<Conversation>>,
    ) {
        match reply {
            // The caller may have gone away (a closed HTTP connection); the commit is done all the same.
            Reply::Caller(caller) => drop(caller.send(result)),
            Reply::Session { shard, session, reference } => {
                let result = result.and_then(|outcome| receipt(&outcome, conversation.as_deref()));
                self.by_shard[shard].push(SendReply { session, reference, result });
            }
        }
    }

    pub(super) fn send(self) {
        for (shard, replies) in self.by_shard.into_iter().enumerate() {
            if !replies.is_empty() {
                self.shards.send_replies(shard, replies);
            }
        }
    }
}

/// The receipt of an append.
pub(crate) fn receipt(outcome: &Outcome, conversation: Option<&Conversation>) -> Result<SendReceipt, Refusal> {
    match (outcome, conversation) {
        (Outcome::Appended(a), Some(c)) => {
            Ok(SendReceipt { conversation: c.id.clone(), seq: a.seq, at: a.at, duplicate: a.duplicate })
        }
        (Outcome::MessageChanged { appended: a, .. } | Outcome::Replied { appended: a, .. }, Some(c)) => {
            Ok(SendReceipt { conversation: c.id.clone(), seq: a.seq, at: a.at, duplicate: a.duplicate })
        }
        (Outcome::Rejected(rejection), _) => Err(proposal_refusal(rejection)),
        _ => Err(Refusal::new(ErrorCode::Internal, "an outcome of another kind")),
    }
}

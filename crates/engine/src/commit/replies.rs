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
use tokio::sync::oneshot;

/// The lane item of an outcome, if live members must learn of it.
pub(super) fn lane_item(
    proposal: Proposal,
    conversation: Option<Arc<Conversation>>,
    outcome: &Outcome,
    slot: Option<LaneSlot>,
    at: Instant,
) -> Option<LaneItem> {
    let stored = |content: NewEntry, a: &Appended| StoredEntry { seq: a.seq, position: a.position, at: a.at, content };
    let (conversation, joined, left, entry) = match outcome {
        Outcome::Appended(a) | Outcome::Replied { appended: a, .. } if a.duplicate => return None,
        Outcome::Appended(a) => (conversation?, vec![], vec![], Some(stored(proposed_entry(proposal)?, a))),
        Outcome::Replied { appended, preview } => {
            let mut answer = proposed_entry(proposal)?;
            let reply = answer.message_details_mut().and_then(|details| details.reply_to.as_mut());
            reply.into_iter().for_each(|reply| reply.preview = preview.clone());
            (conversation?, vec![], vec![], Some(stored(answer, appended)))
        }
        Outcome::MessageChanged { appended, entry: Some(told), .. }
        | Outcome::Reacted { told: Some((appended, told)), .. }
        | Outcome::Assigned { told: Some((appended, told)) } => {
            (conversation?, vec![], vec![], Some(stored(NewEntry::clone(told), appended)))
        }
        Outcome::MembersChanged { added, removed, notice, .. } => {
            let entry = proposed_entry(proposal).zip(notice.as_ref()).map(|(content, a)| stored(content, a));
            (conversation?, added.clone(), removed.clone(), entry)
        }
        Outcome::Conversation { conversation: new, created: true } => {
            let Proposal::CreateConversation(NewConversation { members, .. }) = proposal else { return None };
            (Arc::new(new.clone()), members.iter().map(|(user, _)| *user).collect(), vec![], None)
        }
        Outcome::Opened { appended, .. } => {
            let Proposal::OpenDirect { new, entry } = proposal else { return None };
            let joined = new.members.iter().map(|(user, _)| *user).collect();
            (conversation?, joined, vec![], Some(stored(entry, appended)))
        }
        Outcome::MessageChanged { entry: None, .. }
        | Outcome::Reacted { told: None, .. }
        | Outcome::Assigned { told: None }
        | Outcome::Conversation { created: false, .. }
        | Outcome::Desk(_)
        | Outcome::Users { .. }
        | Outcome::Read { .. }
        | Outcome::Preferences { .. }
        | Outcome::Block { .. }
        | Outcome::Report { .. }
        | Outcome::Stored(_)
        | Outcome::Done
        | Outcome::Rejected(_) => return None,
    };
    Some(LaneItem { conversation, joined, hold: None, left, entry, slot, at })
}

/// The entry of a proposal that the store appends as it is.
fn proposed_entry(proposal: Proposal) -> Option<NewEntry> {
    match proposal {
        Proposal::Append { entry, .. } => Some(entry),
        Proposal::UpdateConversation { notice, .. } | Proposal::ChangeMembers { notice, .. } => notice,
        _ => None,
    }
}

type Answer = Result<Outcome, Refusal>;

/// The replies of a batch, sent together: by then caches know the whole batch, and each shard is woken once.
pub(super) struct ReplyBatch<'a> {
    shards: &'a Shards,
    by_shard: Vec<Vec<SendReply>>,
    callers: Vec<(oneshot::Sender<Answer>, Answer)>,
}

impl<'a> ReplyBatch<'a> {
    pub(super) fn new(shards: &'a Shards) -> Self {
        ReplyBatch { shards, by_shard: vec![Vec::new(); shards.count()], callers: Vec::new() }
    }

    pub(super) fn answer(&mut self, reply: Reply, result: Answer, conversation: Option<Arc<Conversation>>) {
        match reply {
            Reply::Caller(caller) => self.callers.push((caller, result)),
            Reply::Session { shard, session, reference } => {
                let version = match result {
                    Ok(Outcome::MessageChanged { version, .. }) => Some(version),
                    _ => None,
                };
                let result = result.and_then(|outcome| receipt(&outcome, conversation.as_deref()));
                self.by_shard[shard].push(SendReply { session, reference, result, version });
            }
        }
    }

    pub(super) fn send(self) {
        for (caller, result) in self.callers {
            // The caller may have gone away (a closed HTTP connection); the commit is done all the same.
            drop(caller.send(result));
        }
        for (shard, replies) in self.by_shard.into_iter().enumerate() {
            if !replies.is_empty() {
                self.shards.send_replies(shard, replies);
            }
        }
    }
}

/// The receipt of an append.
pub(crate) fn receipt(outcome: &Outcome, conversation: Option<&Conversation>) -> Result<SendReceipt, Refusal> {
    if let Outcome::Rejected(rejection) = outcome {
        return Err(proposal_refusal(rejection));
    }
    let (Some(appended), Some(conversation)) = (outcome.appended(), conversation) else {
        return Err(Refusal::new(ErrorCode::Internal, "unexpected outcome"));
    };
    let Appended { seq, at, duplicate, .. } = *appended;
    Ok(SendReceipt { conversation: conversation.id.clone(), seq, at, duplicate })
}

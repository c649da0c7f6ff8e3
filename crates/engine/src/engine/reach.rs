//! Why a user was, or was not, told of a message: what is recorded of it ([`reach_trace`](crate::reach_trace)), and what
//! holds now.

use super::reach_sentences::sentence;
use crate::{
    engine::Engine, offline_recipients::OfflineRecipients, reach_gate::Unwanted, reach_trace::Recorded,
    vendor_push::Waiting,
};
use std::sync::Arc;
use tidings_domain::{
    chat_rows::{self, reach_position_key},
    model::*,
    push_tokens::tokens_of,
    refusals::store_refusal,
    store::{OutboxItem, RowSpace, StoreResult},
};
use tidings_protocol::{
    error::Refusal,
    http::{MessageReach, PolicyRoad, PushVendor, ReachOutcome, ReachRoad, ReachStep},
    limits::PUSH_TOKENS_PER_USER_MAX,
};

/// The outcomes in the order in which they decide: the first of them among the steps says why.
const DECISIVE: [ReachOutcome; 29] = [
    ReachOutcome::Sender,
    ReachOutcome::Read,
    ReachOutcome::Acknowledged,
    ReachOutcome::Accepted,
    ReachOutcome::Recalled,
    ReachOutcome::NotPushed,
    ReachOutcome::Waiting,
    ReachOutcome::Retried,
    ReachOutcome::Replayed,
    ReachOutcome::NotAMember,
    ReachOutcome::JoinedLater,
    ReachOutcome::Superseded,
    ReachOutcome::Refused,
    ReachOutcome::TokenGone,
    ReachOutcome::Expired,
    ReachOutcome::Withdrawn,
    ReachOutcome::Cancelled,
    ReachOutcome::Active,
    ReachOutcome::Muted,
    ReachOutcome::DoNotDisturb,
    ReachOutcome::Snoozed,
    ReachOutcome::RoadOff,
    ReachOutcome::OnlyMentions,
    ReachOutcome::ConditionFalse,
    ReachOutcome::NoRule,
    ReachOutcome::Unacknowledged,
    ReachOutcome::NotRecorded,
    ReachOutcome::NoDevice,
    ReachOutcome::NotSetUp,
];

/// The step that decided. Of one road and device the last step counts, and what was recorded before what holds now.
fn decisive(steps: &[ReachStep], now_ms: u64) -> Option<&ReachStep> {
    let is_overtaken = |at: usize| {
        let step = &steps[at];
        let later = |later: &ReachStep| (later.road, &later.device) == (step.road, &step.device);
        let is_past = step.at.is_some() && step.until.is_some_and(|until| until <= now_ms);
        match step.outcome {
            ReachOutcome::Retried => steps[at + 1..].iter().any(later),
            ReachOutcome::Waiting => is_past,
            _ => false,
        }
    };
    let counting = || (0..steps.len()).filter(|at| !is_overtaken(*at)).map(|at| &steps[at]);
    DECISIVE.iter().find_map(|outcome| counting().filter(|step| step.outcome == *outcome).max_by_key(|step| step.at))
}

fn step(outcome: ReachOutcome, road: Option<ReachRoad>) -> ReachStep {
    ReachStep { at: None, road, outcome, device: None, until: None, cause: None, rule: None }
}

impl From<Recorded> for ReachStep {
    fn from(Recorded { at, road, outcome, cause, device, until, rule }: Recorded) -> ReachStep {
        ReachStep { at: Some(at), road, outcome, device, until, cause, rule: rule.map(|rule| rule.to_string()) }
    }
}

impl Engine {
    /// Why a user was, or was not, told of a message.
    ///
    /// # Errors
    /// `not_found`, `not_a_message`; `store_unavailable`.
    pub fn message_reach(&self, conversation: &str, seq: u64, user: &str) -> Result<MessageReach, Refusal> {
        let conversation = self.directory.require_conversation(conversation)?;
        let user = self.directory.require_user(user)?;
        let message = self.stored_message(&conversation, seq)?;
        let (id, sent_at) = (conversation.id.clone(), message.at);
        let steps = self.reach_steps(conversation, message, &user).map_err(store_refusal)?;
        let decisive =
            decisive(&steps, self.clock.now_ms()).cloned().unwrap_or_else(|| step(ReachOutcome::NotRecorded, None));
        Ok(MessageReach {
            conversation: id,
            seq,
            user: user.id.clone(),
            sent_at,
            outcome: decisive.outcome,
            summary: sentence(&user.id, &decisive, &steps, sent_at),
            steps,
        })
    }

    /// What is recorded, the oldest first, and then what holds now.
    fn reach_steps(
        &self,
        conversation: Arc<Conversation>,
        message: StoredEntry,
        user: &User,
    ) -> StoreResult<Vec<ReachStep>> {
        let now_ms = self.clock.now_ms();
        let content = &message.content;
        let recorded = self.trace.read(&*self.store, conversation.no, &message, user, now_ms)?;
        let mut steps: Vec<ReachStep> = recorded.into_iter().map(ReachStep::from).collect();
        let is_recorded = !steps.is_empty();
        let unpushed = match (content.details().recalled.is_some(), content.silent || content.skip_push) {
            (true, _) => Some(ReachOutcome::Recalled),
            (false, true) => Some(ReachOutcome::NotPushed),
            (false, false) => None,
        };
        steps.extend(unpushed.map(|outcome| step(outcome, None)));
        let (lane, position, sent_at) = (conversation.lane() as usize, message.position, message.at);
        let found = OfflineRecipients::for_one(conversation, message);
        let place = found.message();
        let context = self.offline_push_context();
        // What holds for both of these roads is one step without a road.
        let by_vendors = found.why_unwanted_by(context, user, PolicyRoad::Vendors)?;
        let by_webhook = found.why_unwanted_by(context, user, PolicyRoad::Webhook)?;
        let unwanted = by_vendors.filter(|_| by_vendors == by_webhook);
        if let Some(Unwanted { outcome, until }) = unwanted {
            steps.push(ReachStep { until, ..step(outcome, None) });
            if matches!(outcome, ReachOutcome::Sender | ReachOutcome::NotAMember | ReachOutcome::JoinedLater) {
                return Ok(steps);
            }
        } else {
            let of_vendors = PushVendor::ALL.map(|vendor| (by_vendors, ReachRoad::from(vendor)));
            for (unwanted, road) in of_vendors.into_iter().chain([(by_webhook, ReachRoad::Webhook)]) {
                let step = |Unwanted { outcome, until }| ReachStep { until, ..step(outcome, Some(road)) };
                steps.extend(unwanted.map(step));
            }
        }
        let stored = self.stored_positions(user.no)?;
        if stored[lane] >= position {
            let at = self.recent_acknowledgements.first(user.no, Lane::ALL[lane], position);
            let at = at.filter(|at| *at >= sent_at);
            steps.push(ReachStep { at, ..step(ReachOutcome::Acknowledged, Some(ReachRoad::Session)) });
        }
        for session in self.presence.sessions_of(user.no).into_iter().filter(|session| session.chat) {
            let outcome = if session.background { ReachOutcome::Background } else { ReachOutcome::Active };
            let device = Some(session.device_id.to_string());
            steps.push(ReachStep { device, ..step(outcome, Some(ReachRoad::Session)) });
        }
        if unpushed.is_some() {
            return Ok(steps);
        }
        let is_decided = self.decided_position()? >= position;
        let has_device = self.add_steps_of_vendors(user, place, is_decided, &mut steps)?;
        self.add_steps_of_webhook(user, position, is_decided, &mut steps)?;
        for (policy_road, road) in
            [(PolicyRoad::DevicePush, ReachRoad::DevicePush), (PolicyRoad::Popup, ReachRoad::Popup)]
        {
            if self.internal_roads.is_waiting_for(policy_road, position, user.no)? {
                steps.push(step(ReachOutcome::Waiting, Some(road)));
            }
        }
        let tells = |step: &ReachStep| matches!(step.outcome, ReachOutcome::Acknowledged | ReachOutcome::Waiting);
        let is_told = by_vendors.or(by_webhook).is_some() || is_recorded || steps.iter().any(tells);
        if !is_told && (has_device || self.outbox.is_some()) {
            steps.push(step(ReachOutcome::NotRecorded, None));
        }
        Ok(steps)
    }

    /// Answers whether the user has a device that a vendor reaches.
    fn add_steps_of_vendors(
        &self,
        user: &User,
        message: OutboxItem,
        is_decided: bool,
        steps: &mut Vec<ReachStep>,
    ) -> StoreResult<bool> {
        let Some(vendor_push) = &self.vendor_push else {
            steps.extend(PushVendor::ALL.map(|vendor| step(ReachOutcome::NotSetUp, Some(vendor.into()))));
            return Ok(false);
        };
        let mut has_device = false;
        let tokens = tokens_of(&*self.store, user.no, PUSH_TOKENS_PER_USER_MAX)?;
        for vendor in PushVendor::ALL {
            let road = Some(ReachRoad::from(vendor));
            if !vendor_push.has(vendor) {
                steps.push(step(ReachOutcome::NotSetUp, road));
            } else if !tokens.iter().any(|(_, token)| token.token.vendor() == vendor) {
                steps.push(step(ReachOutcome::NoDevice, road));
            } else if !is_decided {
                has_device = true;
                steps.push(step(ReachOutcome::Waiting, road));
            } else {
                has_device = true;
                for Waiting { device } in vendor_push.waiting_for(vendor, message, user.no)? {
                    steps.push(ReachStep { device: Some(device), ..step(ReachOutcome::Waiting, road) });
                }
            }
        }
        Ok(has_device)
    }

    fn add_steps_of_webhook(
        &self,
        user: &User,
        position: Position,
        is_decided: bool,
        steps: &mut Vec<ReachStep>,
    ) -> StoreResult<()> {
        let road = Some(ReachRoad::Webhook);
        match &self.outbox {
            None => steps.push(step(ReachOutcome::NotSetUp, road)),
            Some(outbox) if !is_decided || outbox.is_waiting_for(position, user.no)? => {
                steps.push(step(ReachOutcome::Waiting, road));
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// The position through which it is decided who is told of messages.
    fn decided_position(&self) -> StoreResult<Position> {
        let row = self.store.row(RowSpace::Chat, &reach_position_key())?;
        // The list is cut behind what is decided.
        Ok(chat_rows::decode::<Position>(row.as_deref())?.max(self.store.outbox_position()?))
    }
}

/// The sentence for a person who is not told now.
pub(super) fn held_back(user: &str, outcome: ReachOutcome, until: Option<u64>) -> String {
    sentence(user, &ReachStep { until, ..step(outcome, None) }, &[], 0)
}

//! Why a user was, or was not, notified of a message: what is recorded of it ([`log`](crate::log)), and what
//! holds now.

use super::sentences::sentence;
use crate::{
    gate::Unwanted, log::Recorded, offline_recipients::OfflineRecipients, operations::Notifications,
    provider_push::Waiting as WaitingDevice,
};
use std::sync::Arc;
use tidings_domain::{
    chat_rows::{self, notification_position_key},
    model::*,
    push_tokens::tokens_of,
    refusals::store_refusal,
    store::{OutboxItem, RowSpace, StoreResult},
};
use tidings_protocol::{
    error::Refusal,
    http::{Channel, MessageNotifications, NotificationOutcome, NotificationStep, PolicyChannel, PushProvider},
    limits::PUSH_TOKENS_PER_USER_MAX,
};

/// The outcomes in the order in which they decide: the first of them among the steps says why.
const DECISIVE: [NotificationOutcome; 29] = [
    NotificationOutcome::Sender,
    NotificationOutcome::Read,
    NotificationOutcome::Acknowledged,
    NotificationOutcome::Accepted,
    NotificationOutcome::Recalled,
    NotificationOutcome::NotPushed,
    NotificationOutcome::Waiting,
    NotificationOutcome::Deferred,
    NotificationOutcome::Retried,
    NotificationOutcome::Replayed,
    NotificationOutcome::NotAMember,
    NotificationOutcome::JoinedLater,
    NotificationOutcome::Superseded,
    NotificationOutcome::Refused,
    NotificationOutcome::TokenGone,
    NotificationOutcome::Expired,
    NotificationOutcome::Removed,
    NotificationOutcome::Cancelled,
    NotificationOutcome::Active,
    NotificationOutcome::Muted,
    NotificationOutcome::DoNotDisturb,
    NotificationOutcome::Snoozed,
    NotificationOutcome::Suspended,
    NotificationOutcome::Blocked,
    NotificationOutcome::ChannelOff,
    NotificationOutcome::OnlyMentions,
    NotificationOutcome::ConditionFalse,
    NotificationOutcome::NoRule,
    NotificationOutcome::Unacknowledged,
];
/// What is said if none of them decides, in this order.
const SAY_LITTLE: [NotificationOutcome; 3] =
    [NotificationOutcome::NotRecorded, NotificationOutcome::NoDevice, NotificationOutcome::NotSetUp];

/// How often what waits is read again because something was recorded meanwhile.
const READ_AGAIN_MAX: usize = 10;

/// The step that decided. Of one channel and device the last step counts, and what was recorded before what holds now.
fn decisive(steps: &[NotificationStep], now_ms: u64) -> Option<&NotificationStep> {
    let is_overtaken = |at: usize| {
        let step = &steps[at];
        let later = |later: &NotificationStep| (later.channel, &later.device) == (step.channel, &step.device);
        let is_past = step.at.is_some() && step.until.is_some_and(|until| until <= now_ms);
        match step.outcome {
            NotificationOutcome::Retried => steps[at + 1..].iter().any(later),
            NotificationOutcome::Waiting | NotificationOutcome::Deferred => is_past,
            _ => false,
        }
    };
    // What a person wishes now is no reason for what was decided then, if that is recorded.
    let is_wish = |step: &NotificationStep| {
        use NotificationOutcome::*;
        step.at.is_none()
            && matches!(step.outcome, Muted | DoNotDisturb | Snoozed | Suspended | Blocked | ChannelOff | OnlyMentions)
    };
    let is_recorded = (0..steps.len()).any(|at| steps[at].at.is_some() && !is_overtaken(at));
    let counts = |at: &usize| !(is_overtaken(*at) || is_recorded && is_wish(&steps[*at]));
    let counting = || (0..steps.len()).filter(counts).map(|at| &steps[at]);
    let first = |outcomes: &[NotificationOutcome]| {
        let last_of = |outcome| counting().filter(|step| step.outcome == outcome).max_by_key(|step| step.at);
        outcomes.iter().find_map(|outcome| last_of(*outcome))
    };
    // What was due and of which nothing else is known yet says more than what is not set up.
    let overdue = || steps.iter().filter(|step| step.at.is_some() && step.until.is_some()).max_by_key(|step| step.at);
    first(&DECISIVE).or_else(overdue).or_else(|| first(&SAY_LITTLE))
}

fn step(outcome: NotificationOutcome, channel: Option<Channel>) -> NotificationStep {
    NotificationStep { at: None, channel, outcome, device: None, until: None, cause: None, rule: None }
}

impl From<Recorded> for NotificationStep {
    fn from(Recorded { at, channel, outcome, cause, device, until, rule }: Recorded) -> NotificationStep {
        NotificationStep {
            at: Some(at),
            channel,
            outcome,
            device,
            until,
            cause,
            rule: rule.map(|rule| rule.to_string()),
        }
    }
}

impl Notifications {
    /// Why a user was, or was not, notified of a message.
    ///
    /// # Errors
    /// `not_found`, `not_a_message`; `store_unavailable`.
    pub fn message_notifications(
        &self,
        conversation: &str,
        seq: u64,
        user: &str,
    ) -> Result<MessageNotifications, Refusal> {
        let conversation = self.context.directory.require_conversation(conversation)?;
        let user = self.context.directory.require_user(user)?;
        let message = self.engine.stored_message(&conversation, seq)?;
        let (id, sent_at) = (conversation.id.clone(), message.at);
        let steps = self.notification_steps(conversation, message, &user).map_err(store_refusal)?;
        let decisive = decisive(&steps, self.context.clock.now_ms())
            .cloned()
            .unwrap_or_else(|| step(NotificationOutcome::NotRecorded, None));
        Ok(MessageNotifications {
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
    fn notification_steps(
        &self,
        conversation: Arc<Conversation>,
        message: StoredEntry,
        user: &User,
    ) -> StoreResult<Vec<NotificationStep>> {
        let now_ms = self.context.clock.now_ms();
        let content = &message.content;
        let (lane, position, sent_at) = (conversation.lane() as usize, message.position, message.at);
        let place = OutboxItem { position, conversation: conversation.no, seq: message.seq };
        let record = || self.context.trace.read(&*self.context.store, conversation.no, &message, user, now_ms);
        // One commit turns what waits into what is recorded. Neither is missed and none is shown as both, if nothing was recorded while
        // what waits was read.
        let mut recorded = record()?;
        let (mut has_device, mut waiting) = self.waiting_steps(user, place)?;
        for _ in 0..READ_AGAIN_MAX {
            let before = std::mem::replace(&mut recorded, record()?);
            if before == recorded {
                break;
            }
            (has_device, waiting) = self.waiting_steps(user, place)?;
        }
        let mut steps: Vec<NotificationStep> = recorded.into_iter().map(NotificationStep::from).collect();
        let is_recorded = !steps.is_empty();
        let unpushed = match (content.is_recalled(), content.silent || content.skip_push || content.is_hidden()) {
            (true, _) => Some(NotificationOutcome::Recalled),
            (false, true) => Some(NotificationOutcome::NotPushed),
            (false, false) => None,
        };
        steps.extend(unpushed.map(|outcome| step(outcome, None)));
        let found = OfflineRecipients::for_one(&self.context, conversation, message);
        let context = &*self.context;
        // Sessions are steps of their own. What holds for both of these channels is one step without a channel.
        let by_providers = found.why_not(context, user, PolicyChannel::Providers, true)?;
        let by_webhook = found.why_not(context, user, PolicyChannel::Webhook, true)?;
        let unwanted = by_providers.filter(|_| by_providers == by_webhook);
        if let Some(Unwanted { outcome, until, .. }) = unwanted {
            steps.push(NotificationStep { until, ..step(outcome, None) });
            if matches!(
                outcome,
                NotificationOutcome::Sender | NotificationOutcome::NotAMember | NotificationOutcome::JoinedLater
            ) {
                return Ok(steps);
            }
        } else {
            let of_providers = PushProvider::ALL.map(|provider| (by_providers, Channel::from(provider)));
            for (unwanted, channel) in of_providers.into_iter().chain([(by_webhook, Channel::Webhook)]) {
                let step = |Unwanted { outcome, until, .. }| NotificationStep { until, ..step(outcome, Some(channel)) };
                steps.extend(unwanted.map(step));
            }
        }
        let stored = self.engine.stored_positions(user.no)?;
        if stored[lane] >= position {
            let at = self.engine.acknowledged_at(user.no, Lane::ALL[lane], position);
            let at = at.filter(|at| *at >= sent_at);
            steps.push(NotificationStep { at, ..step(NotificationOutcome::Acknowledged, Some(Channel::Session)) });
        }
        for session in self.context.presence.sessions_of(user.no).into_iter().filter(|session| session.chat) {
            let outcome =
                if session.background { NotificationOutcome::Background } else { NotificationOutcome::Active };
            let device = Some(session.device_id.to_string());
            steps.push(NotificationStep { device, ..step(outcome, Some(Channel::Session)) });
        }
        if unpushed.is_some() {
            return Ok(steps);
        }
        steps.extend(waiting);
        let tells = |step: &NotificationStep| {
            matches!(step.outcome, NotificationOutcome::Acknowledged | NotificationOutcome::Waiting)
        };
        let is_notified = by_providers.or(by_webhook).is_some() || is_recorded || steps.iter().any(tells);
        if !is_notified && (has_device || self.webhook_push.is_some()) {
            steps.push(step(NotificationOutcome::NotRecorded, None));
        }
        Ok(steps)
    }

    /// What is still to be tried, and what can't be; and whether the user has a device that a provider reaches.
    fn waiting_steps(&self, user: &User, message: OutboxItem) -> StoreResult<(bool, Vec<NotificationStep>)> {
        use NotificationOutcome::{NoDevice, NotSetUp, Waiting};
        let is_decided = self.decided_position()? >= message.position;
        let mut steps = Vec::new();
        let tokens = tokens_of(&*self.context.store, user.no, PUSH_TOKENS_PER_USER_MAX)?;
        let mut has_device = false;
        for provider in PushProvider::ALL {
            let channel = Some(Channel::from(provider));
            let Some(provider_push) = self.provider_push.as_ref().filter(|set_up| set_up.has(provider)) else {
                steps.push(step(NotSetUp, channel));
                continue;
            };
            if !tokens.iter().any(|(_, token)| token.token.provider() == provider) {
                steps.push(step(NoDevice, channel));
                continue;
            }
            has_device = true;
            if is_decided {
                let waiting = provider_push.waiting_for(provider, message, user.no)?;
                let of_device = |waiting: WaitingDevice| NotificationStep {
                    device: Some(waiting.device),
                    ..step(Waiting, channel)
                };
                steps.extend(waiting.into_iter().map(of_device));
            } else {
                steps.push(step(Waiting, channel));
            }
        }
        match &self.webhook_push {
            None => steps.push(step(NotSetUp, Some(Channel::Webhook))),
            Some(webhook) if !is_decided || webhook.is_waiting_for(message.position, user.no)? => {
                steps.push(step(Waiting, Some(Channel::Webhook)));
            }
            Some(_) => {}
        }
        for channel in [Channel::DevicePush, Channel::Popup] {
            if self.internal_channels.is_waiting_for(channel, message.position, user.no)? {
                steps.push(step(Waiting, Some(channel)));
            }
        }
        Ok((has_device, steps))
    }

    /// The position through which it is decided who is notified of messages.
    fn decided_position(&self) -> StoreResult<Position> {
        let store = &self.context.store;
        let row = store.row(RowSpace::Chat, &notification_position_key())?;
        // The list is cut behind what is decided.
        Ok(chat_rows::decode::<Position>(row.as_deref())?.max(store.outbox_position()?))
    }
}

/// The sentence for a person who is not notified now.
pub(crate) fn held_back(user: &str, outcome: NotificationOutcome, until: Option<u64>) -> String {
    sentence(user, &NotificationStep { until, ..step(outcome, None) }, &[], 0)
}

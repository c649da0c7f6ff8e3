//! Dead letters: notifications that the webhook or a provider did not take, to be listed, replayed and deleted.
//!
//! The two kinds are stored separately. Lists have those of the webhook first.

use super::Notifications;
use crate::{
    provider_push::dead_letters::{
        self as provider_letters, LetterMessage, LetterSubject, ProviderDeadLetter, ProviderFilter,
    },
    webhook_push::dead_letters::{self as webhook_letters, WebhookFilter},
};
use std::collections::BTreeSet;
use tidings_domain::{
    model::{ConversationNo, UserNo},
    refusals::{leader_unavailable, store_refusal},
    store::{Proposal, StoreResult},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{
        Channel, DeadLetter, DeadLetterId, DeadLetterPage, DeadLetterSubject, DeadLettersDeleted, DeadLettersReplayed,
        NotificationOutcome, SelectDeadLetters,
    },
};

/// Dead letters in a page, and those that are named in a request.
const PAGE_MAX: usize = 500;
/// Dead letters that are selected at once, and those that one write replays or deletes.
const AT_ONCE: usize = 100;

/// Which dead letters of each kind; `None`: none of this kind.
struct Filter {
    webhook: Option<WebhookFilter>,
    providers: Option<ProviderFilter>,
}

/// A dead letter as it was found. What a provider's says of it in names is looked up when it is shown.
enum Found {
    Webhook(DeadLetter),
    Provider(u64, ProviderDeadLetter),
}

impl Found {
    fn id(&self) -> DeadLetterId {
        match self {
            Found::Webhook(letter) => letter.id,
            Found::Provider(number, _) => DeadLetterId::Provider(*number),
        }
    }
}

/// The numbers of selected dead letters, and their channels.
#[derive(Default)]
struct Selected {
    webhook: Vec<u64>,
    providers: Vec<u64>,
    channels: BTreeSet<Channel>,
}

impl Selected {
    fn add(&mut self, id: DeadLetterId, channel: Channel) {
        match id {
            DeadLetterId::Webhook(number) => self.webhook.push(number),
            DeadLetterId::Provider(number) => self.providers.push(number),
        }
        self.channels.insert(channel);
    }
}

impl Notifications {
    /// A page of the dead letters that meet the conditions of `select`: those of the webhook, then those of providers, each the oldest
    /// first. Blocks.
    ///
    /// # Errors
    /// `invalid_field` for a channel without dead letters; `not_found` for an unknown user; `limit_exceeded`; `store_unavailable`.
    pub fn dead_letters(
        &self,
        after: Option<DeadLetterId>,
        limit: usize,
        select: &SelectDeadLetters,
    ) -> Result<DeadLetterPage, Refusal> {
        let limit = if limit == 0 { PAGE_MAX } else { limit };
        if limit > PAGE_MAX {
            return Err(Refusal::limit("limit (dead letters)", PAGE_MAX as u64, limit as u64));
        }
        let filter = self.filter(select)?;
        let mut found = self.find(after, &filter, limit + 1).map_err(store_refusal)?;
        let has_more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| has_more).map(Found::id);
        let shown: StoreResult<Vec<_>> = found.into_iter().map(|found| self.show(found)).collect();
        Ok(DeadLetterPage { dead_letters: shown.map_err(store_refusal)?, next })
    }

    /// Tries dead letters again. At the leader. Blocks.
    ///
    /// An event of the webhook is tried once, by itself, so that one that fails holds up none of the others, and stays a dead letter
    /// until it is delivered. A provider's notification is a job again; if its user has read the message meanwhile, has muted the
    /// conversation or is otherwise not to be notified any more, it is removed.
    ///
    /// # Errors
    /// `conflict` if a channel of the dead letters is not set up; `not_found` for an unknown dead letter or user; `invalid_field`;
    /// `limit_exceeded`; `queue_full`; `node_unavailable` at a node that does not lead: nothing was done. `store_unavailable`: some
    /// may be replayed.
    pub fn replay_dead_letters(&self, select: &SelectDeadLetters) -> Result<DeadLettersReplayed, Refusal> {
        let term = self.context.lead.term().ok_or_else(leader_unavailable)?;
        let Selected { webhook, providers, channels } = self.selected(select)?;
        if let Some(channel) = channels.into_iter().find(|channel| !self.is_set_up(*channel)) {
            let why = format!("offline push by {} is not set up; no dead letter was replayed", channel.name());
            return Err(Refusal::new(ErrorCode::Conflict, why));
        }
        let mut answer = DeadLettersReplayed { replayed: webhook.len(), dropped: Vec::new() };
        if let Some(webhook_push) = self.webhook_push.as_ref().filter(|_| !webhook.is_empty()) {
            webhook_push.replay(webhook)?;
        }
        if let Some(provider_push) = &self.provider_push {
            for numbers in providers.chunks(AT_ONCE) {
                let replay = provider_push.replay(term, numbers).map_err(store_refusal)?;
                answer.replayed += replay.jobs.len();
                answer.dropped.extend(replay.dropped);
            }
        }
        Ok(answer)
    }

    /// Deletes dead letters, also those of channels that are not set up any more. At the leader. Blocks.
    ///
    /// # Errors
    /// `not_found` for an unknown dead letter or user; `invalid_field`; `limit_exceeded`; `node_unavailable` at a node that does not
    /// lead: nothing was done. `store_unavailable`, `queue_full`: some may be deleted.
    pub fn delete_dead_letters(&self, select: &SelectDeadLetters) -> Result<DeadLettersDeleted, Refusal> {
        let term = self.context.lead.term().ok_or_else(leader_unavailable)?;
        let Selected { webhook, providers, .. } = self.selected(select)?;
        for numbers in webhook.chunks(AT_ONCE) {
            let keys = numbers.iter().map(|number| webhook_letters::key_of(*number)).collect();
            self.context.proposals.propose_blocking(Proposal::DeleteStoredNotifications { keys })?;
        }
        for numbers in providers.chunks(AT_ONCE) {
            self.provider_dead_letters.delete(&self.context, term, numbers).map_err(store_refusal)?;
        }
        Ok(DeadLettersDeleted { deleted: webhook.len() + providers.len() })
    }

    fn is_set_up(&self, channel: Channel) -> bool {
        match channel.provider() {
            Some(provider) => self.provider_push.as_ref().is_some_and(|provider_push| provider_push.has(provider)),
            None => self.webhook_push.is_some(),
        }
    }

    fn selected(&self, select: &SelectDeadLetters) -> Result<Selected, Refusal> {
        let Some(ids) = &select.ids else {
            let filter = self.filter(select)?;
            return self.all_that_fit(&filter).map_err(store_refusal);
        };
        if *select != (SelectDeadLetters { ids: select.ids.clone(), ..SelectDeadLetters::default() }) {
            return Err(Refusal::field("ids", "cannot be together with another condition"));
        }
        if ids.len() > PAGE_MAX {
            return Err(Refusal::limit("ids", PAGE_MAX as u64, ids.len() as u64));
        }
        self.named(ids.iter().copied().collect())
    }

    fn all_that_fit(&self, filter: &Filter) -> StoreResult<Selected> {
        let (mut selected, mut after) = (Selected::default(), None);
        loop {
            let found = self.find(after, filter, AT_ONCE)?;
            let Some(last) = found.last() else { return Ok(selected) };
            after = Some(last.id());
            for found in &found {
                let channel = match found {
                    Found::Webhook(letter) => letter.channel,
                    Found::Provider(_, letter) => letter.provider.into(),
                };
                selected.add(found.id(), channel);
            }
        }
    }

    fn named(&self, ids: BTreeSet<DeadLetterId>) -> Result<Selected, Refusal> {
        let store = &*self.context.store;
        let mut selected = Selected::default();
        for id in ids {
            let channel = match id {
                DeadLetterId::Webhook(number) => {
                    webhook_letters::exists(store, number).map(|exists| exists.then_some(Channel::Webhook))
                }
                DeadLetterId::Provider(number) => provider_letters::find(store, &[number])
                    .map(|found| found.first().map(|(_, letter)| letter.provider.into())),
            };
            let channel = channel.map_err(store_refusal)?;
            selected.add(id, channel.ok_or_else(|| Refusal::not_found("dead letter", &id.to_string()))?);
        }
        Ok(selected)
    }

    fn filter(&self, select: &SelectDeadLetters) -> Result<Filter, Refusal> {
        let SelectDeadLetters { ids: _, channel, user, outcome, cause } = select;
        let provider = channel.and_then(Channel::provider);
        if channel.is_some_and(|channel| channel != Channel::Webhook) && provider.is_none() {
            return Err(Refusal::field("channel", "must be one of webhook, apns, fcm, web_push, huawei"));
        }
        let user = user.as_ref().map(|user| self.context.directory.require_user(user)).transpose()?;
        // The webhook's are refused, all of them.
        let is_webhooks = provider.is_none() && outcome.is_none_or(|outcome| outcome == NotificationOutcome::Refused);
        let webhook = is_webhooks
            .then(|| WebhookFilter { user: user.as_ref().map(|user| user.id.clone()), cause: cause.clone() });
        let providers = (*channel != Some(Channel::Webhook)).then(|| ProviderFilter {
            provider,
            user: user.map(|user| user.no),
            outcome: *outcome,
            cause: cause.clone(),
        });
        Ok(Filter { webhook, providers })
    }

    /// Dead letters behind an id that fit, in the order of lists, at most `limit`.
    fn find(&self, after: Option<DeadLetterId>, filter: &Filter, limit: usize) -> StoreResult<Vec<Found>> {
        let store = &*self.context.store;
        let (after_webhooks, after_providers) = match after {
            None => (None, None),
            Some(DeadLetterId::Webhook(number)) => (Some(number), None),
            Some(DeadLetterId::Provider(number)) => (None, Some(number)),
        };
        let mut found = Vec::new();
        if let Some(filter) = filter.webhook.as_ref().filter(|_| after_providers.is_none()) {
            found.extend(webhook_letters::list(store, after_webhooks, filter, limit)?.into_iter().map(Found::Webhook));
        }
        if let Some(filter) = &filter.providers {
            let letters = provider_letters::list(store, after_providers, filter, limit - found.len())?;
            found.extend(letters.into_iter().map(|(number, letter)| Found::Provider(number, letter)));
        }
        Ok(found)
    }

    /// A user that is not there any more is left out, and a conversation has no name then.
    fn show(&self, found: Found) -> StoreResult<DeadLetter> {
        let directory = &self.context.directory;
        let id = found.id();
        let ProviderDeadLetter { provider, subject, target, failed_at, attempts, outcome, cause } = match found {
            Found::Webhook(letter) => return Ok(letter),
            Found::Provider(_, letter) => letter,
        };
        let user = directory.user(UserNo(target.0))?;
        let subject = match subject {
            LetterSubject::Message(LetterMessage { conversation, seq, .. }) => {
                let conversation = directory.conversation(ConversationNo(conversation))?;
                let conversation = conversation.map(|conversation| conversation.id.clone()).unwrap_or_default();
                DeadLetterSubject::Message { conversation, seq }
            }
            LetterSubject::Push { push } => DeadLetterSubject::Push { push },
        };
        Ok(DeadLetter {
            id,
            channel: provider.into(),
            users: user.map(|user| user.id.clone()).into_iter().collect(),
            device_id: Some(target.1),
            subject,
            failed_at,
            attempts,
            outcome,
            cause,
            event: None,
        })
    }
}

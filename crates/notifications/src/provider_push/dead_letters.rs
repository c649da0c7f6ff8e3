//! Dead letters: notifications that were given up, with the cause. They name users, devices and messages, never tokens or texts.
//!
//! Rows in the order of time, a bounded number, for a bounded time. Replayed, a notification is a job again, if its user is still to be
//! notified of the message.

use crate::{
    channel_jobs::{Due, Job, JobPart, PushJob, Target},
    gate::{self, DueChannel},
    log::Source,
    offline_recipients::{OfflinePushContext, OfflineRecipients},
    person_facts::facts_of,
    policy::MessageFacts,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tidings_domain::{
    chat_rows::{decode, encode, number_in, provider_dead_letter_key},
    leadership::Term,
    model::*,
    push_tokens::{RegisteredToken, device_key, digest_in, token_key},
    store::*,
};
use tidings_protocol::http::{DeadLetterId, DroppedDeadLetter, NotificationOutcome, PolicyChannel, PushProvider};
use tidings_push::{FallbackDevice, FallbackState};

/// Dead letters that are kept. Full: the oldest make room.
const DEAD_LETTERS_MAX: u64 = 10_000;
/// Rows that are read or deleted at once.
const ROWS_AT_ONCE: usize = 500;
/// How often old ones are removed, and all are counted.
const PRUNE_EVERY_MS: u64 = 60 * 60 * 1_000;
/// Ids are the time in milliseconds with so many bits behind it, so that they grow with time, also after a restart. They fit into
/// the 53 bits that every JSON parser reads exactly.
const ID_BITS: u32 = 12;

/// A notification that was given up. The names are short since there are many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProviderDeadLetter {
    #[serde(rename = "v")]
    pub(crate) provider: PushProvider,
    #[serde(flatten)]
    pub(crate) subject: LetterSubject,
    #[serde(rename = "t")]
    pub(crate) target: Target,
    #[serde(rename = "f")]
    pub(crate) failed_at: u64,
    #[serde(rename = "a")]
    pub(crate) attempts: u32,
    #[serde(rename = "o")]
    pub(crate) outcome: NotificationOutcome,
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<String>,
}

/// What such a notification was about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum LetterSubject {
    Message(LetterMessage),
    /// A push, to which no policy applies.
    Push {
        #[serde(rename = "n")]
        push: u64,
    },
}

/// The message of such a notification, and what decided it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LetterMessage {
    #[serde(rename = "c")]
    pub(crate) conversation: u64,
    #[serde(rename = "s")]
    pub(crate) seq: u64,
    /// The policy's version, rule and channel, as the [`Job`] had them. Rows of the form before have none of them.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<u32>,
    #[serde(rename = "r", default, skip_serializing_if = "String::is_empty")]
    pub(crate) rule: String,
    #[serde(rename = "i", default)]
    pub(crate) step: u32,
}

/// Which dead letters of providers.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProviderFilter {
    pub(crate) provider: Option<PushProvider>,
    pub(crate) user: Option<UserNo>,
    pub(crate) outcome: Option<NotificationOutcome>,
    /// A part of the cause.
    pub(crate) cause: Option<String>,
}

impl ProviderFilter {
    fn fits(&self, letter: &ProviderDeadLetter) -> bool {
        self.provider.is_none_or(|provider| provider == letter.provider)
            && self.user.is_none_or(|user| user.0 == letter.target.0)
            && self.outcome.is_none_or(|outcome| outcome == letter.outcome)
            && self.cause.as_ref().is_none_or(|part| letter.cause.as_ref().is_some_and(|cause| cause.contains(part)))
    }
}

/// The dead letters of all providers. What changes them is done by the leader alone.
pub(crate) struct ProviderDeadLetters {
    kept: Duration,
    /// Locked while rows are changed.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The term in which the rows were counted.
    term: Option<Term>,
    count: u64,
    last_id: u64,
    pruned_at: u64,
}

impl ProviderDeadLetters {
    pub(crate) fn new(kept: Duration) -> ProviderDeadLetters {
        ProviderDeadLetters { kept, known: Mutex::default() }
    }

    /// Adds the rows of notifications that are given up, and the removal of those that make room for them.
    pub(crate) fn add(
        &self,
        context: &OfflinePushContext,
        term: Term,
        letters: Vec<ProviderDeadLetter>,
        changes: &mut Vec<RowChange>,
    ) -> StoreResult<()> {
        if letters.is_empty() || self.kept.is_zero() {
            return Ok(());
        }
        let mut known = self.known.lock();
        self.count(context, term, &mut known)?;
        let over = (known.count + letters.len() as u64).saturating_sub(DEAD_LETTERS_MAX);
        let (from, to) = all();
        let oldest = context.store.rows(RowSpace::Chat, &from, &to, over as usize)?;
        known.count = (known.count + letters.len() as u64).saturating_sub(oldest.len() as u64);
        changes.extend(oldest.into_iter().map(|(key, _)| RowChange { key, value: None }));
        for letter in letters {
            known.last_id = (known.last_id + 1).max(letter.failed_at << ID_BITS);
            changes.push(RowChange { key: provider_dead_letter_key(known.last_id), value: Some(encode(&letter)) });
        }
        context.metrics.provider_dead_letters.set(known.count as i64);
        Ok(())
    }

    /// Counts the rows, once in a term.
    fn count(&self, context: &OfflinePushContext, term: Term, known: &mut Known) -> StoreResult<()> {
        if known.term == Some(term) {
            return Ok(());
        }
        *known = Known { pruned_at: known.pruned_at, ..Known::default() };
        let (mut from, to) = all();
        loop {
            let rows = context.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE)?;
            known.count += rows.len() as u64;
            let Some((last, _)) = rows.last() else { break };
            known.last_id = number_in(last, 0).unwrap_or_default();
            from = [&last[..], &[0]].concat();
        }
        known.term = Some(term);
        context.metrics.provider_dead_letters.set(known.count as i64);
        Ok(())
    }

    /// Removes those that are too old, now and then.
    pub(crate) fn prune(&self, context: &OfflinePushContext, term: Term) -> StoreResult<()> {
        let mut known = self.known.lock();
        let now_ms = context.clock.now_ms();
        if now_ms.abs_diff(known.pruned_at) < PRUNE_EVERY_MS && known.term == Some(term) {
            return Ok(());
        }
        let kept_ms = u64::try_from(self.kept.as_millis()).unwrap_or(u64::MAX);
        let last = provider_dead_letter_key(now_ms.saturating_sub(kept_ms) << ID_BITS);
        loop {
            let rows = context.store.rows(RowSpace::Chat, &all().0, &last, ROWS_AT_ONCE)?;
            if rows.is_empty() {
                break;
            }
            let changes = rows.into_iter().map(|(key, _)| RowChange { key, value: None }).collect();
            context.store.write_rows(term, RowSpace::Chat, changes)?;
        }
        (known.pruned_at, known.term) = (now_ms, None);
        self.count(context, term, &mut known)
    }

    /// Deletes these.
    pub(crate) fn delete(&self, context: &OfflinePushContext, term: Term, ids: &[u64]) -> StoreResult<()> {
        let mut known = self.known.lock();
        let changes = ids.iter().map(|id| RowChange { key: provider_dead_letter_key(*id), value: None }).collect();
        context.store.write_rows(term, RowSpace::Chat, changes)?;
        known.term = None;
        self.count(context, term, &mut known)
    }

    /// Makes jobs of these dead letters, of those whose users are still to be notified; answers with the keys of the jobs, and with those that
    /// are dropped, and why.
    pub(crate) fn replay(&self, context: &OfflinePushContext, term: Term, ids: &[u64]) -> StoreResult<Replay> {
        let mut known = self.known.lock();
        let letters = find(&*context.store, ids)?;
        let (now_ms, mut changes, mut replay) = (context.clock.now_ms(), Vec::new(), Replay::default());
        for (id, letter) in letters {
            changes.push(RowChange { key: provider_dead_letter_key(id), value: None });
            let ProviderDeadLetter { provider, ref subject, ref target, .. } = letter;
            let message = match subject {
                LetterSubject::Message(message) => message,
                LetterSubject::Push { push } => {
                    match push_job_if_wanted(context, provider, *push, target, now_ms)? {
                        Ok(job) => {
                            let (due, part) = (Due::Now(provider.into()), JobPart::replayed_push(id));
                            let position = context.store.last_position();
                            job.add_rows(due, position, part, vec![target.clone()], &mut replay.jobs);
                        }
                        Err(reason) => {
                            replay.dropped.push(DroppedDeadLetter { id: DeadLetterId::Provider(id), reason });
                        }
                    }
                    continue;
                }
            };
            let part = JobPart::replayed(id);
            let LetterMessage { conversation, seq, policy, ref rule, step } = *message;
            let outcome = match position_if_wanted(context, provider, message, target)? {
                Ok(position) => {
                    let key = Due::Now(provider.into()).key(position, part);
                    let (targets, rule) = (vec![target.clone()], rule.clone());
                    let job =
                        Job { conversation, seq, targets, rule, step, policy, counts_from: now_ms, ..Job::default() };
                    replay.jobs.push(RowChange { key, value: Some(job.encode()) });
                    NotificationOutcome::Replayed
                }
                Err(reason) => {
                    replay.dropped.push(DroppedDeadLetter { id: DeadLetterId::Provider(id), reason });
                    reason
                }
            };
            let record = target.record(outcome, None);
            let message = (ConversationNo(conversation), seq);
            context.trace.add(message, Source::Search { part: part.number() }, now_ms, [record], &mut changes);
        }
        changes.extend(replay.jobs.iter().cloned());
        context.store.write_rows(term, RowSpace::Chat, changes)?;
        known.term = None;
        self.count(context, term, &mut known)?;
        Ok(replay)
    }
}

/// What a replay came to.
#[derive(Default)]
pub(crate) struct Replay {
    pub(crate) jobs: Vec<RowChange>,
    pub(crate) dropped: Vec<DroppedDeadLetter>,
}

fn all() -> (Vec<u8>, Vec<u8>) {
    (provider_dead_letter_key(0), provider_dead_letter_key(u64::MAX))
}

/// The message's position, if its user is still to be notified by this device; else why not.
fn position_if_wanted(
    context: &OfflinePushContext,
    provider: PushProvider,
    message: &LetterMessage,
    target: &Target,
) -> StoreResult<Result<Position, NotificationOutcome>> {
    let no = UserNo(target.0);
    let found = OfflineRecipients::of(context, ConversationNo(message.conversation), message.seq)?;
    let Some(found) = found else { return Ok(Err(NotificationOutcome::Recalled)) };
    let Some(user) = context.directory.user(no)? else { return Ok(Err(NotificationOutcome::NotAMember)) };
    if let Some(unwanted) = found.why_not(context, &user, PolicyChannel::Providers, false)? {
        return Ok(Err(unwanted.outcome));
    }
    if !condition_holds(context, message, &found, &user)? {
        return Ok(Err(NotificationOutcome::ConditionFalse));
    }
    let has_token = has_token(context, provider, target)?;
    Ok(if has_token { Ok(found.entry.position) } else { Err(NotificationOutcome::NoDevice) })
}

/// The job of a push, if its device is still to be notified; else why not.
fn push_job_if_wanted(
    context: &OfflinePushContext,
    provider: PushProvider,
    push: u64,
    target: &Target,
    now_ms: u64,
) -> StoreResult<Result<PushJob, NotificationOutcome>> {
    let user = UserNo(target.0);
    let device = FallbackDevice { user, device_id: target.1.clone() };
    let found = context.push.push_notification(push, vec![device]);
    let found = found.map_err(|refusal| StoreError::Unavailable(refusal.to_string()))?;
    let Some(found) = found else { return Ok(Err(NotificationOutcome::Expired)) };
    if let Some(reason) = found.states.iter().find_map(|state| why_settled(*state)) {
        return Ok(Err(reason));
    }
    let Some(user) = context.directory.user(user)? else { return Ok(Err(NotificationOutcome::NoDevice)) };
    if let Some(unwanted) = gate::why_not_by_fallback(&user, found.push_expires_at, false, now_ms) {
        return Ok(Err(unwanted.outcome));
    }
    if !has_token(context, provider, target)? {
        return Ok(Err(NotificationOutcome::NoDevice));
    }
    Ok(Ok(PushJob { push, expires_at: found.push_expires_at, counts_from: now_ms, ..PushJob::default() }))
}

/// Why a device is not notified in place of a push; `None`: it is to be.
pub(super) fn why_settled(state: FallbackState) -> Option<NotificationOutcome> {
    match state {
        FallbackState::Wanted => None,
        FallbackState::Sent => Some(NotificationOutcome::Accepted),
        FallbackState::Acknowledged => Some(NotificationOutcome::Acknowledged),
        FallbackState::Collapsed => Some(NotificationOutcome::Superseded),
        FallbackState::Cancelled => Some(NotificationOutcome::Cancelled),
        FallbackState::Expired => Some(NotificationOutcome::Expired),
        FallbackState::NoDevice => Some(NotificationOutcome::NoDevice),
    }
}

/// Whether the provider has a token of the device.
fn has_token(context: &OfflinePushContext, provider: PushProvider, Target(user, device): &Target) -> StoreResult<bool> {
    let no = UserNo(*user);
    let digest = digest_in(context.store.row(RowSpace::Chat, &device_key(no, device))?.as_deref())?;
    let token = match digest {
        Some(digest) => RegisteredToken::decode(context.store.row(RowSpace::Chat, &token_key(digest))?.as_deref())?,
        None => None,
    };
    Ok(token.is_some_and(|token| token.is_of(no, device) && token.token.provider() == provider))
}

/// Whether the condition of the letter's channel holds now, by the policy that decided the message.
fn condition_holds(
    context: &OfflinePushContext,
    decided: &LetterMessage,
    found: &OfflineRecipients,
    user: &User,
) -> StoreResult<bool> {
    let policy = context.policies.deciding(decided.policy)?;
    let Some(step) = policy.step(&decided.rule, decided.step) else { return Ok(true) };
    let person = &facts_of(context, &policy, user)?;
    let message = &MessageFacts::of(&found.conversation, &found.entry.content);
    let due = DueChannel { policy: &policy, step, message, person };
    Ok(due.why_not_by_condition(context.clock.now_ms()).is_none())
}

/// Dead letters behind an id that fit, the oldest first, at most `limit`.
pub(crate) fn list(
    store: &dyn Store,
    after: Option<u64>,
    filter: &ProviderFilter,
    limit: usize,
) -> StoreResult<Vec<(u64, ProviderDeadLetter)>> {
    let (mut from, to) = (provider_dead_letter_key(after.map_or(0, |after| after.saturating_add(1))), all().1);
    let mut found = Vec::new();
    while found.len() < limit {
        let rows = store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE)?;
        let Some((last, _)) = rows.last() else { break };
        from = [&last[..], &[0]].concat();
        for (key, row) in &rows {
            // A row of a newer version that this one cannot read is not shown.
            let Ok(Some(letter)) = decode::<Option<ProviderDeadLetter>>(Some(row)) else { continue };
            if filter.fits(&letter) && found.len() < limit {
                found.push((number_in(key, 0).unwrap_or_default(), letter));
            }
        }
    }
    Ok(found)
}

/// The dead letters with these ids, without those that are not there.
pub(crate) fn find(store: &dyn Store, ids: &[u64]) -> StoreResult<Vec<(u64, ProviderDeadLetter)>> {
    let keys: Vec<_> = ids.iter().map(|id| provider_dead_letter_key(*id)).collect();
    let rows = store.rows_of(RowSpace::Chat, &keys)?;
    let letter = |(id, row): (&u64, Option<Vec<u8>>)| {
        decode::<Option<ProviderDeadLetter>>(row.as_deref()).map(|found| found.map(|found| (*id, found))).transpose()
    };
    ids.iter().zip(rows).filter_map(letter).collect()
}

//! Dead letters: notifications that were given up, with the cause. They name users, devices and messages, never tokens or texts.
//!
//! Rows in the order of time, a bounded number, for a bounded time. Replayed, a notification is a job again, if its user is still to be
//! told of the message.

use crate::{
    offline_recipients::{OfflinePushContext, OfflineRecipients},
    reach_trace::Source,
    road_jobs::{Job, JobRoad, Target, service_of_part},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tidings_domain::{
    chat_rows::{decode, encode, number_in, vendor_dead_letter_key},
    leadership::Term,
    model::*,
    push_tokens::{RegisteredToken, device_key, digest_in, token_key},
    store::*,
};
use tidings_protocol::http::{DroppedDeadLetter, PolicyRoad, PushVendor, ReachOutcome};

/// Dead letters that are kept. Full: the oldest make room.
pub(super) const DEAD_LETTERS_MAX: u64 = 10_000;
/// Rows that are read or deleted at once.
const ROWS_AT_ONCE: usize = 500;
/// How often old ones are removed, and all are counted.
const PRUNE_EVERY_MS: u64 = 60 * 60 * 1_000;
/// Ids are the time in milliseconds with so many bits behind it, so that they grow with time, also after a restart. They fit into
/// the 53 bits that every JSON parser reads exactly.
const ID_BITS: u32 = 12;
/// The bit of the parts of replayed notifications; the other bits are the dead letter's id.
const REPLAYED_PARTS: u64 = 1 << 63;
const ID_BITS_OF_PART: u64 = (1 << 52) - 1;

/// A notification that was given up. The names are short since there are many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeadLetter {
    #[serde(rename = "v")]
    pub(super) vendor: PushVendor,
    #[serde(rename = "c")]
    pub(super) conversation: u64,
    #[serde(rename = "s")]
    pub(super) seq: u64,
    #[serde(rename = "t")]
    pub(super) target: Target,
    #[serde(rename = "f")]
    pub(super) failed_at: u64,
    #[serde(rename = "a")]
    pub(super) attempts: u32,
    #[serde(rename = "o")]
    pub(super) outcome: ReachOutcome,
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<String>,
}

/// Which dead letters.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    pub(super) vendor: Option<PushVendor>,
    pub(super) user: Option<UserNo>,
    pub(super) outcome: Option<ReachOutcome>,
    /// A part of the cause.
    pub(super) cause: Option<String>,
}

impl Filter {
    fn fits(&self, letter: &DeadLetter) -> bool {
        self.vendor.is_none_or(|vendor| vendor == letter.vendor)
            && self.user.is_none_or(|user| user.0 == letter.target.0)
            && self.outcome.is_none_or(|outcome| outcome == letter.outcome)
            && self.cause.as_ref().is_none_or(|part| letter.cause.as_ref().is_some_and(|cause| cause.contains(part)))
    }
}

/// The dead letters of all vendors. What changes them is done by the leader alone.
pub(super) struct DeadLetters {
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

impl DeadLetters {
    pub(super) fn new(kept: Duration) -> DeadLetters {
        DeadLetters { kept, known: Mutex::default() }
    }

    /// Adds the rows of notifications that are given up, and the removal of those that make room for them.
    pub(super) fn add(
        &self,
        context: &OfflinePushContext,
        term: Term,
        letters: Vec<DeadLetter>,
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
            changes.push(RowChange { key: vendor_dead_letter_key(known.last_id), value: Some(encode(&letter)) });
        }
        context.metrics.vendor_dead_letters.set(known.count as i64);
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
        context.metrics.vendor_dead_letters.set(known.count as i64);
        Ok(())
    }

    /// Removes those that are too old, now and then.
    pub(super) fn prune(&self, context: &OfflinePushContext, term: Term) -> StoreResult<()> {
        let mut known = self.known.lock();
        let now_ms = context.clock.now_ms();
        if now_ms.abs_diff(known.pruned_at) < PRUNE_EVERY_MS && known.term == Some(term) {
            return Ok(());
        }
        let kept_ms = u64::try_from(self.kept.as_millis()).unwrap_or(u64::MAX);
        let last = vendor_dead_letter_key(now_ms.saturating_sub(kept_ms) << ID_BITS);
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

    /// Deletes these; answers how many.
    pub(super) fn delete(&self, context: &OfflinePushContext, term: Term, ids: &[u64]) -> StoreResult<()> {
        let mut known = self.known.lock();
        let changes = ids.iter().map(|id| RowChange { key: vendor_dead_letter_key(*id), value: None }).collect();
        context.store.write_rows(term, RowSpace::Chat, changes)?;
        known.term = None;
        self.count(context, term, &mut known)
    }

    /// Makes jobs of these dead letters, of those whose users are still to be told; answers with the keys of the jobs, and with those that
    /// are dropped, and why.
    pub(super) fn replay(
        &self,
        context: &OfflinePushContext,
        term: Term,
        letters: Vec<(u64, DeadLetter)>,
    ) -> StoreResult<Replay> {
        let mut known = self.known.lock();
        let (now_ms, mut changes, mut replay) = (context.clock.now_ms(), Vec::new(), Replay::default());
        for (id, letter) in letters {
            changes.push(RowChange { key: vendor_dead_letter_key(id), value: None });
            let part = REPLAYED_PARTS | id & ID_BITS_OF_PART;
            debug_assert_eq!(service_of_part(part), None);
            let DeadLetter { vendor, conversation, seq, ref target, .. } = letter;
            let outcome = match position_if_wanted(context, &letter)? {
                Ok(position) => {
                    let key = JobRoad::Vendor(vendor).key(position, part);
                    let targets = vec![target.clone()];
                    let job = Job { conversation, seq, targets, replayed_at: now_ms, ..Job::default() };
                    replay.jobs.push(RowChange { key, value: Some(job.encode()) });
                    ReachOutcome::Replayed
                }
                Err(reason) => {
                    replay.dropped.push(DroppedDeadLetter { id, reason });
                    reason
                }
            };
            let record = target.record(outcome, None);
            let message = (ConversationNo(conversation), seq);
            context.trace.add(message, Source::Search { part }, now_ms, [record], &mut changes);
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
pub(super) struct Replay {
    pub(super) jobs: Vec<RowChange>,
    pub(super) dropped: Vec<DroppedDeadLetter>,
}

fn all() -> (Vec<u8>, Vec<u8>) {
    (vendor_dead_letter_key(0), vendor_dead_letter_key(u64::MAX))
}

/// The message's position, if its user is still to be told by this device; else why not.
fn position_if_wanted(
    context: &OfflinePushContext,
    letter: &DeadLetter,
) -> StoreResult<Result<Position, ReachOutcome>> {
    let DeadLetter { vendor, conversation, seq, target: Target(user, device), .. } = letter;
    let no = UserNo(*user);
    let found = OfflineRecipients::of(context, ConversationNo(*conversation), *seq)?;
    let Some(found) = found else { return Ok(Err(ReachOutcome::Recalled)) };
    let Some(user) = context.directory.user(no)? else { return Ok(Err(ReachOutcome::NotAMember)) };
    if let Some(unwanted) = found.why_unwanted_by(context, &user, PolicyRoad::Vendors)? {
        return Ok(Err(unwanted.outcome));
    }
    if context.presence.is_active(no) {
        return Ok(Err(ReachOutcome::Active));
    }
    let digest = digest_in(context.store.row(RowSpace::Chat, &device_key(no, device))?.as_deref())?;
    let token = match digest {
        Some(digest) => RegisteredToken::decode(context.store.row(RowSpace::Chat, &token_key(digest))?.as_deref())?,
        None => None,
    };
    let has_token = token.is_some_and(|token| token.is_of(no, device) && token.token.vendor() == *vendor);
    Ok(if has_token { Ok(found.entry.position) } else { Err(ReachOutcome::NoDevice) })
}

/// Dead letters behind an id that fit, the oldest first, at most `limit`.
pub(super) fn list(
    store: &dyn Store,
    after: Option<u64>,
    filter: &Filter,
    limit: usize,
) -> StoreResult<Vec<(u64, DeadLetter)>> {
    let (mut from, to) = (vendor_dead_letter_key(after.map_or(0, |after| after.saturating_add(1))), all().1);
    let mut found = Vec::new();
    while found.len() < limit {
        let rows = store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE)?;
        let Some((last, _)) = rows.last() else { break };
        from = [&last[..], &[0]].concat();
        for (key, row) in &rows {
            // A row of a newer version that this one cannot read is not shown.
            let Ok(Some(letter)) = decode::<Option<DeadLetter>>(Some(row)) else { continue };
            if filter.fits(&letter) && found.len() < limit {
                found.push((number_in(key, 0).unwrap_or_default(), letter));
            }
        }
    }
    Ok(found)
}

/// The dead letters with these ids; `None` for one that is not there.
pub(super) fn find(store: &dyn Store, ids: &[u64]) -> StoreResult<Vec<Option<(u64, DeadLetter)>>> {
    let keys: Vec<_> = ids.iter().map(|id| vendor_dead_letter_key(*id)).collect();
    let rows = store.rows_of(RowSpace::Chat, &keys)?;
    let letter = |(id, row): (&u64, Option<Vec<u8>>)| {
        Ok(decode::<Option<DeadLetter>>(row.as_deref())?.map(|found| (*id, found)))
    };
    ids.iter().zip(rows).map(letter).collect()
}

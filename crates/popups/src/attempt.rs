//! Attempts to decide from memory: a question is evaluated, and its exposure is counted and queued for the store before
//! the answer leaves.

use super::{
    PopupService, Shared, UserKey,
    configuration::{Configuration, Placement, Popup},
    context::{MissingContext, UserContext},
    conversion::Group,
    decision_id::{DecisionId, DecisionSigner},
    evaluate::{Choice, EvaluationInput},
    frequency::{CounterKey, FrequencyCounters, session_hash},
    journeys::{
        JourneyTurn, WakeChange,
        position::{JourneyPopup, Moves},
    },
    rules::Attributes,
    user_cache::{DirtyState, NegativeCacheEntry},
    write_queue::{ExposureRecord, Outcome},
};
use smallvec::SmallVec;
use std::sync::Arc;
use tidings_domain::{metrics::PopupOutcome, refusals::store_refusal, store::StoreResult};
use tidings_protocol::{error::Refusal, http::EventType, ids::check_id};
use tokio::sync::oneshot;

/// The question which popup to show to a user at a placement now.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub user: &'a str,
    pub placement: &'a str,
    pub session: Option<&'a str>,
    pub attributes: &'a Attributes<'a>,
    /// The event that happened, with its properties; absent: a page view.
    pub event: Option<(&'a str, &'a Attributes<'a>)>,
    /// A hash of all of the above: equal questions have equal fingerprints.
    pub fingerprint: u64,
}

/// What a question came to in memory.
#[derive(Debug)]
pub enum DecisionAttempt {
    Show(Exposure),
    Nothing {
        /// After how many milliseconds to ask again; absent: time alone will not make a popup due.
        retry_after_ms: Option<u64>,
    },
    /// The decision needs this context first: load it and try again with it.
    MissingContext(MissingContext),
}

/// A popup that is handed out to be shown. It counts towards caps from now on.
#[derive(Debug)]
pub struct Exposure {
    /// The signed id of the decision, by which events name it.
    pub decision: String,
    pub popup: Arc<str>,
    /// A `Decision` as JSON.
    pub json: Vec<u8>,
    /// Present if the exposure must be durable before it is answered: then tells when it is.
    pub durable: Option<oneshot::Receiver<Result<(), Refusal>>>,
}

impl PopupService {
    /// Decides from memory alone, and never waits. `context` is what [`DecisionAttempt::MissingContext`] asked for
    /// before.
    ///
    /// # Errors
    /// Those of [`PopupService::decide`], except that the store cannot fail here.
    pub fn try_decide(
        &self,
        question: &Question<'_>,
        context: Option<&UserContext>,
    ) -> Result<DecisionAttempt, Refusal> {
        self.with_shared(|shared| shared.try_decide(question, context))
    }
}

impl Configuration {
    /// The question with what is known of the user. `of_profile` holds the parsed attributes of the profile in `context`.
    pub(super) fn evaluation_input<'a>(
        &self,
        (user, question): (UserKey, &Question<'a>),
        placement: &'a Placement,
        context: &'a UserContext,
        of_profile: Option<&'a Attributes<'a>>,
        counters: &'a FrequencyCounters,
        now_ms: u64,
    ) -> EvaluationInput<'a> {
        let profile = self.slots.profile(user, question.attributes, of_profile, context.unread_since, now_ms);
        let profile = profile.with_marks(counters);
        let session = question.session.map(session_hash);
        let user_zone = context.profile.as_ref().and_then(|user| user.time_zone());
        EvaluationInput {
            user,
            session,
            placement,
            profile,
            event: question.event,
            now_ms,
            user_zone,
            is_held_out: self.global.is_held_out(user),
        }
    }
}

impl Shared {
    fn try_decide(&self, question: &Question<'_>, context: Option<&UserContext>) -> Result<DecisionAttempt, Refusal> {
        self.check_lead()?;
        let configuration = self.configuration()?;
        let nothing = |outcome: PopupOutcome, next_at: Option<u64>, now_ms: u64| {
            self.metrics.count_popup(outcome);
            Ok(DecisionAttempt::Nothing { retry_after_ms: next_at.map(|at| at.saturating_sub(now_ms)) })
        };
        let now_ms = self.clock.now_ms();
        let key = UserKey::of(question.user);
        let Some(placement) = configuration.placements.get(question.placement) else {
            check_id("user", question.user)?;
            return nothing(PopupOutcome::Nothing, None, now_ms);
        };
        if let Some(popup) = placement.tested.iter().find(|popup| popup.testers.contains(&key)) {
            let variant = popup.variant_of(key);
            return self.expose(question, popup, variant, now_ms, true, None);
        }
        // The holdout is asked about only where it is compared with others.
        let held_out = configuration.global.is_held_out(key);
        let unseen = if held_out { PopupOutcome::HeldOut } else { PopupOutcome::Nothing };
        if held_out && !placement.is_measured {
            check_id("user", question.user)?;
            return nothing(PopupOutcome::HeldOut, None, now_ms);
        }
        let fingerprint = question.fingerprint ^ configuration.generation.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let required = placement.required_context();
        let needs_context = !required.is_empty();
        if needs_context && context.is_none() {
            return Ok(DecisionAttempt::MissingContext(required));
        }
        let mut stripe = self.users.stripe(key);
        let Some(user) = stripe.get(key) else { return Ok(DecisionAttempt::MissingContext(required)) };
        // The fingerprint does not cover the context, so answers that depend on it are not cached.
        let cached = if needs_context { None } else { user.cached_negative(fingerprint, now_ms) };
        if let Some(NegativeCacheEntry { next_at, .. }) = cached {
            drop(stripe);
            return nothing(unseen, (next_at < u64::MAX).then_some(next_at), now_ms);
        }
        let context = context.unwrap_or(UserContext::NONE);
        let of_profile = context.profile_attributes();
        let choice = {
            let (named, counters) = ((key, question), &user.counters);
            let of_profile = of_profile.as_ref();
            let input = configuration.evaluation_input(named, placement, context, of_profile, counters, now_ms);
            configuration.choose(counters, &input)
        };
        let user_zone = context.profile.as_ref().and_then(|user| user.time_zone());
        let turn = Turn { placement, session: question.session.map(session_hash), user_zone, now_ms };
        let Choice { chosen, controls, next_at, until } = &choice;
        if chosen.is_none() && controls.is_empty() {
            user.cache_negative(NegativeCacheEntry { fingerprint, until: *until, next_at: *next_at }, now_ms);
            drop(stripe);
            return nothing(unseen, (*next_at < u64::MAX).then_some(*next_at), now_ms);
        }
        let is_overdue = self.write_queue.admit_exposure()?;
        let marks = &user.counters;
        let is_noted = self.feed_notes.wants(EventType::PopupExposure);
        let record = |popup: &Arc<Popup>, variant: usize, outcome: Outcome| {
            let is_assigned =
                popup.conversion.as_ref().is_some_and(|conversion| !marks.is_assigned(conversion.mark, now_ms));
            ExposureRecord {
                user: key,
                popup: popup.clone(),
                variant: variant as u8,
                outcome: if held_out { Outcome::Holdout } else { outcome },
                is_assigned,
                user_id: (is_assigned || is_noted).then(|| question.user.into()),
                at: now_ms,
                turn: None,
            }
        };
        let spared = controls.iter().map(|popup| record(popup, popup.variant_of(key), Outcome::Control));
        let exposed = chosen.as_ref().map(|(popup, variant)| record(popup, *variant, Outcome::Shown));
        let mut records: SmallVec<[ExposureRecord; 1]> = spared.chain(exposed).collect();
        let assigned = records.iter().filter(|record| record.is_assigned);
        let assigned: SmallVec<[(CounterKey, Group); 1]> =
            assigned.filter_map(|record| Some((record.popup.conversion.as_ref()?.mark, record.group()))).collect();
        let mut counters = None;
        if records.iter().any(|record| record.popup.journey.is_some()) {
            // The positions must be known before the records are queued, which hold the moves.
            let mut moved = user.counters.clone();
            count_exposures(&configuration, &mut moved, turn, &choice);
            let begin = WakeChange::begin(&configuration.journeys, &user.counters, now_ms);
            let mut moves = Moves::new();
            for popup in records.iter().map(|record| &record.popup) {
                let Some(journey) = &popup.journey else { continue };
                let shown = JourneyPopup { journey, popup: popup.no, placement: placement.counter_key };
                configuration.journeys.shown(shown, &mut moved, now_ms, &mut moves);
            }
            let wake = begin.end(&configuration.journeys, &moved, now_ms);
            if let Some(record) = records.first_mut() {
                record.turn = Some(Box::new(JourneyTurn { user: question.user.to_owned(), moves, wake }));
            }
            counters = Some(moved);
        }
        let must_be_durable = !held_out && chosen.as_ref().is_some_and(|(popup, _)| popup.strict || is_overdue);
        let (waiter, durable) = must_be_durable.then(oneshot::channel).unzip();
        // The records are queued and the counters changed under the same lock of the user. So whoever sees the counters
        // comes after the records in the queue, and the worker, which takes the lock to store the counters, sees them
        // all.
        if !self.write_queue.push_exposures(records, waiter) {
            return Err(self.worker_gone());
        }
        match counters {
            Some(counters) => user.counters = counters,
            None => count_exposures(&configuration, &mut user.counters, turn, &choice),
        }
        assigned.into_iter().for_each(|(mark, group)| user.counters.assign(mark, now_ms, group.0));
        user.dirty_state = DirtyState::Dirty;
        user.cache_negative(NegativeCacheEntry::EMPTY, now_ms);
        drop(stripe);
        if held_out {
            return nothing(PopupOutcome::HeldOut, (*next_at < u64::MAX).then_some(*next_at), now_ms);
        }
        let Some((popup, variant)) = chosen else {
            return nothing(PopupOutcome::Nothing, (*next_at < u64::MAX).then_some(*next_at), now_ms);
        };
        self.metrics.count_popup(PopupOutcome::Shown);
        self.expose(question, popup, *variant, now_ms, false, durable)
    }

    /// Signs the decision and puts the answer together.
    fn expose(
        &self,
        question: &Question<'_>,
        popup: &Popup,
        variant: usize,
        at: u64,
        test: bool,
        durable: Option<oneshot::Receiver<Result<(), Refusal>>>,
    ) -> Result<DecisionAttempt, Refusal> {
        let signer: &DecisionSigner = self.signer.get().ok_or_else(super::loading)?;
        let variant = &popup.variants[variant];
        let decision = signer.sign(&DecisionId {
            popup: popup.no,
            at,
            nonce: rand::random(),
            variant: variant.id.clone(),
            user: question.user.to_owned(),
            test,
        });
        let mut json = Vec::with_capacity(decision.len() + variant.json_tail.len() + 32);
        json.extend_from_slice(b"{\"decision\":\"");
        json.extend_from_slice(decision.as_bytes());
        json.extend_from_slice(if test { b"\",\"test\":true," } else { b"\"," });
        json.extend_from_slice(&variant.json_tail);
        Ok(DecisionAttempt::Show(Exposure { decision, popup: popup.id.clone(), json, durable }))
    }

    /// Loads the frequency counters of a user who is not in memory. Blocks.
    pub(super) fn load_counters(&self, key: UserKey) -> Result<(), Refusal> {
        if self.users.stripe(key).get(key).is_some() {
            return Ok(());
        }
        self.metrics.popup_store_reads.inc();
        let counters = self.read_counters(key).map_err(store_refusal)?;
        self.users.insert(key, counters);
        Ok(())
    }

    /// A user's frequency counters as they are stored. Blocks.
    pub(super) fn read_counters(&self, key: UserKey) -> StoreResult<FrequencyCounters> {
        let bytes = super::rows::read_long(&*self.store, &super::rows::user_key(key))?;
        FrequencyCounters::from_bytes(&bytes.unwrap_or_default())
    }
}

/// Where and when a question is answered.
#[derive(Clone, Copy)]
struct Turn<'a> {
    placement: &'a Placement,
    session: Option<u64>,
    user_zone: Option<&'a str>,
    now_ms: u64,
}

/// Counts the exposure, and those that the control groups were spared, in the user's frequency counters.
fn count_exposures(configuration: &Configuration, counters: &mut FrequencyCounters, turn: Turn<'_>, choice: &Choice) {
    let Turn { placement, session, user_zone, now_ms } = turn;
    counters.prune(now_ms, |no| configuration.knows_number(no));
    let mut count = |key: CounterKey, by_session: bool, day: u32| {
        counters.count(key, now_ms, day);
        if let Some(session) = session.filter(|_| by_session) {
            counters.count(key.within(session), now_ms, day);
        }
    };
    let mut count_popup = |popup: &Popup| {
        count(popup.counter_key, popup.caps.per_session.is_some(), popup.clock(user_zone).days.day(now_ms).0);
    };
    choice.controls.iter().for_each(|popup| count_popup(popup));
    if let Some((popup, _)) = &choice.chosen {
        count_popup(popup);
        let global = &configuration.global;
        let (day, _) = global.days.day(now_ms);
        count(CounterKey::ALL, global.caps.per_session.is_some(), day);
        count(placement.counter_key, placement.caps.per_session.is_some(), day);
    }
}

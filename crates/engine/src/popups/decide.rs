//! Decisions: the question read, answered from memory, and what it changes recorded before the answer leaves.

use super::{
    Shared, UserKey,
    configuration::{Configuration, Placement, Popup},
    decision_id::{DecisionId, Seal},
    evaluate::{Choice, Question},
    inbox::Record,
    marks::{Marks, What, session_hash},
    rules::Attributes,
    users::{Kept, Nothing, User},
};
use crate::{engine::Engine, metrics::PopupOutcome, model::User as Card};
use std::sync::Arc;
use tidings_protocol::{error::Refusal, ids::check_id};
use tokio::sync::oneshot;

/// A question.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    pub user: &'a str,
    pub placement: &'a str,
    pub session: Option<&'a str>,
    pub attributes: &'a Attributes<'a>,
    /// What happened, with its properties; absent: a page view.
    pub event: Option<(&'a str, &'a Attributes<'a>)>,
    /// Of all of the above: the same question has the same one.
    pub fingerprint: u64,
}

/// What had to be looked up for an answer.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Since when the user's oldest unread direct message is there.
    pub(super) unread_since: Option<u64>,
    pub(super) card: Option<Arc<Card>>,
}

/// What must be looked up first, by [`Engine::popup_facts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    pub(super) unread: bool,
    pub(super) card: bool,
}

/// An answer.
#[derive(Debug)]
pub enum Decided {
    Shown(Showing),
    /// After how many milliseconds to ask again; absent: time alone will not make one due.
    Nothing {
        retry_after_ms: Option<u64>,
    },
    Needs(Needs),
}

#[derive(Debug)]
pub struct Showing {
    pub decision: String,
    pub popup: Arc<str>,
    /// A `Decision` as JSON.
    pub json: Vec<u8>,
    /// To be waited for before it is answered.
    pub durable: Option<oneshot::Receiver<Result<(), Refusal>>>,
}

impl Engine {
    /// Which popup? Never waits for the store: what it would need from there is said instead, and given as `facts`.
    pub fn decide_popup(&self, ask: &Ask<'_>, facts: Option<&Facts>) -> Result<Decided, Refusal> {
        self.popups.with_shared(|shared| shared.decide(ask, facts))
    }

    /// Looks up what a decision needs. Blocks.
    pub fn popup_facts(&self, user: &str, needs: Needs) -> Result<Facts, Refusal> {
        check_id("user", user)?;
        self.popups.shared()?.load(UserKey::of(user))?;
        self.facts_of(user, needs)
    }

    /// The same, if all of it is in memory but for what the user was shown.
    pub(super) fn facts_at_hand(&self, user: &str, needs: Needs) -> Option<Facts> {
        let mut facts = Facts::default();
        if needs.unread || needs.card {
            let known = self.directory.user_at_hand(user)?;
            if needs.unread {
                facts.unread_since = self.directory.unread.at_hand(known.no)?;
            }
            facts.card = needs.card.then_some(known);
        }
        Some(facts)
    }

    pub(super) fn facts_of(&self, user: &str, needs: Needs) -> Result<Facts, Refusal> {
        let mut facts = Facts::default();
        if needs.unread || needs.card {
            let known = self.directory.user_by_id(user).map_err(crate::commit::store_refusal)?;
            if let Some(known) = &known
                && needs.unread
            {
                facts.unread_since = self.unread_direct_since(known.no)?;
            }
            facts.card = known.filter(|_| needs.card);
        }
        Ok(facts)
    }
}

impl Placement {
    pub(super) fn needs(&self) -> Needs {
        Needs { unread: self.needs_unread, card: self.needs_card }
    }
}

impl Configuration {
    /// The question with what is known of the user; `card` are the attributes of `facts`, read.
    pub(super) fn question<'a>(
        &self,
        (user, ask): (UserKey, &Ask<'a>),
        placement: &'a Placement,
        facts: &Facts,
        card: Option<&'a Attributes<'a>>,
        now_ms: u64,
    ) -> Question<'a> {
        let profile = self.names.profile(user, ask.attributes, card, facts.unread_since, now_ms);
        Question { user, session: ask.session.map(session_hash), placement, profile, event: ask.event, now_ms }
    }
}

impl Facts {
    const NONE: &'static Facts = &Facts { unread_since: None, card: None };

    /// The card's attributes, read.
    pub(super) fn card(&self) -> Option<Attributes<'_>> {
        self.card.as_ref().and_then(|card| card.attributes.as_deref()).map(Attributes::of_card)
    }
}

impl Shared {
    fn decide(&self, ask: &Ask<'_>, facts: Option<&Facts>) -> Result<Decided, Refusal> {
        self.check_lead()?;
        let configuration = self.configuration()?;
        let nothing = |outcome: PopupOutcome, next_at: Option<u64>, now_ms: u64| {
            self.metrics.count_popup(outcome);
            Ok(Decided::Nothing { retry_after_ms: next_at.map(|at| at.saturating_sub(now_ms)) })
        };
        let now_ms = self.clock.now_ms();
        let key = UserKey::of(ask.user);
        let Some(placement) = configuration.placements.get(ask.placement) else {
            check_id("user", ask.user)?;
            return nothing(PopupOutcome::Nothing, None, now_ms);
        };
        if let Some(popup) = placement.tested.iter().find(|popup| popup.testers.contains(&key)) {
            let variant = popup.variant_of(key);
            return self.show(ask, popup, variant, now_ms, true, None);
        }
        if configuration.above.is_held_out(key) {
            check_id("user", ask.user)?;
            return nothing(PopupOutcome::HeldOut, None, now_ms);
        }
        let fingerprint = ask.fingerprint ^ configuration.generation.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let needs = placement.needs();
        let looks_up = needs.unread || needs.card;
        if looks_up && facts.is_none() {
            return Ok(Decided::Needs(needs));
        }
        let mut table = self.users.table(key);
        let Some(user) = table.get(key) else { return Ok(Decided::Needs(needs)) };
        let remembered = if looks_up { None } else { user.remembered(fingerprint, now_ms) };
        if let Some(Nothing { next_at, .. }) = remembered {
            drop(table);
            return nothing(PopupOutcome::Nothing, (next_at < u64::MAX).then_some(next_at), now_ms);
        }
        let facts = facts.unwrap_or(Facts::NONE);
        let card = facts.card();
        let question = configuration.question((key, ask), placement, facts, card.as_ref(), now_ms);
        let choice = configuration.choose(&user.marks, &question);
        let Choice { chosen, controls, next_at, until } = &choice;
        if chosen.is_none() && controls.is_empty() {
            user.remember(Nothing { fingerprint, until: *until, next_at: *next_at }, now_ms);
            drop(table);
            return nothing(PopupOutcome::Nothing, (*next_at < u64::MAX).then_some(*next_at), now_ms);
        }
        let is_late = self.inbox.has_room()?;
        let of = |popup: &Arc<Popup>, variant: usize, control: bool| Record {
            user: key,
            popup: popup.clone(),
            variant: variant as u8,
            control,
            at: now_ms,
        };
        let records = controls.iter().map(|popup| of(popup, popup.variant_of(key), true));
        let shown = chosen.as_ref().map(|(popup, variant)| of(popup, *variant, false));
        let waits = chosen.as_ref().is_some_and(|(popup, _)| popup.strict || is_late);
        let (durable, stored) = waits.then(oneshot::channel).unzip();
        // Both before the lock goes: whoever sees the marks is behind them in the inbox, and who stores them waits for it.
        if !self.inbox.record(records.chain(shown), durable) {
            return Err(self.gone());
        }
        record(&configuration, user, &question, &choice);
        drop(table);
        let Some((popup, variant)) = chosen else {
            return nothing(PopupOutcome::Nothing, (*next_at < u64::MAX).then_some(*next_at), now_ms);
        };
        self.metrics.count_popup(PopupOutcome::Shown);
        self.show(ask, popup, *variant, now_ms, false, stored)
    }

    fn show(
        &self,
        ask: &Ask<'_>,
        popup: &Popup,
        variant: usize,
        at: u64,
        test: bool,
        durable: Option<oneshot::Receiver<Result<(), Refusal>>>,
    ) -> Result<Decided, Refusal> {
        let seal: &Seal = self.seal.get().ok_or_else(super::loading)?;
        let variant = &popup.variants[variant];
        let decision = seal.write(&DecisionId {
            popup: popup.no,
            at,
            chance: rand::random(),
            variant: variant.id.clone(),
            user: ask.user.to_owned(),
            test,
        });
        let mut json = Vec::with_capacity(decision.len() + variant.rest.len() + 32);
        json.extend_from_slice(b"{\"decision\":\"");
        json.extend_from_slice(decision.as_bytes());
        json.extend_from_slice(if test { b"\",\"test\":true," } else { b"\"," });
        json.extend_from_slice(&variant.rest);
        Ok(Decided::Shown(Showing { decision, popup: popup.id.clone(), json, durable }))
    }

    /// Reads a user that is not in memory. Blocks.
    pub(super) fn load(&self, key: UserKey) -> Result<(), Refusal> {
        if self.users.table(key).get(key).is_some() {
            return Ok(());
        }
        self.metrics.popup_store_reads.inc();
        let marks = self.read_marks(key).map_err(crate::commit::store_refusal)?;
        self.users.install(key, marks);
        Ok(())
    }

    /// A user's marks as they are stored. Blocks.
    pub(super) fn read_marks(&self, key: UserKey) -> crate::store::StoreResult<Marks> {
        let bytes = super::rows::read_long(&*self.store, &super::rows::user_key(key))?;
        Marks::of_bytes(&bytes.unwrap_or_default())
    }
}

/// Counts what is shown, and what would have been, in the user's marks.
fn record(configuration: &Configuration, user: &mut User, question: &Question<'_>, choice: &Choice) {
    let marks = &mut user.marks;
    marks.tidy(question.now_ms, |no| no > configuration.last_no || configuration.by_no.contains_key(&no));
    let mut count = |what: What, by_session: bool, day: u32| {
        marks.count(what, question.now_ms, day);
        if let Some(session) = question.session.filter(|_| by_session) {
            marks.count(what.within(session), question.now_ms, day);
        }
    };
    let mut count_popup = |popup: &Popup| {
        count(popup.what, popup.caps.per_session.is_some(), popup.days.day(question.now_ms).0);
    };
    choice.controls.iter().for_each(|popup| count_popup(popup));
    if let Some((popup, _)) = &choice.chosen {
        count_popup(popup);
        let (above, placement) = (&configuration.above, question.placement);
        let (day, _) = above.days.day(question.now_ms);
        count(What::ALL, above.caps.per_session.is_some(), day);
        count(placement.what, placement.caps.per_session.is_some(), day);
    }
    user.kept = Kept::Changed;
    user.remember(Nothing::UNKNOWN, question.now_ms);
}

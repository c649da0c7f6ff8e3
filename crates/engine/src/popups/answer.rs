//! A question answered: what it needs is looked up, and what is to be durable first is waited for.

use super::decide::{Ask, Decided, Facts, Needs, Showing};
use crate::engine::Engine;
use std::sync::Arc;
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::sync::oneshot::Receiver;

/// A user may have given way to others between the look-up and the decision; seldom twice.
const LOOK_UPS_MAX: usize = 4;
/// Look-ups that run at once, each on a thread that may block. Fewer than a server has, so that histories and resumes are
/// read meanwhile; the rest wait for their turn, one for each open connection or request under way.
pub const LOOKING_UP_MAX: usize = 16;

/// An answer with all that it needed looked up.
#[derive(Debug)]
pub struct DecidedNow {
    pub show: Option<Showing>,
    /// If there is none: after how many milliseconds to ask again.
    pub retry_after_ms: Option<u64>,
}

/// What is to be done for an answer.
enum Step {
    LookUp(Needs),
    /// The answer, and what is to be waited for before it is given.
    Answer(DecidedNow, Option<Receiver<Result<(), Refusal>>>),
}

impl Engine {
    /// A decision with all that it needs looked up, durable if it is to be. Waits for no thread that may block unless
    /// something has to be read from the store.
    pub async fn answer_popup(self: &Arc<Self>, ask: &Ask<'_>) -> Result<DecidedNow, Refusal> {
        let mut facts = None;
        let mut at_hand = true;
        for _ in 0..=LOOK_UPS_MAX {
            match self.step(ask, facts.as_ref())? {
                Step::LookUp(needs) => {
                    // What is in memory once and was not enough is not asked for again.
                    let known = if std::mem::take(&mut at_hand) { self.facts_at_hand(ask.user, needs) } else { None };
                    facts = Some(match known {
                        Some(facts) => facts,
                        None => self.look_up(ask.user.to_owned(), needs).await?,
                    });
                }
                Step::Answer(decided, durable) => {
                    if let Some(durable) = durable {
                        durable.await.unwrap_or_else(|_| Err(self.popups.gone()))?;
                    }
                    return Ok(decided);
                }
            }
        }
        Err(evicted())
    }

    async fn look_up(self: &Arc<Self>, user: String, needs: Needs) -> Result<Facts, Refusal> {
        let internal = |error: &dyn std::fmt::Display| Refusal::new(ErrorCode::Internal, error.to_string());
        let _turn = self.popups.look_ups.acquire().await.map_err(|closed| internal(&closed))?;
        let engine = self.clone();
        let looked_up = tokio::task::spawn_blocking(move || engine.popup_facts(&user, needs));
        looked_up.await.map_err(|error| internal(&error))?
    }

    /// The same on a thread that may block.
    pub fn decide_now(&self, ask: &Ask<'_>) -> Result<DecidedNow, Refusal> {
        let mut facts = None;
        for _ in 0..=LOOK_UPS_MAX {
            match self.step(ask, facts.as_ref())? {
                Step::LookUp(needs) => facts = Some(self.popup_facts(ask.user, needs)?),
                Step::Answer(decided, durable) => {
                    if let Some(durable) = durable {
                        durable.blocking_recv().unwrap_or_else(|_| Err(self.popups.gone()))?;
                    }
                    return Ok(decided);
                }
            }
        }
        Err(evicted())
    }

    fn step(&self, ask: &Ask<'_>, facts: Option<&Facts>) -> Result<Step, Refusal> {
        Ok(match self.decide_popup(ask, facts)? {
            Decided::Needs(needs) => Step::LookUp(needs),
            Decided::Nothing { retry_after_ms } => Step::Answer(DecidedNow { show: None, retry_after_ms }, None),
            Decided::Shown(mut showing) => {
                let durable = showing.durable.take();
                Step::Answer(DecidedNow { show: Some(showing), retry_after_ms: None }, durable)
            }
        })
    }
}

/// So many others were asked about that the user could not be held in memory.
fn evicted() -> Refusal {
    let why = "too many users are asked about at once: popups.users is too small for them";
    Refusal::new(ErrorCode::QueueFull, why).retry_after(1_000)
}

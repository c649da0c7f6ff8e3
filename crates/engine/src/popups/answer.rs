//! A question answered: what it needs is looked up, and what is to be durable first is waited for.

use super::decide::{Ask, Decided, Facts, Needs, Showing};
use crate::engine::Engine;
use std::sync::Arc;
use tidings_protocol::error::{ErrorCode, Refusal};

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

impl Engine {
    /// A decision with all that it needs looked up, durable if it is to be. Waits for no thread that may block unless
    /// something has to be read from the store.
    pub async fn answer_popup(self: &Arc<Self>, ask: &Ask<'_>) -> Result<DecidedNow, Refusal> {
        let mut facts = None;
        for turn in 0..=LOOK_UPS_MAX {
            match self.decide_popup(ask, facts.as_ref())? {
                Decided::Needs(needs) => {
                    let at_hand = if turn == 0 { self.facts_at_hand(ask.user, needs) } else { None };
                    facts = Some(match at_hand {
                        Some(facts) => facts,
                        None => self.look_up(ask.user.to_owned(), needs).await?,
                    });
                }
                Decided::Nothing { retry_after_ms } => return Ok(DecidedNow { show: None, retry_after_ms }),
                Decided::Shown(mut showing) => {
                    if let Some(durable) = showing.durable.take() {
                        durable.await.unwrap_or_else(|_| Err(self.popups.gone()))?;
                    }
                    return Ok(DecidedNow { show: Some(showing), retry_after_ms: None });
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
        for _ in 0..LOOK_UPS_MAX {
            match self.decide_popup(ask, facts.as_ref())? {
                Decided::Needs(needs) => facts = Some(self.popup_facts(ask.user, needs)?),
                Decided::Nothing { retry_after_ms } => return Ok(DecidedNow { show: None, retry_after_ms }),
                Decided::Shown(mut showing) => {
                    if let Some(durable) = showing.durable.take() {
                        durable.blocking_recv().unwrap_or_else(|_| Err(self.popups.gone()))?;
                    }
                    return Ok(DecidedNow { show: Some(showing), retry_after_ms: None });
                }
            }
        }
        Err(evicted())
    }
}

/// So many others were asked about that the user could not be held in memory.
fn evicted() -> Refusal {
    let why = "too many users are asked about at once: popups.users is too small for them";
    Refusal::new(ErrorCode::QueueFull, why).retry_after(1_000)
}

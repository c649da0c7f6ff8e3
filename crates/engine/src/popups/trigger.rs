//! Popups that an event triggers for somebody who is here: decided, then sent to one live session.

use super::decide::{Ask, Decided, Showing};
use crate::{engine::Engine, hub::Signal, model::UserNo};
use std::sync::Arc;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::Triggered,
    ids::check_id,
};

/// An answer with all that it needed looked up.
#[derive(Debug)]
pub struct DecidedNow {
    pub show: Option<Showing>,
    /// If there is none: after how many milliseconds to ask again.
    pub retry_after_ms: Option<u64>,
}

impl Engine {
    /// Decides for a user who has a live session, and sends it what was chosen: to the one that came last. Without
    /// one nothing is decided, so that no cap is used up in vain. Blocks.
    pub fn trigger_popup(&self, ask: &Ask<'_>) -> Result<Triggered, Refusal> {
        check_id("user", ask.user)?;
        let user = self.directory.require_user(ask.user)?;
        if !self.presence.is_online(user.no) {
            return Ok(Triggered { delivered: false, decision: None, popup: None });
        }
        let Some(showing) = self.decide_now(ask)?.show else {
            return Ok(Triggered { delivered: false, decision: None, popup: None });
        };
        self.send_popup(user.no, &showing.json);
        let popup = Some(showing.popup.to_string());
        Ok(Triggered { delivered: true, decision: Some(showing.decision), popup })
    }

    /// A decision with all that it needs looked up, durable if it is to be. Blocks.
    pub fn decide_now(&self, ask: &Ask<'_>) -> Result<DecidedNow, Refusal> {
        let mut facts = None;
        for _ in 0..LOOK_UPS_MAX {
            match self.decide_popup(ask, facts.as_ref())? {
                Decided::Needs(needs) => facts = Some(self.popup_facts(ask.user, needs)?),
                Decided::Nothing { retry_after_ms } => return Ok(DecidedNow { show: None, retry_after_ms }),
                Decided::Shown(mut showing) => {
                    if let Some(durable) = showing.durable.take() {
                        durable.blocking_recv().unwrap_or_else(|_| Err(super::stopped()))?;
                    }
                    return Ok(DecidedNow { show: Some(showing), retry_after_ms: None });
                }
            }
        }
        Err(evicted())
    }

    fn send_popup(&self, user: UserNo, json: &[u8]) {
        let frame: Arc<[u8]> = [br#"{"t":"popup","show":"#, json, b"}"].concat().into();
        self.hub.signal(user, Signal::Popup { frame });
    }
}

/// A user may have given way to others between the look-up and the decision; seldom twice.
pub const LOOK_UPS_MAX: usize = 4;

/// So many others were asked about that the user could not be held in memory.
pub fn evicted() -> Refusal {
    let why = "too many users are asked about at once: popups.users is too small for them";
    Refusal::new(ErrorCode::QueueFull, why).retry_after(1_000)
}

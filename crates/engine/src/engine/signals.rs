//! Transient signals: what a member tells the members of a conversation who are there, and nobody keeps. They travel as typing does:
//! who has no room for one gets none.

use crate::{Engine, access::Writing};
use serde_json::value::RawValue;
use tidings_domain::model::*;
use tidings_protocol::{
    depth::check_depth,
    error::{ErrorCode, Refusal},
    frames::ServerFrame,
    limits::{SIGNAL_BODY_BYTES_MAX, TYPE_BYTES_MAX},
};

/// Signals of one user in a second, and at once: a cursor that moves sends ten. Each costs every live member a frame.
pub(crate) const SIGNALS_PER_SECOND: u32 = 20;
pub(crate) const SIGNALS_BURST: u32 = 40;

impl Engine {
    /// Signals something to the live members of a conversation, except the user who signals.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `blocked`, `muted`, `invalid_field`, `limit_exceeded`; `forbidden` for a user who may not send;
    /// `rate_limited` for users; `store_unavailable`.
    pub fn signal(
        &self,
        actor: &Actor,
        from: Option<String>,
        conversation: &str,
        signal_type: &str,
        body: Option<&RawValue>,
    ) -> Result<(), Refusal> {
        // Before anything is looked up: a client could send these frames without end.
        if let Actor::User(user) = actor {
            self.signal_rate.take(user.person(), 1, String::new)?;
        }
        let body = body.map_or(NO_BODY, RawValue::get);
        if signal_type.is_empty() || signal_type.len() > TYPE_BYTES_MAX {
            return Err(Refusal::limit("type (bytes, at least 1)", TYPE_BYTES_MAX as u64, signal_type.len() as u64));
        }
        if body.len() > SIGNAL_BODY_BYTES_MAX {
            return Err(Refusal::limit("body (bytes)", SIGNAL_BODY_BYTES_MAX as u64, body.len() as u64));
        }
        check_depth("body", body)?;
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        let user = self.acting_user(actor, from)?;
        if let Some(user) = &user {
            self.check_may_write(actor, user, &conversation, Writing::Content)?;
        }
        let body = RawValue::from_string(body.to_owned());
        let body = body.map_err(|error| Refusal::new(ErrorCode::Malformed, error.to_string()))?;
        let frame = ServerFrame::Signal {
            conversation: conversation.id.clone(),
            user: user.as_ref().map(|user| user.id.clone()),
            signal_type: signal_type.to_owned(),
            body,
        };
        // Writing to memory cannot fail.
        let frame = serde_json::to_vec(&frame).unwrap_or_default();
        self.hub.transient(&conversation, user.map_or(UserNo::NOBODY, |user| user.no), frame.into());
        Ok(())
    }
}

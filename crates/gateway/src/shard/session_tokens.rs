//! The token of a session: it is verified at the bind, can be exchanged for a newer one, and ends the session when it
//! expires.

use super::{FrameOutcome, Shard, decoding::missing_field};
use crate::{connection::SessionBinding, timer_wheel::TICK};
use std::{num::NonZeroU64, sync::Arc, time::Duration};
use tidings_domain::{model::User, refusals::store_refusal};
use tidings_engine::access::{Operation, TokenClaims};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::RawClientFrame,
};

/// How long a session may last whose token had just expired when it bound.
const TOKEN_GRACE: Duration = Duration::from_secs(5);

impl Shard {
    /// The user of a token, and what it allows. An address with too many rejected tokens has to wait.
    pub(super) fn check_token(&self, key: usize, token: &str) -> Result<(TokenClaims, Arc<User>), Refusal> {
        let checked = self.parts.tokens.verify(token).and_then(|claims| {
            let user = self.parts.engine.directory.require_user(&claims.user)?;
            claims.check_user(&user, self.parts.engine.clock.now_ms())?;
            Ok((claims, user))
        });
        checked.map_err(|refusal| {
            let is_failure = refusal.code == ErrorCode::Unauthorized;
            let throttle_key = self.connections[key].throttle_key;
            match is_failure.then(|| self.parts.tokens.count_failure(throttle_key)).flatten() {
                Some(wait_ms) => {
                    let why = "too many tokens from this address were not good; wait before the next";
                    Refusal::new(ErrorCode::RateLimited, why).retry_after(wait_ms)
                }
                None => refusal,
            }
        })
    }

    pub(super) fn check_user_of(&self, bind: &SessionBinding) -> Result<(), Refusal> {
        let user = self.parts.engine.directory.user(bind.user.no).map_err(store_refusal)?;
        let user = user.as_deref().unwrap_or(&bind.user);
        let claims = TokenClaims {
            user: String::new(),
            scopes: bind.scopes,
            issued_at: bind.issued_at.map(NonZeroU64::get),
            expires_at: bind.expires_at,
            signed_by_node: false,
        };
        claims.check_user(user, self.parts.engine.clock.now_ms())
    }

    /// The session continues with a new token of the same user.
    pub(super) fn handle_refresh(&mut self, key: usize, frame: &RawClientFrame<'_>) -> FrameOutcome {
        let refreshed = frame.token.as_deref().ok_or_else(|| missing_field("token", "refresh"));
        match refreshed.and_then(|token| self.refresh(key, token)) {
            Ok(()) => self.send_ok(key, frame.reference),
            Err(refusal) => self.refuse(key, frame.reference, refusal),
        }
    }

    fn refresh(&mut self, key: usize, token: &str) -> Result<(), Refusal> {
        let (claims, user) = self.check_token(key, token)?;
        let Some(binding) = &mut self.connections[key].binding else { return Ok(()) };
        if user.no != binding.user.no {
            return Err(Refusal::new(ErrorCode::Forbidden, "token: it is another user's; bind on another connection"));
        }
        // Chat and pushes were granted at the bind; a new token must still allow them.
        for (has, operation) in [(binding.chat, Operation::ReceiveMessages), (binding.push, Operation::ReceivePushes)] {
            if has {
                claims.scopes.check(operation)?;
            }
        }
        let issued_at = claims.issued_at.and_then(NonZeroU64::new);
        (binding.scopes, binding.issued_at, binding.expires_at) = (claims.scopes, issued_at, claims.expires_at);
        self.end_with_token(key, claims.expires_at);
        Ok(())
    }

    /// Ends the session when its token expires.
    pub(super) fn end_with_token(&mut self, key: usize, expires_at: u64) {
        // A token that had just expired was accepted because clocks differ: the session has the time by which they may differ.
        let left_ms = expires_at.saturating_sub(self.parts.engine.clock.now_ms());
        let left = if left_ms == 0 { TOKEN_GRACE } else { Duration::from_millis(left_ms) };
        let ticks = u32::try_from(left.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u32::MAX);
        // One more, since the current tick has begun already: the session never ends before its token.
        let expires = self.tick().saturating_add(ticks).saturating_add(1);
        self.connections[key].token_expires = expires;
        self.arm_timer(key, expires);
    }
}

//! Where providers reach users' devices.

use crate::Engine;
use tidings_domain::{
    model::*,
    push_tokens::*,
    refusals::store_refusal,
    store::{Proposal, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{PushToken, PushTokenDetails, PushTokens},
    ids::{check_id, check_new_id},
    limits::PUSH_TOKENS_PER_USER_MAX,
};

/// How often a registration is tried again when another one of the same token, device or user came between look and commit. When
/// devices of one user register at the same moment, one of them goes through at a time, and no more than a user may have.
const TRIES: usize = 5 + PUSH_TOKENS_PER_USER_MAX;

impl Engine {
    /// Registers the token by which a provider reaches a device, in place of the device's former one; `None`: the device is
    /// no longer reached. A token that another device had, perhaps of another user, is this device's alone from now on.
    /// Whether the provider is set up has been checked. Blocks.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub fn set_push_token(&self, user: &User, device: &str, token: Option<&PushToken>) -> Result<(), Refusal> {
        match token {
            Some(_) => check_new_id("device_id", device)?,
            None => check_id("device_id", device)?,
        }
        let mut tries = 0;
        loop {
            // Read before the devices are counted: who comes in between is noticed at the commit.
            let row = self.store.row(RowSpace::Chat, &additions_key(user.no)).map_err(store_refusal)?;
            let additions = additions_in(row.as_deref()).map_err(store_refusal)?;
            let proposal = self.push_token_proposal(user, device, token, additions).map_err(store_refusal)?;
            let Some(proposal) = proposal else { return Ok(()) };
            if let Proposal::SetPushToken { former: None, .. } = &proposal {
                self.check_room(user)?;
            }
            tries += 1;
            match self.committer.propose_blocking(proposal) {
                Err(refusal) if refusal.code == ErrorCode::Conflict && tries < TRIES => {}
                result => return result.map(drop),
            }
        }
    }

    /// The change, with what is known now of the device and the token. `None`: there is nothing to change.
    fn push_token_proposal(
        &self,
        user: &User,
        device: &str,
        token: Option<&PushToken>,
        additions: u64,
    ) -> Result<Option<Proposal>, tidings_domain::store::StoreError> {
        let row = self.store.row(RowSpace::Chat, &device_key(user.no, device))?;
        let former = digest_in(row.as_deref())?;
        let mut owner = None;
        if let Some(token) = token {
            let row = self.store.row(RowSpace::Chat, &token_key(TokenDigest::of(token)))?;
            let found = RegisteredToken::decode(row.as_deref())?.filter(|found| !found.is_of(user.no, device));
            owner = found.map(|found| (UserNo(found.user), found.device));
        }
        if token.is_none() && former.is_none() {
            return Ok(None);
        }
        let mut notes = Vec::new();
        if let Some((user, device)) = &owner
            && let Some(user) = self.directory.user(*user)?
        {
            notes.extend(self.feed_notes.of_device(&user.id, device, None));
        }
        // An app registers its token at every start.
        if token.map(TokenDigest::of) != former {
            notes.extend(self.feed_notes.of_device(&user.id, device, token.map(PushToken::provider)));
        }
        Ok(Some(Proposal::SetPushToken {
            user: user.no,
            device: device.to_owned(),
            token: token.cloned(),
            former,
            owner,
            additions: Some(additions),
            notes: self.feed_notes.for_commit(notes),
        }))
    }

    /// Refuses one more device of a user who has as many as are allowed.
    fn check_room(&self, user: &User) -> Result<(), Refusal> {
        let (from, to) = devices_of(user.no);
        let rows = self.store.rows(RowSpace::Chat, &from, &to, PUSH_TOKENS_PER_USER_MAX).map_err(store_refusal)?;
        let (limit, count) = (PUSH_TOKENS_PER_USER_MAX as u64, rows.len() as u64);
        if count < limit { Ok(()) } else { Err(Refusal::limit("devices with a push token", limit, count + 1)) }
    }

    /// The devices of a user that providers reach. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn push_tokens(&self, user: &User) -> Result<PushTokens, Refusal> {
        let found = tokens_of(&*self.store, user.no, PUSH_TOKENS_PER_USER_MAX * 2).map_err(store_refusal)?;
        let details = |token: RegisteredToken| PushTokenDetails {
            provider: token.token.provider(),
            device_id: token.device,
            registered_at: token.registered_at,
        };
        Ok(PushTokens { push_tokens: found.into_iter().map(|(_, token)| details(token)).collect() })
    }
}

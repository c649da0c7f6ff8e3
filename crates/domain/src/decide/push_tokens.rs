//! Which device a push token is of. A device has one token at most, and a token is of one device.

use super::{Decider, ProposalError, StagedRows};
use crate::{model::*, push_tokens::*, store::*};
use tidings_protocol::http::PushToken;

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    pub(super) fn set_push_token(
        &mut self,
        user: UserNo,
        device: &str,
        token: Option<&PushToken>,
        former: Option<TokenDigest>,
        owner: Option<&(UserNo, String)>,
        additions: Option<u64>,
    ) -> Result<Outcome, ProposalError> {
        self.rows.user(user)?.ok_or(Rejection::NoSuchUser(user))?;
        let own_key = device_key(user, device);
        if digest_in(self.rows.chat_row(&own_key)?.as_deref())? != former {
            return Err(Rejection::PushTokenMoved.into());
        }
        let addition = match (token, former) {
            (Some(_), None) => Some(additions_in(self.rows.chat_row(&additions_key(user))?.as_deref())?),
            _ => None,
        };
        // Two registrations that each saw room for one device must not both have it.
        if addition.zip(additions).is_some_and(|(present, expected)| present != expected) {
            return Err(Rejection::PushTokenMoved.into());
        }
        let digest = token.map(TokenDigest::of);
        if let Some(digest) = digest {
            let found = RegisteredToken::decode(self.rows.chat_row(&token_key(digest))?.as_deref())?;
            let other = found.filter(|found| !found.is_of(user, device));
            // Only rows that the proposal names are loaded: the former owner's must be among them.
            match (other, owner) {
                (None, None) => {}
                (Some(other), Some((no, id))) if other.is_of(*no, id) => {
                    self.rows.put_chat_row(device_key(*no, id), None);
                }
                _ => return Err(Rejection::PushTokenMoved.into()),
            }
        }
        if let Some(former) = former.filter(|former| Some(*former) != digest) {
            // Two nodes can register one token at the same time; it is the later one's, and only that one may remove it.
            let found = RegisteredToken::decode(self.rows.chat_row(&token_key(former))?.as_deref())?;
            if found.is_some_and(|found| found.is_of(user, device)) {
                self.rows.put_chat_row(token_key(former), None);
            }
        }
        let (Some(token), Some(digest)) = (token, digest) else {
            if former.is_some() {
                self.rows.put_chat_row(own_key, None);
            }
            return Ok(Outcome::Done);
        };
        let registered =
            RegisteredToken { user: user.0, device: device.into(), registered_at: self.now_ms, token: token.clone() };
        self.rows.put_chat_row(token_key(digest), Some(registered.encode()));
        self.rows.put_chat_row(own_key, Some(encode_digest(digest)));
        if let Some(present) = addition {
            self.rows.put_chat_row(additions_key(user), Some((present + 1).to_be_bytes().to_vec()));
        }
        Ok(Outcome::Done)
    }
}

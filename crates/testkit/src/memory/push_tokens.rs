//! Which device a push token is of, as plainly as possible: all registrations are looked through.

use super::{State, index};
use tidings_domain::{model::*, push_tokens::*, store::*};
use tidings_protocol::http::PushToken;

/// What a proposal says of a device's push token.
pub(super) struct Registration<'a> {
    pub user: UserNo,
    pub device: &'a str,
    /// Absent: the device has none any more.
    pub token: Option<&'a PushToken>,
    pub former: Option<TokenDigest>,
    pub owner: Option<&'a (UserNo, String)>,
    pub additions: Option<u64>,
}

impl State {
    pub(super) fn set_push_token(&mut self, registration: Registration<'_>, now_ms: u64) -> Result<Outcome, Rejection> {
        let Registration { user, device, token, former, owner, additions } = registration;
        self.users.get(index(user.0)).ok_or(Rejection::NoSuchUser(user))?;
        let all: Vec<RegisteredToken> = self
            .rows
            .iter()
            .filter(|((space, key), _)| *space == RowSpace::Chat && key.first() == Some(&b't'))
            .filter_map(|(_, row)| serde_json::from_slice(row).ok())
            .collect();
        let present = all.iter().find(|one| one.is_of(user, device)).map(|one| TokenDigest::of(&one.token));
        let wanted = token.map(TokenDigest::of);
        let holder = all.iter().find(|one| Some(TokenDigest::of(&one.token)) == wanted && !one.is_of(user, device));
        if present != former || holder.map(|one| (UserNo(one.user), &one.device)) != owner.map(|(no, id)| (*no, id)) {
            // Without a new token, nobody has it.
            if present != former || token.is_some() {
                return Err(Rejection::PushTokenMoved);
            }
        }
        let added = (RowSpace::Chat, additions_key(user));
        let count =
            self.rows.get(&added).map_or(0, |row| row.iter().fold(0, |count, byte| count << 8 | u64::from(*byte)));
        let is_addition = token.is_some() && former.is_none();
        if is_addition && additions.is_some_and(|expected| expected != count) {
            return Err(Rejection::PushTokenMoved);
        }
        let mut remove = |one: &RegisteredToken| {
            self.rows.remove(&(RowSpace::Chat, token_key(TokenDigest::of(&one.token))));
            self.rows.remove(&(RowSpace::Chat, device_key(UserNo(one.user), &one.device)));
        };
        all.iter().filter(|one| one.is_of(user, device)).for_each(&mut remove);
        holder.into_iter().for_each(&mut remove);
        if let Some(token) = token {
            let registered =
                RegisteredToken { user: user.0, device: device.into(), registered_at: now_ms, token: token.clone() };
            let digest = TokenDigest::of(token);
            self.rows.insert((RowSpace::Chat, token_key(digest)), registered.encode());
            self.rows.insert((RowSpace::Chat, device_key(user, device)), encode_digest(digest));
            if is_addition {
                self.rows.insert(added, (count + 1).to_be_bytes().to_vec());
            }
        }
        Ok(Outcome::Done)
    }
}

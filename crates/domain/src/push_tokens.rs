//! The rows of push tokens: where providers reach the devices of users.
//!
//! A token is one row under its digest, which names the device that it is of; a device has a row with the digest of its
//! token. A token that is registered for another device, perhaps of another user, is overwritten: at no time two users are
//! notified by one token.

pub use crate::token_digest::TokenDigest;
use crate::{
    chat_row_kind::ChatRowKind,
    chat_rows::{decode, encode, number_in},
    model::UserNo,
    store::{RowSpace, RowStore},
    store_error::{StoreError, StoreResult},
};
use serde::{Deserialize, Serialize};
use tidings_protocol::http::PushToken;

/// A token, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredToken {
    /// The number of the device's user.
    pub user: u64,
    /// The device's id.
    pub device: String,
    /// When the token was registered, in milliseconds since 1970 UTC.
    pub registered_at: u64,
    /// The token.
    #[serde(with = "crate::stored_names::token")]
    pub token: PushToken,
}

impl RegisteredToken {
    /// Whether the token is of this device.
    pub fn is_of(&self, user: UserNo, device: &str) -> bool {
        self.user == user.0 && self.device == device
    }

    /// The row.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// The token of a row; `None` without a row.
    ///
    /// # Errors
    /// The row is damaged.
    pub fn decode(row: Option<&[u8]>) -> StoreResult<Option<RegisteredToken>> {
        decode(row)
    }
}

/// The key of a token's row.
pub fn token_key(digest: TokenDigest) -> Vec<u8> {
    [&[ChatRowKind::PushToken.byte()][..], digest.bytes()].concat()
}

/// The key of a device's row. All devices of a user are one range.
pub fn device_key(user: UserNo, device: &str) -> Vec<u8> {
    [&ChatRowKind::PushDevice.key(&[user.0])[..], device.as_bytes()].concat()
}

/// The device of a key that [`device_key`] made.
pub fn device_in(key: &[u8]) -> Option<(UserNo, &str)> {
    let user = number_in(key, 0).filter(|_| ChatRowKind::PushDevice.has(key))?;
    Some((UserNo(user), std::str::from_utf8(key.get(9..)?).ok()?))
}

/// The range of the rows of a user's devices.
pub fn devices_of(user: UserNo) -> (Vec<u8>, Vec<u8>) {
    // Ids are UTF-8, in which no byte is 255.
    (ChatRowKind::PushDevice.key(&[user.0]), [&ChatRowKind::PushDevice.key(&[user.0])[..], &[255]].concat())
}

/// The range of the rows of all devices.
pub fn all_devices() -> (Vec<u8>, Vec<u8>) {
    (ChatRowKind::PushDevice.key(&[0]), ChatRowKind::PushDevice.key(&[u64::MAX; 2]))
}

/// The digest in a device's row.
///
/// # Errors
/// The row is damaged.
pub fn digest_in(row: Option<&[u8]>) -> StoreResult<Option<TokenDigest>> {
    let Some(row) = row else { return Ok(None) };
    let digest = row.try_into().map_err(|_| damaged("a device's token"))?;
    Ok(Some(TokenDigest::from_bytes(digest)))
}

/// The value of a device's row.
pub fn encode_digest(digest: TokenDigest) -> Vec<u8> {
    digest.bytes().to_vec()
}

/// The key of a user's row that counts the devices which got a token while they had none.
pub fn additions_key(user: UserNo) -> Vec<u8> {
    ChatRowKind::PushDeviceAdditions.key(&[user.0])
}

/// The count of a row of [`additions_key`]; 0 without a row.
///
/// # Errors
/// The row is damaged.
pub fn additions_in(row: Option<&[u8]>) -> StoreResult<u64> {
    let Some(row) = row else { return Ok(0) };
    row.try_into().map(u64::from_be_bytes).map_err(|_| damaged("the count of a user's registrations"))
}

/// The rows that a change of a device's token reads or writes.
pub fn row_keys(
    user: UserNo,
    device: &str,
    token: Option<&PushToken>,
    former: Option<&TokenDigest>,
    owner: Option<&(UserNo, String)>,
) -> Vec<Vec<u8>> {
    let mut keys = vec![device_key(user, device)];
    keys.extend(token.map(|token| token_key(TokenDigest::of(token))));
    keys.extend(former.map(|former| token_key(*former)));
    keys.extend(owner.map(|(user, device)| device_key(*user, device)));
    keys.extend((token.is_some() && former.is_none()).then(|| additions_key(user)));
    keys
}

/// The tokens of a user's devices, in the order of the devices' ids, at most `limit`.
///
/// # Errors
/// Those of reads.
pub fn tokens_of<S: RowStore + ?Sized>(
    store: &S,
    user: UserNo,
    limit: usize,
) -> StoreResult<Vec<(TokenDigest, RegisteredToken)>> {
    let (from, to) = devices_of(user);
    let devices = store.rows(RowSpace::Chat, &from, &to, limit)?;
    if devices.is_empty() {
        return Ok(Vec::new());
    }
    let mut digests = Vec::with_capacity(devices.len());
    for (_, row) in &devices {
        digests.push(digest_in(Some(row))?.ok_or_else(|| damaged("a device's token"))?);
    }
    let keys: Vec<_> = digests.iter().map(|digest| token_key(*digest)).collect();
    let mut tokens = Vec::new();
    for (((key, _), digest), row) in devices.iter().zip(digests).zip(store.rows_of(RowSpace::Chat, &keys)?) {
        // A token that is moved between the two reads is of another device by now.
        let is_of = |token: &RegisteredToken| device_in(key).is_some_and(|(user, device)| token.is_of(user, device));
        tokens.extend(RegisteredToken::decode(row.as_deref())?.filter(is_of).map(|token| (digest, token)));
    }
    Ok(tokens)
}

fn damaged(what: &str) -> StoreError {
    StoreError::Damaged(what.into())
}

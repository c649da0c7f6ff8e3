//! Which user and device each token was given to.

use super::notice::OfflineChannel;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

/// The user and device that a token is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenOwner {
    pub(crate) user: String,
    pub(crate) device: String,
}

/// All tokens of a run.
#[derive(Debug, Default)]
pub(super) struct TokenBook(RwLock<HashMap<String, TokenOwner>>);

impl TokenBook {
    /// A new token of this provider: for APNs in hexadecimal, for a browser the last part of its endpoint.
    pub(super) fn add(&self, provider: OfflineChannel, owner: TokenOwner) -> String {
        let bytes: [u8; 32] = rand::random();
        let token = match provider {
            OfflineChannel::Apns => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            _ => URL_SAFE_NO_PAD.encode(bytes),
        };
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(token.clone(), owner);
        token
    }

    pub(super) fn owner(&self, token: &str) -> Result<TokenOwner, String> {
        let found = self.0.read().unwrap_or_else(PoisonError::into_inner).get(token).cloned();
        found.ok_or_else(|| "a token that nobody registered".to_owned())
    }
}

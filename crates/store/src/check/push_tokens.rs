//! Push tokens must agree: each token with the device that it names, and each device with its token.

use super::{CheckReport, scan_meta};
use crate::{kv::*, rows::*};
use std::collections::BTreeMap;
use tidings_domain::{chat_row_kind::ChatRowKind, model::UserNo, push_tokens::*, store::StoreResult};

pub(super) fn check_push_tokens(kv: &dyn KvRead, users: u64, report: &mut CheckReport) -> StoreResult<()> {
    let mut faults = Vec::new();
    let mut tokens: BTreeMap<Vec<u8>, (UserNo, String)> = BTreeMap::new();
    let mut devices: BTreeMap<(UserNo, String), Vec<u8>> = BTreeMap::new();
    scan_meta(kv, MetaKind::Chat, |key, row| {
        let key = &key[1..];
        match ChatRowKind::of(key) {
            Some(ChatRowKind::PushToken) => match RegisteredToken::decode(Some(row)) {
                Ok(Some(token)) if token_key(TokenDigest::of(&token.token)) == key => {
                    tokens.insert(key.to_vec(), (UserNo(token.user), token.device));
                }
                Ok(_) => faults.push("a push token is not the one of its key".to_owned()),
                Err(error) => faults.push(format!("a push token cannot be read: {error}")),
            },
            Some(ChatRowKind::PushDevice) => match (device_in(key), digest_in(Some(row))) {
                (Some((user, device)), Ok(Some(digest))) => {
                    devices.insert((user, device.to_owned()), token_key(digest));
                }
                _ => faults.push("a device's row with the digest of its push token is damaged".to_owned()),
            },
            _ => {}
        }
    })?;
    for (key, (user, device)) in &tokens {
        if user.0 == 0 || user.0 > users {
            faults.push(format!("a push token is of user {}, who does not exist", user.0));
        }
        if devices.get(&(*user, device.clone())) != Some(key) {
            faults.push(format!("user {}: device {device:?} does not know of its push token", user.0));
        }
    }
    for (device, key) in &devices {
        if tokens.get(key) != Some(device) {
            faults.push(format!("user {}: the push token of device {:?} is not there", device.0.0, device.1));
        }
    }
    report.push_tokens = tokens.len() as u64;
    faults.into_iter().for_each(|fault| report.fault(fault));
    Ok(())
}

//! The first results of requests with ids of their authors' own, by which retries are recognized: rows of the space `dedupe`.
//!
//! Earlier versions kept them by author and id alone. Those rows stay where they are and are looked for as well, as long as there
//! are any: a retry across an upgrade must find the first result.

use crate::{
    errors::store_error,
    kv::*,
    rows::{damaged, number_at, numbers, numbers_row},
};
use tidings_domain::{model::*, request_digest::RequestDigest, store::*};

/// The first byte of dedupe keys. Those of earlier versions begin with an author's number, and thus with 0.
pub(crate) const DEDUPE: u8 = 1;

pub(crate) fn dedupe_key(conversation: ConversationNo, author: UserNo, client_msg_id: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(17 + client_msg_id.len());
    key.push(DEDUPE);
    key.extend_from_slice(&conversation.0.to_be_bytes());
    key.extend_from_slice(&author.0.to_be_bytes());
    key.extend_from_slice(client_msg_id.as_bytes());
    key
}

/// The key under which earlier versions kept the first result that a dedupe key stands for.
pub(crate) fn former_dedupe_key(key: &[u8]) -> &[u8] {
    key.get(9..).unwrap_or_default()
}

/// The conversation of a dedupe key.
fn conversation_of(key: &[u8]) -> Option<u64> {
    number_at(key, 1)
}

pub(crate) fn encode_first_result(first: &FirstResult) -> Vec<u8> {
    let Appended { conversation, seq, at, position, .. } = first.appended;
    let mut row = numbers_row(&[conversation.0, seq, at, position]);
    row.extend(first.request.into_iter().flat_map(|digest| digest.0));
    row
}

/// Decodes a row of [`encode_first_result`].
pub(crate) fn decode_first_result(row: &[u8]) -> StoreResult<FirstResult> {
    let (place, digest) = row.split_at_checked(32).ok_or_else(|| damaged("a dedupe row"))?;
    let [conversation, seq, at, position] = numbers(place)[..] else { return Err(damaged("a dedupe row")) };
    let appended = Appended { conversation: ConversationNo(conversation), seq, at, position, duplicate: true };
    match (digest.is_empty(), RequestDigest::from_stored(digest)) {
        (false, None) => Err(damaged("a dedupe row")),
        (_, request) => Ok(FirstResult { appended, request }),
    }
}

/// The first result under a dedupe key, also one that an earlier version stored, if there are any such (`has_former`); with the
/// key of its row.
pub(crate) fn read_first_result(
    kv: &dyn KvRead,
    key: &[u8],
    has_former: bool,
) -> StoreResult<Option<(FirstResult, Vec<u8>)>> {
    if let Some(row) = kv.get(Space::Dedupe, key).map_err(store_error)? {
        return Ok(Some((decode_first_result(&row)?, key.to_vec())));
    }
    let former = former_dedupe_key(key);
    // Without an author there is none.
    if !has_former || number_at(former, 0).unwrap_or(0) == 0 {
        return Ok(None);
    }
    let Some(row) = kv.get(Space::Dedupe, former).map_err(store_error)? else { return Ok(None) };
    let first = decode_first_result(&row)?;
    let is_of_conversation = Some(first.appended.conversation.0) == conversation_of(key);
    Ok(is_of_conversation.then(|| (first, former.to_vec())))
}

/// Whether an earlier version has stored first results that are still there.
pub(crate) fn has_former_results(kv: &dyn KvRead) -> StoreResult<bool> {
    let mut found = false;
    kv.scan(Space::Dedupe, &[], &[DEDUPE], Order::Ascending, &mut |_, _| {
        found = true;
        false
    })
    .map_err(store_error)?;
    Ok(found)
}

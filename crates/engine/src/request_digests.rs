//! What a retry of each request must ask for as well, besides the id that the request and the retry share. The conversation and the
//! author are part of that id's key. Digests are stored: a field that is added here needs a default that adds nothing.

use tidings_domain::{
    model::UserNo,
    request_digest::{RequestDigest, RequestHasher},
};
use tidings_protocol::http::{BulkTarget, CreateBulkSend, EditMessage, NewMessage};

/// `grows`: the message is begun by it.
pub(crate) fn of_send(message: &NewMessage, grows: bool) -> Option<RequestDigest> {
    message.client_msg_id.as_ref()?;
    Some(with_message(RequestHasher::new(if grows { "stream" } else { "send" }), message).digest())
}

pub(crate) fn of_schedule(send_at: u64, account: Option<UserNo>, message: &NewMessage) -> Option<RequestDigest> {
    message.client_msg_id.as_ref()?;
    let hasher = RequestHasher::new("schedule")
        .number("send_at", Some(send_at))
        .number("account", account.map(|account| account.0));
    Some(with_message(hasher, message).digest())
}

pub(crate) fn of_edit(seq: u64, edit: &EditMessage) -> Option<RequestDigest> {
    let EditMessage { from: _, client_msg_id, content_type, body, mentions, if_version } = edit;
    client_msg_id.as_ref()?;
    let hasher = RequestHasher::new("edit")
        .number("seq", Some(seq))
        .number("if_version", if_version.map(u64::from))
        .optional_text("type", content_type.as_deref())
        .json("body", body.get())
        .set("mentions", mentions);
    Some(hasher.digest())
}

pub(crate) fn of_recall(seq: u64, client_msg_id: Option<&str>) -> Option<RequestDigest> {
    client_msg_id.map(|_| RequestHasher::new("recall").number("seq", Some(seq)).digest())
}

pub(crate) fn of_bulk_send(new: &CreateBulkSend) -> RequestDigest {
    let CreateBulkSend { client_bulk_id: _, account: _, to: BulkTarget { users, segment, rule }, message } = new;
    let hasher = RequestHasher::new("bulk")
        .flag("to.users", users.is_some())
        .set("to.users", users.iter().flatten())
        .optional_text("to.segment", segment.as_deref());
    let hasher = rule.iter().fold(hasher, |hasher, rule| hasher.json("to.rule", rule.get()));
    with_message(hasher, message).digest()
}

fn with_message(hasher: RequestHasher, message: &NewMessage) -> RequestHasher {
    let NewMessage { client_msg_id: _, content_type, body, mentions, silent, skip_push, reply_to, expires } = message;
    hasher
        .text("type", content_type)
        .json("body", body.get())
        .set("mentions", mentions)
        .flag("silent", *silent)
        .flag("skip_push", *skip_push)
        .number("reply_to", *reply_to)
        .number("expires.after_s", expires.and_then(|expires| expires.after_s).map(u64::from))
        .number("expires.after_read_s", expires.and_then(|expires| expires.after_read_s).map(u64::from))
}

//! A row of the outbox, the request that it is, and what becomes of it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap};
use tidings_protocol::error::{ErrorCode, Refusal};

/// What may stand in a path as it is, as RFC 3986 has it.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What a row asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboxOperation {
    /// A message.
    Send,
    /// A push to devices.
    Push,
    /// Events of popups, each with an id of its own.
    PopupEvents,
    /// Members added to a conversation, or removed.
    Members,
}

impl OutboxOperation {
    /// The operation of this name in the tables.
    pub(crate) fn of_name(name: &str) -> Option<OutboxOperation> {
        match name {
            "send" => Some(OutboxOperation::Send),
            "push" => Some(OutboxOperation::Push),
            "popup_events" => Some(OutboxOperation::PopupEvents),
            "members" => Some(OutboxOperation::Members),
            _ => None,
        }
    }

    /// The field of the request by which it is stored once. Events have ids themselves. A change of members has none: repeated, it changes
    /// nothing.
    fn id_field(self) -> Option<&'static str> {
        match self {
            OutboxOperation::Send => Some("client_msg_id"),
            OutboxOperation::Push => Some("client_push_id"),
            OutboxOperation::PopupEvents | OutboxOperation::Members => None,
        }
    }
}

/// A request of an app server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRequest {
    pub operation: OutboxOperation,
    /// The path over HTTP, where this is `POST`.
    pub path: Cow<'static, str>,
    /// The body over HTTP.
    pub body: String,
}

/// Where a row stands in its conversation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize)]
pub(crate) struct Place {
    pub(crate) conversation: String,
    pub(crate) place: i64,
}

/// What became of the row before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// It is finished, or there is none.
    Finished,
    /// It waits itself.
    Waiting,
    /// It was refused, and nobody has decided about it.
    Refused,
}

impl Before {
    /// By the state of the row before, if there is one.
    pub(crate) fn of_state(state: Option<&str>) -> Before {
        match state {
            Some("waiting") => Before::Waiting,
            Some("refused") => Before::Refused,
            _ => Before::Finished,
        }
    }
}

/// A row that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) id: i64,
    pub(crate) key: String,
    pub(crate) operation: String,
    /// Absent: the row is in no order.
    pub(crate) place: Option<Place>,
    pub(crate) before: Before,
    pub(crate) request: String,
}

impl Row {
    /// The request that the row is.
    ///
    /// # Errors
    /// `invalid_field`: no such operation; `malformed`: the request is no JSON object.
    pub(crate) fn request(&self) -> Result<OutboxRequest, Refusal> {
        let operation = OutboxOperation::of_name(&self.operation)
            .ok_or_else(|| Refusal::field("operation", "this version of Tidings does not know it"))?;
        let body = match operation.id_field() {
            Some(field) => with_id(&self.request, field, &self.key)?,
            None => self.request.clone(),
        };
        let path = match (operation, &self.place) {
            (OutboxOperation::Send, _) => "/v1/messages".into(),
            (OutboxOperation::Push, _) => "/v1/push".into(),
            (OutboxOperation::PopupEvents, _) => "/v1/popup-events".into(),
            (OutboxOperation::Members, Some(Place { conversation, .. })) => {
                format!("/v1/conversations/{}/members", utf8_percent_encode(conversation, PATH)).into()
            }
            (OutboxOperation::Members, None) => return Err(Refusal::field("conversation", "must be given")),
        };
        Ok(OutboxRequest { operation, path, body })
    }
}

/// An object with this id, unless it has one of its own. All else stays as it is written.
fn with_id(request: &str, field: &str, id: &str) -> Result<String, Refusal> {
    let fields: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(request)
        .map_err(|error| Refusal::new(ErrorCode::Malformed, format!("the request is no JSON object: {error}")))?;
    let is_given = fields.get(field).is_some_and(|value| value.get() != "null");
    if is_given {
        return Ok(request.to_owned());
    }
    // A null of the app's own would be the second field of this name.
    let rest = fields.into_iter().filter(|(name, _)| name != field);
    let mut body = format!("{{{field:?}:{id:?}");
    for (name, value) in rest {
        let name = serde_json::to_string(&name).unwrap_or_default();
        body.push_str(&format!(",{name}:{}", value.get()));
    }
    body.push('}');
    Ok(body)
}

/// What became of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) id: i64,
    /// The response's body.
    pub(crate) result: Result<String, Refusal>,
}

impl Outcome {
    /// The row's state from now on.
    pub(crate) fn state(&self) -> &'static str {
        if self.result.is_ok() { "done" } else { "refused" }
    }

    /// The refusal's code, if it is one. That of the hook is followed by the app server's own.
    pub(crate) fn code(&self) -> Option<&'static str> {
        self.result.as_ref().err().map(|refusal| refusal.code.as_str())
    }

    pub(crate) fn detail(&self) -> Option<String> {
        let refusal = self.result.as_ref().err()?;
        Some(match &refusal.reason {
            Some(reason) => format!("{reason}: {}", refusal.detail),
            None => refusal.detail.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn request(operation: &str, conversation: Option<&str>, request: &str) -> Result<OutboxRequest, Refusal> {
        let place = conversation.map(|conversation| Place { conversation: conversation.into(), place: 1 });
        let (operation, request) = (operation.to_owned(), request.to_owned());
        Row { id: 7, key: "k".into(), operation, place, before: Before::Finished, request }.request()
    }

    #[test]
    fn a_request_gets_the_rows_key_as_its_id_unless_it_has_one() {
        let check = |operation: &str, given: &str, body: &str| {
            assert_eq!(request(operation, None, given).unwrap().body, body, "{given}");
        };
        check("send", r#"{"to": "b", "body": {"n": 1.0}}"#, r#"{"client_msg_id":"k","body":{"n": 1.0},"to":"b"}"#);
        check("send", r#"{"client_msg_id":"own","to":"b"}"#, r#"{"client_msg_id":"own","to":"b"}"#);
        check("send", r#"{"client_msg_id":null,"to":"b"}"#, r#"{"client_msg_id":"k","to":"b"}"#);
        check("push", "{}", r#"{"client_push_id":"k"}"#);
        check("popup_events", r#"{"events":[]}"#, r#"{"events":[]}"#);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert_eq!(request("send", None, "[1]").unwrap_err().code, ErrorCode::Malformed);
        assert_eq!(request("dance", None, "{}").unwrap_err().code, ErrorCode::InvalidField);
        assert_eq!(request("members", None, "{}").unwrap_err().code, ErrorCode::InvalidField);
    }

    #[test]
    fn a_conversations_id_is_one_step_of_the_path() {
        let path = request("members", Some("a/b c"), "{}").unwrap().path;
        assert_eq!(path, "/v1/conversations/a%2Fb%20c/members");
    }
}

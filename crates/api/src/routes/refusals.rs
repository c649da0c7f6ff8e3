//! The refusals in the OpenAPI description: which statuses an operation may answer, and with which codes.
//!
//! Derived from the codes themselves: a new error code is described through its status.

use crate::problem::PROBLEM_JSON;
use std::collections::BTreeMap;
use tidings_protocol::error::ErrorCode;
use utoipa::{
    IntoResponses,
    openapi::{
        ContentBuilder, Ref, RefOr, Response, ResponseBuilder,
        header::{Header, HeaderBuilder},
        schema::{Object, Type},
    },
};

/// The refusals of any operation that needs a credential.
pub(super) struct Refusals;
/// The further refusals of an operation with a body.
pub(super) struct TakesBody;
/// The further refusals of an operation whose success depends on the present state.
pub(super) struct Conflict;
/// The further refusals of an operation on a session, or from a cursor on, that may be no more.
pub(super) struct Gone;
/// The further refusals of an operation whose path ends with an id: some ids name other operations, with other methods.
pub(super) struct OtherMethods;
/// The refusals of an operation that anybody may call.
pub(super) struct Open;

/// The name of each status's response in the description.
const NAMES: [(u16, &str); 13] = [
    (400, "Malformed"),
    (401, "Unauthorized"),
    (403, "Forbidden"),
    (404, "NotFound"),
    (405, "MethodNotAllowed"),
    (409, "Conflict"),
    (410, "Gone"),
    (413, "LimitExceeded"),
    (415, "UnsupportedMediaType"),
    (422, "InvalidField"),
    (429, "RateLimited"),
    (500, "Internal"),
    (503, "Unavailable"),
];

/// Codes that end sessions and never answer an HTTP operation.
const OF_SESSIONS: [ErrorCode; 2] = [ErrorCode::NotBound, ErrorCode::AlreadyBound];

impl IntoResponses for Refusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers(&[400, 401, 403, 404, 413, 422, 429, 500, 503])
    }
}

impl IntoResponses for TakesBody {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers(&[415])
    }
}

impl IntoResponses for Conflict {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers(&[409])
    }
}

impl IntoResponses for Gone {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers(&[410])
    }
}

impl IntoResponses for OtherMethods {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers(&[405])
    }
}

impl IntoResponses for Open {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers(&[400, 500, 503])
    }
}

fn answers(statuses: &[u16]) -> BTreeMap<String, RefOr<Response>> {
    let named = NAMES.iter().filter(|(status, _)| statuses.contains(status));
    named.map(|(status, name)| (status.to_string(), RefOr::Ref(Ref::from_response_name(*name)))).collect()
}

/// The responses that operations refer to.
pub(super) fn described() -> BTreeMap<String, RefOr<Response>> {
    NAMES.iter().map(|(status, name)| ((*name).to_owned(), RefOr::T(described_as(*status)))).collect()
}

fn described_as(status: u16) -> Response {
    let codes = ErrorCode::ALL.iter().filter(|code| code.http_status() == status && !OF_SESSIONS.contains(code));
    let codes: Vec<String> = codes.map(|code| format!("`{code}`")).collect();
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let response =
        ResponseBuilder::new().description(format!("Refused: {}", codes.join(", "))).content(PROBLEM_JSON, content);
    match status {
        405 => response.header("Allow", header(Type::String, "The methods that the path takes")),
        401 => response.header("WWW-Authenticate", header(Type::String, "The scheme: `Bearer`")),
        429 | 503 => response.header("Retry-After", header(Type::Integer, "After how many seconds to try again")),
        _ => response,
    }
    .build()
}

fn header(kind: Type, description: &str) -> Header {
    HeaderBuilder::new().schema(Some(Object::with_type(kind))).description(Some(description)).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_code_is_described_in_openapi() {
        for code in ErrorCode::ALL {
            let status = code.http_status();
            let elsewhere = OF_SESSIONS.contains(code) || status == 408;
            assert!(elsewhere || NAMES.iter().any(|(named, _)| *named == status), "{code} is described nowhere");
        }
    }
}

//! Extractors for handlers: the caller, a path's ids, a query and a JSON body, each read strictly.

use crate::{
    Api,
    api_keys::{CallingKey, permissions::OperationName},
    bodies::{BufferedBody, collect_body},
    needs_key,
    problem::RefusalResponse,
};
use axum::{
    extract::{
        FromRequest, FromRequestParts, MatchedPath, Path, RawPathParams, Request, path::ErrorKind,
        rejection::PathRejection,
    },
    http::{HeaderMap, header, request::Parts},
};
use bytes::Bytes;
use hyper::body::Body;
use serde::{
    Deserialize,
    de::{DeserializeOwned, Deserializer, Visitor, value},
    forward_to_deserialize_any,
};
use std::sync::Arc;
use tidings_domain::model::{Actor, User};
use tidings_engine::access::{self, Operation, Scopes};
use tidings_listen::ConnectionActivity;
use tidings_protocol::{
    error::{ErrorCode, Refusal, quoted},
    json,
    limits::{HTTP_BODY_BYTES_MAX, OPERATION_BODY_BYTES_MAX},
    time::TIME_HINT,
};

/// The caller, an app server or a user, with the scopes of its token. A handler gets at the actor through [`Caller::may`],
/// so that no operation forgets to check the scope.
pub struct Caller(access::Caller);

/// A caller whose scope for the operation is checked.
pub struct Allowed(pub Actor);

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = RefusalResponse;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, RefusalResponse> {
        Ok(Caller(authenticate(api, parts)?))
    }
}

/// Proof that an app server is calling.
pub struct AppServer;

impl FromRequestParts<Arc<Api>> for AppServer {
    type Rejection = RefusalResponse;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, RefusalResponse> {
        match authenticate(api, parts)?.actor {
            Actor::App => Ok(AppServer),
            Actor::User(_) => Err(needs_key().into()),
        }
    }
}

/// The API key of a request, for operations that ask which one it is.
pub struct KeyHolder(pub Arc<CallingKey>);

impl FromRequestParts<Arc<Api>> for KeyHolder {
    type Rejection = RefusalResponse;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, RefusalResponse> {
        let activity = parts.extensions.get::<ConnectionActivity>();
        Ok(KeyHolder(api.authenticate_key(&parts.headers, operation_of(parts), activity)?))
    }
}

/// The caller of a request.
fn authenticate(api: &Api, parts: &Parts) -> Result<access::Caller, Refusal> {
    api.authenticate(&parts.headers, operation_of(parts), parts.extensions.get::<ConnectionActivity>())
}

/// The operation that the router has found for a request.
fn operation_of(parts: &Parts) -> OperationName<'_> {
    let path = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    OperationName { method: parts.method.as_str(), path }
}

impl Caller {
    /// Checks that the caller's token has the scope of the operation.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn may(self, operation: Operation) -> Result<Allowed, Refusal> {
        Ok(Allowed(self.may_send(operation)?.actor))
    }

    /// The same for a send, which also needs to know whether the token lets it open a direct conversation.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn may_send(self, operation: Operation) -> Result<access::Caller, Refusal> {
        self.0.scopes.check(operation)?;
        Ok(self.0)
    }

    pub fn scopes(&self) -> Scopes {
        self.0.scopes
    }

    pub fn actor(&self) -> &Actor {
        &self.0.actor
    }
}

impl Allowed {
    /// The user that a path names. A token may name its own user only, also as `me`.
    ///
    /// # Errors
    /// `not_found`, or `forbidden` for another user than the token's.
    pub fn user(&self, api: &Api, named: &str) -> Result<Arc<User>, Refusal> {
        match &self.0 {
            Actor::App => api.engine.directory.require_user(named),
            Actor::User(user) if named == "me" || named == user.id => Ok(user.clone()),
            Actor::User(_) => Err(Refusal::new(ErrorCode::Forbidden, "a user's token reaches only that user")),
        }
    }
}

/// The ids in a path.
pub struct PathIds<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Api>> for PathIds<T> {
    type Rejection = RefusalResponse;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, RefusalResponse> {
        match Path::<T>::from_request_parts(parts, api).await {
            Ok(Path(ids)) => Ok(PathIds(ids)),
            Err(error) => Err(path_refusal(parts, &error).await.into()),
        }
    }
}

/// The refusal of a path. It names the path's parameter as the OpenAPI description does.
async fn path_refusal(parts: &mut Parts, error: &PathRejection) -> Refusal {
    let PathRejection::FailedToDeserializePathParams(error) = error else {
        return Refusal::field("path", error.body_text());
    };
    match error.kind() {
        ErrorKind::InvalidUtf8InPathParam { key } => Refusal::field(key, "is not UTF-8 once its %-escapes are undone"),
        ErrorKind::ParseErrorAtKey { key, value, .. } => not_a_number(key, value),
        ErrorKind::ParseErrorAtIndex { index, value, .. } => not_a_number(&path_name(parts, *index).await, value),
        ErrorKind::ParseError { value, .. } => not_a_number(&path_name(parts, 0).await, value),
        _ => Refusal::field("path", "does not match the operation"),
    }
}

async fn path_name(parts: &mut Parts, index: usize) -> String {
    let params = RawPathParams::from_request_parts(parts, &()).await;
    let name = params.ok().and_then(|params| params.iter().nth(index).map(|(name, _)| name.to_owned()));
    name.unwrap_or_else(|| "path".into())
}

/// The refusal of a parameter that must be a number: besides text, paths and queries hold nothing else.
fn not_a_number(name: &str, value: &str) -> Refusal {
    Refusal::field(name, format!("must be a whole number of at least 0, got {}", quoted(value)))
}

/// A query string. Unknown parameters are refused, like unknown fields of a body.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Api>> for Query<T> {
    type Rejection = RefusalResponse;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Self, RefusalResponse> {
        Ok(Query(read_query(parts.uri.query().unwrap_or_default())?))
    }
}

fn read_query<T: DeserializeOwned>(text: &str) -> Result<T, Refusal> {
    let pairs = || form_urlencoded::parse(text.as_bytes());
    let known = field_names::<T>();
    let mut seen = Vec::new();
    for (name, _) in pairs() {
        if !known.contains(&&*name) {
            let why = format!("unknown parameter; expected one of {}", known.join(", "));
            return Err(Refusal::field(&quoted(&name).replace('"', ""), why));
        }
        if seen.contains(&name) {
            return Err(Refusal::field(&name, "appears twice"));
        }
        seen.push(name);
    }
    serde_path_to_error::deserialize(json::strict(serde_urlencoded::Deserializer::new(pairs()))).map_err(|error| {
        let name = error.path().to_string();
        let given = pairs().find(|(given, _)| *given == name).map(|(_, value)| value);
        parameter_refusal(&name, given.as_deref(), &error.inner().to_string())
    })
}

/// The refusal of a query parameter, made from `serde`'s error text `why`.
fn parameter_refusal(name: &str, given: Option<&str>, why: &str) -> Refusal {
    if let Some(missing) = why.strip_prefix("missing field ") {
        return Refusal::field(missing.trim_matches('`'), "is missing");
    }
    if why.starts_with(TIME_HINT) {
        return Refusal::field(name, why);
    }
    let got = quoted(given.unwrap_or_default());
    if let Some((_, variants)) = why.rsplit_once(", expected ").filter(|_| why.starts_with("unknown variant")) {
        let variants = variants.trim_start_matches("one of ").replace("` or `", ", ").replace('`', "");
        return Refusal::field(name, format!("must be one of {variants}, got {got}"));
    }
    if why.contains("too large") {
        Refusal::field(name, format!("is too large a number: {got}"))
    } else {
        not_a_number(name, given.unwrap_or_default())
    }
}

/// The names of a struct's fields: its derived `Deserialize` passes them to the deserializer.
fn field_names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    struct FieldNameProbe<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for FieldNameProbe<'_> {
        type Error = value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
            Err(serde::de::Error::custom("only field names are wanted"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, value::Error> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut names: &'static [&'static str] = &[];
    // Err: the probe stops as soon as it has the names.
    let _ = T::deserialize(FieldNameProbe(&mut names));
    names
}

/// A JSON body of at most `BYTES_MAX` bytes.
pub struct Json<T, const BYTES_MAX: usize = OPERATION_BODY_BYTES_MAX>(pub T);

/// A JSON body of an operation that takes many items at once.
pub type BatchJson<T> = Json<T, HTTP_BODY_BYTES_MAX>;

impl<T: DeserializeOwned, const BYTES_MAX: usize> FromRequest<Arc<Api>> for Json<T, BYTES_MAX> {
    type Rejection = RefusalResponse;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, RefusalResponse> {
        let (parts, body) = request.into_parts();
        Ok(Json(read_json(api, &parts.headers, body, BYTES_MAX).await?))
    }
}

/// The bytes of a JSON body, unparsed.
pub struct RawJson(pub Bytes);

impl FromRequest<Arc<Api>> for RawJson {
    type Rejection = RefusalResponse;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, RefusalResponse> {
        let (parts, body) = request.into_parts();
        Ok(RawJson(read_body(api, &parts.headers, body, OPERATION_BODY_BYTES_MAX).await?.into()))
    }
}

/// Reads a JSON body into one buffer and parses it in place.
pub(crate) async fn read_json<T: DeserializeOwned, B>(
    api: &Api,
    headers: &HeaderMap,
    body: B,
    bytes_max: usize,
) -> Result<T, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let body = read_body(api, headers, body, bytes_max).await?;
    let _turn = api.bulk.turn(body.as_ref().len()).await;
    parse(body.as_ref())
}

/// The bytes of a JSON body.
pub(crate) async fn read_body<B>(
    api: &Api,
    headers: &HeaderMap,
    body: B,
    bytes_max: usize,
) -> Result<BufferedBody, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    if let Some(kind) = headers.get(header::CONTENT_TYPE)
        && !is_json(kind.as_bytes())
    {
        return Err(Refusal::new(ErrorCode::UnsupportedMediaType, "content-type: must be application/json"));
    }
    check_encoding(headers)?;
    collect_body(&api.bodies, body, bytes_max, "request body (bytes)").await
}

/// Refuses a compressed body: nothing that this server reads is worth the memory that a small one may unfold to.
pub(crate) fn check_encoding(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            let encoding = quoted(&String::from_utf8_lossy(encoding.as_bytes()));
            let why = format!("content-encoding: {encoding} is not read here: send the body uncompressed");
            Err(Refusal::new(ErrorCode::UnsupportedMediaType, why))
        }
        _ => Ok(()),
    }
}

/// A media type without its parameters.
pub(crate) fn essence(kind: &[u8]) -> &[u8] {
    kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

/// Whether a media type is `application/json` or ends with `+json`, with or without parameters.
pub(crate) fn is_json(kind: &[u8]) -> bool {
    let essence = essence(kind);
    essence.eq_ignore_ascii_case(b"application/json") || essence.to_ascii_lowercase().ends_with(b"+json")
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    json::read(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tidings_protocol::http::{HistoryQuery, MarkRead};

    #[test]
    fn a_query_with_an_unknown_parameter_is_refused() {
        let query: HistoryQuery = read_query("from_seq=3&limit=10").unwrap();
        assert_eq!((query.from_seq, query.limit), (Some(3), Some(10)));
        for (bad, why) in [
            ("from=3", "from: unknown parameter; expected one of cursor, from_seq"),
            ("from_seq=x", "from_seq: must be a whole number of at least 0, got \"x\""),
            ("from_seq=", "from_seq: must be a whole number of at least 0, got \"\""),
            ("from_seq=1&from_seq=2", "from_seq: appears twice"),
            ("limit=99999999999999999999999", "limit: is too large a number"),
            ("&limit=1&x", "x: unknown parameter"),
            ("to_time=1764238000", "to_time: must be in milliseconds since 1970 UTC, got 1764238000, which looks like"),
        ] {
            let refusal = read_query::<HistoryQuery>(bad).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::InvalidField, "{bad}");
            assert!(refusal.detail.starts_with(why), "{bad}: {}", refusal.detail);
        }
        assert_eq!(read_query::<HistoryQuery>("%6Cimit=1").unwrap().limit, Some(1));
        let query: HistoryQuery = read_query("from_time=0&to_time=1764238000000").unwrap();
        assert_eq!((query.from_time, query.to_time), (Some(0), Some(1_764_238_000_000)));
        read_query::<HistoryQuery>("").unwrap();
    }

    #[test]
    fn invalid_json_is_malformed_and_wrong_fields_are_invalid() {
        let code = |text: &str| parse::<MarkRead>(text.as_bytes()).map(|_| ()).map_err(|refusal| refusal.code);
        assert_eq!(code(r#"{"seq": 1}"#), Ok(()));
        for malformed in ["", "{", r#"{"seq": 1} x"#, "\u{0}"] {
            assert_eq!(code(malformed), Err(ErrorCode::Malformed), "{malformed:?}");
        }
        for wrong in [r#"{"seq": "1"}"#, r#"{"seq": 1, "sequence": 1}"#, "[]", "{}", r#"{"seq": -1}"#] {
            assert_eq!(code(wrong), Err(ErrorCode::InvalidField), "{wrong:?}");
        }
    }

    #[test]
    fn json_media_types_are_recognised() {
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"] {
            assert!(is_json(json.as_bytes()), "{json}");
        }
        for other in ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"] {
            assert!(!is_json(other.as_bytes()), "{other}");
        }
    }
}

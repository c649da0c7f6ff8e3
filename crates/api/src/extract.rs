//! What a handler is given: the caller, a path's ids, a query and a JSON body, each strictly read.

use crate::{Api, problem::Refused};
use axum::{
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{HeaderMap, header, request::Parts},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use serde::{
    Deserialize,
    de::{DeserializeOwned, Deserializer, Visitor, value},
    forward_to_deserialize_any,
};
use std::{sync::Arc, time::Duration};
use tidings_engine::{engine::Actor, model::User};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::HTTP_BODY_BYTES_MAX,
};

/// A body that has not come by then is given up, so that an idle sender does not hold its connection.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Who is calling: an app server or a user.
pub struct Caller(pub Actor);

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Refused> {
        Ok(Caller(api.authenticate(&parts.headers)?))
    }
}

/// Proof that an app server is calling.
pub struct AppServer;

impl FromRequestParts<Arc<Api>> for AppServer {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Refused> {
        match api.authenticate(&parts.headers)? {
            Actor::App => Ok(AppServer),
            Actor::User(_) => {
                Err(Refusal::new(ErrorCode::Forbidden, "this operation needs an API key, not a user's token").into())
            }
        }
    }
}

impl Caller {
    /// The user that a path names. A token's user is also called `me`, and may name nobody else.
    pub fn user(&self, api: &Api, named: &str) -> Result<Arc<User>, Refusal> {
        match &self.0 {
            Actor::App => api.engine.directory.require_user(named),
            Actor::User(user) if named == "me" || named == user.id => Ok(user.clone()),
            Actor::User(_) => Err(Refusal::new(ErrorCode::Forbidden, "a user's token reaches only that user")),
        }
    }
}

/// The ids in a path.
pub struct Ids<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Api>> for Ids<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Refused> {
        match Path::<T>::from_request_parts(parts, api).await {
            Ok(Path(ids)) => Ok(Ids(ids)),
            Err(error) => Err(Refusal::field("path", error.body_text()).into()),
        }
    }
}

/// A query string, in which unknown names are refused like unknown fields of a body.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Api>> for Query<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Self, Refused> {
        Ok(Query(read_query(parts.uri.query().unwrap_or_default())?))
    }
}

fn read_query<T: DeserializeOwned>(text: &str) -> Result<T, Refusal> {
    let known = field_names::<T>();
    let names = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split('=').next().unwrap_or(pair));
    for name in names {
        if !known.contains(&name) {
            return Err(Refusal::field("query", format!("unknown name {name:?}; known are {known:?}")));
        }
    }
    serde_urlencoded::from_str(text).map_err(|error| Refusal::field("query", error))
}

/// The names of a struct's fields, as its derived `Deserialize` asks for them.
fn field_names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    struct Ask<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Ask<'_> {
        type Error = value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
            Err(serde::de::Error::custom("only asked for names"))
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
    let _ = T::deserialize(Ask(&mut names));
    names
}

/// A JSON body of at most [`HTTP_BODY_BYTES_MAX`].
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<Api>> for Json<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &Arc<Api>) -> Result<Self, Refused> {
        let (parts, body) = request.into_parts();
        Ok(Json(read_json(&parts.headers, body).await?))
    }
}

/// The text of a JSON body, unread.
pub struct Raw(pub Bytes);

impl FromRequest<Arc<Api>> for Raw {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &Arc<Api>) -> Result<Self, Refused> {
        let (parts, body) = request.into_parts();
        Ok(Raw(read_body(&parts.headers, body).await?))
    }
}

/// Reads a JSON body; the whole of it is one buffer, which is read in place.
pub async fn read_json<T: DeserializeOwned, B>(headers: &HeaderMap, body: B) -> Result<T, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    parse(&read_body(headers, body).await?)
}

/// The bytes of a JSON body of at most [`HTTP_BODY_BYTES_MAX`].
pub(crate) async fn read_body<B>(headers: &HeaderMap, body: B) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    if let Some(kind) = headers.get(header::CONTENT_TYPE)
        && !is_json(kind.as_bytes())
    {
        return Err(Refusal::new(ErrorCode::UnsupportedMediaType, "content-type: only application/json is taken"));
    }
    collect(body, HTTP_BODY_BYTES_MAX, "request body (bytes)").await
}

/// A body's bytes, if they come in time and are no more than `most`.
pub(crate) async fn collect<B>(body: B, most: usize, name: &str) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let late = |_| Err(Refusal::new(ErrorCode::Malformed, "the body did not come in time"));
    tokio::time::timeout(BODY_TIMEOUT, gather(body, most as u64, name)).await.unwrap_or_else(late)
}

/// A media type without its parameters.
pub(crate) fn essence(kind: &[u8]) -> &[u8] {
    kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

/// `application/json`, with or without parameters, or a type built on it.
fn is_json(kind: &[u8]) -> bool {
    let essence = essence(kind);
    essence.eq_ignore_ascii_case(b"application/json") || essence.to_ascii_lowercase().ends_with(b"+json")
}

async fn gather<B>(mut body: B, limit: u64, name: &str) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let too_long = |length| Refusal::limit(name, limit, length);
    if body.size_hint().lower() > limit {
        return Err(too_long(body.size_hint().lower()));
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Refusal::new(ErrorCode::Malformed, format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = (first.len() + all.len() + data.len()) as u64;
        if length > limit {
            return Err(too_long(length));
        }
        // Most bodies are one frame, which then needs no copy.
        if first.is_empty() && all.is_empty() {
            first = data;
            continue;
        }
        all.extend_from_slice(&std::mem::take(&mut first));
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(bytes).map_err(|error| {
        let code = match error.classify() {
            serde_json::error::Category::Data => ErrorCode::InvalidField,
            _ => ErrorCode::Malformed,
        };
        Refusal::new(code, format!("body: {error}"))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tidings_protocol::http::{HistoryQuery, MarkRead};

    #[test]
    fn a_query_with_an_unknown_name_is_refused() {
        let query: HistoryQuery = read_query("from_seq=3&limit=10").unwrap();
        assert_eq!((query.from_seq, query.limit), (Some(3), Some(10)));
        for bad in ["from=3", "from_seq=x", "from_seq=1&from_seq=2", "limit=-1", "&limit=1&x"] {
            assert_eq!(read_query::<HistoryQuery>(bad).unwrap_err().code, ErrorCode::InvalidField, "{bad}");
        }
        read_query::<HistoryQuery>("").unwrap();
    }

    #[test]
    fn what_is_no_json_and_what_is_the_wrong_json_are_told_apart() {
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
    fn json_is_known_by_its_media_type() {
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"] {
            assert!(is_json(json.as_bytes()), "{json}");
        }
        for other in ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"] {
            assert!(!is_json(other.as_bytes()), "{other}");
        }
    }
}

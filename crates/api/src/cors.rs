//! Which pages of other origins may use the API from a browser, by the CORS protocol of the Fetch standard.
//!
//! A browser sends a preflight request before a request with a token, and hides a response that does not name the page's origin: so error
//! responses name it too. WebSockets have no preflight; their origin is checked at the upgrade.

use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use http_body_util::Full;
use tidings_protocol::error::{ErrorCode, Refusal};

/// The headers that a page may send and read, beyond those that the standard always allows.
const REQUEST_HEADERS: &str = "authorization, content-type, if-match, if-none-match, last-event-id, tidings-author";
const RESPONSE_HEADERS: &str = "retry-after, www-authenticate, allow, location, etag";
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";
const VARY_OF_ANSWERS: &str = "origin";
const VARY_OF_PREFLIGHTS: &str = "origin, access-control-request-method, access-control-request-headers";

/// The origins whose pages may call the API, and what browsers are answered.
#[derive(Debug, Clone)]
pub struct Cors {
    /// Absent: any.
    origins: Option<Vec<HeaderValue>>,
    credentials: bool,
    max_age: HeaderValue,
}

/// Settings that contradict each other or the standard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CorsError {
    #[error(
        "origins: {0:?} is not an origin: write a scheme, a host in lower case and a port if it is not the usual one, without a path, such as \
         https://app.example.com"
    )]
    NoOrigin(String),
    #[error("origins: \"*\" stands alone or not at all")]
    AnyAndSome,
    #[error(
        "credentials: not together with origins = [\"*\"]: any page could then act for whoever looks at it. Name the origins"
    )]
    AnyWithCredentials,
}

impl Cors {
    /// `None` without origins: then no CORS headers are sent.
    ///
    /// # Errors
    /// An origin is malformed, or `*` stands beside other origins or credentials.
    pub fn new(origins: &[String], credentials: bool, max_age_s: u32) -> Result<Option<Self>, CorsError> {
        let any = origins.iter().any(|origin| origin == "*");
        if any && origins.len() > 1 {
            return Err(CorsError::AnyAndSome);
        }
        if any && credentials {
            return Err(CorsError::AnyWithCredentials);
        }
        let named = origins.iter().filter(|_| !any).map(|origin| read_origin(origin));
        let named = named.collect::<Result<Vec<HeaderValue>, CorsError>>()?;
        let max_age = HeaderValue::from(max_age_s);
        Ok((!origins.is_empty()).then_some(Cors { origins: (!any).then_some(named), credentials, max_age }))
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        self.origins.as_ref().is_none_or(|origins| origins.contains(origin))
    }

    /// The response to a preflight request; `None`: the request is none.
    pub(crate) fn preflight<B>(&self, request: &Request<B>) -> Option<Result<Response<Full<Bytes>>, Refusal>> {
        let headers = request.headers();
        let origin = headers.get(header::ORIGIN)?;
        if request.method() != Method::OPTIONS || !headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        if !self.allows(origin) {
            return Some(Err(not_allowed(origin)));
        }
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(REQUEST_HEADERS));
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, self.max_age.clone());
        headers.insert(header::VARY, HeaderValue::from_static(VARY_OF_PREFLIGHTS));
        Some(Ok(response))
    }

    /// Adds the CORS headers to the response to a request from `origin`.
    pub(crate) fn add_headers(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if !headers.contains_key(header::VARY) {
            headers.insert(header::VARY, HeaderValue::from_static(VARY_OF_ANSWERS));
        }
        let Some(origin) = origin.filter(|origin| self.allows(origin)) else { return };
        let allowed = if self.origins.is_some() { origin.clone() } else { HeaderValue::from_static("*") };
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(RESPONSE_HEADERS));
        if self.credentials {
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
    }

    /// Refuses a WebSocket from a page of an origin that is not allowed. Programs that are no browsers send no origin; pages of this
    /// server's own host are allowed.
    pub(crate) fn check_upgrade(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        if self.allows(origin) || is_of_host(origin, headers.get(header::HOST)) {
            Ok(())
        } else {
            Err(not_allowed(origin))
        }
    }
}

fn not_allowed(origin: &HeaderValue) -> Refusal {
    Refusal::new(ErrorCode::Forbidden, format!("origin: {origin:?} is not among cors.origins"))
}

fn is_of_host(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let both = authority.zip(host);
    both.is_some_and(|((_, authority), host)| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()))
}

/// Reads an origin as browsers write it: in lower case, and without a path or a slash at the end.
fn read_origin(text: &str) -> Result<HeaderValue, CorsError> {
    let refused = || CorsError::NoOrigin(text.to_owned());
    let (scheme, authority) = text.split_once("://").ok_or_else(refused)?;
    let of = |text: &str, also: &[u8]| {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || also.contains(&byte);
        !text.is_empty() && text.bytes().all(fits)
    };
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    let is_usual_port = matches!((scheme, port), ("http", Some("80")) | ("https", Some("443")));
    if of(scheme, b"+-.") && of(authority, b"-._:[]") && !is_usual_port {
        HeaderValue::from_str(text).map_err(|_| refused())
    } else {
        Err(refused())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_origins_as_browsers_write_them_are_accepted() {
        for good in ["https://app.example.com", "http://localhost:5173", "http://[::1]:8000", "capacitor://localhost"] {
            assert_eq!(read_origin(good).unwrap(), good);
        }
        for bad in [
            "",
            "app.example.com",
            "https://",
            "https://App.example.com",
            "https://a/",
            "https://a:443",
            "http://a:80",
            "null",
        ] {
            assert_eq!(read_origin(bad), Err(CorsError::NoOrigin(bad.into())));
        }
    }

    #[test]
    fn the_wildcard_origin_stands_alone_and_without_credentials() {
        let new = |origins: &[&str], credentials| {
            let origins: Vec<String> = origins.iter().map(|origin| (*origin).to_owned()).collect();
            Cors::new(&origins, credentials, 600).map(|cors| cors.is_some())
        };
        assert_eq!(new(&[], true), Ok(false));
        assert_eq!(new(&["*"], false), Ok(true));
        assert_eq!(new(&["https://a"], true), Ok(true));
        assert_eq!(new(&["*"], true), Err(CorsError::AnyWithCredentials));
        assert_eq!(new(&["*", "https://a"], false), Err(CorsError::AnyAndSome));
    }
}

//! The chat page at `/` in development mode, and the demo users that it may act as.
//!
//! The page's files are those of `web/dist`, built by Vite and committed, so that nobody needs Node to build the server. Outside
//! development mode there is no [`ChatPage`], and none of its paths is served.

use crate::problem::RefusalResponse;
use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use ring::digest::{SHA256, digest};
use serde::Serialize;
use std::{io::Write, net::IpAddr, sync::Arc};
use tidings_protocol::error::{ErrorCode, Refusal};

/// Path, media type and content. The names are the same after every build: a browser asks each time, and the tag tells it
/// that nothing changed.
const FILES: [(&str, &str, &[u8]); 3] = [
    ("/", "text/html; charset=utf-8", include_bytes!("../../../web/dist/index.html")),
    ("/page/app.js", "text/javascript; charset=utf-8", include_bytes!("../../../web/dist/page/app.js")),
    ("/page/app.css", "text/css; charset=utf-8", include_bytes!("../../../web/dist/page/app.css")),
];

/// A user whom the page offers to act as.
#[derive(Debug, Clone)]
pub struct DemoUser {
    pub id: String,
    pub name: String,
}

/// Signs a token for a user.
pub type SignToken = Box<dyn Fn(&str) -> String + Send + Sync>;

/// The page with its users.
pub struct ChatPage {
    users: Vec<DemoUser>,
    assistant: DemoUser,
    sign: SignToken,
}

#[derive(Serialize)]
struct DemoUsers<'a> {
    users: Vec<SignedDemoUser<'a>>,
    assistant: SignedDemoUser<'a>,
}

#[derive(Serialize)]
struct SignedDemoUser<'a> {
    id: &'a str,
    name: &'a str,
    token: String,
}

impl ChatPage {
    /// `assistant` answers what `users` ask: the page speaks for it. `sign` makes the users' tokens, a new one at each request.
    pub fn new(users: Vec<DemoUser>, assistant: DemoUser, sign: SignToken) -> Self {
        ChatPage { users, assistant, sign }
    }

    fn signed<'a>(&'a self, DemoUser { id, name }: &'a DemoUser) -> SignedDemoUser<'a> {
        SignedDemoUser { id, name, token: (self.sign)(id) }
    }

    /// The routes of the page, its files and its users.
    pub(crate) fn routes<S: Clone + Send + Sync + 'static>(self: Arc<Self>) -> Router<S> {
        let mut router = Router::new().route("/page/users", get(demo_users).with_state(self));
        for (path, media_type, content) in FILES {
            let file = Arc::new(File::new(media_type, content));
            router = router.route(path, get(async move |headers: HeaderMap| file.answer(&headers)));
        }
        router
    }
}

/// The users and a token of each. Whoever reaches a server in development mode may act as any of them; a page of another origin may
/// not read this, and neither may one whose name was made to lead to this machine (DNS rebinding).
async fn demo_users(
    State(page): State<Arc<ChatPage>>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, RefusalResponse> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !is_address_or_localhost(host) {
        let detail =
            format!("the demo users are for pages that were opened by address or as localhost, not as {host:?}");
        return Err(Refusal::new(ErrorCode::Forbidden, detail).into());
    }
    let users = page.users.iter().map(|user| page.signed(user)).collect();
    let answer = Json(DemoUsers { users, assistant: page.signed(&page.assistant) }).into_response();
    Ok(([(header::CACHE_CONTROL, "no-store")], answer))
}

/// Whether a `Host` names this machine in a way that no name server decides.
fn is_address_or_localhost(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// A file of the page, compressed once.
struct File {
    media_type: &'static str,
    plain: &'static [u8],
    compressed: Bytes,
    tag: String,
}

impl File {
    fn new(media_type: &'static str, plain: &'static [u8]) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing to memory does not fail; a file that did would be sent as it is.
        let compressed = encoder.write_all(plain).and_then(|()| encoder.finish()).unwrap_or_default();
        let hash = digest(&SHA256, plain);
        let tag = hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        File { media_type, plain, compressed: compressed.into(), tag }
    }

    fn answer(&self, headers: &HeaderMap) -> Response<Body> {
        let accepts_gzip = list_has(headers, &header::ACCEPT_ENCODING, "gzip") && !self.compressed.is_empty();
        // Two forms of one file are two representations, with a tag each.
        let tag = if accepts_gzip { format!("\"{}-gzip\"", self.tag) } else { format!("\"{}\"", self.tag) };
        let is_known = list_has(headers, &header::IF_NONE_MATCH, &tag);
        let body = match (is_known, accepts_gzip) {
            (true, _) => Body::empty(),
            (false, true) => Body::from(self.compressed.clone()),
            (false, false) => Body::from(self.plain),
        };
        let mut response = Response::new(body);
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let into = response.headers_mut();
        let fixed = HeaderValue::from_static;
        into.insert(header::CONTENT_TYPE, fixed(self.media_type));
        into.insert(header::CACHE_CONTROL, fixed("no-cache"));
        into.insert(header::VARY, fixed("accept-encoding"));
        into.insert(header::X_CONTENT_TYPE_OPTIONS, fixed("nosniff"));
        into.insert(header::REFERRER_POLICY, fixed("no-referrer"));
        if accepts_gzip && !is_known {
            into.insert(header::CONTENT_ENCODING, fixed("gzip"));
        }
        for (name, value) in [(header::ETAG, tag), (header::CONTENT_SECURITY_POLICY, policy(headers))] {
            if let Ok(value) = HeaderValue::try_from(value) {
                into.insert(name, value);
            }
        }
        response
    }
}

/// What the page may do: run its own script, be drawn by its own styles, and talk to this server. Whatever a message holds, nothing
/// of it runs and nothing is fetched from elsewhere.
fn policy(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    // Older browsers do not count a WebSocket to the page's own host as 'self'. A host of other characters could end the directive.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    let sockets = match host {
        "" => String::new(),
        host if host.bytes().all(is_plain) => format!(" ws://{host} wss://{host}"),
        _ => String::new(),
    };
    format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{sockets}; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
}

/// Whether a header that lists values has this one.
fn list_has(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    let lists = headers.get_all(name).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|value| value.split(';').next().unwrap_or_default().trim() == wanted)
}

#[cfg(test)]
mod tests {
    use super::is_address_or_localhost;

    #[test]
    fn only_names_that_no_name_server_decides_lead_to_the_demo_users() {
        for host in ["127.0.0.1:8080", "localhost", "LOCALHOST:8080", "[::1]:8080", "10.1.2.3"] {
            assert!(is_address_or_localhost(host), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example:1", "[evil]:1"]
        {
            assert!(!is_address_or_localhost(host), "{host}");
        }
    }
}

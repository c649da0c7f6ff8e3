//! The files of the pages that the server shows: those of `web/dist`, built by Vite and committed, so that nobody needs Node to build
//! the server. Each is served under a policy that runs the page's own script and no other.

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header},
    routing::get,
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use ring::digest::{SHA256, digest};
use std::{io::Write, sync::Arc};

/// Path, media type and content. The names are the same after every build: a browser asks each time, and the tag tells it
/// that nothing changed.
pub(crate) type PageFile = (&'static str, &'static str, &'static [u8]);

/// Which WebSockets a page may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sockets {
    None,
    OwnHost,
}

/// The routes of a page's files.
pub(crate) fn file_routes<S: Clone + Send + Sync + 'static>(
    files: impl IntoIterator<Item = PageFile>,
    sockets: Sockets,
) -> Router<S> {
    files.into_iter().fold(Router::new(), |router, (path, media_type, content)| {
        let file = Arc::new(File::new(media_type, content, sockets));
        router.route(path, get(async move |headers: HeaderMap| file.answer(&headers)))
    })
}

/// A file of the page, compressed once.
struct File {
    media_type: &'static str,
    plain: &'static [u8],
    sockets: Sockets,
    compressed: Bytes,
    tag: String,
}

impl File {
    fn new(media_type: &'static str, plain: &'static [u8], sockets: Sockets) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing to memory does not fail; a file that did would be sent as it is.
        let compressed = encoder.write_all(plain).and_then(|()| encoder.finish()).unwrap_or_default();
        let hash = digest(&SHA256, plain);
        let tag = hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        File { media_type, plain, sockets, compressed: compressed.into(), tag }
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
        for (name, value) in [(header::ETAG, tag), (header::CONTENT_SECURITY_POLICY, policy(headers, self.sockets))] {
            if let Ok(value) = HeaderValue::try_from(value) {
                into.insert(name, value);
            }
        }
        response
    }
}

/// What the page may do: run its own script, be drawn by its own styles, and talk to this server. Whatever a message or a name holds, nothing
/// of it runs and nothing is fetched from elsewhere.
fn policy(headers: &HeaderMap, sockets: Sockets) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    // Older browsers do not count a WebSocket to the page's own host as 'self'. A host of other characters could end the directive.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    let sockets = match host {
        _ if sockets == Sockets::None => String::new(),
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

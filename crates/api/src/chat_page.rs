//! The chat page at `/` in development mode, and the demo users that it may act as.
//!
//! Outside development mode there is no [`ChatPage`], and none of its paths is served.

use crate::{
    page_files::{PageFile, Sockets, file_routes},
    problem::RefusalResponse,
};
use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, header},
    response::IntoResponse,
    routing::get,
};
use serde::Serialize;
use std::{net::IpAddr, sync::Arc};
use tidings_protocol::error::{ErrorCode, Refusal};

const FILES: [PageFile; 3] = [
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
        file_routes(FILES, Sockets::OwnHost).route("/page/users", get(demo_users).with_state(self))
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

//! The OpenAPI 3.1 description, and the page to browse it.

use super::refusals;
use crate::api_keys::permissions::{self, OperationName, Permission};
use axum::{
    Router,
    http::{HeaderValue, header},
    middleware::map_response,
    response::Response,
    routing::get,
};
use bytes::Bytes;
use tidings_protocol::{
    error::ErrorCode,
    http::{ExportedEvent, Problem},
};
use utoipa::{
    Modify, OpenApi as _,
    openapi::{
        ComponentsBuilder, OpenApi,
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};
use utoipa_swagger_ui::{Config, SwaggerUi};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tidings",
        description = "Chat, push and popups for your own product. Requests carry \
                       `Authorization: Bearer` with an API key (app servers: one of the settings may do everything, \
                       another what its scopes allow; `x-key-scope` is the scope that an operation needs) or a user's \
                       token (a JWT that the app signs: may do what that user may). Unknown fields are refused. \
                       Every error is RFC 9457 problem details with a stable `code`. The frames of the WebSocket at \
                       `/v1/connect` are described by [AsyncAPI](/asyncapi.json).",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(Problem, ErrorCode, ExportedEvent)),
    modifiers(&SharedComponents),
    security(("bearer" = [])),
    tags(
        (name = "users", description = "Who there is"),
        (name = "import", description = "The history of another system, and our own"),
        (name = "events", description = "All that is committed, in one order"),
        (name = "outbox", description = "What the app's own transactions have written, taken from the app's own database"),
        (name = "presence", description = "Who is online, and the processes that hold their connections"),
        (name = "conversations", description = "Direct, group and official-account conversations, and their members"),
        (name = "messages", description = "Sending, and a conversation's timeline"),
        (name = "reading", description = "What one user has: lists, unread counts, read marks, what was missed"),
        (name = "sessions", description = "A user's session over server-sent events, where WebSockets are blocked"),
        (name = "push", description = "Data to devices, stored until they have it"),
        (name = "popups", description = "Which in-app message suits a user now, and what became of it"),
        (name = "erasures", description = "Users who are erased, and legal holds against it"),
        (name = "scheduled", description = "Messages at a later time"),
        (name = "bulk_sends", description = "One message to some of an official account's followers"),
        (name = "notifications", description = "By which channels people are notified of messages, why they were or were not, and what failed"),
        (name = "keys", description = "API keys with scopes, and the audit log of what was changed with them"),
        (name = "operations", description = "For those who run the server"),
    )
)]
struct Preamble;

pub(super) fn preamble() -> OpenApi {
    Preamble::openapi()
}

/// Adds the authentication scheme, and the error responses that operations refer to.
struct SharedComponents;

impl Modify for SharedComponents {
    fn modify(&self, description: &mut OpenApi) {
        let components = description.components.get_or_insert_with(|| ComponentsBuilder::new().build());
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("bearer", bearer);
        components.responses.extend(refusals::described());
    }
}

/// Says of each operation which scope an API key needs: `any` for every key, `none` for no key.
pub(super) fn mark_scopes(description: &mut OpenApi) {
    for (path, item) in &mut description.paths.paths {
        let operations = [
            ("GET", &mut item.get),
            ("PUT", &mut item.put),
            ("POST", &mut item.post),
            ("DELETE", &mut item.delete),
            ("PATCH", &mut item.patch),
        ];
        for (method, operation) in operations {
            let Some(operation) = operation else { continue };
            let scope = match permissions::permission(OperationName { method, path }) {
                Some(Permission::Scope(scope)) => scope.name(),
                Some(Permission::AnyKey) => "any",
                Some(Permission::NoKey) | None => "none",
                Some(Permission::Open) => continue,
            };
            let marks = operation.extensions.get_or_insert_with(Default::default);
            marks.insert("x-key-scope".to_owned(), scope.into());
        }
    }
}

/// What the page at `/docs` may do: it asks for the API key, so no other site frames it, and nothing is fetched from or sent to elsewhere.
/// Swagger UI writes styles into its elements; scripts come from its files alone.
const DOCS_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'",
);

/// `/openapi.json`, `/asyncapi.json` and the page at `/docs`, which the binary serves without help of another host.
pub(super) fn description_pages<S: Clone + Send + Sync + 'static>(description: OpenApi) -> Router<S> {
    let json = Bytes::from(description.to_json().unwrap_or_default());
    let frames = Bytes::from(super::asyncapi().to_string());
    let page = Router::new().merge(SwaggerUi::new("/docs").config(Config::from("/openapi.json")));
    Router::new()
        .route(
            "/openapi.json",
            get(move || async move { ([(header::CONTENT_TYPE, "application/json")], json.clone()) }),
        )
        .route(
            "/asyncapi.json",
            get(move || async move { ([(header::CONTENT_TYPE, "application/json")], frames.clone()) }),
        )
        .merge(page.route_layer(map_response(guard_docs)))
}

async fn guard_docs(mut page: Response) -> Response {
    let into = page.headers_mut();
    into.insert(header::CONTENT_SECURITY_POLICY, DOCS_POLICY);
    into.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    into.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    page
}

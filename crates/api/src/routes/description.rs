//! The OpenAPI 3.1 description, and the page to browse it.

use crate::problem::PROBLEM_JSON;
use axum::{Router, http::header, response::Redirect, routing::get};
use bytes::Bytes;
use tidings_protocol::{error::ErrorCode, http::Problem};
use utoipa::{
    OpenApi as _,
    openapi::{
        ComponentsBuilder, ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder, SecurityRequirement,
        path::Operation,
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};
use utoipa_swagger_ui::{Config, SwaggerUi};

/// Operations without a caller's identity.
const OPEN: [&str; 3] = ["/metrics", "/healthz", "/readyz"];

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tidings",
        description = "Chat, push and popups for your own product. Requests carry \
                       `Authorization: Bearer` with an API key (app servers: may do everything) or a user's \
                       token (a JWT that the app signs: may do what that user may). Unknown fields are refused. \
                       Every error is RFC 9457 problem details with a stable `code`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(Problem, ErrorCode)),
    tags(
        (name = "users", description = "Who there is"),
        (name = "presence", description = "Who is online, and the processes that hold their connections"),
        (name = "conversations", description = "Direct, group and official-account conversations, and their members"),
        (name = "messages", description = "Sending, and a conversation's timeline"),
        (name = "reading", description = "What one user has: lists, unread counts, read marks, what was missed"),
        (name = "push", description = "Data to devices, stored until they have it"),
        (name = "popups", description = "Which in-app message suits a user now, and what became of it"),
        (name = "outbox", description = "Offline push that failed"),
        (name = "operations", description = "For those who run the server"),
    )
)]
struct Preamble;

pub(super) fn preamble() -> OpenApi {
    Preamble::openapi()
}

/// Adds what is true of every operation: how it refuses, and who may call.
pub(super) fn complete(mut description: OpenApi) -> OpenApi {
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let components = description.components.get_or_insert_with(|| ComponentsBuilder::new().build());
    components.add_security_scheme("bearer", bearer);
    for (path, item) in &mut description.paths.paths {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            add_refusals(operation);
            if !OPEN.contains(&path.as_str()) {
                operation.security = Some(vec![SecurityRequirement::new::<_, [String; 0], String>("bearer", [])]);
            }
        }
    }
    description
}

fn add_refusals(operation: &mut Operation) {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let refused = ResponseBuilder::new()
        .description("A refusal: problem details with a stable code")
        .content(PROBLEM_JSON, content)
        .build();
    operation.responses.responses.insert("default".into(), RefOr::T(refused));
}

/// `/openapi.json` and the page at `/docs`, which is served from the binary: no other host is asked. Who opens the
/// address alone is led there.
pub(super) fn pages<S: Clone + Send + Sync + 'static>(description: OpenApi) -> Router<S> {
    let json = Bytes::from(description.to_json().unwrap_or_default());
    Router::new()
        .route("/", get(|| async { Redirect::to("/docs/") }))
        .route(
            "/openapi.json",
            get(move || async move { ([(header::CONTENT_TYPE, "application/json")], json.clone()) }),
        )
        .merge(SwaggerUi::new("/docs").config(Config::from("/openapi.json")))
}

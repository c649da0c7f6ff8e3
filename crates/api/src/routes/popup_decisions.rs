//! Decisions about popups: which one suits a user, and why.

use super::{
    Answer, AnswerResult,
    refusals::{Refusals, TakesBody},
};
use crate::{
    Api,
    api_keys::permissions,
    extract::{AppServer, RawJson, read_body},
    problem::{RefusalResponse, retry_after_s},
};
use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
};
use bytes::Bytes;
use std::sync::Arc;
use tidings_engine::{
    access::Operation,
    engine::popup_questions::{PopupAnswer, PopupCaller},
};
use tidings_listen::ConnectionActivity;
use tidings_popups::QuestionBody;
use tidings_protocol::{
    error::Refusal,
    http::{DecideRequest, Decision, Explanation, Triggered},
    limits::OPERATION_BODY_BYTES_MAX,
};

/// Which popup suits this user now?
///
/// The answer counts as a showing, on all of the user's devices, before it leaves. 204: none; `Retry-After` tells when
/// one could be due, and is absent if time alone will not make one due. With a user's token `user` may be absent.
#[utoipa::path(post, path = "/v1/popups/decide", tag = "popups", request_body = DecideRequest,
    responses((status = 200, description = "The popup to show", body = Decision),
        (status = 204, description = "None now",
            headers(("Retry-After" = u64, description = "After how many seconds one could be due"))),
        Refusals, TakesBody))]
pub(super) async fn decide(State(api): State<Arc<Api>>, request: Request) -> Result<Response<Body>, RefusalResponse> {
    let (parts, body) = request.into_parts();
    let activity = parts.extensions.get::<ConnectionActivity>();
    Ok(decide_popup(&api, &parts.headers, activity, body).await?.map(Body::from))
}

/// The same operation without the cost of the router.
pub(crate) async fn decide_popup<B>(
    api: &Api,
    headers: &HeaderMap,
    activity: Option<&ConnectionActivity>,
    body: B,
) -> Result<Response<Bytes>, Refusal>
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let actor = api.authenticate_for(headers, permissions::DECIDE, Operation::AskForPopup, activity)?.actor;
    let body = read_body(api, headers, body, OPERATION_BODY_BYTES_MAX).await?;
    let caller = PopupCaller { actor: &actor, session: None };
    let PopupAnswer { decision, retry_after_ms } = api.engine.answer_popup_question(caller, body.as_ref()).await?;
    Ok(match decision {
        Some(json) => {
            let mut response = Response::new(Bytes::from(json));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        None => {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::NO_CONTENT;
            if let Some(ms) = retry_after_ms {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry_after_s(ms)));
            }
            response
        }
    })
}

/// Why each popup of a placement is or is not chosen for a user. Nothing is counted.
#[utoipa::path(post, path = "/v1/popups/explain", tag = "popups", request_body = DecideRequest,
    responses((status = 200, description = "Each popup of the placement", body = Explanation), Refusals, TakesBody))]
pub(super) async fn explain(
    State(api): State<Arc<Api>>,
    _: AppServer,
    RawJson(body): RawJson,
) -> AnswerResult<Explanation> {
    let explain = move |engine: &Arc<tidings_engine::Engine>| {
        let question = QuestionBody::read(&body)?;
        let user = question.user().ok_or_else(|| Refusal::field("user", "is missing"))?;
        engine.popups.explain(&question.for_user(user))
    };
    Ok(Answer::ok(api.read(explain).await?))
}

/// Send a popup to a user's live session, if one is due.
///
/// For what happens away from the app's own page views; `event` is what happened. It goes to the session that came
/// last. Without a live session nothing is decided and nothing counted.
#[utoipa::path(post, path = "/v1/popups/trigger", tag = "popups", request_body = DecideRequest,
    responses((status = 200, description = "What became of it", body = Triggered), Refusals, TakesBody))]
pub(super) async fn trigger(
    State(api): State<Arc<Api>>,
    _: AppServer,
    RawJson(body): RawJson,
) -> AnswerResult<Triggered> {
    let trigger = move |engine: &Arc<tidings_engine::Engine>| {
        let question = QuestionBody::read(&body)?;
        let user = question.user().ok_or_else(|| Refusal::field("user", "is missing"))?;
        engine.trigger_popup(&question.for_user(user))
    };
    Ok(Answer::ok(api.read(trigger).await?))
}

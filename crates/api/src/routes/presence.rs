//! Who is online; and for operators, a comparison of the registered sessions with the real ones.

use super::{
    Answer, AnswerResult,
    refusals::{Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, Json, Query},
};
use axum::extract::State;
use serde::Deserialize;
use std::sync::Arc;
use tidings_protocol::http::{
    ComparePresence, NodesAnswer, PresenceAnswer, PresenceComparison, PresenceQuery, PresenceViews,
};

/// Whose presence is asked for.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PresenceUsers {
    /// Up to 1,000 ids, with commas between them.
    pub users: String,
}

/// Whose sessions are shown.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PresenceUser {
    /// The user's id.
    pub user: String,
}

/// Who of these users is online, where, and since when.
///
/// The merged view: sessions on every node whose lease runs.
#[utoipa::path(get, path = "/v1/presence", tag = "presence", params(PresenceUsers),
    responses((status = 200, description = "Each of them, in the order asked for", body = PresenceAnswer), Refusals))]
pub(super) async fn get_presence(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(query): Query<PresenceUsers>,
) -> AnswerResult<PresenceAnswer> {
    let ids: Vec<String> = query.users.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect();
    let users = api.read(move |engine| engine.presence_of(&ids)).await?;
    Ok(Answer::ok(PresenceAnswer { users }))
}

/// The same for ids that do not fit an address.
#[utoipa::path(post, path = "/v1/presence/query", tag = "presence", request_body = PresenceQuery,
    responses((status = 200, description = "Each of them, in the order asked for", body = PresenceAnswer),
        Refusals, TakesBody))]
pub(super) async fn query_presence(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(query): Json<PresenceQuery>,
) -> AnswerResult<PresenceAnswer> {
    let users = api.read(move |engine| engine.presence_of(&query.users)).await?;
    Ok(Answer::ok(PresenceAnswer { users }))
}

/// One user's sessions in both views apart: as registered, and as the nodes hold them.
#[utoipa::path(get, path = "/v1/admin/presence", tag = "presence", params(PresenceUser),
    responses((status = 200, description = "Both views", body = PresenceViews), Refusals))]
pub(super) async fn get_views(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(query): Query<PresenceUser>,
) -> AnswerResult<PresenceViews> {
    let truth = api.sessions.truth();
    Ok(Answer::ok(api.read(move |engine| engine.presence_views(&query.user, &*truth)).await?))
}

/// The processes that hold connections, and their leases.
#[utoipa::path(get, path = "/v1/admin/nodes", tag = "presence",
    responses((status = 200, description = "The nodes", body = NodesAnswer), Refusals))]
pub(super) async fn list_nodes(State(api): State<Arc<Api>>, _: AppServer) -> AnswerResult<NodesAnswer> {
    Ok(Answer::ok(NodesAnswer { nodes: api.engine.nodes(), gates: api.engine.gate_views() }))
}

/// Compare the registered sessions with those that the nodes hold.
///
/// A difference counts when it stands in two looks, so that sessions that come or go meanwhile are
/// none. With `repair` it is mended. Reads every session: not for every second.
#[utoipa::path(post, path = "/v1/admin/presence/compare", tag = "presence", request_body = ComparePresence,
    responses((status = 200, description = "What differs", body = PresenceComparison), Refusals, TakesBody))]
pub(super) async fn compare(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(request): Json<ComparePresence>,
) -> AnswerResult<PresenceComparison> {
    let truth = api.sessions.truth();
    Ok(Answer::ok(api.read(move |engine| engine.presence_comparison(&*truth, request.repair)).await?))
}

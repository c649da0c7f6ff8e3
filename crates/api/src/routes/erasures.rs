//! Erasing users, legal holds against it, and exports of all that there is of a user.

use super::{
    Answer, AnswerResult,
    ids::{ConversationId, Id},
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    archive_stream::ArchiveStream,
    audit::operator,
    extract::{AppServer, Json, KeyHolder, PathIds, Query},
    page_stream::PageStream,
    problem::RefusalResponse,
};
use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use std::sync::Arc;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{EraseUserQuery, Erasure, Erasures, ExportUserQuery, LegalHoldView, LegalHolds, SetLegalHold},
};

/// Erase a user.
///
/// With the answer the user's sessions end, the user can do nothing any more, and the erasure is durable: it goes on after a restart, and
/// `GET /v1/erasures/{erasure}` tells how far it has come. What the user has is removed; where something has to stand in the user's place,
/// it is an alias. The messages are recalled, or kept under the alias. Once it is done, the id is free: who gets it is another user. A
/// repeated call answers with the first erasure.
#[utoipa::path(delete, path = "/v1/users/{user}", tag = "erasures",
    params(("user" = inline(Id), Path, description = "The user's id"), EraseUserQuery,
           ("Tidings-Author" = Option<String>, Header, description = "Who wants it; absent: the API key's name is kept")),
    responses((status = 202, description = "It is durable", body = Erasure), Refusals, Conflict))]
pub(super) async fn erase_user(
    State(api): State<Arc<Api>>,
    KeyHolder(key): KeyHolder,
    PathIds(user): PathIds<String>,
    Query(query): Query<EraseUserQuery>,
    headers: HeaderMap,
) -> AnswerResult<Erasure> {
    let by = operator(&headers).unwrap_or_else(|| key.name.clone());
    let erasure = api.read(move |engine| engine.erase_user(&user, query.messages, &by)).await?;
    Ok(Answer(StatusCode::ACCEPTED, erasure))
}

/// Delete a conversation.
///
/// With the answer nothing is stored in it any more and its live members are handed a last entry, a `conversation_change` with the body
/// `{"deleted":true}`; the deletion is durable: it goes on after a restart, and `GET /v1/erasures/{erasure}` tells how far it has come.
/// Messages, members and all that belongs to them go. The id of a group or an official account is not given again. A direct conversation
/// is empty afterwards, and its users may write again. A repeated call answers with the first erasure while that runs.
#[utoipa::path(delete, path = "/v1/conversations/{conversation}", tag = "erasures",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who wants it; absent: the API key's name is kept")),
    responses((status = 202, description = "It is durable", body = Erasure), Refusals, Conflict))]
pub(super) async fn delete_conversation(
    State(api): State<Arc<Api>>,
    KeyHolder(key): KeyHolder,
    PathIds(conversation): PathIds<String>,
    headers: HeaderMap,
) -> AnswerResult<Erasure> {
    let by = operator(&headers).unwrap_or_else(|| key.name.clone());
    let erasure = api.read(move |engine| engine.delete_conversation(&conversation, &by)).await?;
    Ok(Answer(StatusCode::ACCEPTED, erasure))
}

/// Export all that there is of a user.
///
/// A ZIP archive with JSON files, of which `README.txt` says what is in each: the profile and settings, conversations, what the user
/// wrote, reactions, mentions, reports, devices, pushes, popups, and where else the user is named. It is made while it is read; one that breaks
/// off has no directory, and is not whole. A node makes two at a time. The audit log has an entry of it.
#[utoipa::path(get, path = "/v1/users/{user}/export", tag = "erasures",
    params(("user" = inline(Id), Path, description = "The user's id"), ExportUserQuery),
    responses((status = 200, description = "The archive", content((Vec<u8> = "application/zip"))), Refusals, Conflict))]
pub(super) async fn export_user(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(user): PathIds<String>,
    Query(query): Query<ExportUserQuery>,
) -> Result<Response, RefusalResponse> {
    let mut export = api.read(move |engine| engine.export_user(&user, query.received)).await?;
    let mut archive = ArchiveStream::default();
    let pages = PageStream::start(api, move |engine| {
        let part = export.next(engine)?;
        let bytes = archive.add(part.file, &part.bytes, part.has_more);
        let broken = |error| Refusal::new(ErrorCode::Internal, format!("the archive cannot be written: {error}"));
        Ok((bytes.map_err(broken)?, part.has_more))
    });
    let headers = [
        (header::CONTENT_TYPE, "application/zip"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"export.zip\""),
    ];
    Ok((headers, Body::new(pages)).into_response())
}

/// Which page of erasures.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ErasuresQuery {
    /// The `next` of the page before; absent for the first.
    pub after: Option<String>,
    /// At most so many (default and limit 100).
    pub limit: Option<usize>,
}

/// Erasures, those that are not done first.
#[utoipa::path(get, path = "/v1/erasures", tag = "erasures", params(ErasuresQuery),
    responses((status = 200, description = "A page of erasures", body = Erasures), Refusals))]
pub(super) async fn list_erasures(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(ErasuresQuery { after, limit }): Query<ErasuresQuery>,
) -> AnswerResult<Erasures> {
    Ok(Answer::ok(api.read(move |engine| engine.erasures(after.as_deref(), limit.unwrap_or(0))).await?))
}

/// How far an erasure has come.
#[utoipa::path(get, path = "/v1/erasures/{erasure}", tag = "erasures",
    params(("erasure" = inline(Id), Path, description = "The erasure's id, or the id that the user or the conversation had")),
    responses((status = 200, description = "The erasure", body = Erasure), Refusals))]
pub(super) async fn get_erasure(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(erasure): PathIds<String>,
) -> AnswerResult<Erasure> {
    Ok(Answer::ok(api.read(move |engine| engine.erasure(&erasure)).await?))
}

/// Put a conversation under a legal hold.
///
/// Nobody who is or was in the conversation is erased while the hold stands: `legal_hold`. An erasure that has begun waits at the
/// conversation. Members do not learn of it. A second hold replaces the first.
#[utoipa::path(put, path = "/v1/conversations/{conversation}/legal-hold", tag = "erasures", request_body = SetLegalHold,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who sets it; absent: the API key's name is kept")),
    responses((status = 200, description = "It holds from now on", body = LegalHoldView), Refusals, TakesBody))]
pub(super) async fn set_legal_hold(
    State(api): State<Arc<Api>>,
    KeyHolder(key): KeyHolder,
    PathIds(conversation): PathIds<String>,
    headers: HeaderMap,
    Json(request): Json<SetLegalHold>,
) -> AnswerResult<LegalHoldView> {
    let by = operator(&headers).unwrap_or_else(|| key.name.clone());
    Ok(Answer::ok(api.engine.set_legal_hold(&conversation, request, &by).await?))
}

/// A conversation's legal hold.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/legal-hold", tag = "erasures",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 200, description = "The hold", body = LegalHoldView), Refusals))]
pub(super) async fn get_legal_hold(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(conversation): PathIds<String>,
) -> AnswerResult<LegalHoldView> {
    Ok(Answer::ok(api.read(move |engine| engine.legal_hold(&conversation)).await?))
}

/// Lift a conversation's legal hold.
///
/// Nothing happens if there is none. Erasures that wait for it go on.
#[utoipa::path(delete, path = "/v1/conversations/{conversation}/legal-hold", tag = "erasures",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 204, description = "There is no hold"), Refusals))]
pub(super) async fn lift_legal_hold(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(conversation): PathIds<String>,
) -> Result<StatusCode, RefusalResponse> {
    api.engine.lift_legal_hold(&conversation).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Which page of legal holds.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct LegalHoldsQuery {
    /// The `next` of the page before; absent for the first.
    pub after: Option<u64>,
    /// At most so many (default and limit 100).
    pub limit: Option<usize>,
}

/// The conversations under a legal hold.
#[utoipa::path(get, path = "/v1/legal-holds", tag = "erasures", params(LegalHoldsQuery),
    responses((status = 200, description = "A page of them", body = LegalHolds), Refusals))]
pub(super) async fn list_legal_holds(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(LegalHoldsQuery { after, limit }): Query<LegalHoldsQuery>,
) -> AnswerResult<LegalHolds> {
    Ok(Answer::ok(api.read(move |engine| engine.legal_holds(after, limit.unwrap_or(0))).await?))
}

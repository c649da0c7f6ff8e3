//! Reports of messages: what members tell moderators, and what those make of it.

use super::{
    Answer, AnswerResult,
    ids::ConversationId,
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    audit::operator,
    extract::{AppServer, Caller, Json, KeyHolder, PathIds, Query},
};
use axum::{extract::State, http::HeaderMap};
use std::sync::Arc;
use tidings_engine::access::Operation;
use tidings_protocol::http::{NewReport, ReportDetails, ReportPage, ReportReceipt, ReportsQuery, UpdateReport};

/// Report a message to moderators.
///
/// A member reports a message of another once: a second report changes nothing. Neither members nor the sender learn of it. A user has
/// at most 100 reports that moderators are not done with.
#[utoipa::path(post, path = "/v1/conversations/{conversation}/messages/{seq}/report", tag = "messages", request_body = NewReport,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation")),
    responses((status = 200, description = "It is reported", body = ReportReceipt), Refusals, Conflict, TakesBody))]
pub(super) async fn report_message(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
    Json(new): Json<NewReport>,
) -> AnswerResult<ReportReceipt> {
    let caller = caller.may(Operation::Report)?;
    Ok(Answer::ok(api.engine.report_message(&caller.0, &conversation, seq, new).await?))
}

/// The reports in a state, the oldest first.
///
/// Each with its message as it is now: one that was recalled has no body.
#[utoipa::path(get, path = "/v1/reports", tag = "messages", params(ReportsQuery),
    responses((status = 200, description = "A page of reports", body = ReportPage), Refusals))]
pub(super) async fn list_reports(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(query): Query<ReportsQuery>,
) -> AnswerResult<ReportPage> {
    Ok(Answer::ok(api.read(move |engine| engine.reports(&query)).await?))
}

/// A report, and what was written around its message.
#[utoipa::path(get, path = "/v1/reports/{report}", tag = "messages",
    params(("report" = String, Path, description = "The report's id")),
    responses((status = 200, description = "The report", body = ReportDetails), Refusals))]
pub(super) async fn get_report(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(id): PathIds<String>,
) -> AnswerResult<ReportDetails> {
    Ok(Answer::ok(api.read(move |engine| engine.report(&id)).await?))
}

/// Change the state of a report.
///
/// Any state may follow any other; `if_state` has the change refused if another moderator was faster.
#[utoipa::path(patch, path = "/v1/reports/{report}", tag = "messages", request_body = UpdateReport,
    params(("report" = String, Path, description = "The report's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who does it; absent: the API key's name is kept")),
    responses((status = 200, description = "The report as it is now", body = ReportDetails), Refusals, Conflict, TakesBody))]
pub(super) async fn update_report(
    State(api): State<Arc<Api>>,
    KeyHolder(key): KeyHolder,
    PathIds(id): PathIds<String>,
    headers: HeaderMap,
    Json(update): Json<UpdateReport>,
) -> AnswerResult<ReportDetails> {
    let by = operator(&headers).unwrap_or_else(|| key.name.clone());
    api.engine.update_report(&id, update, &by).await?;
    Ok(Answer::ok(api.read(move |engine| engine.report(&id)).await?))
}

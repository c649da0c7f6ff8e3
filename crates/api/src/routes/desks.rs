//! Accounts that answer: their agents, their conversations, and who has which of them.

use super::{
    Answer, AnswerResult,
    ids::{ConversationId, Id},
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{Caller, Json, PathIds, Query},
};
use axum::extract::State;
use serde::Deserialize;
use std::sync::Arc;
use tidings_engine::{access::Operation, lists::account_list::AccountList};
use tidings_protocol::http::{Assign, AssignmentView, ConversationPage, Desk, Desks, ListFilter, UpdateDesk};

/// Which page of which list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AccountListQuery {
    /// Those that this agent has: an id, or `@me`; `@nobody`: those that nobody has. Absent: all.
    pub assigned_to: Option<String>,
    /// As in the list of a user; what agents set for a conversation holds for all of them.
    #[param(inline)]
    pub filter: Option<ListFilter>,
    /// The `next` of the page before; absent for the first.
    pub after: Option<String>,
    /// At most so many (limit 200); absent or 0: as many as the server sees fit.
    pub limit: Option<usize>,
}

/// Change who answers for an official account.
///
/// For app servers, its owner and admins. The first call makes the desk, and a user with the account's id as whom the account
/// speaks; a user who has that id already becomes the account's if an app server calls.
#[utoipa::path(patch, path = "/v1/conversations/{conversation}/desk", tag = "conversations", request_body = UpdateDesk,
    params(("conversation" = inline(ConversationId), Path, description = "The account's id")),
    responses((status = 200, description = "The desk as it is now", body = Desk), Refusals, TakesBody, Conflict))]
pub(super) async fn update_desk(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(account): PathIds<String>,
    Json(request): Json<UpdateDesk>,
) -> AnswerResult<Desk> {
    let caller = caller.may(Operation::ChangeConversation)?;
    Ok(Answer::ok(api.engine.update_desk(&caller.0, &account, request).await?))
}

/// Who answers for an official account.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/desk", tag = "conversations",
    params(("conversation" = inline(ConversationId), Path, description = "The account's id")),
    responses((status = 200, description = "The desk", body = Desk), Refusals, Conflict))]
pub(super) async fn get_desk(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(account): PathIds<String>,
) -> AnswerResult<Desk> {
    let caller = caller.may(Operation::ReadDetails)?;
    Ok(Answer::ok(api.read(move |engine| engine.desk(&caller.0, &account)).await?))
}

/// An account's conversations with users, the latest active first, for its agents.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/desk/conversations", tag = "reading",
    params(("conversation" = inline(ConversationId), Path, description = "The account's id"), AccountListQuery),
    responses((status = 200, description = "A page of the list", body = ConversationPage), Refusals))]
pub(super) async fn list_account_conversations(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(account): PathIds<String>,
    Query(AccountListQuery { assigned_to, filter, after, limit }): Query<AccountListQuery>,
) -> AnswerResult<ConversationPage> {
    let caller = caller.may(Operation::ReadLists)?;
    let list = AccountList { account, assigned_to };
    let limit = limit.unwrap_or(0);
    let actor = caller.0;
    let page = api.read(move |engine| engine.account_conversations(&actor, &list, filter, after.as_deref(), limit));
    Ok(Answer::ok(page.await?))
}

/// Assign a conversation with an account to one of its agents, or to nobody.
///
/// With `if_assigned_to` one of two agents who take a conversation at once gets it, and the other `assignment_conflict`. A
/// repeated call answers as the first one.
#[utoipa::path(put, path = "/v1/conversations/{conversation}/assignment", tag = "conversations", request_body = Assign,
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id")),
    responses((status = 200, description = "Who has it now", body = AssignmentView), Refusals, TakesBody, Conflict))]
pub(super) async fn assign_conversation(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(conversation): PathIds<String>,
    Json(request): Json<Assign>,
) -> AnswerResult<AssignmentView> {
    let caller = caller.may(Operation::Assign)?;
    Ok(Answer::ok(api.engine.assign(&caller.0, &conversation, request).await?))
}

/// The accounts for which a user answers.
#[utoipa::path(get, path = "/v1/users/{user}/desks", tag = "reading",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 200, description = "Their desks", body = Desks), Refusals))]
pub(super) async fn list_desks(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
) -> AnswerResult<Desks> {
    let user = caller.may(Operation::ReadDetails)?.user(&api, &user)?;
    Ok(Answer::ok(api.engine.desks_of(&user)))
}

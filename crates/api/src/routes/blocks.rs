//! Whom a user blocks.

use super::{Answer, AnswerResult, ids::Id, refusals::Refusals};
use crate::{
    Api,
    extract::{Caller, PathIds, Query},
    problem::RefusalResponse,
};
use axum::{extract::State, http::StatusCode};
use serde::Deserialize;
use std::sync::Arc;
use tidings_engine::access::Operation;
use tidings_protocol::http::BlockPage;

/// Which page of blocked users.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct BlocksQuery {
    /// The `next` of the page before; absent for the first.
    pub after: Option<String>,
    /// At most so many (default 100, limit 1,000).
    pub limit: Option<usize>,
}

/// The users whom a user blocks.
#[utoipa::path(get, path = "/v1/users/{user}/blocks", tag = "users", params(BlocksQuery,
    ("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 200, description = "A page of them", body = BlockPage), Refusals))]
pub(super) async fn list_blocks(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
    Query(BlocksQuery { after, limit }): Query<BlocksQuery>,
) -> AnswerResult<BlockPage> {
    let user = caller.may(Operation::SetPreferences)?.user(&api, &user)?;
    let page = api.read(move |engine| engine.blocks(&user, after.as_deref(), limit.unwrap_or(0))).await?;
    Ok(Answer::ok(page))
}

/// Block a user.
///
/// While one of two users blocks the other, neither writes to the other in their direct conversation. The blocked one cannot see whether
/// the other is online, nor add the other to a conversation, and is answered with `blocked`. A user blocks at most 10,000 others.
#[utoipa::path(put, path = "/v1/users/{user}/blocks/{other}", tag = "users",
    params(("user" = inline(Id), Path, description = "Who blocks; `me` for the token's user"),
           ("other" = inline(Id), Path, description = "Who is blocked")),
    responses((status = 204, description = "The block holds from now on"), Refusals))]
pub(super) async fn block(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((user, other)): PathIds<(String, String)>,
) -> Result<StatusCode, RefusalResponse> {
    set_block(&api, caller, &user, &other, true).await
}

/// End a block.
///
/// Nothing happens if there is none.
#[utoipa::path(delete, path = "/v1/users/{user}/blocks/{other}", tag = "users",
    params(("user" = inline(Id), Path, description = "Who blocks; `me` for the token's user"),
           ("other" = inline(Id), Path, description = "Who is blocked")),
    responses((status = 204, description = "There is no block"), Refusals))]
pub(super) async fn unblock(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds((user, other)): PathIds<(String, String)>,
) -> Result<StatusCode, RefusalResponse> {
    set_block(&api, caller, &user, &other, false).await
}

async fn set_block(
    api: &Api,
    caller: Caller,
    user: &str,
    other: &str,
    blocked: bool,
) -> Result<StatusCode, RefusalResponse> {
    let allowed = caller.may(Operation::SetPreferences)?;
    let user = allowed.user(api, user)?;
    api.engine.set_block(&allowed.0, &user, other, blocked).await?;
    Ok(StatusCode::NO_CONTENT)
}

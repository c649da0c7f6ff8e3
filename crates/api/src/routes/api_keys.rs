//! API keys: making, listing, changing, rotating and revoking them; and the audit log.

use super::{
    Answer, AnswerResult,
    refusals::{OtherMethods, Refusals, TakesBody},
};
use crate::{
    Api,
    api_keys::{Author, CallingKey},
    audit::operator,
    extract::{AppServer, Json, KeyHolder, PathIds, Query},
    problem::RefusalResponse,
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use std::sync::Arc;
use tidings_protocol::http::{ApiKey, ApiKeys, AuditEntries, CreateApiKey, IssuedApiKey, RotateApiKey, UpdateApiKey};

/// Make an API key.
///
/// The answer has the secret, which is told this once. The key works on the node that answered at once, and on every other within two seconds. It may do no
/// more than the key with which it is made. A retry makes another key.
#[utoipa::path(post, path = "/v1/admin/keys", tag = "keys", request_body = CreateApiKey,
    params(("Tidings-Author" = Option<String>, Header, description = "Who makes it: kept in the audit log")),
    responses((status = 201, description = "The key, with its secret", body = IssuedApiKey), Refusals, TakesBody))]
pub(super) async fn create_api_key(
    State(api): State<Arc<Api>>,
    KeyHolder(key): KeyHolder,
    headers: HeaderMap,
    Json(new): Json<CreateApiKey>,
) -> AnswerResult<IssuedApiKey> {
    let author = author(key, &headers);
    Ok(Answer(StatusCode::CREATED, api.with_keys(move |keys| keys.create(new, &author)).await?))
}

/// The API keys, without their secrets and without those of the settings.
#[utoipa::path(get, path = "/v1/admin/keys", tag = "keys",
    responses((status = 200, description = "The keys, also those that have expired", body = ApiKeys), Refusals))]
pub(super) async fn list_api_keys(State(api): State<Arc<Api>>, _: AppServer) -> AnswerResult<ApiKeys> {
    Ok(Answer::ok(api.with_keys(|keys| keys.list()).await?))
}

/// The API key of this request: what it may do, and until when. Every key may ask.
#[utoipa::path(get, path = "/v1/admin/keys/me", tag = "keys",
    responses((status = 200, description = "The key", body = ApiKey), Refusals, OtherMethods))]
pub(super) async fn get_own_api_key(State(api): State<Arc<Api>>, KeyHolder(key): KeyHolder) -> AnswerResult<ApiKey> {
    Ok(Answer::ok(api.stored_keys.own(&key)))
}

/// An API key, without its secret.
#[utoipa::path(get, path = "/v1/admin/keys/{key}", tag = "keys",
    params(("key" = String, Path, description = "The key's id")),
    responses((status = 200, description = "The key", body = ApiKey), Refusals, OtherMethods))]
pub(super) async fn get_api_key(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(id): PathIds<String>,
) -> AnswerResult<ApiKey> {
    Ok(Answer::ok(api.with_keys(move |keys| keys.get(&id)).await?))
}

/// Change the name, the scopes or the expiry of an API key.
///
/// Only a key with all its scopes, before and after, may do so.
#[utoipa::path(patch, path = "/v1/admin/keys/{key}", tag = "keys", request_body = UpdateApiKey,
    params(("key" = String, Path, description = "The key's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who changes it: kept in the audit log")),
    responses((status = 200, description = "The key as it is now", body = ApiKey), Refusals, OtherMethods, TakesBody))]
pub(super) async fn update_api_key(
    State(api): State<Arc<Api>>,
    KeyHolder(key): KeyHolder,
    PathIds(id): PathIds<String>,
    headers: HeaderMap,
    Json(update): Json<UpdateApiKey>,
) -> AnswerResult<ApiKey> {
    let author = author(key, &headers);
    Ok(Answer::ok(api.with_keys(move |keys| keys.update(&id, update, &author)).await?))
}

/// Give an API key another secret.
///
/// The former one stays valid for `overlap_s`, so that callers can be changed one after the other. A secret before that ends at once.
#[utoipa::path(post, path = "/v1/admin/keys/{key}/rotate", tag = "keys", request_body = RotateApiKey,
    params(("key" = String, Path, description = "The key's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who rotates it: kept in the audit log")),
    responses((status = 200, description = "The key, with its new secret", body = IssuedApiKey), Refusals, TakesBody))]
pub(super) async fn rotate_api_key(
    State(api): State<Arc<Api>>,
    KeyHolder(key): KeyHolder,
    PathIds(id): PathIds<String>,
    headers: HeaderMap,
    Json(rotate): Json<RotateApiKey>,
) -> AnswerResult<IssuedApiKey> {
    let author = author(key, &headers);
    Ok(Answer::ok(api.with_keys(move |keys| keys.rotate(&id, &rotate, &author)).await?))
}

/// Revoke an API key.
///
/// The node that answers refuses it at once, every other within two seconds. Keys that were made with it stay.
#[utoipa::path(delete, path = "/v1/admin/keys/{key}", tag = "keys",
    params(("key" = String, Path, description = "The key's id"),
           ("Tidings-Author" = Option<String>, Header, description = "Who revokes it: kept in the audit log")),
    responses((status = 204, description = "It is no more"), Refusals, OtherMethods))]
pub(super) async fn revoke_api_key(
    State(api): State<Arc<Api>>,
    KeyHolder(key): KeyHolder,
    PathIds(id): PathIds<String>,
    headers: HeaderMap,
) -> Result<StatusCode, RefusalResponse> {
    let author = author(key, &headers);
    api.with_keys(move |keys| keys.revoke(&id, &author)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Where a page of the audit log starts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditPage {
    /// The `next` of the page before; absent for the newest entries.
    pub before: Option<u64>,
    /// At most so many; absent or 0: as many as the server sees fit.
    pub limit: Option<usize>,
}

/// Who changed what with which API key, the newest first: changes of keys, and what else needs `admin` and changes what is stored.
///
/// Entries are kept for 400 days, and the newest 10,000 of them.
#[utoipa::path(get, path = "/v1/admin/audit", tag = "keys", params(AuditPage),
    responses((status = 200, description = "A page of the log", body = AuditEntries), Refusals))]
pub(super) async fn list_audit_entries(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(page): Query<AuditPage>,
) -> AnswerResult<AuditEntries> {
    Ok(Answer::ok(api.with_keys(move |keys| keys.audit(page.before, page.limit.unwrap_or(0))).await?))
}

fn author(key: Arc<CallingKey>, headers: &HeaderMap) -> Author {
    Author { key, operator: operator(headers) }
}

//! Why users were, or were not, notified of messages and pushes, and what came of each channel; the policy that says by which channels they are,
//! and what users want.

use super::{
    Answer, AnswerResult,
    ids::{ConversationId, Id},
    popups::{author, precondition},
    refusals::{Conflict, OtherMethods, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, Caller, Json, PathIds, Query, RawJson},
    problem::RefusalResponse,
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
};
use serde::Deserialize;
use std::sync::Arc;
use tidings_engine::{Engine, access::Operation};
use tidings_notifications::Notifications;
use tidings_protocol::{http::*, time::time_or_zero};

/// Of whom it is asked.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Whom {
    /// The user's id.
    #[param(value_type = Id, inline)]
    pub user: String,
}

/// Why a user was, or was not, notified of a message.
///
/// What is recorded of the user and the message (`notifications.log_days`), and what holds now.
#[utoipa::path(get, path = "/v1/conversations/{conversation}/messages/{seq}/notifications", tag = "notifications",
    operation_id = "get_message_notifications",
    params(("conversation" = inline(ConversationId), Path, description = "The conversation's id"),
        ("seq" = u64, Path, description = "The message's number in the conversation"), Whom),
    responses((status = 200, description = "What decided, and each step", body = MessageNotifications), Refusals, Conflict))]
pub(super) async fn get_message_notifications(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds((conversation, seq)): PathIds<(String, u64)>,
    Query(Whom { user }): Query<Whom>,
) -> AnswerResult<MessageNotifications> {
    Ok(Answer::ok(
        api.read_notifications(move |notifications| notifications.message_notifications(&conversation, seq, &user))
            .await?,
    ))
}

/// The notification policy as it is stored; without one, the default.
#[utoipa::path(get, path = "/v1/notifications/policy", tag = "notifications",
    responses((status = 200, description = "The policy", body = StoredNotificationPolicy), Refusals))]
pub(super) async fn get_notification_policy(
    State(api): State<Arc<Api>>,
    _: AppServer,
) -> AnswerResult<StoredNotificationPolicy> {
    Ok(Answer::ok(api.read_notifications(|notifications| notifications.policies.get()).await?))
}

/// Replace the notification policy as a whole.
///
/// It holds for messages that are decided about from then on, on every node within two seconds. Every write is a version;
/// `Tidings-Author` is kept with it. `If-Match` makes it conditional on the newest version.
#[utoipa::path(put, path = "/v1/notifications/policy", tag = "notifications", request_body = NotificationPolicy,
    params(("Tidings-Author" = Option<String>, Header, description = "Who writes it: kept with the version"),
           ("If-Match" = Option<String>, Header, description = "The version that it must still have; 0: none was ever stored"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: none may have been stored yet")),
    responses((status = 200, description = "The policy as it is now", body = StoredNotificationPolicy),
        Refusals, TakesBody, Conflict))]
pub(super) async fn put_notification_policy(
    State(api): State<Arc<Api>>,
    _: AppServer,
    headers: HeaderMap,
    RawJson(body): RawJson,
) -> AnswerResult<StoredNotificationPolicy> {
    let (author, precondition) = (author(&headers)?, precondition(&headers)?);
    let put =
        move |notifications: &Arc<Notifications>| notifications.policies.put(&body, author.as_deref(), precondition);
    Ok(Answer::ok(api.read_notifications(put).await?))
}

/// Remove the notification policy, so that the default holds.
///
/// This is a version, too: the former ones stay listed.
#[utoipa::path(delete, path = "/v1/notifications/policy", tag = "notifications",
    params(("Tidings-Author" = Option<String>, Header, description = "Who removes it: kept with the version"),
           ("If-Match" = Option<String>, Header, description = "The version that it must still have"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: none may have been stored yet")),
    responses((status = 200, description = "The default, which holds now", body = StoredNotificationPolicy), Refusals, Conflict))]
pub(super) async fn remove_notification_policy(
    State(api): State<Arc<Api>>,
    _: AppServer,
    headers: HeaderMap,
) -> AnswerResult<StoredNotificationPolicy> {
    let (author, precondition) = (author(&headers)?, precondition(&headers)?);
    let remove =
        move |notifications: &Arc<Notifications>| notifications.policies.remove(author.as_deref(), precondition);
    Ok(Answer::ok(api.read_notifications(remove).await?))
}

/// The versions of the notification policy, newest first; the newest 50 are kept.
#[utoipa::path(get, path = "/v1/notifications/policy/versions", tag = "notifications",
    responses((status = 200, description = "The versions", body = NotificationPolicyVersions), Refusals))]
pub(super) async fn notification_policy_versions(
    State(api): State<Arc<Api>>,
    _: AppServer,
) -> AnswerResult<NotificationPolicyVersions> {
    Ok(Answer::ok(api.read_notifications(|notifications| notifications.policies.versions()).await?))
}

/// What each channel would do for a person, if a message were sent now.
///
/// The body is that of a send, with the `user` about whom it is asked. Nothing is sent or stored.
#[utoipa::path(post, path = "/v1/notifications/explain", tag = "notifications", request_body = ExplainNotifications,
    responses((status = 200, description = "The rule that decides, and each of its channels", body = NotificationExplanation),
        Refusals, TakesBody))]
pub(super) async fn explain_notifications(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(request): Json<ExplainNotifications>,
) -> AnswerResult<NotificationExplanation> {
    Ok(Answer::ok(api.read_notifications(move |notifications| notifications.explain_notifications(&request)).await?))
}

/// By which channels a user wants to be notified of messages.
#[utoipa::path(get, path = "/v1/users/{user}/notification-preferences", tag = "users",
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 200, description = "The preferences", body = NotificationPreferences), Refusals, OtherMethods))]
pub(super) async fn get_notification_preferences(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
) -> AnswerResult<NotificationPreferences> {
    let user = caller.may(Operation::SetPreferences)?.user(&api, &user)?;
    Ok(Answer::ok(api.read_notifications(move |notifications| notifications.notification_preferences(&user.id)).await?))
}

/// Set by which channels a user wants to be notified of messages.
///
/// They replace the former ones; `{}` removes all.
#[utoipa::path(put, path = "/v1/users/{user}/notification-preferences", tag = "users", request_body = NotificationPreferences,
    params(("user" = inline(Id), Path, description = "The user's id; `me` for the token's user")),
    responses((status = 204, description = "They hold from now on"), Refusals, OtherMethods, TakesBody))]
pub(super) async fn set_notification_preferences(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathIds(user): PathIds<String>,
    Json(request): Json<NotificationPreferences>,
) -> Result<StatusCode, RefusalResponse> {
    let user = caller.may(Operation::SetPreferences)?.user(&api, &user)?;
    api.notifications.set_notification_preferences(&user.id, request).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Why a push reached, or did not reach, the devices of a user.
#[utoipa::path(get, path = "/v1/push/{push}/deliveries", tag = "push", operation_id = "get_push_deliveries",
    params(("push" = u64, Path, description = "The push's number"), Whom),
    responses((status = 200, description = "Each of the user's devices, and why", body = PushUserDelivery), Refusals))]
pub(super) async fn get_push_deliveries(
    State(api): State<Arc<Api>>,
    _: AppServer,
    PathIds(push): PathIds<u64>,
    Query(Whom { user }): Query<Whom>,
) -> AnswerResult<PushUserDelivery> {
    Ok(Answer::ok(api.read(move |engine: &Arc<Engine>| engine.push.user_delivery(push, &user)).await?))
}

/// A time range.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Range {
    /// Its beginning, in milliseconds since 1970 UTC; absent: a day before its end. Counts are kept for `notifications.log_days`.
    #[serde(default, deserialize_with = "time_or_zero")]
    pub from: Option<u64>,
    /// Its end; absent: now.
    #[serde(default, deserialize_with = "time_or_zero")]
    pub to: Option<u64>,
}

/// How often each channel was tried, what came of it, and how long it took.
///
/// In whole hours, which the answer names. Other nodes' counts come up to ten seconds later.
#[utoipa::path(get, path = "/v1/notifications/stats", tag = "notifications", operation_id = "get_notification_stats", params(Range),
    responses((status = 200, description = "The channels on which something happened", body = NotificationStats), Refusals, Conflict))]
pub(super) async fn get_notification_stats(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(Range { from, to }): Query<Range>,
) -> AnswerResult<NotificationStats> {
    Ok(Answer::ok(api.read_notifications(move |notifications| notifications.notification_stats(from, to)).await?))
}

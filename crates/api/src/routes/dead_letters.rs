//! Dead letters: notifications that the webhook or a provider has not taken.

use super::{
    Answer, AnswerResult,
    refusals::{Conflict, Refusals, TakesBody},
};
use crate::{
    Api,
    extract::{AppServer, Json, Query},
};
use axum::extract::State;
use serde::Deserialize;
use std::sync::Arc;
use tidings_protocol::{
    error::Refusal,
    http::{
        Channel, DeadLetterId, DeadLetterPage, DeadLettersDeleted, DeadLettersReplayed, NotificationOutcome,
        SelectDeadLetters,
    },
};

/// Which dead letters, and where the page starts.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Only those of the webhook, or of this provider.
    pub channel: Option<Channel>,
    /// Only those for this user.
    pub user: Option<String>,
    /// Only those with this outcome.
    pub outcome: Option<NotificationOutcome>,
    /// Only those whose cause contains this text.
    pub cause: Option<String>,
    /// The `next` of the page before; absent for the first.
    pub after: Option<String>,
    /// At most so many, up to 500; absent or 0: 500.
    pub limit: Option<usize>,
}

/// Notifications that were given up: the webhook's, oldest first, then those of providers, oldest first.
#[utoipa::path(get, path = "/v1/notifications/dead-letters", tag = "notifications", params(Page),
    responses((status = 200, description = "A page of notifications", body = DeadLetterPage), Refusals))]
pub(super) async fn list_dead_letters(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Query(page): Query<Page>,
) -> AnswerResult<DeadLetterPage> {
    let Page { channel, user, outcome, cause, after, limit } = page;
    let after = after.map(|after| after.parse::<DeadLetterId>()).transpose();
    let after = after.map_err(|error| Refusal::field("after", error))?;
    let select = SelectDeadLetters { ids: None, channel, user, outcome, cause };
    Ok(Answer::ok(
        api.read_notifications(move |notifications| {
            notifications.dead_letters(after, limit.unwrap_or_default(), &select)
        })
        .await?,
    ))
}

/// Try given-up notifications again.
///
/// A provider's notification whose user is not to be notified of the message any more is removed, and the answer says why. An event
/// of the webhook is a dead letter until the webhook has taken it.
#[utoipa::path(post, path = "/v1/notifications/dead-letters/replay", tag = "notifications", request_body = SelectDeadLetters,
    responses((status = 200, description = "How many are tried again", body = DeadLettersReplayed),
        Refusals, TakesBody, Conflict))]
pub(super) async fn replay_dead_letters(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(select): Json<SelectDeadLetters>,
) -> AnswerResult<DeadLettersReplayed> {
    Ok(Answer::ok(api.read_notifications(move |notifications| notifications.replay_dead_letters(&select)).await?))
}

/// Delete given-up notifications.
#[utoipa::path(post, path = "/v1/notifications/dead-letters/delete", tag = "notifications", request_body = SelectDeadLetters,
    responses((status = 200, description = "How many were deleted", body = DeadLettersDeleted), Refusals, TakesBody))]
pub(super) async fn delete_dead_letters(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(select): Json<SelectDeadLetters>,
) -> AnswerResult<DeadLettersDeleted> {
    Ok(Answer::ok(api.read_notifications(move |notifications| notifications.delete_dead_letters(&select)).await?))
}

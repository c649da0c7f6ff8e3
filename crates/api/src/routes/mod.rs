//! The operations, one file per noun, and the OpenAPI and AsyncAPI descriptions made from them.

mod api_keys;
mod asyncapi;
mod blocks;
mod bulk_sends;
mod conversations;
mod dead_letters;
mod desks;
mod erasures;
mod event_consumers;
mod event_streams;
mod events;
mod ids;
mod imports;
mod joining;
mod message_changes;
mod messages;
mod notifications;
mod openapi;
mod operations;
mod outbox;
mod popup_decisions;
mod popup_events;
mod popup_journeys;
mod popup_lift;
mod popup_segments;
mod popups;
mod presence;
mod push;
mod push_tokens;
mod reactions;
mod reading;
mod receipts;
mod refusals;
mod reports;
mod scheduled;
mod settings;
mod signals;
mod streams;
mod users;

pub use asyncapi::asyncapi;
pub(crate) use event_streams::{STREAM_PATHS, StreamBind};
pub(crate) use messages::send_message;
pub(crate) use popup_decisions::decide_popup;
pub(crate) use push::accept_push;
pub use settings::{SettingSource, SettingView};

use crate::{Api, console, problem::RefusalResponse};
use axum::{
    Router,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect},
    routing::get,
};
use std::sync::Arc;
use tidings_protocol::error::{ErrorCode, Refusal};
use utoipa::openapi::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

/// The router of every path but the WebSocket's. `/` is the chat page in development mode; otherwise it redirects to the page at `/docs`.
pub fn router(api: Arc<Api>) -> Router {
    let (router, mut description) = operations_router().split_for_parts();
    openapi::mark_scopes(&mut description);
    let root = match &api.chat_page {
        Some(page) => page.clone().routes(),
        None => Router::new().route("/", get(async || Redirect::to("/docs/"))),
    };
    router
        .merge(openapi::description_pages(description))
        .merge(root)
        .merge(console::routes())
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(api)
}

/// The OpenAPI description of every operation.
pub fn openapi() -> OpenApi {
    let mut description = operations_router().into_openapi();
    openapi::mark_scopes(&mut description);
    description
}

fn operations_router() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::with_openapi(openapi::preamble())
        .routes(routes!(users::get_users, users::upsert_users))
        .routes(routes!(users::query_users))
        .routes(routes!(users::get_user, erasures::erase_user))
        .routes(routes!(erasures::export_user))
        .routes(routes!(erasures::list_erasures))
        .routes(routes!(erasures::get_erasure))
        .routes(routes!(erasures::list_legal_holds))
        .routes(routes!(erasures::get_legal_hold, erasures::set_legal_hold, erasures::lift_legal_hold))
        .routes(routes!(users::set_do_not_disturb))
        .routes(routes!(users::set_locale))
        .routes(routes!(receipts::set_receipts))
        .routes(routes!(users::kick))
        .routes(routes!(users::revoke))
        .routes(routes!(users::suspend))
        .routes(routes!(signals::send_signal))
        .routes(routes!(reports::report_message))
        .routes(routes!(reports::list_reports))
        .routes(routes!(reports::get_report, reports::update_report))
        .routes(routes!(blocks::list_blocks))
        .routes(routes!(blocks::block, blocks::unblock))
        .routes(routes!(users::unsuspend))
        .routes(routes!(presence::get_presence))
        .routes(routes!(presence::query_presence))
        .routes(routes!(presence::get_views))
        .routes(routes!(presence::list_nodes))
        .routes(routes!(presence::compare))
        .routes(routes!(events::list_events))
        .routes(routes!(event_consumers::list_event_consumers))
        .routes(routes!(
            event_consumers::get_event_consumer,
            event_consumers::put_event_consumer,
            event_consumers::delete_event_consumer
        ))
        .routes(routes!(event_consumers::list_consumer_events))
        .routes(routes!(event_consumers::set_consumer_cursor))
        .routes(routes!(event_consumers::replay_events))
        .routes(routes!(event_consumers::list_dead_events))
        .routes(routes!(event_consumers::replay_dead_events))
        .routes(routes!(event_consumers::delete_dead_events))
        .routes(routes!(outbox::list_outbox_sources))
        .routes(routes!(events::stream_events))
        .routes(routes!(reading::list_conversations))
        .routes(routes!(reading::sync))
        .routes(routes!(reading::mark_read))
        .routes(routes!(reading::set_mute))
        .routes(routes!(reading::get_line, reading::set_preferences))
        .routes(routes!(reading::get_unread))
        .routes(routes!(reading::read_all))
        .routes(routes!(conversations::create_conversation, conversations::list_all_conversations))
        .routes(routes!(
            conversations::get_conversation,
            conversations::update_conversation,
            erasures::delete_conversation
        ))
        .routes(routes!(conversations::list_members, conversations::change_members))
        .routes(routes!(conversations::hand_over))
        .routes(routes!(conversations::list_restrictions))
        .routes(routes!(joining::list_invites, joining::create_invite))
        .routes(routes!(joining::revoke_invite))
        .routes(routes!(joining::join_by_invite))
        .routes(routes!(joining::list_join_requests, joining::ask_to_join))
        .routes(routes!(joining::get_join_request))
        .routes(routes!(joining::approve_join_request))
        .routes(routes!(joining::refuse_join_request))
        .routes(routes!(conversations::restrict, conversations::lift_restriction))
        .routes(routes!(desks::get_desk, desks::update_desk))
        .routes(routes!(desks::list_account_conversations))
        .routes(routes!(desks::assign_conversation))
        .routes(routes!(desks::list_desks))
        .routes(routes!(messages::send))
        .routes(routes!(messages::send_batch))
        .routes(routes!(messages::history))
        .routes(routes!(message_changes::get_message, message_changes::edit_message, message_changes::recall_message))
        .routes(routes!(message_changes::list_versions))
        .routes(routes!(reactions::add_reaction, reactions::remove_reaction))
        .routes(routes!(reactions::list_reactions))
        .routes(routes!(reactions::pin_message, reactions::unpin_message))
        .routes(routes!(reactions::list_pins))
        .routes(routes!(reactions::list_replies))
        .routes(routes!(reactions::list_mentions))
        .routes(routes!(receipts::get_receipts))
        .routes(routes!(receipts::get_conversation_receipts))
        .routes(routes!(notifications::get_message_notifications))
        .routes(routes!(
            notifications::get_notification_policy,
            notifications::put_notification_policy,
            notifications::remove_notification_policy
        ))
        .routes(routes!(notifications::notification_policy_versions))
        .routes(routes!(notifications::explain_notifications))
        .routes(routes!(notifications::get_notification_preferences, notifications::set_notification_preferences))
        .routes(routes!(streams::begin_stream))
        .routes(routes!(streams::append_chunk))
        .routes(routes!(streams::end_stream))
        .routes(routes!(event_streams::open_stream))
        .routes(routes!(event_streams::post_frames))
        .routes(routes!(push::send_push, push::list_pushes))
        .routes(routes!(push::get_push, push::cancel_push))
        .routes(routes!(push::list_push_devices))
        .routes(routes!(notifications::get_push_deliveries))
        .routes(routes!(push::list_devices))
        .routes(routes!(push::set_device_tags))
        .routes(routes!(push::remove_device))
        .routes(routes!(push_tokens::set_push_token, push_tokens::remove_push_token))
        .routes(routes!(push_tokens::list_push_tokens))
        .routes(routes!(popup_decisions::decide))
        .routes(routes!(popup_decisions::explain))
        .routes(routes!(popup_decisions::trigger))
        .routes(routes!(popups::list_popups))
        .routes(routes!(popups::put_popup, popups::get_popup, popups::remove_popup))
        .routes(routes!(popups::set_popup_state))
        .routes(routes!(popups::popup_versions))
        .routes(routes!(popup_events::get_counts))
        .routes(routes!(popup_lift::get_lift))
        .routes(routes!(popup_lift::export_assignments))
        .routes(routes!(popups::get_settings, popups::put_settings))
        .routes(routes!(popup_segments::list_segments))
        .routes(routes!(popup_segments::put_segment, popup_segments::get_segment, popup_segments::remove_segment))
        .routes(routes!(popup_segments::is_in_segment))
        .routes(routes!(popup_events::report_events, popup_events::export_events))
        .routes(routes!(popup_journeys::list_journeys))
        .routes(routes!(popup_journeys::put_journey, popup_journeys::get_journey, popup_journeys::remove_journey))
        .routes(routes!(popup_journeys::get_journey_counts))
        .routes(routes!(bulk_sends::create_bulk_send, bulk_sends::list_bulk_sends))
        .routes(routes!(scheduled::list_scheduled_messages, scheduled::schedule_message))
        .routes(routes!(
            scheduled::get_scheduled_message,
            scheduled::update_scheduled_message,
            scheduled::cancel_scheduled_message
        ))
        .routes(routes!(bulk_sends::get_bulk_send, bulk_sends::cancel_bulk_send))
        .routes(routes!(imports::import_history))
        .routes(routes!(imports::export_history))
        .routes(routes!(dead_letters::list_dead_letters))
        .routes(routes!(dead_letters::replay_dead_letters))
        .routes(routes!(dead_letters::delete_dead_letters))
        .routes(routes!(notifications::get_notification_stats))
        .routes(routes!(operations::back_up))
        .routes(routes!(settings::get_server_settings))
        .routes(routes!(api_keys::create_api_key, api_keys::list_api_keys))
        .routes(routes!(api_keys::get_own_api_key))
        .routes(routes!(api_keys::get_api_key, api_keys::update_api_key, api_keys::revoke_api_key))
        .routes(routes!(api_keys::rotate_api_key))
        .routes(routes!(api_keys::list_audit_entries))
        .routes(routes!(operations::metrics))
        .routes(routes!(operations::healthz))
        .routes(routes!(operations::readyz))
}

/// A status with a JSON body.
struct Answer<T>(StatusCode, T);

impl<T> Answer<T> {
    fn ok(body: T) -> Self {
        Answer(StatusCode::OK, body)
    }
}

const JSON: (HeaderName, HeaderValue) = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));

impl<T: serde::Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> axum::response::Response {
        match serde_json::to_vec(&self.1) {
            Ok(body) => (self.0, [JSON], body).into_response(),
            Err(error) => RefusalResponse(crate::internal(&error)).into_response(),
        }
    }
}

type AnswerResult<T> = Result<Answer<T>, RefusalResponse>;

async fn no_such_path(uri: axum::http::Uri) -> RefusalResponse {
    Refusal::not_found("path", uri.path()).into()
}

async fn no_such_method(method: axum::http::Method, uri: axum::http::Uri) -> RefusalResponse {
    Refusal::new(ErrorCode::MethodNotAllowed, format!("{:?} does not take {method}", uri.path())).into()
}

//! The HTTP API, by what can be observed: a module for each behaviour.
#![allow(clippy::unwrap_used)]

mod a_websocket_upgrade_opens_a_session;
mod an_id_stands_for_one_request;
mod api_descriptions_match_the_code;
mod api_keys_do_what_their_scopes_allow;
mod api_keys_last_until_they_are_revoked;
mod callers_are_held_to_their_permissions;
mod cors_allows_configured_origins;
mod every_described_operation_can_be_called;
mod every_http1_request_is_answered;
mod fast_path_answers_like_hyper;
mod fast_path_answers_like_the_router;
mod history_pages_return_every_entry_once;
mod idle_unauthenticated_connections_are_evicted;
mod invalid_popups_are_refused;
mod metrics_describe_process_and_requests;
mod popup_decisions_and_exports_over_http;
mod refusals_are_problem_details;
mod request_bodies_are_bounded;
mod stored_json_can_be_read_by_every_parser;
mod support;
mod times_are_read_as_milliseconds;
mod unread_responses_are_bounded;

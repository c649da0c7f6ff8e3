//! Sessions, by what can be observed: a module for each behaviour.
#![allow(clippy::unwrap_used)]

mod a_gateway_process_holds_connections;
mod a_message_reaches_every_device;
mod a_request_that_panics_is_answered;
mod a_session_changes_any_number_of_messages;
mod a_slow_reader_loses_its_connection_not_its_messages;
mod an_id_stands_for_one_request;
mod any_node_answers_through_the_leader;
mod asyncapi_describes_every_frame;
mod attention_and_acknowledgements_decide_about_offline_push;
mod bad_frames_get_a_clear_answer;
mod changes_are_answered_with_their_version;
mod conversations_are_listed_as_over_http;
mod device_connections_are_admitted_within_limits;
#[path = "support/devices.rs"]
mod devices;
mod devices_are_served_by_every_node;
mod devices_speak_miop;
mod each_persona_may_do_what_the_page_says;
#[path = "support/event_stream.rs"]
mod event_stream;
mod every_node_knows_who_is_online;
mod followers_stay_unknown_to_each_other;
mod frequent_requests_are_forwarded_in_pipelines;
mod functions_are_spread_over_nodes;
mod history_is_paged_by_cursors;
mod json_depth_is_limited_at_every_listener;
mod lists_show_what_users_set;
mod members_receive_read_marks_typing_and_membership;
mod messages_grow;
mod nodes_share_one_order;
#[path = "support/offline_push_app.rs"]
mod offline_push_app;
mod one_user_takes_few_places;
mod popups_reach_sessions;
mod presence_changes_reach_watchers;
mod receipts_follow_marks_and_cursors;
mod resume_misses_nothing;
mod session_reads_are_bounded;
mod sessions_end_with_a_reason;
mod sessions_end_with_their_tokens;
mod sessions_run_over_event_streams;
mod sessions_run_over_tls;
mod signals_reach_live_members;
mod silent_connections_are_closed;
mod support;
mod suspended_users_are_let_in_nowhere;
mod the_first_stored_message_opens_a_direct_conversation;
mod two_versions_work_side_by_side;
mod unanswered_probes_lead_to_offline_push;
mod unread_bytes_are_bounded;

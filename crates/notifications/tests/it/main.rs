//! Notifications, by what can be observed: a module for each behaviour.
#![allow(clippy::unwrap_used)]

mod a_failed_event_holds_up_its_own_conversation_only;
mod alike_messages_are_decided_at_once;
mod channels_are_counted_by_the_hour;
mod channels_are_taken_in_their_order;
mod channels_finish_under_the_policy_that_decided_them;
mod consumers_of_events;
mod dead_letters_of_all_channels_are_one_list;
#[allow(dead_code)]
#[path = "../../../engine/tests/it/fake_shard/mod.rs"]
mod fake_shard;
mod invalid_notification_policies_are_refused;
mod missed_messages_become_popups;
mod notification_policies_are_kept_in_versions;
mod notifications_are_stored_in_tables_of_their_own;
mod notifications_look_as_the_policy_says;
mod offline_members_are_notified_by_providers;
mod offline_members_are_pushed_through_the_webhook;
mod offline_push_survives_failures;
mod one_node_announces_presence_for_the_cluster;
#[allow(dead_code)]
#[path = "../../../engine/tests/it/popup_support/mod.rs"]
mod popup_support;
mod presence_storms_coalesce;
mod provider_world;
mod pushes_fall_back_to_providers;
mod pushes_to_devices_tell_people_of_messages;
mod quiet_hours_defer;
mod reading_removes_what_devices_show;
mod stored_events_are_for_those_who_may_still_be_notified;
mod support;
mod ten_stories_of_notifications_in_plain_sentences;
mod the_notification_policy_matches_a_slow_evaluator;
mod the_whole_path_matches_a_slow_evaluator;
mod users_are_told_why_they_were_notified;
mod what_happens_outside_chat_is_in_the_feed;
mod what_providers_did_not_take_is_kept_and_replayed;
mod why_names_the_true_cause;

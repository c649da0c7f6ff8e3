//! The program, by what can be observed: a module for each behaviour.
#![allow(clippy::unwrap_used)]

mod a_backup_is_restored_as_documented;
mod a_deleted_conversation_leaves_nothing;
mod a_folder_becomes_a_database;
mod a_node_ends_when_it_cannot_go_on;
mod a_person_reads_the_own_archive;
mod a_server_stores_everything_in_postgres;
mod agents_load_a_real_server;
mod an_erased_user_leaves_nothing;
mod an_outbox_is_measured_beside_http;
mod api_keys_survive_crashes;
mod app_database;
mod brokers_are_compared;
mod damage_makes_the_server_not_ready;
mod described_inputs;
mod descriptor_limit_refuses_new_connections_only;
mod development_mode;
mod docs_match_the_code;
mod every_file_of_tests_is_run;
mod everybody_is_notified_by_the_channels_that_are_due;
mod functions_come_back_when_their_node_is_killed;
mod health_has_its_own_listener;
mod listen_prints_what_arrives;
mod local_cluster_lifecycle;
mod mariadb;
mod memory_is_returned_after_a_peak;
mod messages_come_and_go_at_their_time;
mod modules_form_no_circles;
mod no_input_harms_anybody;
mod nodes_notice_what_they_differ_in;
mod nodes_that_are_killed_lose_nothing_at_hook_and_consumer;
#[allow(dead_code)]
#[path = "../../../store/tests/it/support/postgres.rs"]
mod postgres;
mod reading_a_folder_changes_nothing;
#[allow(dead_code)]
#[path = "../../../bus-redis/tests/it/support/redis.rs"]
mod redis;
mod rows_of_an_outbox_are_stored_once;
mod scenarios_run;
mod server_lifecycle;
mod settings_sources_have_a_precedence;
mod small_benches_pass;
mod startup_mistakes_are_explained;
mod support;
mod the_console_is_safe_to_serve;
mod the_doctor_names_what_is_unfit;
mod the_feed_is_followed_over_http;
mod the_hook_is_asked;
mod the_outbox_is_followed;
mod the_plan_is_as_far_off_as_its_page_says;
mod the_store_opens_or_explains_why_not;
mod the_webhook_receives_events;
mod tls_certificates_are_reloaded;
mod traces_reach_a_collector;

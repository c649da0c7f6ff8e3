//! Both stores, by what can be observed: a module for each behaviour.
#![allow(clippy::unwrap_used)]

mod a_backup_opens_as_a_store_of_its_own;
mod a_batch_costs_few_statements;
mod a_damaged_table_is_named;
mod a_database_goes_away_and_comes_back;
mod a_database_is_divided_into_orders;
mod a_folder_becomes_a_database;
mod a_folder_has_one_owner;
mod a_frozen_node_holds_up_nobody;
mod a_full_disk_refuses_and_recovers;
mod a_full_disk_under_the_database_refuses;
mod a_late_write_is_fenced_off;
mod a_leader_that_has_ended_is_succeeded;
mod a_member_who_has_left_cannot_send;
mod a_newer_database_is_refused;
mod a_resume_costs_few_statements;
mod a_shadow_model_agrees;
mod a_silent_database_is_not_waited_for;
mod a_torn_journal_end_is_cut;
mod a_write_of_an_old_term_is_refused;
#[path = "support/chat_store.rs"]
mod chat_store;
mod check_finds_faults_of_popups;
mod check_finds_faults_of_push;
mod check_finds_planted_faults;
mod connections_are_plain_or_verified;
mod conversations_keep_for_their_own_time;
mod damage_is_never_silent;
mod events_are_kept_for_a_time;
mod first_results_of_earlier_versions_are_found;
mod functions_are_led_by_several_nodes;
mod nodes_share_a_database;
mod nodes_tell_their_settings;
mod old_partitions_are_dropped;
mod reads_come_from_a_standby;
mod recalled_bodies_leave_the_files;
mod retention_keeps_the_newest;
mod stores_pass_the_conformance_suite;
mod support;
mod the_commit_log_is_pruned_and_notices_a_rollback;
mod what_is_read_does_not_grow_with_the_tables;

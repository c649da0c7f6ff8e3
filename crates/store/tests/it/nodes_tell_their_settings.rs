//! A database has an installation's id of its own, and nodes on it tell each other what they have set.

use crate::support::{postgres::*, *};
use std::time::{SystemTime, UNIX_EPOCH};
use tidings_domain::{commit_log::*, installation::InstallationId, node_settings::*};
use tidings_store::PostgresStore;

fn info(name: &str, boot_id: u64) -> NodeInfo {
    NodeInfo { name: name.into(), boot_id, ..NodeInfo::default() }
}

#[test]
fn the_installations_id_is_made_once_also_in_a_database_of_the_version_before() {
    let server = PostgresServer::shared();
    let urls = [server.database(), server.database()];
    let id = |url: &str| open_at(url).installation();
    let [first, second] = [id(&urls[0]), id(&urls[1])];
    assert!(first != second && first != InstallationId::default());
    assert_eq!(id(&urls[0]), first);

    let room = populate(&open_at(&urls[1]));
    server.sql(
        &urls[1],
        "DELETE FROM tidings.migrations WHERE version >= 8; DROP TABLE tidings.node_settings, tidings.gates, \
           tidings.notification_retries, tidings.unacknowledged_messages, tidings.standby_marks, \
           tidings.orders, tidings.order_parts, tidings.cuts, tidings.cutting; \
         DROP FUNCTION tidings.take_positions, tidings.take_positions_of; \
         ALTER TABLE tidings.counters DROP COLUMN cuts, DROP COLUMN cut_through; \
         ALTER TABLE tidings.history DROP COLUMN installation, DROP COLUMN orders, DROP COLUMN one_order_through; ALTER TABLE tidings.leader DROP COLUMN function, \
           DROP COLUMN is_split, DROP COLUMN also_for, ADD COLUMN singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton)",
    );
    let migrated = id(&urls[1]);
    assert!(migrated != second && migrated != InstallationId::default(), "another one, for the first was dropped");
    assert_eq!(id(&urls[1]), migrated);
    assert_eq!(stored_ids(&open_at(&urls[1]), room), [""; 0]);
}

fn settings_of(store: &PostgresStore, boot_id: u64) -> Option<NodeSettings> {
    let known = store.node_settings().unwrap().nodes;
    known.into_iter().find(|node| node.boot_id == boot_id).expect("its lease runs").settings
}

#[test]
fn nodes_read_what_others_have_told_and_who_tells_nothing() {
    let server = PostgresServer::shared();
    let url = server.database();
    let store = open_at(&url);
    let now_ms = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let (before, known, after) = (now_ms(), store.node_settings().unwrap(), now_ms());
    assert!(known.nodes.is_empty() && known.store_now_ms.is_some_and(|now| (before..=after + 1).contains(&now)));

    let beat = |name: &str, boot_id| store.heartbeat(&info(name, boot_id), 600_000, &[], true).unwrap();
    let mut settings = NodeSettings { clock_ahead_s: -3, bus_up: true, ..NodeSettings::default() };
    settings.fingerprints.insert("token_key".into(), "0a1b".into());
    // The bits of a boot id are all used.
    let [new, former, future] = [u64::MAX, 2, 3];
    store.put_node_settings(new, &settings).unwrap();
    server.sql(&url, "INSERT INTO tidings.node_settings VALUES (3, '{\"fingerprints\":1}')");
    beat("new", new);
    beat("former", former);
    beat("future", future);
    assert_eq!(settings_of(&store, new), Some(settings.clone()));
    assert_eq!(settings_of(&store, former), None);
    assert_eq!(settings_of(&store, future), Some(NodeSettings::default()), "of another form");

    settings.clock_ahead_s = 0;
    store.put_node_settings(new, &settings).unwrap();
    assert_eq!(settings_of(&store, new), Some(settings));
    store.release_lease(new).unwrap();
    // A process that ended long ago without a goodbye, whose name another process has.
    server.sql(&url, "INSERT INTO tidings.node_settings VALUES (4, '{}', now() - interval '2 days')");
    store.put_node_settings(former, &NodeSettings::default()).unwrap();
    let left = server.sql(&url, "SELECT string_agg(boot_id::text, ' ' ORDER BY boot_id) FROM tidings.node_settings");
    assert_eq!(left.trim(), "2 3");
}

//! What nodes tell each other of their settings, and the database's clock beside it.

use super::{PostgresStore, connection::number};
use crate::rows::damaged;
use tidings_domain::{
    node_settings::{KnownNode, KnownSettings, NodeSettings},
    store::StoreResult,
};
use tokio_postgres::Row;

/// Stores a process's settings, and removes those of processes that ended without a goodbye.
const PUT: &str = "WITH gone AS (DELETE FROM node_settings s WHERE s.at < now() - interval '1 day' AND s.boot_id <> $1 \
       AND NOT EXISTS (SELECT FROM nodes n WHERE n.boot_id = s.boot_id)) \
     INSERT INTO node_settings (boot_id, settings) VALUES ($1, $2) \
     ON CONFLICT (boot_id) DO UPDATE SET settings = excluded.settings, at = now()";
/// One row at least: the clock stands in every row.
const READ: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, n.boot_id, n.name, s.settings \
     FROM (SELECT 1) AS one LEFT JOIN nodes n ON n.lease_until >= now() \
     LEFT JOIN node_settings s ON s.boot_id = n.boot_id";
pub(super) const FORGET: &str = "DELETE FROM node_settings WHERE boot_id = $1";

impl PostgresStore {
    pub(super) fn put_settings(&self, boot_id: i64, settings: &NodeSettings) -> StoreResult<()> {
        let text = serde_json::to_string(settings).map_err(|error| damaged(format_args!("node settings: {error}")))?;
        self.query(PUT, &[&boot_id, &text]).map(drop)
    }

    pub(super) fn read_settings(&self) -> StoreResult<KnownSettings> {
        let rows = self.query(READ, &[])?;
        let store_now_ms = rows.first().map(|row| number(row, 0));
        // A later program may tell them in a form of its own: it tells some.
        let settings = |text: Option<&str>| text.map(|text| serde_json::from_str(text).unwrap_or_default());
        let node = |row: &Row| {
            let boot_id = row.get::<_, Option<i64>>(1)? as u64;
            Some(KnownNode { name: row.get(2), boot_id, settings: settings(row.get(3)) })
        };
        Ok(KnownSettings { store_now_ms, nodes: rows.iter().filter_map(node).collect() })
    }
}

//! What a Redis is set to, for `tidings doctor`: read without starting a bus.

use crate::{config::RedisBusConfig, dialer::Dialer, metrics::BusMetrics};
use redis::{PushInfo, aio::SendError};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// The settings that matter for a bus.
const NAMES: [&str; 4] = ["maxclients", "timeout", "client-output-buffer-limit", "tcp-backlog"];

/// What one server answered: its settings by name, or why it told none.
pub type ServerSettings = Result<BTreeMap<String, String>, String>;

/// Asks every configured server for its settings. A managed Redis may refuse `CONFIG`; that is its answer then.
///
/// # Errors
/// The configuration cannot work, or the thread could not be started.
pub fn read_server_settings(config: &RedisBusConfig) -> Result<Vec<(String, ServerSettings)>, String> {
    let dialer = Dialer::new(config, Arc::new(BusMetrics::default())).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let mut answers = Vec::new();
        for address in dialer.seeds() {
            let read = async {
                let connection = dialer.dial(&address, |_: PushInfo| Ok::<(), SendError>(())).await?;
                let mut redis = connection.redis.clone();
                let mut all = BTreeMap::new();
                for name in NAMES {
                    let told: HashMap<String, String> = redis::cmd("CONFIG")
                        .arg("GET")
                        .arg(name)
                        .query_async(&mut redis)
                        .await
                        .map_err(|error| error.to_string())?;
                    all.extend(told);
                }
                Ok(all)
            };
            answers.push((address.to_string(), read.await));
        }
        Ok(answers)
    })
}

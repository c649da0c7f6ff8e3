//! PostgreSQL and Redis, where the settings name them.

use super::finding::{Finding, State};
use crate::settings::Settings;
use std::collections::BTreeMap;

type ServerSettings = BTreeMap<String, String>;

/// Connections of one node beside its readers: commits, the liveness probe, the sign of life, maintenance, and one more while a broken one is replaced.
const OTHER_CONNECTIONS: u64 = 5;
/// Further ones where it reads from standbys: questions how far the primary is, and marks.
const CONNECTIONS_OF_STANDBYS: u64 = 2;

pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(options) = settings.postgres_options() {
        match tidings_store::postgres::read_server_settings(&options) {
            Ok(told) => {
                let of_standbys = if options.read_urls.is_empty() { 0 } else { CONNECTIONS_OF_STANDBYS };
                findings.extend(postgres(&told, options.connections as u64 + of_standbys));
            }
            Err(why) => findings.push(unreachable("PostgreSQL of [store] url", &why)),
        }
    }
    if !settings.cluster.redis.is_empty() {
        let config = settings.redis_config().map_err(|error| error.to_string());
        match config.and_then(|config| tidings_bus_redis::read_server_settings(&config)) {
            Ok(servers) => findings.extend(servers.into_iter().flat_map(|(address, told)| match told {
                Ok(told) => redis(&address, &told, settings.cluster.redis_connections_max as u64),
                Err(why) => vec![unreachable(&format!("Redis {address}"), &why)],
            })),
            Err(why) => findings.push(unreachable("Redis of [cluster] redis", &why)),
        }
    }
    findings
}

fn unreachable(name: &str, why: &str) -> Finding {
    let reason = "Without it no message is accepted, or nodes do not hear each other.";
    Finding::new(name, why, "an answer", reason)
        .state(State::Wrong)
        .command("see that it runs, and that the address and the password are right")
}

fn number(told: &ServerSettings, name: &str) -> Option<u64> {
    told.get(name)?.parse().ok()
}

fn postgres(told: &ServerSettings, readers: u64) -> Vec<Finding> {
    let needed = readers + OTHER_CONNECTIONS;
    let free = number(told, "max_connections")
        .map(|all| all.saturating_sub(number(told, "superuser_reserved_connections").unwrap_or(0)));
    let alter = |name: &str, value: &str| format!("ALTER SYSTEM SET {name} = {value}; SELECT pg_reload_conf();");
    let on = |name: &'static str, why: &'static str| {
        let now = told.get(name).cloned();
        let state = match now.as_deref() {
            None => State::Unknown,
            Some("on") => State::Fine,
            Some(_) => State::Wrong,
        };
        let now = now.unwrap_or_else(|| "not known".into());
        Finding::new(format!("PostgreSQL {name}"), now, "on", why).state(state).command(alter(name, "on"))
    };
    let synchronous = told.get("synchronous_commit").cloned();
    let state = match synchronous.as_deref() {
        None => State::Unknown,
        Some("on" | "remote_apply") => State::Fine,
        // The server turns `off` into `on` for its own sessions; the others wait for less than a standby's disk.
        Some(_) => State::Advice,
    };
    vec![
        on("fsync", "Without it a crash of the machine may lose or damage what was acknowledged."),
        on("full_page_writes", "Without it a page that was half written when the power went cannot be restored."),
        Finding::new(
            "PostgreSQL synchronous_commit",
            synchronous.unwrap_or_else(|| "not known".into()),
            "on or remote_apply",
            "What a commit waits for. The server sets `off` to `on` for itself; `local` and `remote_write` may lose what was acknowledged in a failover.",
        )
        .state(state)
        .command(alter("synchronous_commit", "on")),
        Finding::at_least(
            "PostgreSQL max_connections, for one node",
            free,
            needed,
            "Each node has [store] connections for readers, and some for commits and maintenance. Multiply by your nodes.",
        )
        .command(format!("ALTER SYSTEM SET max_connections = {}; then restart PostgreSQL", (needed * 3).max(100))),
        // In MiB, as pg_settings has it.
        Finding::at_least(
            "PostgreSQL max_wal_size, MiB",
            number(told, "max_wal_size"),
            1_024,
            "A checkpoint comes when so much was written, at the latest; each makes commits slower for a while.",
        )
        .advise_only()
        .command(alter("max_wal_size", "'4GB'")),
    ]
}

fn redis(address: &str, told: &ServerSettings, connections: u64) -> Vec<Finding> {
    let set = |name: &str, value: &str| format!("redis-cli -u redis://{address} CONFIG SET {name} '{value}'");
    let timeout = number(told, "timeout");
    let timeout_state = match timeout {
        None => State::Unknown,
        Some(0) => State::Fine,
        Some(_) => State::Advice,
    };
    let pubsub = told.get("client-output-buffer-limit").and_then(|text| {
        let words: Vec<&str> = text.split_whitespace().collect();
        let place = words.iter().position(|word| *word == "pubsub")?;
        words.get(place + 1)?.parse::<u64>().ok()
    });
    // 0 is no limit.
    let pubsub = pubsub.map(|hard| if hard == 0 { u64::MAX } else { hard });
    vec![
        Finding::at_least(
            &format!("Redis {address} maxclients, for one node"),
            number(told, "maxclients"),
            connections,
            "Each node has up to [cluster] redis_connections_max connections. Multiply by your nodes.",
        )
        .command(set("maxclients", "10000")),
        Finding::new(
            format!("Redis {address} timeout"),
            timeout.map_or("not known".into(), |seconds| format!("{seconds} s")),
            "0",
            "Redis closes clients that are silent for so long; subscribers are, and nodes then read commits from the store meanwhile.",
        )
        .state(timeout_state)
        .command(set("timeout", "0")),
        Finding::at_least(
            &format!("Redis {address} client-output-buffer-limit pubsub, bytes"),
            pubsub,
            32 << 20,
            "A node that reads slower than others write is disconnected at this limit, and then reads commits from the store.",
        )
        .advise_only()
        .command(set("client-output-buffer-limit", "pubsub 67108864 33554432 60")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(settings: &[(&str, &str)]) -> ServerSettings {
        settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn not_fine(findings: Vec<Finding>) -> Vec<(String, State)> {
        let others = findings.into_iter().filter(|finding| finding.state != State::Fine);
        others.map(|finding| (finding.name, finding.state)).collect()
    }

    const POSTGRES: [(&str, &str); 6] = [
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
        ("max_connections", "100"),
        ("superuser_reserved_connections", "3"),
        ("max_wal_size", "1024"),
    ];

    #[test]
    fn a_database_that_may_lose_what_it_acknowledged_is_wrong() {
        assert_eq!(not_fine(postgres(&told(&POSTGRES), 16)), []);
        for (name, value, finding, state) in [
            ("fsync", "off", "PostgreSQL fsync", State::Wrong),
            ("full_page_writes", "off", "PostgreSQL full_page_writes", State::Wrong),
            ("synchronous_commit", "local", "PostgreSQL synchronous_commit", State::Advice),
            ("max_connections", "20", "PostgreSQL max_connections, for one node", State::Wrong),
            ("max_wal_size", "80", "PostgreSQL max_wal_size, MiB", State::Advice),
        ] {
            let mut changed = told(&POSTGRES);
            changed.insert(name.into(), value.into());
            assert_eq!(not_fine(postgres(&changed, 16)), [(finding.to_owned(), state)]);
        }
    }

    #[test]
    fn a_redis_that_closes_subscribers_is_told() {
        let fine = [
            ("maxclients", "10000"),
            ("timeout", "0"),
            ("client-output-buffer-limit", "normal 0 0 0 pubsub 33554432 8388608 60"),
        ];
        assert_eq!(not_fine(redis("r:1", &told(&fine), 64)), []);
        let mut changed = told(&fine);
        changed.insert("timeout".into(), "30".into());
        changed.insert("client-output-buffer-limit".into(), "pubsub 1000 0 0".into());
        let names: Vec<String> = not_fine(redis("r:1", &changed, 64)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["Redis r:1 timeout", "Redis r:1 client-output-buffer-limit pubsub, bytes"]);
        let unlimited = told(&[("client-output-buffer-limit", "pubsub 0 0 0")]);
        assert!(!not_fine(redis("r:1", &unlimited, 1)).iter().any(|(name, _)| name.contains("pubsub")));
    }
}

//! The client engine: what every load client of the lab is built on.
//!
//! One [`reactor`] per thread drives all of its sockets: it connects, waits, reads, writes with back-pressure, has a timer for
//! each client, and closes. What a client says and hears is a state machine without a socket, which implements
//! [`reactor::Clients`]. It knows neither the server under test nor what a run measures. In reading order:
//! - [`reactor`]: the only event loop of clients; `socket`: one socket of it; [`timer_wheel`]: its timers;
//! - [`websocket`]: the handshake and the messages of WebSocket; [`http`]: requests, and their answers read in place;
//! - [`session`]: what Tidings' sessions have in common: tokens, binds, frames;
//! - [`device`]: a device's session, over MIOP or WebSocket; [`tls`]: whom a server's certificate must be of;
//! - [`bench_link`]: the commands and reports of a load client that is a process of its own.
//!
//! Protocols that only one kind of client speaks are codecs beside it: those of servers that others wrote in `driver`.

pub(crate) mod bench_link;
pub(crate) mod device;
pub(crate) mod http;
pub(crate) mod reactor;
pub(crate) mod session;
mod socket;
pub(crate) mod timer_wheel;
pub(crate) mod tls;
pub(crate) mod websocket;

/// Handshakes under way at a time: as many as a server's accept queue holds without loss.
pub(crate) const HANDSHAKES_MAX: usize = 200;

/// Another server, at random, so that the connections of a failed server are spread over all others.
pub(crate) fn other_than(server: usize, servers: usize) -> usize {
    match servers {
        0 | 1 => server,
        _ => (server + rand::random_range(1..servers)) % servers,
    }
}

/// Why a connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("{}", if .0.kind() == std::io::ErrorKind::UnexpectedEof { "it was closed".to_owned() } else { .0.to_string() })]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Protocol(String),
    /// `Retry-After` is in seconds.
    #[error("the upgrade was answered with {status}")]
    NotUpgraded { status: u16, retry_after: Option<u64> },
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{fs, path::Path};

    /// Servers, which measure what no server can spare, have loops of their own.
    const SERVERS: [&str; 2] = ["bare_server.rs", "devices/bare_accept.rs"];

    fn add_pollers(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add_pollers(&path, root, found);
            } else if fs::read_to_string(&path).unwrap().contains(concat!("Poll::", "new(")) {
                found.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn all_clients_have_one_event_loop() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = Vec::new();
        add_pollers(&root, &root, &mut found);
        found.retain(|file| !SERVERS.contains(&file.as_str()));
        assert_eq!(found, ["client_engine/reactor.rs"]);
    }
}

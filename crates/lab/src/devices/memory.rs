//! Memory per connection: of the processes on both sides, and of the kernel.

use crate::{
    kernel::{bytes_of, read, socket_gauge},
    process::ServerProcesses,
};
use serde::Serialize;

/// Memory at one moment, in bytes.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Memory {
    /// By server process, with its name: a core, then its gateways, or the nodes of a cluster.
    pub(crate) server: Vec<(String, u64)>,
    pub(crate) clients: u64,
    /// All of the machine's kernel objects (`Slab` of `/proc/meminfo`).
    pub(crate) slab: u64,
    /// Pages of TCP buffers (`mem` of `/proc/net/sockstat`).
    pub(crate) tcp_buffers: u64,
    /// TCP sockets of this network namespace that are in use.
    pub(crate) sockets: u64,
}

impl Memory {
    pub(crate) fn now(server: &ServerProcesses, clients: &[u32]) -> Self {
        let socket_stat = read("/proc/net/sockstat");
        Memory {
            server: server
                .pids()
                .iter()
                .enumerate()
                .map(|(number, pid)| (name_of(number), resident_bytes(*pid)))
                .collect(),
            clients: clients.iter().map(|pid| resident_bytes(*pid)).sum(),
            slab: bytes_of(&read("/proc/meminfo"), "Slab:"),
            tcp_buffers: socket_gauge(&socket_stat, "mem") * PAGE_BYTES,
            sockets: socket_gauge(&socket_stat, "inuse"),
        }
    }

    pub(crate) fn server_bytes(&self) -> u64 {
        self.server.iter().map(|(_, bytes)| bytes).sum()
    }
}

fn name_of(process: usize) -> String {
    process.checked_sub(1).map_or("core".to_owned(), |number| format!("gateway {number}"))
}

/// `/proc/net/sockstat` counts in pages; Linux's are 4 KiB wherever this lab is likely to run.
const PAGE_BYTES: u64 = 4096;

/// `smaps_rollup` counts pages, where `status` may lag by some per thread (proc(5)).
fn resident_bytes(pid: u32) -> u64 {
    match read(&format!("/proc/{pid}/smaps_rollup")) {
        text if text.is_empty() => crate::process::resident_bytes(pid),
        text => bytes_of(&text, "Rss:"),
    }
}

/// Bytes per connection: the difference of two moments.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct BytesPerConnection {
    pub(crate) server: f64,
    pub(crate) client: f64,
    /// Kernel objects of both ends, since both are on this machine; other work of the machine counts as well.
    pub(crate) kernel_both_ends: f64,
    pub(crate) kernel_buffers: f64,
}

impl BytesPerConnection {
    pub(crate) fn between(before: &Memory, after: &Memory, connections: u64) -> Self {
        let each = |before: u64, after: u64| (after as f64 - before as f64) / connections.max(1) as f64;
        BytesPerConnection {
            server: each(before.server_bytes(), after.server_bytes()),
            client: each(before.clients, after.clients),
            kernel_both_ends: each(before.slab, after.slab),
            kernel_buffers: each(before.tcp_buffers, after.tcp_buffers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_process_is_read() {
        let now = Memory::now(&Some(std::process::id()).into(), &[]);
        assert!(now.server_bytes() > 100_000);
    }
}

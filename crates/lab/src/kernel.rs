//! What the kernel counts of the machine's TCP connections: those that came, those that it dropped, and what waits.

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
};

/// Counters that only grow, and gauges, at one moment. They are of the whole machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TcpCounters {
    /// Connections that listeners have taken.
    pub(crate) accepted: u64,
    /// Connections that found the queue of their listener full.
    pub(crate) listen_overflows: u64,
    /// Connections that a listener dropped, for that or another reason.
    pub(crate) listen_drops: u64,
    pub(crate) retransmits: u64,
    /// Gauge: ports that are not free yet after a connection has ended.
    pub(crate) time_wait: u64,
    /// Gauge: connections that wait for `accept`, of the listener with the most.
    pub(crate) backlog: u64,
}

/// With more sockets the listeners of IPv6 are not looked at: behind them the kernel looks for others among the sockets of both.
const SOCKETS_MAX: u64 = 50_000;
/// The state of a listener in `/proc/net/tcp`.
const LISTENS: &str = "0A";

pub(crate) fn read(file: &str) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

/// A counter of `/proc/net/snmp` or `netstat`: a line of names above a line of numbers, both beginning with the protocol.
fn network_counter(text: &str, protocol: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.strip_prefix(protocol).is_some_and(|rest| rest.starts_with(':')));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else { return 0 };
    let place = names.split_whitespace().position(|known| known == name);
    place.and_then(|place| numbers.split_whitespace().nth(place)?.parse().ok()).unwrap_or(0)
}

/// The bytes that a line such as `VmRSS:  20 kB` tells; 0 without such a line.
pub(crate) fn bytes_of(text: &str, name: &str) -> u64 {
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    rest.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// The number behind a name in the line `TCP:` of `/proc/net/sockstat`.
pub(crate) fn socket_gauge(text: &str, name: &str) -> u64 {
    let mut words = text.lines().find_map(|line| line.strip_prefix("TCP:")).unwrap_or_default().split_whitespace();
    words.find(|word| *word == name).and_then(|_| words.next()?.parse().ok()).unwrap_or(0)
}

/// How many connections wait at a listener, by its line in `/proc/net/tcp`; `None` if it is no listener's.
fn waiting_at(line: &str) -> Option<u64> {
    let mut fields = line.split_whitespace().skip(3);
    let (state, queues) = (fields.next()?, fields.next()?);
    // Of a listener the second queue is that of `accept`.
    (state == LISTENS).then(|| u64::from_str_radix(queues.split_once(':')?.1, 16).ok())?
}

/// Listeners stand before all other sockets, of which there may be a million: nothing behind them is read.
fn backlog(lines: impl BufRead) -> u64 {
    lines.lines().skip(1).map_while(|line| waiting_at(&line.ok()?)).max().unwrap_or(0)
}

impl TcpCounters {
    pub(crate) fn read() -> Self {
        let (netstat, snmp, sockstat) = (read("/proc/net/netstat"), read("/proc/net/snmp"), read("/proc/net/sockstat"));
        let mut files = vec!["/proc/net/tcp"];
        if socket_gauge(&sockstat, "inuse") < SOCKETS_MAX {
            files.push("/proc/net/tcp6");
        }
        let waiting = files.into_iter().filter_map(|file| std::fs::File::open(file).ok());
        TcpCounters {
            accepted: network_counter(&snmp, "Tcp", "PassiveOpens"),
            listen_overflows: network_counter(&netstat, "TcpExt", "ListenOverflows"),
            listen_drops: network_counter(&netstat, "TcpExt", "ListenDrops"),
            retransmits: network_counter(&snmp, "Tcp", "RetransSegs"),
            time_wait: socket_gauge(&sockstat, "tw"),
            backlog: waiting.map(|file| backlog(BufReader::new(file))).max().unwrap_or(0),
        }
    }
}

/// By name: of counters how many came between two samples, connections by the second; gauges as they were. The first row is
/// from before the first sample.
pub(crate) fn columns_of(rows: &[(f64, TcpCounters)]) -> BTreeMap<String, Vec<f64>> {
    let grown = |of: fn(&TcpCounters) -> u64| -> Vec<f64> {
        rows.windows(2).map(|pair| of(&pair[1].1).saturating_sub(of(&pair[0].1)) as f64).collect()
    };
    let gauge = |of: fn(&TcpCounters) -> u64| rows.iter().skip(1).map(|(_, row)| of(row) as f64).collect();
    let seconds = rows.windows(2).map(|pair| (pair[1].0 - pair[0].0).max(1e-9));
    let accepted: Vec<f64> = grown(|row| row.accepted).into_iter().zip(seconds).map(|(count, s)| count / s).collect();
    let columns: [(&str, Vec<f64>); 6] = [
        ("accepted_per_second", accepted),
        ("listen_overflows", grown(|row| row.listen_overflows)),
        ("listen_drops", grown(|row| row.listen_drops)),
        ("retransmits", grown(|row| row.retransmits)),
        ("time_wait", gauge(|row| row.time_wait)),
        ("backlog", gauge(|row| row.backlog)),
    ];
    columns.into_iter().map(|(name, values)| (name.to_owned(), values)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_gauges_are_read_by_name() {
        let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 22 333\nIpExt: A\nIpExt: 4\n";
        assert_eq!(network_counter(text, "TcpExt", "ListenDrops"), 333);
        assert_eq!(network_counter(text, "TcpExt", "Missing"), 0);
        let text = "sockets: used 9\nTCP: inuse 5 orphan 0 tw 17 alloc 8 mem 1\nUDP: inuse 1\n";
        assert_eq!((socket_gauge(text, "tw"), socket_gauge(text, "none")), (17, 0));
        assert_eq!(bytes_of("MemFree: 1 kB\nSlab:    20 kB\n", "Slab:"), 20 * 1024);
    }

    #[test]
    fn what_waits_at_listeners_is_read_and_nothing_behind_them() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr\n\
                    0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n\
                    1: 0100007F:1F91 00000000:0000 0A 00000000:0000001C 00:00000000\n\
                    2: 0100007F:1F91 0100007F:B9C2 01 00000000:000000FF 00:00000000\n";
        assert_eq!(backlog(text.as_bytes()), 0x1C);
        assert_eq!(backlog(&b""[..]), 0);
    }

    #[test]
    fn columns_are_what_came_between_samples() {
        let row = |accepted, retransmits, time_wait| TcpCounters {
            accepted,
            retransmits,
            time_wait,
            ..TcpCounters::default()
        };
        let columns = columns_of(&[(0.0, row(100, 5, 1)), (0.5, row(150, 5, 7)), (1.5, row(170, 9, 3))]);
        assert_eq!(columns["accepted_per_second"], [100.0, 20.0]);
        assert_eq!((&columns["retransmits"][..], &columns["time_wait"][..]), (&[0.0, 4.0][..], &[7.0, 3.0][..]));
        assert!(columns_of(&[(0.0, row(1, 1, 1))]).values().all(Vec::is_empty));
    }

    #[test]
    fn this_machine_has_accepted_what_this_test_opens() {
        let before = TcpCounters::read();
        let listener = std::net::TcpListener::bind("127.0.0.1:0");
        let address = listener.as_ref().ok().and_then(|listener| listener.local_addr().ok());
        let connected = address.is_some_and(|address| std::net::TcpStream::connect(address).is_ok());
        assert!(connected && TcpCounters::read().accepted > before.accepted);
    }
}

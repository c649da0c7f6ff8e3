//! The CPU time of a server's processes.

use crate::postgres::PostgresServer;

/// `sysconf(_SC_CLK_TCK)` is 100 on every Linux that we run on.
const TICK_MS: u64 = 10;

/// In milliseconds, so far.
pub(crate) fn cpu_ms(server: &PostgresServer) -> u64 {
    let pid = std::fs::read_to_string(server.data().join("postmaster.pid")).unwrap();
    let pid = pid.lines().next().unwrap().to_owned();
    let folders = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = folders.filter_map(|folder| std::fs::read_to_string(folder.path().join("stat")).ok());
    let ticks = stats.map(|stat| {
        // Behind the name: state, parent, …, utime, stime, cutime, cstime.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let number = |place: usize| fields[place].parse::<u64>().unwrap_or(0);
        match (stat.split(' ').next() == Some(&pid), fields[1] == pid) {
            (true, _) => (11..=14).map(number).sum(),
            (_, true) => number(11) + number(12),
            _ => 0,
        }
    });
    ticks.sum::<u64>() * TICK_MS
}

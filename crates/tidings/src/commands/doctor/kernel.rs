//! Limits and settings of the kernel, for a number of connections and a rate.

use super::{
    Load,
    finding::{Finding, State},
};
use std::path::{Path, PathBuf};

/// Descriptors beside those of connections: files of the store, listeners, links, requests of app servers.
const OTHER_DESCRIPTORS: u64 = 1_024;
/// Resident bytes of a connection: 5.7 KB of a WebSocket session, and the kernel's objects of one end, 4.5 KB.
const CONNECTION_BYTES: u64 = 10_200;
/// What a server takes without any connection.
const SERVER_BYTES: u64 = 256 << 20;
/// How long the kernel keeps a closed connection in TIME_WAIT, in seconds.
const TIME_WAIT_S: u64 = 60;
/// Ports that an address can have for connections of its own, without the privileged ones.
const PORTS_MAX: u64 = 64_511;

/// The files that the kernel tells its settings in.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    root: PathBuf,
    /// How many files a process may be allowed to open; `u64::MAX` without a limit.
    descriptors: u64,
}

impl Kernel {
    pub(super) fn of_this_machine() -> Self {
        use rustix::process::{Resource, getrlimit};
        // The server raises its own limit to the hard one.
        Kernel { root: PathBuf::from("/"), descriptors: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX) }
    }

    fn text(&self, file: impl AsRef<Path>) -> Option<String> {
        std::fs::read_to_string(self.root.join(file)).ok().map(|text| text.trim().to_owned())
    }

    fn numbers(&self, file: &str) -> Option<Vec<u64>> {
        self.text(file)?.split_whitespace().map(|number| number.parse().ok()).collect()
    }

    fn number(&self, file: &str) -> Option<u64> {
        self.numbers(file)?.first().copied()
    }

    /// A line of `/proc/meminfo`, in bytes.
    fn memory(&self, name: &str) -> Option<u64> {
        let text = self.text("proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    }
}

fn sysctl(name: &str, value: impl std::fmt::Display) -> String {
    format!("sysctl -w {name}='{value}'; to keep it: a line in /etc/sysctl.d/90-tidings.conf")
}

/// The setting's file below `/proc/sys`.
fn file_of(name: &str) -> String {
    format!("proc/sys/{}", name.replace('.', "/"))
}

fn number_at_least(kernel: &Kernel, name: &str, needed: u64, why: &'static str) -> Finding {
    Finding::at_least(name, kernel.number(&file_of(name)), needed, why).command(sysctl(name, needed))
}

pub(super) fn findings(kernel: &Kernel, load: Load, backlog: u32) -> Vec<Finding> {
    let descriptors = load.connections + OTHER_DESCRIPTORS;
    // A backlog holds the connections that come within a moment, when all come back at once: a fourth of them, at most as many as
    // the listeners ask for.
    let backlog = u64::from(backlog).min((load.connections / 4).next_power_of_two()).max(128);
    let mut findings = vec![
        Finding::at_least(
            "descriptors of the process",
            Some(kernel.descriptors),
            descriptors,
            "Each connection takes one; without any left connections are refused.",
        )
        .command(format!("LimitNOFILE={descriptors} in the unit of systemd, --ulimit nofile={descriptors} for Docker; or more gateways")),
        number_at_least(kernel, "fs.nr_open", descriptors, "The most that the limit of a process may be raised to."),
        number_at_least(kernel, "fs.file-max", descriptors + descriptors / 4, "Open files of all processes together."),
        port_range(kernel, load),
        number_at_least(
            kernel,
            "net.core.somaxconn",
            backlog,
            "Bounds the backlog of a listener. When it is full, connects wait for their repeated SYN, 1 s and more.",
        ),
        number_at_least(
            kernel,
            "net.ipv4.tcp_max_syn_backlog",
            backlog,
            "The same for handshakes that are under way. When it is full, the kernel drops them or answers with cookies.",
        ),
        tcp_memory(kernel, load),
        number_at_least(
            kernel,
            "net.ipv4.tcp_max_tw_buckets",
            (load.rate * TIME_WAIT_S).max(load.connections),
            "Clients that open a connection per request leave one in TIME_WAIT for a minute. Above this the kernel drops that protection.",
        )
        .advise_only(),
        time_wait_reuse(kernel),
    ];
    findings.extend(time_wait_recycling(kernel));
    findings.extend(connection_tracking(kernel, load));
    findings.push(memory(kernel, load));
    findings.push(huge_pages(kernel));
    findings.push(clock_source(kernel));
    findings
}

fn port_range(kernel: &Kernel, load: Load) -> Finding {
    let name = "net.ipv4.ip_local_port_range";
    let range = kernel.numbers(&file_of(name)).filter(|range| range.len() == 2 && range[0] <= range[1]);
    let needed = load.connections.min(PORTS_MAX);
    let ports = range.as_ref().map(|range| range[1] - range[0] + 1);
    let told = range
        .map_or("not known".into(), |range| format!("{} to {}, {} ports", range[0], range[1], range[1] - range[0] + 1));
    let addresses = load.connections.div_ceil(PORTS_MAX);
    let needed_text = match addresses {
        0 | 1 => format!("{needed} ports"),
        _ => format!("{PORTS_MAX} ports, and {addresses} addresses to connect from"),
    };
    let why = "Of the side that connects: a proxy in front of the server, or the lab. The server itself needs one port. Each pair of \
               addresses has these ports once.";
    let finding = Finding { now: told, needed: needed_text, ..Finding::at_least(name, ports, needed, why) };
    finding.advise_only().command(sysctl(name, "1024 65535"))
}

fn tcp_memory(kernel: &Kernel, load: Load) -> Finding {
    let name = "net.ipv4.tcp_mem";
    let why = "Pages for the buffers of all TCP connections. At the third number the kernel drops packets. An idle connection may take a page.";
    let numbers = kernel.numbers(&file_of(name)).filter(|numbers| numbers.len() == 3);
    let now = numbers.as_ref().map(|numbers| numbers[2]);
    let finding = Finding::at_least(name, now, load.connections, why);
    let told = numbers.map_or("not known".into(), |numbers| format!("{} {} {}", numbers[0], numbers[1], numbers[2]));
    let (low, pressure, high) = (load.connections / 2, load.connections * 3 / 4, load.connections);
    Finding { now: told, needed: format!("{high} or more as the third"), ..finding }
        .command(sysctl(name, format!("{low} {pressure} {high}")))
}

fn time_wait_reuse(kernel: &Kernel) -> Finding {
    let name = "net.ipv4.tcp_tw_reuse";
    let now = kernel.number(&file_of(name));
    let why = "Lets the side that connects take a port again after a second instead of a minute, told apart by timestamps. Accepted \
               connections are not concerned. 2, the default since Linux 4.19, does so on the loopback only.";
    let told = now.map_or("not known".into(), |now| now.to_string());
    let state = match now {
        None => State::Unknown,
        Some(0) => State::Advice,
        Some(_) => State::Fine,
    };
    Finding::new(name, told, "1 where many connections go out, else 2", why).state(state).command(sysctl(name, 1))
}

/// Old advice names this setting, so the doctor says what became of it.
fn time_wait_recycling(kernel: &Kernel) -> Option<Finding> {
    let name = "net.ipv4.tcp_tw_recycle";
    let why = "It dropped connections from clients behind one NAT, whose timestamps do not grow together. Linux 4.12 removed it: since 4.10 \
               timestamps begin at random for each connection, so that it could not work at all. Leave tcp_tw_reuse to it.";
    Some(match kernel.number(&file_of(name)) {
        None => Finding::new(name, "does not exist", "must not be on", why),
        Some(0) => Finding::new(name, "0", "0", why),
        Some(now) => Finding::new(name, now.to_string(), "0", why).state(State::Wrong).command(sysctl(name, 0)),
    })
}

fn connection_tracking(kernel: &Kernel, load: Load) -> Option<Finding> {
    let name = "net.netfilter.nf_conntrack_max";
    // Absent: connections are not tracked.
    kernel.number(&file_of(name))?;
    let needed = load.connections + load.connections / 4;
    Some(number_at_least(
        kernel,
        name,
        needed,
        "Connections are tracked by the packet filter. When its table is full, it drops the packets of new ones.",
    ))
}

fn memory(kernel: &Kernel, load: Load) -> Finding {
    let mib = |bytes: u64| bytes >> 20;
    let needed = mib(load.connections * CONNECTION_BYTES + SERVER_BYTES);
    let now = kernel.memory("MemAvailable").map(mib);
    let why = "5.7 KB of the server for an idle WebSocket session (1.8 KB for a MIOP device), 4.5 KB of the kernel, and the server itself.";
    Finding::at_least("available memory, MiB", now, needed, why)
        .command("more memory, or gateways on other machines (docs/gateways.md)")
}

fn huge_pages(kernel: &Kernel) -> Finding {
    let file = "sys/kernel/mm/transparent_hugepage/enabled";
    let why = "With `always` the kernel gives 2 MiB where a few KB are used, which memory per connection grows by; Redis forks slower, too.";
    let chosen = kernel.text(file).and_then(|text| Some(text.split('[').nth(1)?.split(']').next()?.to_owned()));
    let state = match chosen.as_deref() {
        None => State::Unknown,
        Some("always") => State::Advice,
        Some(_) => State::Fine,
    };
    Finding::new("transparent huge pages", chosen.unwrap_or_else(|| "not known".into()), "madvise or never", why)
        .state(state)
        .command("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
}

/// Clocks that are read without a system call.
const FAST_CLOCKS: [&str; 4] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

fn clock_source(kernel: &Kernel) -> Finding {
    let now =
        kernel.text("sys/devices/system/clocksource/clocksource0/current_clocksource").filter(|name| !name.is_empty());
    let why = "Deadlines and latencies are taken from the clock all the time. From hpet or acpi_pm that is a system call and a slow device, about 1 µs.";
    let state = match now.as_deref() {
        None => State::Unknown,
        Some(name) if FAST_CLOCKS.contains(&name) => State::Fine,
        Some(_) => State::Advice,
    };
    Finding::new("clock source", now.unwrap_or_else(|| "not known".into()), "tsc, kvm-clock or the like", why)
        .state(state)
        .command("echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource, if it is among available_clocksource")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LOAD: Load = Load { connections: 100_000, rate: 1_000 };

    /// A machine that is fit for the load, but for these files.
    fn states(changes: &[(&str, &str)], descriptors: u64) -> Vec<(String, State)> {
        let folder = tempfile::tempdir().unwrap();
        let fit = [
            ("proc/sys/fs/nr_open", "1048576"),
            ("proc/sys/fs/file-max", "9223372036854775807"),
            ("proc/sys/net/ipv4/ip_local_port_range", "1024\t65535"),
            ("proc/sys/net/core/somaxconn", "16384"),
            ("proc/sys/net/ipv4/tcp_max_syn_backlog", "16384"),
            ("proc/sys/net/ipv4/tcp_mem", "190000\t250000\t380000"),
            ("proc/sys/net/ipv4/tcp_max_tw_buckets", "262144"),
            ("proc/sys/net/ipv4/tcp_tw_reuse", "2"),
            ("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc"),
        ];
        for (file, text) in fit.iter().chain(changes) {
            let file = folder.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, format!("{text}\n")).unwrap();
        }
        let kernel = Kernel { root: folder.path().to_owned(), descriptors };
        findings(&kernel, LOAD, 16_384).into_iter().map(|finding| (finding.name, finding.state)).collect()
    }

    fn not_fine(changes: &[(&str, &str)], descriptors: u64) -> Vec<(String, State)> {
        states(changes, descriptors).into_iter().filter(|(_, state)| *state != State::Fine).collect()
    }

    #[test]
    fn a_fit_machine_is_told_so() {
        assert_eq!(not_fine(&[], 200_000), []);
    }

    #[test]
    fn each_limit_that_is_too_low_is_named() {
        for (file, text, name, state) in [
            ("proc/sys/fs/nr_open", "65536", "fs.nr_open", State::Wrong),
            ("proc/sys/fs/file-max", "100000", "fs.file-max", State::Wrong),
            ("proc/sys/net/ipv4/ip_local_port_range", "32768 60999", "net.ipv4.ip_local_port_range", State::Advice),
            ("proc/sys/net/core/somaxconn", "128", "net.core.somaxconn", State::Wrong),
            ("proc/sys/net/ipv4/tcp_max_syn_backlog", "512", "net.ipv4.tcp_max_syn_backlog", State::Wrong),
            ("proc/sys/net/ipv4/tcp_mem", "1 2 3", "net.ipv4.tcp_mem", State::Wrong),
            ("proc/sys/net/ipv4/tcp_max_tw_buckets", "5000", "net.ipv4.tcp_max_tw_buckets", State::Advice),
            ("proc/sys/net/ipv4/tcp_tw_reuse", "0", "net.ipv4.tcp_tw_reuse", State::Advice),
            ("proc/sys/net/ipv4/tcp_tw_recycle", "1", "net.ipv4.tcp_tw_recycle", State::Wrong),
            ("proc/sys/net/netfilter/nf_conntrack_max", "65536", "net.netfilter.nf_conntrack_max", State::Wrong),
            ("proc/meminfo", "MemAvailable: 500000 kB", "available memory, MiB", State::Wrong),
            (
                "sys/kernel/mm/transparent_hugepage/enabled",
                "[always] madvise never",
                "transparent huge pages",
                State::Advice,
            ),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet", "clock source", State::Advice),
            ("proc/sys/net/ipv4/tcp_mem", "broken", "net.ipv4.tcp_mem", State::Unknown),
        ] {
            assert_eq!(not_fine(&[(file, text)], 200_000), [(name.to_owned(), state)], "{file} {text}");
        }
        assert_eq!(not_fine(&[], 65_536), [("descriptors of the process".to_owned(), State::Wrong)]);
    }

    #[test]
    fn a_machine_that_tells_nothing_is_not_called_wrong() {
        let kernel = Kernel { root: PathBuf::from("/does/not/exist"), descriptors: u64::MAX };
        assert!(findings(&kernel, LOAD, 16_384).iter().all(|finding| finding.state != State::Wrong));
    }
}

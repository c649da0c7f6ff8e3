//! A PostgreSQL server from the system's packages, in its own folder and place.

use super::{
    place::Place,
    placed_command::{self, ProcessUser, run},
};
use crate::{
    LabError,
    managed_process::{ManagedProcess, POLL_INTERVAL},
    process,
    reserved_port::ReservedPort,
};
use rustix::process::Signal;
use std::{
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(120);
/// The database of the cluster's nodes.
const DATABASE: &str = "tidings";

/// One PostgreSQL server, the primary or the standby.
#[derive(Debug)]
pub(crate) struct Postgres {
    name: &'static str,
    place: Place,
    folder: PathBuf,
    programs: PathBuf,
    user: Option<ProcessUser>,
    port: ReservedPort,
    password: String,
    pub(super) process: ManagedProcess,
}

/// The shutdown mode of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShutdownMode {
    /// Connections are closed and all data is written.
    Fast,
    /// Like a crash, except that its processes end in order: the next start recovers.
    Immediate,
}

impl Postgres {
    /// Prepares folder, port and user of a server that is not created yet.
    pub(super) fn prepare(name: &'static str, place: Place, folder: PathBuf, password: &str) -> Result<Self, LabError> {
        let user = if rustix::process::getuid().is_root() { Some(postgres_user()?) } else { None };
        std::fs::create_dir_all(&folder)?;
        if let Some((user, group)) = user {
            chown(&folder, Some(user), Some(group))?;
        }
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700))?;
        let port = place.reserve(5432)?;
        let process = ManagedProcess::new(format!("PostgreSQL {name}"), folder.join("log"));
        let (programs, password) = (programs()?, password.to_owned());
        Ok(Postgres { name, place, folder, programs, user, port, password, process })
    }

    /// Creates an empty database and starts the server.
    pub(super) fn create(&mut self) -> Result<(), LabError> {
        let password_file = self.folder.join("password");
        std::fs::write(&password_file, &self.password)?;
        if let Some((user, group)) = self.user {
            chown(&password_file, Some(user), Some(group))?;
        }
        let mut initdb = self.command("initdb");
        initdb.args(["-U", "postgres", "--encoding=UTF8", "--locale=C", "--no-sync", "--auth-local=trust"]);
        initdb.arg("--auth-host=scram-sha-256").arg("--pwfile").arg(&password_file).arg("-D").arg(self.data());
        run(&mut initdb)?;
        let access = self.data().join("pg_hba.conf");
        let mut rules = std::fs::read_to_string(&access)?;
        rules.push_str("host all all samenet scram-sha-256\nhost replication all samenet scram-sha-256\n");
        std::fs::write(&access, rules)?;
        self.start()?;
        self.sql_in("postgres", &format!("CREATE DATABASE {DATABASE}"))?;
        if self.counts_statements() {
            self.sql("CREATE EXTENSION pg_stat_statements")?;
        }
        Ok(())
    }

    /// Makes this server the synchronous standby of `primary`.
    pub(super) fn follow(&mut self, primary: &Postgres) -> Result<(), LabError> {
        if self.data().exists() {
            std::fs::remove_dir_all(self.data())?;
        }
        let slot = format!("of_{}", self.name);
        primary.sql(&format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}'"
        ))?;
        let mut copy = self.command("pg_basebackup");
        copy.args(["-U", "postgres", "-R", "-X", "stream", "-c", "fast", "--no-sync", "-C", "-S", &slot]);
        copy.args(["-h", &primary.place.address.to_string(), "-p", &primary.port.number().to_string(), "-D"])
            .arg(self.data());
        run(&mut copy)?;
        self.start()?;
        primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")?;
        primary.sql("SELECT pg_reload_conf()")?;
        let asked = Instant::now();
        while primary.sql("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")? != "1" {
            if asked.elapsed() > PATIENCE {
                return Err(LabError::Environment(format!("the standby does not follow: {}", self.process.log_tail())));
            }
            std::thread::sleep(POLL_INTERVAL * 10);
        }
        Ok(())
    }

    /// Promotes a standby to the primary, without a standby of its own.
    pub(super) fn promote(&self) -> Result<(), LabError> {
        run(self.command("pg_ctl").args(["promote", "-w", "-D"]).arg(self.data()))?;
        self.sql("ALTER SYSTEM RESET synchronous_standby_names")?;
        self.sql("SELECT pg_reload_conf()")?;
        Ok(())
    }

    /// Starts the server, and returns when it accepts connections.
    pub(super) fn start(&mut self) -> Result<(), LabError> {
        // INT would close connections, too, but with QUIT the server ends at once when the lab has ended.
        let mut command = placed_command::command(self.place, self.user, "QUIT", &self.programs.join("postgres"));
        command.current_dir(&self.folder).arg("-D").arg(self.data()).arg("-k").arg(&self.folder);
        let (listen, port) =
            (format!("listen_addresses={}", self.place.address), format!("port={}", self.port.number()));
        let mut settings = vec![listen.as_str(), &port, "shared_buffers=64MB", "max_connections=200"];
        // A standby that lost its primary for a moment reconnects soon.
        settings.extend(["logging_collector=off", "wal_retrieve_retry_interval=500ms", "max_replication_slots=10"]);
        if self.counts_statements() {
            settings.push("shared_preload_libraries=pg_stat_statements");
        }
        for setting in settings {
            command.args(["-c", setting]);
        }
        self.process.start(command)?;
        let mut ready = self.command("pg_isready");
        ready.args(["-q", "-U", "postgres", "-h"]).arg(&self.folder);
        self.process.wait_until(PATIENCE, LabError::Environment, || ready.status().is_ok_and(|status| status.success()))
    }

    pub(super) fn kill(&mut self) -> Result<(), LabError> {
        let Some(pid) = self.process.pid() else { return Ok(()) };
        let children = children(pid);
        self.process.kill()?;
        // The server's children notice by themselves, but until then they use the folder.
        for child in children {
            process::signal(child, Signal::KILL);
            let asked = Instant::now();
            while Path::new(&format!("/proc/{child}")).exists() && asked.elapsed() < PATIENCE {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    pub(super) fn stop(&mut self, mode: ShutdownMode) -> Result<(), LabError> {
        let signal = match mode {
            ShutdownMode::Fast => Signal::INT,
            ShutdownMode::Immediate => Signal::QUIT,
        };
        self.process.stop(signal, PATIENCE)?;
        Ok(())
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// `host:port`, as a store's url lists it.
    pub(super) fn host(&self) -> String {
        self.port.at.to_string()
    }

    /// The URL of the database on the server of these that accepts writes.
    pub(super) fn url(servers: &[&Postgres]) -> String {
        let hosts: Vec<String> = servers.iter().map(|server| server.host()).collect();
        let password = servers.first().map_or("", |server| server.password.as_str());
        format!("postgres://postgres:{password}@{}/{DATABASE}?target_session_attrs=read-write", hosts.join(","))
    }

    /// Runs statements on the nodes' database; returns their output.
    pub(crate) fn sql(&self, sql: &str) -> Result<String, LabError> {
        self.sql_in(DATABASE, sql)
    }

    fn sql_in(&self, database: &str, sql: &str) -> Result<String, LabError> {
        let mut psql = self.command("psql");
        psql.args(["-X", "-A", "-t", "-q", "-U", "postgres", "-v", "ON_ERROR_STOP=1", "-d", database, "-h"]);
        run(psql.arg(&self.folder).args(["-c", sql]))
    }

    /// Whether the extension that counts statements is installed.
    pub(crate) fn counts_statements(&self) -> bool {
        self.programs.join("../lib/pg_stat_statements.so").exists()
    }

    /// CPU seconds of the server and its children, of those that have ended, too.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let Some(pid) = self.process.pid() else { return 0.0 };
        let children: f64 = children(pid).into_iter().map(process::cpu_seconds).sum();
        process::cpu_seconds_with_ended_children(pid) + children
    }

    /// The processes that write commits to the disk, and those that wait for them: stopping them simulates a slow disk.
    pub(super) fn writers(&self) -> Vec<u32> {
        let Some(pid) = self.process.pid() else { return Vec::new() };
        let writes = |pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            ["walwriter", "checkpointer", "postgres postgres tidings", "walreceiver"]
                .iter()
                .any(|one| name.contains(one))
        };
        children(pid).into_iter().filter(writes).collect()
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The command of one of PostgreSQL's programs, run as the server's user.
    fn command(&self, program: &str) -> Command {
        let mut command = placed_command::command(self.place, self.user, "KILL", &self.programs.join(program));
        command
            .env("PGPORT", self.port.number().to_string())
            .env("PGPASSWORD", &self.password)
            .current_dir(&self.folder);
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // In order, so that its children end with it.
        let _ = self.process.stop(Signal::QUIT, PATIENCE);
    }
}

fn children(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The folder with the programs of the newest installed version.
fn programs() -> Result<PathBuf, LabError> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    let newest = newest.ok_or_else(|| LabError::Environment("PostgreSQL is not installed: see `make setup`".into()))?;
    Ok(Path::new("/usr/lib/postgresql").join(newest.to_string()).join("bin"))
}

/// Debian's user `postgres`: the server refuses to run as root.
fn postgres_user() -> Result<ProcessUser, LabError> {
    let users = std::fs::read_to_string("/etc/passwd")?;
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let mut numbers =
        line.into_iter().flat_map(|line| line.split(':').skip(2)).filter_map(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(user), Some(group)) => Ok((user, group)),
        _ => Err(LabError::Environment("there is no user postgres to run the database as".into())),
    }
}

//! `tidings serve`: configure, build, run, drain with a deadline.

use crate::{
    development::{self, Keys},
    displacement, file_access, logs, memory, panics,
    relay::RelayServer,
    settings::{self, LogFormat, Role, SettingArgs, Settings},
    wiring::Server,
};
use anyhow::Result;
use std::{
    fs,
    io::{self, Write},
    path::Path,
    process::ExitCode,
    time::Duration,
};
use tidings_api::routes::SettingView;
use tidings_domain::end_reason::EndReason;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The file in the data folder that holds the server's addresses.
pub(crate) const LISTENING_FILE: &str = "listening";
/// Threads for reads from the store: more than a disk can serve at once would only take memory.
const BLOCKING_THREADS_MAX: usize = 64;
/// How long such a thread waits for work. The threads take turns, so one read a second would keep ten of them for ever if each
/// waited ten seconds, the runtime's default; each has a stack and pages of the allocator, 100 to 300 KiB.
const BLOCKING_THREAD_IDLE: Duration = Duration::from_secs(1);
// Binds find a free thread even while HTTP, sessions and popups use all the threads that they may.
const _: () = assert!(
    BLOCKING_THREADS_MAX
        > tidings_gateway::SESSION_READS_RUNNING
            + tidings_api::CONCURRENT_READS_MAX
            + tidings_popups::CONCURRENT_CONTEXT_READS_MAX
);
/// The part of the drain's deadline for which a process that ends by itself says so before it closes its listeners.
const NOTICE_PART: u32 = 5;
/// When a stop is this much over its deadline, the process exits.
const STOP_GRACE: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
pub(crate) struct Serve {
    /// Development mode: made-up keys, demo users and a demo group
    #[arg(long)]
    dev: bool,
    /// List every setting as a flag, with its default
    #[arg(long)]
    help_settings: bool,
    #[command(flatten)]
    settings: SettingArgs,
}

impl Serve {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.help_settings {
            print!("{}", settings::help());
            return Ok(ExitCode::SUCCESS);
        }
        file_access::keep_to_this_account();
        let (mut settings, sources) = self.settings.load_with_sources()?;
        let made_up = if self.dev { missing_keys(&settings) } else { Vec::new() };
        let keys = self.dev.then(|| add_development_keys(&mut settings)).transpose()?;
        settings.check()?;
        let _traces = logs::start(&settings)?;
        panics::abort_on_panic();
        if !settings.huge_pages {
            memory::refuse_huge_pages();
        }
        let folders = [Some(&settings.data_dir), settings.backup_dir.as_ref()];
        let open = folders.into_iter().flatten().filter_map(|folder| file_access::warning_if_open(folder));
        for warning in settings.warnings(std::env::vars_os()).into_iter().chain(open) {
            tracing::warn!("{warning}");
        }
        let descriptors = raise_descriptor_limit();
        settings.fit_connections(descriptors);
        if settings.role == Role::Worker {
            settings.hold_no_sessions();
        }
        let disclosed = settings.disclosed(&sources, &made_up);

        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        if settings.http_threads > 0 {
            runtime.worker_threads(settings.http_threads);
        }
        let runtime = runtime
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .thread_keep_alive(BLOCKING_THREAD_IDLE)
            .enable_all()
            .thread_name("http")
            .build()?;
        runtime.spawn(memory::release_periodically());
        let exit_code = match settings.role {
            Role::All | Role::Api | Role::Worker => {
                runtime.block_on(serve(&settings, descriptors, keys.as_ref(), disclosed))?
            }
            Role::Gateway => runtime.block_on(relay(&settings, descriptors))?,
        };
        // Only reads whose callers are gone still run.
        runtime.shutdown_background();
        Ok(exit_code)
    }
}

async fn serve(
    settings: &Settings,
    descriptors: u64,
    development: Option<&Keys>,
    disclosed: Vec<SettingView>,
) -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let server = Server::start(settings, descriptors, development.map(development::chat_page), disclosed)?;
    if development.is_some() {
        development::populate(server.engine()).await?;
    }
    let address = server.listeners().http_address();
    announce(settings, &server.listening());
    if let Some(keys) = development {
        println!("{}", development::announce(address, &settings.data_dir, keys));
    }
    std::io::stdout().flush()?;

    let engine = server.engine().clone();
    let reason = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        reason = engine.must_end() => Some(reason),
    };
    // The last reference closes the store.
    drop(engine);
    if let Some(EndReason::Displaced { name }) = &reason {
        displacement::remember(&settings.data_dir, name);
    }
    Ok(stop(settings, reason.as_ref(), |deadline| server.stop(deadline), [&mut terminate, &mut interrupt]).await)
}

async fn relay(settings: &Settings, descriptors: u64) -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let server = RelayServer::start(settings, descriptors).await?;
    announce(settings, &server.listening());
    std::io::stdout().flush()?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(stop(settings, None, |deadline| server.stop(deadline), [&mut terminate, &mut interrupt]).await)
}

/// Writes the listeners' addresses to the data folder and prints them. The server serves even if the disk has no room for the
/// file: only commands that look for the server in its folder need it.
fn announce(settings: &Settings, addresses: &str) {
    let file = settings.data_dir.join(LISTENING_FILE);
    if let Err(error) =
        fs::create_dir_all(&settings.data_dir).and_then(|()| write_atomically(&file, addresses.as_bytes()))
    {
        // The file of an earlier process may hold addresses that another program has by now.
        let _ = fs::remove_file(&file);
        tracing::warn!(
            %error,
            file = %file.display(),
            "the server's addresses cannot be written: `tidings listen` needs --server, and `tidings backup` finds no server"
        );
    }
    // Where logs are JSON, all lines are: the record below has the addresses.
    if settings.log.format == LogFormat::Text {
        addresses.lines().for_each(|line| println!("listening {line}"));
    }
    tracing::info!(addresses = addresses.trim().replace('\n', " "), data_dir = %settings.data_dir.display(), "serving");
}

/// Stops within the deadline, or at once on a signal beside the one that asked for it. `reason`: why the process ends by itself.
async fn stop<F: Future<Output = ()>>(
    settings: &Settings,
    reason: Option<&EndReason>,
    stop: impl FnOnce(Duration) -> F,
    [terminate, interrupt]: [&mut Signal; 2],
) -> ExitCode {
    let deadline = Duration::from_millis(settings.drain_deadline_ms);
    tracing::info!(?deadline, "stopping");
    // Commands must not find a server that is stopping.
    let _ = fs::remove_file(settings.data_dir.join(LISTENING_FILE));
    enforce_stop_deadline(deadline + STOP_GRACE, reason.map_or(1, EndReason::exit_status));
    let stopping = async {
        // Whoever stops a node takes it from its balancer first. Here the balancer must learn it from `/readyz`.
        let notice = reason.map_or(Duration::ZERO, |_| deadline / NOTICE_PART);
        tokio::time::sleep(notice).await;
        stop(deadline - notice).await;
    };
    tokio::select! {
        () = stopping => tracing::info!("stopped"),
        _ = terminate.recv() => tracing::warn!("stopped at once by a second signal"),
        _ = interrupt.recv() => tracing::warn!("stopped at once by a second signal"),
    }
    ExitCode::from(reason.map_or(0, EndReason::exit_status))
}

/// The keys that development mode makes up, because no setting has them.
fn missing_keys(settings: &Settings) -> Vec<&'static str> {
    let keys = [("api_key", &settings.api_key), ("token_key", &settings.token_key)];
    keys.into_iter().filter(|(_, key)| key.is_none()).map(|(name, _)| name).collect()
}

fn add_development_keys(settings: &mut Settings) -> Result<Keys> {
    let made = Keys::read_or_make(&settings.data_dir)?;
    let set = |key: &mut Option<String>, made: String| key.get_or_insert(made).clone();
    Ok(Keys {
        api_key: set(&mut settings.api_key, made.api_key),
        token_key: set(&mut settings.token_key, made.token_key),
    })
}

/// Writes a file so that readers see all of it or none.
fn write_atomically(file: &Path, text: &[u8]) -> io::Result<()> {
    let draft = file.with_extension("new");
    let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, file));
    if written.is_err() {
        // A part of the draft would take room on a full disk.
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Exits the process when a stop takes too long. Nothing that is acknowledged waits only in memory, so nothing is lost.
fn enforce_stop_deadline(after: Duration, exit_status: u8) {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        logs::print_error("the stop took longer than its deadline; ending at once");
        std::process::exit(exit_status.into());
    });
}

/// Raises the limit of file descriptors to the hard limit and returns it. Every connection needs one, and the default soft limit
/// of many systems is 1,024.
fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let limit = match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of file descriptors could not be raised");
            current
        }
    };
    // Absent: there is no limit.
    limit.unwrap_or(u64::MAX)
}

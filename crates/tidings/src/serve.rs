//! `tidings serve`: configure, build, run, drain with a deadline.

use crate::{
    development::{self, Keys},
    logs, memory, panics,
    relaying::RelayServer,
    settings::{self, Role, SettingArgs, Settings},
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
use tidings_engine::popups;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The file in the data folder that tells where the server listens.
pub(crate) const LISTENING: &str = "listening";
/// Threads for reads from the store: beyond what a disk answers at once, more only take memory.
const BLOCKING_THREADS: usize = 64;
// Whatever is asked for over HTTP, by sessions and about popups, binds find a thread.
const _: () = assert!(
    BLOCKING_THREADS > tidings_gateway::SESSION_READS_RUNNING + tidings_api::READS_RUNNING + popups::LOOKING_UP_MAX
);
/// A stop that takes this much longer than its deadline is ended the hard way.
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
        let mut settings = self.settings.load()?;
        let keys = self.dev.then(|| add_development_keys(&mut settings)).transpose()?;
        settings.check()?;
        let _traces = logs::start(&settings)?;
        panics::end_the_process();
        for doubt in settings.doubts(std::env::vars_os()) {
            tracing::warn!("{doubt}");
        }
        let descriptors = raise_descriptor_limit();
        settings.fit_connections(descriptors);
        if settings.role == Role::Worker {
            settings.hold_no_sessions();
        }

        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        if settings.http_threads > 0 {
            runtime.worker_threads(settings.http_threads);
        }
        let runtime = runtime.max_blocking_threads(BLOCKING_THREADS).enable_all().thread_name("http").build()?;
        runtime.spawn(memory::give_back());
        match settings.role {
            Role::All | Role::Api | Role::Worker => runtime.block_on(serve(&settings, descriptors, keys.as_ref()))?,
            Role::Gateway => runtime.block_on(relay(&settings, descriptors))?,
        }
        // What still runs are reads whose callers are gone.
        runtime.shutdown_background();
        Ok(ExitCode::SUCCESS)
    }
}

async fn serve(settings: &Settings, descriptors: u64, development: Option<&Keys>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let server = Server::start(settings, descriptors)?;
    if development.is_some() {
        development::populate(server.engine()).await?;
    }
    let address = server.doors().http_address();
    announce(settings, &server.listening());
    if let Some(keys) = development {
        println!("{}", development::announce(address, &settings.data_dir, keys));
    }
    std::io::stdout().flush()?;

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop(settings, |deadline| server.stop(deadline), [&mut terminate, &mut interrupt]).await;
    Ok(())
}

async fn relay(settings: &Settings, descriptors: u64) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let server = RelayServer::start(settings, descriptors).await?;
    announce(settings, &server.listening());
    std::io::stdout().flush()?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop(settings, |deadline| server.stop(deadline), [&mut terminate, &mut interrupt]).await;
    Ok(())
}

/// Tells where the doors are: in the data folder, and in print. A disk that has no room for the file is no reason not to serve:
/// only commands that look for the server on its folder miss it.
fn announce(settings: &Settings, doors: &str) {
    let file = settings.data_dir.join(LISTENING);
    if let Err(error) = fs::create_dir_all(&settings.data_dir).and_then(|()| write_whole(&file, doors.as_bytes())) {
        // What an earlier process left there names doors that may be somebody else's by now.
        let _ = fs::remove_file(&file);
        tracing::warn!(
            %error,
            file = %file.display(),
            "where the server listens cannot be written: `tidings listen` needs --server, and `tidings backup` finds no server"
        );
    }
    for door in doors.lines() {
        println!("listening {door}");
    }
    tracing::info!(doors = doors.trim().replace('\n', " "), data_dir = %settings.data_dir.display(), "serving");
}

/// Within the deadline, or at once by a second signal.
async fn stop<F: Future<Output = ()>>(
    settings: &Settings,
    stop: impl FnOnce(Duration) -> F,
    [terminate, interrupt]: [&mut Signal; 2],
) {
    let deadline = Duration::from_millis(settings.drain_deadline_ms);
    tracing::info!(?deadline, "stopping");
    // Whoever looks for the server must not find one that is going.
    let _ = fs::remove_file(settings.data_dir.join(LISTENING));
    end_late_stop(deadline + STOP_GRACE);
    tokio::select! {
        () = stop(deadline) => tracing::info!("stopped"),
        _ = terminate.recv() => tracing::warn!("stopped at once by a second signal"),
        _ = interrupt.recv() => tracing::warn!("stopped at once by a second signal"),
    }
}

fn add_development_keys(settings: &mut Settings) -> Result<Keys> {
    let made = Keys::read_or_make(&settings.data_dir)?;
    let set = |key: &mut Option<String>, made: String| key.get_or_insert(made).clone();
    Ok(Keys {
        api_key: set(&mut settings.api_key, made.api_key),
        token_key: set(&mut settings.token_key, made.token_key),
    })
}

/// Readers see all of the file or none.
fn write_whole(file: &Path, text: &[u8]) -> io::Result<()> {
    let draft = file.with_extension("new");
    let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, file));
    if written.is_err() {
        // A part of it takes room that there is none of.
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Nothing that is acknowledged waits in memory, so an end without ceremony loses nothing.
fn end_late_stop(after: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        eprintln!("tidings: the stop took longer than its deadline; ending at once");
        std::process::exit(1);
    });
}

/// Every connection is a descriptor; the default soft limit of many systems is 1,024. Answers what it is now.
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

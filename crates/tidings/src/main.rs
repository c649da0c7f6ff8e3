//! The program `tidings`: the command line and the wiring of one server for chat, push and popups.
//!
//! In reading order: [`settings`] (all settings and their sources), [`serve`] (configure, build, run, drain), [`wiring`] (the
//! parts put together), [`open_store`] (which store), [`outbox`] (what its readers and the API are to each other), [`join_cluster`] (the bus and the identity of a node), [`displacement`] (a name that another node has taken), [`listeners`]
//! (every address), [`relay`] (devices' connections for another process), [`development`] (keys and demo users),
//! [`commands`] (everything but serving). This crate only joins parts: the engine decides what becomes of a message, the
//! crates of push and popups what reaches devices and is shown, the API and the gateway speak the protocols.

mod commands;
mod development;
mod displacement;
mod file_access;
mod join_cluster;
mod listeners;
mod logs;
mod memory;
mod open_store;
mod outbox;
mod panics;
mod relay;
mod serve;
mod settings;
#[cfg(feature = "otel")]
mod traces;
mod webhook;
mod wiring;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tidings_domain::end_reason::EndReason;

/// Messages are allocated on one thread and freed on another all the time, which costs the system's allocator locks and
/// consolidation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Chat, push and popups for your own product, from one self-hosted server.
#[derive(Parser)]
#[command(version, about)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve until asked to stop (SIGTERM or Ctrl-C)
    Serve(Box<serve::Serve>),
    /// Print the documented default settings
    Config,
    /// Print the tables and functions of an outbox in the app's own database
    OutboxSql(commands::outbox_sql::OutboxSql),
    /// Print a client token for a user
    Token(commands::token::Token),
    /// Connect as a user and print what arrives
    Listen(commands::listen::Listen),
    /// Copy the data folder consistently, also while it is served
    Backup(commands::backup::Backup),
    Migrate(commands::migrate::Migrate),
    Divide(commands::divide::Divide),
    Import(commands::history::Import),
    Export(commands::history::Export),
    /// Verify a data folder: sequences without holes, retries that match, counts
    Check(commands::check::Check),
    /// Say whether this machine is set up for so many connections and messages, and how to mend what is not
    Doctor(commands::doctor::Doctor),
    Plan(commands::plan::Plan),
    /// Load a server and prove with counts that nothing was lost
    #[cfg(feature = "lab")]
    Bench(Box<tidings_lab::BenchArgs>),
    /// Start a cluster of this machine's own: PostgreSQL with a standby, Redis, and several nodes
    #[cfg(feature = "lab")]
    Cluster(tidings_lab::ClusterArgs),
    #[cfg(not(feature = "lab"))]
    #[command(flatten)]
    MissingLab(commands::missing_lab::MissingLab),
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Config => {
            print!("{}", settings::Settings::sample());
            Ok(ExitCode::SUCCESS)
        }
        Command::OutboxSql(command) => command.run(),
        Command::Token(token) => token.run(),
        Command::Listen(listen) => listen.run(),
        Command::Backup(backup) => backup.run(),
        Command::Migrate(migrate) => migrate.run(),
        Command::Divide(divide) => divide.run(),
        Command::Import(import) => import.run(),
        Command::Export(export) => export.run(),
        Command::Check(check) => check.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Plan(plan) => plan.run(),
        #[cfg(feature = "lab")]
        Command::Bench(args) => settings::Settings::check_variables(&args.settings()).map(|()| tidings_lab::run(*args)),
        #[cfg(feature = "lab")]
        Command::Cluster(args) => commands::cluster::run(&args),
        #[cfg(not(feature = "lab"))]
        Command::MissingLab(command) => Ok(command.refuse()),
    };
    result.unwrap_or_else(|error| {
        logs::print_error(&format!("{error:#}"));
        error.downcast_ref::<EndReason>().map_or(ExitCode::FAILURE, |reason| ExitCode::from(reason.exit_status()))
    })
}

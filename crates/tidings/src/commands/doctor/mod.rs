//! `tidings doctor`: whether this machine, its disk, and the database and Redis of the settings are fit for a load.
//!
//! In reading order: [`finding`]: what is reported of each thing; [`kernel`]: limits and settings of the kernel; [`disk`]: how long an
//! fsync takes; [`services`]: PostgreSQL and Redis. Nothing is changed: each finding has the command that would change it.

mod disk;
mod finding;
mod kernel;
mod services;

use crate::settings::SettingArgs;
use anyhow::Result;
use finding::{Finding, State};
use kernel::Kernel;
use std::process::ExitCode;

/// More than any machine bears, and so little that sums of bytes do not overflow.
const LOAD_MAX: u64 = 1_000_000_000;

#[derive(clap::Args)]
pub(crate) struct Doctor {
    /// Connections that are open at the same time
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=LOAD_MAX))]
    connections: u64,
    /// Messages a second
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=LOAD_MAX))]
    rate: u64,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: SettingArgs,
}

/// What the machine is to bear.
#[derive(Debug, Clone, Copy)]
struct Load {
    connections: u64,
    rate: u64,
}

impl Doctor {
    /// Exits with 1 when something is too low or wrong. Advice does not change the exit code, nor does what cannot be read here.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let settings = self.settings.load()?;
        let load = Load { connections: self.connections, rate: self.rate };
        let mut findings = kernel::findings(&Kernel::of_this_machine(), load, settings.admission.backlog);
        if settings.postgres_options().is_none() {
            findings.push(disk::finding(&settings.data_dir, load.rate));
        }
        findings.extend(services::findings(&settings));
        if self.json {
            println!(
                "{}",
                serde_json::json!({ "connections": load.connections, "rate": load.rate, "findings": findings })
            );
        } else {
            println!("for {} connections and {} messages a second\n", load.connections, load.rate);
            findings.iter().for_each(Finding::print);
            let wrong = findings.iter().filter(|finding| finding.state == State::Wrong).count();
            println!(
                "{}",
                if wrong == 0 { "fit".into() } else { format!("{wrong} of {} to be mended", findings.len()) }
            );
        }
        let is_fit = findings.iter().all(|finding| finding.state != State::Wrong);
        Ok(if is_fit { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

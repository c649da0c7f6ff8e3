//! `tidings bench` and `tidings cluster` in a program that is built without the lab: each says so, and where to get it.

use std::{ffi::OsString, process::ExitCode};

/// Not listed by `--help`. Documentation and scripts name these commands, and "unrecognized subcommand" would not tell their
/// readers what is missing.
#[derive(clap::Subcommand)]
pub(crate) enum MissingLab {
    /// Not in this program, which is built without the lab
    #[command(hide = true, disable_help_flag = true)]
    Bench(Ignored),
    /// Not in this program, which is built without the lab
    #[command(hide = true, disable_help_flag = true)]
    Cluster(Ignored),
}

#[derive(clap::Args)]
pub(crate) struct Ignored {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

impl MissingLab {
    pub(crate) fn refuse(&self) -> ExitCode {
        let command = match self {
            MissingLab::Bench(_) => "bench",
            MissingLab::Cluster(_) => "cluster",
        };
        eprintln!(
            "tidings: this program is built without the lab, which has the command `{command}`; `cargo build --release -p tidings` in \
             the sources builds a program with the lab (docs/lab.md)"
        );
        // The lab's code for wrong usage: 1 would tell a script that the server failed.
        ExitCode::from(2)
    }
}

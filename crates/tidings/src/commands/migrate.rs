//! `tidings migrate`: a data folder becomes a PostgreSQL database, with everything in it.

use crate::{file_access, settings::SettingArgs};
use anyhow::{Context, Result, bail};
use std::{
    io::Write,
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};
use tidings_store::{CopyError, CopyProgress, CopyReport, OpenError, copy_folder};

/// How often a line says how far the copy is.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Turn a data folder into a PostgreSQL database, with everything in it; `docs/operations/to-postgresql.md` has the steps
#[derive(clap::Args)]
pub(crate) struct Migrate {
    /// The data folder. Its server must be stopped; nothing in the folder is changed
    #[arg(long, value_name = "FOLDER")]
    from: PathBuf,
    /// An empty database: `postgres://user:password@host:5432/database`
    #[arg(long, value_name = "URL", env = "TIDINGS_STORE_URL", hide_env_values = true)]
    to: String,
    /// The rows of one transaction
    #[arg(long, value_name = "ROWS", default_value_t = 2_000)]
    batch_rows: usize,
    #[command(flatten)]
    settings: SettingArgs,
}

impl Migrate {
    /// Exits with 1 when the database is not the whole of the folder.
    pub(crate) fn run(self) -> Result<ExitCode> {
        file_access::keep_to_this_account();
        let settings = self.settings.load()?.with_database(self.to)?;
        let Some(options) = settings.postgres_options() else { bail!("--to is empty: name a database") };
        let began = Instant::now();
        let mut lines = ProgressLines::default();
        let copied =
            copy_folder(&self.from, &options, tidings_popups::check_popups, self.batch_rows, &mut |progress| {
                lines.print(progress);
                ControlFlow::Continue(())
            });
        match copied {
            Ok(report) => print_report(&report, began.elapsed()),
            Err(CopyError::Different(differences)) => {
                differences.iter().for_each(|difference| eprintln!("{difference}"));
                return Err(CopyError::Different(differences).into());
            }
            Err(CopyError::Folder(OpenError::Locked(folder))) => {
                return Err(OpenError::Locked(folder)).context("stop the server on the folder first");
            }
            Err(CopyError::Unsound(report)) => {
                eprint!("{report}");
                return Err(CopyError::Unsound(report).into());
            }
            // No error names the url, which holds a password.
            Err(error) => return Err(error).with_context(|| format!("migrating {}", self.from.display())),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Lines about the progress: when the last one was printed.
#[derive(Default)]
struct ProgressLines(Option<Instant>);

impl ProgressLines {
    fn print(&mut self, progress: CopyProgress) {
        match progress {
            CopyProgress::Checked { entries, users } => {
                eprintln!("the folder is sound: {entries} entries, {users} users");
            }
            CopyProgress::Resumed => eprintln!("an earlier attempt has copied a part: going on behind it"),
            CopyProgress::Copied { rows } => self.count("copied", rows),
            CopyProgress::Compared { rows } => self.count("compared", rows),
        }
    }

    fn count(&mut self, what: &str, rows: u64) {
        if self.0.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) {
            self.0 = Some(Instant::now());
            eprintln!("{what}: {rows} rows");
        }
    }
}

fn print_report(report: &CopyReport, took: Duration) {
    let mut text = String::new();
    if report.was_complete() {
        text.push_str(
            "the database was made of this folder by an earlier migration, which is complete: nothing was done\n",
        );
    } else {
        for (table, rows) in &report.tables {
            text.push_str(&format!("{table:<24}{rows:>12} rows\n"));
        }
        let seconds = took.as_secs_f64();
        text.push_str(&format!("\nevery row was read back and is as in the folder ({seconds:.1} s)\n"));
        text.push_str(&format!("epoch {}, position {}: the cursors of clients go on\n", report.epoch, report.position));
    }
    text.push_str(
        "\nnext:\n\
         1. set the database in the settings: [store] url, or TIDINGS_STORE_URL. Of [store], memtable_bytes, journal_bytes,\n   \
            cache_bytes and disk_reserve_bytes have no effect any more\n\
         2. start the server, and look at /readyz\n\
         3. keep the folder until you trust the database, and start no server on it again: its clients' cursors are those of\n   \
            the database now. Backups are PostgreSQL's from here on: `tidings backup` is for folders\n",
    );
    // Who closes standard output early has seen enough; the exit status says the rest.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

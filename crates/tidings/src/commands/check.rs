//! `tidings check`: verifies a data folder. Without `--repair` nothing in the folder is changed.

mod erased;

use crate::{file_access, settings::SettingArgs};
use anyhow::Result;
use erased::Subject;
use std::{path::PathBuf, process::ExitCode};
use tidings_store::RepairReport;

#[derive(clap::Args)]
pub(crate) struct Check {
    /// The data folder; by default the configured one. Its server must be stopped
    folder: Option<PathBuf>,
    /// Repair a damaged folder: keep what is readable, and list exactly what is lost. Restore a backup instead if there is one
    #[arg(long)]
    repair: bool,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Look for what is left of a user who was erased, by the id that the user had: in a folder, or in the database of the settings. Exits
    /// with 1 if something is left
    #[arg(long, value_name = "USER", conflicts_with = "repair")]
    erased: Option<String>,
    /// The same of a conversation that was deleted, by the id that it had
    #[arg(long, value_name = "CONVERSATION", conflicts_with_all = ["repair", "erased"])]
    deleted: Option<String>,
    /// With --erased or --deleted: have the files lose the bytes of rows that were removed, now instead of after `messages.purge_after_hours`
    #[arg(long)]
    purge: bool,
    #[command(flatten)]
    settings: SettingArgs,
}

impl Check {
    /// Exits with 1 when the folder is not sound.
    pub(crate) fn run(self) -> Result<ExitCode> {
        file_access::keep_to_this_account();
        let subject = self.erased.map(Subject::User).or(self.deleted.map(Subject::Conversation));
        if let Some(subject) = subject {
            return erased::check(self.folder, &self.settings, &subject, self.purge, self.json);
        }
        if self.purge {
            anyhow::bail!("--purge needs --erased or --deleted");
        }
        let folder = match self.folder {
            Some(folder) => folder,
            None => {
                let settings = self.settings.load()?;
                settings.needs_folder("check", "Look into the database with PostgreSQL's own tools: pg_amcheck.")?;
                settings.data_dir
            }
        };
        let repair = if self.repair { Some(tidings_store::repair(&folder)?) } else { None };
        let report = tidings_store::check::check(&folder, tidings_popups::check_popups)?;
        if self.json {
            let RepairReport {
                repaired,
                lost,
                messages_lost,
                untold,
                batches_lost,
                retries_forgotten,
                read_marks_set_back,
            } = repair.unwrap_or_default();
            let found = serde_json::json!({
                "sound": report.is_sound(),
                "repaired": repaired,
                "lost": lost,
                "messages_lost": messages_lost,
                "untold": untold,
                "batches_lost": batches_lost,
                "retries_forgotten": retries_forgotten,
                "read_marks_set_back": read_marks_set_back,
                "report": report,
            });
            println!("{found}");
        } else {
            if let Some(repair) = &repair {
                tell(repair);
            }
            print!("{report}");
            println!("{}", if report.is_sound() { "sound" } else { "NOT SOUND" });
        }
        Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn tell(repair: &RepairReport) {
    for mended in &repair.repaired {
        println!("{}: {}", mended.file, mended.done);
    }
    for lost in &repair.lost {
        println!("{lost}");
    }
    for journal in &repair.untold {
        println!(
            "{journal}: its record of acknowledged batches is gone or damaged too: messages may be lost that are not listed here"
        );
    }
    let RepairReport { messages_lost, batches_lost, retries_forgotten, read_marks_set_back, .. } = repair;
    if repair.repaired.is_empty() {
        println!("nothing to repair");
    } else {
        println!(
            "lost: {messages_lost} messages, {batches_lost} batches; {retries_forgotten} retries forgotten, \
             {read_marks_set_back} read marks set back"
        )
    }
}

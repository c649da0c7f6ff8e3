//! `tidings check --erased USER` and `--deleted CONVERSATION`: what is left of a user or a conversation, and until when.

use crate::{open_store, settings::SettingArgs};
use anyhow::{Context, Result, bail};
use std::{path::PathBuf, process::ExitCode, sync::Arc};
use tidings_domain::store::Store;
use tidings_engine::engine::erasure::leftovers::{Leftovers, leftovers, leftovers_of_conversation};
use tidings_store::{EmbeddedOptions, EmbeddedStore};

/// Of whom or what nothing is to be left, by the former id.
pub(super) enum Subject {
    User(String),
    Conversation(String),
}

impl Subject {
    fn kind_and_id(&self) -> (&'static str, &str) {
        match self {
            Subject::User(id) => ("user", id),
            Subject::Conversation(id) => ("conversation", id),
        }
    }
}

pub(super) fn check(
    folder: Option<PathBuf>,
    settings: &SettingArgs,
    subject: &Subject,
    purge: bool,
    json: bool,
) -> Result<ExitCode> {
    let settings = settings.load()?;
    let is_database = folder.is_none() && settings.postgres_options().is_some();
    let store: Arc<dyn Store> = match folder {
        Some(folder) if !folder.is_dir() => bail!("there is no folder {}", folder.display()),
        Some(folder) => {
            let store = EmbeddedStore::open(EmbeddedOptions::new(&folder));
            Arc::new(store.with_context(|| format!("opening {}", folder.display()))?)
        }
        None => open_store::open(&settings)?.store,
    };
    let left = match subject {
        Subject::User(id) => leftovers(&*store, id)?,
        Subject::Conversation(id) => leftovers_of_conversation(&*store, id)?,
    };
    let (kind, id) = subject.kind_and_id();
    if purge {
        store.purge()?;
    }
    if json {
        let found = serde_json::json!({ kind: id, "clean": left.is_clean(), "purged": purge, "left": left });
        println!("{found}");
    } else {
        tell((kind, id), &left, purge, is_database, (settings.messages.purge_after_hours, settings.events.keep_days));
    }
    Ok(if left.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn time(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| ms.to_string(), |time| time.to_string())
}

fn tell((kind, id): (&str, &str), left: &Leftovers, purged: bool, is_database: bool, (purge_h, keep_days): (u64, u64)) {
    const HOUR_MS: u64 = 60 * 60 * 1_000;
    println!("examined {} rows and entries", left.examined);
    match (left.erased, left.ended_at) {
        (true, ended_at) => println!("erased {kind} {id:?}: done at {}", time(ended_at.unwrap_or(0))),
        (false, _) => println!("no erasure of {kind} {id:?} is done"),
    }
    if left.id_in_use {
        println!("note: a {kind} has the id {id:?} now; what names it may be of that one");
    }
    println!("left: {}", left.count);
    left.found.iter().for_each(|found| println!("  {found}"));
    if left.log_records > 0 {
        let until = left.log_newest_at.unwrap_or(0).saturating_add(keep_days * 24 * HOUR_MS);
        println!(
            "the feed's log names the user in {} records until {}: a shorter [events] keep_days hastens it",
            left.log_records,
            time(until)
        );
    }
    if left.id_kept_for_feed {
        let until = left.ended_at.unwrap_or(0).saturating_add(keep_days * 24 * HOUR_MS);
        println!(
            "the erasure keeps the id for the feed's event until {}: a shorter [events] keep_days hastens it",
            time(until)
        );
    }
    if purged {
        println!("the files were purged");
    } else if let Some(since) = left.unpurged_since {
        match purge_h {
            0 => println!(
                "freed bytes stay until the engine merges their tables: messages.purge_after_hours is 0; --purge removes them"
            ),
            hours => println!(
                "freed bytes are in the files until about {}: --purge removes them now",
                time(since + hours * HOUR_MS)
            ),
        }
    }
    if is_database {
        println!(
            "freed pages keep bytes until they are used again: VACUUM FULL removes them; the write-ahead log until its segments are recycled"
        );
    }
    println!("backups from before keep what they have: delete them, or erase again after a restore");
    println!("{}", if left.is_clean() { "CLEAN" } else { "NOT CLEAN" });
}

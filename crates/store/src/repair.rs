//! Going on with what is left of a damaged folder, and telling what is lost.
//!
//! The files come first: what the engine would stumble over is set aside or cut. Then the engine empties its journals
//! into tables, so that nothing depends on what was cut. Then rows that name what is lost are mended, and told.

use crate::{
    acknowledged::Acknowledged,
    embedded::{EmbeddedOptions, EmbeddedStore, OpenError},
    fjall_kv::FjallKv,
    folder::{Folder, sync_folder, write_durably},
    inspect::{ENGINE_VERSION, ENGINE_VERSION_BYTES, Findings, inspect},
    journal::{self, Before},
    lost,
    open::open_error,
    problem::{Damage, Problem, Remedy},
    repair_tables, tables,
};
use std::{fs, path::Path};

pub use crate::lost::LostSeqs;

/// What a repair did to one file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Repaired {
    pub file: String,
    pub done: String,
    /// Where a journal was cut.
    pub at: u64,
    pub bytes_dropped: u64,
    /// Whole batches among what was dropped: they had been acknowledged.
    pub batches_dropped: usize,
}

impl Repaired {
    fn file(file: String, done: impl Into<String>) -> Self {
        Repaired { file, done: done.into(), at: 0, bytes_dropped: 0, batches_dropped: 0 }
    }
}

/// What a repair did, and what is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Repair {
    pub repaired: Vec<Repaired>,
    /// Batches that were acknowledged and are gone, as far as notes tell.
    pub batches_lost: u64,
    /// Which conversations lost which sequences.
    pub lost: Vec<LostSeqs>,
    pub messages_lost: u64,
    /// Journals that lost something and have no notes, or damaged ones: what else was in them nothing tells.
    pub untold: Vec<String>,
    /// Rows that named what is lost: a retry of such a message is stored again, a read mark is set back.
    pub retries_forgotten: u64,
    pub read_marks_set_back: u64,
}

/// The way out when `open` refuses: goes on with what is left, and tells what is not. If anything was lost the store
/// gets a new epoch: positions will be given out again, and a cursor from before must not be trusted.
pub fn repair(path: &Path) -> Result<Repair, OpenError> {
    let folder = Folder::take_as_it_is(path)?;
    let mut repair = Repair::default();
    mend_format(&folder, &mut repair)?;
    let mut found = inspect(&folder)?;
    for table in found.tables().cloned().collect::<Vec<_>>() {
        if let Err(problem) = tables::verify(&table)
            && found.problems.iter().all(|known| known.file != problem.file)
        {
            found.problems.push(problem);
        }
    }
    let hopeless: Vec<Problem> = found.problems.iter().filter(|p| p.remedy == Remedy::Restore).cloned().collect();
    if !hopeless.is_empty() {
        return Err(OpenError::Damaged(Damage(hopeless)));
    }
    let torn = found.journals.iter().any(|journal| journal.scan.is_damaged());
    if found.is_unfinished || found.problems.is_empty() && !torn {
        return Ok(repair);
    }
    // Asked for already: an earlier repair did not come to its end.
    let loses =
        folder.is_new_epoch_asked() || torn || found.problems.iter().any(|problem| problem.remedy == Remedy::Lose);
    if loses {
        // First, so that a repair that is cut short leaves no store whose cursors are trusted.
        folder.ask_new_epoch()?;
    }
    mend_files(&folder, &found, &mut repair)?;
    cut_journals(&folder, &found, &mut repair)?;
    repair.untold = untold(&folder, &found, &repair);
    let kept = empty_journals(&folder)?;
    // What must be there is what is there now: written anew when the store opens.
    folder.forget_what_must_be_there()?;
    folder.remove_closed_mark()?;
    let expected = std::mem::take(&mut found.acknowledged);
    repair.batches_lost = expected.ordinal.saturating_sub(kept);
    drop(folder);
    tell_what_is_lost(path, &expected, loses, &mut repair)?;
    Ok(repair)
}

fn mend_format(folder: &Folder, repair: &mut Repair) -> Result<(), OpenError> {
    match folder.check_format() {
        Err(OpenError::Damaged(_)) => {
            folder.write_format_anew()?;
            repair.repaired.push(Repaired::file("format".into(), "written anew"));
            Ok(())
        }
        other => other,
    }
}

/// All but the journals.
fn mend_files(folder: &Folder, found: &Findings, repair: &mut Repair) -> Result<(), OpenError> {
    let engine = folder.engine_path();
    for stray in &found.strays {
        let aside = folder.set_aside(stray)?;
        let done = format!("set aside as {}", aside.display());
        repair.repaired.push(Repaired::file(tables::file_name(stray), done));
    }
    let marker = engine.join(ENGINE_VERSION);
    if fs::read(&marker).ok().as_deref() != Some(ENGINE_VERSION_BYTES) {
        write_durably(&marker, ENGINE_VERSION_BYTES)?;
        repair.repaired.push(Repaired::file(tables::file_name(&marker), "written anew"));
    }
    for space in tables::spaces(&engine)? {
        let mended = repair_tables::mend_space(folder, space)?;
        repair.repaired.extend(mended.into_iter().map(|(file, done)| Repaired::file(file, done)));
    }
    Ok(())
}

/// Cuts every journal at its first damage, whatever was acknowledged after it.
fn cut_journals(folder: &Folder, found: &Findings, repair: &mut Repair) -> Result<(), OpenError> {
    let engine = folder.engine_path();
    let mut before = Before::default();
    for path in journal::journals(&engine)? {
        let bytes = journal::read_written(&path)?;
        // The journal before may lack its end: that is told of it.
        before.ordinal = None;
        let scan = journal::scan(&bytes, &mut before);
        if scan.is_damaged() {
            journal::cut(folder, &path, &bytes, scan.whole)?;
            let (file, at) = (tables::file_name(&path), scan.whole as u64);
            let (bytes_dropped, batches_dropped) = ((bytes.len() - scan.whole) as u64, scan.later);
            let done = format!("cut at byte {at}: {bytes_dropped} bytes went, with {batches_dropped} whole batches");
            repair.repaired.push(Repaired { file, done, at, bytes_dropped, batches_dropped });
        }
    }
    // What is short or missing cannot be made longer; it is named all the same.
    for problem in found.problems.iter().filter(|p| p.file.ends_with(".jnl") && p.remedy == Remedy::Lose) {
        if repair.repaired.iter().all(|cut| cut.file != problem.file) {
            let done = format!("gone on without: {}", problem.what);
            repair.repaired.push(Repaired::file(problem.file.clone(), done));
        }
    }
    if let Some(problem) = found.problems.iter().find(|problem| problem.file == crate::manifest::MANIFEST) {
        repair.repaired.push(Repaired::file(problem.file.clone(), "written anew"));
    }
    Ok(())
}

/// Journals that lost batches which no notes tell of.
fn untold(folder: &Folder, found: &Findings, repair: &Repair) -> Vec<String> {
    let is_told = |name: &str| {
        let notes = journal::number_in(Path::new(name), "", ".jnl").map(|number| format!("acknowledged-{number}"));
        notes.is_some_and(|notes| folder.path.join(&notes).exists() && !found.acknowledged.damaged.contains(&notes))
    };
    let journals = repair.repaired.iter().map(|mended| mended.file.clone()).filter(|file| file.ends_with(".jnl"));
    let lost =
        |file: &String| found.problems.iter().any(|problem| problem.file == *file && problem.remedy == Remedy::Lose);
    journals.filter(|file| lost(file) && !is_told(file)).collect()
}

/// Has the engine put into tables what is in its journals, and leaves it one empty journal. Answers the newest batch.
fn empty_journals(folder: &Folder) -> Result<u64, OpenError> {
    let engine = folder.engine_path();
    // Without one it would begin to number its batches anew.
    if journal::journals(&engine)?.is_empty() {
        let next =
            crate::manifest::Manifest::read(&folder.path).ok().flatten().and_then(|m| m.journals.last().cloned());
        write_durably(&engine.join(format!("{}.jnl", next.map_or(1, |record| record.number + 1))), b"")?;
    }
    let kv = FjallKv::open(&engine, EmbeddedOptions::new(&folder.path).sizes()).map_err(open_error)?;
    kv.empty_journals().map_err(open_error)?;
    let newest = kv.last_batch();
    drop(kv);
    let mut journals = journal::journals(&engine)?;
    if let Some(last) = journals.pop() {
        write_durably(&last, b"")?;
    }
    journals.iter().try_for_each(fs::remove_file)?;
    sync_folder(&engine)?;
    Ok(newest)
}

fn tell_what_is_lost(path: &Path, expected: &Acknowledged, loses: bool, repair: &mut Repair) -> Result<(), OpenError> {
    let store = EmbeddedStore::open(EmbeddedOptions { disk_reserve_bytes: 0, ..EmbeddedOptions::new(path) })?;
    if loses {
        let engine = |error: tidings_engine::store::StoreError| OpenError::Engine(error.to_string());
        let found = lost::find(&store, expected).map_err(engine)?;
        lost::mend(&store, &found).map_err(engine)?;
        repair.messages_lost = found.seqs.iter().map(LostSeqs::count).sum();
        repair.retries_forgotten = found.retries.len() as u64;
        repair.read_marks_set_back = found.read_marks.len() as u64;
        repair.lost = found.seqs;
    }
    Ok(())
}

//! Repairing a damaged data folder: keeping what can still be read, and reporting what is lost.
//!
//! 1. Files with which the engine would not open are set aside, cut or written anew.
//! 2. The engine opens and empties its journals into tables, so that nothing depends on a cut journal.
//! 3. Rows that refer to lost entries are mended, and the losses are reported.

use crate::{
    ack_log::AckedState,
    damage::{DamageReport, FileFault, Remedy},
    embedded::EmbeddedStore,
    errors::{OpenError, open_error},
    files::{number_in, sync_folder, write_durably},
    fjall_kv::{ENGINE_VERSION, ENGINE_VERSION_BYTES, FjallKv},
    folder::Folder,
    inspect::{Inspection, inspect},
    journal::{self, PreviousBatch},
    losses,
    options::EmbeddedOptions,
    repair_tables, tables,
};
use std::{fs, path::Path};

pub use crate::losses::LostSeqs;

/// What a repair did with one file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RepairedFile {
    pub file: String,
    pub done: String,
    /// The byte at which a journal was cut.
    pub at: u64,
    pub bytes_dropped: u64,
    /// Whole batches in the dropped bytes: they had been acknowledged.
    pub batches_dropped: usize,
}

impl RepairedFile {
    fn file(file: String, done: impl Into<String>) -> Self {
        RepairedFile { file, done: done.into(), at: 0, bytes_dropped: 0, batches_dropped: 0 }
    }
}

/// What a repair did, and which data is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct RepairReport {
    pub repaired: Vec<RepairedFile>,
    /// Acknowledged batches that are gone, as far as the acknowledgement logs show.
    pub batches_lost: u64,
    /// The lost sequences of each conversation.
    pub lost: Vec<LostSeqs>,
    pub messages_lost: u64,
    /// Journals that lost batches and whose acknowledgement log is missing or damaged too: they may have held more than is
    /// reported.
    pub untold: Vec<String>,
    /// Dedupe rows of lost messages that were removed: a retry of such a message is stored again.
    pub retries_forgotten: u64,
    /// Read marks beyond a conversation's last entry that were set back to it.
    pub read_marks_set_back: u64,
}

/// Repairs a folder that [`EmbeddedStore::open`] refuses: keeps what can still be read and reports the rest as lost. If
/// anything is lost the store gets a new epoch: positions will be given out again, and no older cursor may be trusted.
///
/// # Errors
/// - [`OpenError::Damaged`]: only a backup can help; no file was repaired, except that a damaged `format` is written anew;
/// - [`OpenError::Locked`], [`OpenError::Format`]: as for [`EmbeddedStore::open`]; nothing was changed;
/// - [`OpenError::Engine`], [`OpenError::Io`]: the repair was interrupted and may be called again.
pub fn repair(path: &Path) -> Result<RepairReport, OpenError> {
    let folder = Folder::lock_any_format(path)?;
    let mut repair = RepairReport::default();
    repair_format(&folder, &mut repair)?;
    let mut found = inspect(&folder)?;
    for table in found.tables().cloned().collect::<Vec<_>>() {
        if let Err(fault) = tables::verify(&table)
            && found.faults.iter().all(|known| known.file != fault.file)
        {
            found.faults.push(fault);
        }
    }
    let hopeless: Vec<FileFault> =
        found.faults.iter().filter(|fault| fault.remedy == Remedy::RestoreBackup).cloned().collect();
    if !hopeless.is_empty() {
        return Err(OpenError::Damaged(DamageReport(hopeless)));
    }
    let torn = found.journals.iter().any(|journal| journal.scan.is_damaged());
    // A requested epoch means that a lossy repair was interrupted: its files may be sound, its rows not yet.
    if found.is_unfinished || found.faults.is_empty() && !torn && !folder.is_new_epoch_requested() {
        return Ok(repair);
    }
    // A new epoch may be requested already: then an earlier repair was interrupted.
    let is_lossy =
        folder.is_new_epoch_requested() || torn || found.faults.iter().any(|fault| fault.remedy == Remedy::LossyRepair);
    if is_lossy {
        // First: a repair that is interrupted must not leave a store that trusts its old cursors.
        folder.request_new_epoch()?;
    }
    repair_files(&folder, &found, &mut repair)?;
    cut_journals(&folder, &found, &mut repair)?;
    repair.untold = journals_without_ack_log(&folder, &found, &repair);
    let newest_batch = flush_journals(&folder)?;
    // From now on the files that are there are the ones that must be there: the open below writes them down.
    folder.remove_expectations()?;
    folder.remove_clean_shutdown()?;
    let acked = std::mem::take(&mut found.acked);
    repair.batches_lost = acked.ordinal.saturating_sub(newest_batch);
    drop(folder);
    if is_lossy {
        mend_rows(path, &acked, &mut repair)?;
    } else {
        drop(open_without_reserve(path)?);
    }
    Ok(repair)
}

fn open_without_reserve(path: &Path) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::open(EmbeddedOptions { disk_reserve_bytes: 0, ..EmbeddedOptions::new(path) })
}

fn repair_format(folder: &Folder, repair: &mut RepairReport) -> Result<(), OpenError> {
    match folder.check_format() {
        Err(OpenError::Damaged(_)) => {
            folder.rewrite_format()?;
            repair.repaired.push(RepairedFile::file("format".into(), "written anew"));
            Ok(())
        }
        other => other,
    }
}

/// Repairs all files but the journals.
fn repair_files(folder: &Folder, found: &Inspection, repair: &mut RepairReport) -> Result<(), OpenError> {
    let engine = folder.engine_path();
    for stray in &found.strays {
        let aside = folder.set_aside(stray)?;
        let done = format!("set aside as {}", aside.display());
        repair.repaired.push(RepairedFile::file(tables::file_name(stray), done));
    }
    let marker = engine.join(ENGINE_VERSION);
    if fs::read(&marker).ok().as_deref() != Some(ENGINE_VERSION_BYTES) {
        write_durably(&marker, ENGINE_VERSION_BYTES)?;
        repair.repaired.push(RepairedFile::file(tables::file_name(&marker), "written anew"));
    }
    for space in tables::spaces(&engine)? {
        let done = repair_tables::repair_space(folder, space)?;
        repair.repaired.extend(done.into_iter().map(|(file, done)| RepairedFile::file(file, done)));
    }
    Ok(())
}

/// Cuts every journal at its first damage, also if acknowledged batches follow.
fn cut_journals(folder: &Folder, found: &Inspection, repair: &mut RepairReport) -> Result<(), OpenError> {
    let engine = folder.engine_path();
    let mut previous = PreviousBatch::default();
    for path in journal::journals(&engine)? {
        let bytes = journal::read_written(&path)?;
        // The journal before may lack its end, which is reported for that journal.
        previous.ordinal = None;
        let scan = journal::scan(&bytes, &mut previous);
        if scan.is_damaged() {
            journal::cut(folder, &path, &bytes, scan.whole_bytes)?;
            let (file, at) = (tables::file_name(&path), scan.whole_bytes as u64);
            let (bytes_dropped, batches_dropped) = ((bytes.len() - scan.whole_bytes) as u64, scan.later_batches);
            let done = format!(
                "cut at byte {at}: {bytes_dropped} bytes dropped, with {batches_dropped} whole batches in them"
            );
            repair.repaired.push(RepairedFile { file, done, at, bytes_dropped, batches_dropped });
        }
    }
    // A journal that is too short or missing cannot be repaired, but it belongs in the report.
    for fault in found.faults.iter().filter(|p| p.file.ends_with(".jnl") && p.remedy == Remedy::LossyRepair) {
        if repair.repaired.iter().all(|cut| cut.file != fault.file) {
            let done = format!("not repaired; the store goes on without the lost batches: {}", fault.what);
            repair.repaired.push(RepairedFile::file(fault.file.clone(), done));
        }
    }
    if let Some(fault) = found.faults.iter().find(|fault| fault.file == crate::manifest::MANIFEST) {
        repair.repaired.push(RepairedFile::file(fault.file.clone(), "written anew"));
    }
    Ok(())
}

/// Journals that lost batches and have no whole acknowledgement log.
fn journals_without_ack_log(folder: &Folder, found: &Inspection, repair: &RepairReport) -> Vec<String> {
    let has_ack_log = |name: &str| {
        let log = number_in(Path::new(name), "", ".jnl").map(|number| format!("acknowledged-{number}"));
        log.is_some_and(|log| folder.path.join(&log).exists() && !found.acked.damaged.contains(&log))
    };
    let journals = repair.repaired.iter().map(|repaired| repaired.file.clone()).filter(|file| file.ends_with(".jnl"));
    let lost =
        |file: &String| found.faults.iter().any(|fault| fault.file == *file && fault.remedy == Remedy::LossyRepair);
    journals.filter(|file| lost(file) && !has_ack_log(file)).collect()
}

/// Has the engine empty its journals into tables, and leaves it one empty journal. Answers the newest batch's ordinal.
fn flush_journals(folder: &Folder) -> Result<u64, OpenError> {
    let engine = folder.engine_path();
    // Without a journal the engine would begin to number its journals anew.
    if journal::journals(&engine)?.is_empty() {
        let next =
            crate::manifest::Manifest::read(&folder.path).ok().flatten().and_then(|m| m.journals.last().cloned());
        write_durably(&engine.join(format!("{}.jnl", next.map_or(1, |record| record.number + 1))), b"")?;
    }
    let kv = FjallKv::open(&engine, EmbeddedOptions::new(&folder.path).sizes()).map_err(open_error)?;
    kv.flush_memtables().map_err(open_error)?;
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

/// Opens the store, mends the rows that refer to lost entries, and reports the losses.
fn mend_rows(path: &Path, acked: &AckedState, repair: &mut RepairReport) -> Result<(), OpenError> {
    let store = open_without_reserve(path)?;
    let engine = |error: tidings_domain::store::StoreError| OpenError::Engine(error.to_string());
    let losses = losses::find(&store, acked).map_err(engine)?;
    losses::mend_rows(&store, &losses).map_err(engine)?;
    repair.messages_lost = losses.seqs.iter().map(LostSeqs::count).sum();
    repair.retries_forgotten = losses.dedupe_keys.len() as u64;
    repair.read_marks_set_back = losses.read_marks.len() as u64;
    repair.lost = losses.seqs;
    Ok(())
}

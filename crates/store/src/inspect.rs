//! Inspects a data folder before the engine opens it: does it hold everything that was acknowledged?
//!
//! Four witnesses are compared, and none is trusted about itself: the journals (their batches have ordinals with no hole),
//! the tables (each has the seqno of its newest batch), the [`Manifest`] (which files must be there; fsynced) and the
//! acknowledgement logs, [`AckedState`] (not fsynced, so they may end early, never late).

use crate::{
    ack_log::{self, AckedState},
    damage::{DamageReport, FileFault, Remedy},
    errors::OpenError,
    files::{name_of, number_in},
    fjall_kv::{ENGINE_VERSION, ENGINE_VERSION_BYTES},
    folder::{CleanShutdown, Folder},
    journal::{self, PreviousBatch, Scan},
    manifest::{MANIFEST, Manifest},
    tables::{self, SpaceFiles, file_name},
};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// A journal in the engine's folder.
#[derive(Debug)]
pub(crate) struct Journal {
    pub number: u64,
    pub path: PathBuf,
    pub scan: Scan,
}

/// What an inspection of a folder found.
#[derive(Debug, Default)]
pub(crate) struct Inspection {
    pub manifest: Manifest,
    pub journals: Vec<Journal>,
    /// By the engine's id of the space.
    pub spaces: BTreeMap<u64, SpaceFiles>,
    pub acked: AckedState,
    pub faults: Vec<FileFault>,
    /// Files of others in the engine's folder, over which the engine would fail to open.
    pub strays: Vec<PathBuf>,
    /// The numbers of journals that must be there and are not.
    pub missing_journals: Vec<u64>,
    /// The engine was never completely created: no write to it was ever acknowledged.
    pub is_unfinished: bool,
}

impl Inspection {
    /// # Errors
    /// There are faults: acknowledged data may be missing, and the folder must not be opened.
    pub(crate) fn refuse_faults(&self) -> Result<(), OpenError> {
        if self.faults.is_empty() { Ok(()) } else { Err(OpenError::Damaged(DamageReport(self.faults.clone()))) }
    }

    fn fault(&mut self, path: &Path, what: impl Into<String>, remedy: Remedy) {
        self.faults.push(FileFault { file: file_name(path), what: what.into(), remedy });
    }

    /// The tables of all spaces.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &tables::Table> {
        self.spaces.values().flat_map(|space| &space.tables)
    }
}

/// Inspects the files of a folder; changes nothing.
pub(crate) fn inspect(folder: &Folder) -> io::Result<Inspection> {
    let engine = folder.engine_path();
    let mut found = Inspection { acked: ack_log::read(&folder.path)?, ..Inspection::default() };
    let mut has_manifest = false;
    match Manifest::read(&folder.path) {
        Ok(Some(manifest)) => (found.manifest, has_manifest) = (manifest, true),
        Ok(None) if folder.has_manifest() => {
            let what = "the file is missing, so it is not known which files must be there";
            found.fault(Path::new(MANIFEST), what, Remedy::LosslessRepair);
        }
        Ok(None) => {}
        Err(fault) => found.faults.push(fault),
    }
    let is_unfinished = has_manifest && !found.manifest.is_finished();
    if is_unfinished && holds_batches(&engine, &found.acked)? {
        // The manifest of a new store was put back. If it were believed, the store would be created anew.
        found.fault(
            Path::new(MANIFEST),
            "the manifest names no journal, yet there are batches",
            Remedy::LosslessRepair,
        );
        has_manifest = false;
    } else if is_unfinished || !has_manifest && !engine.exists() {
        found.is_unfinished = true;
        return Ok(found);
    }
    if !engine.exists() {
        found.fault(&engine, "the folder of the storage engine is missing", Remedy::RestoreBackup);
        return Ok(found);
    }
    let marker = engine.join(ENGINE_VERSION);
    if fs::read(&marker).ok().as_deref() != Some(ENGINE_VERSION_BYTES) {
        let what = "the file is missing or does not name the storage engine's format";
        found.fault(&marker, what, Remedy::LosslessRepair);
    }
    inspect_spaces(&engine, has_manifest, &mut found)?;
    inspect_journals(folder, has_manifest, &mut found)?;
    if has_manifest {
        compare_witnesses(&engine, &mut found);
    }
    Ok(found)
}

/// Whether anything was ever written to the engine.
fn holds_batches(engine: &Path, acked: &AckedState) -> io::Result<bool> {
    if acked.ordinal > 0 {
        return Ok(true);
    }
    for path in journal::journals(engine)? {
        if !journal::read_written(&path)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn inspect_spaces(engine: &Path, has_manifest: bool, found: &mut Inspection) -> io::Result<()> {
    let folder = tables::spaces_folder(engine);
    let there = tables::spaces(engine)?;
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_none_or(|name| name.parse::<u64>().is_err()) {
            found.fault(&entry.path(), "the file is not one of the engine's folders (a copy?)", Remedy::LosslessRepair);
            found.strays.push(entry.path());
        }
    }
    // A space that the manifest does not name was being created when the process ended; the engine creates it again.
    let expected = if has_manifest { found.manifest.spaces.clone() } else { there.clone() };
    for space in expected {
        if there.contains(&space) {
            let files = tables::inspect_space(engine, space, &mut found.faults, &mut found.strays);
            found.spaces.insert(space, files);
        } else {
            found.fault(&folder.join(space.to_string()), "the folder is missing", Remedy::RestoreBackup);
        }
    }
    Ok(())
}

/// Lists the engine's journals by number, and records stray files among them.
fn list_journals(engine: &Path, has_manifest: bool, found: &mut Inspection) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut listed = Vec::new();
    for entry in fs::read_dir(engine)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("jnl")) {
            continue;
        }
        match number_in(&path, "", ".jnl").filter(|number| name_of(&path) == format!("{number}.jnl")) {
            Some(number) => listed.push((number, path)),
            None => {
                found.fault(&path, "the file is not one of the engine's journals (a copy?)", Remedy::LosslessRepair);
                found.strays.push(path);
            }
        }
    }
    listed.sort();
    if let (true, Some(oldest)) = (has_manifest, found.manifest.journals.first()) {
        let oldest = oldest.number;
        for (_, path) in listed.extract_if(.., |(number, _)| *number < oldest) {
            found.fault(&path, "the manifest does not name this journal any more (a copy?)", Remedy::LosslessRepair);
            found.strays.push(path);
        }
    }
    Ok(listed)
}

fn inspect_journals(folder: &Folder, has_manifest: bool, found: &mut Inspection) -> io::Result<()> {
    let engine = folder.engine_path();
    let clean_shutdown = folder.clean_shutdown();
    let listed = list_journals(&engine, has_manifest, found)?;
    let newest_named = found.manifest.journals.last().map(|record| record.number);
    let newest = listed.last().map(|(number, _)| *number);
    let mut previous_batch = PreviousBatch::default();
    let mut previous_number: Option<u64> = None;
    for (number, path) in listed {
        let scan = journal::scan(&journal::read_written(&path)?, &mut previous_batch);
        // No batch was acknowledged that is in a journal that the manifest does not name.
        let is_unnamed = has_manifest && newest_named.is_none_or(|named| number > named);
        let is_next = previous_number.is_none_or(|previous| number == previous + 1);
        previous_number = Some(number);
        if is_unnamed && (!is_next || scan.whole_bytes == 0 && scan.later_batches > 0) {
            let what = "none of its batches follows the batches of the other journals: it is a copy";
            found.fault(&path, what, Remedy::LosslessRepair);
            found.strays.push(path);
            continue;
        }
        if !is_next {
            let missing = engine.join(format!("{}.jnl", number - 1));
            found.fault(&missing, "the journal is missing", Remedy::LossyRepair);
        }
        if let Some(why) = why_damage_is_loss(&scan, Some(number) == newest, clean_shutdown.as_ref()) {
            let what = format!("the journal is damaged at byte {} and {why}", scan.whole_bytes);
            found.fault(&path, what, Remedy::LossyRepair);
        }
        found.journals.push(Journal { number, path, scan });
    }
    for (name, length) in clean_shutdown.map_or(vec![], |marker| marker.journals) {
        let path = engine.join(&name);
        let there = if path.exists() { journal::read_written(&path)?.len() as u64 } else { 0 };
        if there < length && !found.faults.iter().any(|fault| fault.file == file_name(&path)) {
            let what = format!("the journal has {there} of the {length} bytes that it had when the store was closed");
            found.fault(&path, what, Remedy::LossyRepair);
        }
    }
    Ok(())
}

/// Why the damaged bytes of a journal must have been acknowledged. `None`: they are the torn end that a crash leaves.
fn why_damage_is_loss(scan: &Scan, is_newest: bool, clean_shutdown: Option<&CleanShutdown>) -> Option<String> {
    match (scan.is_damaged(), is_newest, scan.later_batches, clean_shutdown) {
        (false, ..) => None,
        (_, false, ..) => Some("it is not the newest journal: every batch in it was acknowledged".into()),
        (.., later @ 1.., _) => Some(format!("{later} whole batches follow: the damaged bytes were acknowledged")),
        (.., Some(_)) => Some("the store was shut down cleanly: every batch in it was acknowledged".into()),
        (.., None) => None,
    }
}

/// Compares the files that are there with what the manifest and the acknowledgement logs say must be there.
fn compare_witnesses(engine: &Path, found: &mut Inspection) {
    let Inspection { manifest, journals, spaces, acked, .. } = &*found;
    let path = |number: u64| engine.join(format!("{number}.jnl"));
    let in_tables = |space: &u64| spaces.get(space).and_then(|files| files.newest_seqno).unwrap_or(0);
    let in_journals = |space: &u64| journals.iter().rev().find_map(|j| j.scan.last_seqnos.get(space).copied());
    let newest = journals.last();
    let mut faults = Vec::new();
    let mut missing = Vec::new();
    // 1. If a journal is gone, it was emptied into tables: the tables hold all its batches.
    for record in &manifest.journals {
        let there = journals.iter().find(|journal| journal.number == record.number);
        let logged = acked.journals.get(&record.number);
        let last_seqnos: Vec<_> = record.last_numbers.iter().chain(logged.into_iter().flatten()).collect();
        match there {
            None => {
                let has_successor = newest.is_some_and(|newest| newest.number > record.number);
                let is_unemptied = last_seqnos.iter().any(|(space, seqno)| in_tables(space) < **seqno);
                if !has_successor || is_unemptied {
                    missing.push(record.number);
                    faults.push((path(record.number), "the journal is missing".to_owned()));
                }
            }
            // 2. A journal that has a successor ends with its last batch.
            Some(journal) if record.last_batch > journal.scan.last_batch => {
                let (last, has) = (record.last_batch.unwrap_or(0), journal.scan.last_batch.unwrap_or(0));
                faults.push((
                    path(record.number),
                    format!("the journal ends with batch {has}, and ended with batch {last} before"),
                ));
            }
            Some(_) => {}
        }
    }
    // 3. The newest acknowledged batch of each space is in a journal or in the space's tables.
    let Some(newest) = newest else { return add_faults(found, faults, missing) };
    let last_seqnos = acked.journals.values().chain(manifest.journals.iter().map(|record| &record.last_numbers));
    let is_cut_short =
        last_seqnos.flatten().any(|(space, seqno)| in_tables(space).max(in_journals(space).unwrap_or(0)) < *seqno);
    let last_batch = journals.iter().rev().find_map(|journal| journal.scan.last_batch);
    if is_cut_short || last_batch.is_some_and(|last| last < acked.ordinal) {
        let (last, acked) = (last_batch.unwrap_or(0), acked.ordinal);
        let what = format!("the journal ends with batch {last}, and batch {acked} was acknowledged");
        faults.push((newest.path.clone(), what));
    }
    // 4. A batch in tables was in a journal first.
    let last_seqno = journals.iter().rev().find_map(|journal| journal.scan.last_seqno);
    let ahead = spaces.iter().filter(|(space, _)| **space != 0).find(|(_, files)| files.newest_seqno > last_seqno);
    if let (Some(last), Some((space, files))) = (last_seqno, ahead) {
        let held = files.newest_seqno.unwrap_or(0);
        let what = format!("the journal ends with seqno {last}, and tables of keyspaces/{space} hold seqno {held}");
        faults.push((newest.path.clone(), what));
    }
    // 5. The tables of a space never end earlier than they did.
    let older: Vec<_> = manifest.emptied.iter().filter(|(space, seqno)| in_tables(space) < **seqno).collect();
    for (space, seqno) in older {
        let there = in_tables(space);
        let what = format!("the tables end with seqno {there}, and ended with {seqno} before: they are an older copy");
        faults.push((tables::spaces_folder(engine).join(space.to_string()), what));
    }
    add_faults(found, faults, missing);
}

/// Adds the first fault of each file: it says most.
fn add_faults(found: &mut Inspection, faults: Vec<(PathBuf, String)>, missing: Vec<u64>) {
    found.missing_journals = missing;
    for (path, what) in faults {
        if !found.faults.iter().any(|fault| fault.file == file_name(&path)) {
            found.fault(&path, what, Remedy::LossyRepair);
        }
    }
}

/// Cuts the torn end that a crash left in the newest journal: all acknowledged batches are whole before it.
pub(crate) fn cut_torn_end(folder: &Folder, found: &mut Inspection) -> io::Result<()> {
    if let Some(Journal { path, scan, .. }) = found.journals.last_mut()
        && scan.is_damaged()
    {
        let bytes = journal::read_written(path)?;
        journal::cut(folder, path, &bytes, scan.whole_bytes)?;
        let (journal, at, bytes) = (name_of(path), scan.whole_bytes, bytes.len() - scan.whole_bytes);
        tracing::warn!(journal, at, bytes, "cut an unacknowledged tail from the journal");
        scan.length = scan.whole_bytes;
    }
    Ok(())
}

//! Looks at a data folder before the engine opens it: is all there that was acknowledged?
//!
//! Four witnesses are heard, and none is asked about itself: the journals (batches have ordinals with no hole), the
//! tables (each tells its newest batch), the [`Manifest`] (which files there must be; fsynced) and the notes of what was
//! [`Acknowledged`] (not fsynced, so they may end early, never late).

use crate::{
    acknowledged::{self, Acknowledged},
    embedded::OpenError,
    folder::{ClosedMark, Folder},
    journal::{self, Before, Scan},
    manifest::{MANIFEST, Manifest},
    problem::{Damage, Problem, Remedy},
    tables::{self, SpaceFiles, file_name},
};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// The engine's file that names the form of its folder, and what is in it.
pub(crate) const ENGINE_VERSION: &str = "version";
pub(crate) const ENGINE_VERSION_BYTES: &[u8] = b"FJL\x03";

/// A journal that is there.
#[derive(Debug)]
pub(crate) struct Journal {
    pub number: u64,
    pub path: PathBuf,
    pub scan: Scan,
}

/// What a look at a folder found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub manifest: Manifest,
    pub journals: Vec<Journal>,
    /// By the engine's number of the space.
    pub spaces: BTreeMap<u64, SpaceFiles>,
    pub acknowledged: Acknowledged,
    pub problems: Vec<Problem>,
    /// Files that lie where only the engine's belong; it would stumble over them.
    pub strays: Vec<PathBuf>,
    /// Journals that must be there and are not.
    pub missing_journals: Vec<u64>,
    /// The engine was never begun, or never finished: nobody was told of anything in it.
    pub is_unfinished: bool,
}

impl Findings {
    /// Refuses if anything that was acknowledged may be missing.
    pub(crate) fn refuse(&self) -> Result<(), OpenError> {
        match self.problems.is_empty() {
            true => Ok(()),
            false => Err(OpenError::Damaged(Damage(self.problems.clone()))),
        }
    }

    fn problem(&mut self, path: &Path, what: impl Into<String>, remedy: Remedy) {
        self.problems.push(Problem { file: file_name(path), what: what.into(), remedy });
    }

    /// The tables of all spaces.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &tables::Table> {
        self.spaces.values().flat_map(|space| &space.tables)
    }
}

/// Looks at the files of a folder; changes nothing.
pub(crate) fn inspect(folder: &Folder) -> io::Result<Findings> {
    let engine = folder.engine_path();
    let mut found = Findings { acknowledged: acknowledged::read(&folder.path)?, ..Findings::default() };
    let mut has_manifest = false;
    match Manifest::read(&folder.path) {
        Ok(Some(manifest)) => (found.manifest, has_manifest) = (manifest, true),
        Ok(None) if folder.has_manifest() => {
            let what = "it is missing, so nothing tells which files there must be";
            found.problem(Path::new(MANIFEST), what, Remedy::Mend);
        }
        Ok(None) => {}
        Err(problem) => found.problems.push(problem),
    }
    let is_unfinished = has_manifest && !found.manifest.is_finished();
    if is_unfinished && holds_batches(&engine, &found.acknowledged)? {
        // An early one that was put back: what it says would be the end of the store.
        found.problem(Path::new(MANIFEST), "it names no journal, and there are batches", Remedy::Mend);
        has_manifest = false;
    } else if is_unfinished || !has_manifest && !engine.exists() {
        found.is_unfinished = true;
        return Ok(found);
    }
    if !engine.exists() {
        found.problem(&engine, "the folder of the storage engine is missing", Remedy::Restore);
        return Ok(found);
    }
    let marker = engine.join(ENGINE_VERSION);
    if fs::read(&marker).ok().as_deref() != Some(ENGINE_VERSION_BYTES) {
        found.problem(&marker, "it is missing or does not name the storage engine's form", Remedy::Mend);
    }
    look_at_spaces(&engine, has_manifest, &mut found)?;
    look_at_journals(folder, has_manifest, &mut found)?;
    if has_manifest {
        compare(&engine, &mut found);
    }
    Ok(found)
}

/// Whether anything was ever written to the engine.
fn holds_batches(engine: &Path, acknowledged: &Acknowledged) -> io::Result<bool> {
    if acknowledged.ordinal > 0 {
        return Ok(true);
    }
    for path in journal::journals(engine)? {
        if !journal::read_written(&path)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn look_at_spaces(engine: &Path, has_manifest: bool, found: &mut Findings) -> io::Result<()> {
    let folder = tables::spaces_folder(engine);
    let there = tables::spaces(engine)?;
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_none_or(|name| name.parse::<u64>().is_err()) {
            found.problem(&entry.path(), "it is none of the engine's folders (a copy?)", Remedy::Mend);
            found.strays.push(entry.path());
        }
    }
    // One that the manifest does not name was being made when the process ended; the engine makes it again.
    let expected = if has_manifest { found.manifest.spaces.clone() } else { there.clone() };
    for space in expected {
        if there.contains(&space) {
            let files = tables::look_at_space(engine, space, &mut found.problems, &mut found.strays);
            found.spaces.insert(space, files);
        } else {
            found.problem(&folder.join(space.to_string()), "the folder is missing", Remedy::Restore);
        }
    }
    Ok(())
}

/// Finds the engine's journals, and what lies between them.
fn list_journals(engine: &Path, has_manifest: bool, found: &mut Findings) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut listed = Vec::new();
    for entry in fs::read_dir(engine)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("jnl")) {
            continue;
        }
        match journal::number_in(&path, "", ".jnl").filter(|number| journal::name_of(&path) == format!("{number}.jnl"))
        {
            Some(number) => listed.push((number, path)),
            None => {
                found.problem(&path, "it is none of the engine's journals (a copy?)", Remedy::Mend);
                found.strays.push(path);
            }
        }
    }
    listed.sort();
    if let (true, Some(oldest)) = (has_manifest, found.manifest.journals.first()) {
        let oldest = oldest.number;
        for (_, path) in listed.extract_if(.., |(number, _)| *number < oldest) {
            found.problem(&path, "the manifest does not name this journal any more (a copy?)", Remedy::Mend);
            found.strays.push(path);
        }
    }
    Ok(listed)
}

fn look_at_journals(folder: &Folder, has_manifest: bool, found: &mut Findings) -> io::Result<()> {
    let engine = folder.engine_path();
    let closed = folder.closed_mark();
    let listed = list_journals(&engine, has_manifest, found)?;
    let newest_named = found.manifest.journals.last().map(|record| record.number);
    let newest = listed.last().map(|(number, _)| *number);
    let mut before = Before::default();
    let mut previous: Option<u64> = None;
    for (number, path) in listed {
        let scan = journal::scan(&journal::read_written(&path)?, &mut before);
        // Nobody can have been told of what is in a journal that the manifest does not name.
        let is_unnamed = has_manifest && newest_named.is_none_or(|named| number > named);
        let is_next = previous.is_none_or(|previous| number == previous + 1);
        previous = Some(number);
        if is_unnamed && (!is_next || scan.whole == 0 && scan.later > 0) {
            found.problem(
                &path,
                "no batch in it follows what is stored: it is a copy of another journal",
                Remedy::Mend,
            );
            found.strays.push(path);
            continue;
        }
        if !is_next {
            let missing = engine.join(format!("{}.jnl", number - 1));
            found.problem(&missing, "the journal is missing", Remedy::Lose);
        }
        if let Some(why) = lost_in(&scan, Some(number) == newest, closed.as_ref()) {
            let what = format!("the journal is damaged at byte {} and {why}", scan.whole);
            found.problem(&path, what, Remedy::Lose);
        }
        found.journals.push(Journal { number, path, scan });
    }
    for (name, length) in closed.map_or(vec![], |mark| mark.journals) {
        let path = engine.join(&name);
        let there = if path.exists() { journal::read_written(&path)?.len() as u64 } else { 0 };
        if there < length && !found.problems.iter().any(|problem| problem.file == file_name(&path)) {
            let what = format!("the journal has {there} bytes of the {length} that it had when the store was closed");
            found.problem(&path, what, Remedy::Lose);
        }
    }
    Ok(())
}

/// Why what is damaged in a journal was acknowledged. Nothing: it is the end that a crash leaves.
fn lost_in(scan: &Scan, is_newest: bool, closed: Option<&ClosedMark>) -> Option<String> {
    match (scan.is_damaged(), is_newest, scan.later, closed) {
        (false, ..) => None,
        (_, false, ..) => Some("it is not the newest: everything in it was acknowledged".into()),
        (.., later @ 1.., _) => Some(format!("{later} whole batches follow: what is damaged was acknowledged")),
        (.., Some(_)) => Some("the store was closed in order: everything in it was acknowledged".into()),
        (.., None) => None,
    }
}

/// Compares what there is with what there must be.
fn compare(engine: &Path, found: &mut Findings) {
    let Findings { manifest, journals, spaces, acknowledged, .. } = &*found;
    let path = |number: u64| engine.join(format!("{number}.jnl"));
    let in_tables = |space: &u64| spaces.get(space).and_then(|files| files.newest).unwrap_or(0);
    let in_journals = |space: &u64| journals.iter().rev().find_map(|j| j.scan.last_numbers.get(space).copied());
    let newest = journals.last();
    let mut problems = Vec::new();
    let mut missing = Vec::new();
    // 1. A journal that is gone was emptied into tables, and then the tables have all of it.
    for record in &manifest.journals {
        let there = journals.iter().find(|journal| journal.number == record.number);
        let noted = acknowledged.journals.get(&record.number);
        let held: Vec<_> = record.last_numbers.iter().chain(noted.into_iter().flatten()).collect();
        match there {
            None => {
                let follows = newest.is_some_and(|newest| newest.number > record.number);
                let unemptied = held.iter().any(|(space, number)| in_tables(space) < **number);
                if !follows || unemptied {
                    missing.push(record.number);
                    problems.push((path(record.number), "the journal is missing".to_owned()));
                }
            }
            // 2. One that is full ends with its last batch.
            Some(journal) if record.last_batch > journal.scan.last_batch => {
                let (last, has) = (record.last_batch.unwrap_or(0), journal.scan.last_batch.unwrap_or(0));
                problems.push((path(record.number), format!("the journal ends with batch {has}, and had {last}")));
            }
            Some(_) => {}
        }
    }
    // 3. The newest batch that was acknowledged in each space is somewhere.
    let Some(newest) = newest else { return finish(found, problems, missing) };
    let noted = acknowledged.journals.values().chain(manifest.journals.iter().map(|record| &record.last_numbers));
    let cut_short =
        noted.flatten().any(|(space, number)| in_tables(space).max(in_journals(space).unwrap_or(0)) < *number);
    let last_batch = journals.iter().rev().find_map(|journal| journal.scan.last_batch);
    if cut_short || last_batch.is_some_and(|last| last < acknowledged.ordinal) {
        let (last, acknowledged) = (last_batch.unwrap_or(0), acknowledged.ordinal);
        let what = format!("the journal ends with batch {last}, and batch {acknowledged} was acknowledged");
        problems.push((newest.path.clone(), what));
    }
    // 4. What is in tables was in journals first.
    let last_number = journals.iter().rev().find_map(|journal| journal.scan.last_number);
    let ahead = spaces.iter().filter(|(space, _)| **space != 0).find(|(_, files)| files.newest > last_number);
    if let (Some(last), Some((space, files))) = (last_number, ahead) {
        let held = files.newest.unwrap_or(0);
        let what = format!("the journal ends before number {last}, and tables of keyspaces/{space} hold number {held}");
        problems.push((newest.path.clone(), what));
    }
    // 5. No space's tables are older than they were.
    let older: Vec<_> = manifest.emptied.iter().filter(|(space, number)| in_tables(space) < **number).collect();
    for (space, number) in older {
        let what = format!("its tables end with number {}, and had {number}: they are older ones", in_tables(space));
        problems.push((tables::spaces_folder(engine).join(space.to_string()), what));
    }
    finish(found, problems, missing);
}

/// One problem a file is enough: the first says most.
fn finish(found: &mut Findings, problems: Vec<(PathBuf, String)>, missing: Vec<u64>) {
    found.missing_journals = missing;
    for (path, what) in problems {
        if !found.problems.iter().any(|problem| problem.file == file_name(&path)) {
            found.problem(&path, what, Remedy::Lose);
        }
    }
}

/// Cuts the end that a crash left; what is whole before it is all that was acknowledged.
pub(crate) fn cut_torn_end(folder: &Folder, found: &mut Findings) -> io::Result<()> {
    if let Some(Journal { path, scan, .. }) = found.journals.last_mut()
        && scan.is_damaged()
    {
        let bytes = journal::read_written(path)?;
        journal::cut(folder, path, &bytes, scan.whole)?;
        let (journal, at, bytes) = (journal::name_of(path), scan.whole, bytes.len() - scan.whole);
        tracing::warn!(journal, at, bytes, "cut an unacknowledged tail from the journal");
        scan.length = scan.whole;
    }
    Ok(())
}

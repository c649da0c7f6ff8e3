//! Keeps the manifest and the notes true while the engine writes, from beside it: the engine does not tell when it
//! begins a new journal or removes one that it has emptied.

use crate::{
    acknowledged::{self, Notebook, NotedBatch, Reached},
    folder::{Folder, sync_folder},
    inspect::Findings,
    journal,
    kv::Committed,
    manifest::{JournalRecord, Manifest},
    tables,
};
use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};
use tidings_engine::model::Position;

pub(crate) struct JournalTracker {
    folder: PathBuf,
    engine: PathBuf,
    manifest: Manifest,
    notebook: Notebook,
    /// The journal that the engine begins next.
    next: PathBuf,
    /// The engine's numbers of our spaces.
    space_ids: [u64; 6],
    /// The ordinal of the last batch, which is in the manifest's last journal.
    last_batch: u64,
    /// The disk was full when the manifest was to be written. The one before stands until each next batch has tried again:
    /// batches are whole and fsynced all the same, and notes tell of them.
    is_unwritten: bool,
}

impl JournalTracker {
    /// Takes stock when the engine has opened: from here on its files are named in the manifest.
    pub(crate) fn begin(
        folder: &Folder,
        before: &Findings,
        space_ids: [u64; 6],
        last_batch: u64,
    ) -> io::Result<JournalTracker> {
        let engine = folder.engine_path();
        let mut manifest = before.manifest.clone();
        let there = journals_in(&engine)?;
        for record in before.manifest.journals.iter().filter(|record| !there.contains(&record.number)) {
            manifest.drop_emptied(record);
        }
        manifest.journals.clear();
        for number in &there {
            let scanned = before.journals.iter().find(|journal| journal.number == *number);
            let last_numbers = scanned.map(|journal| journal.scan.last_numbers.clone()).unwrap_or_default();
            let is_last = there.last() == Some(number);
            let last_batch = scanned.and_then(|journal| journal.scan.last_batch).filter(|_| !is_last);
            manifest.journals.push(JournalRecord { number: *number, last_batch, last_numbers });
        }
        manifest.spaces = tables::spaces(&engine)?;
        let last = there.last().copied().unwrap_or(0);
        let mut tracker = JournalTracker {
            folder: folder.path.clone(),
            notebook: Notebook::open(&folder.path, last),
            next: engine.join(format!("{}.jnl", last + 1)),
            engine,
            manifest,
            space_ids,
            last_batch,
            is_unwritten: false,
        };
        // What the engine made has names only once its folders are on the disk; it leaves some of them out.
        for space in &tracker.manifest.spaces {
            sync_folder(&tables::spaces_folder(&tracker.engine).join(space.to_string()))?;
        }
        sync_folder(&tables::spaces_folder(&tracker.engine))?;
        match before.manifest.is_finished() {
            true => tracker.write_if_there_is_room()?,
            false => tracker.write_manifest()?,
        }
        Ok(tracker)
    }

    /// A batch is on the disk, and nobody was told yet. `Err`: nobody may be told, since the journal that it is in may
    /// be one that would not be missed.
    pub(crate) fn committed(
        &mut self,
        batch: Committed,
        position: Position,
        reached: impl Iterator<Item = Reached>,
    ) -> io::Result<()> {
        if batch.spaces == 0 {
            return Ok(());
        }
        if self.is_unwritten {
            self.write_if_there_is_room()?;
        }
        while self.next.exists() {
            self.follow(batch)?;
        }
        let spaces = self.take_in(batch);
        let Committed { ordinal, number, .. } = batch;
        self.last_batch = ordinal;
        self.notebook.note(NotedBatch { ordinal, number, spaces, position }, reached);
        Ok(())
    }

    /// Adds a batch to the last journal's record; answers the engine's numbers of its spaces, one bit each.
    fn take_in(&mut self, batch: Committed) -> u64 {
        let mut spaces = 0;
        for (_, id) in self.space_ids.into_iter().enumerate().filter(|(space, _)| batch.spaces & 1 << space != 0) {
            spaces |= 1_u64.checked_shl(id.try_into().unwrap_or(u32::MAX)).unwrap_or(0);
            if let Some(record) = self.manifest.journals.last_mut() {
                record.last_numbers.insert(id, batch.number);
            }
        }
        spaces
    }

    /// The engine has begun another journal: this batch is in it, or was the last one of that before.
    fn follow(&mut self, batch: Committed) -> io::Result<()> {
        let begins = journal::begins_from(&self.next, batch.number)?;
        let number = journal::number_in(&self.next, "", ".jnl").unwrap_or(0);
        if let Some(record) = self.manifest.journals.last_mut() {
            record.last_batch = Some(if begins { self.last_batch } else { batch.ordinal });
        }
        if !begins {
            self.take_in(batch);
        }
        self.manifest.journals.push(JournalRecord { number, ..JournalRecord::default() });
        let there = journals_in(&self.engine)?;
        let emptied: Vec<_> =
            self.manifest.journals.iter().filter(|record| !there.contains(&record.number)).cloned().collect();
        emptied.iter().for_each(|record| self.manifest.drop_emptied(record));
        self.write_if_there_is_room()?;
        self.notebook = Notebook::open(&self.folder, number);
        self.next = self.engine.join(format!("{}.jnl", number + 1));
        Ok(())
    }

    fn write_if_there_is_room(&mut self) -> io::Result<()> {
        let written = self.write_manifest();
        let was_unwritten = std::mem::replace(&mut self.is_unwritten, written.as_ref().is_err_and(is_full));
        match written {
            Err(error) if self.is_unwritten => {
                if !was_unwritten {
                    tracing::warn!(%error, "no room to write the manifest; it is tried again with each batch");
                }
                Ok(())
            }
            written => written,
        }
    }

    /// On the disk when this returns, and after it the notes of journals that are gone are too.
    fn write_manifest(&self) -> io::Result<()> {
        // First, lest a journal that is taken off the list is back after a power loss.
        sync_folder(&self.engine)?;
        self.manifest.write(&self.folder)?;
        match self.manifest.journals.first() {
            Some(oldest) => acknowledged::forget_before(&self.folder, oldest.number),
            None => Ok(()),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

fn journals_in(engine: &Path) -> io::Result<Vec<u64>> {
    Ok(journal::journals(engine)?.iter().filter_map(|path| journal::number_in(path, "", ".jnl")).collect())
}

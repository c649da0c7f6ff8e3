//! Keeps the manifest and the acknowledgement log up to date while the engine writes. The tracker watches the engine's
//! folder from outside: the engine does not tell when it begins a new journal or removes one whose batches are all in
//! tables.

use crate::{
    ack_log::{self, AckLog, AckedBatch, ConversationProgress},
    files::{number_in, sync_folder},
    folder::Folder,
    inspect::Inspection,
    journal,
    kv::CommittedBatch,
    manifest::{JournalRecord, Manifest},
    tables,
    zeros_ahead::ZerosAhead,
};
use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};
use tidings_domain::model::Position;

pub(crate) struct JournalTracker {
    folder: PathBuf,
    engine: PathBuf,
    manifest: Manifest,
    ack_log: AckLog,
    zeros_ahead: Option<ZerosAhead>,
    /// The path of the journal that the engine begins next.
    next: PathBuf,
    /// The engine's ids of our spaces.
    space_ids: [u64; 6],
    /// The ordinal of the last batch, which is in the manifest's last journal.
    last_batch: u64,
    /// The disk was full when the manifest was to be written: the file on the disk is older than `manifest`. Each batch
    /// tries again. Meanwhile batches are whole and fsynced all the same, and the acknowledgement log names them.
    is_manifest_stale: bool,
}

impl JournalTracker {
    /// Names the files of an engine that has just opened in the manifest. `before`: what the folder held until then.
    pub(crate) fn begin(
        folder: &Folder,
        before: &Inspection,
        space_ids: [u64; 6],
        last_batch: u64,
    ) -> io::Result<JournalTracker> {
        let engine = folder.engine_path();
        let mut manifest = before.manifest.clone();
        let there = journals_in(&engine)?;
        for record in before.manifest.journals.iter().filter(|record| !there.contains(&record.number)) {
            manifest.remove_emptied(record);
        }
        manifest.journals.clear();
        for number in &there {
            let scanned = before.journals.iter().find(|journal| journal.number == *number);
            let last_numbers = scanned.map(|journal| journal.scan.last_seqnos.clone()).unwrap_or_default();
            let is_last = there.last() == Some(number);
            let last_batch = scanned.and_then(|journal| journal.scan.last_batch).filter(|_| !is_last);
            manifest.journals.push(JournalRecord { number: *number, last_batch, last_numbers });
        }
        manifest.spaces = tables::spaces(&engine)?;
        let last = there.last().copied().unwrap_or(0);
        let mut tracker = JournalTracker {
            folder: folder.path.clone(),
            ack_log: AckLog::open(&folder.path, last),
            zeros_ahead: ZerosAhead::in_empty(&engine.join(format!("{last}.jnl"))),
            next: engine.join(format!("{}.jnl", last + 1)),
            engine,
            manifest,
            space_ids,
            last_batch,
            is_manifest_stale: false,
        };
        // A new file has a name after a power loss only if its folder was fsynced; the engine leaves some folders out.
        for space in &tracker.manifest.spaces {
            sync_folder(&tables::spaces_folder(&tracker.engine).join(space.to_string()))?;
        }
        sync_folder(&tables::spaces_folder(&tracker.engine))?;
        if before.manifest.is_finished() {
            tracker.write_manifest_if_room()?
        } else {
            tracker.write_manifest()?
        }
        Ok(tracker)
    }

    /// Records a batch that is on the disk and not acknowledged yet.
    ///
    /// # Errors
    /// The manifest could not be written. The batch must not be acknowledged: the manifest may lack its journal, and then
    /// nothing would notice that the journal is missing.
    pub(crate) fn record_batch(
        &mut self,
        batch: CommittedBatch,
        position: Position,
        progress: impl Iterator<Item = ConversationProgress>,
    ) -> io::Result<()> {
        if batch.spaces == 0 {
            return Ok(());
        }
        if self.is_manifest_stale {
            self.write_manifest_if_room()?;
        }
        let mut journal_bytes = batch.journal_bytes;
        while self.next.exists() {
            if !self.switch_journal(batch)? {
                journal_bytes = 0;
            }
        }
        let spaces = self.add_to_last_journal(batch);
        let CommittedBatch { ordinal, seqno, .. } = batch;
        self.last_batch = ordinal;
        self.ack_log.append(AckedBatch { ordinal, seqno, spaces, position }, progress);
        if let Some(Err(error)) = self.zeros_ahead.as_mut().map(|zeros| zeros.follow(journal_bytes)) {
            tracing::debug!(%error, "no zeros could be written ahead in the journal; commits go on without");
        }
        Ok(())
    }

    /// Adds a batch to the last journal's record; answers the engine's ids of the batch's spaces, one bit each.
    fn add_to_last_journal(&mut self, batch: CommittedBatch) -> u64 {
        let mut spaces = 0;
        for (_, id) in self.space_ids.into_iter().enumerate().filter(|(space, _)| batch.spaces & 1 << space != 0) {
            spaces |= 1_u64.checked_shl(id.try_into().unwrap_or(u32::MAX)).unwrap_or(0);
            if let Some(record) = self.manifest.journals.last_mut() {
                record.last_numbers.insert(id, batch.seqno);
            }
        }
        spaces
    }

    /// The engine has begun another journal: the batch is the first in it (then the answer is `true`), or the last in the journal before.
    fn switch_journal(&mut self, batch: CommittedBatch) -> io::Result<bool> {
        let is_first_in_next = journal::begins_from(&self.next, batch.seqno)?;
        let number = number_in(&self.next, "", ".jnl").unwrap_or(0);
        if let Some(record) = self.manifest.journals.last_mut() {
            record.last_batch = Some(if is_first_in_next { self.last_batch } else { batch.ordinal });
        }
        if !is_first_in_next {
            self.add_to_last_journal(batch);
        }
        self.manifest.journals.push(JournalRecord { number, ..JournalRecord::default() });
        self.forget_emptied()?;
        self.ack_log = AckLog::open(&self.folder, number);
        self.zeros_ahead = ZerosAhead::in_new(&self.next);
        self.next = self.engine.join(format!("{}.jnl", number + 1));
        Ok(is_first_in_next)
    }

    /// Forgets the journals that the engine has removed, with their acknowledgement logs: those have ids of conversations.
    ///
    /// # Errors
    /// The manifest could not be written.
    pub(crate) fn forget_emptied(&mut self) -> io::Result<()> {
        let there = journals_in(&self.engine)?;
        let emptied: Vec<_> =
            self.manifest.journals.iter().filter(|record| !there.contains(&record.number)).cloned().collect();
        emptied.iter().for_each(|record| self.manifest.remove_emptied(record));
        self.write_manifest_if_room()
    }

    /// Writes the manifest; on a full disk the write is put off to the next batch.
    fn write_manifest_if_room(&mut self) -> io::Result<()> {
        let written = self.write_manifest();
        let was_stale = std::mem::replace(&mut self.is_manifest_stale, written.as_ref().is_err_and(is_full));
        match written {
            Err(error) if self.is_manifest_stale => {
                if !was_stale {
                    tracing::warn!(%error, "no room to write the manifest; each batch tries again");
                }
                Ok(())
            }
            written => written,
        }
    }

    /// Writes the manifest durably, then removes the acknowledgement logs of journals that it no longer names.
    fn write_manifest(&self) -> io::Result<()> {
        // First: a journal that the manifest no longer names must not come back after a power loss.
        sync_folder(&self.engine)?;
        self.manifest.write(&self.folder)?;
        match self.manifest.journals.first() {
            Some(oldest) => ack_log::remove_before(&self.folder, oldest.number),
            None => Ok(()),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

fn journals_in(engine: &Path) -> io::Result<Vec<u64>> {
    Ok(journal::journals(engine)?.iter().filter_map(|path| number_in(path, "", ".jnl")).collect())
}

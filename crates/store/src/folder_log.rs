//! The log of a folder that is open: its beginning and end, reads, and the removal of what is old. Its rows are in `event_log`.

use crate::{
    batch_progress::BatchProgress, embedded::EmbeddedStore, errors::store_error, event_log::*, kv::*, reads::*, rows::*,
};
use rustc_hash::FxHashMap;
use std::sync::atomic::Ordering;
use tidings_domain::{commit_log::*, model::*, store::*};

/// Batches that one call removes.
const PRUNED_AT_ONCE: usize = 1_000;

impl EmbeddedStore {
    /// Begins the log where the folder is now if it has none, or drops it if events are kept no longer.
    pub(crate) fn open_event_log(&self) -> StoreResult<()> {
        match (self.options.event_log, self.event_log_start()?.is_some()) {
            (true, false) => self.begin_event_log(),
            (false, true) => self.drop_event_log(),
            _ => Ok(()),
        }
    }

    /// In a folder with something in it the log begins one position further on: whoever has all up to here may have missed what
    /// took no position since.
    fn begin_event_log(&self) -> StoreResult<()> {
        let mut writer = self.writer.lock();
        let mut counters = writer.counters;
        counters.position += u64::from(counters != Counters::default());
        let mut batch = Batch::default();
        batch.put(Space::Meta, MetaKind::LogStart.only_key(), counters.position.to_be_bytes().to_vec());
        batch.put(Space::Meta, MetaKind::Counters.only_key(), counters.row());
        let progress = BatchProgress { position: counters.position, ..BatchProgress::none() };
        self.write(&mut writer, &*self.kv()?, batch, progress)?;
        writer.counters = counters;
        self.position.store(counters.position, Ordering::Release);
        Ok(())
    }

    /// Where the log begins goes last: a crash before that leaves a log that the next start goes on to drop.
    fn drop_event_log(&self) -> StoreResult<()> {
        while self.prune_event_log(u64::MAX)?.more {}
        let mut batch = Batch::default();
        batch.remove(Space::Meta, MetaKind::LogStart.only_key());
        self.write_cleanup(batch, None, &FxHashMap::default())
    }

    pub(crate) fn event_log_start(&self) -> StoreResult<Option<Position>> {
        let row = self.kv()?.get(Space::Meta, &MetaKind::LogStart.only_key()).map_err(store_error)?;
        Ok(row.and_then(|row| number_at(&row, 0)))
    }

    pub(crate) fn read_event_log(&self, after: Position, limit: usize) -> StoreResult<LogPage> {
        let kv = self.kv()?;
        let kv = kv.snapshot();
        let oldest = kv
            .get(Space::Meta, &MetaKind::LogStart.only_key())
            .map_err(store_error)?
            .and_then(|row| number_at(&row, 0));
        if oldest.is_none_or(|oldest| after < oldest) {
            return Err(StoreError::Pruned(format!("events behind position {after} are not kept any more")));
        }
        let (mut records, mut is_whole) = (Vec::new(), true);
        scan_batches(&*kv, after, |batch, _| {
            for LoggedRecord { position, entry, change } in batch.records {
                if position <= after {
                    continue;
                }
                is_whole = records.len() < limit.max(1);
                if !is_whole {
                    return Ok(false);
                }
                let entry = entry.map(|(conversation, seq)| read_entry(&*kv, ConversationNo(conversation), seq));
                let change = change.map(|change| decode_change(&change)).transpose()?;
                let changed_at = if change.is_some() { batch.at } else { 0 };
                records.push(LogRecord { position, entry: entry.transpose()?.flatten(), change, changed_at });
            }
            Ok(true)
        })?;
        let last = records.last().map_or(after, |record: &LogRecord| record.position);
        let through = if is_whole { read_counters(&*kv)?.position.max(last) } else { last };
        Ok(LogPage { span: PositionRange { after, through }, records })
    }

    pub(crate) fn prune_event_log(&self, before_ms: u64) -> StoreResult<PruneProgress> {
        let Some(start) = self.event_log_start()? else { return Ok(PruneProgress::default()) };
        let mut batch = Batch::default();
        let (mut removed, mut more) = (0, false);
        // Not from the first key: the engine would pass over all rows that were removed before.
        scan_batches(&*self.kv()?, start, |logged, keys| {
            more = logged.at < before_ms && removed as usize == PRUNED_AT_ONCE;
            if logged.at >= before_ms || more {
                return Ok(false);
            }
            removed += 1;
            let last = keys.first().and_then(|key| number_at(key, 1)).unwrap_or_default();
            batch.put(Space::Meta, MetaKind::LogStart.only_key(), last.to_be_bytes().to_vec());
            keys.into_iter().for_each(|key| batch.remove(Space::Meta, key));
            Ok(true)
        })?;
        if removed > 0 {
            batch.keep_last_writes();
            self.write_cleanup(batch, None, &FxHashMap::default())?;
        }
        Ok(PruneProgress { removed, more })
    }
}

/// An entry with its body; `None`: retention has removed it.
fn read_entry(
    kv: &dyn KvRead,
    conversation: ConversationNo,
    seq: u64,
) -> StoreResult<Option<(ConversationNo, StoredEntry)>> {
    let row = kv.get(Space::Timeline, &entry_key(conversation, seq)).map_err(store_error)?;
    let entry = row.map(|row| decode_entry(seq, &row, |count| read_parts(kv, conversation, seq, count)));
    Ok(entry.transpose()?.map(|entry| (conversation, entry)))
}

//! The embedded store: its reads, and its writes as batches of the engine. Opening it is in `open`, staging a batch in
//! `commit`, and the restart after a failed write in `restart`.

use crate::{
    batch_progress::BatchProgress,
    commit::StagedBatch,
    errors::store_error,
    event_log::EventLog,
    first_results::{dedupe_key, read_first_result},
    fjall_kv::FjallKv,
    folder::{CleanShutdown, Folder},
    journal,
    journal_tracker::JournalTracker,
    kv::*,
    options::EmbeddedOptions,
    reads::*,
    rows::*,
    scrubber::Scrubber,
    side_log::SideLog,
    timeline_days::TimelineDays,
    timeline_days::day_key,
};
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;
use rustc_hash::FxHashMap;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_domain::{
    commit_log::{LogPage, PruneProgress},
    model::*,
    store::*,
    stored_id::StoredId,
};

/// How long a check of the disk's free space counts.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The store in a data folder, for one process.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tidings_domain::store::{Proposal, Store, UserPatch};
/// use tidings_store::{EmbeddedOptions, EmbeddedStore};
///
/// let folder = tempfile::tempdir()?;
/// let store = EmbeddedStore::open(EmbeddedOptions::new(folder.path()))?;
/// let ann = UserPatch { id: "ann".into(), ..UserPatch::default() };
/// store.commit(&[Proposal::PutUsers(vec![ann])], 0)?;
/// assert!(store.user_no("ann")?.is_some());
/// # Ok(())
/// # }
/// ```
pub struct EmbeddedStore {
    pub(crate) options: EmbeddedOptions,
    pub(crate) folder: Folder,
    pub(crate) side_log: SideLog,
    /// Replaced when the engine is restarted after a failed write; readers wait meanwhile. `None` only if the restart
    /// failed: each commit tries again.
    pub(crate) kv: RwLock<Option<Arc<FjallKv>>>,
    /// Read-locked by long reads, such as a backup. A restart of the engine does not wait for them: it is put off.
    pub(crate) long_reads: RwLock<()>,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) heads: Cache<ConversationNo, Head>,
    pub(crate) days: TimelineDays,
    pub(crate) position: AtomicU64,
    pub(crate) scrubber: Scrubber,
    pub(crate) epoch: u64,
    /// Whether an earlier version had stored first results, when the store was opened. None are added.
    pub(crate) has_former_results: bool,
}

/// The state of the one writer.
pub(crate) struct Writer {
    pub(crate) counters: Counters,
    /// When the free space was last checked, and whether there was enough.
    pub(crate) space_checked: Option<(Instant, bool)>,
    /// The engine refused a write: reads go on, and the next write restarts the engine first. No batch with this seqno or
    /// a higher one was acknowledged, and none ever shows up: whatever the engine still writes while it closes is cut
    /// again before it is reopened.
    pub(crate) refused_from_seqno: Option<u64>,
    /// The engine refused the write because one of its threads had met an error before, not because this write failed.
    pub(crate) has_engine_stopped: bool,
    pub(crate) tracker: JournalTracker,
}

impl EmbeddedStore {
    /// The engine. A caller that reads from a snapshot keeps this handle as long as the snapshot: a restart waits until
    /// all handles are dropped.
    pub(crate) fn kv(&self) -> StoreResult<Arc<FjallKv>> {
        self.kv.read().clone().ok_or_else(|| StoreError::Unavailable("the engine could not be restarted".into()))
    }

    /// The data folder.
    pub fn path(&self) -> &Path {
        &self.options.path
    }

    /// Whether the disk has room beyond the reserve.
    fn has_space(&self, writer: &mut Writer) -> bool {
        if let Some((at, enough)) = writer.space_checked
            && at.elapsed() < SPACE_CHECK_INTERVAL
        {
            return enough;
        }
        let enough = match rustix::fs::statvfs(&self.options.path) {
            Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize) >= self.options.disk_reserve_bytes,
            // An unknown amount of space is no reason to refuse: the write itself will fail on a full disk.
            Err(_) => true,
        };
        writer.space_checked = Some((Instant::now(), enough));
        enough
    }

    /// Reads rows through one handle of the engine. Asking for a second handle meanwhile could deadlock: it waits for a
    /// restart, which waits for the first handle.
    pub(crate) fn scan_values<T>(
        kv: &dyn KvRead,
        space: Space,
        low: &[u8],
        high: &[u8],
        limit: usize,
        order: Order,
        mut row: impl FnMut(&[u8], &[u8]) -> StoreResult<T>,
    ) -> StoreResult<Vec<T>> {
        let mut found = Vec::new();
        let mut failed = None;
        if limit > 0 && low <= high {
            kv.scan(space, low, high, order, &mut |key, value| {
                match row(key, value) {
                    Ok(value) => found.push(value),
                    Err(error) => failed = Some(error),
                }
                found.len() < limit && failed.is_none()
            })
            .map_err(store_error)?;
        }
        failed.map_or(Ok(found), Err)
    }
}

impl Drop for EmbeddedStore {
    /// Writes the marker of a clean shutdown: while it is there, every byte of the journals counts as acknowledged.
    fn drop(&mut self) {
        // The engine closes first: it may write until then, and the folder stays locked meanwhile.
        self.scrubber.stop();
        drop(self.kv.get_mut().take());
        if let Some(refused_from_seqno) = self.writer.get_mut().refused_from_seqno {
            if let Err(error) = journal::cut_refused(&self.folder, refused_from_seqno) {
                tracing::warn!(
                    %error,
                    "a refused write could not be cut from the journal; it may be stored when the store opens"
                );
            }
            return;
        }
        let marked = journal::lengths(&self.folder.engine_path())
            .and_then(|journals| self.folder.write_clean_shutdown(&CleanShutdown { journals }));
        if let Err(error) = marked {
            tracing::warn!(%error, "the marker of a clean shutdown could not be written");
        }
    }
}

impl Store for EmbeddedStore {
    fn fence_writes(&self, _: Term) -> StoreResult<()> {
        self.fence_open_writes()
    }

    fn commit(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<Vec<Outcome>> {
        let mut writer = self.writer.lock();
        if !self.has_space(&mut writer) {
            return Err(StoreError::DiskFull);
        }
        self.restart_if_refused(&mut writer)?;
        let kv = self.kv()?;
        let mut staged = StagedBatch::new(
            &*kv,
            &self.heads,
            &self.days,
            writer.counters,
            self.options.outbox,
            self.options.event_log.then(EventLog::default),
            self.has_former_results,
        );
        let outcomes =
            batch.iter().map(|proposal| staged.propose(proposal, now_ms)).collect::<StoreResult<Vec<_>>>()?;
        let rows = staged.finish(now_ms)?;
        let StagedBatch { counters, heads, first_entry_ids, .. } = staged;
        if !rows.writes.is_empty() {
            let progress = BatchProgress {
                position: counters.position,
                heads: Some(&heads),
                first_entry_ids: Some(&first_entry_ids),
            };
            self.write(&mut writer, &kv, rows, progress)?;
        }
        writer.counters = counters;
        for (conversation, head) in heads {
            self.heads.insert(conversation, head);
        }
        self.position.store(counters.position, Ordering::Release);
        Ok(outcomes)
    }

    fn log_after(&self, after: Position, limit: usize) -> StoreResult<LogPage> {
        self.read_event_log(after, limit)
    }

    fn log_start(&self) -> StoreResult<Option<Position>> {
        self.event_log_start()
    }

    fn prune_log(&self, before_ms: u64) -> StoreResult<PruneProgress> {
        self.prune_event_log(before_ms)
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn last_position(&self) -> Position {
        self.position.load(Ordering::Acquire)
    }

    fn last_numbers(&self) -> StoreResult<LastNumbers> {
        let Counters { users, conversations, .. } = read_counters(&*self.kv()?)?;
        Ok(LastNumbers { users, conversations })
    }

    fn find_user(&self, id: StoredId<'_>) -> StoreResult<Option<UserNo>> {
        let row = self.kv()?.get(Space::Meta, &id_key(MetaKind::UserId, id.as_str())).map_err(store_error)?;
        Ok(row.and_then(|row| number_at(&row, 0)).map(UserNo))
    }

    fn user(&self, no: UserNo) -> StoreResult<Option<User>> {
        read_user(&*self.kv()?, no)
    }

    fn last_seen(&self, no: UserNo) -> StoreResult<Option<u64>> {
        let row = self.kv()?.get(Space::Meta, &key(MetaKind::LastSeen, &[no.0])).map_err(store_error)?;
        Ok(row.and_then(|row| number_at(&row, 0)))
    }

    fn find_conversation(&self, id: StoredId<'_>) -> StoreResult<Option<ConversationNo>> {
        let row = self.kv()?.get(Space::Meta, &id_key(MetaKind::ConversationId, id.as_str())).map_err(store_error)?;
        Ok(row.and_then(|row| number_at(&row, 0)).map(ConversationNo))
    }

    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>> {
        read_conversation(&*self.kv()?, no)
    }

    fn head(&self, no: ConversationNo) -> StoreResult<Head> {
        match self.heads.get(&no) {
            Some(head) => Ok(head),
            None => read_head(&*self.kv()?, no),
        }
    }

    fn find_ids(
        &self,
        of: NamedKind,
        prefix: Option<StoredId<'_>>,
        after: Option<StoredId<'_>>,
        limit: usize,
    ) -> StoreResult<Vec<(String, u64)>> {
        let (prefix, after) = (prefix.map_or("", StoredId::as_str), after.map_or("", StoredId::as_str));
        let kind = match of {
            NamedKind::User => MetaKind::UserId,
            NamedKind::Conversation => MetaKind::ConversationId,
        };
        // Bytes of UTF-8 are below 0xff, so that this is behind all ids with the prefix.
        let high = [&id_key(kind, prefix)[..], &[0xff]].concat();
        let low = id_key(kind, prefix).max([&id_key(kind, after)[..], &[0]].concat());
        let low = if after.is_empty() { id_key(kind, prefix) } else { low };
        Self::scan_values(&*self.kv()?, Space::Meta, &low, &high, limit, Order::Ascending, |key, row| {
            let id = String::from_utf8_lossy(&key[1..]).into_owned();
            let no = number_at(row, 0).ok_or_else(|| damaged(format_args!("the number of {id:?}")))?;
            Ok((id, no))
        })
    }

    fn stored_seqs(&self, requests: &[(ConversationNo, UserNo, &str)]) -> StoreResult<Vec<Option<u64>>> {
        let kv = self.kv()?;
        let seq = |(conversation, author, id): &(ConversationNo, UserNo, &str)| {
            let key = dedupe_key(*conversation, *author, id);
            Ok(read_first_result(&*kv, &key, self.has_former_results)?.map(|(first, _)| first.appended.seq))
        };
        requests.iter().map(seq).collect()
    }

    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        read_membership(&*self.kv()?, conversation, user)
    }

    fn members(
        &self,
        conversation: ConversationNo,
        after: Option<UserNo>,
        limit: usize,
    ) -> StoreResult<Vec<(UserNo, Membership)>> {
        let low = key(MetaKind::Member, &[conversation.0, after.map_or(0, |user| user.0 + 1)]);
        let high = key(MetaKind::Member, &[conversation.0, u64::MAX]);
        Self::scan_values(&*self.kv()?, Space::Meta, &low, &high, limit, Order::Ascending, |key, row| {
            let user = number_at(key, 9).ok_or_else(|| damaged("a member's key"))?;
            Ok((UserNo(user), decode::<MembershipRow>(row)?.membership()))
        })
    }

    fn conversations_of(&self, user: UserNo, direct: bool, limit: usize) -> StoreResult<Vec<UserConversation>> {
        let first = if direct { ConversationKind::Direct } else { ConversationKind::Group };
        let low = user_conversation_key(user, first, ConversationNo(0));
        let high = user_conversation_key(user, ConversationKind::Official, ConversationNo(u64::MAX));
        Self::scan_values(&*self.kv()?, Space::Meta, &low, &high, limit, Order::Ascending, |key, _| {
            let conversation = number_at(key, 10).ok_or_else(|| damaged("the key of a user's conversation"))?;
            Ok(UserConversation { conversation: ConversationNo(conversation), kind: kind_of(key[9]) })
        })
    }

    fn entries(
        &self,
        conversation: ConversationNo,
        from_seq: u64,
        to_seq: u64,
        limit: usize,
        from: End,
    ) -> StoreResult<Vec<StoredEntry>> {
        let order = if from == End::Oldest { Order::Ascending } else { Order::Descending };
        let (low, high) = (entry_key(conversation, from_seq), entry_key(conversation, to_seq));
        // Entries and the parts of their bodies come from one snapshot: retention removes both meanwhile.
        let kv = self.kv()?;
        let kv = kv.snapshot();
        let mut entries = Self::scan_values(&*kv, Space::Timeline, &low, &high, limit, order, |key, row| {
            let seq = number_at(key, 8).ok_or_else(|| damaged("an entry's key"))?;
            decode_entry(seq, row, |count| read_parts(&*kv, conversation, seq, count))
        })?;
        if order == Order::Descending {
            entries.reverse();
        }
        Ok(entries)
    }

    fn seq_at(&self, conversation: ConversationNo, at_ms: u64) -> StoreResult<u64> {
        let head = self.head(conversation)?;
        // `at` never decreases with `seq`, so a binary search finds the first.
        let (mut low, mut high) = (head.first_seq, head.last_seq + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entries(conversation, middle, middle, 1, End::Oldest)?.first() {
                Some(entry) if entry.at >= at_ms => high = middle,
                _ => low = middle + 1,
            }
        }
        Ok(low)
    }

    fn outbox(&self, after: Position, limit: usize) -> StoreResult<Vec<OutboxItem>> {
        let kv = self.kv()?;
        let progress = read_outbox_progress(&*kv)?;
        let after = after.max(progress.through);
        let mut items = Vec::new();
        // The scan starts at the last row that begins at or before the next item, and so skips rows that were read before.
        let mut low = key(MetaKind::OutboxItems, &[progress.first_row]);
        let next = key(MetaKind::OutboxItems, &[after.saturating_add(1)]);
        if low < next {
            kv.scan(Space::Meta, &low.clone(), &next, Order::Descending, &mut |key, _| {
                low = key.to_vec();
                false
            })
            .map_err(store_error)?;
        }
        let high = key(MetaKind::OutboxItems, &[u64::MAX]);
        kv.scan(Space::Meta, &low, &high, Order::Ascending, &mut |_, row| {
            for item in numbers(row).chunks_exact(3).filter(|item| item[0] > after) {
                let (position, conversation, seq) = (item[0], ConversationNo(item[1]), item[2]);
                items.push(OutboxItem { position, conversation, seq });
            }
            items.len() < limit
        })
        .map_err(store_error)?;
        items.truncate(limit);
        Ok(items)
    }

    fn outbox_position(&self) -> StoreResult<Position> {
        Ok(read_outbox_progress(&*self.kv()?)?.through)
    }

    fn stored_notifications(
        &self,
        table: NotificationTable,
        after: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<StoredNotification>> {
        let key_of = |id| notification_key(NotificationKey { table, id });
        let (low, high) = (key_of(after.map_or(0, |id| id.saturating_add(1))), key_of(u64::MAX));
        Self::scan_values(&*self.kv()?, Space::Meta, &low, &high, limit, Order::Ascending, |key, row| {
            let id = number_at(key, 1).ok_or_else(|| damaged("a stored notification's key"))?;
            Ok(decode::<NotificationRow>(row)?.notification(NotificationKey { table, id }))
        })
    }

    fn retain_but(&self, retention: Retention, except: &[ConversationNo], now_ms: u64) -> StoreResult<u64> {
        self.remove_old(retention, except, now_ms)
    }

    fn retain_in(&self, conversation: ConversationNo, retention: Retention, now_ms: u64) -> StoreResult<RetainedIn> {
        self.remove_old_in(conversation, retention, now_ms)
    }

    fn purge(&self) -> StoreResult<()> {
        self.purge_files()
    }

    fn damage(&self) -> Option<String> {
        self.scrubber.damage_text()
    }

    fn stats(&self) -> StoreStats {
        let Ok(kv) = self.kv() else { return StoreStats::default() };
        let timeline_bytes = self.timeline_bytes().unwrap_or(0);
        StoreStats { disk_bytes: kv.disk_bytes(), timeline_bytes, journals: kv.journals(), ..StoreStats::default() }
    }
}

impl EmbeddedStore {
    /// Restarts the engine after a refused write: after that, reads show which writes are stored.
    fn fence_open_writes(&self) -> StoreResult<()> {
        let mut writer = self.writer.lock();
        if !self.has_space(&mut writer) {
            return Err(StoreError::DiskFull);
        }
        self.restart_if_refused(&mut writer)
    }

    /// Writes a batch that frees space, such as the removals of retention. `shortened`: the conversation whose oldest
    /// entries it removes.
    /// `freed`: so many bytes of entries are gone from these days.
    pub(crate) fn write_cleanup(
        &self,
        mut batch: Batch,
        shortened: Option<ConversationNo>,
        freed: &FxHashMap<u64, u64>,
    ) -> StoreResult<()> {
        let mut writer = self.writer.lock();
        for (day, bytes) in freed {
            // Under the writer's lock: a commit counts what it adds.
            let row = self.kv()?.get(Space::Meta, &day_key(*day)).map_err(store_error)?;
            if let Some(before) = row.and_then(|row| number_at(&row, 0)) {
                batch.put(Space::Meta, day_key(*day), before.saturating_sub(*bytes).to_be_bytes().to_vec());
            }
        }
        if batch.writes.is_empty() {
            return Ok(());
        }
        // The free space is not checked: this batch makes room.
        self.restart_if_refused(&mut writer)?;
        self.write(&mut writer, &*self.kv()?, batch, BatchProgress::none())?;
        // Under the writer's lock: otherwise a commit could put the old head back into the cache.
        if let Some(conversation) = shortened {
            self.heads.remove(&conversation);
        }
        Ok(())
    }

    /// Writes rows that are not part of a commit and take space as one does: of push and popups.
    pub(crate) fn write_rows_batch(&self, batch: Batch) -> StoreResult<()> {
        let mut writer = self.writer.lock();
        if !self.has_space(&mut writer) {
            return Err(StoreError::DiskFull);
        }
        self.restart_if_refused(&mut writer)?;
        self.write(&mut writer, &*self.kv()?, batch, BatchProgress::none())
            .map_err(|error| StoreError::OutcomeUnknown(error.to_string()))
    }

    /// Writes a batch durably. If the write fails, the engine must be restarted before the next one.
    pub(crate) fn write(
        &self,
        writer: &mut Writer,
        kv: &FjallKv,
        batch: Batch,
        progress: BatchProgress,
    ) -> StoreResult<()> {
        let is_of_kind = |write: &Write| write.space != Space::Meta || MetaKind::of(&write.key).is_some();
        debug_assert!(batch.writes.iter().all(is_of_kind), "a row of no kind that `meta_kind` lists");
        // Before the write: all acknowledged batches have lower seqnos, and this batch has none yet.
        let next_seqno = kv.next_seqno();
        let committed = kv.commit(batch).and_then(|batch| {
            let position = progress.position.max(writer.counters.position);
            Ok(writer.tracker.record_batch(batch, position, progress.conversations())?)
        });
        committed.map_err(|error| {
            writer.refused_from_seqno = Some(next_seqno);
            writer.has_engine_stopped = matches!(error, KvError::Stopped);
            writer.space_checked = None;
            // Not `DiskFull`, even on a full disk: after a crash before the restart the batch may be whole in the journal.
            StoreError::Unavailable(error.to_string())
        })
    }
}

//! The store: reads, and hands batches to the engine. Opening is in `open`, deciding in `commit`, going on after a write that
//! failed in `restart`.

pub use crate::open::{EmbeddedOptions, JOURNAL_BYTES_MIN, MEMTABLE_BYTES_MIN, OpenError};

use crate::{
    commit::{Counters, Scratch},
    fjall_kv::FjallKv,
    folder::{ClosedMark, Folder},
    health::Health,
    journal,
    kv::*,
    reads::*,
    rows::*,
    said::Said,
    side_log::SideLog,
    tracker::JournalTracker,
};
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_engine::{model::*, store::*};

/// How long a look at the free space holds.
const SPACE_CHECK: Duration = Duration::from_millis(100);

pub struct EmbeddedStore {
    pub(crate) options: EmbeddedOptions,
    pub(crate) folder: Folder,
    pub(crate) side_log: SideLog,
    /// Replaced when the engine gave up after a failed write and there is room again; readers wait
    /// meanwhile. Empty only if the fresh start failed: each commit tries again.
    pub(crate) kv: RwLock<Option<Arc<FjallKv>>>,
    /// Held by what reads all there is, such as a backup: no fresh start of the engine waits for that.
    pub(crate) long_reads: RwLock<()>,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) heads: Cache<ConversationNo, Head>,
    pub(crate) position: AtomicU64,
    pub(crate) health: Health,
    pub(crate) epoch: u64,
}

/// What the one writer owns.
pub(crate) struct Writer {
    pub(crate) counters: Counters,
    pub(crate) space_checked: Option<(Instant, bool)>,
    /// The engine refused a write: reads go on, writes wait for a fresh start of it. No batch of this number or a
    /// higher one was acknowledged, and none ever shows up: the engine writes what it still holds as it ends, and
    /// that is cut again before the next one opens.
    pub(crate) refused_from: Option<u64>,
    /// That was because a thread of the engine met an error, not because this write did.
    pub(crate) has_stopped: bool,
    pub(crate) tracker: JournalTracker,
}

pub(crate) fn store_error(error: KvError) -> StoreError {
    match error {
        KvError::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => StoreError::DiskFull,
        KvError::Io(error) => StoreError::Unavailable(error.to_string()),
        KvError::Engine(error) => StoreError::Unavailable(error),
        KvError::Damaged(what) => StoreError::Damaged(what),
        KvError::Stopped => StoreError::Unavailable(error.to_string()),
    }
}

impl EmbeddedStore {
    /// The engine. Who reads from a snapshot of it holds on to this too: the engine cannot start
    /// afresh while parts of the old one are in use.
    pub(crate) fn kv(&self) -> StoreResult<Arc<FjallKv>> {
        self.kv.read().clone().ok_or_else(|| StoreError::Unavailable("the engine could not be started again".into()))
    }

    pub fn path(&self) -> &Path {
        &self.options.path
    }

    /// Whether the disk has room beyond the reserve.
    fn has_space(&self, writer: &mut Writer) -> bool {
        if let Some((at, enough)) = writer.space_checked
            && at.elapsed() < SPACE_CHECK
        {
            return enough;
        }
        let enough = match rustix::fs::statvfs(&self.options.path) {
            Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize) >= self.options.disk_reserve_bytes,
            // Not knowing is no reason to refuse: the write itself will tell.
            Err(_) => true,
        };
        writer.space_checked = Some((Instant::now(), enough));
        enough
    }

    /// Reads rows of one engine: a second look for it could wait for a fresh start that waits for this read.
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
    /// Leaves the mark of an orderly close: from here on every byte of the journals counts.
    fn drop(&mut self) {
        // The engine goes first: it may still write while it stops, and the folder is locked until then.
        self.health.stop();
        drop(self.kv.get_mut().take());
        if let Some(refused_from) = self.writer.get_mut().refused_from {
            if let Err(error) = journal::cut_refused(&self.folder, refused_from) {
                tracing::warn!(%error, "what was refused could not be cut; it may be there when the store opens");
            }
            return;
        }
        let marked = journal::lengths(&self.folder.engine_path())
            .and_then(|journals| self.folder.write_closed_mark(&ClosedMark { journals }));
        if let Err(error) = marked {
            tracing::warn!(%error, "no mark of an orderly close could be left");
        }
    }
}

impl Store for EmbeddedStore {
    fn settle(&self, _: Term) -> StoreResult<()> {
        self.settle_writes()
    }

    fn commit(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<Vec<Outcome>> {
        let mut writer = self.writer.lock();
        if !self.has_space(&mut writer) {
            return Err(StoreError::DiskFull);
        }
        self.start_afresh_if_refused(&mut writer)?;
        let kv = self.kv()?;
        let mut scratch = Scratch::new(&*kv, &self.heads, writer.counters, self.options.outbox, now_ms);
        let outcomes = batch.iter().map(|proposal| scratch.propose(proposal)).collect::<StoreResult<Vec<_>>>()?;
        let writes = scratch.finish()?;
        let (counters, heads, begun) = (scratch.counters, scratch.heads, scratch.begun);
        if !writes.puts.is_empty() {
            let said = Said { position: counters.position, heads: Some(&heads), begun: Some(&begun) };
            self.write(&mut writer, &kv, writes, said)?;
        }
        writer.counters = counters;
        for (conversation, head) in heads {
            self.heads.insert(conversation, head);
        }
        self.position.store(counters.position, Ordering::Release);
        Ok(outcomes)
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn last_position(&self) -> Position {
        self.position.load(Ordering::Acquire)
    }

    fn user_no(&self, id: &str) -> StoreResult<Option<UserNo>> {
        let row = self.kv()?.get(Space::Meta, &id_key(b'u', id)).map_err(store_error)?;
        Ok(row.and_then(|row| number_at(&row, 0)).map(UserNo))
    }

    fn user(&self, no: UserNo) -> StoreResult<Option<User>> {
        read_user(&*self.kv()?, no)
    }

    fn last_seen(&self, no: UserNo) -> StoreResult<Option<u64>> {
        let row = self.kv()?.get(Space::Meta, &key(b's', &[no.0])).map_err(store_error)?;
        Ok(row.and_then(|row| number_at(&row, 0)))
    }

    fn conversation_no(&self, id: &str) -> StoreResult<Option<ConversationNo>> {
        let row = self.kv()?.get(Space::Meta, &id_key(b'c', id)).map_err(store_error)?;
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

    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        read_membership(&*self.kv()?, conversation, user)
    }

    fn members(
        &self,
        conversation: ConversationNo,
        after: Option<UserNo>,
        limit: usize,
    ) -> StoreResult<Vec<(UserNo, Membership)>> {
        let low = key(b'm', &[conversation.0, after.map_or(0, |user| user.0 + 1)]);
        let high = key(b'm', &[conversation.0, u64::MAX]);
        Self::scan_values(&*self.kv()?, Space::Meta, &low, &high, limit, Order::Up, |key, row| {
            let user = number_at(key, 9).ok_or_else(|| damaged("a member's key"))?;
            Ok((UserNo(user), decode::<MembershipRow>(row)?.membership()))
        })
    }

    fn conversations_of(&self, user: UserNo, direct: bool, limit: usize) -> StoreResult<Vec<UserConversation>> {
        let first = if direct { ConversationKind::Direct } else { ConversationKind::Group };
        let low = place_key(user, first, ConversationNo(0));
        let high = place_key(user, ConversationKind::Official, ConversationNo(u64::MAX));
        Self::scan_values(&*self.kv()?, Space::Meta, &low, &high, limit, Order::Up, |key, _| {
            let conversation = number_at(key, 10).ok_or_else(|| damaged("a place's key"))?;
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
        let order = if from == End::Oldest { Order::Up } else { Order::Down };
        let (low, high) = (entry_key(conversation, from_seq), entry_key(conversation, to_seq));
        // One state for the entries and the parts of their bodies: retention removes both beside this.
        let kv = self.kv()?;
        let kv = kv.snapshot();
        let mut entries = Self::scan_values(&*kv, Space::Timeline, &low, &high, limit, order, |key, row| {
            let seq = number_at(key, 8).ok_or_else(|| damaged("an entry's key"))?;
            decode_entry(seq, row, |count| read_parts(&*kv, conversation, seq, count))
        })?;
        if order == Order::Down {
            entries.reverse();
        }
        Ok(entries)
    }

    fn seq_at(&self, conversation: ConversationNo, at_ms: u64) -> StoreResult<u64> {
        let head = self.head(conversation)?;
        // Times never decrease with the sequence, so halving finds the first.
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
        let mark = read_outbox_mark(&*kv)?;
        let after = after.max(mark.through);
        let mut items = Vec::new();
        // The row that may hold the next item begins at or before it: rows long read are not walked over.
        let mut low = key(b'o', &[mark.first_row]);
        let next = key(b'o', &[after.saturating_add(1)]);
        if low < next {
            kv.scan(Space::Meta, &low.clone(), &next, Order::Down, &mut |key, _| {
                low = key.to_vec();
                false
            })
            .map_err(store_error)?;
        }
        let high = key(b'o', &[u64::MAX]);
        kv.scan(Space::Meta, &low, &high, Order::Up, &mut |_, row| {
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

    fn outbox_done(&self) -> StoreResult<Position> {
        Ok(read_outbox_mark(&*self.kv()?)?.through)
    }

    fn dead_notifications(&self, after: Option<u64>, limit: usize) -> StoreResult<Vec<DeadNotification>> {
        let low = key(b'd', &[after.map_or(0, |id| id.saturating_add(1))]);
        let high = key(b'd', &[u64::MAX]);
        Self::scan_values(&*self.kv()?, Space::Meta, &low, &high, limit, Order::Up, |key, row| {
            let id = number_at(key, 1).ok_or_else(|| damaged("a dead notification's key"))?;
            Ok(decode::<DeadRow>(row)?.notification(id))
        })
    }

    fn retain(&self, retention: Retention, now_ms: u64) -> StoreResult<u64> {
        self.remove_old(retention, now_ms)
    }

    fn trouble(&self) -> Option<String> {
        self.health.trouble()
    }

    fn stats(&self) -> StoreStats {
        let Ok(kv) = self.kv() else { return StoreStats::default() };
        let timeline_bytes = self.timeline_bytes().unwrap_or(0);
        StoreStats { disk_bytes: kv.disk_bytes(), timeline_bytes, journals: kv.journals(), ..StoreStats::default() }
    }
}

impl EmbeddedStore {
    /// After a fresh start the journals tell what was written.
    fn settle_writes(&self) -> StoreResult<()> {
        let mut writer = self.writer.lock();
        if !self.has_space(&mut writer) {
            return Err(StoreError::DiskFull);
        }
        self.start_afresh_if_refused(&mut writer)
    }

    /// Writes what is not a commit, such as what retention removes; `shortened` is the conversation whose
    /// head that changes.
    pub(crate) fn write_aside(&self, batch: Batch, shortened: Option<ConversationNo>) -> StoreResult<()> {
        let mut writer = self.writer.lock();
        if batch.puts.is_empty() {
            return Ok(());
        }
        // No look at the free space: what this removes is what makes room.
        self.start_afresh_if_refused(&mut writer)?;
        self.write(&mut writer, &*self.kv()?, batch, Said::nothing())?;
        // Still under the lock, or a commit would put the old head back.
        if let Some(conversation) = shortened {
            self.heads.remove(&conversation);
        }
        Ok(())
    }

    /// Writes what is no commit but takes room as one does.
    pub(crate) fn write_beside(&self, batch: Batch) -> StoreResult<()> {
        let mut writer = self.writer.lock();
        if !self.has_space(&mut writer) {
            return Err(StoreError::DiskFull);
        }
        self.start_afresh_if_refused(&mut writer)?;
        self.write(&mut writer, &*self.kv()?, batch, Said::nothing())
            .map_err(|error| StoreError::Unsure(error.to_string()))
    }

    /// A write that fails leaves the engine unfit for more.
    pub(crate) fn write(&self, writer: &mut Writer, kv: &FjallKv, batch: Batch, said: Said) -> StoreResult<()> {
        // Before the write: all that was acknowledged has a lower number, and this batch has none yet.
        let number = kv.next_number();
        let committed = kv.commit(batch).and_then(|batch| {
            let position = said.position.max(writer.counters.position);
            Ok(writer.tracker.committed(batch, position, said.reached())?)
        });
        committed.map_err(|error| {
            writer.refused_from = Some(number);
            writer.has_stopped = matches!(error, KvError::Stopped);
            writer.space_checked = None;
            // Not `DiskFull`, even if that is why: a crash before the fresh start may leave the batch whole.
            StoreError::Unavailable(error.to_string())
        })
    }
}

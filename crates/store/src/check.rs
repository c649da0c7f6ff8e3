//! Verifies a data folder: its files, and then every row against the rows that it must agree with.

mod desks;
mod messages;
mod push;
mod push_tokens;

use crate::{
    damage::{DamageReport, FileFault},
    embedded::EmbeddedStore,
    errors::{OpenError, store_error},
    first_results::*,
    folder::Folder,
    folder_view::FolderView,
    inspect::inspect,
    kv::*,
    options::EmbeddedOptions,
    reads::*,
    rows::*,
    tables,
};
use messages::ChangedMessages;
use push::check_push;
use push_tokens::check_push_tokens;
use std::{collections::HashMap, fmt, path::Path};
use tidings_domain::{model::*, store::*};

/// Faults that are listed; further ones are only counted.
const FAULTS_NAMED: usize = 100;

/// The result of a check: counts of rows, and every fault.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct CheckReport {
    pub users: u64,
    pub conversations: u64,
    pub memberships: u64,
    pub entries: u64,
    pub split_bodies: u64,
    pub dedupe_entries: u64,
    pub last_position: u64,
    pub devices: u64,
    pub pushes: u64,
    /// Pairs of a push and a device that has not acknowledged it, of pushes to named devices.
    pub pending_pushes: u64,
    /// Devices that providers reach.
    pub push_tokens: u64,
    pub popups: u64,
    pub popup_segments: u64,
    /// Users with exposures of popups.
    pub popup_users: u64,
    pub popup_events: u64,
    /// Tables of the engine whose checksums were verified, and their bytes.
    pub tables: u64,
    pub table_bytes: u64,
    pub fault_count: u64,
    pub faults: Vec<String>,
    /// The faults of files; each is in `faults` as well.
    pub damage: Vec<FileFault>,
    /// Remarks that are no faults, such as damage to a file of which nothing is lost.
    pub notes: Vec<String>,
}

impl CheckReport {
    pub(crate) fn fault(&mut self, fault: impl fmt::Display) {
        self.fault_count += 1;
        if self.faults.len() < FAULTS_NAMED {
            self.faults.push(fault.to_string());
        }
    }

    /// Adds a file's fault, if it is the first of that file.
    fn file_fault(&mut self, fault: FileFault) {
        if self.damage.iter().all(|known| known.file != fault.file) {
            self.fault(&fault);
            self.damage.push(fault);
        }
    }

    /// Whether no fault was found.
    pub fn is_sound(&self) -> bool {
        self.fault_count == 0
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "users          {:>12}", self.users)?;
        writeln!(f, "conversations  {:>12}", self.conversations)?;
        writeln!(f, "memberships    {:>12}", self.memberships)?;
        writeln!(f, "entries        {:>12}", self.entries)?;
        writeln!(f, "split bodies   {:>12}", self.split_bodies)?;
        writeln!(f, "dedupe entries {:>12}", self.dedupe_entries)?;
        writeln!(f, "last position  {:>12}", self.last_position)?;
        writeln!(f, "devices        {:>12}", self.devices)?;
        writeln!(f, "pushes         {:>12}", self.pushes)?;
        writeln!(f, "pending pushes {:>12}", self.pending_pushes)?;
        writeln!(f, "push tokens    {:>12}", self.push_tokens)?;
        writeln!(f, "popups         {:>12}", self.popups)?;
        writeln!(f, "popup segments {:>12}", self.popup_segments)?;
        writeln!(f, "popup users    {:>12}", self.popup_users)?;
        writeln!(f, "popup events   {:>12}", self.popup_events)?;
        writeln!(f, "tables         {:>12}", self.tables)?;
        writeln!(f, "table bytes    {:>12}", self.table_bytes)?;
        writeln!(f, "faults         {:>12}", self.fault_count)?;
        self.faults.iter().try_for_each(|fault| writeln!(f, "  {fault}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        if self.damage.is_empty() { Ok(()) } else { writeln!(f, "{}", DamageReport(self.damage.clone())) }
    }
}

/// Checks a folder that no server has open: its files first, then, if the engine opens, every row; those of popups by
/// `rows`. Nothing in the folder is changed.
///
/// # Errors
/// There is no data folder at the path ([`OpenError::Io`]), another process has it open ([`OpenError::Locked`]) or a newer
/// version wrote it ([`OpenError::Format`]). Damage is no error: it is in the report.
pub fn check(path: &Path, rows: RowsCheck) -> Result<CheckReport, OpenError> {
    let view = FolderView::of(path)?;
    let path = view.path();
    let mut files = check_files(path)?;
    let report = match EmbeddedStore::open(EmbeddedOptions::new(path)) {
        Ok(store) => store.check(rows).unwrap_or_else(|error| {
            let mut report = CheckReport::default();
            report.fault(format_args!("not all rows could be read: {error}"));
            report
        }),
        Err(OpenError::Damaged(DamageReport(faults))) => {
            faults.into_iter().for_each(|fault| files.file_fault(fault));
            CheckReport::default()
        }
        Err(OpenError::Engine(what)) => {
            files.fault(what);
            CheckReport::default()
        }
        Err(other) => return Err(other),
    };
    let CheckReport { tables, table_bytes, fault_count, mut faults, damage, mut notes, .. } = files;
    faults.extend(report.faults);
    notes.extend(report.notes);
    let fault_count = fault_count + report.fault_count;
    Ok(CheckReport { tables, table_bytes, fault_count, faults, damage, notes, ..report })
}

/// Checks the files without opening the engine: what the engine needs to open, and every table's checksum.
fn check_files(path: &Path) -> Result<CheckReport, OpenError> {
    let mut report = CheckReport::default();
    let folder = match Folder::lock(path) {
        Ok(folder) => folder,
        Err(OpenError::Damaged(DamageReport(faults))) => {
            faults.into_iter().for_each(|fault| report.file_fault(fault));
            Folder::lock_any_format(path)?
        }
        Err(other) => return Err(other),
    };
    let found = inspect(&folder)?;
    for table in found.tables() {
        match tables::verify(table) {
            Ok(bytes) => {
                report.tables += 1;
                report.table_bytes += bytes;
            }
            Err(fault) => report.file_fault(fault),
        }
    }
    found.faults.into_iter().for_each(|fault| report.file_fault(fault));
    let damaged_log =
        |file| format!("{file}: this acknowledgement log is damaged before its end; its later records were not read");
    report.notes.extend(found.acked.damaged.into_iter().map(damaged_log));
    Ok(report)
}

const FIRST_KEY: &[u8] = &[];

impl EmbeddedStore {
    /// Checks every row of the open store against the rows that it must agree with.
    ///
    /// # Errors
    /// A row cannot be read at all. A row that can be read but not decoded, or does not fit others, is in the report.
    pub fn check(&self, rows: RowsCheck) -> StoreResult<CheckReport> {
        let mut report = CheckReport { last_position: self.last_position(), ..CheckReport::default() };
        let (engine, _guard) = self.kv_for_long_read()?;
        let kv = engine.snapshot();
        check_ids(&*kv, &mut report)?;
        let first_seqs = check_conversations(&*kv, &mut report)?;
        let timelines = check_entries(&*kv, &first_seqs, &mut report)?;
        if timelines.opaque > 0 {
            let opaque = timelines.opaque;
            report.notes.push(format!(
                "{opaque} entries were written by a newer version, and have kinds that this one does not know"
            ));
        }
        timelines.changed.check_rows(&*kv, &first_seqs, &mut report)?;
        check_dedupe(&*kv, timelines.entries_with_ids, &mut report)?;
        check_body_parts(&*kv, timelines.body_parts, &mut report)?;
        check_read_marks(&*kv, &timelines.last_seqs, &mut report)?;
        check_push(&*kv, &mut report)?;
        check_push_tokens(&*kv, read_counters(&*kv)?.users, &mut report)?;
        let checked = rows(self, &mut |fault| report.fault(fault))?;
        let CheckedRows { popups, segments, users, events } = checked;
        (report.popups, report.popup_segments, report.popup_users, report.popup_events) =
            (popups, segments, users, events);
        Ok(report)
    }
}

pub(crate) fn scan_meta(kv: &dyn KvRead, kind: MetaKind, mut visit: impl FnMut(&[u8], &[u8])) -> StoreResult<()> {
    let kind = kind.byte();
    kv.scan(Space::Meta, &[kind], &[kind + 1], Order::Ascending, &mut |key, row| {
        if key.first() == Some(&kind) {
            visit(key, row);
        }
        true
    })
    .map_err(store_error)
}

/// Every id must name the number whose row has that id, and no number may be beyond the counters.
fn check_ids(kv: &dyn KvRead, report: &mut CheckReport) -> StoreResult<()> {
    let counters = read_counters(kv)?;
    let mut dangling = Vec::new();
    scan_meta(kv, MetaKind::UserId, |key, row| {
        let named = number_at(row, 0).and_then(|no| read_user(kv, UserNo(no)).ok().flatten());
        if named.is_none_or(|user| user.id.as_bytes() != &key[1..] || user.no.0 > counters.users) {
            dangling.push(("user", String::from_utf8_lossy(&key[1..]).into_owned()));
        }
    })?;
    scan_meta(kv, MetaKind::ConversationId, |key, row| {
        let named = number_at(row, 0).and_then(|no| read_conversation(kv, ConversationNo(no)).ok().flatten());
        if named.is_none_or(|details| details.id.as_bytes() != &key[1..] || details.no.0 > counters.conversations) {
            dangling.push(("conversation", String::from_utf8_lossy(&key[1..]).into_owned()));
        }
    })?;
    for (what, id) in dangling {
        report.fault(format_args!("the id of {what} {id:?} names a number without such a {what}"));
    }
    Ok(())
}

/// Checks users, conversations and members; answers the first sequence that each conversation must have.
fn check_conversations(kv: &dyn KvRead, report: &mut CheckReport) -> StoreResult<HashMap<u64, u64>> {
    scan_meta(kv, MetaKind::User, |key, row| {
        report.users += 1;
        let no = number_at(key, 1);
        if let Err(error) = decode_user(UserNo(no.unwrap_or(0)), row) {
            report.fault(format_args!("user {no:?}: {error}"));
        }
    })?;
    let mut members: HashMap<u64, u64> = HashMap::new();
    scan_meta(kv, MetaKind::Member, |key, row| {
        report.memberships += 1;
        *members.entry(number_at(key, 1).unwrap_or(0)).or_default() += 1;
        if let Err(error) = decode::<MembershipRow>(row) {
            report.fault(format_args!("member {:?} of {:?}: {error}", number_at(key, 9), number_at(key, 1)));
        }
    })?;
    let mut listed = 0;
    scan_meta(kv, MetaKind::UserConversation, |entry, _| {
        listed += 1;
        let (user, of) = (number_at(entry, 1), number_at(entry, 10));
        let membership = user.zip(of).map(|(user, of)| key(MetaKind::Member, &[of, user]));
        if membership.is_none_or(|key| !matches!(kv.get(Space::Meta, &key), Ok(Some(_)))) {
            report.fault(format_args!("the list of user {user:?} names conversation {of:?} without a membership"));
        }
    })?;
    if listed != report.memberships {
        let memberships = report.memberships;
        report.fault(format_args!("there are {memberships} memberships, but users' lists name {listed} conversations"));
    }
    let mut first_seqs = HashMap::new();
    scan_meta(kv, MetaKind::FirstSeq, |key, row| first_seqs.extend(number_at(key, 1).zip(number_at(row, 0))))?;
    scan_meta(kv, MetaKind::Conversation, |key, row| {
        report.conversations += 1;
        let no = number_at(key, 1).unwrap_or(0);
        match decode_conversation(ConversationNo(no), row) {
            Ok(details) => {
                let (expected, found) = (details.member_count, members.remove(&no).unwrap_or(0));
                if expected != found {
                    report.fault(format_args!("conversation {no} counts {expected} members and has {found}"));
                }
                first_seqs.entry(no).or_insert(1);
            }
            Err(error) => report.fault(format_args!("conversation {no}: {error}")),
        }
    })?;
    for no in members.keys() {
        report.fault(format_args!("there are members of conversation {no}, which does not exist"));
    }
    Ok(first_seqs)
}

/// What other rows must agree with.
#[derive(Default)]
struct Timelines {
    /// The number of entries that must have a dedupe row.
    entries_with_ids: u64,
    /// The number of parts of split bodies.
    body_parts: u64,
    /// The number of entries of kinds that this program does not know.
    opaque: u64,
    /// The last sequence of each conversation, by the conversation's number.
    last_seqs: HashMap<u64, u64>,
    changed: ChangedMessages,
}

/// Checks the entries of all timelines.
fn check_entries(kv: &dyn KvRead, first_seqs: &HashMap<u64, u64>, report: &mut CheckReport) -> StoreResult<Timelines> {
    let mut timelines = Timelines::default();
    let mut before: Option<(u64, StoredEntry)> = None;
    kv.scan(Space::Timeline, FIRST_KEY, LAST_KEY, Order::Ascending, &mut |key, row| {
        report.entries += 1;
        let (Some(no), Some(seq)) = (number_at(key, 0), number_at(key, 8)) else {
            report.fault("an entry's key is damaged");
            return true;
        };
        timelines.last_seqs.insert(no, seq);
        let mut part_count = 0;
        let parts = |count| {
            part_count = count;
            read_parts(kv, ConversationNo(no), seq, count)
        };
        let decoded = decode_entry(seq, row, parts);
        timelines.body_parts += u64::from(part_count);
        let entry = match decoded {
            Ok(entry) => {
                timelines.opaque += u64::from(entry.content.kind.is_opaque());
                entry
            }
            Err(error) => {
                report.fault(format_args!("conversation {no}: {error}"));
                return true;
            }
        };
        report.split_bodies += u64::from(part_count > 0);
        let previous = before.as_ref().filter(|(of, _)| *of == no).map(|(_, entry)| entry);
        let expected = previous.map_or_else(|| first_seqs.get(&no).copied(), |previous| Some(previous.seq + 1));
        match expected {
            None => report.fault(format_args!("there is entry {seq} of conversation {no}, which does not exist")),
            Some(expected) if expected != seq => {
                report.fault(format_args!("conversation {no}: entry {seq} stands where entry {expected} is due"));
            }
            Some(_) => {}
        }
        if previous.is_some_and(|p| p.position >= entry.position || p.at > entry.at) {
            report.fault(format_args!("conversation {no}: entry {seq} goes back in position or time"));
        }
        if entry.position > report.last_position {
            report.fault(format_args!("conversation {no}: entry {seq} is beyond the last position"));
        }
        if let Some((author, id)) = entry.content.idempotency_key() {
            let key = dedupe_key(ConversationNo(no), author, id);
            let found = read_first_result(kv, &key, true).ok().flatten().map(|(first, _)| first.appended);
            let (conversation, at, position) = (ConversationNo(no), entry.at, entry.position);
            // Earlier versions stored no first result of an entry without an author.
            let is_former = author == UserNo::NOBODY && found.is_none();
            timelines.entries_with_ids += u64::from(!is_former);
            if !is_former && found != Some(Appended { conversation, seq, at, position, duplicate: true }) {
                report.fault(format_args!("conversation {no}: entry {seq} and its dedupe entry differ"));
            }
        }
        let first_seq = first_seqs.get(&no).copied().unwrap_or(1);
        timelines.changed.check_entry(kv, no, first_seq, &entry, report);
        before = Some((no, entry));
        true
    })
    .map_err(store_error)?;
    Ok(timelines)
}

/// There must be no more parts of bodies than the entries name. A missing part is found when its entry is read.
fn check_body_parts(kv: &dyn KvRead, named: u64, report: &mut CheckReport) -> StoreResult<()> {
    let mut parts = 0;
    kv.scan(Space::Bodies, FIRST_KEY, LAST_KEY, Order::Ascending, &mut |_, _| {
        parts += 1;
        true
    })
    .map_err(store_error)?;
    if parts > named {
        report.fault(format_args!("there are {parts} parts of bodies, and entries name {named}"));
    }
    Ok(())
}

/// No read mark may lie beyond its conversation's last entry.
fn check_read_marks(kv: &dyn KvRead, last_seqs: &HashMap<u64, u64>, report: &mut CheckReport) -> StoreResult<()> {
    scan_meta(kv, MetaKind::Member, |key, row| {
        let (of, user) = (number_at(key, 1).unwrap_or(0), number_at(key, 9).unwrap_or(0));
        let last_seq = last_seqs.get(&of).copied().unwrap_or(0);
        if let Ok(row) = decode::<MembershipRow>(row)
            && row.membership().read_seq > last_seq
        {
            report.fault(format_args!("conversation {of}: user {user} has read beyond the last entry {last_seq}"));
        }
    })
}

/// Every dedupe row must name an entry. If there are as many rows as entries with ids, each such entry has one.
fn check_dedupe(kv: &dyn KvRead, entries_with_ids: u64, report: &mut CheckReport) -> StoreResult<()> {
    kv.scan(Space::Dedupe, FIRST_KEY, LAST_KEY, Order::Ascending, &mut |_, row| {
        report.dedupe_entries += 1;
        if let [conversation, seq, ..] = numbers(row)[..]
            && kv.get(Space::Timeline, &entry_key(ConversationNo(conversation), seq)).ok().flatten().is_some()
        {
            return true;
        }
        report.fault("a dedupe entry names an entry that does not exist");
        true
    })
    .map_err(store_error)?;
    if report.dedupe_entries != entries_with_ids {
        let dedupe = report.dedupe_entries;
        report.fault(format_args!("there are {dedupe} dedupe entries for {entries_with_ids} entries with ids"));
    }
    Ok(())
}

//! Verifies a data folder: what must be true of every row, counted and compared.

use crate::{
    check_push::check_push,
    embedded::{EmbeddedOptions, EmbeddedStore, OpenError, store_error},
    folder::Folder,
    inspect::inspect,
    kv::*,
    problem::{Damage, Problem},
    reads::*,
    rows::*,
    tables,
};
use std::{collections::HashMap, fmt, path::Path};
use tidings_engine::{
    model::*,
    popups::{CheckedRows, check_popups},
    store::*,
};

/// Faults named one by one; the rest is counted.
const FAULTS_NAMED: usize = 100;

/// What a check found.
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
    /// Pushes that wait for a device by name, each with each.
    pub pending_pushes: u64,
    pub popups: u64,
    pub popup_segments: u64,
    /// Users who were shown a popup.
    pub popup_users: u64,
    pub popup_events: u64,
    /// Tables of the engine whose checksums were compared, and their bytes.
    pub tables: u64,
    pub table_bytes: u64,
    pub fault_count: u64,
    pub faults: Vec<String>,
    /// Files that are not as they were left; faults too.
    pub damage: Vec<Problem>,
    /// Files that tell less than they might, without anything being lost.
    pub notes: Vec<String>,
}

impl CheckReport {
    pub(crate) fn fault(&mut self, fault: impl fmt::Display) {
        self.fault_count += 1;
        if self.faults.len() < FAULTS_NAMED {
            self.faults.push(fault.to_string());
        }
    }

    /// A file is a fault once, whatever is wrong with it.
    fn damaged(&mut self, problem: Problem) {
        if self.damage.iter().all(|known| known.file != problem.file) {
            self.fault(&problem);
            self.damage.push(problem);
        }
    }

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
        writeln!(f, "popups         {:>12}", self.popups)?;
        writeln!(f, "popup segments {:>12}", self.popup_segments)?;
        writeln!(f, "popup users    {:>12}", self.popup_users)?;
        writeln!(f, "popup events   {:>12}", self.popup_events)?;
        writeln!(f, "tables         {:>12}", self.tables)?;
        writeln!(f, "table bytes    {:>12}", self.table_bytes)?;
        writeln!(f, "faults         {:>12}", self.fault_count)?;
        self.faults.iter().try_for_each(|fault| writeln!(f, "  {fault}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        match self.damage.is_empty() {
            true => Ok(()),
            false => writeln!(f, "{}", Damage(self.damage.clone())),
        }
    }
}

/// Checks a folder that no server has open: its files first, then, if the engine opens them, every row.
pub fn check(path: &Path) -> Result<CheckReport, OpenError> {
    // Looking must not make an empty store where there is none.
    if !Folder::is_one(path) {
        return Err(std::io::Error::new(
            std::io::ErrorKind::NotFound,
            format!("{} is not a data folder", path.display()),
        )
        .into());
    }
    let mut files = check_files(path)?;
    let report = match EmbeddedStore::open(EmbeddedOptions::new(path)) {
        Ok(store) => store.check().unwrap_or_else(|error| {
            let mut report = CheckReport::default();
            report.fault(format_args!("not all rows could be read: {error}"));
            report
        }),
        Err(OpenError::Damaged(Damage(problems))) => {
            problems.into_iter().for_each(|problem| files.damaged(problem));
            CheckReport::default()
        }
        Err(OpenError::Engine(what)) => {
            files.fault(what);
            CheckReport::default()
        }
        Err(other) => return Err(other),
    };
    let CheckReport { tables, table_bytes, fault_count, mut faults, damage, notes, .. } = files;
    faults.extend(report.faults);
    let fault_count = fault_count + report.fault_count;
    Ok(CheckReport { tables, table_bytes, fault_count, faults, damage, notes, ..report })
}

/// What the engine would stumble over, and every table's checksum.
fn check_files(path: &Path) -> Result<CheckReport, OpenError> {
    let mut report = CheckReport::default();
    let folder = match Folder::take(path) {
        Ok(folder) => folder,
        Err(OpenError::Damaged(Damage(problems))) => {
            problems.into_iter().for_each(|problem| report.damaged(problem));
            Folder::take_as_it_is(path)?
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
            Err(problem) => report.damaged(problem),
        }
    }
    found.problems.into_iter().for_each(|problem| report.damaged(problem));
    let damaged = |file| format!("{file}: damaged before its end; what it tells of the newest batches is not known");
    report.notes.extend(found.acknowledged.damaged.into_iter().map(damaged));
    Ok(report)
}

const FIRST: &[u8] = &[];

impl EmbeddedStore {
    /// Checks everything against everything.
    pub fn check(&self) -> StoreResult<CheckReport> {
        let mut report = CheckReport { last_position: self.last_position(), ..CheckReport::default() };
        let (engine, _turn) = self.kv_for_long()?;
        let kv = engine.snapshot();
        check_names(&*kv, &mut report)?;
        let kept = check_conversations(&*kv, &mut report)?;
        let found = check_entries(&*kv, &kept, &mut report)?;
        check_dedupe(&*kv, found.with_ids, &mut report)?;
        check_parts(&*kv, found.parts, &mut report)?;
        check_marks(&*kv, &found.last_seqs, &mut report)?;
        check_push(&*kv, &mut report)?;
        let checked = check_popups(self, &mut |fault| report.fault(fault))?;
        let CheckedRows { popups, segments, users, events } = checked;
        (report.popups, report.popup_segments, report.popup_users, report.popup_events) =
            (popups, segments, users, events);
        Ok(report)
    }
}

pub(crate) fn scan_meta(kv: &dyn KvRead, kind: u8, mut visit: impl FnMut(&[u8], &[u8])) -> StoreResult<()> {
    kv.scan(Space::Meta, &[kind], &[kind + 1], Order::Up, &mut |key, row| {
        if key.first() == Some(&kind) {
            visit(key, row);
        }
        true
    })
    .map_err(store_error)
}

/// Every id must stand for the number whose row has that id, and no number may be beyond the counters.
fn check_names(kv: &dyn KvRead, report: &mut CheckReport) -> StoreResult<()> {
    let counters = read_counters(kv)?;
    let mut stray = Vec::new();
    scan_meta(kv, b'u', |key, row| {
        let named = number_at(row, 0).and_then(|no| read_user(kv, UserNo(no)).ok().flatten());
        if named.is_none_or(|user| user.id.as_bytes() != &key[1..] || user.no.0 > counters.users) {
            stray.push(("user", String::from_utf8_lossy(&key[1..]).into_owned()));
        }
    })?;
    scan_meta(kv, b'c', |key, row| {
        let named = number_at(row, 0).and_then(|no| read_conversation(kv, ConversationNo(no)).ok().flatten());
        if named.is_none_or(|card| card.id.as_bytes() != &key[1..] || card.no.0 > counters.conversations) {
            stray.push(("conversation", String::from_utf8_lossy(&key[1..]).into_owned()));
        }
    })?;
    for (what, id) in stray {
        report.fault(format_args!("the id of {what} {id:?} stands for no such {what}"));
    }
    Ok(())
}

/// Counts users, conversations and members; answers the oldest sequence kept per conversation.
fn check_conversations(kv: &dyn KvRead, report: &mut CheckReport) -> StoreResult<HashMap<u64, u64>> {
    scan_meta(kv, b'U', |key, row| {
        report.users += 1;
        if let Err(error) = decode::<UserRow>(row) {
            report.fault(format_args!("user {:?}: {error}", number_at(key, 1)));
        }
    })?;
    let mut members: HashMap<u64, u64> = HashMap::new();
    scan_meta(kv, b'm', |key, row| {
        report.memberships += 1;
        *members.entry(number_at(key, 1).unwrap_or(0)).or_default() += 1;
        if let Err(error) = decode::<MembershipRow>(row) {
            report.fault(format_args!("member {:?} of {:?}: {error}", number_at(key, 9), number_at(key, 1)));
        }
    })?;
    let mut places = 0;
    scan_meta(kv, b'r', |place, _| {
        places += 1;
        let membership = number_at(place, 1).zip(number_at(place, 10)).map(|(user, of)| key(b'm', &[of, user]));
        if membership.is_none_or(|key| !matches!(kv.get(Space::Meta, &key), Ok(Some(_)))) {
            report.fault(format_args!("user {:?} is in a place without a membership", number_at(place, 1)));
        }
    })?;
    if places != report.memberships {
        let memberships = report.memberships;
        report.fault(format_args!("{memberships} memberships, but users are in {places} places"));
    }
    let mut kept = HashMap::new();
    scan_meta(kv, b'f', |key, row| kept.extend(number_at(key, 1).zip(number_at(row, 0))))?;
    scan_meta(kv, b'C', |key, row| {
        report.conversations += 1;
        let no = number_at(key, 1).unwrap_or(0);
        match decode::<ConversationRow>(row) {
            Ok(row) => {
                let (expected, found) =
                    (row.conversation(ConversationNo(no)).member_count, members.remove(&no).unwrap_or(0));
                if expected != found {
                    report.fault(format_args!("conversation {no} counts {expected} members and has {found}"));
                }
                kept.entry(no).or_insert(1);
            }
            Err(error) => report.fault(format_args!("conversation {no}: {error}")),
        }
    })?;
    for no in members.keys() {
        report.fault(format_args!("members of conversation {no}, which does not exist"));
    }
    Ok(kept)
}

/// What the timelines say that other rows must agree with.
#[derive(Default)]
struct Timelines {
    /// Entries that have a dedupe entry of their own.
    with_ids: u64,
    /// Parts of split bodies.
    parts: u64,
    last_seqs: HashMap<u64, u64>,
}

/// Walks all timelines.
fn check_entries(kv: &dyn KvRead, kept: &HashMap<u64, u64>, report: &mut CheckReport) -> StoreResult<Timelines> {
    let mut timelines = Timelines::default();
    let mut before: Option<(u64, StoredEntry)> = None;
    kv.scan(Space::Timeline, FIRST, LAST_KEY, Order::Up, &mut |key, row| {
        report.entries += 1;
        let (Some(no), Some(seq)) = (number_at(key, 0), number_at(key, 8)) else {
            report.fault("an entry's key");
            return true;
        };
        timelines.last_seqs.insert(no, seq);
        let mut split = 0;
        let parts = |count| {
            split = count;
            read_parts(kv, ConversationNo(no), seq, count)
        };
        let decoded = decode_entry(seq, row, parts);
        timelines.parts += u64::from(split);
        let entry = match decoded {
            Ok(entry) => entry,
            Err(error) => {
                report.fault(format_args!("conversation {no}: {error}"));
                return true;
            }
        };
        report.split_bodies += u64::from(split > 0);
        let previous = before.as_ref().filter(|(of, _)| *of == no).map(|(_, entry)| entry);
        let expected = previous.map_or_else(|| kept.get(&no).copied(), |previous| Some(previous.seq + 1));
        match expected {
            None => report.fault(format_args!("entry {seq} of conversation {no}, which does not exist")),
            Some(expected) if expected != seq => {
                report.fault(format_args!("conversation {no}: {seq} stands where {expected} is due"));
            }
            Some(_) => {}
        }
        if previous.is_some_and(|p| p.position >= entry.position || p.at > entry.at) {
            report.fault(format_args!("conversation {no}: entry {seq} goes back in position or time"));
        }
        if entry.position > report.last_position {
            report.fault(format_args!("conversation {no}: entry {seq} is beyond the last position"));
        }
        if let (Some(sender), Some(id)) = (&entry.content.sender, &entry.content.client_msg_id) {
            timelines.with_ids += 1;
            let found = kv.get(Space::Dedupe, &dedupe_key(sender.no, id)).ok().flatten();
            if found.as_deref() != Some(&numbers_row(&[no, seq, entry.at, entry.position])) {
                report.fault(format_args!("conversation {no}: entry {seq} and its dedupe entry differ"));
            }
        }
        before = Some((no, entry));
        true
    })
    .map_err(store_error)?;
    Ok(timelines)
}

/// As many parts as the entries name: one that is missing is found where its entry is read.
fn check_parts(kv: &dyn KvRead, named: u64, report: &mut CheckReport) -> StoreResult<()> {
    let mut parts = 0;
    kv.scan(Space::Bodies, FIRST, LAST_KEY, Order::Up, &mut |_, _| {
        parts += 1;
        true
    })
    .map_err(store_error)?;
    if parts > named {
        report.fault(format_args!("{parts} parts of bodies, and entries name {named}"));
    }
    Ok(())
}

/// Nobody has read what is not there.
fn check_marks(kv: &dyn KvRead, last_seqs: &HashMap<u64, u64>, report: &mut CheckReport) -> StoreResult<()> {
    scan_meta(kv, b'm', |key, row| {
        let (of, user) = (number_at(key, 1).unwrap_or(0), number_at(key, 9).unwrap_or(0));
        let last_seq = last_seqs.get(&of).copied().unwrap_or(0);
        if let Ok(row) = decode::<MembershipRow>(row)
            && row.membership().read_seq > last_seq
        {
            report.fault(format_args!("conversation {of}: user {user} has read beyond its last entry {last_seq}"));
        }
    })
}

/// Every dedupe entry must name an entry; as many as entries with ids then means one each.
fn check_dedupe(kv: &dyn KvRead, with_ids: u64, report: &mut CheckReport) -> StoreResult<()> {
    kv.scan(Space::Dedupe, FIRST, LAST_KEY, Order::Up, &mut |_, row| {
        report.dedupe_entries += 1;
        if let [conversation, seq, ..] = numbers(row)[..]
            && kv.get(Space::Timeline, &entry_key(ConversationNo(conversation), seq)).ok().flatten().is_some()
        {
            return true;
        }
        report.fault("a dedupe entry names no entry");
        true
    })
    .map_err(store_error)?;
    if report.dedupe_entries != with_ids {
        let dedupe = report.dedupe_entries;
        report.fault(format_args!("{dedupe} dedupe entries for {with_ids} entries with ids"));
    }
    Ok(())
}

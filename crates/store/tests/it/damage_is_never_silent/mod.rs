//! Damages every file of a data folder in many ways, after a crash and after a clean shutdown. The folder must open whole or
//! be refused with a remedy. The test compares the store with its own record of all acknowledged messages.
//!
//! The cases are in `cases.rs`. The table of results is printed:
//! `cargo test -p tidings-store --test it damage_is_never_silent -- --nocapture`.
// Slow: left out by `make test-quick`.

mod cases;

use crate::support::*;
use cases::{Case, Expected, JOURNALS, OTHERS};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tidings_domain::{model::*, store::*};
use tidings_store::{
    EmbeddedOptions, EmbeddedStore, LostSeqs, OpenError,
    check::{CheckReport, check},
    repair,
};

/// A message: the conversation's number, and the `seq`.
type MessageKey = (u64, u64);
/// The acknowledged messages, each with its client message id.
type Record = BTreeMap<MessageKey, String>;
/// A folder's files, by their paths in it.
pub(crate) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Rows of this size nearly fill a journal: the engine begins another one soon after 64 MB.
const FILLED_BYTES: usize = 63_000_000;
/// Cases tried at once.
const THREADS: usize = 2;
const USERS: usize = 1_500;
/// Rows per batch that fills a journal. They are in a space of which the record holds nothing.
const FILLING_ROWS: usize = 40;
const FILLING_BYTES: usize = 3_000;

/// Small memtables, so that every space has tables on the disk.
fn options_of(path: &Path) -> EmbeddedOptions {
    EmbeddedOptions { memtable_bytes: 192 << 10, ..options(path) }
}

/// The store before it is damaged, with the record of its acknowledged messages.
struct Workload {
    store: EmbeddedStore,
    record: Record,
    sent: usize,
}

impl Workload {
    fn begin(folder: &Path) -> Workload {
        let store = EmbeddedStore::open(options_of(folder)).unwrap();
        populate(&store);
        for room in ["h", "i"] {
            group(&store, room);
        }
        let user = |n| UserPatch { id: format!("user-{n}"), name: Some("n".repeat(100)), ..UserPatch::default() };
        store.commit(&[Proposal::PutUsers((0..USERS).map(user).collect())], NOON).unwrap();
        Workload { store, record: Record::new(), sent: 0 }
    }

    fn send(&mut self, count: usize) {
        let ids: Vec<_> = (self.sent..self.sent + count).map(|n| format!("m{n}")).collect();
        let room = |n: usize| ConversationNo((self.sent + n) as u64 % 3 + 1);
        let batch: Vec<_> = ids.iter().enumerate().map(|(n, id)| append(room(n), id)).collect();
        for (id, outcome) in ids.into_iter().zip(self.store.commit(&batch, NOON).unwrap()) {
            let Outcome::Appended(appended) = outcome else { panic!("{outcome:?}") };
            self.record.insert((appended.conversation.0, appended.seq), id);
        }
        self.sent += count;
    }

    fn fill(&self, bytes: usize) {
        let rows = |batch: usize| {
            (0..FILLING_ROWS)
                .map(|row| RowChange {
                    key: format!("fill-{batch}-{row}").into(),
                    value: Some(vec![b'f'; FILLING_BYTES]),
                })
                .collect()
        };
        for batch in 0..bytes / (FILLING_ROWS * FILLING_BYTES) {
            self.store.write_rows(Term::ALONE, RowSpace::Popups, rows(batch)).unwrap();
        }
    }
}

fn add_files(root: &Path, folder: &Path, files: &mut Files) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            add_files(root, &path, files)?;
        } else {
            let mut bytes = fs::read(&path)?;
            if path.extension().is_some_and(|extension| extension == "jnl") {
                // The engine preallocates tens of MB of zeros.
                bytes.truncate(written(&bytes));
            }
            files.insert(path.strip_prefix(root).unwrap().to_owned(), bytes);
        }
    }
    Ok(())
}

/// The files of a folder at one moment. The engine merges tables in threads of its own, so two reads must agree.
fn read_files(folder: &Path) -> Files {
    let read = || {
        let mut files = Files::new();
        add_files(folder, folder, &mut files).ok().map(|()| files)
    };
    let mut before = None;
    loop {
        match read() {
            Some(now) if before.as_ref() == Some(&now) => return now,
            now => before = now,
        }
    }
}

fn write_files(folder: &Path, files: &Files) {
    for (path, bytes) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// The states of a folder to damage, and the messages that were acknowledged by then.
pub(crate) struct States {
    record: Record,
    /// The folder some time before the crash.
    pub(crate) earlier: Files,
    crashed: Files,
    stopped: Files,
}

/// Makes a store with so many journals; `filled_bytes` nearly fill the ones before the last.
fn states(filled_bytes: usize, journals: usize) -> States {
    let folder = scratch();
    let mut workload = Workload::begin(folder.path());
    workload.send(900);
    workload.fill(filled_bytes / 2);
    workload.send(300);
    let earlier = read_files(folder.path());
    workload.send(300);
    workload.fill(filled_bytes / 2);
    workload.send(60);
    while !folder.path().join(format!("acknowledged-{}", journals - 1)).exists() {
        workload.fill(filled_bytes / 100);
        workload.send(1);
    }
    workload.send(60);
    for _ in 0..6 {
        // One message a batch, as under little load.
        workload.send(1);
    }
    let crashed = read_files(folder.path());
    let Workload { store, record, .. } = workload;
    drop(store);
    let stopped = read_files(folder.path());
    States { record, earlier, crashed, stopped }
}

/// As [`states`], with all of these journals in the crashed folder: the engine's threads may have emptied and removed the first
/// one by then, on a busy machine more often.
fn states_with(filled_bytes: usize, journals: &[&str]) -> States {
    const TRIES_MAX: usize = 50;
    let mut tries = (0..TRIES_MAX).map(|_| states(filled_bytes, journals.len()));
    let has_all = |states: &States| journals.iter().all(|journal| states.crashed.contains_key(Path::new(journal)));
    let states = tries.find(has_all).expect("the engine removed a journal each time");
    cases::expect_variety(&states.crashed, journals);
    states
}

fn messages_of(store: &EmbeddedStore) -> Record {
    let mut found = Record::new();
    for room in 1..=3 {
        // A conversation that is lost has no entries.
        for entry in store.entries(ConversationNo(room), 0, u64::MAX, usize::MAX, End::Oldest).unwrap() {
            found.insert((room, entry.seq), entry.content.client_msg_id.unwrap());
        }
    }
    found
}

fn open_case(path: &Path) -> Result<EmbeddedStore, OpenError> {
    catch_unwind(AssertUnwindSafe(|| EmbeddedStore::open(options_of(path)))).expect("opening panicked")
}

/// Opens one damaged folder; answers a line of the table.
fn try_case(case: &Case, state: &str, files: &Files, states: &States) -> String {
    let folder = scratch();
    let mut damaged = files.clone();
    (case.damage)(&mut damaged, states);
    write_files(folder.path(), &damaged);
    let name = format!("{} ({state})", case.name);
    let expected = if state == "crash" { case.after_crash } else { case.after_stop };
    let line = match open_case(folder.path()) {
        Ok(store) => {
            assert_eq!(expected, Expected::Whole, "{name}: opened");
            assert!(messages_of(&store) == states.record, "{name}: opened, and messages are missing");
            let newest = states.record.keys().filter(|(room, _)| *room == 1).map(|(_, seq)| *seq).max().unwrap();
            say(&store, ConversationNo(1), ["afterwards"], NOON);
            assert_eq!(store.head(ConversationNo(1)).unwrap().last_seq, newest + 1, "{name}");
            "opens whole | |".to_owned()
        }
        Err(error) => {
            let message = error.to_string();
            assert_eq!(expected, Expected::Refused, "{name}: {message}");
            assert!(message.contains(case.names), "{name}: {:?} is not named: {message}", case.names);
            let names_remedy = message.contains("tidings check") || message.contains("restore a backup");
            assert!(names_remedy || matches!(error, OpenError::Format { .. }), "{name}: no remedy is named: {message}");
            let found = check(folder.path(), tidings_popups::check_popups);
            assert!(
                found.as_ref().map_or(true, |report| !report.is_sound()),
                "{name}: refused, and the check finds nothing"
            );
            // The result of a repair does not depend on how the store ended.
            let repaired = (state == "crash").then(|| after_refusal(&name, folder.path(), found, states));
            format!("refused | {message} | {}", repaired.unwrap_or_default())
        }
    };
    format!("| {} | {state} | {line} |", case.name)
}

/// Repairs a folder that was refused, and compares the reported losses with the record; answers a cell of the table.
fn after_refusal(name: &str, folder: &Path, found: Result<CheckReport, OpenError>, states: &States) -> String {
    match found {
        Ok(_) => {}
        Err(OpenError::Format { .. }) => return "a newer version opens it".into(),
        Err(error) => panic!("{name}: the check failed: {error}"),
    }
    let report = match catch_unwind(AssertUnwindSafe(|| repair(folder))).expect("repairing panicked") {
        Ok(repair) => repair,
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains("backup"), "{name}: {message}");
            return "only a backup".into();
        }
    };
    let store = open_case(folder).unwrap_or_else(|error| panic!("{name}: repaired, and refused: {error}"));
    let there = messages_of(&store);
    let lost: BTreeSet<MessageKey> = states.record.keys().filter(|key| !there.contains_key(key)).copied().collect();
    assert!(there.iter().all(|(key, id)| states.record[key] == *id), "{name}: repaired into another history");
    let keys = |of: &LostSeqs| {
        let number = of.number;
        of.seqs.clone().into_iter().flat_map(move |(first, last)| (first..=last).map(move |seq| (number, seq)))
    };
    let named: BTreeSet<MessageKey> = report.lost.iter().flat_map(keys).collect();
    if !report.untold.is_empty() {
        assert!(name.contains("acknowledgement log deleted") && named.is_subset(&lost), "{name}: {report:?}");
        return format!("{} messages lost; reported that not all of them can be named", lost.len());
    }
    assert_eq!(named, lost, "{name}: reported losses (left) and real ones (right)");
    assert!(report.lost.iter().all(|lost| lost.conversation.is_some()), "{name}: a conversation's id is missing");
    let ids = lost.iter().map(|key| states.record[key].as_str());
    for id in ids.take(3) {
        // A retry of a lost message is stored again.
        let outcome = store.commit(&[append(ConversationNo(1), id)], NOON).unwrap();
        assert!(matches!(&outcome[..], [Outcome::Appended(appended)] if !appended.duplicate), "{name}: {outcome:?}");
    }
    match lost.len() {
        0 => "mended, nothing lost".into(),
        lost => format!("{lost} messages lost, and each is named"),
    }
}

/// Tries all cases, a few at once; answers a line each, and panics with the names of all that failed.
fn try_all(cases: &[Case], states: &States) -> Vec<String> {
    let tries: Vec<_> = cases.iter().flat_map(|case| [(case, "crash"), (case, "stop")]).collect();
    let next = AtomicUsize::new(0);
    let lines = Mutex::new(BTreeMap::new());
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((case, state)) = tries.get(at) else { return };
                    let files = if *state == "crash" { &states.crashed } else { &states.stopped };
                    match catch_unwind(AssertUnwindSafe(|| try_case(case, state, files, states))) {
                        Ok(line) => drop(lines.lock().unwrap().insert(at, line)),
                        Err(_) => wrong.lock().unwrap().push(format!("{} ({state})", case.name)),
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
    lines.into_inner().unwrap().into_values().collect()
}

#[test]
fn a_damaged_folder_opens_whole_or_is_refused() {
    let states_of_two = states_with(FILLED_BYTES, &[cases::SEALED, cases::NEWEST]);
    let mut lines = try_all(JOURNALS, &states_of_two);
    drop(states_of_two);
    let states_of_one = states_with(0, &[cases::SEALED]);
    lines.extend(try_all(OTHERS, &states_of_one));

    println!("| damage | after a | opening | message | `tidings check --repair` |\n|---|---|---|---|---|");
    println!("{}", lines.join("\n"));
    let whole = lines.iter().filter(|line| line.contains("opens whole")).count();
    println!("{} cases: {whole} open whole, {} are refused, none loses in silence", lines.len(), lines.len() - whole);
}

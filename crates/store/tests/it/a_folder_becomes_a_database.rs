//! What a folder holds is in the database afterwards, whole and as it was: every read of the one answers as that of the other.

use crate::support::{postgres::*, small_disk::SmallDisk, *};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};
use tidings_domain::{chat_row_kind::ChatRowKind, log_records::*, model::*, push_store::*, store::*};
use tidings_store::{
    CopyError, CopyProgress, CopyReport, EmbeddedOptions, EmbeddedStore, MigrationError, OpenError, PostgresOpenError,
    PostgresStore, check::check,
};
use tidings_testkit::store_conformance;

/// Few enough that every world has several batches.
const ROWS: usize = 7;

fn open_with_log(path: &Path) -> EmbeddedStore {
    let store = EmbeddedStore::open(EmbeddedOptions { event_log: true, ..options(path) }).unwrap();
    store.open_gates().unwrap();
    store
}

fn copy(from: &Path, url: &str, rows_max: usize) -> Result<CopyReport, CopyError> {
    copy_telling(from, url, rows_max, &mut |_| ControlFlow::Continue(()))
}

fn copy_telling(
    from: &Path,
    url: &str,
    rows_max: usize,
    tell: &mut dyn FnMut(CopyProgress) -> ControlFlow<()>,
) -> Result<CopyReport, CopyError> {
    tidings_store::copy_folder(from, &options_at(url), |_, _| Ok(CheckedRows::default()), rows_max, tell)
}

/// Every file below a folder, with its bytes.
fn bytes_of(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(bytes_of(&path));
        } else {
            found.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    found
}

/// Everything that the port reads of a store, as text; the places of rows in it are those of the port.
fn all_of(store: &dyn Store) -> Vec<String> {
    let mut all = vec![format!("{} {} {:?}", store.epoch(), store.last_position(), store.last_numbers().unwrap())];
    let ids = |kind| store.ids(kind, "", "", 10_000).unwrap();
    for (id, no) in ids(NamedKind::User) {
        let user = UserNo(no);
        all.push(format!("{id} {:?} {:?}", store.user(user).unwrap(), store.last_seen(user).unwrap()));
        for direct in [true, false] {
            let mut listed = store.conversations_of(user, direct, 10_000).unwrap();
            listed.sort_by_key(|listed| listed.conversation);
            all.push(format!("{id} {listed:?}"));
        }
    }
    for (id, no) in ids(NamedKind::Conversation) {
        let conversation = ConversationNo(no);
        let head = store.head(conversation).unwrap();
        all.push(format!("{id} {:?} {head:?}", store.conversation(conversation).unwrap()));
        all.push(format!("{id} {:?}", store.members(conversation, None, 10_000).unwrap()));
        for entry in store.entries(conversation, 0, u64::MAX, 10_000, End::Oldest).unwrap() {
            let send = entry.content.idempotency_key().map(|(author, id)| (conversation, author, id));
            let first = send.map(|send| store.stored_seqs(&[send]).unwrap());
            let page = store.entries(conversation, entry.seq, entry.seq, 1, End::Newest).unwrap();
            assert_eq!(page, std::slice::from_ref(&entry));
            all.push(format!("{id} {entry:?} {first:?} {}", store.seq_at(conversation, entry.at).unwrap()));
        }
    }
    all.push(format!("{} {:?}", store.outbox_position().unwrap(), store.outbox(0, 10_000).unwrap()));
    for table in NotificationTable::ALL {
        all.push(format!("{:?}", store.stored_notifications(table, None, 10_000).unwrap()));
    }
    for space in [RowSpace::Chat, RowSpace::Popups] {
        all.push(format!("{:?}", store.rows(space, &[], &[255; 32], 100_000).unwrap()));
    }
    let last = PushKey::Notes((u64::MAX, u64::MAX));
    all.push(format!("{:?}", store.push_rows(&PushKey::Counters, &last, 100_000).unwrap()));
    all.push(format!("{:?}", store.log_start().unwrap()));
    all.extend(log_of(store).iter().map(|record| format!("{record:?}")));
    all
}

fn log_of(store: &dyn Store) -> Vec<LogRecord> {
    let mut all = Vec::new();
    let mut after = store.log_start().unwrap().unwrap_or(0);
    loop {
        let page = store.log_after(after, 100).unwrap();
        if page.span.through == after {
            return all;
        }
        after = page.span.through;
        // A folder has a record without an entry where retention has removed the entry; a database has none.
        all.extend(page.records.into_iter().filter(|record| record.entry.is_some() || record.change.is_some()));
    }
}

#[track_caller]
fn assert_same(folder: &Path, url: &str, what: &str) {
    let (of_folder, of_database) = (all_of(&open(folder)), all_of(&open_at(url)));
    for (expected, found) in of_folder.iter().zip(&of_database) {
        assert_eq!(expected, found, "{what}");
    }
    assert_eq!(of_folder.len(), of_database.len(), "{what}");
}

#[test]
fn worlds_of_the_conformance_suite_are_the_same_in_a_database() {
    let server = PostgresServer::shared();
    // Each takes a database of its own, and seconds: one of six is a variety of entries, members and rows.
    for (name, build) in store_conformance::all().into_iter().step_by(6) {
        let folder = scratch();
        build(&open_with_log(folder.path()));
        let before = bytes_of(folder.path());
        let url = server.database();
        copy(folder.path(), &url, ROWS).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(bytes_of(folder.path()) == before, "{name}: the folder has changed");
        assert_same(folder.path(), &url, name);
    }
}

/// A room with messages, one of them long, of several days; a second room in which the same ids are used; rows of every other table.
fn world(folder: &Path) -> ConversationNo {
    let store = open_with_log(folder);
    let room = populate(&store);
    let other = group(&store, "h");
    for day in 0..3 {
        say(&store, room, (0..4).map(|n| format!("d{day}-{n}")), NOON + day * DAY);
    }
    say(&store, other, ["d0-0", "d2-3"], NOON + 3 * DAY);
    let long = NewEntry { body: format!("{:?}", "x".repeat(20_000)).into(), ..message("long") };
    let of_app = NewEntry { sender: None, ..message("of-app") };
    let appends = [long, of_app].map(|entry| Proposal::Append { conversation: room, entry });
    store.commit(&appends, NOON + 3 * DAY).unwrap();
    store
        .retain(Retention { age_max: Some(std::time::Duration::from_millis(2 * DAY)), bytes_max: None }, NOON + 3 * DAY)
        .unwrap();
    let dead = |table, id| StoredNotification {
        key: NotificationKey { table, id },
        failed_at: NOON,
        attempts: 1,
        last_error: "why".into(),
        event: "{}".into(),
    };
    let dead = NotificationTable::ALL.map(|table| dead(table, 3)).to_vec();
    store
        .commit(
            &[
                Proposal::MarkRead { conversation: room, user: UserNo(2), seq: 9 },
                Proposal::SetMute { conversation: room, user: UserNo(3), mute: MuteState::Forever },
                Proposal::SetMute { conversation: other, user: UserNo(3), mute: MuteState::Until(NOON + DAY) },
                Proposal::SetLastSeen(vec![(UserNo(2), NOON)]),
                Proposal::Revoke { user: UserNo(3), before: NOON, reason: "left".into() },
                Proposal::AdvanceOutbox { through: 5, dead },
            ],
            NOON + 3 * DAY,
        )
        .unwrap();
    // One of each kind but those that must agree with other rows: the copy looks into none of them.
    let agreeing = [
        ChatRowKind::MentionOfAll,
        ChatRowKind::Reactions,
        ChatRowKind::Pins,
        ChatRowKind::Assignment,
        ChatRowKind::AccountIndex,
        ChatRowKind::PushToken,
        ChatRowKind::PushDevice,
    ];
    let planted = ChatRowKind::ALL.into_iter().filter(|kind| !agreeing.contains(kind));
    let planted: Vec<_> =
        planted.map(|kind| RowChange { key: kind.key(&[1, 2]), value: Some(b"of the app".to_vec()) }).collect();
    store.write_rows(Term::ALONE, RowSpace::Chat, planted).unwrap();
    let popups = RowChange { key: vec![1, 2, 3], value: Some(vec![0; 40]) };
    store.write_rows(Term::ALONE, RowSpace::Popups, vec![popups]).unwrap();
    store.write_push(Term::ALONE, &[PushChange::Put(PushRow::Counters { push: 4, device: 0, epoch: 7 })]).unwrap();
    room
}

#[test]
fn a_copy_that_ends_anywhere_goes_on_and_nothing_opens_the_database_before() {
    let server = PostgresServer::shared();
    let folder = scratch();
    let room = world(folder.path());
    let (before, url) = (bytes_of(folder.path()), server.database());
    let mut attempts = 0;
    let report = loop {
        attempts += 1;
        let mut batches = 0;
        // The first stop is behind the creation of the tables, each further one two batches on, the last ones among the comparisons.
        let stopped = copy_telling(folder.path(), &url, 5, &mut |progress| {
            batches += u32::from(matches!(progress, CopyProgress::Copied { .. } | CopyProgress::Compared { .. }));
            if batches == 2 && attempts < 30 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match stopped {
            Err(CopyError::Stopped) => {}
            done => break done.unwrap(),
        }
        match PostgresStore::open(options_at(&url)) {
            Err(PostgresOpenError::Migration(MigrationError::Unfinished)) => {}
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("a part of a folder opens"),
        }
    };
    assert_eq!(attempts, 30);
    assert!(report.tables.iter().all(|(table, count)| *count > 0 || panic!("{table} is empty")));
    assert!(bytes_of(folder.path()) == before, "the folder has changed");
    assert_same(folder.path(), &url, "the world");
    assert!(copy(folder.path(), &url, ROWS).unwrap().was_complete(), "once more does nothing");

    // What comes next: the same request again, a new one, and a reader that has all of the log but the new ones.
    let store = open_at(&url);
    let position = store.last_position();
    let retried = store.commit(&[append(room, "d2-3")], NOON + 4 * DAY).unwrap();
    assert!(matches!(&retried[..], [Outcome::Appended(first)] if first.duplicate && first.seq == 12), "{retried:?}");
    say(&store, room, ["new"], NOON + 4 * DAY);
    let log = store.log_after(position, 10).unwrap();
    let seqs: Vec<_> = log.records.iter().filter_map(|record| Some(record.entry.as_ref()?.1.seq)).collect();
    assert_eq!(seqs, [15]);
    assert_eq!(
        store
            .commit(&[Proposal::PutUsers(vec![UserPatch { id: "u4".into(), ..UserPatch::default() }])], NOON)
            .unwrap()
            .len(),
        1
    );
    assert_eq!(store.user_no("u4").unwrap(), Some(UserNo(4)), "numbers go on");
}

#[test]
fn a_folder_without_a_log_of_events_goes_on_one_position_further() {
    let server = PostgresServer::shared();
    let (folder, url) = (scratch(), server.database());
    let room = {
        let store = open(folder.path());
        let room = populate(&store);
        say(&store, room, ["a", "b"], NOON);
        room
    };
    copy(folder.path(), &url, ROWS).unwrap();
    let store = open_at(&url);
    assert_eq!((store.last_position(), store.log_start().unwrap()), (3, Some(3)));
    assert!(matches!(store.log_after(2, 10), Err(StoreError::Pruned(_))));
    say(&store, room, ["c"], NOON);
    assert_eq!(store.log_after(3, 10).unwrap().records.len(), 1);
    assert_eq!(stored_ids(&store, room), ["a", "b", "c"]);
}

#[test]
fn first_results_of_earlier_versions_come_along() {
    let server = PostgresServer::shared();
    let (folder, url) = (scratch(), server.database());
    let room = {
        let store = open(folder.path());
        let room = populate(&store);
        say(&store, room, ["a", "b"], NOON);
        room
    };
    crate::first_results_of_earlier_versions_are_found::as_before(folder.path());
    copy(folder.path(), &url, ROWS).unwrap();
    let again = open_at(&url).commit(&[append(room, "b")], NOON).unwrap();
    assert!(matches!(&again[..], [Outcome::Appended(first)] if first.duplicate && first.seq == 2), "{again:?}");
}

#[track_caller]
fn refusal(result: Result<CopyReport, CopyError>, says: &str) -> CopyError {
    let error = result.unwrap_err();
    assert!(error.to_string().contains(says), "{error}");
    error
}

#[test]
fn a_database_that_holds_something_else_is_refused_and_left_as_it_is() {
    let server = PostgresServer::shared();
    let (folder, another) = (scratch(), scratch());
    world(folder.path());
    world(another.path());

    let used = server.database();
    populate(&open_at(&used));
    refusal(copy(folder.path(), &used, ROWS), "not of this folder");
    assert!(open_at(&used).user_no("u1").unwrap().is_some());

    let url = server.database();
    let mut stop = |progress| match progress {
        CopyProgress::Copied { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    refusal(copy_telling(folder.path(), &url, ROWS, &mut stop), "stopped");
    refusal(copy(another.path(), &url, ROWS), "another folder");
    server.sql(&url, "UPDATE tidings.folder_copy SET program = '0.0.9, tables 3'");
    refusal(copy(folder.path(), &url, ROWS), "0.0.9");
    let restored = server.sql(&url, "SELECT count(*) FROM tidings.folder_copy");
    assert_eq!(restored, "1");
    server.sql(&url, "DROP SCHEMA tidings CASCADE");

    // A folder that was served in between is another source.
    refusal(copy_telling(folder.path(), &url, ROWS, &mut stop), "stopped");
    let store = open_with_log(folder.path());
    let room = store.conversation_no("g").unwrap().unwrap();
    say(&store, room, ["meanwhile"], NOON + 5 * DAY);
    drop(store);
    refusal(copy(folder.path(), &url, ROWS), "written to again");
}

#[test]
fn a_folder_that_is_served_damaged_or_none_is_refused() {
    let server = PostgresServer::shared();
    let (folder, url) = (scratch(), server.database());
    world(folder.path());
    let store = open(folder.path());
    let refused = copy(folder.path(), &url, ROWS);
    assert!(matches!(refused, Err(CopyError::Folder(OpenError::Locked(_)))));
    drop(store);
    refusal(copy(&folder.path().join("nothing"), &url, ROWS), "not a data folder");

    let damaged = scratch();
    copy_folder(folder.path(), damaged.path());
    let journal =
        bytes_of(damaged.path()).into_keys().find(|path| path.extension().is_some_and(|end| end == "jnl")).unwrap();
    let mut bytes = fs::read(&journal).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 1;
    fs::write(&journal, bytes).unwrap();
    refusal(copy(damaged.path(), &url, ROWS), "--repair");

    // What the next start of the server is to settle.
    let store = open(folder.path());
    store.append_to_side_log(&[RowChange { key: vec![1; 17], value: Some(vec![0; 8]) }]).unwrap();
    drop(store);
    refusal(copy(folder.path(), &url, ROWS), "1 exposures");
    open(folder.path()).truncate_side_log().unwrap();
    fs::write(folder.path().join("new-epoch"), "").unwrap();
    refusal(copy(folder.path(), &url, ROWS), "new epoch");
    assert_eq!(server.sql(&url, "SELECT to_regnamespace('tidings') IS NULL"), "t", "nothing was begun");
}

#[test]
fn a_database_that_goes_away_is_gone_on_with_when_it_is_back() {
    let server = PostgresServer::start(&["fsync=off"]);
    let (folder, url) = (scratch(), server.database());
    world(folder.path());
    let mut batches = 0;
    let lost = copy_telling(folder.path(), &url, ROWS, &mut |progress| {
        batches += u32::from(matches!(progress, CopyProgress::Copied { .. }));
        if batches == 3 {
            // In order, since a backend that loses its parent may still answer.
            server.stop();
        }
        ControlFlow::Continue(())
    });
    refusal(lost, "run the same command again");
    refusal(copy(folder.path(), &url, ROWS), "database");
    server.launch();
    let mut resumed = false;
    copy_telling(folder.path(), &url, ROWS, &mut |progress| {
        resumed |= progress == CopyProgress::Resumed;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(resumed);
    assert_same(folder.path(), &url, "after the pause");
}

#[test]
fn a_full_disk_under_the_database_is_said_and_gone_on_from() {
    let Some(disk) = SmallDisk::mount(16) else {
        println!("SKIPPED: no disk may be mounted here");
        return;
    };
    let server = PostgresServer::start(&["fsync=off"]);
    let url = disk.database(&server);
    let folder = scratch();
    {
        let store = open_with_log(folder.path());
        let room = populate(&store);
        // Text that PostgreSQL does not compress to nothing.
        let mut state = 1_u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            format!("{state:016x}")
        };
        for n in 0..100 {
            let mut long = |m: u32| {
                let body: String = (0..200).map(|_| noise()).collect();
                let entry = NewEntry { body: format!("{body:?}").into(), ..message(&format!("{n}-{m}")) };
                Proposal::Append { conversation: room, entry }
            };
            let batch: Vec<_> = (0..100).map(&mut long).collect();
            store.commit(&batch, NOON).unwrap();
        }
    }
    refusal(copy(folder.path(), &url, 500), "disk is full");
    disk.grow(256);
    copy(folder.path(), &url, 500).unwrap();
    assert_eq!(open_at(&url).head(ConversationNo(1)).unwrap().last_seq, 10_000);
}

#[test]
fn every_table_of_the_database_is_filled_or_its_own() {
    let server = PostgresServer::shared();
    let (folder, url) = (scratch(), server.database());
    world(folder.path());
    let filled = copy(folder.path(), &url, ROWS).unwrap().tables;
    let mut known: BTreeSet<String> = filled.into_iter().map(|(table, _)| table.to_owned()).collect();
    // Filled from the folder's rows of one row each.
    known.extend(["counters", "history"].map(str::to_owned));
    // Of a database of several orders: a folder becomes one of one order.
    known.extend(["orders", "order_parts", "cuts", "cutting"].map(str::to_owned));
    // Of the program and of nodes that run, not of what is stored.
    known.extend(["migrations", "gates", "nodes", "node_settings", "leader", "standby_marks"].map(str::to_owned));
    let tables = "SELECT relname FROM pg_class WHERE relnamespace = 'tidings'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition";
    let found: BTreeSet<String> = server.sql(&url, tables).lines().map(str::to_owned).collect();
    assert_eq!(found, known, "a table that is not filled loses what a folder has of it");
    assert!(check(folder.path(), |_, _| Ok(CheckedRows::default())).unwrap().is_sound());
}

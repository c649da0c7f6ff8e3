//! Commands that read a data folder change nothing in it, also if it is of a former format and may only be read.

use crate::support::*;
use std::{
    collections::BTreeMap,
    fs::{self, File, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tidings_protocol::http::{CreateConversation, SendRequest, UserUpsert};

/// Of everything below a folder: what it is, when it was changed, and its bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for path in everything_in(folder) {
        let about = path.symlink_metadata().unwrap();
        let bytes = if about.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        found.insert(path, (about.mode(), about.mtime(), about.mtime_nsec(), bytes));
    }
    found
}

/// The folder itself, and all that is in it.
fn everything_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(everything_in(&path)),
            false => found.push(path),
        }
    }
    found
}

fn allow_writes(folder: &Path, allowed: bool) {
    for path in everything_in(folder) {
        let mode = path.metadata().unwrap().mode();
        fs::set_permissions(path, Permissions::from_mode(if allowed { mode | 0o200 } else { mode & !0o222 })).unwrap();
    }
}

/// A folder as a server of the format before there was a manifest leaves it when it is killed.
fn former_folder() -> Folder {
    let folder = Folder::new();
    let mut server = folder.serve();
    let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
    server.http().upsert_users(vec![user("alice"), user("bob")]).unwrap();
    let group: CreateConversation =
        serde_json::from_str(r#"{"id":"g","kind":"group","owner":"alice","members":["bob"]}"#).unwrap();
    server.http().create_conversation(&group).unwrap();
    for id in 0..10 {
        let text = format!(r#"{{"conversation":"g","from":"alice","client_msg_id":"m{id}","body":{{"n":{id}}}}}"#);
        server.http().send(&serde_json::from_str::<SendRequest>(&text).unwrap()).unwrap();
    }
    server.signal("KILL");
    server.wait();
    for path in everything_in(&folder.data()) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == "manifest" || name == "listening" || name.starts_with("acknowledged-") {
            fs::remove_file(path).unwrap();
        }
    }
    fs::write(folder.data().join("format"), "1\n").unwrap();
    folder
}

#[test]
fn check_and_backup_leave_a_folder_of_a_former_format_as_it_is() {
    let folder = former_folder();
    allow_writes(&folder.data(), false);
    let before = contents(&folder.data());
    let copy = folder.path().join("copy");
    for command in [&["check"][..], &["check", "--json"], &["backup", copy.to_str().unwrap()], &["config"]] {
        let output = folder.run(command);
        assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
        let after = contents(&folder.data());
        let changed: Vec<_> = after.iter().filter(|(path, now)| before.get(*path) != Some(now)).collect();
        assert!(changed.is_empty() && before.len() == after.len(), "{command:?} changed {:?}", changed.first());
    }
    let checked = folder.run(&["check", copy.to_str().unwrap()]);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    let found: Vec<Vec<String>> = text(&checked.stdout).lines().map(words).collect();
    assert!(found.contains(&vec!["entries".into(), "10".into()]), "{found:?}");

    // The server upgrades it, and says so.
    allow_writes(&folder.data(), true);
    let log = folder.path().join("log");
    let mut serve = folder.program(&["serve", "--api-key", API_KEY, "--token-key", TOKEN_KEY]);
    let server = Server::start(serve.stderr(File::create(&log).unwrap()));
    drop(server);
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("format was upgraded") && log.contains("from=1") && log.contains("to=2"), "{log}");
    assert_eq!(fs::read_to_string(folder.data().join("format")).unwrap(), "2\n");
}

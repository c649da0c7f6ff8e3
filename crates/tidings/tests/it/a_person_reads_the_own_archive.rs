//! All that there is of a user, as an archive that another implementation reads: every mark of the user is in it, and nothing that others
//! wrote.

use crate::{
    an_erased_user_leaves_nothing::{BODY, ID, MARKS, OF_OTHERS, call, live},
    postgres::PostgresServer,
    support::*,
};
use serde_json::Value;
use std::{fs::File, io::Read, path::Path, process::Command};

/// The text of all files of an archive.
fn text_of(archive: &Path) -> String {
    let mut archive = zip::ZipArchive::new(File::open(archive).unwrap()).unwrap();
    let mut text = String::new();
    for at in 0..archive.len() {
        archive.by_index(at).unwrap().read_to_string(&mut text).unwrap();
    }
    text
}

fn reads_all(folder: &Folder, serving: &dyn Fn() -> Command) {
    let server = Server::start(&mut serving());
    let mut http = server.http();
    live(&mut http);
    let address = server.address.to_string();
    let export = |name: &str, more: &[&str]| {
        let file = folder.path().join(name);
        let arguments = ["export", file.to_str().unwrap(), "--user", ID, "--server", &address, "--key", API_KEY];
        let output = folder.run(&[&arguments[..], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text_of(&file)
    };
    let own = export("own.zip", &[]);
    // What an edit has replaced is not kept.
    let marks = || MARKS.into_iter().filter(|mark| *mark != BODY);
    for mark in marks() {
        assert!(own.contains(mark), "{mark}");
    }
    for other in OF_OTHERS {
        assert!(!own.contains(other), "{other}");
    }
    let all = export("all.zip", &["--received"]);
    assert!(marks().chain(OF_OTHERS).all(|mark| all.contains(mark)));
    let audit = call(&mut http, "GET", "/v1/admin/audit", &Value::Null).to_string();
    assert_eq!(audit.matches("/v1/users/{user}/export").count(), 2, "{audit}");
    assert_eq!(http.exchange("GET", "/v1/users/nobody/export", b"").unwrap().status, 404);
}

#[test]
fn an_archive_from_a_folder_has_all_marks_of_a_user() {
    let folder = Folder::new();
    let serving = || {
        let mut command = folder.program(&["serve"]);
        command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY);
        command
    };
    reads_all(&folder, &serving);
}

#[test]
fn an_archive_from_a_database_has_all_marks_of_a_user() {
    let database = PostgresServer::shared();
    let url = database.database();
    let folder = Folder::new();
    let serving = || {
        let mut command = folder.program(&["serve"]);
        command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).env("TIDINGS_STORE_URL", &url);
        command
    };
    reads_all(&folder, &serving);
}

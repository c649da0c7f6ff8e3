//! `docs/openapi.json` is what the handlers say. `UPDATE_SNAPSHOTS=1` writes it anew.
#![allow(clippy::unwrap_used)]

#[test]
fn the_description_on_disk_is_what_the_handlers_say() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let now = tidings_api::routes::openapi().to_pretty_json().unwrap() + "\n";
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(file, &now).unwrap();
    }
    let kept = std::fs::read_to_string(file).unwrap_or_default();
    assert!(kept == now, "the API changed: run `UPDATE_SNAPSHOTS=1 cargo test -p tidings-api` and look at the diff");
}

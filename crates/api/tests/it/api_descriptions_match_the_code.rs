//! `docs/openapi.json` matches the handlers, and `docs/asyncapi.json` the types of the frames.
//! `UPDATE_SNAPSHOTS=1` writes them anew.

/// Checks that the file in `docs/` matches the description that the code gives now.
fn check(file: &str, now: &str) {
    let path = format!("{}/../../docs/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, now).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let is_same = kept == now || read(&kept) == read(now);
    assert!(is_same, "{file}: run `UPDATE_SNAPSHOTS=1 cargo test -p tidings-api` and look at the diff");
}

/// Sorts names: their order may depend on which crates are built together.
fn read(text: &str) -> Option<serde_json::Value> {
    serde_json::from_str(text).ok()
}

#[test]
fn openapi_json_matches_the_handlers() {
    check("openapi.json", &(tidings_api::routes::openapi().to_pretty_json().unwrap() + "\n"));
}

#[test]
fn asyncapi_json_matches_the_frame_types() {
    check("asyncapi.json", &(serde_json::to_string_pretty(&tidings_api::routes::asyncapi()).unwrap() + "\n"));
}

//! Operations for those who run the server: health, metrics, backups.

use super::{
    Answer, AnswerResult,
    refusals::{Conflict, Open, Refusals, TakesBody},
};
use crate::{
    Api,
    exposition::in_accepted_format,
    extract::{AppServer, Json},
    problem::RefusalResponse,
};
use axum::{extract::State, http::HeaderMap, response::IntoResponse};
use serde::{Deserialize, Serialize};
use std::{
    path::{Component, Path, PathBuf},
    sync::Arc,
};
use tidings_popups::PopupsReadiness;
use tidings_protocol::error::{ErrorCode, Refusal};
use utoipa::ToSchema;

/// A backup to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BackupRequest {
    /// A folder that does not exist yet, within the configured backup folder.
    path: String,
}

/// A backup that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BackupMade {
    /// Where it is, on the server's disk.
    path: String,
    bytes: u64,
}

/// Write a consistent copy of the data folder while serving.
#[utoipa::path(post, path = "/v1/admin/backup", tag = "operations", request_body = BackupRequest,
    responses((status = 200, description = "Where it is, and how large", body = BackupMade),
        Refusals, TakesBody, Conflict))]
pub(super) async fn back_up(
    State(api): State<Arc<Api>>,
    _: AppServer,
    Json(request): Json<BackupRequest>,
) -> AnswerResult<BackupMade> {
    let Some(backup) = &api.backup else {
        let why = "what is stored is in a database, which its own tools back up";
        return Err(Refusal::new(ErrorCode::Forbidden, why).into());
    };
    let Some(folder) = &api.config.backup_dir else {
        return Err(Refusal::new(
            ErrorCode::Forbidden,
            "no backup_dir is set: set one, or stop the server and back up then",
        )
        .into());
    };
    let path = within(folder, Path::new(&request.path))?;
    let (backup, folder) = (backup.clone(), folder.clone());
    let made = api
        .read(move |_| {
            check_links(&folder, &path)?;
            if path.symlink_metadata().is_ok() {
                return Err(Refusal::new(ErrorCode::Conflict, "path: it already exists"));
            }
            let bytes = backup
                .back_up(&path)
                .map_err(|why| Refusal::new(ErrorCode::StoreUnavailable, format!("the backup failed: {why}")))?;
            Ok(BackupMade { path: path.display().to_string(), bytes })
        })
        .await?;
    Ok(Answer::ok(made))
}

/// The longest name of a folder in a backup's path: file systems take 255 bytes, some of which are for names made of it.
const FOLDER_NAME_BYTES_MAX: usize = 200;
/// The longest path of a backup below the folder of backups; systems take 4,096 bytes with all before and behind it.
const BACKUP_PATH_BYTES_MAX: usize = 1_024;

/// Refuses a path that a symbolic link leads out of `folder`, and one below something that is no folder.
fn check_links(folder: &Path, path: &Path) -> Result<(), Refusal> {
    // Nothing of it is there yet: the backup makes it.
    let Ok(folder_itself) = folder.canonicalize() else { return Ok(()) };
    let above = path.ancestors().skip(1).find(|above| above.symlink_metadata().is_ok());
    let leads_to = above.and_then(|above| above.canonicalize().ok());
    if leads_to.is_some_and(|to| to.is_dir() && to.starts_with(folder_itself)) {
        Ok(())
    } else {
        Err(not_within(folder))
    }
}

fn not_within(folder: &Path) -> Refusal {
    Refusal::field("path", format!("must be a folder within {}", folder.display()))
}

/// Resolves a path against `folder`. Refuses a path whose spelling leaves the folder.
fn within(folder: &Path, path: &Path) -> Result<PathBuf, Refusal> {
    let rest = path.strip_prefix(folder).unwrap_or(path);
    let stays = rest.components().all(|part| matches!(part, Component::Normal(_)));
    let is_name = |part: Component<'_>| {
        let name = part.as_os_str().as_encoded_bytes();
        name.len() <= FOLDER_NAME_BYTES_MAX && !name.contains(&0)
    };
    if !rest.components().all(is_name) || rest.as_os_str().len() > BACKUP_PATH_BYTES_MAX {
        let why = format!(
            "must be names of at most {FOLDER_NAME_BYTES_MAX} bytes without NUL, {BACKUP_PATH_BYTES_MAX} bytes together"
        );
        return Err(Refusal::field("path", why));
    }
    if stays && rest.components().next().is_some() { Ok(folder.join(rest)) } else { Err(not_within(folder)) }
}

/// Metrics in Prometheus' text format, or as OpenMetrics for a reader whose `Accept` asks for that.
#[utoipa::path(get, path = "/metrics", tag = "operations", security(()),
    responses((status = 200, description = "The metrics", content(
        (String = "text/plain; version=0.0.4; charset=utf-8"),
        (String = "application/openmetrics-text; version=1.0.0; charset=utf-8"))), Open))]
pub(super) async fn metrics(State(api): State<Arc<Api>>, headers: HeaderMap) -> impl IntoResponse {
    in_accepted_format(&headers, api.metrics())
}

/// Whether the process lives.
#[utoipa::path(get, path = "/healthz", tag = "operations", security(()),
    responses((status = 200, description = "It does", body = String), Open))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether the server can do its work now: it can commit, and is not draining.
#[utoipa::path(get, path = "/readyz", tag = "operations", security(()),
    responses((status = 200, description = "It can", body = String), Open))]
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Result<String, RefusalResponse> {
    match api.engine.readiness() {
        Ok(()) => {
            let is_unreadable = api.engine.popups.readiness() == PopupsReadiness::Unreadable;
            let cluster = api.engine.cluster.as_ref();
            let degraded = [
                ("redis", cluster.and_then(|cluster| cluster.bus_trouble())),
                ("leader", cluster.and_then(|cluster| cluster.leader_trouble())),
                // Chat and push go on without popups.
                ("popups", is_unreadable.then(|| "cannot be read from the store".to_owned())),
            ];
            let lines = degraded.into_iter().filter_map(|(part, trouble)| Some(format!("{part}: {}\n", trouble?)));
            let warnings = cluster.map_or_else(Vec::new, |cluster| cluster.warnings());
            let warnings = warnings.into_iter().map(|warning| format!("warning: {warning}\n"));
            Ok(std::iter::once("ready\n".to_owned()).chain(lines).chain(warnings).collect())
        }
        Err(why) if api.engine.is_draining() => Err(Refusal::new(ErrorCode::Draining, why).retry_after(1_000).into()),
        Err(why) => Err(Refusal::new(ErrorCode::StoreUnavailable, why).retry_after(1_000).into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_link_does_not_lead_a_backup_out_of_its_folder() {
        let folders = tempfile::tempdir().unwrap();
        let [inside, outside] = ["inside", "outside"].map(|name| folders.path().join(name));
        for folder in [&inside, &outside, &inside.join("weeks")] {
            std::fs::create_dir(folder).unwrap();
        }
        std::fs::write(inside.join("file"), "").unwrap();
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, inside.join(name)).unwrap();
        link(&outside, "out");
        link(Path::new("weeks"), "in");
        link(Path::new("nowhere"), "broken");
        for good in ["monday", "weeks/monday", "in/monday", "new/er/monday"] {
            check_links(&inside, &inside.join(good)).unwrap();
        }
        for bad in ["out/monday", "out/new/monday", "broken/monday", "file/monday"] {
            let refusal = check_links(&inside, &inside.join(bad)).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::InvalidField, "{bad}: {refusal}");
        }
        // The folder of backups may itself be reached by a link.
        link(&inside, "self");
        check_links(&inside.join("self"), &inside.join("self/monday")).unwrap();
    }

    #[test]
    fn a_backup_path_outside_the_backup_folder_is_refused() {
        let check = |path: &str| within(Path::new("/backups"), Path::new(path)).ok();
        assert_eq!(check("monday"), Some("/backups/monday".into()));
        assert_eq!(check("/backups/2026/monday"), Some("/backups/2026/monday".into()));
        for bad in ["", ".", "..", "../x", "/etc", "a/../../b", "/backups", "/backups/../x"] {
            assert_eq!(check(bad), None, "{bad:?}");
        }
    }
}

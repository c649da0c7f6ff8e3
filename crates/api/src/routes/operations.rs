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
    let backup = backup.clone();
    let made = api
        .read(move |_| {
            if path.exists() {
                return Err(Refusal::new(ErrorCode::Conflict, "path: there is something already"));
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

/// Resolves a path against `folder`. Refuses a path that leaves the folder; the spelling alone decides, no link is followed.
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
    match stays && rest.components().next().is_some() {
        true => Ok(folder.join(rest)),
        false => Err(Refusal::field("path", format!("must be a folder within {}", folder.display()))),
    }
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
            let trouble = api.engine.cluster.as_ref().and_then(|cluster| cluster.bus_trouble());
            Ok(trouble.map_or("ready\n".into(), |trouble| format!("ready\nredis: {trouble}\n")))
        }
        Err(why) if api.engine.is_draining() => Err(Refusal::new(ErrorCode::Draining, why).retry_after(1_000).into()),
        Err(why) => Err(Refusal::new(ErrorCode::StoreUnavailable, why).retry_after(1_000).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

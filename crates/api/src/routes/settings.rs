//! The settings that the server runs with, and where each comes from. Secrets are not shown.

use super::{Answer, AnswerResult, refusals::Refusals};
use crate::{Api, extract::AppServer};
use axum::extract::State;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// Where a setting's value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SettingSource {
    /// No source sets it.
    Default,
    /// The settings file.
    File,
    /// A `TIDINGS_…` variable.
    Environment,
    /// A flag of the command line.
    Flag,
    /// Development mode, which makes up keys.
    Development,
}

/// A setting as operators may see it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SettingView {
    /// Its name in the file, with its table: `webhook.timeout_ms`.
    pub name: String,
    /// The value as TOML; absent: not set, or a secret. Of an address only the scheme and the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub value: Option<String>,
    /// The value by default, as TOML; absent: not set by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub default: Option<String>,
    pub source: SettingSource,
    /// Set to a secret, which is not shown.
    pub secret: bool,
    /// The server has changed the value when it started: to fit the machine, or its role.
    pub adjusted: bool,
    /// What it is for, in Markdown.
    pub description: String,
}

/// All settings of a node.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SettingsAnswer {
    /// In the order of the sample file.
    settings: Vec<SettingView>,
}

/// The settings that this node runs with, and where each comes from. Secrets are not shown.
#[utoipa::path(get, path = "/v1/admin/settings", tag = "operations",
    responses((status = 200, description = "The settings", body = SettingsAnswer), Refusals))]
pub(super) async fn get_server_settings(State(api): State<Arc<Api>>, _: AppServer) -> AnswerResult<SettingsAnswer> {
    Ok(Answer::ok(SettingsAnswer { settings: api.settings.clone() }))
}

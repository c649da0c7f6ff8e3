//! The priority of pushes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// In which order a device is handed what it has missed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PushPriority {
    /// In the order in which they were accepted.
    #[default]
    Normal,
    /// Handed out before what is normal.
    High,
}

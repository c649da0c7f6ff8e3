//! The JSON bodies of the HTTP API. Unknown fields are refused in requests, so that a misspelt
//! option is noticed instead of ignored.

mod api_keys;
mod bulk_sends;
mod conversations;
mod dead_letters;
mod desks;
mod erasures;
mod event_consumers;
mod events;
mod imports;
mod joining;
mod lists;
mod messages;
mod notification_explain;
mod notification_policy;
mod notification_preferences;
mod notification_stats;
mod notifications;
mod outbox;
mod popup_journeys;
mod popups;
mod presence;
mod push;
mod push_fallback;
mod push_priority;
mod push_tokens;
mod reading;
mod reports;
mod scheduled;
mod users;

pub use api_keys::*;
pub use bulk_sends::*;
pub use conversations::*;
pub use dead_letters::*;
pub use desks::*;
pub use erasures::*;
pub use event_consumers::*;
pub use events::*;
pub use imports::*;
pub use joining::*;
pub use lists::*;
pub use messages::*;
pub use notification_explain::*;
pub use notification_policy::*;
pub use notification_preferences::*;
pub use notification_stats::*;
pub use notifications::*;
pub use outbox::*;
pub use popup_journeys::*;
pub use popups::*;
pub use presence::*;
pub use push::*;
pub use push_fallback::*;
pub use push_priority::*;
pub use push_tokens::*;
pub use reading::*;
pub use reports::*;
pub use scheduled::*;
pub use users::*;

use crate::error::ErrorCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// RFC 9457 problem details, with a stable code.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:tidings:error:` followed by the code.
    #[serde(rename = "type")]
    pub problem_type: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status, once more.
    pub status: u16,
    /// What was wrong with this request, for developers, in English; it may change.
    pub detail: String,
    /// Stable: act on this.
    pub code: ErrorCode,
    /// Whether the same request may succeed later; when, is in `Retry-After`.
    pub retry: bool,
    /// Of `refused_by_hook`: the app server's own code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The `type` of what has none.
fn text() -> String {
    "text".into()
}

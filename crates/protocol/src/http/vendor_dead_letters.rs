//! Notifications for vendors that were given up.

use super::{PushVendor, ReachOutcome};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A notification for one device that was given up. It has neither the device's token nor the message's text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VendorDeadLetter {
    /// Names it to be replayed or deleted. Ids grow with time.
    pub id: u64,
    /// Who was to deliver it.
    pub vendor: PushVendor,
    /// Whom it was for.
    pub user: String,
    /// Which of the user's devices it was for.
    pub device_id: String,
    /// The conversation of the message that it tells of.
    pub conversation: String,
    /// The message's number in the conversation.
    pub seq: u64,
    /// When it was given up, in milliseconds since 1970 UTC.
    pub failed_at: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// `refused`: the vendor will never take it; `expired`: nobody took it in the time that was left.
    pub outcome: ReachOutcome,
    /// What the vendor said last, or why it could not be asked; absent: it was never tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// Dead letters of vendors, page by page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VendorDeadLetterPage {
    /// The oldest first.
    pub dead_letters: Vec<VendorDeadLetter>,
    /// Hand back as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// Which dead letters: those that fit all that is said here; all of them, if nothing is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SelectVendorDeadLetters {
    /// These, at most 500; with them nothing else may be said.
    pub ids: Option<Vec<u64>>,
    /// Of this vendor.
    pub vendor: Option<PushVendor>,
    /// Of this user.
    pub user: Option<String>,
    /// With this outcome.
    pub outcome: Option<ReachOutcome>,
    /// Whose cause has this text in it.
    pub cause: Option<String>,
}

/// A dead letter that is not tried again, since its user is not to be told any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DroppedDeadLetter {
    /// Its id.
    pub id: u64,
    /// Why: `read`, `recalled`, `muted`, `do_not_disturb`, `active`, `not_a_member`, or `no_device`, when the device's token is gone.
    pub reason: ReachOutcome,
}

/// What a replay begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VendorDeadLettersReplayed {
    /// Notifications that are tried again, with the whole time to live. The answer does not wait for that.
    pub replayed: usize,
    /// Those that are removed without another attempt.
    pub dropped: Vec<DroppedDeadLetter>,
}

/// How many dead letters were deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VendorDeadLettersDeleted {
    /// So many.
    pub deleted: usize,
}

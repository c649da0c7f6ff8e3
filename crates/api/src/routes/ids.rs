//! The ids in paths, for the OpenAPI description. The engine decides which ids it accepts; the patterns here say which can be part of
//! a URL's path.

/// The app's own id: at most 64 bytes without white space, control characters and `/`. `.` and `..` are steps of an address,
/// which clients take before they ask.
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, min_length = 1, max_length = 64,
    pattern = r"^([^\s/.\x00-\x1f\x7f]|\.[^\s/.\x00-\x1f\x7f]|\.\.[^\s/\x00-\x1f\x7f])[^\s/\x00-\x1f\x7f]*$")]
#[allow(dead_code)]
pub(super) struct Id(String);

/// A conversation's id: the app's own, or of a direct one both users' ids, joined by `~`.
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, min_length = 1, max_length = 129,
    pattern = r"^([^\s/.\x00-\x1f\x7f]|\.[^\s/.\x00-\x1f\x7f]|\.\.[^\s/\x00-\x1f\x7f])[^\s/\x00-\x1f\x7f]*$")]
#[allow(dead_code)]
pub(super) struct ConversationId(String);

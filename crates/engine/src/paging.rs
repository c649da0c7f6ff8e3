//! The limits of pages.

use tidings_protocol::error::Refusal;

/// The limit of a page; 0 stands for the default.
pub(crate) fn page_limit(limit: usize, default: usize, max: usize) -> Result<usize, Refusal> {
    match limit {
        0 => Ok(default),
        limit if limit > max => Err(Refusal::limit("limit", max as u64, limit as u64)),
        limit => Ok(limit),
    }
}

//! The database's clock in statements.

/// The database's clock, by which changes are dated and removed, whichever node wrote them.
macro_rules! now_ms {
    () => {
        "(extract(epoch FROM now()) * 1000)::bigint"
    };
}

/// Whether a member has left the head's conversation within the last minute, so that a node may not know it yet. Every node
/// reads the commit log each second. The sub-select has the time computed once a statement.
macro_rules! recently_left {
    () => {
        "h.left_at > (SELECT (extract(epoch FROM now()) * 1000)::bigint - 60000)"
    };
}
pub(crate) use {now_ms, recently_left};

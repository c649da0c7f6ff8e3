//! Databases for random histories.

use crate::postgres::{PostgresServer, open_at};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tidings_domain::store::Store;

/// Stores on databases of three orders and of one, by turns.
pub(crate) fn databases_by_turns(server: &PostgresServer) -> impl Fn() -> Arc<dyn Store> + Sync {
    let opened = AtomicUsize::new(0);
    move || {
        let orders = if opened.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { 3 } else { 1 };
        Arc::new(open_at(&server.database_in_orders(orders)))
    }
}

//! The driver of a connection: the task that moves its bytes.

use super::failure::with_cause;
use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio_postgres::{AsyncMessage, Socket, error::SqlState};

/// Moves a connection's bytes until it ends, and records warnings. PostgreSQL answers a commit as done that was cancelled
/// while it waited for a standby; only a warning says that the standby may not have it.
pub(crate) async fn drive<S>(mut connection: tokio_postgres::Connection<Socket, S>, commit_warning: Arc<AtomicBool>)
where
    S: tokio_postgres::tls::TlsStream + Unpin,
{
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                tracing::debug!(code = notice.code().code(), message = notice.message(), "a notice of PostgreSQL");
                if [&SqlState::WARNING, &SqlState::ADMIN_SHUTDOWN].contains(&notice.code()) {
                    commit_warning.store(true, Ordering::Release);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!(error = with_cause(&error), "a connection to PostgreSQL ended");
                return;
            }
            None => return,
        }
    }
}

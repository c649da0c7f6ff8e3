//! The push thread: its worker leads while this node has the lead, and else its client speaks for the node's sessions
//! with the leader.

use crate::{
    PushParts,
    remote::LocalSessions,
    remote_client::RemotePushClient,
    worker::{Inbox, Worker},
};
use std::sync::Arc;

/// Closes the inbox when the thread ends, also by a panic: no caller waits for an answer that does not come.
struct CloseOnDrop(Arc<Inbox>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The whole of the thread: runs until the server stops.
pub(crate) fn run(parts: PushParts, inbox: Arc<Inbox>) {
    let _close = CloseOnDrop(inbox.clone());
    let (mut refused_term, mut local_sessions) = (None, LocalSessions::default());
    let next_term = |refused_term, local_sessions: &mut LocalSessions| match &parts.transport {
        Some(transport) => RemotePushClient::new(&parts, &**transport, &inbox, local_sessions).serve(refused_term),
        None => parts.lead.wait_for_term(refused_term, || inbox.is_stopping()),
    };
    while let Some(term) = next_term(refused_term, &mut local_sessions) {
        if inbox.has_peers() {
            inbox.set_following(false);
        }
        let mut worker = Worker::new(&parts, inbox.clone(), term, std::mem::take(&mut local_sessions));
        if worker.serve() {
            return;
        }
        tracing::info!("another node leads push");
        inbox.set_following(true);
        // If the store has refused the term, it knew first: wait until this node learns of another one.
        (local_sessions, refused_term) = worker.lose_lead();
    }
}

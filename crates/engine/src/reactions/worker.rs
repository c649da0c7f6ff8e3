//! The thread that has members notified of reactions when their interval has ended. What is yet to be reported is in the store: a
//! teller that ends before its time loses nothing, since the leader looks for what is left now and then.

use crate::{Core, commit::PendingOutcome, worker_thread::WorkerThread};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    chat_rows,
    function::Function,
    model::ConversationNo,
    store::{Proposal, RowSpace, StoreResult},
};

/// How often the thread looks whether something is due.
const ROUND: Duration = Duration::from_millis(50);
/// How often the leader looks in the store for what no node has reported.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// Conversations in one search.
const FOUND_MAX: usize = 1_000;
/// Conversations that wait in memory. More of them are found in the store.
const DUE_MAX: usize = 100_000;

type Due = Arc<Mutex<FxHashMap<ConversationNo, u64>>>;

/// The engine's handle of the thread.
pub(crate) struct ReactionTeller {
    due: Due,
    thread: WorkerThread,
}

impl ReactionTeller {
    pub(crate) fn start(core: Core) -> ReactionTeller {
        let due = Due::default();
        let worker = Worker { core, due: due.clone() };
        ReactionTeller { due, thread: WorkerThread::start("reactions", 1, move |stopped| worker.run(&stopped)) }
    }

    /// Has the members of a conversation notified of reactions at this time, in milliseconds since 1970 UTC.
    pub(crate) fn tell_at(&self, conversation: ConversationNo, at: u64) {
        let mut due = self.due.lock();
        if due.len() < DUE_MAX {
            due.entry(conversation).or_insert(at);
        }
    }

    pub(crate) fn stop(&self) {
        self.thread.stop();
    }
}

struct Worker {
    core: Core,
    due: Due,
}

impl Worker {
    fn run(self, stopped: &Receiver<Infallible>) {
        let mut searched_at: Option<Instant> = None;
        while stopped.recv_timeout(ROUND) == Err(RecvTimeoutError::Timeout) {
            let now_ms = self.core.clock.now_ms();
            let mut is_due = Vec::new();
            self.due.lock().retain(|conversation, at| {
                if *at <= now_ms {
                    is_due.push(*conversation);
                }
                *at > now_ms
            });
            is_due.into_iter().for_each(|conversation| self.tell(conversation));
            if searched_at.is_none_or(|at| at.elapsed() >= SEARCH_INTERVAL)
                && self.core.leads.of(Function::Housekeeping).leads()
            {
                searched_at = Some(Instant::now());
                match self.search() {
                    Ok(found) => found.into_iter().for_each(|conversation| self.tell(conversation)),
                    Err(error) => tracing::debug!(%error, "reactions to be told could not be looked for"),
                }
            }
        }
    }

    /// The conversations with reactions that no node has reported, but for those that this node will.
    fn search(&self) -> StoreResult<Vec<ConversationNo>> {
        let (from, to) = (ConversationNo(0), ConversationNo(u64::MAX));
        let (from, to) = (chat_rows::untold_key(from), chat_rows::untold_key(to));
        let rows = self.core.store.rows(RowSpace::Chat, &from, &to, FOUND_MAX)?;
        let due = self.due.lock();
        let found = rows.iter().filter_map(|(key, _)| chat_rows::number_in(key, 0)).map(ConversationNo);
        Ok(found.filter(|conversation| !due.contains_key(conversation)).collect())
    }

    fn tell(&self, conversation: ConversationNo) {
        let Ok(Some(details)) = self.core.directory.conversation(conversation) else { return };
        let begun = self.core.committer.begin(Some(&details), Proposal::TellReactions { conversation });
        if let Err(refusal) = begun.and_then(PendingOutcome::wait) {
            tracing::debug!(%refusal, "reactions are told later");
        }
    }
}

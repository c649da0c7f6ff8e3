//! The requests of one session whose order matters: of two edits of a message the later one is to stay, and of an end of
//! a watch and a new watch the watch.
//!
//! Requests run on many threads, which may start in any order. So a thread takes no request of its own: it takes the
//! oldest that waits, and the next thread begins once that one is submitted.

use parking_lot::Mutex;
use std::{collections::VecDeque, future::poll_fn, pin::Pin, sync::Arc, task::Poll};
use tidings_engine::Engine;

/// Submits a request, and answers with a frame's JSON. `None`: the answer is sent by other means.
type Submission = Box<dyn FnOnce(&Engine) -> Option<Vec<u8>> + Send>;
/// A request that is submitted when it is first polled, and then awaits its outcome: a frame's JSON.
type Commit = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

struct InOrder<T> {
    waiting: Mutex<VecDeque<T>>,
    /// Held while a request is submitted. The shard, which only adds requests, never waits for it.
    turn: Mutex<()>,
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        InOrder { waiting: Mutex::default(), turn: Mutex::default() }
    }
}

impl<T> InOrder<T> {
    fn push(&self, request: T) {
        self.waiting.lock().push_back(request);
    }

    /// Submits the oldest request. `None`: there is none.
    fn submit_oldest<A>(&self, submit: impl FnOnce(T) -> A) -> Option<A> {
        let _turn = self.turn.lock();
        let request = self.waiting.lock().pop_front()?;
        Some(submit(request))
    }
}

/// Whoever adds a request has one thread or task submit the oldest.
#[derive(Clone, Default)]
pub(crate) struct OrderedRequests(Arc<Queues>);

#[derive(Default)]
struct Queues {
    submissions: InOrder<Submission>,
    commits: InOrder<Commit>,
}

impl OrderedRequests {
    pub(crate) fn push_submission(&self, request: impl FnOnce(&Engine) -> Option<Vec<u8>> + Send + 'static) {
        self.0.submissions.push(Box::new(request));
    }

    /// Blocks while an earlier request is submitted.
    pub(crate) fn submit_oldest(&self, engine: &Engine) -> Option<Vec<u8>> {
        self.0.submissions.submit_oldest(|request| request(engine)).flatten()
    }

    pub(crate) fn push_commit(&self, request: impl Future<Output = Vec<u8>> + Send + 'static) {
        self.0.commits.push(Box::pin(request));
    }

    /// Submits the oldest request and awaits its outcome.
    pub(crate) async fn commit_oldest(&self) -> Option<Vec<u8>> {
        let submitted = poll_fn(|context| {
            Poll::Ready(self.0.commits.submit_oldest(|mut request| {
                let state = request.as_mut().poll(context);
                (request, state)
            }))
        });
        match submitted.await? {
            (_, Poll::Ready(json)) => Some(json),
            (request, Poll::Pending) => Some(request.await),
        }
    }
}

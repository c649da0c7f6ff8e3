//! The responses of one connection that its client has not read: they are in memory, and count against the budget of all connections.

use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};
use tidings_listen::{Client, Holding, OutboundBudget};

/// A shorter response is not counted: a socket's own buffer takes it at once.
const COUNTED_BYTES_MIN: usize = 16 * 1024;

/// What one connection's client has not read.
pub(crate) struct UnreadResponses {
    budget: Arc<OutboundBudget>,
    unread: Mutex<Option<(Holding, usize)>>,
    /// Whether there is anything in `unread`: most connections never have, and each of their wakes and writes asks.
    is_any: AtomicBool,
    closing: Arc<Closing>,
}

/// Whether the connection is to be closed.
#[derive(Default)]
struct Closing {
    is_asked: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Closing {
    fn ask(&self) {
        self.is_asked.store(true, Ordering::Release);
        if let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
    }
}

impl UnreadResponses {
    pub(crate) fn new(budget: Arc<OutboundBudget>) -> Arc<Self> {
        let (is_any, closing) = (AtomicBool::new(false), Arc::default());
        Arc::new(UnreadResponses { budget, unread: Mutex::new(None), is_any, closing })
    }

    /// A response with so long a body begins.
    pub(crate) fn add(&self, bytes: usize, client: Client) {
        if bytes < COUNTED_BYTES_MIN {
            return;
        }
        let mut unread = self.unread.lock();
        self.is_any.store(true, Ordering::Release);
        let (holding, all) = unread.get_or_insert_with(|| {
            let closing = self.closing.clone();
            (self.budget.hold(client, Box::new(move || closing.ask())), 0)
        });
        *all = all.saturating_add(bytes);
        holding.set(*all);
    }

    /// The kernel has taken all responses.
    pub(crate) fn clear(&self) {
        if self.is_any.load(Ordering::Acquire) {
            self.is_any.store(false, Ordering::Release);
            self.unread.lock().take();
        }
    }

    /// Ready when the connection is to be closed, because others need the memory. Its waker is kept only while there is something
    /// unread: what adds to that runs in the same task, which polls this after it.
    pub(crate) fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_any.load(Ordering::Acquire) {
            let mut waker = self.closing.waker.lock();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                *waker = Some(context.waker().clone());
            }
        }
        // Looked at after the waker is there: whoever asked before has woken nobody.
        if self.closing.is_asked.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

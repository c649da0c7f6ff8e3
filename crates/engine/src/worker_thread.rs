//! The thread of a worker, and the handle by which others give it orders and end it: the worker waits on a channel, and its
//! thread ends when the handle has closed the channel.

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use std::{convert::Infallible, thread::JoinHandle};
use tidings_domain::end_reason::required;

/// The handle of a worker's thread. A worker that takes no orders only waits until it is stopped.
pub struct WorkerThread<Order = Infallible> {
    orders: Mutex<Option<Sender<Order>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<Order: Send + 'static> WorkerThread<Order> {
    /// Starts the thread. At most so many orders wait for the worker.
    pub fn start(name: &str, orders_max: usize, run: impl FnOnce(Receiver<Order>) + Send + 'static) -> Self {
        let (orders, inbox) = bounded(orders_max);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(inbox));
        WorkerThread { orders: Mutex::new(Some(orders)), thread: Mutex::new(Some(required(name, thread))) }
    }

    /// Gives the worker an order, unless as many wait as may.
    pub fn try_order(&self, order: Order) {
        if let Some(orders) = &*self.orders.lock() {
            let _ = orders.try_send(order);
        }
    }

    /// Gives the worker an order that it confirms, and waits until it has.
    pub fn order_and_wait(&self, order: impl FnOnce(Sender<()>) -> Order) {
        let orders = self.orders.lock().clone();
        let (done, is_done) = bounded(1);
        if orders.is_some_and(|orders| orders.send(order(done)).is_ok()) {
            let _ = is_done.recv();
        }
    }

    /// Closes the channel: the worker does what is left to it, and ends.
    pub fn close(&self) {
        self.orders.lock().take();
    }

    /// Closes the channel, and waits until the thread has ended. The worker itself, which may hold the last reference to the
    /// engine, does not wait for its own thread.
    pub fn stop(&self) {
        self.close();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn orders_are_done_before_the_thread_ends_and_none_after() {
        let done = Arc::new(AtomicUsize::new(0));
        let count = done.clone();
        let worker = WorkerThread::start("test", 2, move |orders: Receiver<Sender<()>>| {
            for confirm in orders {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = confirm.send(());
            }
        });
        worker.order_and_wait(|confirm| confirm);
        assert_eq!(done.load(Ordering::SeqCst), 1);
        worker.try_order(bounded(1).0);
        worker.stop();
        worker.order_and_wait(|confirm| confirm);
        worker.stop();
        assert_eq!(done.load(Ordering::SeqCst), 2);
    }
}

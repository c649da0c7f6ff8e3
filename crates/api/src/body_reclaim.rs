//! A request body that its reader owns, and of which the unread rest is reclaimed: the rest must be read before the
//! connection can carry the next request.

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

/// Gets a body back that its reader did not read to the end.
#[derive(Default)]
pub(crate) struct BodyReclaim(Arc<Mutex<Option<Incoming>>>);

/// A body for a reader that takes ownership.
pub(crate) struct ReclaimableBody {
    /// Absent once it has ended.
    body: Option<Incoming>,
    rest: Arc<Mutex<Option<Incoming>>>,
}

impl BodyReclaim {
    pub(crate) fn lend(&self, body: Incoming) -> ReclaimableBody {
        ReclaimableBody { body: (!body.is_end_stream()).then_some(body), rest: self.0.clone() }
    }

    /// The body with its unread rest, once the reader has dropped it.
    pub(crate) fn take(&self) -> Option<Incoming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Body for ReclaimableBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        if body.is_end_stream() || !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for ReclaimableBody {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            *self.rest.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

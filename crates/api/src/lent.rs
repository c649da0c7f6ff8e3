//! A request's body on loan: what its reader leaves of it comes back, so that the connection can be used again.

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

/// Where a body comes back to that was not read to its end.
#[derive(Default)]
pub(crate) struct Left(Arc<Mutex<Option<Incoming>>>);

/// The body, for a reader that keeps it.
pub(crate) struct Lent {
    /// Absent once it has ended.
    body: Option<Incoming>,
    left: Arc<Mutex<Option<Incoming>>>,
}

impl Left {
    pub(crate) fn lend(&self, body: Incoming) -> Lent {
        Lent { body: (!body.is_end_stream()).then_some(body), left: self.0.clone() }
    }

    /// What was left, once the reader has let go of it.
    pub(crate) fn take(&self) -> Option<Incoming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Body for Lent {
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

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

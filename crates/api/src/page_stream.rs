//! Response bodies that are made while they are sent: a page at a time, as fast as the caller reads.

use crate::Api;
use bytes::Bytes;
use hyper::body::{Body, Frame};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tidings_engine::Engine;
use tidings_protocol::error::Refusal;
use tokio::sync::mpsc;

/// Pages that are made ahead of the caller's reading.
const PAGES_AHEAD: usize = 2;

/// A body of pages. An error breaks the body off, so that the caller does not take it for complete.
pub(crate) struct PageStream(mpsc::Receiver<Result<Bytes, Refusal>>);

impl PageStream {
    /// `page` makes the next page, on a thread that may wait for the disk, and returns whether there are more.
    pub(crate) fn start(
        api: Arc<Api>,
        mut page: impl FnMut(&Engine) -> Result<(Bytes, bool), Refusal> + Send + 'static,
    ) -> Self {
        let (sender, pages) = PageStream::channel();
        tokio::spawn(async move {
            let mut more = true;
            while more {
                // Room first: no page is read for a caller that has stopped reading.
                let Ok(room) = sender.reserve().await else { return };
                let made = api.read(move |engine| {
                    let made = page(engine);
                    Ok((made, page))
                });
                let made = match made.await {
                    Ok((made, again)) => {
                        page = again;
                        made
                    }
                    Err(refusal) => return room.send(Err(refusal)),
                };
                match made {
                    Ok((bytes, has_more)) => {
                        more = has_more;
                        room.send(Ok(bytes));
                    }
                    Err(refusal) => return room.send(Err(refusal)),
                }
            }
        });
        pages
    }
}

/// The sender of a body's pages.
pub(crate) type PageSender = mpsc::Sender<Result<Bytes, Refusal>>;

impl PageStream {
    /// A body whose pages somebody else makes.
    pub(crate) fn channel() -> (PageSender, Self) {
        let (sender, receiver) = mpsc::channel(PAGES_AHEAD);
        (sender, PageStream(receiver))
    }
}

impl Body for PageStream {
    type Data = Bytes;
    type Error = Refusal;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        self.0.poll_recv(context).map(|page| page.map(|page| page.map(Frame::data)))
    }
}

//! What a session over server-sent events has besides: its client writes by requests of their own.

use std::cmp::Ordering;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    event_stream::StreamSecret,
};

pub(crate) struct EventStream {
    /// Whoever knows it may send frames to the session.
    pub secret: StreamSecret,
    /// The number of the newest request whose frames were taken.
    pub taken: u64,
    /// The tick at which the client is sent a comment.
    pub keep_alive_due: u32,
}

impl EventStream {
    pub(crate) fn new(keep_alive_due: u32) -> Self {
        EventStream { secret: StreamSecret(rand::random()), taken: 0, keep_alive_due }
    }

    /// Whether a request of this number is the next one. Of a request that was taken before, the client has lost the answer.
    ///
    /// # Errors
    /// `conflict`: an earlier request has not come yet.
    pub(crate) fn is_next(&self, number: u64) -> Result<bool, Refusal> {
        let next = self.taken + 1;
        match number.cmp(&next) {
            Ordering::Less => Ok(false),
            Ordering::Equal => Ok(true),
            Ordering::Greater => {
                let why = format!("number: {next} comes next, got {number}; send one request after the other");
                Err(Refusal::new(ErrorCode::Conflict, why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_an_event_stream_is_small() {
        assert_eq!(std::mem::size_of::<EventStream>(), 32, "docs/sse.md says what a session costs");
    }

    #[test]
    fn requests_are_taken_once_and_in_order() {
        let mut stream = EventStream::new(0);
        assert_eq!(stream.is_next(1), Ok(true));
        stream.taken = 1;
        assert_eq!(stream.is_next(1), Ok(false));
        assert_eq!(stream.is_next(2), Ok(true));
        assert_eq!(stream.is_next(3).map_err(|refusal| refusal.code), Err(ErrorCode::Conflict));
    }
}

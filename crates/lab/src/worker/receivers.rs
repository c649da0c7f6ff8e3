//! The receivers as the traffic beside plain messages needs them.

/// The connections of the run's receivers, by their number.
pub(crate) trait Receivers {
    /// Whether the receiver has a session now.
    fn is_live(&self, receiver: usize) -> bool;
    /// The receiver's cursor.
    fn cursor(&self, receiver: usize) -> &[u8];
    /// Records that an operation waits for its answer.
    fn expect_answer(&mut self, receiver: usize, operation: u32);
    fn queue_frame(&mut self, receiver: usize, payload: &[u8]);
}
